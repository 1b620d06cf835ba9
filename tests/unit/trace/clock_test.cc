#include <gtest/gtest.h>
#include <time.h>
#include <thread>
#include <vector>

extern "C" {
#include "trace/trace.h"
}

namespace {

// A wrong rate shows within one anchor, 2 ms, by at most one part in a thousand of it.
constexpr uint64_t kToleranceNs = 2000;

uint64_t system_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Reads on until the rate is known and several anchors have passed.
void read_for_a_while() {
    uint64_t last = 0;
    const uint64_t end = system_ns() + 60000000;
    for (uint64_t before = system_ns(); before < end;) {
        const uint64_t now = trace_now_ns();
        const uint64_t after = system_ns();
        ASSERT_GE(now, last);
        ASSERT_GE(now + kToleranceNs, before);
        ASSERT_LE(now, after + kToleranceNs);
        last = now;
        before = after;
    }
}

TEST(TraceClock, FollowsTheSystemsMonotonicClock) {
    read_for_a_while();
}

TEST(TraceClock, ThreadsAgree) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++)
        threads.emplace_back(read_for_a_while);
    for (std::thread &thread : threads)
        thread.join();
}

TEST(TraceClock, AThreadThatSleptReadsOn) {
    read_for_a_while();
    const timespec pause = {0, 30000000};
    nanosleep(&pause, nullptr);
    read_for_a_while();
}

} // namespace
