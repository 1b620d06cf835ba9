#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>
#include "fixture.h"

namespace {

using TraceRecorder = TraceTest;

TEST_F(TraceRecorder, LeavesNoFileWhenNothingIsRecorded) {
    ASSERT_EQ(trace_start(directory.c_str(), 1 << 20, 3), CASTOR_OK);
    trace_name_set(TRACE_CALL, 1, "cudaMalloc");
    trace_plugin_set("gemini");
    trace_set_rank(4);
    trace_fork_child();
    trace_flush();
    EXPECT_TRUE(files("").empty());
}

TEST_F(TraceRecorder, RecordsOfSeveralThreadsComeBackInOrder) {
    constexpr uint64_t threads = 4, each = 40000; /* several segments per thread */
    ASSERT_EQ(trace_start(directory.c_str(), UINT64_C(1) << 30, 2), CASTOR_OK);
    std::vector<std::thread> running;
    for (uint64_t t = 0; t < threads; t++)
        running.emplace_back([t] {
            for (uint64_t i = 0; i < each; i++)
                trace_record_write(TRACE_CALL, (uint32_t)t, i, i + 5, i % 7, i, t, ~i);
        });
    for (std::thread &thread : running)
        thread.join();
    trace_flush();

    /* A file per segment, numbered in the order of their making: each thread's records are in order within
     * it. */
    std::map<uint64_t, std::set<uint64_t>> seen;
    for (const std::string &name : files(TRACE_SEGMENT_SUFFIX)) {
        EXPECT_EQ(name.rfind("rank-2.pid-" + std::to_string(getpid()) + ".tid-", 0), 0u) << name;
        std::map<uint64_t, uint64_t> last_of_thread;
        for (const trace_record &record : read_segment(name)) {
            if (record.kind == TRACE_THREAD)
                continue;
            ASSERT_EQ(record.kind, (uint32_t)TRACE_CALL);
            ASSERT_EQ(record.b, record.id);
            ASSERT_EQ(record.begin_ns, record.a);
            ASSERT_EQ(record.end_ns, record.a + 5);
            ASSERT_EQ(record.bytes, record.a % 7);
            ASSERT_EQ(record.c, ~record.a);
            auto last = last_of_thread.find(record.b);
            if (last != last_of_thread.end()) {
                ASSERT_EQ(record.a, last->second + 1);
            }
            last_of_thread[record.b] = record.a;
            ASSERT_TRUE(seen[record.b].insert(record.a).second);
        }
    }
    auto counters = read_only_counters();
    for (uint64_t t = 0; t < threads; t++) {
        EXPECT_EQ(seen[t].size(), each);
        EXPECT_EQ(*seen[t].rbegin(), each - 1);
        const trace_counter &counter = counters->counters[trace_slot(TRACE_CALL, (uint32_t)t)];
        EXPECT_EQ(counter.count, each);
        EXPECT_EQ(counter.ns, 5 * each);
    }
    EXPECT_EQ(counters->dropped, 0u);
    EXPECT_EQ(counters->exit_state, (uint32_t)TRACE_PROCESS_EXITED);
    EXPECT_EQ(counters->rank, 2);
}

TEST_F(TraceRecorder, IdsBeyondTheTableShareTheLastCounter) {
    trace_start(directory.c_str(), 1 << 20, 0);
    record_call(5000, 0);
    record_call(1023, 0);
    trace_record_write(TRACE_REDUCE, 77, 1, 2, 10, 0, 0, 0);
    trace_record_write((trace_record_kind)TRACE_RECORD_KIND_COUNT, 0, 1, 2, 10, 0, 0, 0);
    auto counters = read_only_counters();
    EXPECT_EQ(counted(*counters, TRACE_CALL, 1023), 2u);
    EXPECT_EQ(counted(*counters, TRACE_COLLECTIVE, 0), 0u);
    EXPECT_EQ(counted(*counters, TRACE_REDUCE, 0), 1u);
    EXPECT_EQ(read_all_records().size(), 3u);
}

TEST_F(TraceRecorder, SegmentsOfEndedThreadsAreUsedAgain) {
    trace_start(directory.c_str(), UINT64_C(1) << 30, 0);
    std::set<uint32_t> thread_ids;
    for (uint64_t i = 0; i < 60; i++)
        std::thread([&] {
            record_call(1, i);
            thread_ids.insert((uint32_t)syscall(SYS_gettid));
        }).join();
    /* join returns when the thread has cleared its id, which may be just before the kernel forgets it. */
    EXPECT_LE(files(TRACE_SEGMENT_SUFFIX).size(), 10u);
    auto records = read_records_of(TRACE_CALL);
    ASSERT_EQ(records.size(), 60u);
    for (const trace_record &record : records)
        EXPECT_EQ(thread_ids.count(record.thread), 1u);
}

TEST_F(TraceRecorder, FilesArePrivateAndLinksAreNotFollowed) {
    std::string victim = path("victim");
    close(open(victim.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    std::string taken = "rank-0.pid-" + std::to_string(getpid()) + TRACE_COUNTERS_SUFFIX;
    ASSERT_EQ(symlink(victim.c_str(), path(taken).c_str()), 0);
    mode_t before = umask(0);
    trace_start(directory.c_str(), 1 << 20, 0);
    record_call(1, 1);
    umask(before);
    struct stat status;
    ASSERT_EQ(stat(victim.c_str(), &status), 0);
    EXPECT_EQ(status.st_size, 0);
    unsigned made = 0;
    for (const std::string &name : files("")) {
        if (name == "victim" || name == taken)
            continue;
        ASSERT_EQ(lstat(path(name).c_str(), &status), 0);
        EXPECT_TRUE(S_ISREG(status.st_mode)) << name;
        EXPECT_EQ(status.st_mode & 0777u, 0600u) << name;
        EXPECT_EQ((uint64_t)status.st_blocks * 512 >= (uint64_t)status.st_size, true) << name << " has holes";
        made++;
    }
    EXPECT_EQ(made, 3u);
}

TEST_F(TraceRecorder, AForkedChildRecordsIntoFilesOfItsOwn) {
    trace_start(directory.c_str(), 1 << 20, 1);
    trace_name_set(TRACE_CALL, 1, "posix_memalign");
    record_call(1, 100);
    trace_gauge_set(GAUGE_STEPS, 9);
    run_child([] { trace_fork_child(); }); /* leaves nothing */
    EXPECT_EQ(files(TRACE_COUNTERS_SUFFIX).size(), 1u);
    run_child([] {
        trace_fork_child();
        record_call(1, 200);
        record_call(1, 201);
    });
    record_call(1, 101);
    auto names = files(TRACE_COUNTERS_SUFFIX);
    ASSERT_EQ(names.size(), 2u);
    std::unique_ptr<trace_counters> parent, child;
    for (const std::string &name : names) {
        auto counters = read_counters(name);
        (counters->pid == (uint32_t)getpid() ? parent : child) = std::move(counters);
    }
    ASSERT_TRUE(parent && child);
    EXPECT_EQ(child->parent_uid, parent->uid);
    EXPECT_NE(child->uid, parent->uid);
    EXPECT_EQ(parent->parent_uid, 0u);
    EXPECT_EQ(child->rank, 1);
    EXPECT_EQ(child->gauges[GAUGE_STEPS].last, 0u);
    EXPECT_EQ(counted(*parent, TRACE_CALL, 1), 2u);
    EXPECT_EQ(counted(*child, TRACE_CALL, 1), 2u);
    ASSERT_NE(trace_read_name(child.get(), TRACE_CALL, 1), nullptr);
    EXPECT_STREQ(trace_read_name(child.get(), TRACE_CALL, 1), "posix_memalign");
    for (const std::string &name : files(TRACE_SEGMENT_SUFFIX)) {
        bool of_parent = name.find("pid-" + std::to_string(getpid()) + ".") != std::string::npos;
        auto records = read_segment(name);
        ASSERT_EQ(records.size(), 2u);
        EXPECT_EQ(records[0].a, of_parent ? 100u : 200u);
        EXPECT_EQ(records[1].a, of_parent ? 101u : 201u);
    }
}

TEST_F(TraceRecorder, TheBoundHoldsForAllProcessesTogether) {
    constexpr uint64_t bound = 1500000, each = 20000, children = 3;
    std::vector<pid_t> pids;
    for (uint64_t child = 0; child < children; child++)
        pids.push_back(start_child([&] {
            trace_start(directory.c_str(), bound, (int)child);
            for (uint64_t i = 0; i < each; i++)
                record_call(1, i);
            trace_flush();
        }));
    for (pid_t pid : pids)
        EXPECT_EQ(wait_child(pid), 0);
    uint64_t bytes = 0;
    for (const std::string &name : files(TRACE_SEGMENT_SUFFIX)) {
        struct stat status;
        ASSERT_EQ(stat(path(name).c_str(), &status), 0);
        bytes += (uint64_t)status.st_size;
    }
    EXPECT_LE(bytes, bound);
    EXPECT_GT(bytes, bound - 65536);
    uint64_t counted_sum = 0, dropped = 0;
    bool full = false;
    for (const std::string &name : files(TRACE_COUNTERS_SUFFIX)) {
        auto counters = read_counters(name);
        counted_sum += counted(*counters, TRACE_CALL, 1);
        dropped += counters->dropped;
        full |= counters->recording == TRACE_RECORDING_FULL;
    }
    EXPECT_EQ(counted_sum, children * each);
    EXPECT_EQ(read_all_records().size() + dropped, children * each);
    EXPECT_TRUE(full);
}

TEST_F(TraceRecorder, ABoundOfZeroKeepsCountersOnly) {
    trace_start(directory.c_str(), 0, 0);
    record_call(1, 1);
    EXPECT_TRUE(files(TRACE_SEGMENT_SUFFIX).empty());
    auto counters = read_only_counters();
    EXPECT_EQ(counted(*counters, TRACE_CALL, 1), 1u);
    EXPECT_EQ(counters->recording, (uint32_t)TRACE_RECORDING_OFF);
    EXPECT_EQ(counters->dropped, 0u);
}

TEST_F(TraceRecorder, ARelativeDirectoryIsTheOneAtTheStart) {
    std::vector<char> before(4096);
    ASSERT_NE(getcwd(before.data(), before.size()), nullptr);
    ASSERT_EQ(chdir(directory.c_str()), 0);
    EXPECT_EQ(trace_start(".", 1 << 20, 0), CASTOR_OK);
    ASSERT_EQ(chdir("/"), 0);
    record_call(1, 1);
    ASSERT_EQ(chdir(before.data()), 0);
    EXPECT_EQ(files(TRACE_SEGMENT_SUFFIX).size(), 1u);
}

TEST_F(TraceRecorder, AMissingDirectoryCostsOneLineAndKeepsErrno) {
    run_child([&] {
        testing::internal::CaptureStderr();
        trace_start(path("missing").c_str(), 1 << 20, 0);
        errno = ECHILD;
        for (uint64_t i = 0; i < 1000; i++)
            record_call(1, i);
        trace_gauge_set(GAUGE_STEPS, 1);
        EXPECT_EQ(errno, ECHILD);
        std::string text = testing::internal::GetCapturedStderr();
        EXPECT_NE(text.find("missing: no such directory"), std::string::npos) << text;
        EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
    });
    EXPECT_TRUE(files("").empty());
}

TEST_F(TraceRecorder, AFileSizeLimitEndsTheRecordingAndNotTheProcess) {
    run_child([&] {
        testing::internal::CaptureStderr();
        struct rlimit limit = {300000, 300000};
        EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
        trace_start(directory.c_str(), UINT64_C(1) << 30, 0);
        for (uint64_t i = 0; i < 5000; i++)
            record_call(1, i);
        EXPECT_NE(testing::internal::GetCapturedStderr().find("file size limit"), std::string::npos);
    });
    auto counters = read_only_counters();
    EXPECT_EQ(counters->recording, (uint32_t)TRACE_RECORDING_FAILED);
    EXPECT_EQ(counted(*counters, TRACE_CALL, 1), 5000u);
    EXPECT_EQ(read_all_records().size() + counters->dropped, 5000u);
    EXPECT_GT(read_all_records().size(), 0u);
}

TEST_F(TraceRecorder, GaugesKeepTheLastValueAndTheMaximum) {
    trace_start(directory.c_str(), 1 << 20, 0);
    trace_gauge_set(GAUGE_PARAM_BYTES, 10);
    trace_gauge_set(GAUGE_PARAM_BYTES, 30);
    trace_gauge_set(GAUGE_PARAM_BYTES, 20);
    trace_gauge_set((trace_gauge)GAUGE_COUNT, 1);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([] {
            for (int i = 0; i < 1000; i++)
                trace_counter_add(GAUGE_WAIT_NS, 3);
        });
    for (std::thread &thread : threads)
        thread.join();
    auto counters = read_only_counters();
    EXPECT_EQ(counters->gauges[GAUGE_PARAM_BYTES].last, 20u);
    EXPECT_EQ(counters->gauges[GAUGE_PARAM_BYTES].max, 30u);
    EXPECT_EQ(counters->gauges[GAUGE_WAIT_NS].last, 12000u);
    EXPECT_EQ(counters->gauges[GAUGE_WAIT_NS].max, 12000u);
    EXPECT_TRUE(files(TRACE_SEGMENT_SUFFIX).empty());
}

TEST_F(TraceRecorder, NamesAndTextsArriveWhetherSetBeforeOrAfterTheFile) {
    trace_start(directory.c_str(), 1 << 20, -1);
    trace_name_set(TRACE_CALL, 7, "cudaMalloc");
    trace_name_set(TRACE_COLLECTIVE, 7, "allreduce");
    trace_plugin_set("gemini");
    record_call(7, 1);
    trace_name_set(TRACE_WAIT, 3, "step barrier");
    trace_name_set(TRACE_REDUCE, 5, "out of range, ignored");
    trace_set_rank(5);
    trace_outcome_set(std::string(2000, 'x').c_str());
    trace_outcome_set("passthrough: sparse gradients");
    EXPECT_EQ(files(TRACE_COUNTERS_SUFFIX)[0].rfind("rank-unknown.", 0), 0u);
    auto counters = read_only_counters();
    EXPECT_STREQ(trace_read_name(counters.get(), TRACE_CALL, 7), "cudaMalloc");
    EXPECT_STREQ(trace_read_name(counters.get(), TRACE_COLLECTIVE, 7), "allreduce");
    EXPECT_STREQ(trace_read_name(counters.get(), TRACE_WAIT, 3), "step barrier");
    EXPECT_EQ(trace_read_name(counters.get(), TRACE_REDUCE, 0), nullptr);
    EXPECT_STREQ(counters->plugin, "gemini");
    EXPECT_STREQ(counters->outcome, "passthrough: sparse gradients");
    EXPECT_EQ(counters->rank, 5);
    EXPECT_NE(strstr(counters->command, program_invocation_short_name), nullptr) << counters->command;
}

std::atomic<int> signals_taken;

TEST_F(TraceRecorder, ASignalHandlerMayRecord) {
    trace_start(directory.c_str(), UINT64_C(1) << 30, 0);
    struct sigaction action = {}, before;
    action.sa_handler = [](int) {
        record_call(2, 0);
        signals_taken++;
    };
    action.sa_flags = SA_RESTART;
    signals_taken = 0;
    ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
    struct itimerval every = {{0, 200}, {0, 200}}, never = {};
    setitimer(ITIMER_REAL, &every, nullptr);
    uint64_t written = 0;
    for (; written < 2000000 && signals_taken < 100; written++)
        record_call(1, written);
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before, nullptr);
    auto counters = read_only_counters();
    EXPECT_EQ(counted(*counters, TRACE_CALL, 1), written);
    EXPECT_LE(counted(*counters, TRACE_CALL, 2), (uint64_t)signals_taken);
    EXPECT_EQ(read_all_records().size() + counters->dropped,
              counted(*counters, TRACE_CALL, 1) + counted(*counters, TRACE_CALL, 2));
}

TEST_F(TraceRecorder, RecordsTakeNoHeapAndAtMostASegmentTooMuchDisk) {
    constexpr uint64_t records = 100000;
    trace_start(directory.c_str(), UINT64_C(1) << 30, 0);
    size_t before = mallinfo2().uordblks;
    for (uint64_t i = 0; i < records; i++)
        record_call(1, i);
    EXPECT_EQ(mallinfo2().uordblks, before);
    uint64_t bytes = 0;
    for (const std::string &name : files(TRACE_SEGMENT_SUFFIX)) {
        struct stat status;
        ASSERT_EQ(stat(path(name).c_str(), &status), 0);
        bytes += (uint64_t)status.st_size;
    }
    EXPECT_LT(bytes, records * sizeof(trace_record) + 2 * 1048576);
}

} // namespace
