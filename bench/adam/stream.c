/* What memory allows: the bytes of an Adam step read and written, with next to no arithmetic. */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

#define STREAM(name, T)                                                                                      \
    EXPORT void name(T *restrict param, const T *restrict grad, float *restrict mean,                        \
                     float *restrict square, size_t count, int threads) {                                    \
        (void)threads; /* where OpenMP is off, as for a checker */                                           \
        _Pragma("omp parallel for simd schedule(static) num_threads(threads)") for (size_t i = 0; i < count; \
                                                                                    i++) {                   \
            param[i] = (T)(param[i] + grad[i]);                                                              \
            mean[i] += 1.0f;                                                                                 \
            square[i] += 1.0f;                                                                               \
        }                                                                                                    \
    }
STREAM(stream_float, float)
/* 16 bits are 16 bits. */
STREAM(stream_half, uint16_t)
