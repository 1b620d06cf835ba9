/* Files that are written together: their bytes, names, order, and what stays after an error. */
#include "fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <algorithm>

using namespace checkpoint;

namespace {

const size_t kSizes[] = {0,
                         1,
                         63,
                         64,
                         65,
                         4095,
                         4096,
                         4097,
                         (1 << 20) - 1,
                         1 << 20,
                         (4 << 20) - 5,
                         4 << 20,
                         (4 << 20) + 1,
                         (9 << 20) + 123};

castor_status write(job *j) {
    return queue_write(j);
}

TEST(Checksum, IsTheSameInPieces) {
    std::string all = bytes_of(1, 1, 70001);
    checksum whole;
    checksum_begin(&whole);
    checksum_add(&whole, all.data(), all.size());
    for (size_t piece : {1u, 7u, 63u, 64u, 65u, 4096u, 70000u}) {
        checksum parts;
        checksum_begin(&parts);
        for (size_t at = 0; at < all.size(); at += piece)
            checksum_add(&parts, all.data() + at, std::min(piece, all.size() - at));
        EXPECT_EQ(checksum_end(&parts), checksum_end(&whole)) << piece;
    }
}

TEST(Checksum, SeesEachChange) {
    std::set<uint64_t> seen;
    std::string all(2000, 0);
    auto add = [&] {
        checksum c;
        checksum_begin(&c);
        checksum_add(&c, all.data(), all.size());
        return seen.insert(checksum_end(&c)).second;
    };
    EXPECT_TRUE(add());
    for (size_t at = 0; at < all.size(); at++)
        for (int bit = 0; bit < 8; bit++) {
            all[at] ^= (char)(1 << bit);
            EXPECT_TRUE(add()) << at;
            all[at] ^= (char)(1 << bit);
        }
    for (int shorter = 0; shorter < 200; shorter++) { /* zeros at the end count as well */
        all.pop_back();
        EXPECT_TRUE(add());
    }
    all = bytes_of(1, 1, 256);
    EXPECT_TRUE(add());
    std::swap_ranges(all.begin(), all.begin() + 64, all.begin() + 64);
    EXPECT_TRUE(add());
}

TEST(Checksum, Crc32) {
    EXPECT_EQ(crc32_add(0, "123456789", 9), 0xcbf43926u);
    std::string all = bytes_of(2, 3, 10007);
    uint32_t whole = crc32_add(0, all.data(), all.size()), parts = 0, slow = 0xffffffffu;
    for (size_t at = 0; at < all.size(); at += 13)
        parts = crc32_add(parts, all.data() + at, std::min<size_t>(13, all.size() - at));
    for (unsigned char byte : all)
        for (int bit = 0; bit < 8; bit++)
            slow = slow >> 1 ^ (((slow ^ byte >> bit) & 1) ? 0xedb88320u : 0);
    EXPECT_EQ(parts, whole);
    EXPECT_EQ(~slow, whole);
    for (size_t size = 0; size < 700; size++) /* each end of both ways, wherever the data lie */
        ASSERT_EQ(crc32_add((uint32_t)size * 77, all.data() + size, size),
                  crc32_add_portable((uint32_t)size * 77, all.data() + size, size))
            << size;
}

TEST(Verify, RecordsOfAnArchive) {
    Folder folder;
    const std::string datum[3] = {bytes_of(1, 0, (4 << 20) + 100), "", "small"};
    job *j;
    uint32_t number, crcs[3];
    ASSERT_EQ(job_new(&j), CASTOR_OK);
    ASSERT_EQ(job_file_add(j, (folder / "a.pt").c_str(), &number), CASTOR_OK);
    ASSERT_EQ(job_archive_begin(j, "a", 64), CASTOR_OK);
    for (const std::string &one : datum)
        ASSERT_EQ(job_record_add(j, "record", one.data(), one.size(), false), CASTOR_OK);
    ASSERT_EQ(job_archive_end(j, "01234567890123456789"), CASTOR_OK);
    ASSERT_EQ(write(j), CASTOR_OK) << error_text();
    std::string all = read(folder / "a.pt");
    uint64_t headers[3], sizes[3];
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        at = all.find("PK\3\4", i ? at + 4 + sizes[i - 1] : 0);
        headers[i] = at;
        sizes[i] = datum[i].size();
    }
    failure failed = {};
    const std::string name = folder / "a.pt";
    const char *path = name.c_str();
    ASSERT_TRUE(verify_records(path, headers, sizes, 3, crcs, &failed));
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(crcs[i], crc32_add(0, datum[i].data(), datum[i].size())) << i;
    EXPECT_NE(all.find(std::string((char *)&crcs[0], 4)), std::string::npos) << "it stands in the file";
    for (uint64_t wrong : {headers[0] + 1, (uint64_t)all.size() - 29, (uint64_t)all.size() + 7, UINT64_MAX}) {
        EXPECT_FALSE(verify_records(path, &wrong, sizes, 1, crcs, &failed));
        EXPECT_EQ(failed.error, EBADMSG) << wrong;
    }
    sizes[2] = all.size();
    EXPECT_FALSE(verify_records(path, headers, sizes, 3, crcs, &failed));
    EXPECT_EQ(failed.error, EBADMSG);
}

/* The checksum of what follows stands before it in the file, whatever the file's size and the place of the digits. */
TEST(Job, AFileHasItsOwnChecksum) {
    Folder folder;
    const std::string text = "what else counts";
    for (size_t size : {(size_t)0, (size_t)65, (size_t)(4 << 20) + 1})
        for (size_t before : {0u, 4090u, (4u << 20) - 20, (5u << 20)}) {
            std::string data = bytes_of(1, 2, size), header = bytes_of(2, 1, before) + "################--";
            job *j;
            uint32_t number;
            uint64_t sum;
            failure failed;
            checksum c;
            ASSERT_EQ(job_new(&j), CASTOR_OK);
            ASSERT_EQ(job_file_add(j, (folder / "file").c_str(), &number), CASTOR_OK);
            ASSERT_EQ(job_bytes_add(j, header.data(), header.size()), CASTOR_OK);
            ASSERT_EQ(job_sum_add(j, text.data(), text.size(), before), CASTOR_OK);
            EXPECT_EQ(job_sum_add(j, text.data(), text.size(), before), CASTOR_ERR_ARGUMENT);
            ASSERT_EQ(job_memory_add(j, data.data(), size), CASTOR_OK);
            ASSERT_EQ(size % 2 ? start(j) : write(j), CASTOR_OK) << error_text();
            ASSERT_EQ(queue_wait(), CASTOR_OK) << error_text();
            checksum_begin(&c);
            checksum_add(&c, text.data(), text.size());
            checksum_add(&c, data.data(), size);
            header.replace(before, 16, hex(checksum_end(&c)));
            ASSERT_TRUE(read(folder / "file") == header + data) << size << " behind " << before;
            ASSERT_TRUE(verify_checksum((folder / "file").c_str(), header.size(), text.data(), text.size(),
                                        &sum, &failed));
            EXPECT_EQ(sum, checksum_end(&c));
        }
}

TEST(Job, WritesTheBytes) {
    Folder folder;
    for (size_t size : kSizes) {
        std::string data = bytes_of(1, 2, size);
        job *j;
        uint32_t number;
        ASSERT_EQ(job_new(&j), CASTOR_OK);
        ASSERT_EQ(job_file_add(j, (folder / "file").c_str(), &number), CASTOR_OK);
        ASSERT_EQ(job_bytes_add(j, data.data(), size / 3), CASTOR_OK);
        ASSERT_EQ(job_memory_add(j, data.data() + size / 3, size - size / 3), CASTOR_OK);
        ASSERT_EQ(write(j), CASTOR_OK) << error_text();
        EXPECT_TRUE(read(folder / "file") == data) << size;
        uint64_t sum;
        failure failed;
        checksum c;
        ASSERT_TRUE(verify_checksum((folder / "file").c_str(), 0, "", 0, &sum, &failed));
        checksum_begin(&c);
        checksum_add(&c, data.data(), data.size());
        EXPECT_EQ(sum, checksum_end(&c));
    }
    EXPECT_EQ(names(folder.path), std::set<std::string>{"file"});
}

TEST(Job, AnIndexNamesWhatIsThere) {
    Folder folder;
    std::string why;
    for (int version = 1; version <= 3; version++) {
        const std::string shards[2] = {bytes_of(version, 0, 5000), bytes_of(version, 1, 2 << 20)};
        ASSERT_EQ(write(job_of(folder, version, shards)), CASTOR_OK) << error_text();
        EXPECT_EQ(loads(folder, &why), version) << why;
        EXPECT_EQ(names(folder.path).size(), 3u);
    }
    int fd = open((folder / "shard1.3").c_str(), O_RDWR); /* the comparison can fail */
    ASSERT_EQ(pwrite(fd, "x", 1, 777), 1);
    close(fd);
    EXPECT_EQ(loads(folder, &why), 0);
}

TEST(Job, KeepsTheModeAndFollowsLinks) {
    Folder folder;
    mode_t before = umask(027);
    job *j;
    uint32_t number;
    struct stat found;
    auto save = [&](const char *name) {
        ASSERT_EQ(job_new(&j), CASTOR_OK);
        ASSERT_EQ(job_file_add(j, (folder / name).c_str(), &number), CASTOR_OK);
        ASSERT_EQ(job_bytes_add(j, name, 4), CASTOR_OK);
        ASSERT_EQ(write(j), CASTOR_OK) << error_text();
    };
    save("real");
    umask(before);
    ASSERT_EQ(stat((folder / "real").c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0640u);
    chmod((folder / "real").c_str(), 0604);
    ASSERT_EQ(symlink("real", (folder / "link").c_str()), 0);
    save("link");
    ASSERT_EQ(lstat((folder / "link").c_str(), &found), 0);
    EXPECT_TRUE(S_ISLNK(found.st_mode));
    ASSERT_EQ(stat((folder / "real").c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0604u);
    EXPECT_EQ(read(folder / "real"), "link");
}

TEST(Job, BadInput) {
    Folder folder;
    job *j;
    uint32_t number;
    ASSERT_EQ(job_new(&j), CASTOR_OK);
    EXPECT_EQ(job_bytes_add(j, "x", 1), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(job_digits_add(j, 0), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(job_record_add(j, "x", "x", 1, true), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(job_sum_add(j, "", 0, 0), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(job_file_add(j, (folder / "no/file").c_str(), &number), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(job_failure()->error, ENOENT);
    ASSERT_EQ(job_file_add(j, (folder / "file").c_str(), &number), CASTOR_OK);
    EXPECT_EQ(job_file_add(j, (folder / "./file").c_str(), &number), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(job_failure()->error, 0);
    EXPECT_EQ(job_digits_add(j, 0), CASTOR_ERR_ARGUMENT) << "its own checksum";
    ASSERT_EQ(job_sum_add(j, "", 0, 0), CASTOR_OK);
    ASSERT_EQ(job_file_add(j, (folder / "index").c_str(), &number), CASTOR_OK);
    EXPECT_EQ(job_digits_add(j, 0), CASTOR_ERR_ARGUMENT) << "of a file that has one of its own";
    job_drop(j);
    ASSERT_EQ(job_new(&j), CASTOR_OK);
    ASSERT_EQ(mkdir((folder / "folder").c_str(), 0700), 0);
    ASSERT_EQ(job_file_add(j, (folder / "folder").c_str(), &number), CASTOR_OK);
    EXPECT_EQ(write(j), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(job_failure()->error, EISDIR);
    EXPECT_EQ(names(folder.path), std::set<std::string>{"folder"});
    rmdir((folder / "folder").c_str());
}

TEST(Job, ADirectoryThatIsRemoved) {
    Folder folder;
    job *j;
    uint32_t number;
    ASSERT_EQ(mkdir((folder / "gone").c_str(), 0700), 0);
    ASSERT_EQ(job_new(&j), CASTOR_OK);
    ASSERT_EQ(job_file_add(j, (folder / "gone/file").c_str(), &number), CASTOR_OK);
    ASSERT_EQ(job_bytes_add(j, "x", 1), CASTOR_OK);
    ASSERT_EQ(rmdir((folder / "gone").c_str()), 0);
    EXPECT_EQ(write(j), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(job_failure()->error, ENOENT);
    EXPECT_STREQ(job_failure()->path, (folder / "gone/file").c_str());
}

TEST(Job, LeftoversOfDeadProcessesGo) {
    Folder folder;
    const char *leftover = ".castor-0123456789abcdef.partial", *other = ".castor-0123456789abcdeg.partial";
    for (const char *name : {leftover, other})
        close(open((folder / name).c_str(), O_CREAT | O_WRONLY, 0600));
    stream alive;
    failure failed;
    ASSERT_TRUE(stream_open(&alive, (folder / "alive").c_str(), &failed));
    std::string temporary = alive.temporary;
    const std::string shards[2] = {"a", "b"};
    ASSERT_EQ(write(job_of(folder, 1, shards)), CASTOR_OK);
    EXPECT_EQ(names(folder.path), (std::set<std::string>{"index", "shard0.1", "shard1.1", other, temporary}));
    stream_drop(&alive);
    EXPECT_EQ(names(folder.path), (std::set<std::string>{"index", "shard0.1", "shard1.1", other}));
}

TEST(Queue, ErrorsAreToldOnce) {
    Folder folder;
    job *j;
    uint32_t number;
    ASSERT_EQ(mkdir((folder / "gone").c_str(), 0700), 0);
    const std::string shards[2] = {bytes_of(1, 0, 20 << 20), "b"};
    job_partial good, bad;
    struct stat found;
    ASSERT_EQ(start(job_of(folder, 1, shards), &good), CASTOR_OK) << error_text();
    ASSERT_EQ(job_new(&j), CASTOR_OK);
    ASSERT_EQ(job_file_add(j, (folder / "gone/file").c_str(), &number), CASTOR_OK);
    ASSERT_EQ(job_bytes_add(j, "x", 1), CASTOR_OK);
    ASSERT_EQ(start(j, &bad), CASTOR_OK);
    EXPECT_EQ(stat(bad.path, &found), 0) << "it is written behind the other one";
    EXPECT_EQ(found.st_ino, bad.inode);
    for (const std::string &name : names(folder / "gone"))
        unlink((folder / ("gone/" + name)).c_str());
    ASSERT_EQ(rmdir((folder / "gone").c_str()), 0);
    EXPECT_EQ(queue_wait(), CASTOR_ERR_SYSTEM);
    EXPECT_STREQ(job_failure()->path, (folder / "gone/file").c_str());
    EXPECT_EQ(queue_wait(), CASTOR_OK);
    EXPECT_EQ(queue_check(), CASTOR_OK);
    std::string why;
    EXPECT_EQ(loads(folder, &why), 1) << why;
    EXPECT_EQ(stat(good.place, &found), 0) << good.place;
    EXPECT_EQ(found.st_ino, good.inode);
    EXPECT_EQ(good.place, folder / "index");
    EXPECT_NE(access(good.path, F_OK), 0);
    EXPECT_NE(access(bad.path, F_OK), 0);
    EXPECT_EQ(bad.place, folder / "gone/file");
}

TEST(Queue, ADirectoryThatGetsAnotherName) {
    Folder folder;
    job *j;
    uint32_t number;
    ASSERT_EQ(mkdir((folder / "one").c_str(), 0700), 0);
    const std::string shards[2] = {bytes_of(1, 0, 20 << 20), "b"};
    ASSERT_EQ(start(job_of(folder, 1, shards)), CASTOR_OK) << error_text();
    ASSERT_EQ(job_new(&j), CASTOR_OK);
    ASSERT_EQ(job_file_add(j, (folder / "one/file").c_str(), &number), CASTOR_OK);
    ASSERT_EQ(job_bytes_add(j, "x", 1), CASTOR_OK);
    ASSERT_EQ(start(j), CASTOR_OK);
    ASSERT_EQ(rename((folder / "one").c_str(), (folder / "other").c_str()), 0);
    EXPECT_EQ(queue_wait(), CASTOR_OK) << error_text();
    EXPECT_EQ(read(folder / "other/file"), "x");
    unlink((folder / "other/file").c_str());
    rmdir((folder / "other").c_str());
}

TEST(Pending, WhoNamesAFileWaits) {
    Folder folder;
    const std::string shards[2] = {bytes_of(1, 0, 40 << 20), bytes_of(1, 1, 1000)};
    std::string path = folder.path, why;
    auto begin = [&](int version) { ASSERT_EQ(start(job_of(folder, version, shards)), CASTOR_OK); };
    begin(1);
    pending_await(AT_FDCWD, (folder / "other").c_str(), PENDING_FILE);
    pending_await(AT_FDCWD, path.c_str(), PENDING_FILE);
    pending_await(AT_FDCWD, "/no/such", PENDING_TREE);
    EXPECT_TRUE(pending_any()) << "it waits for others' files, or the disk is faster than 40 MiB in a moment";
    pending_await(AT_FDCWD, (folder.path + "/../" + path.substr(5) + "/./index").c_str(), PENDING_FILE);
    EXPECT_EQ(loads(folder, &why), 1) << why;
    begin(2);
    pending_await(AT_FDCWD, path.c_str(), PENDING_TREE);
    EXPECT_EQ(loads(folder, &why), 2) << why;
    begin(3);
    pid_t child = fork();
    if (child == 0) {
        pending_await(AT_FDCWD, (folder / "index").c_str(), PENDING_FILE);
        _exit(loads(folder, &why) == 3 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(queue_wait(), CASTOR_OK);
}

} // namespace
