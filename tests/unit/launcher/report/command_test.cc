#include <signal.h>
#include "tests/unit/trace/fixture.h"
#include "fixture.h"

extern "C" {
#include "launcher/common/text_table.h"
#include "trace/sampled.h"
}

namespace {

constexpr uint64_t MIB = 1 << 20;

class Report : public TraceTest {
  protected:
    int status = -1;
    std::string out, error;

    void run(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), "report");
        std::vector<char *> argv;
        for (std::string &argument : arguments)
            argv.push_back(argument.data());
        argv.push_back(nullptr);
        testing::internal::CaptureStdout();
        testing::internal::CaptureStderr();
        status = report_main((int)arguments.size(), argv.data());
        out = testing::internal::GetCapturedStdout();
        error = testing::internal::GetCapturedStderr();
    }
    Json json() {
        run({directory, "--format", "json"});
        return Json::parse(out);
    }
    void expect_out(const std::string &part) const {
        EXPECT_NE(out.find(part), std::string::npos) << "no \"" << part << "\" in\n" << out;
    }
    void expect_error(const std::string &part) const {
        EXPECT_NE(error.find(part), std::string::npos) << "no \"" << part << "\" in\n" << error;
    }

    /* What one rank of a job with two optimizers records. */
    void record_rank(int rank, uint64_t max_bytes = 64 * MIB) const {
        trace_start(directory.c_str(), max_bytes, rank);
        trace_plugin_set("gemini");
        trace_name_set(TRACE_CALL, 3, "posix_memalign");
        trace_name_set(TRACE_CALL, 4, "_ZN4c10d16ProcessGroupGloo9allreduceERSt6vectorIN2at6TensorESaIS3_EE");
        trace_name_set(TRACE_COLLECTIVE, 4, "allreduce");
        trace_name_set(TRACE_WAIT, 2, "step");
        trace_gauge_set(GAUGE_HOOKS_FOUND, 30);
        trace_gauge_set(GAUGE_HOOKS_MISSED, 1);
        trace_gauge_set(GAUGE_MODEL_NUMEL, 1000000);
        trace_gauge_set(GAUGE_CHUNK_SIZE, 32 * MIB);
        trace_gauge_set(GAUGE_CHUNK_COUNT, 3);
        const uint64_t begin = trace_now_ns();
        for (uint64_t step = 0; step < 10; step++) {
            uint64_t now = begin + step * 2000000;
            trace_record_write(TRACE_CALL, 3, now, now + 100, 4096, 0, 0, 0);
            trace_record_write(TRACE_COLLECTIVE, 4, now, now + 1000, 1 << 20, 7, 0, 0);
            trace_record_write(TRACE_BACKWARD, 0, now, now + 10, 0, 1, 0, 0);
            trace_record_write(TRACE_STEP, 0, now, now + 10, 0, 0, 0, 0);
            if (step % 2 == 0)
                trace_record_write(TRACE_STEP, 0, now + 20, now + 30, 0, 1, 0, 0);
            trace_record_write(TRACE_WAIT, 2, now, now + 500, 0, 0, 0, 0);
            trace_counter_add(GAUGE_WAIT_NS, 500);
        }
        trace_gauge_set(GAUGE_STORE_PARAM_BYTES, 4000000);
        trace_gauge_set(GAUGE_STORE_GRAD_BYTES, 4000000);
        trace_gauge_set(GAUGE_STORE_OPTIM_BYTES, 8000000);
        trace_gauge_set(GAUGE_PRIVATE_BYTES, 500000);
        trace_gauge_set(GAUGE_PRIVATE_BYTES, 100000);
        trace_gauge_set(GAUGE_PARAM_BYTES, 3 * MIB);
        trace_gauge_set(GAUGE_PARAM_BYTES, 2 * MIB);
        trace_gauge_set(GAUGE_PSS_BYTES, 700 * MIB);
    }
    void run_job() const {
        for (int rank : {1, 0})
            run_child([&] {
                record_rank(rank);
                trace_flush();
            });
    }
};

TEST_F(Report, JsonHasEveryFigureOfTheJob) {
    run_job();
    Json report = json();
    EXPECT_EQ(status, 0);
    EXPECT_EQ(error, "");
    EXPECT_EQ(report["plugin"].text, "gemini");
    EXPECT_EQ(report["outcome"].text, "exited");
    EXPECT_EQ(report["job"].text, directory.substr(directory.rfind('/') + 1));
    ASSERT_EQ(report["ranks"].items.size(), 2u);
    for (size_t i = 0; i < 2; i++) {
        const Json &rank = report["ranks"][i];
        EXPECT_EQ(rank["rank"].count(), i);
        EXPECT_EQ(rank["state"].text, "exited");
        EXPECT_EQ(rank["steps"].count(), 10u);
        EXPECT_EQ(rank["optimizer_steps"].count(), 15u);
        EXPECT_EQ(rank["micro_steps"].count(), 10u);
        EXPECT_NEAR(rank["step_seconds"].number, 0.002, 1e-9);
        EXPECT_EQ(rank["peak_bytes"]["param"].count(), 3 * MIB);
        EXPECT_EQ(rank["peak_bytes"]["grad"].count(), 0u);
        EXPECT_EQ(rank["peak_bytes"]["optim"].count(), 0u);
        EXPECT_EQ(rank["peak_bytes"]["other"].count(), 0u);
        EXPECT_EQ(rank["pss_peak_bytes"].count(), 700 * MIB);
    }
    const Json &model = report["model_data"];
    EXPECT_EQ(model["numel"].count(), 1000000u);
    EXPECT_EQ(model["bytes"].count(), 16200000u);
    EXPECT_DOUBLE_EQ(model["bytes_per_param"].number, 16.2);
    EXPECT_EQ(model["peak_bytes"].count(), 17000000u);
    ASSERT_EQ(model["nodes"].items.size(), 1u);
    EXPECT_EQ(model["nodes"][0]["private"].count(), 200000u);
    EXPECT_EQ(report["collectives"]["allreduce"]["count"].count(), 20u);
    EXPECT_EQ(report["collectives"]["allreduce"]["bytes"].count(), 20u << 20);
    EXPECT_NEAR(report["collectives"]["allreduce"]["seconds"].number, 20e-6, 1e-12);
    EXPECT_EQ(report["calls"].members.size(), 2u);
    EXPECT_EQ(report["calls"]["posix_memalign"]["bytes"].count(), 20 * 4096u);
    EXPECT_EQ(report["waits"]["step"]["count"].count(), 20u);
    EXPECT_EQ(report["chunks"]["size"].count(), 32 * MIB);
    EXPECT_EQ(report["chunks"]["count"].count(), 3u);
    EXPECT_EQ(report["chunks"]["moves"].count(), 0u);
    EXPECT_EQ(report["chunks"]["bytes_moved"].count(), 0u);
    EXPECT_EQ(report["coverage"]["hooked"].count(), 30u);
    EXPECT_EQ(report["coverage"]["missed"].count(), 1u);
    EXPECT_EQ(report["trace"]["records"].count(), 110u);
    EXPECT_EQ(report["trace"]["truncated"].kind, Json::BOOLEAN);
    EXPECT_EQ(report["trace"]["truncated"].number, 0);
    EXPECT_EQ(report["notes"].items.size(), 0u);
}

TEST_F(Report, TextIsForPeople) {
    run_job();
    run({directory});
    EXPECT_EQ(status, 0);
    expect_out("plugin    gemini");
    expect_out("ranks     2 on 1 node");
    expect_out("outcome   exited");
    expect_out("10 (15)");
    expect_out("2.0 ms");
    expect_out("700.0 MiB");
    expect_out("sum of the PSS peaks: 1.4 GiB");
    expect_out("1,000,000");
    expect_out("16.20");
    expect_out("allreduce");
    expect_out("c10d::ProcessGroupGloo::allreduce ");
    expect_out("30 functions hooked, 1 missed");
    expect_out("3 of 32.0 MiB");
    /* As in traces of recorders that knew no phases. */
    expect_out("Where the time went: not known (this trace has no phases)");
    EXPECT_EQ(json()["ranks"][0]["phases"].kind, Json::NULL_VALUE);
    run({directory});
    EXPECT_EQ(out.find('\x1b'), std::string::npos);
}

TEST_F(Report, FunctionsThatNobodySawAreNamedWithTheReason) {
    run_child([&] {
        record_rank(0);
        const char *const names[] = {"libm:cos", "libm:sin", "libz:crc32"};
        const struct trace_counter counted[] = {
            {2, TRACE_ALSO_FOUND, 0}, {0, TRACE_ALSO_FOUND, 0}, {0, 0, 0}};
        for (uint32_t id = 0; id < 3; id++) {
            trace_name_set(TRACE_ALSO, id, names[id]);
            counters_get()->counters[trace_slot(TRACE_ALSO, id)] = counted[id];
        }
        trace_flush();
    });
    Json report = json();
    EXPECT_EQ(report["coverage"]["also"].members.size(), 3u);
    EXPECT_EQ(report["coverage"]["also"]["libm:cos"]["places"].count(), 2u);
    EXPECT_EQ(report["coverage"]["also"]["libm:cos"]["missed"].kind, Json::NULL_VALUE);
    run({directory});
    expect_out("  not seen: libm:sin (CASTOR_TRACE_ALSO), since nothing calls it that could be replaced");
    expect_out("  not seen: libz:crc32 (CASTOR_TRACE_ALSO), since its library was not loaded\n");
    EXPECT_EQ(out.find("libm:cos"), std::string::npos);
}

TEST_F(Report, ShortCallsAreTimedBySample) {
    for (int rank : {0, 1})
        run_child([&] {
            record_rank(rank); /* 10 long calls of 0.1 us */
            sampled_name(SAMPLED_POSIX_MEMALIGN, "posix_memalign");
            for (int i = 0; i < 10; i++)
                sampled_recorded(SAMPLED_POSIX_MEMALIGN);
            for (int i = 0; i < 640; i++)
                sampled_add(SAMPLED_POSIX_MEMALIGN, 3, 0, 8);
            for (int i = 0; i < 5; i++)
                counters_add(counters_get(), TRACE_SAMPLE, SAMPLED_POSIX_MEMALIGN, 0, 200);
            trace_flush();
        });
    Json report = json();
    EXPECT_EQ(report["calls"]["posix_memalign"]["count"].count(), 1300u);
    EXPECT_NEAR(report["calls"]["posix_memalign"]["seconds"].number, 2 * (10 * 100e-9 + 640 * 200e-9), 1e-12);
    EXPECT_EQ(report["calls"]["posix_memalign"]["estimated"].kind, Json::BOOLEAN);
    EXPECT_EQ(report["calls"].members.size(), 2u);
    run({directory});
    expect_out("~258.0 us");
    expect_out("  ~ estimated: short calls are timed by sample\n");
    run({directory, directory});
    expect_out("posix_memalign ~");
}

TEST_F(Report, ACallBelowATenthOfAMillisecondIsNotSlow) {
    run_job();
    EXPECT_EQ(json()["slowest_calls"].items.size(), 0u);
    run({directory});
    EXPECT_EQ(out.find("Slowest calls"), std::string::npos);
    EXPECT_EQ(out.find("~"), std::string::npos);
    run_child([&] {
        trace_start(directory.c_str(), MIB, 2);
        trace_record_write(TRACE_CALL, 3, 5000, 5000 + 99999, 0, 0, 0, 0);
        trace_record_write(TRACE_CALL, 3, 5000, 5000 + 100000, 0, 0, 0, 0);
    });
    Json report = json();
    ASSERT_EQ(report["slowest_calls"].items.size(), 1u);
    EXPECT_NEAR(report["slowest_calls"][0]["seconds"].number, 100e-6, 1e-12);
    run({directory});
    expect_out("Slowest calls");
}

TEST_F(Report, WhatIsKnownOfTheRunIsShown) {
    FILE *file = fopen(path(TRACE_ABOUT_NAME).c_str(), "we");
    ASSERT_NE(file, nullptr);
    fputs("castor 9.8\noption-set CASTOR_PLUGIN=gemini\noption-environment CASTOR_OFFLOAD_DIR=/a "
          "b\x1b=c\nhost node7\n"
          "memory 1073741824\nlater fact\nno-value\n\ngpu 2 x H100\ngpu L4\n",
          file);
    fclose(file);
    for (int rank : {1, 0})
        run_child([&] {
            record_rank(rank);
            trace_about_add(TRACE_ABOUT_TORCH, "2.11.0+cpu");
            trace_about_add(TRACE_ABOUT_PYTHON, rank == 0 ? "3.12\n.1" : "3.12.1");
            trace_flush();
        });
    Json report = json();
    ASSERT_EQ(report["options"].items.size(), 2u);
    EXPECT_EQ(report["options"][0]["from"].text, "command line");
    EXPECT_EQ(report["options"][1]["name"].text, "CASTOR_OFFLOAD_DIR");
    EXPECT_EQ(report["options"][1]["value"].text, "/a b?=c");
    EXPECT_EQ(report["options"][1]["from"].text, "environment");
    EXPECT_EQ(report["versions"]["castor"].text, "9.8");
    EXPECT_EQ(report["versions"]["torch"].text, "2.11.0+cpu");
    EXPECT_EQ(report["versions"]["python"].text, "3.12.1, 3.12?.1");
    EXPECT_EQ(report["machine"]["memory_bytes"].count(), 1u << 30);
    EXPECT_EQ(report["machine"]["kernel"].kind, Json::NULL_VALUE);
    EXPECT_EQ(report["machine"]["gpus"].text, "2 x H100, L4");
    run({directory});
    expect_out("\n  options   CASTOR_OFFLOAD_DIR=/a b?=c (environment)\n");
    expect_out("\n  versions  Castor 9.8, PyTorch 2.11.0+cpu, Python 3.12.1, 3.12?.1\n");
    expect_out(
        "\n  machine   node7: processor not known, cores: not known, memory: 1.0 GiB, kernel not known\n");
    expect_out("\n            GPU: 2 x H100, L4\n");
}

TEST_F(Report, AKilledRankAndAMissingOneAreNoted) {
    for (int rank : {0, 2})
        EXPECT_TRUE(WIFSIGNALED(wait_child(start_child([&] {
            record_rank(rank);
            if (rank == 0) {
                trace_flush();
                kill(getpid(), SIGKILL);
            }
            kill(getpid(), SIGKILL);
        }))));
    Json report = json();
    EXPECT_EQ(status, 0);
    EXPECT_EQ(report["outcome"].text, "died");
    EXPECT_EQ(report["ranks"][0]["state"].text, "exited");
    EXPECT_EQ(report["ranks"][1]["state"].text, "died");
    EXPECT_EQ(report["ranks"][1]["steps"].count(), 10u);
    ASSERT_EQ(report["notes"].items.size(), 2u);
    EXPECT_EQ(report["notes"][0].text.rfind("rank 2 (pid ", 0), 0u);
    EXPECT_EQ(report["notes"][1].text, "rank 1 left no trace");
}

TEST_F(Report, ManyMissingRanksAreCounted) {
    for (int rank : {1, 2000000000})
        run_child([&] {
            record_rank(rank);
            trace_flush();
        });
    Json report = json();
    ASSERT_EQ(report["ranks"].items.size(), 2u);
    ASSERT_EQ(report["notes"].items.size(), 17u);
    EXPECT_EQ(report["notes"][0].text, "rank 0 left no trace");
    EXPECT_EQ(report["notes"][15].text, "rank 16 left no trace");
    EXPECT_EQ(report["notes"][16].text, "and 1999999983 more ranks below the highest one left no trace");
}

TEST_F(Report, ARunningJobIsShownAsItIs) {
    record_rank(0);
    Json report = json();
    EXPECT_EQ(report["outcome"].text, "running");
    EXPECT_EQ(report["ranks"][0]["state"].text, "running");
}

TEST_F(Report, TheOneProcessOfAPlainScriptIsRankZero) {
    record_rank(-1);
    trace_outcome_set("passthrough: the script has no optimizer");
    Json report = json();
    ASSERT_EQ(report["ranks"].items.size(), 1u);
    EXPECT_EQ(report["ranks"][0]["rank"].count(), 0u);
    EXPECT_EQ(report["outcome"].text, "passthrough: the script has no optimizer");
}

TEST_F(Report, WorkersAndLaunchersAreNoRanks) {
    /* torchrun itself loads torch and never trains; nobody has named its function 9. */
    run_child([&] {
        trace_start(directory.c_str(), MIB, -1);
        record_call(9, 1);
    });
    /* DataLoader workers. */
    run_child([&] {
        record_rank(0);
        run_child([] {
            trace_fork_child();
            record_call(3, 1);
        });
        trace_flush();
    });
    Json report = json();
    ASSERT_EQ(report["ranks"].items.size(), 1u);
    EXPECT_EQ(report["ranks"][0]["steps"].count(), 10u);
    EXPECT_EQ(report["trace"]["processes"].count(), 3u);
    EXPECT_EQ(report["calls"]["posix_memalign"]["count"].count(), 11u);
    EXPECT_EQ(report["calls"]["call-9"]["count"].count(), 1u);
}

TEST_F(Report, AProcessThatTheAgentDidNotReachIsTheOutcome) {
    FILE *file = fopen(path("passthrough").c_str(), "we");
    ASSERT_NE(file, nullptr);
    fputs("process 7: the agent was\x1b not reached\nprocess 8: neither\n", file);
    fclose(file);
    run({directory});
    EXPECT_EQ(status, 2);
    expect_error("holds no trace; passthrough: the agent was? not reached");
    run_child([&] {
        trace_start(directory.c_str(), MIB, 0);
        record_call(3, 1);
        trace_flush();
    });
    Json report = json();
    EXPECT_EQ(status, 0);
    EXPECT_EQ(report["outcome"].text, "passthrough: the agent was? not reached");
    EXPECT_EQ(report["notes"][0].text, "process 7: the agent was? not reached");
    EXPECT_EQ(report["notes"][1].text, "process 8: neither");
}

TEST_F(Report, ARefusedJobIsToldAsSuch) {
    for (const char *name : {"refused-unseen", "passthrough"}) {
        FILE *file = fopen(path(name).c_str(), "we");
        ASSERT_NE(file, nullptr);
        fprintf(file, "process 7: %s by 7\n", name);
        fclose(file);
    }
    run_child([&] {
        trace_start(directory.c_str(), MIB, 0);
        trace_outcome_set("passthrough: sparse gradients");
        record_call(3, 1);
        trace_flush();
    });
    Json report = json();
    EXPECT_EQ(report["outcome"].text, "refused: refused-unseen by 7");
    EXPECT_EQ(report["notes"][1].text, "process 7: passthrough by 7");
}

TEST_F(Report, ARestartedRankIsShownOnce) {
    run_child([&] { record_rank(0); });
    run_child([&] {
        record_rank(0);
        trace_record_write(TRACE_STEP, 0, 1, 2, 0, 0, 0, 0);
        trace_flush();
    });
    Json report = json();
    ASSERT_EQ(report["ranks"].items.size(), 1u);
    EXPECT_EQ(report["ranks"][0]["steps"].count(), 11u);
    EXPECT_EQ(report["notes"][0].text, "rank 0 ran 2 times; its figures are those of the last time");
}

TEST_F(Report, ATraceBeyondItsBoundSaysSoAndCountsOn) {
    run_child([&] {
        record_rank(0, 70000);
        for (uint64_t i = 0; i < 5000; i++)
            record_call(3, i);
        trace_flush();
    });
    Json report = json();
    EXPECT_EQ(report["trace"]["truncated"].number, 1);
    EXPECT_EQ(report["calls"]["posix_memalign"]["count"].count(), 5010u);
    EXPECT_EQ(report["trace"]["records"].count() + report["trace"]["dropped"].count(), 5055u);
    EXPECT_EQ(report["notes"][0].text.rfind("the trace reached CASTOR_TRACE_MAX (68.4 KiB)", 0), 0u);
    run({directory});
    expect_out("not complete");
}

TEST_F(Report, BadFilesAreNamedAndTheOthersReported) {
    run_job();
    ASSERT_EQ(truncate(path(files(TRACE_SEGMENT_SUFFIX)[0]).c_str(), 1000), 0);
    std::string foreign = std::string("notes") + TRACE_COUNTERS_SUFFIX,
                fifo = std::string("pipe") + TRACE_SEGMENT_SUFFIX;
    FILE *file = fopen(path(foreign).c_str(), "we");
    fputs("shopping list: eggs, milk, bread\n", file);
    fclose(file);
    ASSERT_EQ(mkfifo(path(fifo).c_str(), 0600), 0);
    Json report = json();
    EXPECT_EQ(status, 1);
    EXPECT_EQ(report["ranks"].items.size(), 2u);
    EXPECT_EQ(report["problems"].items.size(), 3u);
    expect_error(foreign + " is not a counter file of castor");
    expect_error(files(TRACE_SEGMENT_SUFFIX)[1] + " is truncated: 11 of its 55 records are there");
    expect_error(fifo + " is not a regular file");
    ASSERT_EQ(unlink(path(files(TRACE_COUNTERS_SUFFIX)[2]).c_str()), 0);
    json();
    expect_error("belongs to a process whose counter file is missing");
}

TEST_F(Report, NothingToReportIsOneLineAndStatusTwo) {
    run({directory});
    EXPECT_EQ(status, 2);
    expect_error("holds no trace");
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1);
    run({path("absent")});
    EXPECT_EQ(status, 2);
    expect_error("cannot read the log directory " + path("absent") + ": No such file or directory");
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1);
    EXPECT_EQ(out, "");

    /* The directory of all jobs: the newest one is named. */
    run_child([&] {
        for (const char *name : {"2024", "2025", "2026"})
            mkdir(path(name).c_str(), 0700);
        trace_start(path("2025").c_str(), 0, 0);
        trace_gauge_set(GAUGE_STEPS, 1);
    });
    run({directory});
    EXPECT_EQ(status, 2);
    expect_error("castor report " + directory + "/2025`");
    for (const char *name : {"2024", "2025", "2026"}) {
        std::string before = directory;
        directory = path(name);
        for (const std::string &file : files(""))
            unlink(path(file).c_str());
        directory = before;
    }
}

TEST_F(Report, CallsByRowsAndWhatTheirGathersCost) {
    for (int rank : {0, 1})
        run_child([&] {
            trace_start(directory.c_str(), 0, rank);
            trace_gauge_set(GAUGE_STEPS, 1);
            trace_gauge_set(GAUGE_CALLS_BY_ROWS, 41);
            trace_gauge_set(GAUGE_CALLS_1F1B, 40);
            trace_gauge_set(GAUGE_CALLS_WHOLE, 2);
            trace_gauge_set(GAUGE_ROWS_NS, rank ? 3500000 : 1000);
        });
    run({directory});
    expect_out("models    41 calls divided (40 in 1F1B), 2 whole on every rank; gathering rows took rank 1 "
               "3.5 ms, with its waits (");
    run({directory, "--format", "json"});
    expect_out("\"calls_by_rows\": 41");
    expect_out("\"calls_1f1b\": 40");
    expect_out("\"calls_whole\": 2");
    expect_out("\"rows_seconds\": 0.0035");
}

TEST_F(Report, CommandLineMistakes) {
    run({directory, "--format", "xml"});
    EXPECT_EQ(status, 2);
    expect_error("allowed: text, json, perfetto, html");
    run({directory, "--format"});
    EXPECT_EQ(status, 2);
    run({directory, "--fromat", "json"});
    EXPECT_EQ(status, 2);
    expect_error("--fromat");
    run({directory, "another"});
    EXPECT_EQ(status, 2);
    run({directory, "-o"});
    EXPECT_EQ(status, 2);
    expect_error("-o: a value is missing: -o FILE");
    run({directory, "-o", ""});
    EXPECT_EQ(status, 2);
    expect_error("the file's name is empty");
    run({"--help"});
    EXPECT_EQ(status, 0);
    expect_out("usage: castor report [OPTION]... [DIR [OTHER]]");
}

TEST_F(Report, WritesTheFileWholeOrNotAtAll) {
    run_job();
    std::string file = path("report.json");
    run({directory, "--format=json", "-o", file});
    EXPECT_EQ(status, 0);
    EXPECT_EQ(out, "");
    run({directory, "--format=json"});
    std::string written;
    FILE *stream = fopen(file.c_str(), "re");
    ASSERT_NE(stream, nullptr);
    for (int c; (c = fgetc(stream)) != EOF;)
        written += (char)c;
    fclose(stream);
    EXPECT_EQ(written, out);
    run({directory, "-o", path("absent") + "/file"});
    EXPECT_EQ(status, 2);
    expect_error("cannot write the report to");
    run({directory, "-o", "/dev/full"});
    EXPECT_EQ(status, 2);
    expect_error("No space left on device");
    run({directory, "-o", "/dev/null"});
    EXPECT_EQ(status, 0);
    for (const std::string &name : files(""))
        EXPECT_EQ(name.find(".partial"), std::string::npos) << name;
}

TEST(ReportFigures, AreReadable) {
    char figure[TEXT_FIGURE_MAX];
    EXPECT_STREQ(text_bytes(figure, 0), "0 B");
    EXPECT_STREQ(text_bytes(figure, 1023), "1023 B");
    EXPECT_STREQ(text_bytes(figure, 1536), "1.5 KiB");
    EXPECT_STREQ(text_bytes(figure, (1 << 20) - 1), "1.0 MiB");
    EXPECT_STREQ(text_bytes(figure, UINT64_MAX), "16.0 EiB");
    EXPECT_STREQ(text_count(figure, 999), "999");
    EXPECT_STREQ(text_count(figure, 1000), "1,000");
    EXPECT_STREQ(text_count(figure, UINT64_MAX), "18,446,744,073,709,551,615");
    EXPECT_EQ(text_whole(-3.5), 0u);
    EXPECT_EQ(text_whole(3.5), 3u);
    EXPECT_EQ(text_whole((double)UINT64_MAX), UINT64_MAX);
    EXPECT_EQ(text_whole(2.4e19), UINT64_MAX);
    EXPECT_STREQ(text_seconds(figure, 5e-8), "50 ns");
    EXPECT_STREQ(text_seconds(figure, 0.0125), "12.5 ms");
    EXPECT_STREQ(text_seconds(figure, 75), "75.00 s");
    EXPECT_STREQ(text_seconds(figure, 185), "3 min 05 s");
    EXPECT_STREQ(text_seconds(figure, 3600 * 3 + 60 * 7), "3 h 07 min");
}

TEST(ReportFigures, TablesAreAligned) {
    char *text = nullptr;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    text_table table = {};
    table.headings[0] = "name";
    table.headings[1] = "value";
    for (const char *cell : {"m\xc3\xa4rz", "1", "a longer one", "12345678"})
        text_table_add(&table, "%s", cell);
    EXPECT_TRUE(text_table_print(&table, out, 2));
    fclose(out);
    EXPECT_STREQ(text, "  name             value\n"
                       "  m\xc3\xa4rz                 1\n"
                       "  a longer one  12345678\n");
    free(text);
}

} // namespace
