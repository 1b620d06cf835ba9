// Which homes begin on the host by the static policy, and which come back to the device between steps.
#include "homes_fixture.h"

class HomesPolicyTest : public HomesTest {
  protected:
    void place(placement_policy policy, double optim = 0, double param = 0) {
        placement_settings p = placement_defaults(policy);
        p.offload_optim_frac = optim;
        p.offload_param_frac = param;
        homes_placement_set(h, &p);
    }
    uint64_t host_units(chunk_kind kind) { return statistics().bytes[kind][DEVICE_TIER_HOST] / UNIT; }
    uint64_t back() { return statistics().flips[DEVICE_TIER_DEVICE]; }
    // Steps, after each of which what is due returns; how many had something to return.
    int steps(int count) {
        int due = 0;
        while (count--)
            if (homes_step_end(h)) {
                due++;
                EXPECT_EQ(homes_return(h), CASTOR_OK) << error_text();
                check();
            }
        return due;
    }
};

TEST_F(HomesPolicyTest, AShareOfEachKindIsBornOnTheHost) {
    make(256, 200, 200);
    place(PLACEMENT_STATIC, 1, 0.5);
    for (int i = 0; i < 10; i++) {
        created(CHUNK_PARAM, 2);
        created(CHUNK_GRAD, 1);
        created(CHUNK_OPTIM, 3);
    }
    EXPECT_EQ(host_units(CHUNK_PARAM), 10u);
    EXPECT_EQ(host_units(CHUNK_GRAD), 5u);
    EXPECT_EQ(host_units(CHUNK_OPTIM), 30u);
    EXPECT_EQ(steps(3 * HOMES_RETURN_STEPS), 0); // and they stay
}

TEST_F(HomesPolicyTest, ParametersStayIfStatesDo) {
    make(256, 200, 200);
    place(PLACEMENT_STATIC, 0.25, 1);
    for (int i = 0; i < 8; i++) {
        created(CHUNK_PARAM, 2);
        created(CHUNK_OPTIM, 2);
    }
    EXPECT_EQ(host_units(CHUNK_PARAM), 0u);
    EXPECT_EQ(host_units(CHUNK_OPTIM), 4u);
}

// The share is a wish: a full host is no reason to fail.
TEST_F(HomesPolicyTest, AShareThatTheHostCannotHoldIsOnTheDevice) {
    make(256, 200, 4);
    place(PLACEMENT_STATIC, 1);
    created(CHUNK_OPTIM, 3);
    created(CHUNK_OPTIM, 3);
    EXPECT_EQ(host_units(CHUNK_OPTIM), 3u);
    EXPECT_EQ(tier_of(last), DEVICE_TIER_DEVICE);
}

TEST_F(HomesPolicyTest, HomesComeBackWhereRoomLasts) {
    make(512, 200, 200);
    place(PLACEMENT_AUTO);
    uintptr_t large = created(CHUNK_PARAM, 20), grad = created(CHUNK_GRAD, 2),
              state = created(CHUNK_OPTIM, 40), small = created(CHUNK_PARAM, 1);
    fake_device_others(fake, 137 * UNIT, 0);
    EXPECT_EQ(homes_evict(h, 63 * UNIT), 63 * UNIT);
    fake_device_others(fake, 158 * UNIT, 0); // 42 free, of which 20 are kept so
    EXPECT_EQ(steps(HOMES_RETURN_STEPS), 0) << "the step of the rescue is one of the last ones";
    EXPECT_EQ(steps(1), 1);
    EXPECT_EQ(tier_of(small), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(large), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(grad), DEVICE_TIER_HOST) << "one unit is left beside the reserve";
    EXPECT_EQ(tier_of(state), DEVICE_TIER_HOST);
    EXPECT_EQ(back(), 2u);
    EXPECT_EQ(statistics().flipped_bytes[DEVICE_TIER_DEVICE], 21 * UNIT);
    EXPECT_EQ(steps(3 * HOMES_RETURN_STEPS), 0);
    // A model is freed: what other data there was in the last steps is known.
    EXPECT_EQ(destroy(large), CASTOR_OK);
    EXPECT_EQ(steps(1), 1);
    EXPECT_EQ(tier_of(grad), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(state), DEVICE_TIER_HOST);
}

TEST_F(HomesPolicyTest, HomesComeBackInTheReverseOrder) {
    make(512, 400, 200);
    place(PLACEMENT_AUTO);
    uintptr_t states[] = {created(CHUNK_OPTIM, 2), created(CHUNK_OPTIM, 2)};
    uintptr_t parameters[] = {created(CHUNK_PARAM, 2), created(CHUNK_PARAM, 1), created(CHUNK_PARAM, 2)};
    uintptr_t gradients[] = {created(CHUNK_GRAD, 2), created(CHUNK_GRAD, 1)};
    homes_evict(h, UINT64_MAX);
    homes_budget_set(h, 0);
    EXPECT_EQ(steps(2 * HOMES_RETURN_STEPS), 0);
    uint64_t budget = 0;
    for (uintptr_t address :
         {parameters[0], parameters[1], parameters[2], gradients[0], gradients[1], states[0], states[1]}) {
        budget += known[address].is.bytes;
        homes_budget_set(h, budget);
        EXPECT_EQ(steps(1), 1);
        EXPECT_EQ(tier_of(address), DEVICE_TIER_DEVICE);
        EXPECT_EQ(used(DEVICE_TIER_DEVICE), budget);
    }
}

// A small home fills what the next large one leaves.
TEST_F(HomesPolicyTest, WhatFitsComesBack) {
    make(512, 400, 200);
    place(PLACEMENT_AUTO);
    created(CHUNK_PARAM, 4);
    uintptr_t large = created(CHUNK_PARAM, 4), small = created(CHUNK_PARAM, 1);
    homes_evict(h, UINT64_MAX);
    homes_budget_set(h, 6 * UNIT);
    EXPECT_EQ(steps(2 * HOMES_RETURN_STEPS), 1);
    EXPECT_EQ(tier_of(small), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(large), DEVICE_TIER_HOST);
}

// The least of the last steps counts, and what has returned is taken from it.
TEST_F(HomesPolicyTest, OneShortStepIsEnough) {
    make(512, 100, 200);
    place(PLACEMENT_AUTO);
    for (int i = 0; i < 8; i++)
        created(CHUNK_PARAM, 4);
    EXPECT_EQ(homes_evict(h, UINT64_MAX), 32 * UNIT);
    steps(1);
    fake_device_others(fake, 85 * UNIT, 0);
    EXPECT_EQ(steps(1), 0);
    fake_device_others(fake, 0, 0);
    EXPECT_EQ(steps(HOMES_RETURN_STEPS - 2), 0);
    EXPECT_EQ(steps(1), 1);
    EXPECT_EQ(back(), 1u) << "15 were free, and 10 are kept";
    EXPECT_EQ(steps(1), 1); // the short step is forgotten
    EXPECT_EQ(back(), 8u);
    EXPECT_EQ(host_units(CHUNK_PARAM), 0u);
}

TEST_F(HomesPolicyTest, TheBudgetHolds) {
    make(512, 400, 200, 10 * UNIT);
    place(PLACEMENT_AUTO);
    uintptr_t first = created(CHUNK_PARAM, 8);
    uintptr_t second = created(CHUNK_PARAM, 6);
    EXPECT_EQ(tier_of(second), DEVICE_TIER_HOST);
    EXPECT_EQ(steps(3 * HOMES_RETURN_STEPS), 0);
    EXPECT_EQ(destroy(first), CASTOR_OK);
    EXPECT_EQ(steps(1), 1);
    EXPECT_EQ(tier_of(second), DEVICE_TIER_DEVICE);
}

// Memory that is free at each step's end and needed within each second step.
TEST_F(HomesPolicyTest, ReturnsThatDoNotLastBecomeRare) {
    make(512, 100, 200);
    place(PLACEMENT_AUTO);
    created(CHUNK_PARAM, 50);
    uint64_t rescues = 0;
    for (int step = 0; step < 1000; step++) {
        uint64_t others = step % 2 ? 60 : 10, there = used(DEVICE_TIER_DEVICE) / UNIT;
        if (there + others > 100) {
            EXPECT_GT(homes_evict(h, UNIT), 0u);
            rescues++;
        }
        steps(1);
    }
    EXPECT_GT(back(), 3u);
    EXPECT_LT(back(), 9u);
    EXPECT_LE(rescues, back() + 1);
}

TEST_F(HomesPolicyTest, WhatDoesNotMoveWaits) {
    make(512, 100, 200);
    place(PLACEMENT_AUTO);
    created(CHUNK_PARAM, 5);
    homes_evict(h, UINT64_MAX);
    EXPECT_EQ(steps(HOMES_RETURN_STEPS), 0);
    ASSERT_TRUE(homes_step_end(h));
    fake_device_fail_with(fake, CASTOR_ERR_SYSTEM);
    fake_device_fail(fake, fake_device_calls(fake) + 2, false);
    EXPECT_EQ(homes_return(h), CASTOR_ERR_SYSTEM);
    EXPECT_TRUE(says("(injected)")) << error_text();
    EXPECT_EQ(host_units(CHUNK_PARAM), 5u);
    EXPECT_EQ(steps(15), 0);
    EXPECT_EQ(steps(1), 1);
    EXPECT_EQ(host_units(CHUNK_PARAM), 0u);
}

// The driver is asked for its room after the first steps, and then rarely.
TEST_F(HomesPolicyTest, AScriptThatFitsPaysNothing) {
    make(512, 100, 200);
    static int asked;
    asked = 0;
    homes_destroy(h);
    device_driver counting = driver;
    counting.room = [](void *, int, uint64_t *free, uint64_t *total) { asked++, *free = 30, *total = 100; };
    ASSERT_EQ(homes_create(&h, &counting, 0, range, units * UNIT, UINT64_MAX), CASTOR_OK);
    place(PLACEMENT_AUTO);
    created(CHUNK_PARAM, 50);
    EXPECT_EQ(steps(50), 0);
    EXPECT_EQ(asked, 8);
    EXPECT_EQ(steps(50), 0);
    EXPECT_EQ(asked, 9);
    EXPECT_FALSE(homes_were_short(h));
}

TEST_F(HomesPolicyTest, AStepThatLeavesLessThanAQuarter) {
    make(512, 100, 200);
    created(CHUNK_PARAM, 50);
    fake_device_others(fake, 25 * UNIT, 0);
    EXPECT_EQ(steps(1), 0);
    EXPECT_FALSE(homes_were_short(h));
    fake_device_others(fake, 26 * UNIT, 0);
    EXPECT_EQ(steps(1), 0);
    EXPECT_TRUE(homes_were_short(h));
}
