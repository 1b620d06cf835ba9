/* 16-bit floats to and from float, rounding to nearest even. */
#ifndef SIM_ENGINE_HALF_H
#define SIM_ENGINE_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t to_bf16(float value) {
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float from_fp16(uint16_t bits) {
    unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value;

    if (exponent == 31)
        value = fraction ? NAN : INFINITY;
    else
        value =
            exponent ? ldexpf((float)(fraction | 1024), (int)exponent - 25) : ldexpf((float)fraction, -24);
    return bits & 0x8000 ? -value : value;
}

static inline uint16_t to_fp16(float value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;

    value = fabsf(value);
    if (isnan(value))
        return sign | 0x7e00;
    if (value >= 65520.0f)
        return sign | 0x7c00;
    if (value < 6.103515625e-5f) /* subnormal: steps of 2^-24 */
        return sign | (uint16_t)nearbyintf(ldexpf(value, 24));
    float fraction = frexpf(value, &exponent); /* in [0.5, 1): 11 bits with the leading one */
    uint32_t bits = (uint32_t)nearbyintf(ldexpf(fraction, 11));
    return sign | (uint16_t)(((uint32_t)(exponent + 14) << 10) + bits - 1024);
}

#endif
