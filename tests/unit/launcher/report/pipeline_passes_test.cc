#include "tests/unit/trace/fixture.h"
#include "fixture.h"

extern "C" {
#include "launcher/report/pipeline_passes.h"
}

namespace {

constexpr uint64_t MS = 1000000;
enum { F, B, E, W }; /* forward, backward, forward only, the parameters' part of a backward */

/* A pass of `ms` milliseconds at `at` milliseconds of its batch. */
struct Pass {
    uint32_t id, microbatch, part;
    uint64_t at, ms;
};

class ReportPipeline : public TraceTest {
  protected:
    const uint64_t base = soon_ns();
    uint32_t stages = 2, parts = 2, microbatches = 2;
    bool on_device = false, split = false;

    void record(uint32_t batch, const std::vector<Pass> &passes) const {
        for (const Pass &one : passes) {
            trace_pass pass = {};
            pass.id = one.id;
            pass.microbatch = one.microbatch;
            pass.microbatches = microbatches;
            pass.virtual_stage = one.part;
            pass.virtual_stages = parts;
            pass.batch = batch;
            pass.stages = stages;
            pass.on_device = on_device;
            pass.split = split;
            uint64_t a, b, c, begin_ns = base + (batch * 1000 + one.at) * MS;
            trace_pass_pack(&pass, &a, &b, &c);
            trace_record_write(TRACE_PASS, one.id, begin_ns, begin_ns + one.ms * MS, 0, a, b, c);
        }
    }
    void rank(int number, const std::function<void()> &body) const {
        run_child([&] {
            trace_start(directory.c_str(), 1 << 20, number);
            trace_record_write(TRACE_BACKWARD, 0, base, base, 0, 0, 0, 0); /* a rank is who trained */
            body();
            trace_flush();
        });
    }
    std::string write(void (*format)(const report *, FILE *)) const {
        report data;
        EXPECT_TRUE(report_read(&data, directory.c_str()));
        char *text = nullptr;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        format(&data, out);
        fclose(out);
        report_free(&data);
        std::string result(text, size);
        free(text);
        return result;
    }
    std::string text() const {
        std::string all = write(report_write_text);
        size_t begin = all.find("\nPipeline (");
        return begin == std::string::npos ? "" : all.substr(begin + 1, all.find("\n\n", begin) - begin - 1);
    }
    Json json() const { return Json::parse(write(report_write_json)); }

    /* 1F1B of 2 stages and 2 microbatches: 48 ms, of which stage 0 runs 36 and stage 1 30. */
    static std::vector<Pass> stage(uint32_t number) {
        if (number == 0)
            return {{F, 0, 0, 0, 8}, {F, 1, 0, 8, 8}, {B, 0, 0, 24, 10}, {B, 1, 0, 38, 10}};
        return {{F, 0, 1, 8, 6}, {B, 0, 1, 14, 10}, {F, 1, 1, 24, 6}, {B, 1, 1, 30, 8}};
    }
    void run_ranks(uint32_t batches = 1) const {
        for (int number : {0, 1})
            rank(number, [&] {
                for (uint32_t batch = 0; batch < batches; batch++) {
                    record(batch, stage((uint32_t)number));
                }
            });
    }
};

/* Backwards of two parts: a batch has three passes of each microbatch, and one without the third is not complete. */
TEST_F(ReportPipeline, BackwardsInTwoParts) {
    split = true;
    stages = parts = 1;
    microbatches = 1;
    rank(0, [&] {
        record(0, {{F, 0, 0, 0, 8}, {B, 0, 0, 8, 8}, {W, 0, 0, 20, 4}});
        record(1, {{F, 0, 0, 0, 8}, {B, 0, 0, 8, 8}});
    });
    Json drawn = json()["pipeline"];
    EXPECT_EQ(drawn["batch"].number, 1);
    std::string labels;
    for (const Json &pass : drawn["ranks"][0]["passes"].items)
        labels += pass["label"].text + " ";
    EXPECT_EQ(labels, "F0 B0 W0 ");
    EXPECT_NEAR(drawn["ranks"][0]["idle"].number, 4.0 / 24, 1e-9);
}

TEST_F(ReportPipeline, TheChartHasEachPassAtItsTime) {
    run_ranks();
    std::string dots8(16, '.'), chart = text();
    EXPECT_EQ(chart, "Pipeline (2 stages, 2 microbatches; batch 1, 48.0 ms; idle: of the last 1 batch)\n"
                     "  rank 0    F0==============F1==============" +
                         dots8 +
                         "B0==================........B1==================\n"
                         "  rank 1    " +
                         dots8 + "F0==========B0==================F1==========B1==============" +
                         std::string(20, '.') +
                         "\n"
                         "  rank  stage   idle  ideal\n"
                         "  0         0  25.0%  33.3%\n"
                         "  1         1  37.5%  33.3%");
}

TEST_F(ReportPipeline, JsonHasTheSamePasses) {
    run_ranks(3);
    Json report = json(), &pipeline = report.members["pipeline"];
    EXPECT_EQ(pipeline["stages"].count(), 2u);
    EXPECT_EQ(pipeline["parts"].count(), 2u);
    EXPECT_EQ(pipeline["microbatches"].count(), 2u);
    EXPECT_EQ(pipeline["batch"].count(), 3u);
    EXPECT_EQ(pipeline["idle_of_batches"].count(), 3u);
    EXPECT_EQ(pipeline["on_device"].number, 0);
    EXPECT_DOUBLE_EQ(pipeline["seconds"].number, 0.048);
    EXPECT_NEAR(pipeline["ideal_idle"].number, 1.0 / 3, 1e-9);
    EXPECT_NEAR(pipeline["ranks"][0]["idle"].number, 0.25, 1e-9);
    EXPECT_NEAR(pipeline["ranks"][1]["idle"].number, 0.375, 1e-9);
    std::vector<Pass> expected = stage(1);
    for (size_t i = 0; i < 4; i++) {
        const Json &pass = pipeline["ranks"][1]["passes"][i];
        EXPECT_EQ(pass["label"].text,
                  (expected[i].id == F ? "F" : "B") + std::to_string(expected[i].microbatch));
        EXPECT_NEAR(pass["at_seconds"].number, (double)expected[i].at / 1e3, 1e-9);
        EXPECT_NEAR(pass["seconds"].number, (double)expected[i].ms / 1e3, 1e-9);
    }
    EXPECT_EQ(pipeline["ranks"][1]["passes"].items.size(), 4u);
}

TEST_F(ReportPipeline, TheLastBatchThatAllRanksHave) {
    for (int number : {0, 1})
        rank(number, [&] {
            for (uint32_t batch = 0; batch < 40; batch++) {
                std::vector<Pass> passes = stage((uint32_t)number);
                passes.resize(batch == 39 && number == 1 ? 3 : 4); /* stage 1 was killed in it */
                record(batch, passes);
            }
        });
    Json report = json();
    EXPECT_EQ(report["pipeline"]["batch"].count(), 39u);
    EXPECT_EQ(report["pipeline"]["idle_of_batches"].count(), (uint64_t)REPORT_BATCHES_KEPT - 1);
}

/* Segments are read in no order of time. */
TEST_F(ReportPipeline, EarlierBatchesDoNotReplaceLaterOnes) {
    for (int number : {0, 1})
        rank(number, [&] {
            std::vector<Pass> passes = stage((uint32_t)number), begin = passes;
            begin.resize(2);
            record(REPORT_BATCHES_KEPT, begin);
            record(0, passes);
            record(REPORT_BATCHES_KEPT, {passes[2], passes[3]});
        });
    Json report = json();
    EXPECT_EQ(report["pipeline"]["batch"].count(), (uint64_t)REPORT_BATCHES_KEPT + 1);
    EXPECT_NEAR(report["pipeline"]["seconds"].number, 0.048, 1e-9);
}

TEST_F(ReportPipeline, TrainingIsDrawnBeforeEvaluation) {
    for (int number : {0, 1})
        rank(number, [&] {
            std::vector<Pass> passes = stage((uint32_t)number);
            record(4, passes);
            for (uint32_t batch = 5; batch < 30; batch++)
                record(batch, {{E, 0, (uint32_t)number, 0, 8}, {E, 1, (uint32_t)number, 8, 8}});
        });
    EXPECT_EQ(json()["pipeline"]["batch"].count(), 5u);
}

TEST_F(ReportPipeline, EvaluationAloneIsDrawn) {
    for (uint32_t number : {0u, 1u})
        rank((int)number, [&] {
            record(0, {{E, 0, number, 10 * number, 10}, {E, 1, number, 10 * number + 10, 10}});
        });
    Json report = json();
    EXPECT_EQ(report["pipeline"]["ranks"][0]["passes"][1]["label"].text, "F1");
    EXPECT_NEAR(report["pipeline"]["ranks"][0]["idle"].number, 1.0 / 3, 1e-9);
}

TEST_F(ReportPipeline, PartsOfInterleavedStages) {
    parts = 4;
    for (uint32_t number : {0u, 1u})
        rank((int)number, [&] {
            std::vector<Pass> passes;
            for (uint32_t i = 0; i < 8; i++)
                passes.push_back({i < 4 ? F : B, i % 2, number + 2 * (i / 2 % 2), 10 * i, 10});
            record(0, passes);
        });
    Json report = json();
    EXPECT_NEAR(report["pipeline"]["ideal_idle"].number, 1.0 / 5, 1e-9);
    EXPECT_EQ(report["pipeline"]["ranks"][1]["passes"][2]["label"].text, "F0:3");
    EXPECT_EQ(report["pipeline"]["ranks"][1]["stage"].count(), 1u);
    std::string events = write(report_write_perfetto);
    for (const char *track : {"stage 0, part 0", "stage 1, part 1", "stage 0, part 2", "stage 1, part 3"})
        EXPECT_NE(events.find(std::string("pipeline, ") + track), std::string::npos) << track;
    EXPECT_NE(text().find("  rank 1    F0:1========F1:1========F0:3========F1:3========B0:1"),
              std::string::npos)
        << text();
}

/* Labels never go away or change places for want of room: they move to the right, and beyond it the line ends. */
TEST_F(ReportPipeline, ShortPassesKeepTheirLabels) {
    stages = parts = 1;
    microbatches = 100;
    rank(0, [&] {
        std::vector<Pass> passes;
        for (uint32_t i = 0; i < 100; i++)
            passes.push_back({F, i, 0, i, 1});
        for (uint32_t i = 0; i < 100; i++)
            passes.push_back({B, i, 0, 100 + i, 1});
        record(0, passes);
    });
    std::string chart = text(), line = chart.substr(chart.find("F0")), expected;
    for (uint32_t i = 0; expected.size() + 3 <= 160; i++)
        expected += "F" + std::to_string(i);
    EXPECT_EQ(line.substr(0, line.find('\n')), expected + ">");
    EXPECT_NE(chart.find("\n  > more passes follow"), std::string::npos) << chart;
    EXPECT_NE(chart.find("  0         0  0.0%   0.0%"), std::string::npos) << chart;
}

TEST_F(ReportPipeline, TimesOfADeviceAreTheHosts) {
    on_device = true;
    run_ranks();
    EXPECT_NE(text().find("these are the host's times"), std::string::npos);
    EXPECT_EQ(json()["pipeline"]["on_device"].number, 1);
}

TEST_F(ReportPipeline, NothingIsSaidOfJobsWithoutPipelines) {
    rank(0, [] {});
    EXPECT_EQ(text(), "");
    EXPECT_EQ(write(report_write_perfetto).find("pipeline, "), std::string::npos);
    EXPECT_EQ(json()["pipeline"].kind, Json::NULL_VALUE);
    for (const Json &note : json()["notes"].items)
        EXPECT_EQ(note.text.find("ipeline"), std::string::npos);
}

TEST_F(ReportPipeline, ANoteIfNoBatchIsComplete) {
    rank(0, [&] { record(0, {{F, 0, 0, 0, 8}}); });
    EXPECT_EQ(text(), "");
    EXPECT_NE(write(report_write_text).find("no pipeline is drawn: none of the last 16 batches"),
              std::string::npos);
}

TEST_F(ReportPipeline, DamagedRecordsAreNoPasses) {
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        trace_record_write(TRACE_BACKWARD, 0, base, base, 0, 0, 0, 0);
        const uint64_t one = UINT64_C(1) << 32, most = UINT64_MAX;
        const uint64_t words[][4] = {
            {3, one, one, one},         {0, one | 1, one, one}, {0, one, one | 1, one},
            {0, one, one, 0},           {0, 0, one, one},       {0, one, 0, one},
            {0, one, 3 * one, 2 * one}, {0, most, most, most},  {0, most - 1, one, one}};
        for (auto &word : words)
            trace_record_write(TRACE_PASS, (uint32_t)word[0], base, base + 1, 0, word[1], word[2], word[3]);
        trace_record_write(TRACE_PASS, TRACE_PASS_FORWARD_ONLY, base + 1, base, 0, one, one, one);
        trace_flush();
    });
    EXPECT_EQ(text(), "");
    EXPECT_TRUE(json()["notes"].items.empty());
}

TEST_F(ReportPipeline, PerfettoHasATrackForEachStage) {
    run_ranks();
    Json trace = Json::parse(write(report_write_perfetto));
    std::map<std::pair<double, double>, std::string> tracks;
    std::map<std::string, std::string> slices;
    for (const Json &event : trace["traceEvents"].items)
        if (event["name"].text == "thread_name")
            tracks[{event["pid"].number, event["tid"].number}] = event["args"]["name"].text;
    for (const Json &event : trace["traceEvents"].items)
        if (event["ph"].text == "X" && event["cat"].text == "pass") {
            slices[tracks[{event["pid"].number, event["tid"].number}]] +=
                event["name"].text + " " + std::to_string((int)(event["dur"].number / 1000)) + ",";
            EXPECT_EQ(event["args"]["batch"].count(), 1u);
        }
    EXPECT_EQ(slices, (std::map<std::string, std::string>{{"pipeline, stage 0", "F0 8,F1 8,B0 10,B1 10,"},
                                                          {"pipeline, stage 1", "F0 6,B0 10,F1 6,B1 8,"}}));
}

} // namespace
