#include <gtest/gtest.h>
#include <cstring>
#include <string>
#include <vector>

#include "castor.h"

namespace {

TEST(Accumulation, StepsAtEachKthMicroStep) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 3), 0);
    for (int round = 0; round < 2; round++) {
        EXPECT_TRUE(castor_accumulation_is_empty(&a));
        for (int micro_step = 1; micro_step <= 3; micro_step++) {
            bool last = micro_step == 3;
            EXPECT_EQ(castor_accumulation_next_at_boundary(&a), last);
            EXPECT_EQ(castor_accumulation_count(&a), last);
            EXPECT_EQ(castor_accumulation_at_boundary(&a), last);
            EXPECT_FALSE(castor_accumulation_is_empty(&a));
            EXPECT_EQ(castor_accumulation_take_step(&a), last);
        }
    }
}

TEST(Accumulation, WithoutAMicroStepThereIsNoStep) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 1), 0);
    EXPECT_TRUE(castor_accumulation_next_at_boundary(&a));
    EXPECT_FALSE(castor_accumulation_at_boundary(&a));
    EXPECT_FALSE(castor_accumulation_take_step(&a));
    EXPECT_TRUE(castor_accumulation_count(&a));
    EXPECT_TRUE(castor_accumulation_take_step(&a));
    EXPECT_FALSE(castor_accumulation_take_step(&a));
}

TEST(Accumulation, BeyondTheBoundaryStaysThereUntilTheStep) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 2), 0);
    for (int i = 0; i < 5; i++)
        castor_accumulation_count(&a);
    EXPECT_TRUE(castor_accumulation_at_boundary(&a));
    EXPECT_TRUE(castor_accumulation_next_at_boundary(&a));
    EXPECT_TRUE(castor_accumulation_take_step(&a));
    EXPECT_TRUE(castor_accumulation_is_empty(&a));
    EXPECT_FALSE(castor_accumulation_at_boundary(&a));
}

TEST(Accumulation, EveryKthCall) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 4), 0);
    std::vector<int> acted;
    for (int call = 1; call <= 12; call++)
        if (castor_accumulation_every(&a))
            acted.push_back(call);
    EXPECT_EQ(acted, (std::vector<int>{4, 8, 12}));
}

TEST(Accumulation, WholeStepsOfALoader) {
    struct {
        int64_t count, size, length, steps;
    } const rows[] = {{10, 4, 8, 2}, {8, 4, 8, 2}, {3, 4, 0, 0}, {0, 4, 0, 0}, {7, 1, 7, 7}};
    for (const auto &row : rows) {
        int64_t length = -1, steps = -1;
        ASSERT_EQ(castor_accumulation_length(row.count, row.size, &length, &steps), 0);
        EXPECT_EQ(length, row.length) << row.count << " by " << row.size;
        EXPECT_EQ(steps, row.steps) << row.count << " by " << row.size;
    }
}

TEST(Accumulation, SizesBelowOneAreErrors) {
    castor_accumulation a = {7, 7};
    int64_t length = 5, steps = 5;
    for (int64_t size : {0, -1}) {
        EXPECT_NE(castor_accumulation_begin(&a, size), 0);
        EXPECT_NE(std::string(castor_error()).find("accumulate_size is " + std::to_string(size)),
                  std::string::npos)
            << castor_error();
        EXPECT_NE(castor_accumulation_length(10, size, &length, &steps), 0);
    }
    EXPECT_NE(castor_accumulation_length(-1, 2, &length, &steps), 0);
    EXPECT_EQ(a.size, 7);
    EXPECT_EQ(length, 5);
}

TEST(Annealing, JumpsAfterTheWarmUp) {
    for (double step : {0.0, 1.0, 100.0})
        EXPECT_EQ(castor_annealing(1, 0.1, 100, 2000, step), 1.0) << step;
    // 1 - (101 / 2000) * 0.9, and 1 - (1000 / 2000) * 0.9
    EXPECT_DOUBLE_EQ(castor_annealing(1, 0.1, 100, 2000, 101), 0.95455);
    EXPECT_DOUBLE_EQ(castor_annealing(1, 0.1, 100, 2000, 1000), 0.55);
    EXPECT_NE(castor_annealing(1, 0.1, 100, 2000, 1999), 0.1);
    EXPECT_EQ(castor_annealing(1, 0.1, 100, 2000, 2000), 0.1);
    EXPECT_EQ(castor_annealing(1, 0.1, 100, 2000, 1e9), 0.1);
}

TEST(Annealing, TheWarmUpIsTestedFirst) {
    EXPECT_EQ(castor_annealing(2, 1, 10, 5, 10), 2.0);
    EXPECT_EQ(castor_annealing(2, 1, 10, 5, 11), 1.0);
    EXPECT_EQ(castor_annealing(2, 1, 0, 0, 0), 2.0);
    EXPECT_EQ(castor_annealing(2, 1, -1, 0, 0), 1.0); // no division by zero
}

} // namespace
