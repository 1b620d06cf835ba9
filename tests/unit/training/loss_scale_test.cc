#include <gtest/gtest.h>
#include <cmath>
#include <cstring>

extern "C" {
#include "training/loss_scale.h"
}

namespace {

loss_scale begun() {
    loss_scale s;
    memset(&s, 0xff, sizeof s);
    loss_scale_begin(&s);
    return s;
}

// How many steps it takes until the scale is doubled.
int steps_to_growth(loss_scale *s) {
    int steps = 1;
    while (!loss_scale_stepped(s))
        steps++;
    return steps;
}

TEST(LossScale, BeginsAt65536) {
    const loss_scale s = begun();
    EXPECT_EQ(s.scale, 65536);
    EXPECT_EQ(s.good, 0);
}

TEST(LossScale, IsDoubledAfterAThousandGoodSteps) {
    loss_scale s = begun();
    EXPECT_EQ(steps_to_growth(&s), 1000);
    EXPECT_EQ(s.scale, 131072);
    EXPECT_EQ(steps_to_growth(&s), 1000);
    EXPECT_EQ(s.scale, 262144);
}

TEST(LossScale, AnOverflowHalvesItAndTheCountBeginsAnew) {
    loss_scale s = begun();
    for (int step = 0; step < 999; step++)
        EXPECT_FALSE(loss_scale_stepped(&s));
    loss_scale_overflowed(&s);
    EXPECT_EQ(s.scale, 32768);
    EXPECT_EQ(steps_to_growth(&s), 1000);
    EXPECT_EQ(s.scale, 65536);
}

TEST(LossScale, StaysAtTheLargest) {
    loss_scale s = begun();
    for (int doubling = 0; doubling < 8; doubling++)
        steps_to_growth(&s);
    EXPECT_EQ(s.scale, 16777216);
    for (int step = 0; step < 2500; step++)
        EXPECT_FALSE(loss_scale_stepped(&s));
    EXPECT_EQ(s.scale, 16777216);
    loss_scale_overflowed(&s);
    EXPECT_EQ(steps_to_growth(&s), 1000);
    EXPECT_EQ(s.scale, 16777216);
}

TEST(LossScale, StaysAPowerOfTwo) {
    loss_scale s = begun();
    for (int overflow = 1; overflow <= 1000; overflow++) {
        loss_scale_overflowed(&s);
        EXPECT_EQ(s.scale, std::ldexp(1, 16 - overflow));
    }
}

TEST(LossScale, BecomesSmallerFromTheGivenNumberOfOverflowsOn) {
    loss_scale s = begun();
    s.hysteresis = 3;
    loss_scale_overflowed(&s);
    loss_scale_overflowed(&s);
    EXPECT_EQ(s.scale, 65536);
    loss_scale_overflowed(&s);
    EXPECT_EQ(s.scale, 32768);
    loss_scale_overflowed(&s); // they are counted until the scale grows
    EXPECT_EQ(s.scale, 16384);
    EXPECT_EQ(steps_to_growth(&s), 1000);
    loss_scale_overflowed(&s);
    EXPECT_EQ(s.scale, 32768);
}

TEST(LossScale, KeepsToItsBoundsAndFactors) {
    loss_scale s = begun();
    s.smallest = 10000;
    s.largest = 100000;
    s.growth = 4;
    s.backoff = 0.25;
    s.interval = 2;
    EXPECT_EQ(steps_to_growth(&s), 2);
    EXPECT_EQ(s.scale, 100000);
    loss_scale_overflowed(&s);
    EXPECT_EQ(s.scale, 25000);
    loss_scale_overflowed(&s);
    EXPECT_EQ(s.scale, 10000);
}

} // namespace
