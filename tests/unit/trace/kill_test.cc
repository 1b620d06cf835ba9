/* A process is killed at any moment of its recording, and its trace is read. */
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <atomic>
#include <chrono>
#include <iostream>
#include <random>
#include <thread>
#include "tests/unit/launcher/report/fixture.h"
#include "fixture.h"

extern "C" {
#include "launcher/common/live_read.h"
#include "trace/live.h"
#include "trace/sampler.h"
}

namespace {

/* What the process and the test share. `finished`: records of a writer that are complete. Names are those of ids that no
 * other test names, since a process keeps them. */
enum { WRITERS = 4, GENERATION = 3000, NAME_FIRST = 500, NAMES = 400, CPU_US_MAX = 40000 };
struct Progress {
    std::atomic<uint64_t> finished[WRITERS];
};

std::string name_of(uint32_t id) {
    return "function-" + std::to_string(id) + std::string(id % 50, '.');
}

class TraceKill : public TraceTest {
  protected:
    static inline std::string names[NAMES];
    Progress *progress = nullptr;

    void SetUp() override {
        TraceTest::SetUp();
        for (uint32_t id = 0; id < NAMES; id++)
            names[id] = name_of(id);
        void *memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(memory, MAP_FAILED);
        progress = new (memory) Progress{};
    }
    void TearDown() override {
        munmap(progress, 4096);
        TraceTest::TearDown();
    }

    /* Every field follows from the writer and the number. */
    static trace_record expected(uint64_t writer, uint64_t i) {
        trace_record record{};
        record.kind = TRACE_CALL;
        record.id = (uint32_t)(writer * 100 + i % 100);
        record.begin_ns = i * 10;
        record.end_ns = record.begin_ns + 1 + writer;
        record.bytes = i * 3 + writer;
        record.a = i;
        record.b = writer;
        record.c = ~i ^ writer << 32;
        return record;
    }

    /* Threads that end and leave their segments to the next ones. */
    void write_records(uint64_t writer) const {
        for (uint64_t first = 0;; first += GENERATION)
            std::thread([&] {
                for (uint64_t i = first; i < first + GENERATION; i++) {
                    trace_record r = expected(writer, i);
                    trace_record_write(TRACE_CALL, r.id, r.begin_ns, r.end_ns, r.bytes, r.a, r.b, r.c);
                    progress->finished[writer].store(i + 1, std::memory_order_release);
                }
            }).join();
    }
    static void write_the_rest() {
        const int group = 0;
        live_process_group_announce("all", nullptr, 0);
        live_process_group_made(&group, 0, 2);
        for (uint32_t i = 0;; i++) {
            trace_name_set(TRACE_CALL, NAME_FIRST + i % NAMES, names[i % NAMES].c_str());
            trace_gauge_set(GAUGE_STEPS, i + 1);
            trace_counter_add(GAUGE_MICRO_STEPS, 1);
            live_wait *wait =
                live_collective_begin(&group, "allreduce", (i + 1) * UINT64_C(8), trace_now_ns());
            live_wait_end(wait);
            if (i == NAMES)
                trace_set_rank(7);
        }
    }
    /* By the kernel, when the process has used so much processor time: always in the middle of its work, however slow
     * and busy the machine is. */
    static void kill_after(unsigned cpu_us) {
        struct sigevent event {};
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGKILL;
        timer_t timer;
        struct itimerspec when {};
        when.it_value.tv_nsec = 1 + 1000 * (long)cpu_us;
        if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) != 0 ||
            timer_settime(timer, 0, &when, nullptr) != 0)
            _exit(1);
    }
    pid_t start_process(unsigned writers, unsigned cpu_us) const {
        return start_child([&, writers, cpu_us] {
            kill_after(cpu_us);
            trace_start(directory.c_str(), UINT64_C(1) << 30, -1);
            sample_start();
            std::vector<std::thread> threads;
            for (unsigned writer = 0; writer < writers; writer++)
                threads.emplace_back([this, writer] { write_records(writer); });
            write_the_rest();
        });
    }

    void check_records(unsigned writers) const {
        std::vector<std::vector<trace_record>> of_writer(WRITERS);
        for (const trace_record &record : read_records_of(TRACE_CALL)) {
            ASSERT_LT(record.b, writers);
            of_writer[record.b].push_back(record);
        }
        for (uint64_t writer = 0; writer < writers; writer++) {
            auto &records = of_writer[writer];
            std::sort(records.begin(), records.end(),
                      [](auto &left, auto &right) { return left.a < right.a; });
            for (size_t i = 0; i < records.size(); i++) {
                trace_record wanted = expected(writer, i);
                wanted.thread = records[i].thread;
                ASSERT_NE(wanted.thread, 0u);
                ASSERT_EQ(memcmp(&records[i], &wanted, sizeof wanted), 0) << writer << " " << i;
            }
            ASSERT_GE(records.size(), progress->finished[writer].load()) << "records are missing";
        }
    }
    void check_counters(const trace_counters &counters) const {
        for (uint64_t writer = 0; writer < WRITERS; writer++) {
            uint64_t count = 0;
            for (uint32_t id = 0; id < 100; id++)
                count += counted(counters, TRACE_CALL, (uint32_t)writer * 100 + id);
            EXPECT_GE(count, progress->finished[writer].load());
        }
        for (uint32_t id = 0; id < NAMES; id++) {
            const char *name = trace_read_name(&counters, TRACE_CALL, NAME_FIRST + id);
            if (name != nullptr) {
                EXPECT_EQ(name, names[id]);
            }
        }
        for (trace_gauge gauge : {GAUGE_STEPS, GAUGE_MICRO_STEPS}) /* the last value is stored first */
            EXPECT_LE(counters.gauges[gauge].last, counters.gauges[gauge].max + 1);
        EXPECT_EQ(counters.exit_state, (uint32_t)TRACE_PROCESS_RUNNING);
    }
    void check_live() const {
        for (const std::string &name : files(LIVE_SUFFIX)) {
            static live_file live;
            int fd = open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
            bool valid = live_read(fd, &live);
            close(fd);
            for (uint32_t i = 0; valid && i < LIVE_WAITS_MAX; i++) {
                const live_wait &wait = live.waits[i];
                if (wait.begin_ns == 0)
                    continue;
                EXPECT_STREQ(wait.what, "allreduce");
                EXPECT_EQ(wait.bytes, wait.ordinal * 8);
                EXPECT_STREQ(live.groups[wait.group].name, "all");
            }
        }
    }

    int run_report(const char *format, std::string &out, std::string &error) {
        std::string path = directory;
        char command[] = "report", option[] = "--format", value[8];
        snprintf(value, sizeof value, "%s", format);
        char *argv[] = {command, path.data(), option, value, nullptr};
        testing::internal::CaptureStdout();
        testing::internal::CaptureStderr();
        int status = report_main(4, argv);
        out = testing::internal::GetCapturedStdout();
        error = testing::internal::GetCapturedStderr();
        return status;
    }
    void check_reports(bool any) {
        std::string out, error;
        EXPECT_EQ(run_report("text", out, error), any ? 0 : 2) << error;
        EXPECT_EQ(run_report("json", out, error), any ? 0 : 2) << error;
        if (!any)
            return;
        EXPECT_EQ(error, "");
        Json json = Json::parse(out);
        EXPECT_EQ(json["trace"]["records"].count(), read_all_records().size());
        EXPECT_EQ(json["outcome"].text, "died");
    }
    /* Whether the process came as far as to say who it is. */
    bool has_counters() const {
        trace_counters counters;
        char message[TRACE_READ_MESSAGE_MAX] = "";
        trace_read_status status = TRACE_READ_EMPTY;
        for (const std::string &name : files(TRACE_COUNTERS_SUFFIX)) {
            int fd = open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
            status = trace_read_counters(fd, &counters, message);
            close(fd);
            EXPECT_NE(status, TRACE_READ_BAD) << message;
        }
        return status == TRACE_READ_OK;
    }
};

/* `--gtest_random_seed=N` repeats a run, as far as the moments of the kills can be repeated. */
TEST_F(TraceKill, WhatWasCommittedIsThereAndWhole) {
    using clock = std::chrono::steady_clock;
    unsigned seed = (unsigned)testing::GTEST_FLAG(random_seed);
    if (seed == 0)
        seed = std::random_device()() % 99999 + 1;
    std::cout << "seed " << seed << std::endl;
    std::mt19937 random(seed);
    auto end = clock::now() + std::chrono::seconds(8);
    unsigned with_records = 0;
    for (unsigned round = 0; round < 60 && (round < 12 || clock::now() < end) && !HasFailure(); round++) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
        for (auto &finished : progress->finished)
            finished = 0;
        /* One of four early by the clock, mostly while the files are being made. */
        unsigned writers = 1 + random() % WRITERS;
        pid_t pid = start_process(writers, (unsigned)(random() % CPU_US_MAX));
        if (round % 4 == 0) {
            usleep((useconds_t)(random() % 5000));
            ASSERT_EQ(kill(pid, SIGKILL), 0);
        }
        EXPECT_EQ(WTERMSIG(wait_child(pid)), SIGKILL);

        bool any = has_counters();
        check_records(writers);
        if (any)
            check_counters(*read_only_counters());
        check_live();
        check_reports(any);
        with_records += !read_records_of(TRACE_CALL).empty();
        for (const std::string &name : files(""))
            unlink(path(name).c_str());
    }
    EXPECT_GE(with_records, 1u);
}

} // namespace
