// Tests that run in each variant of the kernels that this processor has.
#pragma once

#include <gtest/gtest.h>

#include "kernels/kernels.h"

class EachVariant : public testing::TestWithParam<kernel_variant> {
  protected:
    void SetUp() override {
        if (!kernel_variant_select(GetParam()))
            GTEST_SKIP() << "this processor lacks " << kernel_variant_name(GetParam());
    }
    void TearDown() override { ASSERT_TRUE(kernel_variant_select(before_)); }

  private:
    const kernel_variant before_ = kernel_variant_current();
};

#define EACH_VARIANT(suite)                                                                                  \
    INSTANTIATE_TEST_SUITE_P(                                                                                \
        Variants, suite,                                                                                     \
        testing::Values(KERNEL_VARIANT_REFERENCE, KERNEL_VARIANT_AVX2, KERNEL_VARIANT_AVX512),               \
        [](const auto &info) { return kernel_variant_name(info.param); })
