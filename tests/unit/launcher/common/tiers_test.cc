/* Sums of tiers and the lines about devices. */
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "launcher/common/tiers.h"
}

namespace {

constexpr uint64_t MIB = 1 << 20;

struct Process {
    std::unique_ptr<trace_counters> counters = std::make_unique<trace_counters>();
    Process &set(trace_gauge gauge, uint64_t value) {
        counters->gauges[gauge].last = value;
        return *this;
    }
};

std::vector<std::string> lines_of(const device_figures &figures) {
    char lines[DEVICE_LINES_MAX][DEVICE_LINE_MAX];
    size_t count = device_figures_lines(&figures, "up to", lines);
    return {lines, lines + count};
}

TEST(Tiers, TheHostHasWhatIsLeft) {
    Process a, b;
    a.set(GAUGE_PARAM_BYTES, 10)
        .set(GAUGE_DEVICE_PARAM_BYTES, 4)
        .set(GAUGE_DISK_PARAM_BYTES, 1)
        .set(GAUGE_OTHER_BYTES, 7);
    a.set(GAUGE_OPTIM_BYTES, 5).set(GAUGE_DEVICE_OPTIM_BYTES, 9); // sampled at different times
    b.set(GAUGE_GRAD_BYTES, 3)
        .set(GAUGE_DEVICE_OTHER_BYTES, 2)
        .set(GAUGE_DEVICE_SLOTS_BYTES, 6)
        .set(GAUGE_PARAM_BYTES, UINT64_MAX);
    tier_bytes sum = {};
    tier_bytes_add(&sum, a.counters.get());
    EXPECT_EQ(sum.bytes[TIER_DEVICE][TIER_PARAM], 4u);
    EXPECT_EQ(sum.bytes[TIER_HOST][TIER_PARAM], 5u);
    EXPECT_EQ(sum.bytes[TIER_DISK][TIER_PARAM], 1u);
    EXPECT_EQ(sum.bytes[TIER_HOST][TIER_OPTIM], 0u);
    EXPECT_EQ(tier_bytes_of(&sum, TIER_HOST), 12u);
    EXPECT_TRUE(tier_bytes_elsewhere(&sum));
    tier_bytes_add(&sum, b.counters.get());
    EXPECT_EQ(sum.bytes[TIER_HOST][TIER_GRAD], 3u);
    EXPECT_EQ(sum.bytes[TIER_DEVICE][TIER_SLOTS], 6u);
    EXPECT_EQ(sum.bytes[TIER_DEVICE][TIER_OTHER], 2u);
    EXPECT_EQ(sum.bytes[TIER_HOST][TIER_PARAM], UINT64_MAX);
    tier_bytes host = {};
    tier_bytes_add(&host, Process().set(GAUGE_PARAM_BYTES, 3).counters.get());
    EXPECT_FALSE(tier_bytes_elsewhere(&host));
}

TEST(Tiers, NothingToSay) {
    device_figures figures = {};
    EXPECT_FALSE(device_figures_any(&figures));
    EXPECT_TRUE(lines_of(figures).empty());
}

TEST(Tiers, Homes) {
    device_figures figures = {};
    figures.budget_bytes = 1024 * MIB;
    EXPECT_TRUE(device_figures_any(&figures));
    EXPECT_EQ(lines_of(figures),
              (std::vector<std::string>{"homes: at most 1.0 GiB on the device; none moved to the host"}));
    figures.flips[1] = 1;
    figures.flipped_bytes[1] = 2 * MIB;
    figures.rescues = 1;
    EXPECT_EQ(
        lines_of(figures)[0],
        "homes: at most 1.0 GiB on the device; 1 moved to the host, 2.0 MiB, since 1 allocation had no room");
    figures.budget_bytes = 0;
    figures.flips[0] = 1200;
    figures.flipped_bytes[0] = 5;
    figures.rescues = 3;
    figures.flip_ns = 1500000;
    EXPECT_EQ(
        lines_of(figures)[0],
        "homes: 1 moved to the host, 2.0 MiB, since 3 allocations had no room; 1,200 back, 5 B; took 1.5 ms");
}

TEST(Tiers, SlotsLinkAndTheRest) {
    device_figures figures = {};
    Process p;
    p.set(GAUGE_DEVICE_SLOTS_BYTES, 48 * MIB)
        .set(GAUGE_SLOT_USES, 400)
        .set(GAUGE_SLOT_HITS, 250)
        .set(GAUGE_SLOT_PREFETCHED, 150);
    p.set(GAUGE_SLOT_IN_TIME, 225)
        .set(GAUGE_SLOT_HOME_READS, 100)
        .set(GAUGE_SLOT_COPIES, 1)
        .set(GAUGE_SLOT_COPIED_BYTES, MIB);
    p.set(GAUGE_LINK_TO_HOST_BYTES, 3 * MIB)
        .set(GAUGE_DEVICE_OUTSIDE_BYTES, 4 * MIB)
        .set(GAUGE_HOMES_REFUSED, 1);
    device_figures_add(&figures, p.counters.get());
    figures.link_rates[1] = 2.5e9;
    EXPECT_EQ(lines_of(figures),
              (std::vector<std::string>{
                  "slots: 48.0 MiB; 75% of 400 uses read a copy (50% prefetched, 75% in time), 100 the home; "
                  "1 copy, 1.0 MiB",
                  "link: 0 B to the device; 3.0 MiB to the host, up to 2.50 GB/s",
                  "outside: 4.0 MiB of model data on the device has no home, and stays there",
                  "refused: 1 home had no room anywhere",
              }));
    figures.home_reads = 400;
    figures.stale = 7;
    EXPECT_EQ(lines_of(figures)[0], "slots: 48.0 MiB; 0% of 400 uses read a copy, 400 the home; 1 copy, 1.0 "
                                    "MiB, 7 dropped after a write");
}

/* Of damaged files: every figure at its longest. */
TEST(Tiers, StepsOnTheHost) {
    device_figures figures = {};
    Process p;
    p.set(GAUGE_HOST_STEPS, 1200);
    p.set(GAUGE_HOST_STEP_BYTES, 3 << 20);
    p.set(GAUGE_HOST_STEP_WAITS, 1);
    device_figures_add(&figures, p.counters.get());
    EXPECT_EQ(lines_of(figures),
              std::vector<std::string>{
                  "steps on the host: 1,200 of a parameter, 3.0 MiB in all; streams waited 1 time"});
}

TEST(Tiers, LinesAreCut) {
    device_figures figures = {};
    Process p;
    for (int gauge = 0; gauge < GAUGE_COUNT; gauge++)
        p.set((trace_gauge)gauge, UINT64_MAX);
    for (int i = 0; i < 2; i++)
        device_figures_add(&figures, p.counters.get());
    figures.link_rates[0] = figures.link_rates[1] = 1e300;
    for (const std::string &line : lines_of(figures))
        EXPECT_LT(line.size(), (size_t)DEVICE_LINE_MAX);
    EXPECT_EQ(lines_of(figures).size(), 6u);
}

} // namespace
