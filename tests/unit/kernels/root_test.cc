// Square roots: which kind a function computes is found, each has that function's bits on numbers of all kinds and in all variants,
// and a function of no kind is called.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/root.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

bool everyday(float value) {
    return value > 0x1p-126f && value < 0x1p126f;
}

void processors(float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] = std::sqrt(values[i]);
}

#if defined(__x86_64__)
float estimate(float value) {
    return _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(value)));
}

// Volatile: no compiler makes one operation of two.
void separate(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const float value = values[i];
        if (!everyday(value)) {
            values[i] = std::sqrt(value);
            continue;
        }
        volatile float half = 0.5f * estimate(value), root = value * estimate(value);
        volatile float product = half * root;
        volatile float error = 0.5f - product;
        volatile float more = root * error;
        root = root + more;
        more = half * error;
        half = half + more;
        product = root * root;
        error = value - product;
        more = error * half;
        values[i] = root + more;
    }
}

void fused(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const float value = values[i];
        if (!everyday(value)) {
            values[i] = std::sqrt(value);
            continue;
        }
        float half = 0.5f * estimate(value), root = value * estimate(value);
        const float error = std::fma(-half, root, 0.5f);
        root = std::fma(root, error, root);
        half = std::fma(half, error, half);
        values[i] = std::fma(std::fma(-root, root, value), half, root);
    }
}

__attribute__((target("avx512f,avx512vl"))) void short_estimate(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const float value = values[i];
        if (!(value > 0x1p-101f && everyday(value))) {
            values[i] = std::sqrt(value);
            continue;
        }
        const float first = _mm_cvtss_f32(_mm_rsqrt14_ss(_mm_set_ss(value), _mm_set_ss(value)));
        const float root = value * first;
        values[i] = std::fma(std::fma(-root, root, value), 0.5f * first, root);
    }
}
#endif

// As the kind, but for one number in 1000.
void nearly(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        std::memcpy(&bits, &values[i], sizeof bits);
        values[i] = std::sqrt(values[i]);
        if (bits % 1000 == 7)
            values[i] = std::nextafter(values[i], 0.0f);
    }
}

class Roots : public ::testing::Test {
  protected:
    void TearDown() override { kernel_variant_select(best); }
    const kernel_variant best = kernel_variant_current();

    static void apply_equals(const kernel_roots &roots) {
        std::mt19937 random(1);
        for (size_t count : {size_t(0), size_t(1), size_t(7), size_t(16), size_t(61), size_t(1000003)}) {
            std::vector<float> found(count), expected(count);
            for (float &value : found) {
                const uint32_t bits = random();
                value = float_of(bits % 5 == 0 ? 0 : bits % 7 == 0 ? bits : bits >> 1);
            }
            expected = found;
            const std::vector<float> numbers = found;
            roots.function(expected.data(), count);
            kernel_roots_apply(&roots, found.data(), count);
            for (size_t i = 0; i < count; i++)
                ASSERT_TRUE(std::memcmp(&found[i], &expected[i], sizeof(float)) == 0 ||
                            (std::isnan(found[i]) && std::isnan(expected[i])))
                    << "kind " << roots.kind << ": the root of " << numbers[i] << " is " << found[i]
                    << ", not " << expected[i];
        }
    }

    void check(kernel_root *function, kernel_root_kind kind, int least_variant) {
        for (int variant = 0; variant < KERNEL_VARIANT_COUNT; variant++) {
            if (!kernel_variant_select(static_cast<kernel_variant>(variant)))
                continue;
            const kernel_roots found = kernel_roots_find(function);
            EXPECT_EQ(found.kind, variant >= least_variant ? kind : KERNEL_ROOT_CALLED)
                << "variant " << variant;
            apply_equals(found);
            apply_equals({function, kind}); // one that another variant found
        }
    }
};

TEST_F(Roots, TheProcessorsAreFound) {
    check(processors, KERNEL_ROOT_PROCESSOR, KERNEL_VARIANT_REFERENCE);
    EXPECT_EQ(kernel_roots_find(nullptr).kind, KERNEL_ROOT_PROCESSOR);
}

TEST_F(Roots, AFunctionOfNoKindIsCalled) {
    check(nearly, KERNEL_ROOT_CALLED, KERNEL_VARIANT_COUNT);
}

#if defined(__x86_64__)
TEST_F(Roots, EstimatesImprovedBySeparateOperations) {
    check(separate, KERNEL_ROOT_SEPARATE, KERNEL_VARIANT_AVX2);
}

TEST_F(Roots, EstimatesImprovedByFusedOperations) {
    check(fused, KERNEL_ROOT_FUSED, KERNEL_VARIANT_AVX2);
}

TEST_F(Roots, ShortEstimates) {
    if (!kernel_variant_supported(KERNEL_VARIANT_AVX512))
        GTEST_SKIP() << "needs AVX-512";
    check(short_estimate, KERNEL_ROOT_SHORT, KERNEL_VARIANT_AVX512);
}
#endif

} // namespace
