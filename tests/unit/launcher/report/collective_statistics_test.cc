#include <cmath>
#include "tests/unit/trace/fixture.h"
#include "fixture.h"

extern "C" {
#include "launcher/report/collective_statistics.h"
}

namespace {

constexpr uint64_t MS = 1000000;

struct Call {
    uint32_t id, group;
    uint64_t begin_ms, end_ms, bytes;
    uint32_t size = 0; /* of the group, when the record tells it */
};

/* What a rank tells of one of its groups. */
struct Told {
    uint32_t number;
    uint64_t identity;
    uint32_t rank, size;
};

enum { ALLREDUCE = 4, BROADCAST = 5, ALLGATHER = 6, SCATTER = 7 };

class ReportCollectives : public TraceTest {
  protected:
    report data{};
    const uint64_t base = soon_ns();

    void TearDown() override {
        report_free(&data);
        TraceTest::TearDown();
    }
    void record(int rank, const std::vector<Call> &calls, const std::vector<Told> &groups = {}) const {
        run_child([&] {
            trace_start(directory.c_str(), 64 << 20, rank);
            trace_name_set(TRACE_COLLECTIVE, ALLREDUCE, "allreduce");
            trace_name_set(TRACE_COLLECTIVE, BROADCAST, "broadcast");
            trace_name_set(TRACE_COLLECTIVE, ALLGATHER, "_allgather_base");
            trace_name_set(TRACE_COLLECTIVE, SCATTER, "scatter");
            trace_gauge_set(GAUGE_STEPS, 1);
            for (const Told &group : groups)
                trace_record_write(TRACE_PROCESS_GROUP, 0, base, base, 0, group.number, group.identity,
                                   (uint64_t)group.size << 32 | group.rank);
            for (const Call &call : calls)
                trace_record_write(TRACE_COLLECTIVE, call.id, base + call.begin_ms * MS,
                                   base + call.end_ms * MS, call.bytes, 6,
                                   call.group | (uint64_t)call.size << 32, call.bytes / 4);
            trace_flush();
        });
    }
    const report_collectives &read() {
        EXPECT_TRUE(report_read(&data, directory.c_str()));
        return *data.matched;
    }
    const report_class &only_class(const std::string &operation) {
        const report_class *found = nullptr;
        for (size_t i = 0; i < data.matched->class_count; i++)
            if (operation == data.matched->operations[data.matched->classes[i].operation]) {
                EXPECT_EQ(found, nullptr) << "several classes of " << operation;
                found = &data.matched->classes[i];
            }
        static const report_class none{};
        EXPECT_NE(found, nullptr) << operation;
        return found == nullptr ? none : *found;
    }
};

TEST_F(ReportCollectives, BusBandwidthAndLateness) {
    /* Rank 1 comes 30 ms late; the transfer itself takes 10 ms. */
    record(0, {{ALLREDUCE, 0, 0, 40, 8 << 20}, {ALLREDUCE, 0, 100, 110, 8 << 20}});
    record(1, {{ALLREDUCE, 0, 30, 40, 8 << 20}, {ALLREDUCE, 0, 100, 110, 8 << 20}});
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.group_count, 1u);
    EXPECT_EQ(collectives.groups[0].size, 2u);
    const report_class &line = only_class("allreduce");
    EXPECT_EQ(line.count, 4u);
    EXPECT_EQ(line.matched, 4u);
    EXPECT_EQ(line.late_ns, 30 * MS);
    EXPECT_STREQ(report_size_class_label(line.size_class), "4 to 64 MiB");
    EXPECT_NEAR(line.bus_bandwidth, 4 * (8 << 20) / 0.070, 1);
    EXPECT_NEAR(line.transfer_bus_bandwidth, 4 * (8 << 20) / 0.040, 1);
}

TEST_F(ReportCollectives, FactorsAreNcclsTests) {
    EXPECT_DOUBLE_EQ(report_bus_factor("allreduce", 4), 1.5);
    EXPECT_DOUBLE_EQ(report_bus_factor("allreduce_coalesced", 2), 1);
    EXPECT_DOUBLE_EQ(report_bus_factor("ncclAllReduce", 8), 1.75);
    EXPECT_DOUBLE_EQ(report_bus_factor("_reduce_scatter_base", 4), 0.75);
    EXPECT_DOUBLE_EQ(report_bus_factor("ncclReduceScatter", 4), 0.75);
    EXPECT_DOUBLE_EQ(report_bus_factor("_allgather_base", 4), 3); /* the payload is one of four parts */
    EXPECT_DOUBLE_EQ(report_bus_factor("alltoall_base", 4), 0.75);
    EXPECT_DOUBLE_EQ(report_bus_factor("broadcast", 4), 1);
    EXPECT_DOUBLE_EQ(report_bus_factor("reduce", 4), 1);
    EXPECT_DOUBLE_EQ(report_bus_factor("barrier", 4), 0);
    EXPECT_DOUBLE_EQ(report_bus_factor("monitoredBarrier", 4), 0);
    EXPECT_DOUBLE_EQ(report_bus_factor("allreduce", 1), 0);
    EXPECT_DOUBLE_EQ(report_bus_factor("something else", 4), 0);
    EXPECT_FALSE(report_is_synchronous("broadcast"));
    EXPECT_TRUE(report_is_synchronous("reduce_scatter"));
}

TEST_F(ReportCollectives, OneNumberMayBeSeveralGroups) {
    /* World is group 0 on all; ranks 0 and 1, and ranks 2 and 3, have a group each, and both call it their group 1. */
    for (int rank = 0; rank < 4; rank++) {
        std::vector<Call> calls;
        for (uint64_t i = 0; i < 10; i++) {
            uint64_t late = rank < 2 ? 0 : 40;
            calls.push_back({ALLREDUCE, 0, i * 200, i * 200 + 10, 4096});
            calls.push_back({ALLREDUCE, 1, i * 200 + 20 + late, i * 200 + 30 + late, 1024});
        }
        record(rank, calls);
    }
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.group_count, 3u);
    EXPECT_STREQ(collectives.groups[0].label, "0");
    EXPECT_EQ(collectives.groups[0].size, 4u);
    EXPECT_STREQ(collectives.groups[1].label, "1: ranks 0-1");
    EXPECT_STREQ(collectives.groups[2].label, "1: ranks 2-3");
    EXPECT_EQ(collectives.groups[2].size, 2u);
    EXPECT_EQ(collectives.class_count, 3u);
    for (size_t i = 0; i < collectives.match_count; i++)
        EXPECT_EQ(collectives.matches[i].instances, 10u);
}

TEST_F(ReportCollectives, GroupsOfOneIdentityAreOneWhateverTheirNumbersAndTimes) {
    /* Enqueued, not waited for: rank 1 does all of its collectives long after rank 0 has done its own. */
    std::vector<Call> early, late;
    for (uint64_t i = 0; i < 5; i++) {
        early.push_back({ALLREDUCE, 0, i * 10, i * 10 + 1, 4096});
        early.push_back({ALLREDUCE, 1, i * 10 + 2, i * 10 + 3, 512});
        late.push_back({ALLREDUCE, 1, 1000 + i * 10, 1000 + i * 10 + 1, 4096});
        late.push_back({ALLREDUCE, 0, 1000 + i * 10 + 2, 1000 + i * 10 + 3, 512});
    }
    record(0, early, {{0, 0xaa, 0, 2}, {1, 0xbb, 0, 2}});
    record(1, late, {{1, 0xaa, 1, 2}, {0, 0xbb, 1, 2}});
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.group_count, 2u);
    EXPECT_STREQ(collectives.groups[0].label, "0");
    EXPECT_STREQ(collectives.groups[1].label, "1");
    ASSERT_EQ(collectives.match_count, 2u);
    for (size_t i = 0; i < collectives.match_count; i++)
        EXPECT_EQ(collectives.matches[i].instances, 5u);
    ASSERT_EQ(collectives.class_count, 2u);
    for (size_t i = 0; i < 2; i++) {
        const report_class &line = collectives.classes[i];
        EXPECT_EQ(collectives.groups[line.group].process_count, 2u);
        EXPECT_EQ(line.bytes, line.group == 0 ? 2u * 5 * 4096 : 2u * 5 * 512);
    }
}

TEST_F(ReportCollectives, GroupsOfOtherIdentitiesAreApart) {
    /* At the same times, with the same sizes: nothing else tells them apart. */
    for (int rank : {0, 1, 2, 3})
        record(rank, {{ALLREDUCE, 0, 0, 10, 4096}}, {{0, rank < 2 ? 0xaau : 0xbbu, (uint32_t)rank % 2, 2}});
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.group_count, 2u);
    EXPECT_STREQ(collectives.groups[0].label, "0: ranks 0-1");
    EXPECT_STREQ(collectives.groups[1].label, "0: ranks 2-3");
    EXPECT_EQ(collectives.groups[0].size, 2u);
}

TEST_F(ReportCollectives, AGroupTellsItsSizeWithoutAnIdentity) {
    record(3, {{ALLREDUCE, 2, 0, 10, 1 << 20}}, {{2, 0, 3, 8}});
    EXPECT_EQ(read().groups[0].size, 8u);
    EXPECT_STREQ(data.matched->groups[0].label, "2");
}

TEST_F(ReportCollectives, TheRecordsWordOnTheSizeOfAGroupCounts) {
    /* Only one of the group's eight ranks left a trace. */
    record(3, {{ALLREDUCE, 2, 0, 10, 1 << 20, 8}});
    EXPECT_EQ(read().groups[0].size, 8u);
    const report_class &line = only_class("allreduce");
    EXPECT_NEAR(line.bus_bandwidth, (1 << 20) * 1.75 / 0.010, 1);
    EXPECT_EQ(line.matched, 0u);
    EXPECT_EQ(line.transfer_bus_bandwidth, 0);
}

TEST_F(ReportCollectives, RanksWithOtherSizesAreMatchedInTheirOrder) {
    /* The root of a scatter contributes both parts. */
    record(0, {{SCATTER, 0, 0, 10, 2048}, {SCATTER, 0, 100, 110, 4096}});
    record(1, {{SCATTER, 0, 1, 10, 1024}, {SCATTER, 0, 101, 110, 2048}});
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.match_count, 1u);
    EXPECT_EQ(collectives.matches[0].sequences, 2u);
    EXPECT_EQ(collectives.matches[0].instances, 2u);
    for (size_t j = 0; j < 2; j++) {
        const report_sequence &sequence = collectives.sequences[j];
        EXPECT_LT(collectives.entries[sequence.first_entry].begin_job_ns,
                  collectives.entries[sequence.first_entry + 1].begin_job_ns);
    }
}

/* Damaged records may tell two sizes of one group: one rank then has as many keys of a size as the group has ranks. */
TEST_F(ReportCollectives, ARankThatTellsTwoSizesOfItsGroupHasOneSequence) {
    record(0, {{ALLREDUCE, 0, 0, 10, 64, 2}, {ALLREDUCE, 0, 20, 30, 128, 2}, {ALLREDUCE, 0, 40, 50, 64, 3}});
    record(1,
           {{ALLREDUCE, 0, 0, 10, 256, 2}, {ALLREDUCE, 0, 20, 30, 128, 2}, {ALLREDUCE, 0, 40, 50, 256, 3}});
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.match_count, 1u);
    EXPECT_EQ(collectives.matches[0].instances, 3u);
    ASSERT_EQ(collectives.sequence_count, 2u);
    for (size_t i = 0; i < 2; i++) {
        const report_sequence &sequence = collectives.sequences[i];
        EXPECT_EQ(sequence.entries, 3u);
        for (size_t j = 0; j < sequence.entries; j++)
            EXPECT_EQ(collectives.keys[collectives.entries[sequence.first_entry + j].key].process,
                      sequence.process);
    }
}

TEST_F(ReportCollectives, TheHighestRankThereIs) {
    record(0, {{ALLREDUCE, 0, 0, 10, 64}});
    record(INT32_MAX, {{ALLREDUCE, 0, 20, 30, 64}});
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.group_count, 2u);
    EXPECT_STREQ(collectives.groups[1].label, "0: ranks 2147483647");
}

TEST_F(ReportCollectives, ARankThatDiedEarlyIsMatchedAsFarAsItCame) {
    record(0, {{ALLREDUCE, 0, 0, 10, 64}, {ALLREDUCE, 0, 20, 30, 64}, {ALLREDUCE, 0, 40, 50, 64}});
    record(1, {{ALLREDUCE, 0, 0, 10, 64}});
    const report_collectives &collectives = read();
    ASSERT_EQ(collectives.match_count, 1u);
    EXPECT_EQ(collectives.matches[0].instances, 1u);
    EXPECT_EQ(only_class("allreduce").count, 4u);
    EXPECT_EQ(only_class("allreduce").matched, 2u);
}

TEST_F(ReportCollectives, OverlappingOnesGetLanesAndTurns) {
    record(0, {{ALLREDUCE, 0, 0, 50, 64}, {ALLREDUCE, 0, 10, 20, 128}, {ALLREDUCE, 0, 30, 60, 256}});
    record(1, {{ALLREDUCE, 0, 5, 50, 64}, {ALLREDUCE, 0, 9, 20, 128}, {ALLREDUCE, 0, 30, 60, 256}});
    read();
    report_collectives_tracks(data.matched);
    const report_entry *entries = data.matched->entries;
    ASSERT_EQ(data.matched->entry_count, 6u);
    unsigned tracks[] = {0, 1, 1, 0, 1, 1};
    report_turn turns[] = {REPORT_TURN_FIRST, REPORT_TURN_LAST,  REPORT_TURN_FIRST,
                           REPORT_TURN_LAST,  REPORT_TURN_FIRST, REPORT_TURN_LAST};
    for (int i = 0; i < 6; i++) {
        EXPECT_EQ((unsigned)entries[i].track, tracks[i]) << i;
        EXPECT_EQ((int)entries[i].turn, (int)turns[i]) << i;
    }
}

TEST_F(ReportCollectives, ManySizesAndGroupsEndSoon) {
    run_child([&] {
        trace_start(directory.c_str(), 64 << 20, 0);
        trace_gauge_set(GAUGE_STEPS, 1);
        for (uint64_t i = 0; i < 250000; i++)
            trace_record_write(TRACE_COLLECTIVE, 4, base + i, base + i + 1, i, 6, i % 1000, 0);
        trace_flush();
    });
    const report_collectives &collectives = read();
    uint64_t count = 0;
    for (size_t i = 0; i < collectives.class_count; i++)
        count += collectives.classes[i].count;
    EXPECT_EQ(count, 250000u);
    EXPECT_EQ(collectives.group_count, 1000u);
    EXPECT_LE(collectives.key_count, 210000u);
}

TEST(ReportSeries, KeepsPeaksAndCarriesValues) {
    auto series = std::make_unique<report_series>();
    report_series_begin(series.get(), 1000);
    report_series_add(series.get(), 1000, 5);
    report_series_add(series.get(), 1000 + 3 * MS, 7);
    report_series_add(series.get(), 0, 9); /* before the origin */
    uint64_t values[REPORT_SERIES_BUCKETS];
    report_series_fill(series.get(), values, 6);
    EXPECT_EQ(std::vector<uint64_t>(values, values + 6), (std::vector<uint64_t>{9, 9, 9, 7, 7, 7}));
    EXPECT_EQ(report_series_used(series.get()), 4u);
    for (uint64_t i = 0; i < 5000; i++)
        report_series_add(series.get(), 1000 + i * MS, i == 4321 ? 1000000 : 3);
    EXPECT_EQ(series->width_ns, 8 * MS);
    uint32_t used = report_series_used(series.get());
    EXPECT_EQ(used, 625u);
    report_series_fill(series.get(), values, used);
    EXPECT_EQ(*std::max_element(values, values + used), 1000000u);
    EXPECT_EQ(values[4321 / 8], 1000000u);
    EXPECT_EQ(values[4321 / 8 + 1], 3u);
    report_series_add(series.get(), UINT64_MAX, 1); /* a damaged time */
    EXPECT_LE(report_series_used(series.get()), REPORT_SERIES_BUCKETS);
}

} // namespace
