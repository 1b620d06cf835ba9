// Loops that stand in for functions of others: found for what they do alike, and for nothing else.
#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <vector>
extern "C" {
#include "collectives/node_loop.h"
#include "kernels/kernels.h"
}

namespace {

template <typename T, T (*combine)(T, T)>
void apply(void *, void *out, const void *a, const void *b, size_t numel) {
    for (size_t i = 0; i < numel; i++)
        static_cast<T *>(out)[i] = combine(static_cast<const T *>(a)[i], static_cast<const T *>(b)[i]);
}

template <typename T, T (*combine)(T, T)> node_loop *found() {
    node_reduction reduction = {apply<T, combine>, nullptr};
    return node_loop_find(&reduction, sizeof(T));
}

float sum(float a, float b) {
    return a + b;
}
double product(double a, double b) {
    return a * b;
}
float least(float a, float b) {
    return std::min(a, b);
}
int64_t bits(int64_t a, int64_t b) {
    return a & b;
}
int32_t largest(int32_t a, int32_t b) {
    return std::max(a, b);
}

TEST(NodeLoop, IsFoundForWhatItDoes) {
    EXPECT_EQ((found<float, sum>()), kernel_combine_find(KERNEL_ELEMENT_F32, KERNEL_SUM));
    EXPECT_EQ((found<double, product>()), kernel_combine_find(KERNEL_ELEMENT_F64, KERNEL_PRODUCT));
    EXPECT_EQ((found<float, least>()), kernel_combine_find(KERNEL_ELEMENT_F32, KERNEL_MIN));
    EXPECT_EQ((found<int64_t, bits>()), kernel_combine_find(KERNEL_ELEMENT_I64, KERNEL_AND));
    EXPECT_EQ((found<int32_t, largest>()), kernel_combine_find(KERNEL_ELEMENT_I32, KERNEL_MAX));
}

float difference(float a, float b) {
    return a - b;
}
float mean(float a, float b) {
    return (a + b) / 2;
}
float first_least(float a, float b) {
    return a <= b ? a : b;
} // another one of a number and a NaN
float larger(float a, float b) {
    return std::max(b, a);
}
uint16_t other_sum(uint16_t a, uint16_t b) {
    return uint16_t(a + b);
}
uint32_t saturated(uint32_t a, uint32_t b) {
    return a + b < a ? UINT32_MAX : a + b;
}

TEST(NodeLoop, IsNotFoundForWhatItDoesNotDo) {
    EXPECT_EQ((found<float, difference>()), nullptr);
    EXPECT_EQ((found<float, mean>()), nullptr);
    EXPECT_EQ((found<float, first_least>()), nullptr);
    EXPECT_EQ((found<float, larger>()), nullptr);
    EXPECT_EQ((found<uint16_t, other_sum>()), nullptr);
    EXPECT_EQ((found<uint32_t, saturated>()), nullptr);
}

} // namespace
