// Schedules of pipelines by hand, and in a simulated pipeline whose stages take their operations in order, wait for what each needs
// and send without waiting.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "castor.h"

namespace {

using Operations = std::vector<castor_operation>;

castor_pipeline pipeline(int style, int stages, int microbatches, int slices = 1) {
    return {style, stages, microbatches, slices};
}

Operations operations(const castor_pipeline &p, int stage) {
    uint64_t count = 0;
    EXPECT_EQ(castor_pipeline_operations(&p, stage, nullptr, 0, &count), CASTOR_OK) << castor_error();
    Operations made(count, castor_operation{-1, -1, -1});
    EXPECT_EQ(castor_pipeline_operations(&p, stage, made.data(), count, &count), CASTOR_OK) << castor_error();
    return made;
}

// The most microbatches whose activations a stage keeps at a time.
int64_t alive_at_most(const Operations &made) {
    int64_t alive = 0, most = 0;
    for (const castor_operation &one : made) {
        if (one.kind == CASTOR_PASS_FORWARD)
            alive++;
        else if (one.kind != CASTOR_PASS_BACKWARD_INPUT)
            alive--;
        most = std::max(most, alive);
    }
    return most;
}

// "F0 B0"; with slices "F0.1 B0.1"; I and W are the halves of a backward.
std::string text(const castor_pipeline &p, int stage) {
    std::string made;
    for (const castor_operation &one : operations(p, stage)) {
        made += made.empty() ? "" : " ";
        made += "FBIW"[one.kind] + std::to_string(one.microbatch);
        if (p.slices > 1)
            made += "." + std::to_string(one.slice);
    }
    return made;
}

TEST(Pipeline, OneForwardOneBackwardByHand) {
    const castor_pipeline p = pipeline(CASTOR_PIPELINE_1F1B, 4, 5);
    EXPECT_EQ(text(p, 0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
    EXPECT_EQ(text(p, 1), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
    EXPECT_EQ(text(p, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
    EXPECT_EQ(text(p, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
    EXPECT_EQ(text(pipeline(CASTOR_PIPELINE_1F1B, 4, 2), 0), "F0 F1 B0 B1");
    EXPECT_EQ(text(pipeline(CASTOR_PIPELINE_1F1B, 4, 2), 2), "F0 F1 B0 B1");
    EXPECT_EQ(text(pipeline(CASTOR_PIPELINE_1F1B, 1, 2), 0), "F0 B0 F1 B1");
}

// Two stages with two slices each: warm-ups of 2 + 2 and of 0 + 2.
TEST(Pipeline, InterleavedByHand) {
    const castor_pipeline p = pipeline(CASTOR_PIPELINE_INTERLEAVED, 2, 4, 2);
    EXPECT_EQ(text(p, 0), "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
    EXPECT_EQ(text(p, 1), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
    EXPECT_EQ(text(pipeline(CASTOR_PIPELINE_INTERLEAVED, 3, 4, 1), 1),
              text(pipeline(CASTOR_PIPELINE_1F1B, 3, 4), 1));
}

TEST(Pipeline, ZeroBubbleByHand) {
    const castor_pipeline p = pipeline(CASTOR_PIPELINE_ZERO_BUBBLE, 3, 4);
    EXPECT_EQ(text(p, 0), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
    EXPECT_EQ(text(p, 1), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
    EXPECT_EQ(text(p, 2), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
    EXPECT_EQ(text(pipeline(CASTOR_PIPELINE_ZERO_BUBBLE, 4, 1), 3), "F0 I0 W0");
}

struct Simulation {
    int64_t length = 0;
    int done = 0, all = 0;
};

// Passes of a slice take forward, backward, and backward / 2 for each half. Every operation must be there once.
Simulation simulate(const castor_pipeline &p, int64_t forward, int64_t backward) {
    const int last_part = p.stages * p.slices - 1;
    const size_t stages = static_cast<size_t>(p.stages);
    std::vector<Operations> of(stages);
    std::vector<size_t> next(stages, 0);
    std::vector<int64_t> free(stages, 0);
    const size_t places = (static_cast<size_t>(last_part) + 1) * static_cast<size_t>(p.microbatches);
    std::vector<int64_t> ends[4]; // by pass, part and microbatch; -1: not yet
    for (auto &one : ends)
        one.assign(places, -1);
    Simulation made;
    for (int stage = 0; stage < p.stages; stage++) {
        of[static_cast<size_t>(stage)] = operations(p, stage);
        made.all += static_cast<int>(of[static_cast<size_t>(stage)].size());
    }
    const int halves =
        p.style == CASTOR_PIPELINE_ZERO_BUBBLE ? CASTOR_PASS_BACKWARD_INPUT : CASTOR_PASS_BACKWARD;
    bool downwards = false; // forwards go up the stages, backwards down
    for (bool moved = true; moved; downwards = !downwards) {
        moved = false;
        for (size_t turn = 0; turn < stages; turn++) {
            const size_t stage = downwards ? stages - 1 - turn : turn;
            for (; next[stage] < of[stage].size(); next[stage]++) {
                const castor_operation &one = of[stage][next[stage]];
                const int part = one.slice * p.stages + static_cast<int>(stage);
                auto end_of = [&](int pass, int of_part) -> int64_t & {
                    return ends[pass].at(static_cast<size_t>(of_part) * static_cast<size_t>(p.microbatches) +
                                         static_cast<size_t>(one.microbatch));
                };
                int64_t ready = 0, takes = forward;
                if (one.kind == CASTOR_PASS_FORWARD) {
                    ready = part ? end_of(CASTOR_PASS_FORWARD, part - 1) : 0;
                } else if (one.kind == CASTOR_PASS_BACKWARD_WEIGHT) {
                    ready = end_of(CASTOR_PASS_BACKWARD_INPUT, part);
                    takes = backward / 2;
                } else {
                    EXPECT_EQ(one.kind, halves);
                    ready = part == last_part ? end_of(CASTOR_PASS_FORWARD, part) : end_of(halves, part + 1);
                    takes = one.kind == CASTOR_PASS_BACKWARD ? backward : backward / 2;
                    if (end_of(CASTOR_PASS_FORWARD, part) < 0)
                        ready = -1;
                }
                if (ready < 0)
                    break; // waits
                EXPECT_EQ(end_of(one.kind, part), -1) << "an operation is there twice";
                free[stage] = std::max(free[stage], ready) + takes;
                end_of(one.kind, part) = free[stage];
                made.length = std::max(made.length, free[stage]);
                made.done++;
                moved = true;
            }
        }
    }
    return made;
}

const std::pair<int64_t, int64_t> kLengths[] = {{1, 1}, {1, 2}, {2, 3}, {3, 1}, {5, 2}};

TEST(Pipeline, OneForwardOneBackwardInAllSmallCases) {
    for (int stages = 1; stages <= 8; stages++)
        for (int microbatches = 1; microbatches <= 20; microbatches++) {
            const castor_pipeline p = pipeline(CASTOR_PIPELINE_1F1B, stages, microbatches);
            for (auto [forward, backward] : kLengths) {
                const Simulation done = simulate(p, forward, backward);
                ASSERT_EQ(done.done, done.all) << stages << " stages wait forever for " << microbatches;
                ASSERT_EQ(done.all, 2 * stages * microbatches);
                ASSERT_EQ(done.length, (microbatches + stages - 1) * (forward + backward));
            }
            for (int stage = 0; stage < stages; stage++) {
                const Operations made = operations(p, stage);
                ASSERT_EQ(alive_at_most(made), std::min(stages - stage, microbatches));
                int warm_up = 0;
                while (made[static_cast<size_t>(warm_up)].kind == CASTOR_PASS_FORWARD)
                    warm_up++;
                // With a steady phase one more forward stands before the first backward.
                ASSERT_EQ(warm_up,
                          std::min(stages - stage - 1, microbatches) + (stages - stage - 1 < microbatches));
            }
        }
}

TEST(Pipeline, InterleavedInAllSmallCases) {
    for (int stages = 1; stages <= 6; stages++)
        for (int slices = 2; slices <= 4; slices++)
            for (int microbatches = stages; microbatches <= 4 * stages; microbatches += stages) {
                const castor_pipeline p = pipeline(CASTOR_PIPELINE_INTERLEAVED, stages, microbatches, slices);
                for (auto [forward, backward] : kLengths) {
                    const Simulation done = simulate(p, forward, backward);
                    ASSERT_EQ(done.done, done.all)
                        << stages << " stages, " << slices << " slices, " << microbatches;
                    ASSERT_EQ(done.all, 2 * stages * microbatches * slices);
                    ASSERT_EQ(done.length, (microbatches * slices + stages - 1) * (forward + backward));
                    const Simulation whole = simulate(pipeline(CASTOR_PIPELINE_1F1B, stages, microbatches),
                                                      forward * slices, backward * slices);
                    if (stages > 1) {
                        ASSERT_LT(done.length, whole.length);
                    }
                }
                for (int stage = 0; stage < stages; stage++) {
                    const Operations made = operations(p, stage);
                    const int warm_up = 2 * (stages - stage - 1) + (slices - 1) * stages;
                    ASSERT_EQ(alive_at_most(made), std::min(warm_up + 1, microbatches * slices));
                }
            }
}

TEST(Pipeline, ZeroBubbleInAllSmallCases) {
    for (int stages = 1; stages <= 8; stages++)
        for (int microbatches = 1; microbatches <= 20; microbatches++) {
            const castor_pipeline p = pipeline(CASTOR_PIPELINE_ZERO_BUBBLE, stages, microbatches);
            const Simulation done = simulate(p, 1, 2),
                             plain = simulate(pipeline(CASTOR_PIPELINE_1F1B, stages, microbatches), 1, 2);
            ASSERT_EQ(done.done, done.all) << stages << " stages wait forever for " << microbatches;
            ASSERT_EQ(done.all, 3 * stages * microbatches);
            if (microbatches >= stages) {
                ASSERT_EQ(done.length, 3 * microbatches + stages - 1) << stages << ", " << microbatches;
            }
            ASSERT_LE(done.length, plain.length);
            if (stages > 1) {
                ASSERT_LT(done.length, plain.length) << stages << ", " << microbatches;
            }
            for (int stage = 0; stage < stages; stage++) {
                const Operations made = operations(p, stage);
                ASSERT_EQ(alive_at_most(made), std::min(stages, microbatches));
                // Forwards and inputs' gradients alone are 1F1B.
                Operations without,
                    expected = operations(pipeline(CASTOR_PIPELINE_1F1B, stages, microbatches), stage);
                std::copy_if(
                    made.begin(), made.end(), std::back_inserter(without),
                    [](const castor_operation &one) { return one.kind != CASTOR_PASS_BACKWARD_WEIGHT; });
                ASSERT_EQ(without.size(), expected.size());
                for (size_t i = 0; i < without.size(); i++) {
                    ASSERT_EQ(without[i].microbatch, expected[i].microbatch);
                    ASSERT_EQ(without[i].kind == CASTOR_PASS_FORWARD,
                              expected[i].kind == CASTOR_PASS_FORWARD);
                }
            }
        }
}

TEST(Pipeline, Long) {
    EXPECT_EQ(simulate(pipeline(CASTOR_PIPELINE_1F1B, 4096, 4), 1, 2).length, (4096 + 3) * 3);
    EXPECT_EQ(simulate(pipeline(CASTOR_PIPELINE_1F1B, 32, 256), 1, 2).length, (256 + 31) * 3);
    EXPECT_EQ(simulate(pipeline(CASTOR_PIPELINE_INTERLEAVED, 16, 64, 4), 1, 2).length, (256 + 15) * 3);
    EXPECT_EQ(simulate(pipeline(CASTOR_PIPELINE_ZERO_BUBBLE, 32, 128), 1, 2).length, 3 * 128 + 31);
    const castor_pipeline p = pipeline(CASTOR_PIPELINE_1F1B, 4096, 8192);
    for (int stage : {0, 1, 2048, 4095}) {
        const Operations made = operations(p, stage);
        EXPECT_EQ(made.size(), 2U * 8192);
        EXPECT_EQ(alive_at_most(made), 4096 - stage);
    }
}

TEST(Pipeline, WhatIsNoPipelineIsAnError) {
    struct {
        castor_pipeline p;
        int stage;
        const char *words;
    } const rows[] = {
        {{3, 2, 2, 1}, 0, "style 3"},
        {{CASTOR_PIPELINE_1F1B, 0, 2, 1}, 0, "0 stages"},
        {{CASTOR_PIPELINE_1F1B, 2, 0, 1}, 0, "0 microbatches"},
        {{CASTOR_PIPELINE_INTERLEAVED, 2, 2, 0}, 0, "0 model chunks"},
        {{CASTOR_PIPELINE_1F1B, 2, 2, 1}, 2, "expected 0 to 1"},
        {{CASTOR_PIPELINE_1F1B, 2, 2, 1}, -1, "expected 0 to 1"},
        {{CASTOR_PIPELINE_1F1B, 2, 2, 2}, 0, "num_model_chunks=1"},
        {{CASTOR_PIPELINE_ZERO_BUBBLE, 2, 2, 2}, 0, "num_model_chunks=1"},
        {{CASTOR_PIPELINE_INTERLEAVED, 4, 6, 2}, 0, "use 8"},
    };
    uint64_t count = 0;
    for (const auto &row : rows) {
        EXPECT_EQ(castor_pipeline_operations(&row.p, row.stage, nullptr, 0, &count), CASTOR_ERR_ARGUMENT);
        EXPECT_NE(std::string(castor_error()).find(row.words), std::string::npos) << castor_error();
    }
    castor_operation room[4] = {};
    const castor_pipeline p = pipeline(CASTOR_PIPELINE_1F1B, 2, 3);
    EXPECT_EQ(castor_pipeline_operations(&p, 0, room, 4, &count), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(count, 6U);
    EXPECT_NE(std::string(castor_error()).find("6 operations"), std::string::npos) << castor_error();
}

} // namespace
