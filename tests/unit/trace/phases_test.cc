/* What the time of the script's thread goes to. Sleeps are lower bounds of a phase; that all phases add up holds exactly. */
#include <signal.h>
#include <pthread.h>
#include <map>
#include "fixture.h"

extern "C" {
#include "trace/counters.h"
#include "trace/phases.h"
}

namespace {

constexpr uint64_t NAP_NS = 3000000;

void nap(int times = 1) {
    const uint64_t until = trace_now_ns() + NAP_NS * times;
    while (trace_now_ns() < until)
        usleep(500);
}
void phase(trace_phase which, bool batch = false) {
    phases_begin(which);
    nap();
    phases_end(batch);
}

class Phases : public TraceTest {
  protected:
    /* In a process of its own: its phases from the start on. Returns what they got, in ns. */
    std::map<int, uint64_t> of(const std::function<void()> &script, bool killed = false) {
        const pid_t pid = start_child([&] {
            trace_start(directory.c_str(), 1 << 20, 0);
            trace_gauge_set(GAUGE_STEPS, 0); /* makes the file */
            phases_start();
            nap();
            phases_attach();
            script();
            if (killed)
                kill(getpid(), SIGKILL);
            trace_flush();
        });
        EXPECT_EQ(WIFSIGNALED(wait_child(pid)), killed);
        counters = read_only_counters();
        std::map<int, uint64_t> found;
        uint64_t sum = 0;
        for (int id = 0; id < TRACE_PHASE_COUNT; id++)
            sum += found[id] = counters->counters[trace_slot(TRACE_PHASE, id)].ns;
        EXPECT_GE(found[TRACE_PHASE_IMPORT], NAP_NS);
        if (!killed) { /* no moment is lost, and none counts twice */
            EXPECT_LE(sum, counters->last_monotonic_ns - counters->start_monotonic_ns);
            EXPECT_EQ(counters->gauges[GAUGE_PHASE_BEGAN_NS].last - started(), sum);
        }
        EXPECT_EQ(unlink(path(files(TRACE_COUNTERS_SUFFIX)[0]).c_str()), 0);
        return found;
    }
    /* When the phases began: not before the file was made, and not after the first of them had passed. */
    uint64_t started() const {
        uint64_t sum = 0;
        for (int id = 0; id < TRACE_PHASE_COUNT; id++)
            sum += counters->counters[trace_slot(TRACE_PHASE, id)].ns;
        const uint64_t start = counters->gauges[GAUGE_PHASE_BEGAN_NS].last - sum;
        EXPECT_GE(start, counters->start_monotonic_ns);
        return start;
    }
    static void expect(const std::map<int, uint64_t> &found, const std::map<int, int> &naps) {
        for (auto [id, ns] : found) {
            const auto wanted = naps.find(id);
            if (wanted != naps.end())
                EXPECT_GE(ns, NAP_NS * wanted->second) << id;
            else
                EXPECT_EQ(ns, 0u) << id;
        }
    }

    std::unique_ptr<trace_counters> counters;
};

TEST_F(Phases, ATrainingScriptWithEvaluation) {
    const auto found = of([] {
        nap(); /* start-up */
        for (int batch = 0; batch < 2; batch++) {
            phase(TRACE_PHASE_DATA, true);
            nap(); /* forward */
            phase(TRACE_PHASE_BACKWARD);
            nap(); /* rest: clipping */
            phase(TRACE_PHASE_OPTIMIZER);
            nap(); /* rest: logging */
        }
        for (int batch = 0; batch < 2; batch++) {
            phase(TRACE_PHASE_DATA, true);
            nap(); /* evaluation */
        }
        phase(TRACE_PHASE_DATA, false);
        nap(); /* rest */
        phase(TRACE_PHASE_SAVING);
        nap(); /* rest */
        phases_begin(TRACE_PHASE_EXIT);
        nap();
    });
    expect(found, {{TRACE_PHASE_IMPORT, 1},
                   {TRACE_PHASE_START_UP, 1},
                   {TRACE_PHASE_DATA, 5},
                   {TRACE_PHASE_FORWARD, 2},
                   {TRACE_PHASE_BACKWARD, 2},
                   {TRACE_PHASE_OPTIMIZER, 2},
                   {TRACE_PHASE_EVALUATION, 2},
                   {TRACE_PHASE_SAVING, 1},
                   {TRACE_PHASE_REST, 6},
                   {TRACE_PHASE_EXIT, 1}});
    EXPECT_EQ(counters->gauges[GAUGE_PHASE].last, (uint64_t)TRACE_PHASE_EXIT);
}

TEST_F(Phases, WithoutDataLoadersWhatLeadsToABackwardIsForward) {
    const auto found = of([] {
        nap(); /* start-up, with the first forward: nothing tells them apart */
        for (int step = 0; step < 3; step++) {
            phase(TRACE_PHASE_BACKWARD);
            phase(TRACE_PHASE_OPTIMIZER);
            nap();
        }
    });
    /* The last gap led to nothing. */
    expect(found, {{TRACE_PHASE_IMPORT, 1},
                   {TRACE_PHASE_START_UP, 1},
                   {TRACE_PHASE_FORWARD, 2},
                   {TRACE_PHASE_BACKWARD, 3},
                   {TRACE_PHASE_OPTIMIZER, 3},
                   {TRACE_PHASE_REST, 1}});
}

TEST_F(Phases, ImportsAndSavesInAForwardLeaveItWhatItIs) {
    const auto found = of([] {
        phase(TRACE_PHASE_DATA, true);
        nap();
        phase(TRACE_PHASE_IMPORT);
        nap();
        phase(TRACE_PHASE_SAVING);
        nap();
        phase(TRACE_PHASE_BACKWARD);
        phase(TRACE_PHASE_DATA, true);
        nap();
        phase(TRACE_PHASE_SAVING);
        nap();
        phase(TRACE_PHASE_DATA, false);
    });
    expect(found, {{TRACE_PHASE_IMPORT, 2},
                   {TRACE_PHASE_START_UP, 0},
                   {TRACE_PHASE_DATA, 3},
                   {TRACE_PHASE_FORWARD, 3},
                   {TRACE_PHASE_BACKWARD, 1},
                   {TRACE_PHASE_EVALUATION, 2},
                   {TRACE_PHASE_SAVING, 2},
                   {TRACE_PHASE_REST, 0}});
}

TEST_F(Phases, InsideOfAnotherOneEachMomentCountsForTheInnermost) {
    const auto found = of([] {
        phase(TRACE_PHASE_DATA, true);
        phases_begin(TRACE_PHASE_OPTIMIZER); /* with a closure */
        nap();
        phase(TRACE_PHASE_BACKWARD);
        nap();
        phases_end(false);
        for (int depth = 0; depth < 20; depth++)
            phases_begin(TRACE_PHASE_DATA);
        nap();
        for (int depth = 0; depth < 25; depth++)
            phases_end(false);
    });
    expect(found, {{TRACE_PHASE_IMPORT, 1},
                   {TRACE_PHASE_START_UP, 0},
                   {TRACE_PHASE_DATA, 2},
                   {TRACE_PHASE_FORWARD, 0},
                   {TRACE_PHASE_BACKWARD, 1},
                   {TRACE_PHASE_OPTIMIZER, 2},
                   {TRACE_PHASE_REST, 0}});
}

TEST_F(Phases, OnlyTheThreadThatTrainsCounts) {
    const auto elsewhere = [](trace_phase which) {
        pthread_t thread;
        const auto run = [](void *argument) -> void * {
            const trace_phase its = *static_cast<trace_phase *>(argument);
            phase(its, its == TRACE_PHASE_DATA);
            return nullptr;
        };
        ASSERT_EQ(pthread_create(&thread, nullptr, run, &which), 0);
        pthread_join(thread, nullptr);
    };
    auto found = of([&] {
        phase(TRACE_PHASE_BACKWARD);
        for (trace_phase which : {TRACE_PHASE_DATA, TRACE_PHASE_BACKWARD, TRACE_PHASE_OPTIMIZER})
            elsewhere(which);
    });
    expect(found, {{TRACE_PHASE_IMPORT, 1},
                   {TRACE_PHASE_START_UP, 0},
                   {TRACE_PHASE_BACKWARD, 1},
                   {TRACE_PHASE_REST, 3}});
    /* The thread that imports PyTorch need not be the one that trains. */
    found = of([&] {
        phases_begin(TRACE_PHASE_DATA);
        elsewhere(TRACE_PHASE_BACKWARD);
        phases_end(true);
        phases_begin(TRACE_PHASE_EXIT);
        nap();
    });
    expect(found, {{TRACE_PHASE_IMPORT, 1},
                   {TRACE_PHASE_START_UP, 0},
                   {TRACE_PHASE_FORWARD, 0},
                   {TRACE_PHASE_BACKWARD, 1},
                   {TRACE_PHASE_REST, 0},
                   {TRACE_PHASE_EXIT, 1}});
}

TEST_F(Phases, SurviveSigkill) {
    const auto found = of(
        [] {
            phase(TRACE_PHASE_DATA, true);
            nap();
            phase(TRACE_PHASE_BACKWARD);
            phases_begin(TRACE_PHASE_OPTIMIZER);
        },
        true);
    expect(found, {{TRACE_PHASE_IMPORT, 1},
                   {TRACE_PHASE_START_UP, 0},
                   {TRACE_PHASE_DATA, 1},
                   {TRACE_PHASE_FORWARD, 1},
                   {TRACE_PHASE_BACKWARD, 1},
                   {TRACE_PHASE_REST, 0}});
    EXPECT_EQ(counters->gauges[GAUGE_PHASE].last, (uint64_t)TRACE_PHASE_OPTIMIZER);
}

TEST_F(Phases, AForkedChildBeginsAnew) {
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        phases_start();
        phases_attach();
        phase(TRACE_PHASE_DATA, true);
        run_child([] {
            trace_fork_child();
            nap();
            phase(TRACE_PHASE_BACKWARD);
            trace_set_rank(1);
            trace_gauge_set(GAUGE_STEPS, 1); /* the file is made after the phases, and gets them */
            _exit(0);
        });
    });
    counters = read_only_counters();
    EXPECT_EQ(counters->counters[trace_slot(TRACE_PHASE, TRACE_PHASE_DATA)].ns, 0u);
    EXPECT_GE(counters->counters[trace_slot(TRACE_PHASE, TRACE_PHASE_START_UP)].ns, NAP_NS);
    EXPECT_GE(counters->counters[trace_slot(TRACE_PHASE, TRACE_PHASE_BACKWARD)].ns, NAP_NS);
}

TEST_F(Phases, AProcessWithoutTheAgentHasNone) {
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        phases_start();
        phase(TRACE_PHASE_BACKWARD);
        trace_gauge_set(GAUGE_STEPS, 1);
        trace_flush();
    });
    counters = read_only_counters();
    EXPECT_EQ(counters->gauges[GAUGE_PHASE_BEGAN_NS].last, 0u);
}

} // namespace
