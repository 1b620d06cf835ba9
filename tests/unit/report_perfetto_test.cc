#include <set>
#include "report_fixture.h"
#include "trace_fixture.h"

namespace {

constexpr uint64_t MS = 1000000;

class ReportPerfetto : public TraceTest {
  protected:
    const uint64_t base = soon_ns();

    Json read() const {
        report data;
        EXPECT_TRUE(report_read(&data, directory.c_str()));
        char *text = nullptr;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        report_write_perfetto(&data, out);
        fclose(out);
        report_free(&data);
        Json json = Json::parse(std::string(text, size));
        free(text);
        return json;
    }
    static std::vector<const Json *> of_phase(const Json &trace, const std::string &phase) {
        std::vector<const Json *> found;
        for (const Json &event : trace["traceEvents"].items)
            if (event["ph"].text == phase)
                found.push_back(&event);
        return found;
    }
    void record_rank(int rank) const {
        trace_start(directory.c_str(), 1 << 20, rank);
        trace_name_set(TRACE_CALL, 3, "posix\"memalign\\");
        trace_name_set(TRACE_COLLECTIVE, 4, "allreduce");
        trace_name_set(TRACE_WAIT, 2, "a step's \xc3\xa4nd");
        for (uint64_t i = 0; i < 3; i++) {
            uint64_t now = base + i * 100 * MS + ((uint64_t)rank * 7 + i) % 3 * 1000;
            trace_record_write(TRACE_CALL, 3, now, now + 1234567, 4096, 0xffffffffffffffff, 0, 0);
            trace_record_write(TRACE_COLLECTIVE, 4, now + 2 * MS, now + 6 * MS, 1 << 20, 7, 0, 0);
            trace_record_write(TRACE_WAIT, 2, now + 7 * MS, now + 8 * MS, 0, 0, 0, 0);
            trace_record_write(TRACE_BACKWARD, 0, now, now + 9 * MS, 0, 1, 0, 0);
            trace_record_write(TRACE_STEP, 0, now + 10 * MS, now + 12 * MS, 0, 0, 0, 0);
            trace_record_write(TRACE_MEMORY, GAUGE_PARAM_BYTES, now, now, 1000 + i, 0, 0, 0);
        }
        trace_record_write(TRACE_EVENT, 1, base, base, 0, 0, 0, 0);
        trace_flush();
    }
};

TEST_F(ReportPerfetto, EveryKindOfRecordIsDrawn) {
    for (int rank : {0, 1})
        run_child([&] { record_rank(rank); });
    Json trace = read();
    EXPECT_EQ(trace["otherData"]["outcome"].text, "exited");
    std::map<std::string, int> slices, counters;
    for (const Json *event : of_phase(trace, "X")) {
        slices[(*event)["name"].text]++;
        EXPECT_GE((*event)["dur"].number, 0);
    }
    EXPECT_EQ(slices["posix\"memalign\\"], 6);
    EXPECT_EQ(slices["allreduce"], 6);
    EXPECT_EQ(slices["a step's \xc3\xa4nd"], 6);
    EXPECT_EQ(slices["backward"], 6);
    EXPECT_EQ(slices["optimizer step"], 6);
    EXPECT_EQ(slices["step 2"], 2);
    EXPECT_EQ(slices["step 3"], 2);
    for (const Json *event : of_phase(trace, "C"))
        counters[(*event)["name"].text] += (int)(*event)["args"]["bytes"].number;
    EXPECT_EQ(counters, (std::map<std::string, int>{{"memory: param", 2 * (1000 + 1001 + 1002)}}));
    EXPECT_EQ(of_phase(trace, "i").size(), 2u);
}

TEST_F(ReportPerfetto, EveryTrackHasAName) {
    for (int rank : {0, 1})
        run_child([&] { record_rank(rank); });
    Json trace = read();
    std::set<std::pair<double, double>> named;
    std::map<double, std::string> processes;
    for (const Json *event : of_phase(trace, "M"))
        if ((*event)["name"].text == "thread_name") {
            EXPECT_TRUE(named.insert({(*event)["pid"].number, (*event)["tid"].number}).second)
                << "named twice";
        } else if ((*event)["name"].text == "process_name")
            processes[(*event)["pid"].number] = (*event)["args"]["name"].text;
    ASSERT_EQ(processes.size(), 2u);
    EXPECT_EQ(processes[0].rfind("rank 0 (", 0), 0u);
    EXPECT_EQ(processes[1].rfind("rank 1 (", 0), 0u);
    for (const char *phase : {"X", "i"})
        for (const Json *event : of_phase(trace, phase))
            EXPECT_TRUE(named.count({(*event)["pid"].number, (*event)["tid"].number}))
                << (*event)["name"].text;
}

TEST_F(ReportPerfetto, CollectivesAreJoinedOverTheRanks) {
    for (int rank : {0, 1, 2})
        run_child([&] { record_rank(rank); });
    Json trace = read();
    std::map<double, std::string> phases;
    std::map<double, double> last;
    for (const char *phase : {"s", "t", "f"})
        for (const Json *event : of_phase(trace, phase)) {
            double id = (*event)["id"].number, time = (*event)["ts"].number;
            phases[id] += phase;
            EXPECT_GE(time, last[id]) << "a flow goes forward";
            last[id] = time;
            bool inside = false;
            for (const Json *slice : of_phase(trace, "X"))
                inside |= (*slice)["pid"].number == (*event)["pid"].number &&
                          (*slice)["tid"].number == (*event)["tid"].number && (*slice)["ts"].number <= time &&
                          time < (*slice)["ts"].number + (*slice)["dur"].number;
            EXPECT_TRUE(inside) << "a flow starts and ends in slices";
        }
    ASSERT_EQ(phases.size(), 3u);
    for (const auto &flow : phases)
        EXPECT_EQ(flow.second, "stf");
}

TEST_F(ReportPerfetto, TimesAreExactToTheNanosecond) {
    run_child([&] { record_rank(0); });
    Json trace = read();
    for (const Json *event : of_phase(trace, "X"))
        if ((*event)["cat"].text == "call") {
            EXPECT_DOUBLE_EQ((*event)["dur"].number, 1234.567);
        }
}

} // namespace
