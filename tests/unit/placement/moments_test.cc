// Recordings of steps, what follows from them, and what makes them be recorded anew.
#include <gtest/gtest.h>
#include <string>
#include <vector>

extern "C" {
#include "placement/moments.h"
}

namespace {

struct Event {
    moment_event event;
    uint32_t identity;
    std::vector<uint32_t> chunks;
    uint64_t non_model = 0;
    uint64_t ns = 10;
};

class Moments : public testing::Test {
  protected:
    static constexpr uint32_t kChunks = 6;
    void SetUp() override { start({64, 128, 1}); }
    void start(moments_settings settings) {
        tables.assign(moments_bytes(&settings) / 8 + 1, 0xdeadbeefdeadbeef);
        by_chunk.assign((2 + MOMENT_RECORDINGS) * kChunks, 77);
        moments_init(&m, &settings, tables.data(), now = 0);
        moments_grow(&m, by_chunk.data(), kChunks);
        for (uint32_t i = 0; i < kChunks; i++)
            moments_add_chunk(&m);
    }
    void TearDown() override { EXPECT_STREQ(moments_check(&m), nullptr); }
    // The peak of an event is told at the one after it.
    void event(const Event &e) {
        moments_begin(&m, e.event, e.identity, now, peak, headroom);
        peak = e.non_model;
        for (uint32_t chunk : e.chunks)
            moments_use(&m, chunk, e.event == MOMENT_OPTIMIZER);
        now += e.ns;
        EXPECT_STREQ(moments_check(&m), nullptr);
    }
    void end() {
        moments_step_end(&m, now, peak, headroom);
        peak = 0;
        EXPECT_STREQ(moments_check(&m), nullptr);
    }
    void step(const std::vector<Event> &events) {
        for (const Event &e : events)
            event(e);
        end();
    }
    moments m;
    std::vector<uint64_t> tables;
    std::vector<uint32_t> by_chunk;
    uint64_t now = 0, peak = 0, headroom = 100;
};

// Two layers: parameters in chunks 0 and 1, gradients in 2, states in 3 and 4; chunk 5 is not used.
const std::vector<Event> kTrain = {{MOMENT_FORWARD, 0, {0}, 50},     {MOMENT_FORWARD, 1, {1}, 80},
                                   {MOMENT_BACKWARD, 1, {1}, 120},   {MOMENT_GRADIENT, 1, {2}, 100},
                                   {MOMENT_BACKWARD, 0, {0}, 90},    {MOMENT_GRADIENT, 0, {2}, 60},
                                   {MOMENT_OPTIMIZER, 0, {0, 2, 3}}, {MOMENT_OPTIMIZER, 1, {1, 2, 4}}};
const std::vector<Event> kEvaluation = {{MOMENT_FORWARD, 0, {0}, 10}, {MOMENT_FORWARD, 1, {1}, 10}};
std::vector<Event> evaluation_and_train() {
    std::vector<Event> events = kEvaluation;
    events.insert(events.end(), kTrain.begin(), kTrain.end());
    return events;
}

TEST_F(Moments, TheSecondStepKnowsWhatComes) {
    EXPECT_FALSE(m.following);
    event(kTrain[0]);
    EXPECT_EQ(moments_next_use(&m, 0), MOMENT_NEVER);
    for (size_t i = 1; i < kTrain.size(); i++)
        event(kTrain[i]);
    end();
    EXPECT_TRUE(m.following);
    EXPECT_EQ(m.warmups, 1u);
    // Moments 8 to 15 are the second step, 16 and on the third.
    uint64_t next[] = {8, 9, 11, 14, 15, MOMENT_NEVER};
    for (uint32_t i = 0; i < kChunks; i++)
        EXPECT_EQ(moments_next_use(&m, i), next[i]) << i;
    event(kTrain[0]);
    event(kTrain[1]);
    event(kTrain[2]);
    EXPECT_EQ(moments_now(&m), 10u);
    EXPECT_EQ(moments_next_use(&m, 0), 12u);
    EXPECT_EQ(moments_next_use(&m, 1), 15u); // forward and backward are past
    EXPECT_EQ(moments_non_model(&m), 120u);
    for (size_t i = 3; i < kTrain.size(); i++)
        event(kTrain[i]);
    EXPECT_EQ(moments_next_use(&m, 0), 16u);
    EXPECT_EQ(moments_next_use(&m, 4), 23u);
    end();
    EXPECT_EQ(m.deviations, 0u);
    EXPECT_EQ(m.steps, 2u);
}

TEST_F(Moments, WhatComesIsToldInOrderIntoTheNextStep) {
    step(kTrain);
    event(kTrain[0]);
    std::string order;
    moments_upcoming use;
    uint64_t number = 0;
    for (; moments_upcoming_get(&m, number, &use); number++)
        order += std::to_string(use.chunk);
    EXPECT_EQ(order, "0112020"
                     "23124"
                     "0112020"
                     "23124");
    ASSERT_TRUE(moments_upcoming_get(
        &m, 11, &use)); // the states of the second layer: moment 15, after seven of 10 ns each
    EXPECT_EQ(use.chunk, 4u);
    EXPECT_EQ(use.moment, 15u);
    EXPECT_EQ(use.begin_ns, 70u);
    ASSERT_TRUE(moments_upcoming_get(&m, 12, &use));
    EXPECT_EQ(use.begin_ns, 80u);
    EXPECT_EQ(use.non_model_bytes, 50u);
    EXPECT_EQ(moments_number_of(&m, 4), 11u);
    EXPECT_EQ(moments_number_of(&m, 5), MOMENT_NEVER);
}

TEST_F(Moments, AnotherEventRecordsAnewAndTakesOverWhatWasAlike) {
    step(kTrain);
    event(kTrain[0]);
    event({MOMENT_FORWARD, 7, {5}});
    EXPECT_FALSE(m.following);
    EXPECT_EQ(m.deviations, 1u);
    EXPECT_EQ(moments_next_use(&m, 1), MOMENT_NEVER);
    end();
    EXPECT_TRUE(m.following);
    uint64_t base = moments_now(&m);
    EXPECT_EQ(moments_next_use(&m, 0), base);
    EXPECT_EQ(moments_next_use(&m, 5), base + 1);
    // The step before is still known: the second event decides which of the two it is.
    event(kTrain[0]);
    event(kTrain[1]);
    EXPECT_TRUE(m.following);
    EXPECT_EQ(moments_next_use(&m, 4), base + 7);
}

TEST_F(Moments, StepsThatAlternateAreEachRecordedOnce) {
    const std::vector<Event> other = {{MOMENT_FORWARD, 9, {5}}, {MOMENT_OPTIMIZER, 9, {5, 3}}};
    for (int i = 0; i < 10; i++) {
        step(kTrain);
        step(other);
    }
    EXPECT_EQ(m.warmups, 2u);
    // After both were seen after each other, each one's successor is known: chunk 5 comes right after this step.
    uint64_t base = moments_now(&m);
    event(kTrain[0]);
    EXPECT_EQ(moments_next_use(&m, 5), base + 8);
}

TEST_F(Moments, AnEvaluationNowAndThenIsRecordedOnce) {
    for (int i = 0; i < 12; i++)
        step(i % 4 == 2 ? evaluation_and_train() : kTrain);
    EXPECT_EQ(m.warmups, 2u);
    EXPECT_TRUE(m.following);
}

TEST_F(Moments, AStepThatEndsEarlyIsOneOfItsOwn) {
    step(kTrain);
    step({kTrain[0], kTrain[1]});
    EXPECT_EQ(m.warmups, 2u);
    step({kTrain[0], kTrain[1]});
    step(kTrain);
    step({kTrain[0], kTrain[1]});
    EXPECT_EQ(m.warmups, 2u);
}

// Threads have their peaks a moment earlier or later.
TEST_F(Moments, APeakThatMovesWithinTheStepIsNoDeviation) {
    step(kTrain);
    std::vector<Event> moved = kTrain; // its peak is 120
    moved[0].non_model = 210;          // 160 more than in this moment, 90 more than in any
    step(moved);
    EXPECT_TRUE(m.following);
    EXPECT_EQ(m.deviations, 0u);
    event(kTrain[0]);
    EXPECT_EQ(moments_non_model(&m), 210u); // what is known is the higher of both
}

TEST_F(Moments, MoreNonModelDataThanThereIsHeadroomForRecordsAnew) {
    step(kTrain);
    std::vector<Event> longer = kTrain;
    longer[2].non_model = 220; // 100 more: headroom
    step(longer);
    EXPECT_EQ(m.warmups, 1u);
    longer[2].non_model = 321; // 101 more
    event(longer[0]);
    event(longer[1]);
    event(longer[2]);
    EXPECT_EQ(moments_non_model(&m), 220u); // the peak was raised
    event(longer[3]);
    EXPECT_FALSE(m.following);
    for (size_t i = 4; i < longer.size(); i++)
        event(longer[i]);
    end();
    EXPECT_TRUE(m.following);
    EXPECT_EQ(m.warmups, 2u);
    step(longer);
    step(kTrain); // less is no deviation
    EXPECT_EQ(m.warmups, 2u);
    event(kTrain[0]);
    event(kTrain[1]);
    event(kTrain[2]);
    EXPECT_EQ(moments_non_model(&m), 321u);
}

TEST_F(Moments, UsesAreAsForeseenAMomentEarlyOrLate) {
    step(kTrain);
    for (int i = 0; i < 20; i++) {
        std::vector<Event> threads = kTrain; // the gradient's thread is late, the second one's early
        threads[3].chunks = {};
        threads[4].chunks = {0, 2, 2};
        threads[5].chunks = {};
        step(threads);
    }
    EXPECT_EQ(m.warmups, 1u);
    EXPECT_EQ(m.deviations, 0u);
}

TEST_F(Moments, ManyUsesThatNobodyForesawRecordAnew) {
    step(kTrain);
    std::vector<Event> odd = kTrain;
    odd[1].chunks = {1, 3, 4};
    event(odd[0]);
    event(odd[1]); // two of twelve; one is let pass
    EXPECT_FALSE(m.following);
    EXPECT_EQ(m.deviations, 1u);
}

TEST_F(Moments, FewThatComeAgainAndAgainRecordAnewAfterSomeSteps) {
    step(kTrain);
    std::vector<Event> odd = kTrain;
    odd[1].chunks = {1, 5};
    for (int i = 0; i < 3; i++)
        step(odd);
    EXPECT_EQ(m.warmups, 1u);
    for (int i = 0; i < 20; i++)
        step(odd);
    EXPECT_EQ(m.warmups, 2u);
    EXPECT_NE(moments_next_use(&m, 5), MOMENT_NEVER);
}

TEST_F(Moments, UsesThatDoNotComeArePassed) {
    step(kTrain);
    uint64_t base = moments_now(&m);
    std::vector<Event> fewer = kTrain;
    fewer[1].chunks = {};
    for (int i = 0; i < 3; i++)
        event(fewer[i]);
    EXPECT_EQ(moments_next_use(&m, 1),
              base + 2); // the use of this moment was taken for the one that did not come
    event(fewer[3]);
    event(fewer[4]);
    EXPECT_EQ(moments_next_use(&m, 1), base + 7);
    EXPECT_EQ(m.deviations, 0u);
}

TEST_F(Moments, AStepLargerThanTheTablesIsNeverFollowed) {
    start({4, 128, 1});
    for (int i = 0; i < 3; i++)
        step(kTrain);
    EXPECT_FALSE(m.following);
    start({64, 5, 1});
    for (int i = 0; i < 3; i++)
        step(kTrain);
    EXPECT_FALSE(m.following);
    EXPECT_EQ(moments_next_use(&m, 0), MOMENT_NEVER);
    step(kEvaluation); // one that fits is
    EXPECT_TRUE(m.following);
}

TEST_F(Moments, TimesFollowWhatIsMeasured) {
    step(kTrain);
    std::vector<Event> slow = kTrain;
    for (Event &e : slow)
        e.ns = 50;
    for (int i = 0; i < 40; i++)
        step(slow);
    event(slow[0]);
    uint64_t present, next;
    event(slow[1]);
    moments_times(&m, &present, &next);
    EXPECT_NEAR(double(present), 50, 4);
    EXPECT_NEAR(double(next), 100, 4);
}

TEST_F(Moments, TheTextSaysAll) {
    step({{MOMENT_FORWARD, 3, {0, 1}, 70}, {MOMENT_OPTIMIZER, 0, {2}}});
    std::string text;
    auto sink = [](void *context, const char *piece, uint64_t length) {
        static_cast<std::string *>(context)->append(piece, length);
    };
    EXPECT_TRUE(moments_write(&m, sink, &text));
    EXPECT_EQ(text, "moment forward 3 0 70\nuse 0 r\nuse 1 r\nmoment optimizer 0 10 0\nuse 2 w\nend 20\n");
    event({MOMENT_BACKWARD, 3, {}});
    std::string recording = text;
    text.clear();
    EXPECT_TRUE(moments_write(&m, sink, &text)); // another one is being made
    EXPECT_EQ(text, recording);
}

} // namespace
