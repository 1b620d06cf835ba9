// What another rank than 0 changes in files, on folders of its own: the functions that the wrappers call.
#include <gtest/gtest.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>

extern "C" {
#include "job/options.h"
#include "files/overlay.h"
#include "castor.h"
}

namespace {

using Names = std::set<std::string>;

std::string text_of(const std::string &path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return file ? text.str() : "(none)";
}

void write_text(const std::string &path, const std::string &text) {
    std::ofstream(path) << text;
}

class Files : public testing::Test {
  protected:
    std::string folder, real;

    void SetUp() override {
        char name[] = "/tmp/castor-files-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        folder = name;
        real = folder + "/real";
        ASSERT_EQ(mkdir(real.c_str(), 0755), 0);
    }
    void TearDown() override {
        std::string command = "rm -rf " + folder;
        EXPECT_EQ(system(command.c_str()), 0);
    }

    // In a process of its own: what is diverted stays so. The check's failures are printed there.
    void in_rank(int rank, const std::function<void()> &check, const std::string &temporary_folder = "") {
        fflush(nullptr);
        pid_t pid = fork();
        if (pid == 0) {
            std::string number = "CASTOR_RANK=" + std::to_string(rank),
                        files = "CASTOR_FILES=" + folder + "/.files";
            std::string temporary = "CASTOR_TEMPORARY_DIR=" + temporary_folder;
            char *environment[] = {number.data(), files.data(), temporary.data(), nullptr};
            char message[256];
            if (options_load(environment, message, sizeof message) == CASTOR_OK)
                files_start();
            check();
            fflush(nullptr);
            _exit(testing::Test::HasFailure() ? 1 : 0);
        }
        int status;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
    }

    // The calls as the wrappers make them.
    int open_at(const std::string &path, int flags, mode_t mode = 0644) {
        char place[FILES_PATH_MAX];
        int wrong = files_open(AT_FDCWD, path.c_str(), flags, mode, place);
        return wrong < 0 ? -1 : open(wrong ? path.c_str() : place, flags, mode);
    }
    bool put(const std::string &path, const std::string &text, int flags = O_TRUNC) {
        int file = open_at(path, O_WRONLY | O_CREAT | flags);
        if (file < 0)
            return false;
        bool done = write(file, text.data(), text.size()) == (ssize_t)text.size();
        close(file);
        return done;
    }
    std::string get(const std::string &path) {
        int file = open_at(path, O_RDONLY);
        if (file < 0)
            return std::string("error ") + strerror(errno);
        char text[4096];
        ssize_t size = read(file, text, sizeof text);
        close(file);
        return std::string(text, size > 0 ? size : 0);
    }
    bool exists(const std::string &path) {
        files_found found;
        return files_find(AT_FDCWD, path.c_str(), true, &found) == 0 && !found.missing;
    }
    Names names(const std::string &path) {
        files_found found;
        Names seen;
        EXPECT_EQ(files_find(AT_FDCWD, path.c_str(), true, &found), 0) << path;
        files_listing *listing = files_listing_open(&found);
        EXPECT_NE(listing, nullptr);
        while (auto *entry = listing ? (struct dirent *)files_listing_next(listing) : nullptr)
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
                EXPECT_TRUE(seen.insert(entry->d_name).second) << entry->d_name << " is there twice";
            }
        if (listing)
            files_listing_close(listing);
        return seen;
    }
    int make(const std::string &path, mode_t mode = 0755) {
        int done = files_mkdir(AT_FDCWD, path.c_str(), mode);
        return done == 1 ? mkdir(path.c_str(), mode) : done;
    }
    int drop(const std::string &path, int flags = 0) {
        int done = files_remove(AT_FDCWD, path.c_str(), flags);
        return done == 1 ? unlinkat(AT_FDCWD, path.c_str(), flags) : done;
    }
    int move(const std::string &from, const std::string &to) {
        int done = files_rename(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0);
        return done == 1 ? rename(from.c_str(), to.c_str()) : done;
    }
};

TEST_F(Files, WritesGoToACopyThatIsReadBack) {
    write_text(real + "/log", "old\n");
    in_rank(1, [&] {
        EXPECT_EQ(get(real + "/log"), "old\n");
        EXPECT_TRUE(put(real + "/log", "new\n", O_APPEND));
        EXPECT_EQ(get(real + "/log"), "old\nnew\n");
        EXPECT_TRUE(put(real + "/made", "x"));
        EXPECT_TRUE(put(real + "/emptied", "y", O_EXCL));
        EXPECT_FALSE(put(real + "/emptied", "y", O_EXCL));
        EXPECT_EQ(errno, EEXIST);
        EXPECT_EQ(names(real), (Names{"log", "made", "emptied"}));
    });
    EXPECT_EQ(text_of(real + "/log"), "old\n");
    EXPECT_EQ(text_of(real + "/made"), "(none)");
}

TEST_F(Files, NamesThatAreRemovedAndRenamed) {
    write_text(real + "/a", "a");
    write_text(real + "/b", "b");
    mkdir((real + "/tree").c_str(), 0755);
    write_text(real + "/tree/leaf", "leaf");
    in_rank(1, [&] {
        EXPECT_EQ(drop(real + "/a"), 0);
        EXPECT_EQ(drop(real + "/a"), -1);
        EXPECT_EQ(errno, ENOENT);
        EXPECT_FALSE(exists(real + "/a"));
        EXPECT_EQ(move(real + "/b", real + "/c"), 0);
        EXPECT_EQ(get(real + "/c"), "b");
        EXPECT_FALSE(exists(real + "/b"));
        EXPECT_EQ(drop(real + "/tree", AT_REMOVEDIR), -1);
        EXPECT_EQ(errno, ENOTEMPTY);
        EXPECT_EQ(move(real + "/tree", real + "/moved"), 0);
        EXPECT_EQ(get(real + "/moved/leaf"), "leaf");
        EXPECT_FALSE(exists(real + "/tree"));
        EXPECT_EQ(make(real + "/tree"), 0);
        EXPECT_EQ(names(real + "/tree"), Names{});
        EXPECT_EQ(drop(real + "/moved/leaf"), 0);
        EXPECT_EQ(drop(real + "/moved", AT_REMOVEDIR), 0);
        EXPECT_EQ(names(real), (Names{"c", "tree"}));
    });
    EXPECT_EQ(text_of(real + "/a"), "a");
    EXPECT_EQ(text_of(real + "/tree/leaf"), "leaf");
}

// Rank 0 is earlier, in everything.
TEST_F(Files, WhatRank0ChangesIsAsItWasForTheOthers) {
    write_text(real + "/kept", "before");
    write_text(real + "/gone", "before");
    mkdir((real + "/old").c_str(), 0755);
    write_text(real + "/old/checkpoint", "before");
    in_rank(0, [&] {
        EXPECT_TRUE(put(real + "/kept", "after"));
        EXPECT_EQ(drop(real + "/gone"), 0);
        EXPECT_EQ(make(real + "/out"), 0);
        EXPECT_TRUE(put(real + "/out/metrics", "after", O_EXCL));
        EXPECT_EQ(drop(real + "/old/checkpoint"), 0);
        EXPECT_EQ(drop(real + "/old", AT_REMOVEDIR), 0);
    });
    EXPECT_EQ(text_of(real + "/kept"), "after");
    EXPECT_EQ(text_of(real + "/out/metrics"), "after");
    in_rank(1, [&] {
        EXPECT_EQ(names(real), (Names{"kept", "gone", "old"}));
        EXPECT_EQ(get(real + "/kept"), "before");
        EXPECT_EQ(drop(real + "/gone"), 0);
        EXPECT_EQ(make(real + "/out"), 0);
        EXPECT_EQ(names(real + "/out"), Names{});
        EXPECT_TRUE(put(real + "/out/metrics", "mine", O_EXCL));
        EXPECT_EQ(get(real + "/out/metrics"), "mine");
        EXPECT_EQ(drop(real + "/old/checkpoint"), 0);
        EXPECT_EQ(drop(real + "/old", AT_REMOVEDIR), 0);
        EXPECT_EQ(names(real), (Names{"kept", "out"}));
    });
    EXPECT_EQ(text_of(real + "/out/metrics"), "after");
}

// What a rank looks for while rank 0 makes it, changes it or removes it.
TEST_F(Files, NothingOfRank0IsSeenWhileItIsMade) {
    constexpr int kCount = 400;
    auto made = [&](int i) { return real + "/made" + std::to_string(i); };
    auto old = [&](int i) { return real + "/old" + std::to_string(i); };
    for (int i = 0; i < kCount; i++)
        write_text(old(i), "old");
    ASSERT_EQ(mkdir((real + "/listed").c_str(), 0755), 0);
    auto *at =
        (std::atomic<int> *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    fflush(nullptr);
    pid_t first = fork();
    if (first == 0) {
        in_rank(0, [&] {
            for (int i = 0; i < kCount; i++) {
                std::string name = real + "/listed/" + std::to_string(i);
                at->store(i);
                EXPECT_EQ(make(made(i)), 0);
                EXPECT_TRUE(put(name, "new"));
                EXPECT_EQ(drop(name), 0);
                EXPECT_EQ(drop(old(i)), 0);
            }
            at->store(kCount);
        });
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    in_rank(1, [&] {
        int seen = 0, lost = 0, listed = 0;
        for (int i = at->load(); i < kCount; i = at->load()) {
            seen += exists(made(i));
            lost += !exists(old(i));
            listed += !names(real + "/listed").empty();
        }
        EXPECT_EQ(seen, 0) << "folders of rank 0";
        EXPECT_EQ(lost, 0) << "files that rank 0 has removed";
        EXPECT_EQ(listed, 0) << "listings with names of rank 0";
    });
    int status;
    ASSERT_EQ(waitpid(first, &status, 0), first);
    EXPECT_EQ(status, 0);
    munmap(at, 4096);
}

TEST_F(Files, AFolderThatRank0RenamesStaysWhereItWas) {
    mkdir((real + "/run").c_str(), 0755);
    write_text(real + "/run/state", "before");
    in_rank(0, [&] {
        EXPECT_EQ(move(real + "/run", real + "/run.old"), 0);
        EXPECT_EQ(make(real + "/run"), 0);
    });
    in_rank(1, [&] {
        EXPECT_EQ(names(real), Names{"run"});
        EXPECT_EQ(get(real + "/run/state"), "before");
        EXPECT_EQ(move(real + "/run", real + "/run.old"), 0);
        EXPECT_EQ(get(real + "/run.old/state"), "before");
    });
}

TEST_F(Files, ChildrenAndOtherPathsToTheSameFileSeeTheSame) {
    mkdir((real + "/deep").c_str(), 0755);
    ASSERT_EQ(symlink("deep", (real + "/link").c_str()), 0);
    in_rank(1, [&] {
        EXPECT_TRUE(put(real + "/link/../link/./file", "one"));
        EXPECT_EQ(get(real + "/deep/file"), "one");
        EXPECT_EQ(files_mkdir(AT_FDCWD, (real + "/deep/file/x").c_str(), 0755), -1);
        EXPECT_EQ(errno, ENOTDIR);
        int at = open(real.c_str(), O_RDONLY | O_DIRECTORY);
        char place[FILES_PATH_MAX];
        EXPECT_EQ(files_use(at, "deep/file", FILES_READ, place), 0);
        EXPECT_EQ(text_of(place), "one");
        pid_t pid = fork();
        if (pid == 0)
            _exit(put(real + "/deep/file", "two") && get(real + "/link/file") == "two" ? 0 : 1);
        int status;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        EXPECT_EQ(get(real + "/deep/file"), "two");
    });
    EXPECT_EQ(text_of(real + "/deep/file"), "(none)");
}

TEST_F(Files, TemporaryNamesAreLeftWhereTheyAre) {
    std::string inside = folder + "/tmp", name = inside + "/tmpab12cd34";
    mkdir(inside.c_str(), 0755);
    in_rank(
        1,
        [&] {
            EXPECT_EQ(make(name, 0700), 0);
            EXPECT_TRUE(put(name + "/socket", "x"));
            EXPECT_TRUE(put(inside + "/result", "x"));
        },
        inside);
    EXPECT_EQ(text_of(name + "/socket"), "x");
    EXPECT_EQ(text_of(inside + "/result"), "(none)");
}

TEST_F(Files, AdoptedFilesDoNotShareChanges) {
    write_text(real + "/old", "");
    in_rank(0, [&] { EXPECT_TRUE(put(real + "/checkpoint", "saved")); });
    in_rank(1, [&] {
        EXPECT_FALSE(exists(real + "/checkpoint"));
        EXPECT_EQ(files_adopt((real + "/checkpoint").c_str(), nullptr), 0);
        EXPECT_EQ(get(real + "/checkpoint"), "saved");
        EXPECT_TRUE(put(real + "/checkpoint", "+", O_APPEND));
        EXPECT_EQ(get(real + "/checkpoint"), "saved+");
    });
    EXPECT_EQ(text_of(real + "/checkpoint"), "saved");
}

TEST_F(Files, AFileIsAdoptedUnderTheRanksOwnName) {
    std::string inside = folder + "/tmp", own = inside + "/tmpab12cd34", from = real + "/at-noon/checkpoint";
    mkdir(inside.c_str(), 0755);
    write_text(real + "/stale", "old");
    in_rank(0, [&] {
        EXPECT_EQ(make(real + "/at-noon"), 0);
        EXPECT_TRUE(put(from, "saved"));
    });
    in_rank(
        1,
        [&] {
            EXPECT_EQ(make(real + "/after-noon"), 0);
            EXPECT_EQ(make(own, 0700), 0);
            for (const std::string &path :
                 {real + "/after-noon/checkpoint", real + "/stale", own + "/checkpoint"}) {
                EXPECT_EQ(files_adopt(path.c_str(), from.c_str()), 0) << path;
                EXPECT_EQ(get(path), "saved") << path;
            }
            EXPECT_EQ(files_adopt("/dev/null", from.c_str()), 0);
            EXPECT_EQ(get("/dev/null"), "");
            EXPECT_EQ(files_adopt((real + "/none").c_str(), (real + "/nothing").c_str()), -1);
            EXPECT_EQ(errno, ENOENT);
        },
        inside);
    EXPECT_EQ(text_of(real + "/stale"), "old");
    EXPECT_EQ(text_of(real + "/after-noon/checkpoint"), "(none)");
    EXPECT_EQ(text_of(own + "/checkpoint"), "saved");
}

TEST_F(Files, AFolderThatCannotBeMadeIsAnError) {
    in_rank(1, [] {
        EXPECT_EQ(castor_files_divert("/dev/null/x"), CASTOR_ERR_SYSTEM);
        EXPECT_EQ(castor_files_divert("relative"), CASTOR_ERR_ARGUMENT);
    });
}

// ---- a process that leaves no trace

TEST_F(Files, DivertedDescriptorsAreThisProcessesOwn) {
    write_text(real + "/read", "0123456789");
    write_text(real + "/both", "0123456789");
    int reads = open((real + "/read").c_str(), O_RDONLY),
        writes = open((real + "/log").c_str(), O_WRONLY | O_CREAT, 0644);
    int both = open((real + "/both").c_str(), O_RDWR | O_CLOEXEC), ends[2];
    ASSERT_EQ(pipe(ends), 0);
    ASSERT_EQ(write(writes, "parent", 6), 6);
    lseek(reads, 3, SEEK_SET);
    lseek(both, 4, SEEK_SET);
    char *mapped = (char *)mmap(nullptr, 10, PROT_READ | PROT_WRITE, MAP_SHARED, both, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    std::string inside = folder + "/audit";
    fflush(nullptr);
    pid_t pid = fork();
    if (pid == 0) {
        int wrong = 0;
        char text[16] = "";
        auto check = [&wrong](bool holds, int number) { wrong = wrong || holds ? wrong : number; };
        check(castor_files_divert(inside.c_str()) == CASTOR_OK, 1);
        check(read(reads, text, 2) == 2 && memcmp(text, "34", 2) == 0, 2);
        check(write(writes, "child", 5) == 5 && lseek(writes, 0, SEEK_CUR) == 11, 3);
        check(read(both, text, 1) == 1 && text[0] == '4' && write(both, "child", 5) == 5, 4);
        check((fcntl(both, F_GETFD) & FD_CLOEXEC) && !(fcntl(writes, F_GETFD) & FD_CLOEXEC), 5);
        check(write(ends[1], "child", 5) == 5 && write(1, "lost\n", 5) == 5 && write(2, "lost\n", 5) == 5, 6);
        memcpy(mapped, "child", 5);
        check(put(real + "/new", "child") && get(real + "/new") == "child", 7);
        check(drop(real + "/read") == 0 && !exists(real + "/read"), 8);
        check(text_of("/proc/self/environ") != "(none)" && getenv("CASTOR_FILES_DIVERTED") == inside, 9);
        _exit(wrong);
    }
    int status;
    waitpid(pid, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "the number of the check that failed";
    EXPECT_EQ(lseek(reads, 0, SEEK_CUR), 3);
    EXPECT_EQ(lseek(both, 0, SEEK_CUR), 4);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    char text[8];
    EXPECT_EQ(read(ends[0], text, sizeof text), -1);
    EXPECT_EQ(text_of(real + "/log"), "parent");
    EXPECT_EQ(text_of(real + "/both"), "0123456789");
    EXPECT_EQ(text_of(real + "/read"), "0123456789");
    EXPECT_EQ(text_of(real + "/new"), "(none)");
    munmap(mapped, 10);
    for (int file : {reads, writes, both, ends[0], ends[1]})
        close(file);
}

TEST_F(Files, AFileTooLargeForACopyIsToldBeforeAnythingChanges) {
    int both = open((real + "/large").c_str(), O_RDWR | O_CREAT, 0644);
    ASSERT_EQ(ftruncate(both, (64 << 20) + 1), 0);
    fflush(nullptr);
    pid_t pid = fork();
    if (pid == 0)
        _exit(castor_files_divert((folder + "/audit").c_str()) == CASTOR_ERR_UNSUPPORTED &&
                      files_now == FILES_OFF && access((folder + "/audit").c_str(), F_OK) != 0
                  ? 0
                  : 1);
    int status;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    close(both);
}

} // namespace
