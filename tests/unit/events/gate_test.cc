// The gate: nobody is inside while it is closed, whoever closes it and however threads come and go.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" {
#include "base/error.h"
#include "events/gate.h"
}

namespace {

using namespace std::chrono_literals;

const uint64_t kSecond = 1000000000;
const unsigned kRecords = 128; // of gate.c; more threads share one

// What a closer changes and calls read: plain variables, so that ThreadSanitizer sees an order that is missing.
struct Memory {
    uint64_t one = 0, other = 0;
};

class GateTest : public ::testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(gate_arm(), CASTOR_OK) << error_text(); }
    void TearDown() override {
        EXPECT_EQ(gate_close(kSecond), CASTOR_OK) << "somebody has stayed inside";
        gate_open();
    }

    Memory memory;
    std::atomic<uint64_t> calls{0}, torn{0};
    std::atomic<bool> over{false};

    void call() {
        gate_enter();
        uint64_t one = memory.one;
        if (calls.fetch_add(1, std::memory_order_relaxed) % 64 == 0)
            std::this_thread::yield();
        if (one != memory.other)
            torn++;
        gate_leave();
    }

    void flip(uint64_t timeout_ns = 60 * kSecond) {
        ASSERT_EQ(gate_close(timeout_ns), CASTOR_OK) << error_text();
        memory.one++;
        std::this_thread::yield();
        memory.other++;
        gate_open();
    }

    std::vector<std::thread> start(unsigned count, const std::function<void()> &body) {
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < count; i++)
            threads.emplace_back([body] { body(); });
        return threads;
    }

    static void join(std::vector<std::thread> &threads) {
        for (std::thread &thread : threads)
            thread.join();
    }

    static void await(const std::atomic<uint64_t> &count, uint64_t least) {
        for (int i = 0; i < 20000 && count < least; i++)
            std::this_thread::sleep_for(1ms);
        ASSERT_GE(count, least);
    }
};

// First of all: arming is for the whole process.
TEST(Gate, CannotBeClosedBeforeItIsArmed) {
    if (gate_armed)
        GTEST_SKIP() << "another test has armed it";
    gate_enter();
    EXPECT_EQ(gate_close(kSecond), CASTOR_ERR_UNSUPPORTED);
    EXPECT_STRNE(error_text(), "");
    ASSERT_EQ(gate_arm(), CASTOR_OK);
    gate_leave(); // of a call that began before
    gate_enter();
    gate_leave();
    EXPECT_EQ(gate_close(kSecond), CASTOR_OK);
    gate_open();
}

TEST_F(GateTest, ClosesWhileCallsRun) {
    auto threads = start(4, [this] {
        while (!over)
            call();
    });
    await(calls, 100);
    for (int i = 0; i < 300; i++) {
        uint64_t before = calls;
        flip();
        if (i % 16 == 0)
            await(calls, before + 1); // they go on
    }
    over = true;
    join(threads);
    EXPECT_EQ(torn, 0u);
    EXPECT_EQ(memory.one, 300u);
}

TEST_F(GateTest, ACallWaitsUntilItIsOpen) {
    ASSERT_EQ(gate_close(kSecond), CASTOR_OK);
    auto threads = start(3, [this] { call(); });
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(calls, 0u);
    gate_enter(); // who has closed it passes
    gate_leave();
    gate_open();
    join(threads);
    EXPECT_EQ(calls, 3u);
}

TEST_F(GateTest, AnotherThreadCannotOpenIt) {
    ASSERT_EQ(gate_close(kSecond), CASTOR_OK);
    std::thread([] { gate_open(); }).join();
    auto threads = start(1, [this] { call(); });
    std::this_thread::sleep_for(30ms);
    EXPECT_EQ(calls, 0u);
    gate_open();
    join(threads);
}

TEST_F(GateTest, AnInnerCallDoesNotWait) {
    std::atomic<uint64_t> inside{0}, done{0};
    auto threads = start(1, [&] {
        gate_enter();
        inside++;
        std::this_thread::sleep_for(100ms); // the closer waits for this call meanwhile
        gate_enter();
        done++;
        gate_leave();
        std::this_thread::sleep_for(20ms);
        done++; // leaving the inner call did not let the closer pass
        gate_leave();
    });
    await(inside, 1);
    ASSERT_EQ(gate_close(60 * kSecond), CASTOR_OK);
    EXPECT_EQ(done, 2u);
    gate_open();
    join(threads);
}

// All of them are inside, and each waits for the others to be outside.
TEST_F(GateTest, ClosersInsideDoNotWaitForEachOther) {
    auto threads = start(6, [this] {
        for (int i = 0; i < 50; i++) {
            gate_enter();
            gate_enter();
            flip();
            gate_leave();
            EXPECT_EQ(memory.one, memory.other); // still inside
            std::this_thread::yield();
            EXPECT_EQ(memory.one, memory.other);
            gate_leave();
        }
    });
    join(threads);
    EXPECT_EQ(memory.one, 300u);
    EXPECT_EQ(memory.other, 300u);
}

TEST_F(GateTest, ACallThatDoesNotReturn) {
    std::atomic<uint64_t> inside{0};
    auto threads = start(1, [&] {
        gate_enter();
        inside++;
        while (!over)
            std::this_thread::sleep_for(1ms);
        gate_leave();
    });
    await(inside, 1);
    auto begin = std::chrono::steady_clock::now();
    gate_enter();
    EXPECT_EQ(gate_close(kSecond / 20), CASTOR_ERR_TIMEOUT);
    gate_leave();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
    EXPECT_NE(std::string(error_text()).find("did not return"), std::string::npos) << error_text();
    std::thread([this] { call(); }).join(); // it is open
    over = true;
    join(threads);
    EXPECT_EQ(calls, 1u);
}

TEST_F(GateTest, AThreadThatEndedInside) {
    std::thread([] { gate_enter(); }).join();
    flip(kSecond);
    EXPECT_EQ(memory.one, 1u);
}

TEST_F(GateTest, AThreadThatEndedWhileItHadClosedIt) {
    std::thread([] { EXPECT_EQ(gate_close(kSecond), CASTOR_OK); }).join();
    call();
    flip();
    EXPECT_EQ(calls, 1u);
}

TEST_F(GateTest, ThreadsComeAndGo) {
    for (unsigned i = 0; i < 4 * kRecords; i++)
        std::thread([this] { call(); }).join();
    flip(kSecond);
    EXPECT_EQ(calls, 4 * kRecords);
}

TEST_F(GateTest, MoreThreadsThanRecords) {
    std::atomic<uint64_t> begun{0};
    auto threads = start(kRecords + 40, [&] {
        call();
        begun++;
        while (begun < kRecords + 40) // all live at once
            std::this_thread::sleep_for(1ms);
        for (int i = 0; !over; i++) {
            gate_enter();
            call();
            if (i % 32 == 0)
                flip();
            EXPECT_EQ(memory.one, memory.other);
            gate_leave();
            std::this_thread::sleep_for(1ms);
        }
    });
    await(begun, kRecords + 40);
    for (int i = 0; i < 20; i++)
        flip();
    over = true;
    join(threads);
    EXPECT_EQ(torn, 0u);
    EXPECT_EQ(memory.one, memory.other);
}

TEST_F(GateTest, AForkedChild) {
    std::atomic<uint64_t> inside{0}, closed{0};
    auto stays = start(1, [&] {
        gate_enter();
        inside++;
        while (!over)
            std::this_thread::sleep_for(1ms);
        gate_leave();
    });
    await(inside, 1);
    gate_enter();
    pid_t child = fork();
    if (child == 0) {
        gate_reset();
        bool good = gate_close(5 * kSecond) == CASTOR_OK; // nobody is inside but this thread
        gate_open();
        gate_leave();
        good = good && gate_close(5 * kSecond) == CASTOR_OK;
        gate_enter();
        gate_leave();
        gate_open();
        _exit(good ? 0 : 1);
    }
    gate_leave();
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    over = true;
    join(stays);

    // The same while another thread has closed it: it is open in the child.
    over = false;
    auto closes = start(1, [&] {
        ASSERT_EQ(gate_close(kSecond), CASTOR_OK);
        closed++;
        while (!over)
            std::this_thread::sleep_for(1ms);
        gate_open();
    });
    await(closed, 1);
    child = fork();
    if (child == 0) {
        gate_reset();
        alarm(20);
        gate_enter();
        gate_leave();
        _exit(gate_close(kSecond) == CASTOR_OK ? 0 : 1);
    }
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    over = true;
    join(closes);
}

} // namespace
