// The search of a chunk size; each expected figure is worked out by hand, or by a slow loop over all sizes.
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <vector>

#include "castor.h"

extern "C" {
#include "placement/chunk_search.h"
}

namespace {

struct Group {
    uint64_t degree;
    std::vector<uint64_t> numel;
    uint64_t chunk = 0;
    bool gathered = false;
};

struct Found {
    uint64_t numel = 0, wasted = 0;
    int status = 0;
};

Found search(std::vector<Group> &groups, castor_chunk_range range) {
    std::vector<castor_chunk_list> given;
    for (const Group &g : groups)
        given.push_back({g.numel.data(), g.numel.size(), g.degree, 0, 0});
    Found f;
    f.status = castor_chunk_search(given.data(), uint32_t(given.size()), &range, &f.numel, &f.wasted);
    for (size_t i = 0; i < groups.size(); i++) {
        groups[i].chunk = given[i].chunk_numel;
        groups[i].gathered = given[i].keep_gathered;
    }
    return f;
}

TEST(ChunkSearch, TheFirstSizeWithLeastWasteIsTaken) {
    // 6 wastes 0 + 1 + 2 = 3 (6 | 5 | 4), 7 wastes 1 + 2 + 3 = 6, 8: 2 + 3 + 4, 9: 3 + 0 (5 + 4) = 3, 10: 4 + 1 = 5,
    // 11: 0 + 7 (6 + 5 | 4) = 7.
    std::vector<Group> groups = {{1, {6, 5, 4}}};
    Found f = search(groups, {5, 1, 2, 0});
    EXPECT_EQ(f.status, 0);
    EXPECT_EQ(f.numel, 15u);
    EXPECT_EQ(groups[0].chunk, 6u);
    EXPECT_EQ(f.wasted, 3u);
    EXPECT_FALSE(groups[0].gathered);
}

TEST(ChunkSearch, TheEndOfTheRangeIsTried) {
    // 6: 3, as above; 15 holds all.
    std::vector<Group> groups = {{1, {6, 5, 4}}};
    EXPECT_EQ(search(groups, {8, 1, 2, 0}).wasted, 3u);
    EXPECT_EQ(groups[0].chunk, 6u);
    EXPECT_EQ(search(groups, {9, 1, 2, 0}).wasted, 0u);
    EXPECT_EQ(groups[0].chunk, 15u);
}

TEST(ChunkSearch, SizesBeginAtAMultipleOfTheIntervalAndGoByIt) {
    // 8, 12, 16 of 4: 8 wastes 2 + 3 + 4; 12: 1 (6 + 5) + 8; 16: 1.
    std::vector<Group> groups = {{1, {6, 5, 4}}};
    Found f = search(groups, {8, 4, 2, 0});
    EXPECT_EQ(groups[0].chunk, 16u);
    EXPECT_EQ(f.wasted, 1u);
    // 16 is beyond 8 + 7.
    f = search(groups, {7, 4, 2, 0});
    EXPECT_EQ(groups[0].chunk, 8u);
    EXPECT_EQ(f.wasted, 9u);
}

TEST(ChunkSearch, AGroupBelowTheMinimumIsOneChunkKeptGathered) {
    std::vector<Group> groups = {{1, {6, 5, 4}}};
    Found f = search(groups, {100, 1, 16, 1});
    EXPECT_EQ(groups[0].chunk, 15u);
    EXPECT_TRUE(groups[0].gathered);
    EXPECT_EQ(f.numel, 15u);
    EXPECT_EQ(f.wasted, 0u);
    search(groups, {0, 1, 15, 1});
    EXPECT_FALSE(groups[0].gathered) << "as many as the minimum are not below it";
    EXPECT_EQ(groups[0].chunk, 15u);
}

TEST(ChunkSearch, TensorsBeyondThreeDeviationsDoNotDecide) {
    // 19 of 10 and one of 1000: mean 59.5, deviation sqrt(19 * 49.5^2 + 940.5^2) / sqrt(20) = 215.8; 1000 > 706.8.
    std::vector<Group> groups = {{1, std::vector<uint64_t>(19, 10)}};
    groups[0].numel.push_back(1000);
    Found f = search(groups, {180, 10, 10, 1});
    EXPECT_EQ(groups[0].chunk, 10u);
    EXPECT_EQ(f.wasted, 0u);
    EXPECT_EQ(f.numel, 1190u);
    f = search(groups, {0, 10, 10, 0}); // else it does
    EXPECT_EQ(groups[0].chunk, 1000u);
    EXPECT_EQ(f.wasted, 810u);
}

TEST(ChunkSearch, EqualTensorsAreNotBeyondTheirMean) {
    std::vector<Group> groups = {{1, std::vector<uint64_t>(7, 3)}};
    Found f = search(groups, {0, 1, 1, 1});
    EXPECT_EQ(groups[0].chunk, 3u);
    EXPECT_EQ(f.wasted, 0u);
}

TEST(ChunkSearch, SizesAreRoundedUpToTheLeastCommonMultipleOfTheDegrees) {
    // One chunk size for both groups; 7 wastes 0 for each. The third is below the minimum, and its degree counts.
    std::vector<Group> groups = {{4, {7, 7}}, {6, {7}}, {5, {2}}};
    Found f = search(groups, {0, 1, 7, 1});
    EXPECT_EQ(f.wasted, 0u);
    EXPECT_EQ(f.numel, 23u);
    EXPECT_EQ(groups[0].chunk, 60u);
    EXPECT_EQ(groups[1].chunk, 60u);
    EXPECT_EQ(groups[2].chunk, 2u);
    EXPECT_TRUE(groups[2].gathered);
}

TEST(ChunkSearch, IsWhatASlowLoopFinds) {
    std::mt19937_64 random(5);
    for (int round = 0; round < 300; round++) {
        std::vector<Group> groups(1 + random() % 2);
        uint64_t minimum = 1 + random() % 50, interval = 1 + random() % 9, span = random() % 120;
        for (Group &g : groups) {
            g.degree = 1 + random() % 4;
            for (uint64_t i = 0, n = 1 + random() % 30; i < n; i++)
                g.numel.push_back(1 + random() % 40);
        }
        Found f = search(groups, {span, interval, minimum, 0});
        uint64_t largest = minimum, multiple = 1;
        for (const Group &g : groups) {
            multiple = std::lcm(multiple, g.degree);
            for (uint64_t numel : g.numel)
                if (std::accumulate(g.numel.begin(), g.numel.end(), uint64_t(0)) >= minimum)
                    largest = std::max(largest, numel);
        }
        uint64_t begin = (largest + interval - 1) / interval * interval, best = 0, least = ~uint64_t(0);
        for (uint64_t chunk = begin; chunk <= begin + span; chunk += interval) {
            uint64_t waste = 0;
            for (const Group &g : groups) {
                if (g.gathered)
                    continue;
                std::vector<uint64_t> filled;
                for (uint64_t numel : g.numel) {
                    if (filled.empty() || filled.back() + numel > chunk)
                        filled.push_back(0);
                    filled.back() += numel;
                }
                for (uint64_t numel : filled)
                    waste += chunk - numel;
            }
            if (waste < least)
                least = waste, best = chunk;
        }
        bool all_gathered = true;
        for (const Group &g : groups) {
            all_gathered &= g.gathered;
            EXPECT_TRUE(g.gathered || g.chunk == (best + multiple - 1) / multiple * multiple) << round;
        }
        EXPECT_EQ(f.wasted, all_gathered ? 0 : least) << round;
    }
}

struct Adopted {
    uint64_t bytes, wasted;
};

Adopted adopt(const std::vector<uint64_t> &numel, uint64_t degree, uint64_t element_bytes) {
    chunk_table table = {};
    EXPECT_EQ(chunk_search_set(&table, numel.data(), numel.size(), degree, element_bytes, UINT64_MAX),
              CASTOR_OK);
    return {table.chunk_bytes, table.wasted_bytes};
}

TEST(ChunkSearch, AJobThatNamesNoSizeGetsOne) {
    constexpr uint64_t kMi = 1 << 20;
    Adopted found = adopt({1000, 2000}, 2, 4); // few: one chunk, each parameter on its own pages
    EXPECT_EQ(found.bytes, 4096u + 8192u);
    EXPECT_EQ(found.wasted, 0u);
    EXPECT_EQ(adopt({}, 2, 4).bytes, 0u);
    // From 32 Mi on in three chunks, from 40 Mi on in two, from 60 Mi on in one.
    found = adopt({20 * kMi, 20 * kMi, 20 * kMi}, 3, 4);
    EXPECT_EQ(found.bytes, 240 * kMi);
    EXPECT_EQ(found.wasted, 0u);
    // Four do not fit into one: two chunks of 40 Mi.
    EXPECT_EQ(adopt({20 * kMi, 20 * kMi, 20 * kMi, 20 * kMi}, 1, 2).bytes, 80 * kMi);
    // Seven: 32 Mi wastes 7 * 12, 40 Mi 20 of its fourth chunk, 60 Mi 40 of its third.
    found = adopt(std::vector<uint64_t>(7, 20 * kMi), 1, 4);
    EXPECT_EQ(found.bytes, 160 * kMi);
    EXPECT_EQ(found.wasted, 80 * kMi);
    // 60 Mi elements, up to a multiple of 7 (4 more) and to whole pages.
    EXPECT_EQ(adopt({20 * kMi, 20 * kMi, 20 * kMi}, 7, 4).bytes, 240 * kMi + 4096);
}

TEST(ChunkSearch, BadInputIsAnError) {
    std::vector<Group> groups = {{1, {6}}};
    EXPECT_EQ(search(groups, {1, 0, 1, 0}).status, 1);
    groups[0].degree = 0;
    EXPECT_EQ(search(groups, {1, 1, 1, 0}).status, 1);
    groups[0].degree = 1;
    EXPECT_EQ(search(groups, {~uint64_t(0), 1, 1, 0}).status, 1);
    groups[0].numel = {uint64_t(1) << 62, uint64_t(1) << 62, uint64_t(1) << 62};
    EXPECT_EQ(search(groups, {1, 1, 1, 0}).status, 1);
    groups = {{uint64_t(1) << 40, {6}}, {(uint64_t(1) << 40) - 1, {6}}};
    EXPECT_EQ(search(groups, {1, 1, 1, 0}).status, 1);
    groups = {{1, {6}}};
    EXPECT_EQ(search(groups, {uint64_t(1) << 32, 1, 1, 0}).status, 1) << "it would take hours";
    groups.clear();
    EXPECT_EQ(search(groups, {1, 1, 1, 0}).status, 0);
}

} // namespace
