// The disk queue on real files; and with system calls that fail, one after the other.
#include <sys/wait.h>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "fixture.h"

namespace {

using namespace disk_fixture;

TEST(DiskQueue, EvictingGivesUpTheMemoryAndLoadingReadsIt) {
    File f(20 * MIB + 3 * PAGE);
    f.write(1);
    Queue queue;
    disk_operation evict = f.operation(DISK_EVICT), load = f.operation(DISK_LOAD);
    EXPECT_EQ(queue.run(evict), CASTOR_OK) << error_text();
    EXPECT_EQ(evict.done_bytes, f.bytes);
    if (f.on_disk()) {
        EXPECT_EQ(evict.left_bytes, 0u);
        EXPECT_EQ(f.resident(), 0u);
    }
    EXPECT_EQ(queue.run(load), CASTOR_OK) << error_text();
    EXPECT_EQ(load.done_bytes, f.bytes);
    EXPECT_EQ(f.resident(), f.bytes);
    EXPECT_TRUE(f.holds(1));
    disk_statistics s = queue.statistics();
    for (int action : {DISK_EVICT, DISK_LOAD}) {
        EXPECT_EQ(s.traffic[action].operations, 1u);
        EXPECT_EQ(s.traffic[action].bytes, f.bytes);
        EXPECT_EQ(s.traffic[action].failed + s.traffic[action].cancelled, 0u);
        EXPECT_EQ(s.traffic[action].waiting_bytes + s.traffic[action].running_bytes, 0u);
        EXPECT_GT(s.traffic[action].busy_ns, 0u);
    }
}

TEST(DiskQueue, ARangeIsMovedAloneAndMappedAsAsked) {
    File f(12 * MIB);
    for (disk_map map : {DISK_MAP_READ, DISK_MAP_WRITE}) {
        f.write(map);
        Queue queue;
        disk_operation o = f.operation(DISK_EVICT);
        o.offset = 4 * MIB;
        o.bytes = 6 * MIB;
        o.alias += o.offset;
        EXPECT_EQ(queue.run(o), CASTOR_OK) << error_text();
        if (f.on_disk()) {
            EXPECT_GE(f.resident(), f.bytes - o.bytes);
            EXPECT_LT(f.resident(), f.bytes);
        }
        o.action = DISK_LOAD;
        o.map = map;
        EXPECT_EQ(queue.run(o), CASTOR_OK) << error_text();
        EXPECT_EQ(f.resident(), f.bytes);
        EXPECT_TRUE(f.holds(map));
    }
}

TEST(DiskQueue, PagesThatAreStillMappedStayAndAreCounted) {
    File f(4 * MIB);
    f.write(1);
    char *other = static_cast<char *>(mmap(nullptr, f.bytes, PROT_READ, MAP_SHARED, f.fd, 0));
    for (uint64_t at = 0; at < f.bytes; at += PAGE)
        *static_cast<volatile char *>(other + at);
    Queue queue;
    disk_operation evict = f.operation(DISK_EVICT);
    EXPECT_EQ(queue.run(evict), CASTOR_OK) << error_text();
    EXPECT_EQ(evict.left_bytes, f.bytes);
    EXPECT_TRUE(f.holds(1));
    munmap(other, f.bytes);
}

TEST(DiskQueue, NothingThatIsWrittenMeanwhileIsLost) {
    File f(16 * MIB);
    f.write(0);
    Queue queue(nullptr, 2 * DISK_PIECE_BYTES);
    std::atomic<bool> over{false};
    std::thread mover([&] {
        while (!over) {
            disk_operation evict = f.operation(DISK_EVICT), load = f.operation(DISK_LOAD, DISK_MAP_READ);
            EXPECT_EQ(disk_queue_submit(queue.q, &evict), CASTOR_OK);
            EXPECT_EQ(disk_queue_submit(queue.q, &load), CASTOR_OK);
            EXPECT_EQ(disk_queue_wait(queue.q, &evict, LONG), CASTOR_OK) << error_text();
            EXPECT_EQ(disk_queue_wait(queue.q, &load, LONG), CASTOR_OK) << error_text();
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

TEST(DiskQueue, EachCallMayFailOnce) {
    for (int error : {EIO, ENOSPC, ENOMEM, EINTR}) {
        bool passes = error == EINTR || error == ENOMEM;
        for (int at = 0;; at++) {
            File f(12 * MIB);
            f.write(at);
            Calls calls;
            calls.fail_at = at;
            calls.error = error;
            {
                Queue queue(&calls.table);
                disk_operation evict = f.operation(DISK_EVICT), load = f.operation(DISK_LOAD, DISK_MAP_READ);
                for (disk_operation *o : {&evict, &load}) {
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

TEST(DiskQueue, CallsThatKeepFailingEndInAnError) {
    for (int error : {EIO, EINTR}) {
        File f(4 * MIB);
        f.write(1);
        Calls calls;
        calls.error = error;
        Queue queue(&calls.table);
        calls.fail_count = INT32_MAX / 2;
        calls.fail_at = 0;
        EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_ERR_SYSTEM);
        EXPECT_EQ(queue.run(f.operation(DISK_LOAD)), CASTOR_ERR_SYSTEM);
        EXPECT_EQ(queue.statistics().traffic[DISK_LOAD].failed, 1u);
        calls.fail_at = -1;
        EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK) << error_text();
        EXPECT_TRUE(f.holds(1));
    }
}

TEST(DiskQueue, WhatTheDiskHasNotGotCountsAsWrittenAgain) {
    File f(4 * MIB);
    f.write(1);
    Calls calls;
    calls.table.write_back = [](void *, int, uint64_t, uint64_t) { return -EIO; };
    Queue queue(&calls.table);
    disk_operation evict = f.operation(DISK_EVICT);
    EXPECT_EQ(queue.run(evict), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(calls.written_again, 1);
    EXPECT_EQ(evict.left_bytes, f.bytes);
    evict.alias = nullptr;
    EXPECT_EQ(queue.run(evict), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(calls.written_again, 2);
    EXPECT_TRUE(f.holds(1));
}

TEST(DiskQueue, ShortReadsGoOnAndAFileThatEndsIsAnError) {
    File f(2 * MIB);
    f.write(1);
    Calls calls;
    calls.read_at_most = int64_t(PAGE);
    Queue queue(&calls.table);
    EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK) << error_text();
    EXPECT_EQ(queue.run(f.operation(DISK_LOAD)), CASTOR_OK) << error_text();
    EXPECT_EQ(f.resident(), f.bytes);
    disk_operation beyond = f.operation(DISK_LOAD);
    beyond.bytes = 16 * MIB;
    beyond.alias = nullptr;
    EXPECT_EQ(queue.run(beyond), CASTOR_ERR_SYSTEM);
    EXPECT_NE(strstr(error_text(), "shorter"), nullptr) << error_text();
}

TEST(DiskQueue, AtMostTheBoundIsInWork) {
    File f(64 * MIB);
    f.write(1);
    Calls calls;
    Queue queue(&calls.table, 3 * DISK_PIECE_BYTES);
    calls.hold(true);
    disk_operation evict = f.operation(DISK_EVICT), load = f.operation(DISK_LOAD);
    disk_statistics s;
    auto full = [&] {
        s = queue.statistics();
        return s.traffic[0].running_bytes + s.traffic[1].running_bytes == 3 * DISK_PIECE_BYTES;
    };
    ASSERT_EQ(disk_queue_submit(queue.q, &evict), CASTOR_OK);
    while (!full())
        std::this_thread::yield();
    ASSERT_EQ(disk_queue_submit(queue.q, &load), CASTOR_OK);
    s = queue.statistics();
    EXPECT_EQ(s.traffic[0].waiting_bytes + s.traffic[1].waiting_bytes, 2 * f.bytes - 3 * DISK_PIECE_BYTES);
    // From here on both wait, and neither for all of the other.
    while (!disk_operation_ended(&evict) &&
           (s = queue.statistics(), s.traffic[0].running_bytes == 0 || s.traffic[1].running_bytes == 0)) {
        if (calls.left_to_pass() == 0)
            calls.let_pass(1);
        std::this_thread::yield();
    }
    EXPECT_FALSE(disk_operation_ended(&evict));
    EXPECT_GT(s.traffic[DISK_EVICT].waiting_bytes, 0u);
    calls.hold(false);
    EXPECT_EQ(disk_queue_wait(queue.q, &evict, LONG), CASTOR_OK) << error_text();
    EXPECT_EQ(disk_queue_wait(queue.q, &load, LONG), CASTOR_OK) << error_text();
    EXPECT_LE(calls.most_in_flight, 3 * DISK_PIECE_BYTES);
    EXPECT_TRUE(f.holds(1));
}

TEST(DiskQueue, WhatHasNotBegunCanBeCancelled) {
    File f(3 * DISK_PIECE_BYTES);
    f.write(1);
    Calls calls;
    Queue queue(&calls.table, DISK_PIECE_BYTES);
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

TEST(DiskQueue, StoppingWaitsNoLongerThanAllowed) {
    File f(2 * DISK_PIECE_BYTES);
    Calls calls;
    disk_settings settings = {DISK_PIECE_BYTES, &calls.table};
    disk_queue *q;
    ASSERT_EQ(disk_queue_start(&settings, &q), CASTOR_OK);
    calls.hold(true);
    disk_operation running = f.operation(DISK_LOAD), waiting = running;
    ASSERT_EQ(disk_queue_submit(q, &running), CASTOR_OK);
    ASSERT_EQ(disk_queue_submit(q, &waiting), CASTOR_OK);
    disk_statistics s;
    do
        disk_queue_statistics(q, &s);
    while (s.traffic[DISK_LOAD].running_bytes == 0);
    EXPECT_EQ(disk_queue_stop(q, 0.01), CASTOR_ERR_TIMEOUT);
    EXPECT_TRUE(disk_operation_ended(&waiting) && waiting.cancelled);
    EXPECT_FALSE(disk_operation_ended(&running));
    EXPECT_EQ(disk_queue_submit(q, &waiting), CASTOR_ERR_UNSUPPORTED);
    calls.hold(false);
    EXPECT_EQ(disk_queue_stop(q, LONG), CASTOR_OK) << error_text();
    EXPECT_TRUE(disk_operation_ended(&running) && running.cancelled);
    EXPECT_EQ(running.done_bytes, DISK_PIECE_BYTES);
}

TEST(DiskQueue, TheEndIsToldOnceAndBeforeAWaitReturns) {
    File f(MIB);
    struct Chain {
        disk_queue *q;
        disk_operation first, second;
        std::atomic<int> told;
    } chain = {};
    Queue queue;
    chain.q = queue.q;
    chain.first = f.operation(DISK_EVICT);
    chain.second = f.operation(DISK_LOAD);
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

TEST(DiskQueue, AForkedProcessHasNoQueue) {
    File f(MIB);
    f.write(1);
    Queue queue;
    EXPECT_EQ(queue.run(f.operation(DISK_EVICT)), CASTOR_OK);
    pid_t child = fork();
    if (child == 0) {
        disk_operation o = f.operation(DISK_LOAD);
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
    EXPECT_EQ(queue.run(f.operation(DISK_LOAD)), CASTOR_OK) << error_text();
}

TEST(DiskQueue, WrongRangesAreRefused) {
    File f(MIB);
    Queue queue;
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

TEST(DiskQueue, ItsThreadsHaveTheNameAndNoSignals) {
    Queue queue;
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
