// Calls with a bound: what they return, what is late, and what is free again afterwards.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "base/bounded.h"
#include "base/error.h"
}

namespace {

using namespace std::chrono_literals;

const uint64_t kSecond = 1000000000;
const unsigned kPlaces = 16; // of bounded.c

int twice(const void *context) {
    return 2 * *static_cast<const int *>(context);
}

std::atomic<bool> go_on;
std::atomic<unsigned> hanging;

int hang(const void *) {
    hanging++;
    while (!go_on)
        std::this_thread::sleep_for(1ms);
    hanging--;
    return 0;
}

TEST(Bounded, ReturnsTheResult) {
    int context = 21, result = 0;
    for (unsigned i = 0; i < 4 * kPlaces; i++) // places are used again
        ASSERT_EQ(bounded_call(twice, &context, 60 * kSecond, &result), CASTOR_OK) << error_text();
    EXPECT_EQ(result, 42);
}

TEST(Bounded, FromManyThreads) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([t] {
            for (int i = 0; i < 50; i++) {
                int context = 1000 * t + i, result = -1;
                ASSERT_EQ(bounded_call(twice, &context, 60 * kSecond, &result), CASTOR_OK) << error_text();
                ASSERT_EQ(result, 2 * context);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
}

TEST(Bounded, LateCallsAreLeftAndTheirPlacesComeBack) {
    int result = 7, context = 3;
    go_on = false;
    for (unsigned i = 0; i < kPlaces; i++)
        ASSERT_EQ(bounded_call(hang, nullptr, kSecond / 100, &result), CASTOR_ERR_TIMEOUT);
    EXPECT_NE(std::string(error_text()).find("within"), std::string::npos) << error_text();
    EXPECT_EQ(result, 7) << "a late call has no result";
    auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(bounded_call(twice, &context, 60 * kSecond, &result), CASTOR_ERR_TIMEOUT) << "no place is left";
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
    go_on = true;
    for (int i = 0; i < 20000 && hanging > 0; i++)
        std::this_thread::sleep_for(1ms);
    for (int i = 0; i < 2000 && bounded_call(twice, &context, 60 * kSecond, &result) != CASTOR_OK; i++)
        std::this_thread::sleep_for(1ms);
    EXPECT_EQ(result, 6);
}

} // namespace
