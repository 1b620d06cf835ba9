/* What the tests of the disk queue share: a file without a name, a queue that ends with its test, and the system's calls with
 * one that fails. */
#ifndef CASTOR_TESTS_UNIT_DISK_FIXTURE_H
#define CASTOR_TESTS_UNIT_DISK_FIXTURE_H

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>

extern "C" {
#include "base/error.h"
#include "disk/queue.h"
}

namespace disk_fixture {

constexpr uint64_t MIB = 1 << 20, PAGE = 4096;
constexpr double LONG = 60; // seconds; nothing takes them

struct File {
    int fd;
    uint64_t bytes;
    char *alias;

    explicit File(uint64_t bytes) : bytes(bytes) {
        fd = open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        EXPECT_EQ(posix_fallocate(fd, 0, off_t(bytes)), 0);
        alias = static_cast<char *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
        EXPECT_NE(alias, MAP_FAILED);
    }
    ~File() {
        munmap(alias, bytes);
        close(fd);
    }
    uint64_t &word(uint64_t at) { return *reinterpret_cast<uint64_t *>(alias + at); }
    void write(uint64_t round) {
        for (uint64_t at = 0; at < bytes; at += 512)
            word(at) = at * 0x9E3779B97F4A7C15u + round;
    }
    bool holds(uint64_t round) {
        for (uint64_t at = 0; at < bytes; at += 512)
            if (word(at) != at * 0x9E3779B97F4A7C15u + round)
                return false;
        return true;
    }
    uint64_t resident() const {
        uint64_t found = 0;
        EXPECT_EQ(disk_resident(fd, 0, bytes, alias, &found), CASTOR_OK);
        return found;
    }
    // A file that lies in memory has nowhere else to go.
    bool on_disk() const {
        struct statfs system;
        return fstatfs(fd, &system) == 0 && system.f_type != 0x01021994 /* tmpfs */;
    }
    disk_operation operation(disk_action action, disk_map map = DISK_MAP_NONE) const {
        disk_operation o = {};
        o.action = action;
        o.fd = fd;
        o.bytes = bytes;
        o.alias = alias;
        o.map = map;
        return o;
    }
};

struct Queue {
    disk_queue *q = nullptr;
    explicit Queue(const disk_calls *calls = nullptr, uint64_t in_flight = 0) {
        disk_settings settings = {in_flight, calls};
        EXPECT_EQ(disk_queue_start(&settings, &q), CASTOR_OK) << error_text();
    }
    ~Queue() { EXPECT_EQ(disk_queue_stop(q, LONG), CASTOR_OK) << error_text(); }
    int run(disk_operation &o) {
        EXPECT_EQ(disk_queue_submit(q, &o), CASTOR_OK) << error_text();
        return disk_queue_wait(q, &o, LONG);
    }
    int run(disk_operation &&o) { return run(o); }
    disk_statistics statistics() {
        disk_statistics s;
        disk_queue_statistics(q, &s);
        return s;
    }
};

// The system's calls, where one can be told to fail and all can be held up.
struct Calls {
    disk_calls table = disk_calls_system;
    std::atomic<int> count{0}, fail_at{-1}, fail_count{1}, written_again{0};
    int error = EIO;
    std::atomic<int64_t> read_at_most{INT64_MAX};
    std::atomic<uint64_t> in_flight{0}, most_in_flight{0};
    std::mutex lock;
    std::condition_variable change;
    bool held = false;
    int let = 0;

    Calls() {
        table.context = this;
        table.unmap = [](void *c, char *alias, uint64_t bytes) {
            return of(c).fails() ? -of(c).error : disk_calls_system.unmap(c, alias, bytes);
        };
        table.write_back = [](void *c, int fd, uint64_t offset, uint64_t bytes) {
            Passage passage(of(c), bytes);
            return of(c).fails() ? -of(c).error : disk_calls_system.write_back(c, fd, offset, bytes);
        };
        table.drop = [](void *c, int fd, uint64_t offset, uint64_t bytes) {
            return of(c).fails() ? -of(c).error : disk_calls_system.drop(c, fd, offset, bytes);
        };
        table.read_ahead = [](void *c, int fd, uint64_t offset, uint64_t bytes) -> int64_t {
            Passage passage(of(c), bytes);
            uint64_t most = uint64_t(of(c).read_at_most.load());
            return of(c).fails() ? -of(c).error
                                 : disk_calls_system.read_ahead(c, fd, offset, bytes < most ? bytes : most);
        };
        table.map = [](void *c, char *alias, uint64_t bytes, disk_map how) {
            of(c).written_again += how == DISK_MAP_WRITE;
            return of(c).fails() ? -of(c).error : disk_calls_system.map(c, alias, bytes, how);
        };
        table.resident = [](void *c, int fd, uint64_t offset, uint64_t bytes, uint64_t *out) {
            return of(c).fails() ? -of(c).error : disk_calls_system.resident(c, fd, offset, bytes, out);
        };
    }
    static Calls &of(void *context) { return *static_cast<Calls *>(context); }
    bool fails() {
        int at = count++;
        return fail_at >= 0 && at >= fail_at && at < fail_at + fail_count;
    }
    void hold(bool on) {
        std::lock_guard<std::mutex> guard(lock);
        held = on;
        change.notify_all();
    }
    // Of the calls that are held, so many go on.
    void let_pass(int more) {
        std::lock_guard<std::mutex> guard(lock);
        let += more;
        change.notify_all();
    }
    int left_to_pass() {
        std::lock_guard<std::mutex> guard(lock);
        return let;
    }
    struct Passage {
        Calls &calls;
        uint64_t bytes;
        Passage(Calls &calls, uint64_t bytes) : calls(calls), bytes(bytes) {
            uint64_t now = calls.in_flight += bytes, most = calls.most_in_flight;
            while (now > most && !calls.most_in_flight.compare_exchange_weak(most, now)) {
            }
            std::unique_lock<std::mutex> guard(calls.lock);
            calls.change.wait(guard, [&] { return !calls.held || calls.let > 0; });
            if (calls.held)
                calls.let--;
        }
        ~Passage() { calls.in_flight -= bytes; }
    };
};

} // namespace disk_fixture

#endif
