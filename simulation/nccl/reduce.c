/* Reductions of every type; 16-bit floats are added in float. */
#include "nccl_sim.h"
#include "half.h"

static double combine_float(double left, double right, int op) {
    switch (op) {
    case ncclProd:
        return left * right;
    case ncclMax:
        return left > right || isnan(left) ? left : right;
    case ncclMin:
        return left < right || isnan(left) ? left : right;
    default:
        return left + right;
    }
}

/* Integers wrap; unsigned arithmetic does so by definition. */
#define REDUCE_INTEGERS(code, type)                                                                          \
    static void reduce_##code(type *out, const type *const *sources, int source_count, size_t count, int op, \
                              double scalar) {                                                               \
        for (size_t i = 0; i < count; i++) {                                                                 \
            uint64_t sum = (uint64_t)sources[0][i];                                                          \
            if (op >= ncclNumOps)                                                                            \
                sum = (uint64_t)(type)((double)sources[0][i] * scalar);                                      \
            for (int s = 1; s < source_count; s++) {                                                         \
                type value = sources[s][i], before = (type)sum;                                              \
                if (op >= ncclNumOps)                                                                        \
                    value = (type)((double)value * scalar);                                                  \
                switch (op) {                                                                                \
                case ncclProd:                                                                               \
                    sum = sum * (uint64_t)value;                                                             \
                    break;                                                                                   \
                case ncclMax:                                                                                \
                    sum = (uint64_t)(before > value ? before : value);                                       \
                    break;                                                                                   \
                case ncclMin:                                                                                \
                    sum = (uint64_t)(before < value ? before : value);                                       \
                    break;                                                                                   \
                default:                                                                                     \
                    sum = sum + (uint64_t)value;                                                             \
                }                                                                                            \
            }                                                                                                \
            out[i] = op == ncclAvg ? (type)((type)sum / (type)source_count) : (type)sum;                     \
        }                                                                                                    \
    }

#define REDUCE_FLOATS(code, type, wide, load, store)                                                         \
    static void reduce_##code(type *out, const type *const *sources, int source_count, size_t count, int op, \
                              double scalar) {                                                               \
        wide factor = op >= ncclNumOps ? (wide)scalar : 1;                                                   \
        for (size_t i = 0; i < count; i++) {                                                                 \
            wide sum = load(sources[0][i]) * factor;                                                         \
            for (int s = 1; s < source_count; s++)                                                           \
                sum = (wide)combine_float(sum, load(sources[s][i]) * factor, op);                            \
            out[i] = store(op == ncclAvg ? sum / (wide)source_count : sum);                                  \
        }                                                                                                    \
    }

#define SAME(value) (value)

/* The types that can be reduced: INTEGER(code, type), FLOAT(code, type, the type that is added in, load, store). */
#define TYPES(INTEGER, FLOAT)                                                                                \
    INTEGER(ncclInt8, int8_t)                                                                                \
    INTEGER(ncclUint8, uint8_t)                                                                              \
    INTEGER(ncclInt32, int32_t)                                                                              \
    INTEGER(ncclUint32, uint32_t)                                                                            \
    INTEGER(ncclInt64, int64_t)                                                                              \
    INTEGER(ncclUint64, uint64_t)                                                                            \
    FLOAT(ncclFloat16, uint16_t, float, from_fp16, to_fp16)                                                  \
    FLOAT(ncclBfloat16, uint16_t, float, from_bf16, to_bf16)                                                 \
    FLOAT(ncclFloat32, float, float, SAME, SAME)                                                             \
    FLOAT(ncclFloat64, double, double, SAME, SAME)

TYPES(REDUCE_INTEGERS, REDUCE_FLOATS)

int reduce(void *out, const void *const *sources, int source_count, size_t count, ncclDataType_t type, int op,
           double scalar) {
    switch (type) {
#define CASE(code, element, ...)                                                                             \
    case code:                                                                                               \
        reduce_##code((element *)out, (const element *const *)sources, source_count, count, op, scalar);     \
        return 0;
        TYPES(CASE, CASE)
#undef CASE
    default:
        return -1;
    }
}
