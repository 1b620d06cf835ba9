#include <gtest/gtest.h>
#include <cstring>
#include <string>
#include <vector>

#include "castor.h"

namespace {

TEST(Accumulation, StepsAtEachKthMicroStep) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 3), 0);
    for (int round = 0; round < 2; round++) {
        EXPECT_TRUE(castor_accumulation_is_empty(&a));
        for (int micro_step = 1; micro_step <= 3; micro_step++) {
            bool last = micro_step == 3;
            EXPECT_EQ(castor_accumulation_next_at_boundary(&a), last);
            EXPECT_EQ(castor_accumulation_count(&a), last);
            EXPECT_EQ(castor_accumulation_at_boundary(&a), last);
            EXPECT_FALSE(castor_accumulation_is_empty(&a));
            EXPECT_EQ(castor_accumulation_take_step(&a), last);
        }
    }
}

TEST(Accumulation, WithoutAMicroStepThereIsNoStep) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 1), 0);
    EXPECT_TRUE(castor_accumulation_next_at_boundary(&a));
    EXPECT_FALSE(castor_accumulation_at_boundary(&a));
    EXPECT_FALSE(castor_accumulation_take_step(&a));
    EXPECT_TRUE(castor_accumulation_count(&a));
    EXPECT_TRUE(castor_accumulation_take_step(&a));
    EXPECT_FALSE(castor_accumulation_take_step(&a));
}

TEST(Accumulation, BeyondTheBoundaryStaysThereUntilTheStep) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 2), 0);
    for (int i = 0; i < 5; i++)
        castor_accumulation_count(&a);
    EXPECT_TRUE(castor_accumulation_at_boundary(&a));
    EXPECT_TRUE(castor_accumulation_next_at_boundary(&a));
    EXPECT_TRUE(castor_accumulation_take_step(&a));
    EXPECT_TRUE(castor_accumulation_is_empty(&a));
    EXPECT_FALSE(castor_accumulation_at_boundary(&a));
}

TEST(Accumulation, EveryKthCall) {
    castor_accumulation a;
    ASSERT_EQ(castor_accumulation_begin(&a, 4), 0);
    std::vector<int> acted;
    for (int call = 1; call <= 12; call++)
        if (castor_accumulation_every(&a))
            acted.push_back(call);
    EXPECT_EQ(acted, (std::vector<int>{4, 8, 12}));
}

TEST(Accumulation, WholeStepsOfALoader) {
    struct {
        int64_t count, size, length, steps;
    } const rows[] = {{10, 4, 8, 2}, {8, 4, 8, 2}, {3, 4, 0, 0}, {0, 4, 0, 0}, {7, 1, 7, 7}};
    for (const auto &row : rows) {
        int64_t length = -1, steps = -1;
        ASSERT_EQ(castor_accumulation_length(row.count, row.size, &length, &steps), 0);
        EXPECT_EQ(length, row.length) << row.count << " by " << row.size;
        EXPECT_EQ(steps, row.steps) << row.count << " by " << row.size;
    }
}

TEST(Accumulation, SizesBelowOneAreErrors) {
    castor_accumulation a = {7, 7};
    int64_t length = 5, steps = 5;
    for (int64_t size : {0, -1}) {
        EXPECT_NE(castor_accumulation_begin(&a, size), 0);
        EXPECT_NE(std::string(castor_error()).find("accumulate_size is " + std::to_string(size)),
                  std::string::npos)
            << castor_error();
        EXPECT_NE(castor_accumulation_length(10, size, &length, &steps), 0);
    }
    EXPECT_NE(castor_accumulation_length(-1, 2, &length, &steps), 0);
    EXPECT_EQ(a.size, 7);
    EXPECT_EQ(length, 5);
}

castor_cycle cycle_of(int64_t size, int phase) {
    castor_cycle c = {};
    EXPECT_EQ(castor_accumulation_begin(&c.micro_steps, size), 0);
    if (phase >= CASTOR_CYCLE_WAITING)
        castor_cycle_happens(&c, CASTOR_CYCLE_HOLD);
    if (phase == CASTOR_CYCLE_BEGUN || phase == CASTOR_CYCLE_GOES_ON)
        castor_cycle_happens(&c, CASTOR_CYCLE_REACHED);
    EXPECT_EQ(castor_cycle_phase(&c), phase);
    return c;
}

const int kPhases[] = {CASTOR_CYCLE_EMPTY, CASTOR_CYCLE_BEGUN, CASTOR_CYCLE_WAITING, CASTOR_CYCLE_GOES_ON};

TEST(AccumulationCycle, EveryEventInEveryPhase) {
    const int reached[] = {CASTOR_CYCLE_BEGUN, CASTOR_CYCLE_BEGUN, CASTOR_CYCLE_GOES_ON,
                           CASTOR_CYCLE_GOES_ON};
    const int zero[] = {CASTOR_CYCLE_ACTS, CASTOR_CYCLE_ACTS, CASTOR_CYCLE_LEAVES_OUT, CASTOR_CYCLE_REFUSES};
    for (int phase : kPhases) {
        castor_cycle c = cycle_of(2, phase);
        EXPECT_EQ(castor_cycles_zero(&c, 1), zero[phase]) << "phase " << phase;
        const bool waits = phase >= CASTOR_CYCLE_WAITING;
        EXPECT_EQ(castor_cycles_act(&c, 1), waits ? CASTOR_CYCLE_ACTS : CASTOR_CYCLE_LEAVES_OUT);
        EXPECT_EQ(castor_cycle_happens(&c, CASTOR_CYCLE_STEP), !waits);
        EXPECT_EQ(castor_cycle_phase(&c), phase) << "a call alone changes nothing";
        EXPECT_EQ(c.calls, 1);
        castor_cycle_happens(&c, CASTOR_CYCLE_REACHED);
        EXPECT_EQ(castor_cycle_phase(&c), reached[phase]);
        castor_cycle_happens(&c, CASTOR_CYCLE_HOLD);
        EXPECT_EQ(castor_cycle_phase(&c), CASTOR_CYCLE_WAITING);
        c = cycle_of(2, phase);
        c.calls = 7;
        castor_cycle_happens(&c, CASTOR_CYCLE_END);
        EXPECT_EQ(castor_cycle_phase(&c), CASTOR_CYCLE_EMPTY);
        EXPECT_EQ(c.calls, 7);
        EXPECT_EQ(c.micro_steps.size, 2);
    }
}

TEST(AccumulationCycle, StepsAtEachKthCall) {
    castor_cycle c = cycle_of(3, CASTOR_CYCLE_EMPTY);
    for (int call = 1; call <= 9; call++) {
        castor_cycle_happens(&c, CASTOR_CYCLE_REACHED);
        EXPECT_EQ(castor_cycle_happens(&c, CASTOR_CYCLE_STEP), call % 3 != 0) << call;
        if (call % 3)
            castor_cycle_happens(&c, CASTOR_CYCLE_HOLD);
        else
            castor_cycle_happens(&c, CASTOR_CYCLE_END);
    }
}

// Those that wait for their step decide for an optimizer that does not step any more, and not the other way round.
TEST(AccumulationCycle, ThoseThatWaitDecide) {
    const castor_cycle idle = cycle_of(3, CASTOR_CYCLE_EMPTY), first = cycle_of(3, CASTOR_CYCLE_WAITING);
    castor_cycle last = first;
    castor_cycle_happens(&last, CASTOR_CYCLE_HOLD);
    EXPECT_EQ(castor_cycles_act(nullptr, 0), 0);
    EXPECT_EQ(castor_cycles_zero(nullptr, 0), CASTOR_CYCLE_ACTS);
    const castor_cycle with_last[] = {idle, last}, mixed[] = {last, first}, idle_only[] = {idle, idle};
    EXPECT_EQ(castor_cycles_act(with_last, 2), CASTOR_CYCLE_ACTS);
    EXPECT_EQ(castor_cycles_act(mixed, 2), CASTOR_CYCLE_ACTS | CASTOR_CYCLE_LEAVES_OUT);
    EXPECT_EQ(castor_cycles_act(idle_only, 2), CASTOR_CYCLE_LEAVES_OUT);
    castor_cycle three[] = {idle, last, first};
    EXPECT_EQ(castor_cycles_zero(three, 3), CASTOR_CYCLE_LEAVES_OUT);
    castor_cycle_happens(&three[0], CASTOR_CYCLE_REACHED);
    EXPECT_EQ(castor_cycles_zero(three, 3), CASTOR_CYCLE_LEAVES_OUT);
    castor_cycle_happens(&three[1], CASTOR_CYCLE_REACHED);
    EXPECT_EQ(castor_cycles_zero(three, 3), CASTOR_CYCLE_REFUSES);
}

TEST(AccumulationCycle, ASchedulerFollowsItsOptimizer) {
    castor_cycle c = cycle_of(2, CASTOR_CYCLE_EMPTY);
    int64_t calls = 0, of_epoch = 0;
    EXPECT_EQ(castor_cycle_schedule(&c, &calls), CASTOR_CYCLE_ACTS); // before the first step
    for (int call = 1; call <= 4; call++) {
        const bool skipped = castor_cycle_happens(&c, CASTOR_CYCLE_STEP);
        EXPECT_EQ(skipped, call % 2 == 1);
        skipped ? castor_cycle_happens(&c, CASTOR_CYCLE_HOLD) : castor_cycle_happens(&c, CASTOR_CYCLE_END);
        EXPECT_EQ(castor_cycle_schedule(&c, &calls), skipped ? CASTOR_CYCLE_LEAVES_OUT : CASTOR_CYCLE_ACTS);
        EXPECT_EQ(calls, call);
        EXPECT_EQ(castor_cycle_schedule(&c, &calls), CASTOR_CYCLE_ACTS); // again, without a step
    }
    castor_cycle_happens(&c, CASTOR_CYCLE_STEP);
    EXPECT_EQ(castor_cycle_schedule(&c, &of_epoch), CASTOR_CYCLE_ACTS); // once in several steps
}

// The batches that a loop over a loader gets; `trains`: step() is called after each. -1: an error.
struct Loop {
    int64_t batches = 0, drawn = 0;
    bool refused = false;
};

Loop loop_over(int64_t size, int64_t batches, bool known, bool trains) {
    Loop loop;
    castor_epoch e = {size, known ? batches : -1, 100, 0, 0, 0, 0};
    for (;;) {
        int does;
        if (castor_epoch_next(&e, 100 + (trains ? loop.batches : 0), &does) != 0) {
            loop.refused = true;
            return loop;
        }
        if (does == CASTOR_EPOCH_ENDS)
            return loop;
        if (does != CASTOR_EPOCH_TAKES) {
            const bool came = loop.drawn < batches;
            castor_epoch_drawn(&e, came);
            loop.drawn += came;
            if (does == CASTOR_EPOCH_DRAWS && !came)
                return loop;
        }
        loop.batches += does != CASTOR_EPOCH_AHEAD;
    }
}

TEST(AccumulationEpoch, TrainsOnWholeSteps) {
    for (int64_t size = 1; size <= 4; size++)
        for (int64_t batches = 0; batches <= 9; batches++)
            for (bool known : {true, false}) {
                const Loop all = loop_over(size, batches, known, false);
                EXPECT_EQ(all.batches, batches) << "of " << size << ", known " << known;
                EXPECT_FALSE(all.refused);
                const Loop trained = loop_over(size, batches, known, true);
                const bool too_few = batches && batches < size;
                EXPECT_EQ(trained.refused, too_few) << batches << " of " << size << ", known " << known;
                if (!too_few) {
                    EXPECT_EQ(trained.batches, batches - batches % size)
                        << "of " << size << ", known " << known;
                }
                if (known) {
                    EXPECT_EQ(trained.drawn, trained.batches) << "nothing is drawn in vain";
                }
            }
}

TEST(AccumulationEpoch, WithoutALengthAStepsBatchesAreDrawnBeforeItsFirst) {
    castor_epoch e = {2, -1, 0, 0, 0, 0, 0};
    int does;
    for (int answer : {CASTOR_EPOCH_AHEAD, CASTOR_EPOCH_AHEAD, CASTOR_EPOCH_TAKES, CASTOR_EPOCH_TAKES,
                       CASTOR_EPOCH_AHEAD}) {
        ASSERT_EQ(castor_epoch_next(&e, 0, &does), 0);
        EXPECT_EQ(does, answer);
        if (answer == CASTOR_EPOCH_AHEAD)
            castor_epoch_drawn(&e, 1);
    }
}

TEST(AccumulationEpoch, TooFewBatchesAreAnError) {
    castor_epoch e = {4, 3, 0, 0, 0, 0, 0};
    int does;
    EXPECT_NE(castor_epoch_next(&e, 1, &does), 0);
    EXPECT_NE(std::string(castor_error()).find("an epoch has 3 batches and CASTOR_ACCUMULATE=4 needs 4"),
              std::string::npos)
        << castor_error();
}

TEST(Annealing, JumpsAfterTheWarmUp) {
    for (double step : {0.0, 1.0, 100.0})
        EXPECT_EQ(castor_annealing(1, 0.1, 100, 2000, step), 1.0) << step;
    // 1 - (101 / 2000) * 0.9, and 1 - (1000 / 2000) * 0.9
    EXPECT_DOUBLE_EQ(castor_annealing(1, 0.1, 100, 2000, 101), 0.95455);
    EXPECT_DOUBLE_EQ(castor_annealing(1, 0.1, 100, 2000, 1000), 0.55);
    EXPECT_NE(castor_annealing(1, 0.1, 100, 2000, 1999), 0.1);
    EXPECT_EQ(castor_annealing(1, 0.1, 100, 2000, 2000), 0.1);
    EXPECT_EQ(castor_annealing(1, 0.1, 100, 2000, 1e9), 0.1);
}

TEST(Annealing, TheWarmUpIsTestedFirst) {
    EXPECT_EQ(castor_annealing(2, 1, 10, 5, 10), 2.0);
    EXPECT_EQ(castor_annealing(2, 1, 10, 5, 11), 1.0);
    EXPECT_EQ(castor_annealing(2, 1, 0, 0, 0), 2.0);
    EXPECT_EQ(castor_annealing(2, 1, -1, 0, 0), 1.0); // no division by zero
}

} // namespace
