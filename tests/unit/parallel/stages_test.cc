// Divisions of layers into stages, against all divisions of small models, and against a lower bound for large ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "castor.h"

namespace {

using Costs = std::vector<uint64_t>;

struct Division {
    std::vector<uint32_t> sizes; // layers of each stage
    uint64_t largest = 0;
};

// Checks that no stage is empty and that the largest is as said.
Division divided(const Costs &costs, uint32_t stages) {
    std::vector<uint32_t> ends(stages);
    Division made;
    EXPECT_EQ(castor_stages_divide(costs.data(), static_cast<uint32_t>(costs.size()), stages, ends.data(),
                                   &made.largest),
              CASTOR_OK)
        << castor_error();
    EXPECT_EQ(ends.back(), costs.size());
    uint64_t largest = 0;
    uint32_t first = 0;
    for (uint32_t end : ends) {
        EXPECT_GT(end, first);
        largest = std::max(largest, std::accumulate(costs.begin() + first, costs.begin() + end, uint64_t{0}));
        made.sizes.push_back(end - first);
        first = end;
    }
    EXPECT_EQ(made.largest, largest);
    return made;
}

// The largest stage of the best of all divisions into stages that are not empty.
uint64_t best_of_all(const Costs &costs, size_t first, uint32_t stages) {
    if (stages == 1)
        return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(first), costs.end(), uint64_t{0});
    uint64_t best = UINT64_MAX, used = 0;
    for (size_t end = first + 1; end + stages - 1 <= costs.size(); end++) {
        used += costs[end - 1];
        best = std::min(best, std::max(used, best_of_all(costs, end, stages - 1)));
    }
    return best;
}

TEST(Stages, ByHand) {
    EXPECT_EQ(divided({4, 4, 4, 4}, 2).sizes, (std::vector<uint32_t>{2, 2}));
    EXPECT_EQ(divided({9, 1, 1, 1, 1}, 2).sizes, (std::vector<uint32_t>{1, 4}));
    EXPECT_EQ(divided({1, 1, 1, 9}, 3).sizes, (std::vector<uint32_t>{2, 1, 1}));
    EXPECT_EQ(divided({0, 0, 0}, 3).sizes, (std::vector<uint32_t>{1, 1, 1}));
    EXPECT_EQ(divided({0, 0, 7}, 2).largest, 7U);
    EXPECT_EQ(divided({5}, 1).largest, 5U);
}

TEST(Stages, EqualLayersDifferByOneAtMost) {
    EXPECT_EQ(divided(Costs(10, 1), 4).sizes, (std::vector<uint32_t>{3, 3, 2, 2}));
    for (uint32_t layers = 1; layers <= 40; layers++)
        for (uint32_t stages = 1; stages <= layers; stages++) {
            const Division made = divided(Costs(layers, 3), stages);
            const auto [least, most] = std::minmax_element(made.sizes.begin(), made.sizes.end());
            ASSERT_LE(*most - *least, 1U) << layers << " layers, " << stages << " stages";
        }
}

TEST(Stages, WithoutCostsEachLayerCountsOne) {
    std::vector<uint32_t> ends(3);
    uint64_t largest = 0;
    ASSERT_EQ(castor_stages_divide(nullptr, 8, 3, ends.data(), &largest), CASTOR_OK);
    EXPECT_EQ(ends, (std::vector<uint32_t>{3, 6, 8}));
    EXPECT_EQ(largest, 3U);
}

TEST(Stages, AgainstAllDivisions) {
    std::mt19937 random(2);
    for (int round = 0; round < 150; round++) {
        Costs costs(1 + random() % 10);
        const uint64_t range = round % 3 == 0 ? 3 : round % 3 == 1 ? 100 : uint64_t{1} << 40;
        for (uint64_t &cost : costs)
            cost = (uint64_t{random()} << 16 ^ random()) % range;
        for (uint32_t stages = 1; stages <= costs.size(); stages++)
            ASSERT_EQ(divided(costs, stages).largest, best_of_all(costs, 0, stages));
    }
}

// With a bound that is smaller by one, filling each stage as far as it goes needs more stages: no division has a smaller one.
TEST(Stages, OfManyLayers) {
    std::mt19937 random(3);
    for (uint32_t layers : {128U, 1000U, 4096U}) {
        Costs costs(layers);
        for (uint64_t &cost : costs)
            cost = random() % 1000 ? random() % 1000000 : uint64_t{5000000};
        for (uint32_t stages : {1U, 7U, 64U, 128U}) {
            const Division made = divided(costs, stages);
            const uint64_t smaller = made.largest - 1;
            uint64_t used = 0;
            uint32_t needed = 1;
            bool too_large = false;
            for (uint64_t cost : costs) {
                too_large |= cost > smaller;
                needed += used + cost > smaller;
                used = used + cost > smaller ? cost : used + cost;
            }
            ASSERT_TRUE(too_large || needed > stages) << layers << ", " << stages;
        }
    }
}

TEST(Stages, ErrorsSayWhatIsWrong) {
    const Costs costs = {1, UINT64_MAX, 1};
    std::vector<uint32_t> ends(4);
    uint64_t largest = 0;
    auto fails = [&](uint32_t layers, uint32_t stages, const char *words) {
        EXPECT_EQ(castor_stages_divide(costs.data(), layers, stages, ends.data(), &largest),
                  CASTOR_ERR_ARGUMENT);
        EXPECT_NE(std::string(castor_error()).find(words), std::string::npos) << castor_error();
    };
    fails(3, 4, "3 layers for 4 pipeline stages");
    fails(3, 0, "0 pipeline stages");
    fails(0, 1, "0 layers");
    fails(3, 2, "beyond 64 bits");
    EXPECT_EQ(divided({UINT64_MAX}, 1).largest, UINT64_MAX);
    EXPECT_EQ(divided({1, UINT64_MAX - 1}, 2).largest, UINT64_MAX - 1);
}

} // namespace
