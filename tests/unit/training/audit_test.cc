// Sketches estimate norms and differences; the verdict follows from the limits that audit.c states.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "castor.h"

namespace {

constexpr int kF32 = 0, kF64 = 1;

std::vector<float> normal(size_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw;
    std::vector<float> values(count);
    for (float &value : values)
        value = draw(generator);
    return values;
}

std::vector<double> sketch(const std::vector<float> &values, double weight = 1) {
    std::vector<double> made(CASTOR_SKETCH_BUCKETS);
    castor_sketch_add(kF32, values.data(), values.size(), weight, made.data());
    return made;
}

double norm(const std::vector<double> &values) {
    double sum = 0;
    for (double value : values)
        sum += value * value;
    return std::sqrt(sum);
}

castor_audit compare(std::vector<std::vector<float>> whole, std::vector<std::vector<float>> split,
                     double whole_loss = 1, double split_loss = 1, int rounding = CASTOR_AUDIT_SINGLE,
                     uint32_t ranks = 2) {
    std::vector<double> of_whole, of_split;
    for (auto [from, to] : {std::pair{&whole, &of_whole}, {&split, &of_split}})
        for (const auto &values : *from)
            for (double value : sketch(values))
                to->push_back(value);
    castor_audit audit = {};
    audit.whole_loss = whole_loss;
    audit.split_loss = split_loss;
    audit.rounding = rounding;
    audit.ranks = ranks;
    castor_audit_compare(of_whole.data(), of_split.data(), static_cast<uint32_t>(whole.size()), &audit);
    return audit;
}

std::vector<float> scaled(std::vector<float> values, float factor) {
    for (float &value : values)
        value *= factor;
    return values;
}

TEST(Sketch, EstimatesTheNorm) {
    double ratio = 0;
    for (unsigned seed = 0; seed < 50; seed++) {
        const std::vector<float> values = normal(10000, seed);
        double square = 0;
        for (float value : values)
            square += double(value) * value;
        const double estimated = norm(sketch(values)) / std::sqrt(square);
        EXPECT_GT(estimated, 0.4);
        EXPECT_LT(estimated, 1.8);
        ratio += estimated * estimated / 50;
    }
    EXPECT_NEAR(ratio, 1, 0.12); // 50 draws of a mean of 32 squares
}

TEST(Sketch, HoldsOneNumberWhole) {
    EXPECT_DOUBLE_EQ(norm(sketch({-3.5F})), 3.5);
}

// A column of a matrix stands in every 32nd place: it must not end in one bucket, where its numbers could cancel.
TEST(Sketch, SpreadsAColumn) {
    std::vector<float> column(32 * 4096);
    for (size_t i = 0; i < column.size(); i += 32)
        column[i] = 1;
    const std::vector<double> made = sketch(column);
    int used = 0;
    for (double value : made)
        used += value != 0;
    EXPECT_GT(used, 28);
    EXPECT_NEAR(norm(made), 64, 24);
}

TEST(Sketch, IsLinear) {
    const std::vector<float> a = normal(1000, 1), b = normal(1000, 2);
    std::vector<float> sum(a);
    for (size_t i = 0; i < sum.size(); i++)
        sum[i] = a[i] + 2 * b[i];
    std::vector<double> added = sketch(a);
    castor_sketch_add(kF32, b.data(), b.size(), 2, added.data());
    const std::vector<double> expected = sketch(sum);
    for (int i = 0; i < CASTOR_SKETCH_BUCKETS; i++)
        EXPECT_NEAR(added[i], expected[i], 1e-4);
}

TEST(Sketch, IsTheSameOfEachDtype) {
    const std::vector<float> values = normal(333, 7);
    const std::vector<double> wide(values.begin(), values.end());
    std::vector<double> made(CASTOR_SKETCH_BUCKETS);
    castor_sketch_add(kF64, wide.data(), wide.size(), 1, made.data());
    EXPECT_EQ(made, sketch(values));
    // Small whole numbers are exact in 16 bits: 1 is 0x3C00 as a half and 0x3F80 as bfloat16.
    const std::vector<float> ones(100, 1);
    for (auto [dtype, one] : {std::pair<int, uint16_t>{2, 0x3C00}, {3, 0x3F80}}) {
        const std::vector<uint16_t> narrow(100, one);
        std::vector<double> of_narrow(CASTOR_SKETCH_BUCKETS);
        castor_sketch_add(dtype, narrow.data(), narrow.size(), 1, of_narrow.data());
        EXPECT_EQ(of_narrow, sketch(ones));
    }
}

TEST(Audit, RoundingIsEqual) {
    std::vector<float> a = normal(5000, 1), b = normal(70, 2), near = a;
    for (float &value : near)
        value *= 1 + 1e-6F;
    const castor_audit audit = compare({a, b}, {near, b}, 2.5, 2.5 * (1 + 1e-6));
    EXPECT_EQ(audit.verdict, CASTOR_AUDIT_EQUAL);
    EXPECT_GT(audit.difference, 1e-7);
    EXPECT_LT(audit.difference, 1e-5);
    EXPECT_NEAR(audit.whole_norm, std::sqrt(5070.), 25);
}

// A mean over one sample less, which shows in the loss and, of fewer samples, in the gradients alone.
TEST(Audit, OneSampleLessIsDifferent) {
    const std::vector<float> a = normal(5000, 1);
    EXPECT_EQ(compare({a}, {a}, 1, 1024. / 1023).verdict, CASTOR_AUDIT_DIFFERENT);
    EXPECT_EQ(compare({a}, {scaled(a, 32.F / 31)}).verdict, CASTOR_AUDIT_DIFFERENT);
}

TEST(Audit, OneGradientOfManyIsDifferent) {
    std::vector<std::vector<float>> whole, split;
    for (unsigned i = 0; i < 100; i++)
        whole.push_back(normal(100, i));
    split = whole;
    split[37] = scaled(split[37], 1.15F);
    const castor_audit audit = compare(whole, split);
    EXPECT_EQ(audit.verdict, CASTOR_AUDIT_DIFFERENT);
    EXPECT_EQ(audit.worst, 37U);
}

// A bias before a batch norm has the gradient zero, and what rounding leaves of it.
TEST(Audit, AGradientOfRoundingErrorsDoesNotCount) {
    const std::vector<float> a = normal(5000, 1);
    EXPECT_EQ(compare({a, scaled(normal(64, 2), 1e-7F)}, {a, scaled(normal(64, 3), 1e-7F)}).verdict,
              CASTOR_AUDIT_EQUAL);
}

TEST(Audit, ALossNearZeroIsJudgedByItsGradients) {
    const std::vector<float> a = normal(100, 1);
    EXPECT_EQ(compare({a}, {a}, 1e-7, -1e-7).verdict, CASTOR_AUDIT_EQUAL);
    EXPECT_EQ(compare({a}, {scaled(a, 2)}, 1e-7, 1e-7).verdict, CASTOR_AUDIT_DIFFERENT);
    EXPECT_EQ(compare({{0, 0}}, {{0, 0}}, 0, 0).verdict, CASTOR_AUDIT_EQUAL);
}

// What three ranks add up of a sum, each as a third of its part's.
TEST(Audit, ASumIsToldFromWhatCannotBeSplit) {
    const std::vector<float> a = normal(5000, 1), b = normal(70, 2);
    EXPECT_EQ(compare({a, b}, {scaled(a, 1 / 3.F), scaled(b, 1 / 3.F)}, 6, 2, CASTOR_AUDIT_SINGLE, 3).verdict,
              CASTOR_AUDIT_SUM);
    EXPECT_EQ(compare({a, b}, {scaled(a, 1 / 3.F), scaled(b, 1 / 3.F)}, 6, 2, CASTOR_AUDIT_SINGLE, 2).verdict,
              CASTOR_AUDIT_DIFFERENT);
    EXPECT_EQ(compare({a, b}, {scaled(a, 1 / 3.F), b}, 6, 2, CASTOR_AUDIT_SINGLE, 3).verdict,
              CASTOR_AUDIT_DIFFERENT);
    EXPECT_EQ(compare({a, b}, {scaled(a, 1 / 3.F), scaled(b, 1 / 3.F)}, 6, 6, CASTOR_AUDIT_SINGLE, 3).verdict,
              CASTOR_AUDIT_DIFFERENT);
}

TEST(Audit, SixteenBitsRoundMore) {
    const std::vector<float> a = normal(5000, 1), b = scaled(a, 1.01F);
    EXPECT_EQ(compare({a}, {b}, 1, 1.01, CASTOR_AUDIT_HALF).verdict, CASTOR_AUDIT_EQUAL);
    EXPECT_EQ(compare({a}, {b}, 1, 1.01).verdict, CASTOR_AUDIT_DIFFERENT);
    EXPECT_EQ(compare({a}, {scaled(a, 1.2F)}, 1, 1, CASTOR_AUDIT_HALF).verdict, CASTOR_AUDIT_DIFFERENT);
    EXPECT_EQ(compare({a}, {normal(5000, 2)}, 1, 1.3, CASTOR_AUDIT_LOOSE).verdict, CASTOR_AUDIT_EQUAL);
    EXPECT_EQ(compare({a}, {a}, 1, 2.1, CASTOR_AUDIT_LOOSE).verdict, CASTOR_AUDIT_DIFFERENT);
}

TEST(Audit, WhatIsNoNumberIsUnknown) {
    const float infinite = std::numeric_limits<float>::infinity();
    const double nothing = std::nan("");
    const std::vector<float> a = normal(100, 1);
    EXPECT_EQ(compare({{infinite}}, {{1}}).verdict, CASTOR_AUDIT_UNKNOWN);
    EXPECT_EQ(compare({a}, {a}, nothing, 1).verdict, CASTOR_AUDIT_UNKNOWN);
    EXPECT_EQ(compare({a}, {a}, nothing, nothing).verdict, CASTOR_AUDIT_EQUAL); // there is no one loss
}

} // namespace
