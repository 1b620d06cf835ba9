#include <set>
#include <thread>
#include "tests/unit/trace/fixture.h"
#include "fixture.h"

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

TEST_F(ReportPerfetto, WorkOnStreamsIsOnTracksOfTheirOwn) {
    enum { LAUNCH = 20, COPY, WAIT, MALLOC, REDUCE };
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        trace_name_set(TRACE_CALL, LAUNCH, "cudaLaunchKernel");
        trace_name_set(TRACE_CALL, COPY, "cudaMemcpyAsync");
        trace_name_set(TRACE_CALL, WAIT, "cudaStreamSynchronize");
        trace_name_set(TRACE_CALL, MALLOC, "cudaMalloc");
        trace_name_set(TRACE_CALL, REDUCE, "ncclAllReduce");
        trace_name_set(TRACE_COLLECTIVE, REDUCE, "allreduce");
        uint64_t now = base;
        auto call = [&](uint32_t id, uint64_t stream, uint64_t device = 0, uint64_t result = 0) {
            trace_record_write(TRACE_CALL, id, now, now + MS, 0, stream, 0, result << 32 | device);
            now += 2 * MS;
        };
        call(LAUNCH, 0);
        call(COPY, 1);
        call(LAUNCH, 0, 1);
        call(LAUNCH, 0x5500aa00);
        call(LAUNCH, 0x5500aa00, 1); /* the handle says which stream, whatever the thread's device */
        call(WAIT, 0x5500aa00);
        call(MALLOC, 0);
        call(LAUNCH, 0, 0, 719); /* failed: on no stream */
        trace_record_write(TRACE_COLLECTIVE, REDUCE, now, now + MS, 4096, 6, 0, 0x5500bb00);
        trace_flush();
    });
    Json trace = read();
    std::map<double, std::string> tracks;
    for (const Json *event : of_phase(trace, "M"))
        if ((*event)["name"].text == "thread_name")
            tracks[(*event)["tid"].number] = (*event)["args"]["name"].text;
    std::map<std::string, std::vector<std::string>> found;
    for (const Json *event : of_phase(trace, "X")) {
        std::string track = tracks[(*event)["tid"].number];
        found[track.rfind("stream", 0) == 0 || track.rfind("default", 0) == 0 ? track
              : track.rfind("collectives", 0) == 0                            ? "collectives"
                                                                              : "thread"]
            .push_back((*event)["name"].text);
    }
    using names = std::vector<std::string>;
    EXPECT_EQ(found["default stream of device 0"], (names{"cudaLaunchKernel", "cudaMemcpyAsync"}));
    EXPECT_EQ(found["default stream of device 1"], (names{"cudaLaunchKernel"}));
    EXPECT_EQ(found["stream 0x5500aa00"], (names{"cudaLaunchKernel", "cudaLaunchKernel"}));
    EXPECT_EQ(found["stream 0x5500bb00"], (names{"ncclAllReduce"}));
    EXPECT_EQ(found["collectives"], (names{"allreduce"}));
    EXPECT_EQ(found["thread"], (names{"cudaStreamSynchronize", "cudaMalloc", "cudaLaunchKernel"}));
    EXPECT_EQ(found.size(), 6u);
}

TEST_F(ReportPerfetto, ThreadsThatShareAStreamDoNotOverlapOnOneTrack) {
    enum { LAUNCH = 20 };
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        trace_name_set(TRACE_CALL, LAUNCH, "cudaLaunchKernel");
        auto launch = [&] {
            for (uint64_t i = 0; i < 3; i++)
                trace_record_write(TRACE_CALL, LAUNCH, base + i * 10 * MS, base + i * 10 * MS + 9 * MS, 0,
                                   0x5500aa00, 0, 0);
        };
        launch();
        std::thread(launch).join();
        trace_flush();
    });
    Json trace = read();
    std::map<double, std::vector<double>> begins;
    for (const Json *event : of_phase(trace, "X"))
        begins[(*event)["tid"].number].push_back((*event)["ts"].number);
    ASSERT_EQ(begins.size(), 2u);
    for (const auto &track : begins)
        EXPECT_EQ(track.second.size(), 3u);
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
