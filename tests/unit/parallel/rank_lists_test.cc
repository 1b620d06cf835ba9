// The lists of tensor and data parallelism, by hand for small sets and by their properties up to 4,096 ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "specs.h"

namespace {

using Ranks = std::vector<int32_t>;

Ranks list(int kind, const Ranks &ranks, int tp, int dp, int index) {
    Ranks out(static_cast<size_t>(kind == CASTOR_LIST_TENSOR ? tp : dp), -1);
    EXPECT_EQ(castor_ranks_list(kind, ranks.data(), tp, dp, index, out.data()), CASTOR_OK) << castor_error();
    return out;
}

// Eight ranks, tp 2: neighbours share a model; every other one holds the same part of it.
TEST(RankLists, OfEightRanks) {
    Ranks ranks = {0, 1, 2, 3, 4, 5, 6, 7};
    EXPECT_EQ(list(CASTOR_LIST_TENSOR, ranks, 2, 4, 0), (Ranks{0, 1}));
    EXPECT_EQ(list(CASTOR_LIST_TENSOR, ranks, 2, 4, 3), (Ranks{6, 7}));
    EXPECT_EQ(list(CASTOR_LIST_DATA, ranks, 2, 4, 0), (Ranks{0, 2, 4, 6}));
    EXPECT_EQ(list(CASTOR_LIST_DATA, ranks, 2, 4, 1), (Ranks{1, 3, 5, 7}));
}

TEST(RankLists, RanksAreSortedFirst) {
    Ranks ranks = {9, 20, 3, 21, 8, 5};
    ASSERT_EQ(castor_ranks_sort(ranks.data(), 6, ranks.data()), CASTOR_OK);
    EXPECT_EQ(ranks, (Ranks{3, 5, 8, 9, 20, 21}));
    EXPECT_EQ(list(CASTOR_LIST_TENSOR, ranks, 3, 2, 1), (Ranks{9, 20, 21}));
    EXPECT_EQ(list(CASTOR_LIST_DATA, ranks, 3, 2, 1), (Ranks{5, 20}));
}

TEST(RankLists, DegreesAreDeduced) {
    struct {
        int32_t size, tp, dp, found_tp, found_dp;
    } const rows[] = {{8, 0, 0, 1, 8}, {8, 2, 0, 2, 4}, {8, 0, 2, 4, 2}, {8, 8, 0, 8, 1},
                      {8, 0, 8, 1, 8}, {6, 2, 3, 2, 3}, {1, 0, 0, 1, 1}, {4096, 64, 0, 64, 64}};
    for (const auto &row : rows) {
        int32_t tp = row.tp, dp = row.dp;
        EXPECT_EQ(castor_ranks_degrees(row.size, &tp, &dp), CASTOR_OK) << castor_error();
        EXPECT_EQ(tp, row.found_tp);
        EXPECT_EQ(dp, row.found_dp);
    }
}

TEST(RankLists, DegreesWhoseProductIsNotTheSizeAreErrors) {
    struct {
        int32_t size, tp, dp;
    } const rows[] = {{8, 3, 0}, {8, 0, 3},  {8, 2, 2}, {8, 16, 0}, {8, 0, 16}, {65536, 65537, 65536},
                      {0, 0, 0}, {4, -2, -2}};
    for (const auto &row : rows) {
        int32_t tp = row.tp, dp = row.dp;
        EXPECT_EQ(castor_ranks_degrees(row.size, &tp, &dp), CASTOR_ERR_ARGUMENT) << row.tp << ", " << row.dp;
        EXPECT_TRUE(said("degree")) << castor_error();
        EXPECT_EQ(tp, row.tp);
        EXPECT_EQ(dp, row.dp);
    }
}

TEST(RankLists, WhatIsNoListOfRanksIsAnError) {
    Ranks out(4);
    EXPECT_EQ(castor_ranks_sort(out.data(), 0, out.data()), CASTOR_ERR_ARGUMENT);
    for (const auto &[ranks, words] : {std::pair{Ranks{3, 1, 3}, "rank 3 is twice"},
                                       {Ranks{3, -1, 2}, "rank -1"},
                                       {Ranks{0, 65536, 1}, "rank 65536"}}) {
        Ranks sorted = ranks;
        EXPECT_EQ(castor_ranks_sort(ranks.data(), 3, sorted.data()), CASTOR_ERR_ARGUMENT);
        EXPECT_TRUE(said(words)) << castor_error();
        EXPECT_EQ(sorted, ranks);
    }
    Ranks ranks = {0, 1, 2, 3};
    for (int index : {-1, 2})
        EXPECT_EQ(castor_ranks_list(CASTOR_LIST_DATA, ranks.data(), 2, 2, index, out.data()),
                  CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(castor_ranks_list(2, ranks.data(), 2, 2, 0, out.data()), CASTOR_ERR_ARGUMENT);
}

// In any subset of 8,192 ranks with any degrees: the lists of a kind divide the ranks, a tensor list and a data list have one rank
// in common, and every rank's place says where it stands in its lists.
TEST(RankLists, AnySubsetUpTo4096Ranks) {
    std::mt19937 random(1);
    Ranks all(8192);
    std::iota(all.begin(), all.end(), 0);
    for (int size : {1, 2, 3, 6, 12, 64, 96, 1000, 4096}) {
        std::shuffle(all.begin(), all.end(), random);
        Ranks ranks(all.begin(), all.begin() + size), sorted = ranks;
        ASSERT_EQ(castor_ranks_sort(ranks.data(), size, ranks.data()), CASTOR_OK);
        std::sort(sorted.begin(), sorted.end());
        ASSERT_EQ(ranks, sorted);
        for (int32_t tp = 1; tp <= size; tp++) {
            if (size % tp || (size > 100 && tp != 8 && tp != 64 && tp != size && tp != 1))
                continue;
            int32_t dp = 0;
            ASSERT_EQ(castor_ranks_degrees(size, &tp, &dp), CASTOR_OK);
            std::vector<Ranks> tensor, data;
            for (int i = 0; i < dp; i++)
                tensor.push_back(list(CASTOR_LIST_TENSOR, ranks, tp, dp, i));
            for (int j = 0; j < tp; j++)
                data.push_back(list(CASTOR_LIST_DATA, ranks, tp, dp, j));
            Ranks of_tensor, of_data;
            for (const Ranks &one : tensor)
                of_tensor.insert(of_tensor.end(), one.begin(), one.end());
            for (const Ranks &one : data)
                of_data.insert(of_data.end(), one.begin(), one.end());
            ASSERT_EQ(of_tensor, ranks); // in order: neighbours are together
            std::sort(of_data.begin(), of_data.end());
            ASSERT_EQ(of_data, ranks);
        }
    }
}

} // namespace
