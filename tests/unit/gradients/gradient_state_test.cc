// The state of a tensor's gradient: every event in every phase, those that are refused among them.
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

constexpr int kPhases = CASTOR_GRADIENT_LOST + 1;
constexpr int kRefused = -1;
constexpr size_t kNumel = 3;

enum Event { READY, SUBMIT, COMPLETE, SHOW, BREAK_OFF, kEvents };

const int kNext[kEvents][kPhases] = {
    // summed, made, added, joined, complete, lost
    {CASTOR_GRADIENT_MADE, CASTOR_GRADIENT_MADE, CASTOR_GRADIENT_ADDED, kRefused, CASTOR_GRADIENT_MADE,
     CASTOR_GRADIENT_MADE},
    {CASTOR_GRADIENT_JOINED, CASTOR_GRADIENT_ADDED, kRefused, kRefused, CASTOR_GRADIENT_JOINED,
     CASTOR_GRADIENT_ADDED},
    {kRefused, kRefused, CASTOR_GRADIENT_COMPLETE, CASTOR_GRADIENT_COMPLETE, kRefused, kRefused},
    {CASTOR_GRADIENT_SUMMED, kRefused, kRefused, kRefused, CASTOR_GRADIENT_SUMMED, kRefused},
    {CASTOR_GRADIENT_SUMMED, CASTOR_GRADIENT_LOST, CASTOR_GRADIENT_LOST, CASTOR_GRADIENT_SUMMED,
     CASTOR_GRADIENT_LOST, CASTOR_GRADIENT_LOST},
};

castor_status happens(castor_store *s, castor_tensor *t, Event event) {
    static const float ones[kNumel] = {1, 1, 1};
    castor_gradient gradient = {t, ones, nullptr, 0, 0};
    uint64_t done;
    uint8_t used;
    switch (event) {
    case READY:
        return castor_gradient_ready(t, &done);
    case SUBMIT:
        return castor_gradients_add(&gradient, 1, 1);
    case COMPLETE:
        return castor_gradients_finish(s, &t, 1, &used);
    case SHOW:
        return castor_sums_release(&t, 1);
    default:
        castor_gradients_break_off(&t, 1);
        return CASTOR_OK;
    }
}

std::vector<Event> way_to(int phase) {
    switch (phase) {
    case CASTOR_GRADIENT_MADE:
        return {READY};
    case CASTOR_GRADIENT_ADDED:
        return {READY, SUBMIT};
    case CASTOR_GRADIENT_JOINED:
        return {SUBMIT};
    case CASTOR_GRADIENT_COMPLETE:
        return {READY, SUBMIT, COMPLETE};
    case CASTOR_GRADIENT_LOST:
        return {READY, BREAK_OFF};
    default:
        return {};
    }
}

struct Made {
    castor_tensor *tensor;
    castor_tensor_info info;
    const castor_gradient_state &state() const { return *info.gradient; }
    float sum() const { return *static_cast<const float *>(info.sum); }
};

Made made(const Rank &r, const std::vector<Event> &events) {
    static float values[kNumel];
    castor_description d = {values, kNumel, 0, 0, 0};
    Made m = {};
    EXPECT_EQ(castor_register(r.store, &d, 1, &m.tensor), CASTOR_OK) << error_text();
    castor_tensor_get(m.tensor, &m.info);
    for (Event event : events)
        EXPECT_EQ(happens(r.store, m.tensor, event), CASTOR_OK) << error_text();
    return m;
}

TEST(GradientState, EveryEventInEveryPhase) {
    Job job(1);
    job.run([](Rank &r) {
        for (int phase = 0; phase < kPhases; phase++)
            for (int event = 0; event < kEvents; event++) {
                Made m = made(r, way_to(phase));
                ASSERT_EQ(m.state().phase, phase);
                const int next = kNext[event][phase];
                castor_status status = happens(r.store, m.tensor, Event(event));
                EXPECT_EQ(status, next == kRefused ? CASTOR_ERR_ARGUMENT : CASTOR_OK)
                    << "event " << event << " in phase " << phase;
                EXPECT_EQ(m.state().phase, next == kRefused ? phase : next)
                    << "event " << event << " in phase " << phase;
            }
    });
}

TEST(GradientState, ARefusalSaysWhy) {
    Job job(1);
    job.run([](Rank &r) {
        Made m = made(r, {READY, SUBMIT});
        ASSERT_EQ(happens(r.store, m.tensor, SUBMIT), CASTOR_ERR_ARGUMENT);
        EXPECT_NE(strstr(error_text(), "cannot be submitted: it is added"), nullptr) << error_text();
    });
}

TEST(GradientState, OnlyWhatWasMadeIsUsed) {
    Job job(1);
    job.run([](Rank &r) {
        for (int phase : {CASTOR_GRADIENT_SUMMED, CASTOR_GRADIENT_MADE, CASTOR_GRADIENT_LOST}) {
            Made m = made(r, way_to(phase));
            uint8_t used;
            ASSERT_EQ(happens(r.store, m.tensor, SUBMIT), CASTOR_OK);
            ASSERT_EQ(castor_gradients_finish(r.store, &m.tensor, 1, &used), CASTOR_OK);
            EXPECT_EQ(used, phase == CASTOR_GRADIENT_MADE) << "phase " << phase;
        }
    });
}

void carry(const Made &m, uint8_t wanted) {
    castor_gradients_carry(&m.tensor, 1, &wanted);
}

TEST(GradientState, OnlyASumThatIsShownIsCarried) {
    Job job(1);
    job.run([](Rank &r) {
        for (int phase = 0; phase < kPhases; phase++) {
            Made m = made(r, way_to(phase));
            carry(m, 1);
            EXPECT_EQ(m.state().carry,
                      phase == CASTOR_GRADIENT_SUMMED ? CASTOR_GRADIENT_CARRIED : CASTOR_GRADIENT_NOT_CARRIED)
                << "phase " << phase;
            carry(m, 0);
            EXPECT_EQ(m.state().carry, CASTOR_GRADIENT_NOT_CARRIED) << "phase " << phase;
        }
    });
}

TEST(GradientState, IsCarriedThroughOneBackward) {
    Job job(1);
    job.run([](Rank &r) {
        for (Event end : {SHOW, BREAK_OFF}) {
            Made m = made(r, {READY, SUBMIT, COMPLETE, SHOW});
            carry(m, 1);
            for (Event event : {READY, SHOW, READY})
                happens(r.store, m.tensor, event);
            EXPECT_EQ(m.state().carry, CASTOR_GRADIENT_CARRIED);
            ASSERT_EQ(happens(r.store, m.tensor, SUBMIT), CASTOR_OK);
            EXPECT_EQ(m.state().carry, CASTOR_GRADIENT_CARRYING);
            carry(m, 0);
            ASSERT_EQ(happens(r.store, m.tensor, COMPLETE), CASTOR_OK);
            EXPECT_EQ(m.state().carry, CASTOR_GRADIENT_CARRYING);
            EXPECT_EQ(m.sum(), 2);
            ASSERT_EQ(happens(r.store, m.tensor, end), CASTOR_OK);
            EXPECT_EQ(m.state().carry, CASTOR_GRADIENT_NOT_CARRIED);
        }
    });
}

// Of a sum of all nodes: the first node goes on from it, and the others begin anew; from this node's own sum, each goes on.
TEST(GradientState, OneNodeGoesOnFromTheSumOfAll) {
    Job job(1);
    job.run([](Rank &r) {
        for (int node : {0, 1})
            for (uint8_t used : {0, 1}) {
                Made m = made(r, used ? std::vector<Event>{READY, SUBMIT, COMPLETE}
                                      : std::vector<Event>{SUBMIT, COMPLETE});
                ASSERT_EQ(castor_sums_settle(r.store, node, &m.tensor, 1, &used), CASTOR_OK);
                ASSERT_EQ(happens(r.store, m.tensor, SHOW), CASTOR_OK);
                for (int backward = 0; backward < 2; backward++) {
                    const bool elsewhere = node && used && !backward;
                    const float before = m.sum();
                    EXPECT_EQ(m.state().elsewhere, elsewhere);
                    carry(m, 1);
                    for (Event event : {READY, SUBMIT, COMPLETE, SHOW})
                        ASSERT_EQ(happens(r.store, m.tensor, event), CASTOR_OK) << error_text();
                    EXPECT_EQ(m.sum(), elsewhere ? 1 : before + 1) << "on node " << node;
                }
            }
    });
}

} // namespace
