/* What the tests of the trace share: a directory of their own, children that record, and files read back. */
#ifndef CASTOR_TESTS_UNIT_TRACE_FIXTURE_H
#define CASTOR_TESTS_UNIT_TRACE_FIXTURE_H

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "launcher/report/report.h"
#include "trace/trace.h"
}

class TraceTest : public testing::Test {
  protected:
    std::string directory;

    void SetUp() override {
        std::string pattern = testing::TempDir() + "castor-trace-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        directory = pattern;
    }
    void TearDown() override {
        trace_start("", 0, -1);
        for (const std::string &name : files(""))
            if (unlink(path(name).c_str()) != 0)
                rmdir(path(name).c_str());
        EXPECT_EQ(rmdir(directory.c_str()), 0);
    }

    std::string path(const std::string &name) const { return directory + "/" + name; }

    /* Names in the directory that end in `suffix`, sorted. */
    std::vector<std::string> files(const std::string &suffix) const {
        std::vector<std::string> names;
        DIR *listing = opendir(directory.c_str());
        for (struct dirent *entry; listing != nullptr && (entry = readdir(listing)) != nullptr;) {
            std::string name = entry->d_name;
            if (name != "." && name != ".." && name.size() >= suffix.size() &&
                name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0)
                names.push_back(name);
        }
        if (listing != nullptr)
            closedir(listing);
        std::sort(names.begin(), names.end());
        return names;
    }

    /* Runs `body` in a child that knows nothing of this process's trace, and leaves by _exit. */
    static pid_t start_child(const std::function<void()> &body) {
        pid_t pid = fork();
        if (pid == 0) {
            body();
            _exit(testing::Test::HasFailure() ? 1 : 0);
        }
        return pid;
    }
    static int wait_child(pid_t pid) {
        int status = -1;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        return status;
    }
    /* A time after the start of every process that a test is about to make, however slow the machine: what a record
     * puts before the first process's start counts as its start. */
    static uint64_t soon_ns() { return trace_now_ns() + UINT64_C(1000000000) * 100; }
    static void run_child(const std::function<void()> &body) { EXPECT_EQ(wait_child(start_child(body)), 0); }

    std::unique_ptr<trace_counters> read_counters(const std::string &name) const {
        auto counters = std::make_unique<trace_counters>();
        char message[TRACE_READ_MESSAGE_MAX] = "";
        int fd = open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
        EXPECT_GE(fd, 0) << name;
        EXPECT_EQ(trace_read_counters(fd, counters.get(), message), TRACE_READ_OK) << name << " " << message;
        close(fd);
        return counters;
    }
    std::unique_ptr<trace_counters> read_only_counters() const {
        auto names = files(TRACE_COUNTERS_SUFFIX);
        EXPECT_EQ(names.size(), 1u);
        return names.empty() ? std::make_unique<trace_counters>() : read_counters(names[0]);
    }

    std::vector<trace_record> read_segment(const std::string &name) const {
        std::vector<trace_record> records;
        char message[TRACE_READ_MESSAGE_MAX] = "";
        trace_segment header;
        int fd = open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
        EXPECT_GE(fd, 0) << name;
        EXPECT_NE(trace_read_segment(
                      fd, &header,
                      [](void *context, const trace_record *record) {
                          static_cast<std::vector<trace_record> *>(context)->push_back(*record);
                      },
                      &records, message),
                  TRACE_READ_BAD)
            << name << " " << message;
        close(fd);
        return records;
    }
    std::vector<trace_record> read_all_records() const {
        std::vector<trace_record> all;
        for (const std::string &name : files(TRACE_SEGMENT_SUFFIX))
            for (const trace_record &record : read_segment(name))
                all.push_back(record);
        return all;
    }
    std::vector<trace_record> read_records_of(trace_record_kind kind) const {
        std::vector<trace_record> all = read_all_records(), chosen;
        for (const trace_record &record : all)
            if (record.kind == (uint32_t)kind)
                chosen.push_back(record);
        return chosen;
    }

    static uint64_t counted(const trace_counters &counters, trace_record_kind kind, uint32_t id) {
        return counters.counters[trace_slot(kind, id)].count;
    }
    static void record_call(uint32_t id, uint64_t a, uint64_t b = 0) {
        trace_record_write(TRACE_CALL, id, 1000 + a, 1010 + a, 64, a, b, 0);
    }
};

#endif
