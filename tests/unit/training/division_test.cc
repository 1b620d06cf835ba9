#include <gtest/gtest.h>
#include <cstdint>
#include <vector>

extern "C" {
#include "training/division.h"
}

namespace {

using Numbers = std::vector<uint64_t>;

TEST(BatchPart, TenSamplesOfFourRanks) {
    const Numbers firsts = {0, 2, 5, 7}, lasts = {2, 5, 7, 10};
    const double weights[] = {0.2, 0.3, 0.2, 0.3};
    for (int rank = 0; rank < 4; rank++) {
        const local_batch own = local_batch_of(10, rank, 4);
        EXPECT_EQ(own.first, firsts[static_cast<size_t>(rank)]);
        EXPECT_EQ(own.last, lasts[static_cast<size_t>(rank)]);
        EXPECT_EQ(own.weight, weights[rank]);
    }
}

TEST(BatchPart, ARankWithoutASampleHasTheFirstOneForNothing) {
    for (int rank : {0, 1}) {
        const local_batch own = local_batch_of(1, rank, 3);
        EXPECT_EQ(own.first, 0U);
        EXPECT_EQ(own.last, 1U);
        EXPECT_EQ(own.weight, 0);
    }
    EXPECT_EQ(local_batch_of(1, 2, 3).weight, 1);
}

TEST(BatchPart, OfNoSamplesIsNothing) {
    const local_batch own = local_batch_of(0, 1, 2);
    EXPECT_EQ(own.first, 0U);
    EXPECT_EQ(own.last, 0U);
    EXPECT_EQ(own.weight, 0);
}

TEST(BatchPart, EverySampleIsOneRanks) {
    for (uint64_t count = 0; count <= 70; count++)
        for (int world = 1; world <= 9; world++) {
            uint64_t next = 0;
            double weight = 0;
            for (int rank = 0; rank < world; rank++) {
                const local_batch own = local_batch_of(count, rank, world);
                if (own.weight == 0)
                    continue;
                ASSERT_EQ(own.first, next) << count << " samples of " << world << " ranks";
                ASSERT_GE(own.last - own.first, count / static_cast<uint64_t>(world));
                ASSERT_LE(own.last - own.first, count / static_cast<uint64_t>(world) + 1);
                next = own.last;
                weight += own.weight;
            }
            ASSERT_EQ(next, count) << "of " << world << " ranks";
            ASSERT_NEAR(weight, count > 0, 1e-15 * world);
        }
}

Numbers divided(const Numbers &bytes, uint64_t most) {
    std::vector<uint32_t> ends(bytes.empty() ? 1 : bytes.size());
    const uint32_t parts = parts_divide(bytes.data(), static_cast<uint32_t>(bytes.size()), most, ends.data());
    return {ends.begin(), ends.begin() + parts};
}

TEST(Parts, AreFilledInOrder) {
    EXPECT_EQ(divided({4, 4, 2, 5, 5, 1}, 10), (Numbers{3, 5, 6}));
    EXPECT_EQ(divided({10, 10}, 10), (Numbers{1, 2}));
    EXPECT_EQ(divided({10, 0, 0, 1}, 10), (Numbers{3, 4}));
}

TEST(Parts, WhatIsTooLargeIsAlone) {
    EXPECT_EQ(divided({1, 50, 1, 1}, 10), (Numbers{1, 2, 4}));
    EXPECT_EQ(divided({50, 50}, 10), (Numbers{1, 2}));
}

// Place p has parts of 10 * (p + 1) bytes.
Numbers divided_by_place(const Numbers &bytes, const std::vector<int32_t> &places) {
    std::vector<uint32_t> ends(bytes.size());
    const uint32_t parts = parts_divide_by_place(
        bytes.data(), places.data(), static_cast<uint32_t>(bytes.size()),
        [](int place) { return 10 * (static_cast<uint64_t>(place) + 1); }, ends.data());
    return {ends.begin(), ends.begin() + parts};
}

TEST(Parts, AreOfOnePlaceEach) {
    EXPECT_EQ(divided_by_place({5, 5, 5, 5}, {0, 0, 0, 0}), (Numbers{2, 4}));
    EXPECT_EQ(divided_by_place({5, 5, 5, 5}, {1, 1, 1, 1}), (Numbers{4}));
    EXPECT_EQ(divided_by_place({5, 5, 5, 5, 1}, {0, 1, 1, 0, 0}), (Numbers{1, 3, 5}));
    EXPECT_EQ(divided_by_place({50, 1, 50, 1}, {0, 0, 1, 1}), (Numbers{1, 2, 3, 4}));
    EXPECT_EQ(divided_by_place({}, {}), (Numbers{}));
}

TEST(Parts, WithoutALimitThereIsOne) {
    EXPECT_EQ(divided({4, 4, 2, 5, 5, 1}, 0), (Numbers{6}));
    EXPECT_EQ(divided({}, 0), (Numbers{0}));
    EXPECT_EQ(divided({}, 10), (Numbers{0}));
}

} // namespace
