/* The table of kernels' layouts. One table for a process: each test forgets what was there. */
#include <gtest/gtest.h>
#include <atomic>
#include <thread>
#include <vector>

extern "C" {
#include "interpose/hooks/cuda/layouts.h"
}

namespace {

std::atomic<int> asked;
std::atomic<uint32_t> version;

const void *kernel(uintptr_t number) {
    return (const void *)(number * 16);
}

/* A kernel has as many parameters as its address says, all of a size that says which version of it this is. */
bool ask(const void *kernel, arguments_layout *layout) {
    asked++;
    uint32_t words = 1 + version % 8000;
    for (uintptr_t i = 0; i < 1 + (uintptr_t)kernel / 16 % 40; i++)
        arguments_add(layout, 0, 8 * words);
    return true;
}

bool refuse(const void *, arguments_layout *layout) {
    asked++;
    arguments_add(layout, 0, 8);
    return false;
}

bool too_many(const void *, arguments_layout *layout) {
    asked++;
    while (arguments_add(layout, 0, 8)) {
    }
    return true;
}

void expect_layout(uintptr_t number, uint32_t words) {
    arguments_layout layout;
    layouts_get(kernel(number), ask, &layout);
    ASSERT_EQ(layout.count, 1 + number % 40);
    for (uint32_t i = 0; i < layout.count; i++)
        ASSERT_EQ(layout.parameters[i], words);
}

class Layouts : public testing::Test {
  protected:
    void SetUp() override {
        layouts_forget();
        asked = 0;
        version = 0;
    }
};

} // namespace

TEST_F(Layouts, AKernelIsAskedForOnce) {
    for (int round = 0; round < 3; round++)
        for (uintptr_t i = 1; i <= 1000; i++)
            expect_layout(i, 1);
    EXPECT_EQ(asked, 1000);
}

TEST_F(Layouts, WhatWasForgottenIsAskedAgain) {
    expect_layout(5, 1);
    version = 1;
    expect_layout(5, 1);
    layouts_forget();
    expect_layout(5, 2);
    expect_layout(5, 2);
    EXPECT_EQ(asked, 2);
}

TEST_F(Layouts, WhatIsUnknown) {
    arguments_layout layout;
    for (int round = 0; round < 2; round++) {
        layouts_get(kernel(7), refuse, &layout);
        EXPECT_EQ(layout.count, ARGUMENTS_UNKNOWN);
    }
    EXPECT_EQ(asked, 2) << "it may be known the next time";
    for (int round = 0; round < 2; round++) {
        layouts_get(kernel(8), too_many, &layout);
        EXPECT_EQ(layout.count, ARGUMENTS_UNKNOWN);
    }
    EXPECT_EQ(asked, 3);
}

TEST_F(Layouts, AFullTableAnswersStill) {
    for (int round = 0; round < 2; round++)
        for (uintptr_t i = 1; i <= 2 * LAYOUTS_MAX; i++)
            expect_layout(i, 1);
    EXPECT_GE(asked, 3 * LAYOUTS_MAX - 100);
    EXPECT_LT(asked, 4 * LAYOUTS_MAX) << "those that were kept are found";
}

/* Whoever asks after a forgetting sees no layout from before it. */
TEST_F(Layouts, ThreadsThatForgetAndAsk) {
    std::atomic<bool> over{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++)
        threads.emplace_back([&, t] {
            arguments_layout layout;
            for (uintptr_t i = 0; !over; i++) {
                uintptr_t number = 1 + (i * 7 + t) % 300;
                uint32_t before = version;
                layouts_get(kernel(number), ask, &layout);
                bool good = layout.count == 1 + number % 40;
                for (uint32_t p = 0; good && p < layout.count; p++)
                    good = layout.parameters[p] == layout.parameters[0] &&
                           layout.parameters[p] >= 1 + before % 8000;
                wrong += !good;
            }
        });
    for (uint32_t i = 1; i < 400; i++) {
        layouts_forget(); /* before the kernels change, as at an unload */
        version = i;
        layouts_forget();
        std::this_thread::yield();
    }
    over = true;
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(wrong, 0);
}
