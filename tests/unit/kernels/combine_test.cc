// What reductions apply, in every variant: against arithmetic written out here, at all lengths, in place and not.
#include <gtest/gtest.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>
extern "C" {
#include "kernels/convert.h"
#include "variants.h"
}

namespace {

constexpr size_t kMaxCount = 70;

template <typename T> T wrap(kernel_combination how, T a, T b) {
    using U = std::make_unsigned_t<T>;
    switch (how) {
    case KERNEL_SUM:
        return T(U(a) + U(b));
    case KERNEL_PRODUCT:
        return T(uint64_t(a) * uint64_t(b));
    case KERNEL_MIN:
        return b < a ? b : a;
    case KERNEL_MAX:
        return a < b ? b : a;
    case KERNEL_AND:
        return T(a & b);
    case KERNEL_OR:
        return T(a | b);
    default:
        return T(a ^ b);
    }
}

template <typename T> T round(kernel_combination how, T a, T b) {
    return how == KERNEL_SUM       ? a + b
           : how == KERNEL_PRODUCT ? a * b
           : how == KERNEL_MIN     ? (b < a ? b : a)
                                   : (a < b ? b : a);
}

struct Half {
    uint16_t bits;
    float wide() const { return kernel_float_of_f16(bits); }
    static Half of(float value) { return {kernel_f16_of_float(value)}; }
};
struct Brain {
    uint16_t bits;
    float wide() const { return kernel_float_of_bf16(bits); }
    static Brain of(float value) { return {kernel_bf16_of_float(value)}; }
};

template <typename T> T narrow(kernel_combination how, T a, T b) {
    if (how == KERNEL_MIN)
        return b.wide() < a.wide() ? b : a;
    if (how == KERNEL_MAX)
        return a.wide() < b.wide() ? b : a;
    return T::of(how == KERNEL_SUM ? a.wide() + b.wide() : a.wide() * b.wide());
}

bool is_nan(float value) {
    return std::isnan(value);
}
bool is_nan(double value) {
    return std::isnan(value);
}
bool is_nan(Half value) {
    return std::isnan(value.wide());
}
bool is_nan(Brain value) {
    return std::isnan(value.wide());
}
template <typename T> std::enable_if_t<std::is_integral_v<T>, bool> is_nan(T) {
    return false;
}

template <typename T> struct Values {
    std::vector<T> a, b, out;
    explicit Values(size_t count, std::mt19937_64 &random) : a(count), b(count), out(count + 1) {
        for (std::vector<T> *values : {&a, &b})
            for (T &value : *values) {
                uint64_t bits = random();
                std::memcpy(&value, &bits, sizeof value);
            }
        std::memset(static_cast<void *>(&out[count]), 0x5A, sizeof(T));
    }
};

template <typename T>
void expect(const T &seen, const T &wanted, kernel_element element, kernel_combination how, size_t i) {
    if (is_nan(wanted))
        ASSERT_TRUE(is_nan(seen)) << element << " " << how << " at " << i;
    else
        ASSERT_EQ(std::memcmp(&seen, &wanted, sizeof seen), 0) << element << " " << how << " at " << i;
}

template <typename T>
void check(kernel_element element, T (*wanted)(kernel_combination, T, T), bool has_bits) {
    std::mt19937_64 random(5);
    ASSERT_EQ(kernel_element_bytes(element), sizeof(T));
    for (int number = 0; number < KERNEL_COMBINATION_COUNT; number++) {
        auto how = kernel_combination(number);
        kernel_combine *combine = kernel_combine_find(element, how);
        ASSERT_EQ(combine != nullptr, has_bits || how < KERNEL_AND);
        for (size_t count = 0; combine && count <= kMaxCount; count++) {
            Values<T> v(count, random);
            std::vector<T> left = v.a, right = v.b;
            combine(v.out.data(), v.a.data(), v.b.data(), count);
            combine(left.data(), left.data(), v.b.data(), count);
            combine(right.data(), v.a.data(), right.data(), count);
            for (size_t i = 0; i < count; i++)
                for (const T &seen : {v.out[i], left[i], right[i]})
                    expect(seen, wanted(how, v.a[i], v.b[i]), element, how, i);
            T guard;
            std::memset(static_cast<void *>(&guard), 0x5A, sizeof guard);
            ASSERT_EQ(std::memcmp(&guard, &v.out[count], sizeof guard), 0) << count;
        }
    }
}

class Combine : public EachVariant {};

TEST_P(Combine, EqualsArithmetic) {
    check<float>(KERNEL_ELEMENT_F32, round<float>, false);
    check<double>(KERNEL_ELEMENT_F64, round<double>, false);
    check<Half>(KERNEL_ELEMENT_F16, narrow<Half>, false);
    check<Brain>(KERNEL_ELEMENT_BF16, narrow<Brain>, false);
    check<int8_t>(KERNEL_ELEMENT_I8, wrap<int8_t>, true);
    check<uint8_t>(KERNEL_ELEMENT_U8, wrap<uint8_t>, true);
    check<int32_t>(KERNEL_ELEMENT_I32, wrap<int32_t>, true);
    check<int64_t>(KERNEL_ELEMENT_I64, wrap<int64_t>, true);
}

TEST_P(Combine, ANaNOfAHalfKeepsItsSignAlone) {
    std::vector<uint16_t> nan(11), one(11, 0x3C00);
    for (int sign : {0, 0x8000}) {
        for (size_t i = 0; i < nan.size(); i++)
            nan[i] = uint16_t(sign | 0x7C01 | i << 4);
        for (kernel_combination how : {KERNEL_SUM, KERNEL_PRODUCT}) {
            std::vector<uint16_t> out(nan.size());
            kernel_combine_find(KERNEL_ELEMENT_F16, how)(out.data(), nan.data(), one.data(), nan.size());
            for (uint16_t value : out)
                EXPECT_EQ(value, sign | 0x7E00);
        }
    }
}

EACH_VARIANT(Combine);

TEST(Stream, CopiesAtEveryLengthAndOffset) {
    std::mt19937_64 random(6);
    std::vector<uint8_t> from(1000), to(1000), wanted(1000);
    for (uint8_t &byte : from)
        byte = uint8_t(random());
    for (size_t bytes = 0; bytes < 400; bytes++) {
        size_t source = random() % 100, target = random() % 100;
        std::fill(to.begin(), to.end(), uint8_t(0));
        wanted = to;
        kernel_stream(to.data() + target, from.data() + source, bytes);
        std::memcpy(wanted.data() + target, from.data() + source, bytes);
        ASSERT_EQ(to, wanted) << bytes << " bytes from " << source << " to " << target;
    }
}

} // namespace
