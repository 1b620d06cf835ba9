#include <gtest/gtest.h>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "variants.h"

namespace {

float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// The value of 16 bits that are no infinity and no NaN, by the definition of the formats.
float value_of(kernel_dtype dtype, uint16_t bits) {
    const int fraction_bits = dtype == KERNEL_F16 ? 10 : 7, least = dtype == KERNEL_F16 ? -14 : -126;
    const int exponent = (bits & 0x7FFF) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    const int units = exponent ? fraction + (1 << fraction_bits) : fraction;
    const double magnitude = std::ldexp(units, least + (exponent ? exponent - 1 : 0) - fraction_bits);
    return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
}

struct Case {
    float wide;
    uint16_t narrow;
    float settled;
};

// Each narrow value with the wide ones that it is the rounding of, to the halves of the ways to its neighbours, and those beyond.
std::vector<Case> cases(kernel_dtype dtype) {
    const uint16_t infinity = dtype == KERNEL_F16 ? 0x7C00 : 0x7F80;
    std::vector<Case> made;
    for (uint32_t bits = 0; bits + 1 < infinity; bits++)
        for (uint32_t sign : {0U, 0x8000U}) {
            const auto narrow = static_cast<uint16_t>(bits | sign), next = static_cast<uint16_t>(narrow + 1);
            const float value = value_of(dtype, narrow), beyond = value_of(dtype, next);
            const float middle = value / 2 + beyond / 2; // exact
            made.push_back({value, narrow, value});
            made.push_back({value, next, beyond});
            made.push_back({middle, narrow, narrow % 2 ? value : middle});
            made.push_back({middle, next, narrow % 2 ? middle : beyond});
            made.push_back({std::nextafterf(middle, value), narrow, std::nextafterf(middle, value)});
            made.push_back({std::nextafterf(middle, beyond), narrow, value});
        }
    return made;
}

class Settle : public EachVariant {
  protected:
    // Each case, in all places of a vector and behind the last whole one.
    static void check(kernel_dtype dtype, const std::vector<Case> &made) {
        for (size_t first : {0U, 1U, 7U}) {
            std::vector<float> wide;
            std::vector<uint16_t> narrow;
            bool changes = false;
            for (size_t i = first; i < made.size(); i++) {
                wide.push_back(made[i].wide);
                narrow.push_back(made[i].narrow);
                changes |= bits_of(made[i].wide) != bits_of(made[i].settled);
            }
            ASSERT_EQ(kernel_settle(dtype, wide.data(), narrow.data(), wide.size()), changes);
            for (size_t i = first; i < made.size(); i++)
                ASSERT_EQ(bits_of(wide[i - first]), bits_of(made[i].settled))
                    << made[i].wide << " behind 0x" << std::hex << made[i].narrow << ", case " << std::dec
                    << i;
            EXPECT_FALSE(kernel_settle(dtype, wide.data(), narrow.data(), wide.size()));
        }
    }
};

TEST_P(Settle, WhatRoundsToTheNarrowValueStays) {
    check(KERNEL_BF16, cases(KERNEL_BF16));
    check(KERNEL_F16, cases(KERNEL_F16));
}

TEST_P(Settle, ZerosInfinitiesAndWhatIsNoNumber) {
    const float payload = float_of_bits(0x7FA12345), quiet = float_of_bits(0xFFC00001), least = FLT_TRUE_MIN;
    check(KERNEL_BF16, {{0.0F, 0x8000, -0.0F},
                        {-0.0F, 0x8000, -0.0F},
                        {least, 0, least},
                        {least, 0x8000, -0.0F},
                        {FLT_MAX, 0x7F80, FLT_MAX},
                        {FLT_MAX, 0x7F7F, float_of_bits(0x7F7F0000)},
                        {1.0F, 0xFF80, -HUGE_VALF},
                        {payload, 0x7FC0, payload},
                        {payload, 0xFFFF, payload},
                        {quiet, 0x7FC0, quiet},
                        {quiet, 0x3F80, 1.0F},
                        {2.0F, 0x7FC0, float_of_bits(0x7FC00000)}});
    check(KERNEL_F16, {{0.0F, 0x8000, -0.0F},
                       {least, 0, least},
                       {65519.0F, 0x7BFF, 65519.0F},
                       {65520.0F, 0x7C00, 65520.0F},
                       {65520.0F, 0x7BFF, 65504.0F},
                       {payload, 0x7E00, payload},
                       {quiet, 0xFC01, quiet},
                       {quiet, 0x3C00, 1.0F},
                       {2.0F, 0x7E00, float_of_bits(0x7FC00000)}});
}

TEST_P(Settle, OneChangedElementChangesNoOther) {
    for (size_t count : {1U, 15U, 16U, 33U})
        for (size_t changed = 0; changed < count; changed++) {
            std::vector<float> wide(count, 1.001F), expected = wide;
            std::vector<uint16_t> narrow(count, 0x3F80);
            narrow[changed] = 0x4000;
            expected[changed] = 2.0F;
            EXPECT_TRUE(kernel_settle(KERNEL_BF16, wide.data(), narrow.data(), count));
            EXPECT_EQ(wide, expected) << changed << " of " << count;
        }
    EXPECT_FALSE(kernel_settle(KERNEL_BF16, nullptr, nullptr, 0));
}

EACH_VARIANT(Settle);

} // namespace
