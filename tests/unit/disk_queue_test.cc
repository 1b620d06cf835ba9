// The disk queue on real files, with both engines; and with system calls that fail, one after the other.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "core/error.h"
#include "core/log.h"
#include "memory/disk_queue.h"
}

namespace {

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
    explicit Queue(disk_engine engine, const disk_calls *calls = nullptr, uint64_t in_flight = 0) {
        disk_settings settings = {engine, in_flight, calls};
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
        table.ring_setup = [](void *c, unsigned entries, io_uring_params *parameters) {
            return of(c).fails() ? -of(c).error : disk_calls_system.ring_setup(c, entries, parameters);
        };
        table.ring_register = [](void *c, int ring, unsigned operation, void *argument, unsigned count) {
            return of(c).fails() ? -of(c).error
                                 : disk_calls_system.ring_register(c, ring, operation, argument, count);
        };
        table.ring_enter = [](void *c, int ring, unsigned submit, unsigned wait) {
            return of(c).fails() ? -of(c).error : disk_calls_system.ring_enter(c, ring, submit, wait);
        };
        table.ring_result = [](void *c, int, int result) {
            Passage passage(of(c), 0);
            return of(c).fails() ? -of(c).error : result;
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
    struct Passage {
        Calls &calls;
        uint64_t bytes;
        Passage(Calls &calls, uint64_t bytes) : calls(calls), bytes(bytes) {
            uint64_t now = calls.in_flight += bytes, most = calls.most_in_flight;
            while (now > most && !calls.most_in_flight.compare_exchange_weak(most, now)) {
            }
            std::unique_lock<std::mutex> guard(calls.lock);
            calls.change.wait(guard, [&] { return !calls.held; });
        }
        ~Passage() { calls.in_flight -= bytes; }
    };
};

class DiskQueue : public testing::TestWithParam<disk_engine> {};
INSTANTIATE_TEST_SUITE_P(, DiskQueue, testing::Values(DISK_ENGINE_THREADS, DISK_ENGINE_RING),
                         [](const auto &info) {
                             return std::string(info.param == DISK_ENGINE_RING ? "Ring" : "Threads");
                         });

TEST_P(DiskQueue, EvictingGivesUpTheMemoryAndBringingReadsIt) {
    File f(20 * MIB + 3 * PAGE);
    f.write(1);
    Queue queue(GetParam());
    disk_operation evict = f.operation(DISK_EVICT), bring = f.operation(DISK_BRING);
    EXPECT_EQ(queue.run(evict), CASTOR_OK) << error_text();
    EXPECT_EQ(evict.done_bytes, f.bytes);
    if (f.on_disk()) {
        EXPECT_EQ(evict.left_bytes, 0u);
        EXPECT_EQ(f.resident(), 0u);
    }
    EXPECT_EQ(queue.run(bring), CASTOR_OK) << error_text();
    EXPECT_EQ(bring.done_bytes, f.bytes);
    EXPECT_EQ(f.resident(), f.bytes);
    EXPECT_TRUE(f.holds(1));
    disk_statistics s = queue.statistics();
    for (int action : {DISK_EVICT, DISK_BRING}) {
        EXPECT_EQ(s.traffic[action].operations, 1u);
        EXPECT_EQ(s.traffic[action].bytes, f.bytes);
        EXPECT_EQ(s.traffic[action].failed + s.traffic[action].cancelled, 0u);
        EXPECT_EQ(s.traffic[action].waiting_bytes + s.traffic[action].running_bytes, 0u);
        EXPECT_GT(s.traffic[action].busy_ns, 0u);
    }
}

TEST_P(DiskQueue, ARangeIsMovedAloneAndMappedAsAsked) {
    File f(12 * MIB);
    for (disk_map map : {DISK_MAP_READ, DISK_MAP_WRITE}) {
        f.write(map);
        Queue queue(GetParam());
        disk_operation o = f.operation(DISK_EVICT);
        o.offset = 4 * MIB;
        o.bytes = 6 * MIB;
        o.alias += o.offset;
        EXPECT_EQ(queue.run(o), CASTOR_OK) << error_text();
        if (f.on_disk()) {
            EXPECT_GE(f.resident(), f.bytes - o.bytes);
            EXPECT_LT(f.resident(), f.bytes);
        }
        o.action = DISK_BRING;
        o.map = map;
        EXPECT_EQ(queue.run(o), CASTOR_OK) << error_text();
        EXPECT_EQ(f.resident(), f.bytes);
        EXPECT_TRUE(f.holds(map));
    }
}

TEST_P(DiskQueue, PagesThatAreStillMappedStayAndAreCounted) {
    File f(4 * MIB);
    f.write(1);
    char *other = static_cast<char *>(mmap(nullptr, f.bytes, PROT_READ, MAP_SHARED, f.fd, 0));
    for (uint64_t at = 0; at < f.bytes; at += PAGE)
        *static_cast<volatile char *>(other + at);
    Queue queue(GetParam());
    disk_operation evict = f.operation(DISK_EVICT);
    EXPECT_EQ(queue.run(evict), CASTOR_OK) << error_text();
    EXPECT_EQ(evict.left_bytes, f.bytes);
    EXPECT_TRUE(f.holds(1));
    munmap(other, f.bytes);
}

TEST_P(DiskQueue, NothingThatIsWrittenMeanwhileIsLost) {
    File f(16 * MIB);
    f.write(0);
    Queue queue(GetParam(), nullptr, 2 * DISK_PIECE_BYTES);
    std::atomic<bool> over{false};
    std::thread mover([&] {
        while (!over) {
            disk_operation evict = f.operation(DISK_EVICT), bring = f.operation(DISK_BRING, DISK_MAP_READ);
            EXPECT_EQ(disk_queue_submit(queue.q, &evict), CASTOR_OK);
            EXPECT_EQ(disk_queue_submit(queue.q, &bring), CASTOR_OK);
            EXPECT_EQ(disk_queue_wait(queue.q, &evict, LONG), CASTOR_OK) << error_text();
            EXPECT_EQ(disk_queue_wait(queue.q, &bring, LONG), CASTOR_OK) << error_text();
        }
    });
    bool right = true;
    for (uint64_t round = 1; round <= 40 && right; round++) {
        right = f.holds(round - 1);
        f.write(round);
    }
    over = true;
    mover.join();
    EXPECT_TRUE(right && f.holds(40));
}

TEST_P(DiskQueue, EachCallMayFailOnce) {
    log_set_level(LOG_ERROR); // a ring that fails is a warning
    for (int error : {EIO, ENOSPC, ENOMEM, EINTR}) {
        bool passes = error == EINTR || error == ENOMEM;
        for (int at = 0;; at++) {
            File f(12 * MIB);
            f.write(at);
            Calls calls;
            calls.fail_at = at;
            calls.error = error;
            {
                Queue queue(GetParam(), &calls.table);
                disk_operation evict = f.operation(DISK_EVICT),
                               bring = f.operation(DISK_BRING, DISK_MAP_READ);
                for (disk_operation *o : {&evict, &bring}) {
                    int status = queue.run(*o);
                    EXPECT_EQ(status, o->status);
                    if (status != CASTOR_OK) {
                        EXPECT_FALSE(passes) << error_text();
                        EXPECT_EQ(status, CASTOR_ERR_SYSTEM);
                        EXPECT_EQ(o->error, error);
                        EXPECT_NE(strstr(error_text(), "CASTOR_OFFLOAD_DIR"), nullptr) << error_text();
                    } else {
                        EXPECT_EQ(o->done_bytes, f.bytes);
                    }
                }
            }
            EXPECT_TRUE(f.holds(uint64_t(at)));
            if (calls.count <= at)
                break;
            ASSERT_LT(at, 1000);
        }
    }
}

TEST_P(DiskQueue, CallsThatKeepFailingEndInAnError) {
    log_set_level(LOG_ERROR);
    for (int error : {EIO, EINTR}) {
        File f(4 * MIB);
        f.write(1);
        Calls calls;
        calls.error = error;
        Queue queue(GetParam(), &calls.table);
        calls.fail_count = INT32_MAX / 2;
        calls.fail_at = 0;
        EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_ERR_SYSTEM);
        EXPECT_EQ(queue.run(f.operation(DISK_BRING)), CASTOR_ERR_SYSTEM);
        EXPECT_EQ(queue.statistics().traffic[DISK_BRING].failed, 1u);
        calls.fail_at = -1;
        EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK) << error_text();
        EXPECT_TRUE(f.holds(1));
    }
}

TEST_P(DiskQueue, WhatTheDiskHasNotGotCountsAsWrittenAgain) {
    File f(4 * MIB);
    f.write(1);
    Calls calls;
    calls.table.write_back = [](void *, int, uint64_t, uint64_t) { return -EIO; };
    calls.table.ring_result = [](void *, int operation, int result) {
        return operation == IORING_OP_SYNC_FILE_RANGE ? -EIO : result;
    };
    Queue queue(GetParam(), &calls.table);
    disk_operation evict = f.operation(DISK_EVICT);
    EXPECT_EQ(queue.run(evict), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(calls.written_again, 1);
    EXPECT_EQ(evict.left_bytes, f.bytes);
    evict.alias = nullptr;
    EXPECT_EQ(queue.run(evict), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(calls.written_again, 2);
    EXPECT_TRUE(f.holds(1));
}

TEST_P(DiskQueue, ShortReadsGoOnAndAFileThatEndsIsAnError) {
    File f(2 * MIB);
    f.write(1);
    Calls calls;
    calls.read_at_most = int64_t(PAGE);
    Queue queue(GetParam(), &calls.table);
    EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK) << error_text();
    EXPECT_EQ(queue.run(f.operation(DISK_BRING)), CASTOR_OK) << error_text();
    EXPECT_EQ(f.resident(), f.bytes);
    disk_operation beyond = f.operation(DISK_BRING);
    beyond.bytes = 16 * MIB;
    beyond.alias = nullptr;
    EXPECT_EQ(queue.run(beyond), CASTOR_ERR_SYSTEM);
    EXPECT_NE(strstr(error_text(), "shorter"), nullptr) << error_text();
}

TEST_P(DiskQueue, AtMostTheBoundIsInWork) {
    File f(64 * MIB);
    f.write(1);
    Calls calls;
    Queue queue(GetParam(), &calls.table, 3 * DISK_PIECE_BYTES);
    calls.hold(true);
    disk_operation evict = f.operation(DISK_EVICT), bring = f.operation(DISK_BRING);
    ASSERT_EQ(disk_queue_submit(queue.q, &evict), CASTOR_OK);
    ASSERT_EQ(disk_queue_submit(queue.q, &bring), CASTOR_OK);
    disk_statistics s;
    do {
        s = queue.statistics();
        std::this_thread::yield();
    } while (s.traffic[0].running_bytes + s.traffic[1].running_bytes < 3 * DISK_PIECE_BYTES);
    // Neither waits for all of the other.
    EXPECT_GT(s.traffic[DISK_EVICT].running_bytes, 0u);
    EXPECT_GT(s.traffic[DISK_BRING].running_bytes, 0u);
    EXPECT_EQ(s.traffic[0].waiting_bytes + s.traffic[1].waiting_bytes, 2 * f.bytes - 3 * DISK_PIECE_BYTES);
    calls.hold(false);
    EXPECT_EQ(disk_queue_wait(queue.q, &evict, LONG), CASTOR_OK) << error_text();
    EXPECT_EQ(disk_queue_wait(queue.q, &bring, LONG), CASTOR_OK) << error_text();
    EXPECT_LE(calls.most_in_flight, 3 * DISK_PIECE_BYTES);
    EXPECT_TRUE(f.holds(1));
}

TEST_P(DiskQueue, WhatHasNotBegunCanBeCancelled) {
    File f(3 * DISK_PIECE_BYTES);
    f.write(1);
    Calls calls;
    Queue queue(GetParam(), &calls.table, DISK_PIECE_BYTES);
    calls.hold(true);
    disk_operation first = f.operation(DISK_EVICT), second = f.operation(DISK_EVICT), third = second;
    for (disk_operation *o : {&first, &second, &third})
        ASSERT_EQ(disk_queue_submit(queue.q, o), CASTOR_OK);
    while (queue.statistics().traffic[DISK_EVICT].running_bytes == 0)
        std::this_thread::yield();
    EXPECT_TRUE(disk_queue_cancel(queue.q, &second));
    EXPECT_TRUE(disk_operation_ended(&second));
    EXPECT_TRUE(second.cancelled);
    EXPECT_FALSE(disk_queue_cancel(queue.q, &second));
    EXPECT_TRUE(disk_queue_cancel(queue.q, &first));
    EXPECT_FALSE(disk_operation_ended(&first));
    EXPECT_EQ(disk_queue_wait(queue.q, &first, 0.01), CASTOR_ERR_TIMEOUT);
    EXPECT_EQ(disk_queue_submit(queue.q, &first), CASTOR_ERR_ARGUMENT);
    calls.hold(false);
    EXPECT_EQ(disk_queue_wait(queue.q, &first, LONG), CASTOR_OK) << error_text();
    EXPECT_TRUE(first.cancelled);
    EXPECT_EQ(first.done_bytes, DISK_PIECE_BYTES);
    EXPECT_EQ(disk_queue_wait(queue.q, &third, LONG), CASTOR_OK) << error_text();
    EXPECT_FALSE(third.cancelled);
    EXPECT_EQ(queue.statistics().traffic[DISK_EVICT].cancelled, 2u);
    EXPECT_TRUE(f.holds(1));
}

TEST_P(DiskQueue, StoppingWaitsNoLongerThanAllowed) {
    File f(2 * DISK_PIECE_BYTES);
    Calls calls;
    disk_settings settings = {GetParam(), DISK_PIECE_BYTES, &calls.table};
    disk_queue *q;
    ASSERT_EQ(disk_queue_start(&settings, &q), CASTOR_OK);
    calls.hold(true);
    disk_operation running = f.operation(DISK_BRING), waiting = running;
    ASSERT_EQ(disk_queue_submit(q, &running), CASTOR_OK);
    ASSERT_EQ(disk_queue_submit(q, &waiting), CASTOR_OK);
    disk_statistics s;
    do
        disk_queue_statistics(q, &s);
    while (s.traffic[DISK_BRING].running_bytes == 0);
    EXPECT_EQ(disk_queue_stop(q, 0.01), CASTOR_ERR_TIMEOUT);
    EXPECT_TRUE(disk_operation_ended(&waiting) && waiting.cancelled);
    EXPECT_FALSE(disk_operation_ended(&running));
    EXPECT_EQ(disk_queue_submit(q, &waiting), CASTOR_ERR_UNSUPPORTED);
    calls.hold(false);
    EXPECT_EQ(disk_queue_stop(q, LONG), CASTOR_OK) << error_text();
    EXPECT_TRUE(disk_operation_ended(&running) && running.cancelled);
    EXPECT_EQ(running.done_bytes, DISK_PIECE_BYTES);
}

TEST_P(DiskQueue, TheEndIsToldOnceAndBeforeAWaitReturns) {
    File f(MIB);
    struct Chain {
        disk_queue *q;
        disk_operation first, second;
        std::atomic<int> told;
    } chain = {};
    Queue queue(GetParam());
    chain.q = queue.q;
    chain.first = f.operation(DISK_EVICT);
    chain.second = f.operation(DISK_BRING);
    chain.first.context = chain.second.context = &chain;
    chain.first.done = [](disk_operation *, void *context) {
        Chain *c = static_cast<Chain *>(context);
        c->told++;
        EXPECT_EQ(disk_queue_submit(c->q, &c->second), CASTOR_OK);
    };
    chain.second.done = [](disk_operation *, void *context) { static_cast<Chain *>(context)->told += 10; };
    EXPECT_EQ(queue.run(chain.first), CASTOR_OK) << error_text();
    EXPECT_EQ(chain.told % 10, 1);
    EXPECT_EQ(disk_queue_wait(queue.q, &chain.second, LONG), CASTOR_OK) << error_text();
    EXPECT_EQ(chain.told, 11);
}

TEST_P(DiskQueue, AForkedProcessHasNoQueue) {
    File f(MIB);
    f.write(1);
    Queue queue(GetParam());
    EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK);
    pid_t child = fork();
    if (child == 0) {
        disk_operation o = f.operation(DISK_BRING);
        disk_statistics s;
        disk_queue_statistics(queue.q, &s);
        bool right = disk_queue_submit(queue.q, &o) == CASTOR_ERR_UNSUPPORTED &&
                     !disk_queue_cancel(queue.q, &o) && s.traffic[DISK_EVICT].bytes == 0 &&
                     disk_queue_stop(queue.q, LONG) == CASTOR_OK && f.holds(1);
        _exit(right ? 0 : 1);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(queue.run(f.operation(DISK_BRING)), CASTOR_OK) << error_text();
}

TEST_P(DiskQueue, WrongRangesAreRefused) {
    File f(MIB);
    Queue queue(GetParam());
    disk_operation o = f.operation(DISK_EVICT);
    EXPECT_EQ(disk_queue_wait(queue.q, &o, LONG), CASTOR_ERR_ARGUMENT);
    o.bytes = 0;
    EXPECT_EQ(disk_queue_submit(queue.q, &o), CASTOR_ERR_ARGUMENT);
    o.bytes = PAGE;
    o.offset = 512;
    EXPECT_EQ(disk_queue_submit(queue.q, &o), CASTOR_ERR_ARGUMENT);
    o.offset = 0;
    o.fd = -1;
    EXPECT_EQ(queue.run(o), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(o.error, EBADF);
}

TEST_P(DiskQueue, ItsThreadsHaveTheNameAndNoSignals) {
    Queue queue(GetParam());
    File f(4 * DISK_PIECE_BYTES);
    EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK);
    int found = 0;
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string line;
        std::ifstream status(task.path() / "status");
        if (!std::getline(status, line) || line != "Name:\tcastor-io")
            continue;
        found++;
        while (std::getline(status, line))
            if (line.rfind("SigBlk:", 0) == 0) {
                EXPECT_NE(std::stoull(line.substr(8), nullptr, 16) & (1u << (SIGINT - 1)), 0u) << line;
                EXPECT_NE(std::stoull(line.substr(8), nullptr, 16) & (1u << (SIGTERM - 1)), 0u) << line;
            }
    }
    EXPECT_GE(found, 1);
}

TEST(DiskRing, ThreadsTakeItsPlaceWhereItIsMissing) {
    for (int error : {ENOSYS, EPERM, ENOMEM})
        for (int at : {0, 1}) { // setting it up; asking what it can do
            Calls calls;
            calls.fail_at = at;
            calls.error = error;
            Queue queue(DISK_ENGINE_RING, &calls.table);
            EXPECT_EQ(queue.statistics().engine, DISK_ENGINE_THREADS);
            File f(MIB);
            EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK) << error_text();
        }
}

TEST(DiskRing, AThreadTakesItsPlaceWhenItFails) {
    File f(4 * DISK_PIECE_BYTES);
    f.write(1);
    static std::atomic<bool> fails;
    fails = false;
    Calls calls;
    calls.table.ring_enter = [](void *c, int ring, unsigned submit, unsigned wait) {
        return fails ? -EBADFD : disk_calls_system.ring_enter(c, ring, submit, wait);
    };
    Queue queue(DISK_ENGINE_RING, &calls.table);
    if (queue.statistics().engine != DISK_ENGINE_RING)
        GTEST_SKIP() << "no io_uring here";
    testing::internal::CaptureStderr();
    disk_operation evict = f.operation(DISK_EVICT), bring = f.operation(DISK_BRING);
    EXPECT_EQ(queue.run(evict), CASTOR_OK) << error_text();
    fails = true;
    EXPECT_EQ(queue.run(bring), CASTOR_OK) << error_text();
    EXPECT_EQ(queue.run(evict), CASTOR_OK) << error_text();
    EXPECT_EQ(queue.statistics().engine, DISK_ENGINE_THREADS);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("io_uring failed"), std::string::npos);
    EXPECT_TRUE(f.holds(1));
}

TEST(DiskResident, TellsTheBytesInMemory) {
    File f(4 * MIB);
    f.write(1);
    EXPECT_EQ(f.resident(), f.bytes);
    uint64_t found = 1;
    EXPECT_EQ(disk_resident(f.fd, MIB, 2 * MIB, nullptr, &found), CASTOR_OK);
    EXPECT_EQ(found, 2 * MIB);
    EXPECT_EQ(disk_resident(f.fd, 0, 0, nullptr, &found), CASTOR_OK);
    EXPECT_EQ(found, 0u);
    EXPECT_EQ(disk_resident(-1, 0, MIB, nullptr, &found), CASTOR_ERR_SYSTEM);
}

} // namespace
