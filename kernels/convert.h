/* 16-bit floats from and to float, one element at a time, rounding to nearest even as c10 does.
 *
 * Written without branches, so that loops over them can be vectorized. */
#ifndef CASTOR_KERNELS_CONVERT_H
#define CASTOR_KERNELS_CONVERT_H

#include <stdint.h>

static inline float kernel_float_of_bits(uint32_t bits) {
    union {
        uint32_t bits;
        float value;
    } u = {.bits = bits};
    return u.value;
}

static inline uint32_t kernel_bits_of_float(float value) {
    union {
        float value;
        uint32_t bits;
    } u = {.value = value};
    return u.bits;
}

static inline float kernel_float_of_bf16(uint16_t value) {
    return kernel_float_of_bits((uint32_t)value << 16);
}

/* Any NaN becomes 0x7FC0: adding the rounding to its payload could make it an infinity. */
static inline uint16_t kernel_bf16_of_float(float value) {
    uint32_t bits = kernel_bits_of_float(value);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? 0x7FC0u : rounded);
}

static inline float kernel_float_of_f16(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t magnitude = value & 0x7FFFu;
    uint32_t normal = (magnitude << 13) + (112u << 23);      /* the exponent's bias: 15 becomes 127 */
    uint32_t special = (magnitude << 13) | 0x7F800000u;      /* infinity, NaN */
    uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0u; /* as the processor's conversion does */
    uint32_t small =
        kernel_bits_of_float((float)(int32_t)magnitude * 0x1p-24f); /* zero, denormal: exact in float */
    uint32_t bits = magnitude >= 0x7C00u ? special | quiet : magnitude < 0x0400u ? small : normal;
    return kernel_float_of_bits(bits | sign);
}

static inline uint16_t kernel_f16_of_float(float value) {
    uint32_t bits = kernel_bits_of_float(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    uint32_t normal = (magnitude - (112u << 23) + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13;
    /* Below 2^-14 a half counts in steps of 2^-24, and so do the floats from 0.5 to 1: the addition rounds. */
    uint32_t small = kernel_bits_of_float(kernel_float_of_bits(magnitude) + 0.5f) - 0x3F000000u;
    uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x03FFu);
    uint32_t half = magnitude > 0x7F800000u    ? nan
                    : magnitude >= 0x477FF000u ? 0x7C00u /* 65520 and more round to infinity */
                    : magnitude < 0x38800000u  ? small
                                               : normal;
    return (uint16_t)(half | sign);
}

#endif
