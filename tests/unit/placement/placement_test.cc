// The arithmetic of placement: static shares, limits, the order of victims, when a prefetch begins.
#include <gtest/gtest.h>
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "base/error.h"
#include "placement/moments.h"
#include "placement/placement.h"
#include "placement/prefetch.h"
#include "placement/victims.h"
}

namespace {

placement_settings fixed(double shard, double optim, double param) {
    placement_settings s = placement_defaults(PLACEMENT_STATIC);
    s.shard_param_frac = shard;
    s.offload_optim_frac = optim;
    s.offload_param_frac = param;
    return s;
}

using chunks = std::vector<std::pair<chunk_kind, uint64_t>>;

// The tiers of chunks, as digits.
std::string placed(const placement_settings &s, const chunks &all) {
    std::map<chunk_kind, uint64_t> bytes, offloaded;
    std::string out;
    for (auto [kind, size] : all)
        bytes[kind] += size;
    for (auto [kind, size] : all) {
        bool leaves = placement_offloads_next(&s, kind, offloaded[kind], bytes[kind]);
        offloaded[kind] += leaves ? size : 0;
        out += leaves ? "1" : "0";
    }
    return out;
}

chunks of(chunk_kind kind, std::vector<uint64_t> bytes) {
    chunks all;
    for (uint64_t b : bytes)
        all.push_back({kind, b});
    return all;
}

TEST(Placement, WholeChunksInOrderUntilTheShareIsReached) {
    auto states = of(CHUNK_OPTIM, {100, 100, 100, 100});
    EXPECT_EQ(placed(fixed(1, 0, 0), states), "0000");
    EXPECT_EQ(placed(fixed(1, 0.01, 0), states), "1000"); // 4 of 400 are wanted: one chunk passes it
    EXPECT_EQ(placed(fixed(1, 0.25, 0), states), "1000"); // reached exactly
    EXPECT_EQ(placed(fixed(1, 0.26, 0), states), "1100");
    EXPECT_EQ(placed(fixed(1, 1, 0), states), "1111");
    // 150 of 300: 50 < 150, 50 + 50 < 150, then 300 >= 150.
    EXPECT_EQ(placed(fixed(1, 0.5, 0), of(CHUNK_OPTIM, {50, 50, 150, 50})), "1110");
}

TEST(Placement, ParametersLeaveOnlyWhenTheOtherSharesAreWhole) {
    auto params = of(CHUNK_PARAM, {100, 100});
    auto check = [&](placement_settings s, const char *tiers, bool ignored) {
        EXPECT_EQ(placed(s, params), tiers);
        EXPECT_EQ(placement_ignores_parameters(&s), ignored);
    };
    check(fixed(1, 1, 0.5), "10", false);
    check(fixed(1, 0.9, 0.5), "00", true);
    check(fixed(0.5, 1, 0.5), "00", true);
    check(fixed(0, 0, 0), "00", false); // nothing was asked for
    placement_settings automatic = fixed(1, 0.9, 0.5);
    automatic.policy = PLACEMENT_AUTO; // has no shares
    check(automatic, "00", false);
    // Gradients go with the parameters' share, each kind counts for itself.
    auto both = of(CHUNK_PARAM, {100, 100});
    for (auto c : of(CHUNK_GRAD, {300, 100}))
        both.push_back(c);
    EXPECT_EQ(placed(fixed(1, 1, 0.5), both), "1010");
}

TEST(Placement, SharesAreBetweenNoneAndAll) {
    placement_settings s = fixed(1, 1.5, 0);
    EXPECT_EQ(placement_settings_check(&s), CASTOR_ERR_ARGUMENT);
    EXPECT_NE(std::string(error_text()).find("offload_optim_frac"), std::string::npos);
    s = placement_defaults(PLACEMENT_AUTO);
    EXPECT_EQ(placement_settings_check(&s), CASTOR_OK);
    s.steady_cap_ratio = -0.1;
    EXPECT_EQ(placement_settings_check(&s), CASTOR_ERR_ARGUMENT);
}

TEST(Placement, LimitsOfAuto) {
    placement_settings s = placement_defaults(PLACEMENT_AUTO);
    EXPECT_EQ(placement_limit(&s, true, 1000, 0), 200u);
    EXPECT_EQ(placement_limit(&s, true, 1000, 700), 200u); // warm-up looks at nothing else
    EXPECT_EQ(placement_limit(&s, false, 1000, 0), 900u);
    EXPECT_EQ(placement_limit(&s, false, 1000, 300), 600u);
    EXPECT_EQ(placement_limit(&s, false, 1000, 950), 0u);
    EXPECT_EQ(placement_limit(&s, false, UINT64_MAX, 5), UINT64_MAX);
    EXPECT_EQ(placement_headroom(&s, 1000), 100u);
    placement_settings f = placement_defaults(PLACEMENT_STATIC);
    EXPECT_EQ(placement_limit(&f, true, 1000, 300), 700u);
}

TEST(Victims, FarthestNextUseThenLongestUnusedThenLowestNumber) {
    EXPECT_GT(placement_key(9, 0), placement_key(8, 100));
    EXPECT_EQ(placement_key(9, 0), placement_key(9, 100));
    EXPECT_GT(placement_key(MOMENT_NEVER, 100), placement_key(uint64_t(1) << 40, 0));
    EXPECT_GT(placement_key(MOMENT_NEVER, 3), placement_key(MOMENT_NEVER, 4));
    EXPECT_GT(placement_key(0, 0), 0u);

    std::vector<uint64_t> key(8);
    std::vector<uint32_t> winner(8);
    victims v;
    victims_init(&v, key.data(), winner.data(), 8);
    EXPECT_EQ(victims_first(&v), VICTIM_NONE);
    victims_set(&v, 5, placement_key(7, 0));
    victims_set(&v, 2, placement_key(7, 0));
    victims_set(&v, 0, placement_key(3, 0));
    EXPECT_EQ(victims_first(&v), 2u); // as far as 5
    victims_set(&v, 2, 0);
    EXPECT_EQ(victims_first(&v), 5u);
    victims_set(&v, 7, placement_key(MOMENT_NEVER, 1));
    EXPECT_EQ(victims_first(&v), 7u);
}

TEST(Victims, AsALinearSearch) {
    std::mt19937 random(1);
    for (uint32_t leaves : {1u, 2u, 64u, 512u}) {
        std::vector<uint64_t> key(leaves), plain(leaves);
        std::vector<uint32_t> winner(leaves);
        victims v;
        victims_init(&v, key.data(), winner.data(), leaves);
        for (int i = 0; i < 2000; i++) {
            uint32_t chunk = uint32_t(random()) % leaves;
            plain[chunk] = random() % 6;
            victims_set(&v, chunk, plain[chunk]);
            auto best = std::max_element(plain.begin(), plain.end());
            ASSERT_EQ(victims_first(&v), *best ? uint32_t(best - plain.begin()) : VICTIM_NONE);
        }
    }
}

TEST(Prefetch, BandwidthIsMeasuredFromTheEndOfTheMoveBefore) {
    bandwidth b = {};
    EXPECT_EQ(bandwidth_time_ns(&b, 1000), 0u);
    bandwidth_add(&b, 1000, 100, 1100); // one byte a nanosecond
    EXPECT_EQ(bandwidth_time_ns(&b, 500), 500u);
    // It began with the first one and waited for it: it took 1000 as well, not 2000.
    bandwidth_add(&b, 1000, 100, 2100);
    EXPECT_EQ(bandwidth_time_ns(&b, 500), 500u);
    // Half as fast counts one in four: 1 + (2 - 1) / 4.
    bandwidth_add(&b, 1000, 3000, 5000);
    EXPECT_EQ(bandwidth_time_ns(&b, 1000), 1250u);
    bandwidth_add(&b, 1000, 4000, 5000); // ended together with it: says nothing
    EXPECT_EQ(bandwidth_time_ns(&b, 1000), 1250u);
}

TEST(Prefetch, ItemsBeginSoThatEachIsThereInTime) {
    bandwidth b = {1000, 0}; // 1 ns a byte; planned at 10/8 of that
    std::vector<prefetch_item> items = {{800, 5000, 0}, {800, 5500, 0}, {800, 9000, 0}};
    prefetch_schedule(items.data(), 3, &b);
    EXPECT_EQ(items[2].begin_ns, 8000u);
    EXPECT_EQ(items[1].begin_ns, 4500u);
    EXPECT_EQ(items[0].begin_ns, 3500u); // not 4000: the second one is in its way
    items = {{800, 900, 0}, {800, 1100, 0}};
    prefetch_schedule(items.data(), 2, &b);
    EXPECT_EQ(items[1].begin_ns, 100u);
    EXPECT_EQ(items[0].begin_ns, 0u); // too late already
    bandwidth unknown = {};
    items = {{800, 900000, 0}};
    prefetch_schedule(items.data(), 1, &unknown);
    EXPECT_EQ(items[0].begin_ns, 0u);
}

} // namespace
