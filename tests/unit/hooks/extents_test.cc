/* How far the matrices of products go: beside a count of every element's address, on small shapes. */
#include <gtest/gtest.h>
#include <algorithm>

extern "C" {
#include "interpose/hooks/cuda/extents.h"
}

namespace {

/* The end of the last element, by visiting all: element (row, column) of matrix `b` lies at b * stride + column * leading + row. */
size_t visited(int64_t rows, int64_t columns, int64_t leading, int64_t stride, int64_t count, uint32_t bits) {
    int64_t last = -1;
    for (int64_t b = 0; b < count; b++)
        for (int64_t column = 0; column < columns; column++)
            for (int64_t row = 0; row < rows; row++)
                last = std::max(last, b * stride + column * leading + row);
    return last < 0 ? 0 : (size_t)((last + 1) * bits + 7) / 8;
}

const uint32_t all_bits[] = {4, 8, 16, 32, 64, 128};

} // namespace

TEST(Extents, Matrices) {
    for (uint32_t bits : all_bits)
        for (int64_t rows = 0; rows < 5; rows++)
            for (int64_t columns = 0; columns < 5; columns++)
                for (int64_t leading = rows; leading < rows + 3; leading++)
                    EXPECT_EQ(extent_matrix(rows, columns, leading, bits),
                              visited(rows, columns, leading, 0, 1, bits))
                        << rows << "x" << columns << " leading " << leading << " bits " << bits;
}

TEST(Extents, AnOperandThatIsTransposedLiesTheOtherWay) {
    EXPECT_EQ(extent_operand(CUBLAS_OP_N, 3, 7, 5, 32), visited(3, 7, 5, 0, 1, 32));
    for (cublasOperation_t operation : {CUBLAS_OP_T, CUBLAS_OP_C})
        EXPECT_EQ(extent_operand(operation, 3, 7, 9, 32), visited(7, 3, 9, 0, 1, 32));
}

TEST(Extents, Batches) {
    for (uint32_t bits : all_bits)
        for (int64_t count = 1; count < 5; count++)
            for (int64_t stride : {0, 1, 12, 40})
                EXPECT_EQ(extent_batch(extent_matrix(4, 3, 4, bits), stride, count, bits),
                          visited(4, 3, 4, stride, count, bits))
                    << count << " at " << stride << " bits " << bits;
}

TEST(Extents, Vectors) {
    for (int64_t step : {1, 2, 5, -1, -3})
        for (int64_t count = 1; count < 5; count++)
            EXPECT_EQ(extent_vector(count, step, 64), visited(1, count, std::abs(step), 0, 1, 64));
    EXPECT_EQ(extent_vector(5, 0, 32), 4u);
    EXPECT_EQ(extent_vector(0, 1, 32), 0u);
}

TEST(Extents, WhatIsUnknown) {
    EXPECT_EQ(extent_matrix(4, 4, 4, extent_bits((cudaDataType)999)), 0u);
    EXPECT_EQ(extent_matrix(-1, 4, 4, 32), 0u);
    EXPECT_EQ(extent_matrix(4, -1, 4, 32), 0u);
    EXPECT_EQ(extent_matrix(4, 4, -4, 32), 0u);
    EXPECT_EQ(extent_batch(64, -16, 2, 32), 0u);
    EXPECT_EQ(extent_batch(64, 16, 0, 32), 0u);
    EXPECT_EQ(extent_batch(0, 16, 2, 32), 0u);
    EXPECT_EQ(extent_matrix(1, INT64_MAX, 2, 32), 0u);
    EXPECT_EQ(extent_matrix(INT64_MAX, 1, 1, 32), 0u);
    EXPECT_EQ(extent_batch(64, INT64_MAX, 3, 32), 0u);
}

TEST(Extents, TypesOfCuda) {
    EXPECT_EQ(extent_bits(CUDA_R_4I), 4u);
    EXPECT_EQ(extent_bits(CUDA_R_8F_E4M3), 8u);
    EXPECT_EQ(extent_bits(CUDA_R_16BF), 16u);
    EXPECT_EQ(extent_bits(CUDA_R_32F), 32u);
    EXPECT_EQ(extent_bits(CUDA_C_16F), 32u);
    EXPECT_EQ(extent_bits(CUDA_R_64F), 64u);
    EXPECT_EQ(extent_bits(CUDA_C_32F), 64u);
    EXPECT_EQ(extent_bits(CUDA_C_64F), 128u);
}
