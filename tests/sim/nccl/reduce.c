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
#define INTEGERS(name, type, wide)                                                                           \
    static void name(type *out, const type *const *sources, int source_count, size_t count, int op,          \
                     double scalar) {                                                                        \
        for (size_t i = 0; i < count; i++) {                                                                 \
            wide sum = (wide)sources[0][i];                                                                  \
            if (op >= ncclNumOps)                                                                            \
                sum = (wide)(type)((double)sources[0][i] * scalar);                                          \
            for (int s = 1; s < source_count; s++) {                                                         \
                type value = sources[s][i], before = (type)sum;                                              \
                if (op >= ncclNumOps)                                                                        \
                    value = (type)((double)value * scalar);                                                  \
                switch (op) {                                                                                \
                case ncclProd:                                                                               \
                    sum = sum * (wide)value;                                                                 \
                    break;                                                                                   \
                case ncclMax:                                                                                \
                    sum = (wide)(before > value ? before : value);                                           \
                    break;                                                                                   \
                case ncclMin:                                                                                \
                    sum = (wide)(before < value ? before : value);                                           \
                    break;                                                                                   \
                default:                                                                                     \
                    sum = sum + (wide)value;                                                                 \
                }                                                                                            \
            }                                                                                                \
            out[i] = op == ncclAvg ? (type)((type)sum / (type)source_count) : (type)sum;                     \
        }                                                                                                    \
    }

#define FLOATS(name, type, wide, load, store)                                                                \
    static void name(type *out, const type *const *sources, int source_count, size_t count, int op,          \
                     double scalar) {                                                                        \
        wide factor = op >= ncclNumOps ? (wide)scalar : 1;                                                   \
        for (size_t i = 0; i < count; i++) {                                                                 \
            wide sum = load(sources[0][i]) * factor;                                                         \
            for (int s = 1; s < source_count; s++)                                                           \
                sum = (wide)combine_float(sum, load(sources[s][i]) * factor, op);                            \
            out[i] = store(op == ncclAvg ? sum / (wide)source_count : sum);                                  \
        }                                                                                                    \
    }

#define SAME(value) (value)
INTEGERS(reduce_int8, int8_t, uint64_t)
INTEGERS(reduce_uint8, uint8_t, uint64_t)
INTEGERS(reduce_int32, int32_t, uint64_t)
INTEGERS(reduce_uint32, uint32_t, uint64_t)
INTEGERS(reduce_int64, int64_t, uint64_t)
INTEGERS(reduce_uint64, uint64_t, uint64_t)
FLOATS(reduce_float16, uint16_t, float, from_fp16, to_fp16)
FLOATS(reduce_bfloat16, uint16_t, float, from_bf16, to_bf16)
FLOATS(reduce_float32, float, float, SAME, SAME)
FLOATS(reduce_float64, double, double, SAME, SAME)

int reduce(void *out, const void *const *sources, int source_count, size_t count, ncclDataType_t type, int op,
           double scalar) {
    switch (type) {
#define CASE(code, function, element)                                                                        \
    case code:                                                                                               \
        function((element *)out, (const element *const *)sources, source_count, count, op, scalar);          \
        return 0;
        CASE(ncclInt8, reduce_int8, int8_t)
        CASE(ncclUint8, reduce_uint8, uint8_t)
        CASE(ncclInt32, reduce_int32, int32_t)
        CASE(ncclUint32, reduce_uint32, uint32_t)
        CASE(ncclInt64, reduce_int64, int64_t)
        CASE(ncclUint64, reduce_uint64, uint64_t)
        CASE(ncclFloat16, reduce_float16, uint16_t)
        CASE(ncclBfloat16, reduce_bfloat16, uint16_t)
        CASE(ncclFloat32, reduce_float32, float)
        CASE(ncclFloat64, reduce_float64, double)
#undef CASE
    default:
        return -1;
    }
}
