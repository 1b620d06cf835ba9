/* Copies that leave the caches as they are. */
#include <stdint.h>
#include <string.h>
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LINE 64u

void kernel_stream(void *restrict dst_, const void *restrict src_, size_t bytes) {
    uint8_t *dst = dst_;
    const uint8_t *src = src_;
    size_t before = -(uintptr_t)dst % LINE;
    if (bytes < before + LINE) {
        memcpy(dst, src, bytes);
        return;
    }
    memcpy(dst, src, before);
    for (bytes -= before, dst += before, src += before; bytes >= LINE;
         bytes -= LINE, dst += LINE, src += LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)src), b = _mm_loadu_si128((const __m128i *)src + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)src + 2), d = _mm_loadu_si128((const __m128i *)src + 3);
        _mm_stream_si128((__m128i *)dst, a);
        _mm_stream_si128((__m128i *)dst + 1, b);
        _mm_stream_si128((__m128i *)dst + 2, c);
        _mm_stream_si128((__m128i *)dst + 3, d);
    }
    memcpy(dst, src, bytes);
    _mm_sfence(); /* others may be told that it is there */
}

#else

void kernel_stream(void *restrict dst, const void *restrict src, size_t bytes) {
    memcpy(dst, src, bytes);
}

#endif
