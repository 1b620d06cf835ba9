/* The CUDA runtime, driver, cuBLAS and cuDNN: the wrappers, made from their tables. All of them observe: arguments and results
 * pass through unchanged, unless a target is replaced (blas.c, writers.c, ...). */
#include "observe.h"
#include "shims/cuda/blas.h"
#include "shims/cuda/dnn.h"
#include "shims/cuda/types.h"

#define RUNTIME(function, effect, parameters, arguments, facts, doc)                                         \
    OBSERVED(OBSERVE_RUNTIME, OBSERVE_RUNTIME, cudaError_t, cudaErrorNotSupported, function, #function,      \
             EFFECT_##effect == EFFECT_WAITS, (effect_writes)EFFECT_##effect##_WRITES,                       \
             (effect_reads)EFFECT_##effect##_READS, parameters, arguments, facts, 0)
#define RUNTIME_PER_THREAD(function, effect, parameters, arguments, facts, doc)                              \
    OBSERVED(OBSERVE_RUNTIME, OBSERVE_RUNTIME, cudaError_t, cudaErrorNotSupported, function, #function,      \
             EFFECT_##effect == EFFECT_WAITS, (effect_writes)EFFECT_##effect##_WRITES,                       \
             (effect_reads)EFFECT_##effect##_READS, parameters, arguments, facts, OBSERVE_STREAM_PER_THREAD)
#include "hooks/table/cuda_runtime.def"

#define DRIVER(version, function, symbol, effect, parameters, arguments, facts, doc)                         \
    OBSERVED(OBSERVE_DRIVER, OBSERVE_RUNTIME | OBSERVE_DRIVER, CUresult, CUDA_ERROR_NOT_SUPPORTED, symbol,   \
             #symbol, EFFECT_##effect == EFFECT_WAITS, (effect_writes)EFFECT_##effect##_WRITES,              \
             (effect_reads)EFFECT_##effect##_READS, parameters, arguments, facts, 0)
#define DRIVER_PER_THREAD(version, function, symbol, variant, effect, parameters, arguments, facts, doc)     \
    OBSERVED(OBSERVE_DRIVER, OBSERVE_RUNTIME | OBSERVE_DRIVER, CUresult, CUDA_ERROR_NOT_SUPPORTED,           \
             symbol##variant, #symbol #variant, EFFECT_##effect == EFFECT_WAITS,                             \
             (effect_writes)EFFECT_##effect##_WRITES, (effect_reads)EFFECT_##effect##_READS, parameters,     \
             arguments, facts, OBSERVE_STREAM_PER_THREAD)
#include "hooks/table/cuda_driver.def"

#define CUBLAS(function, parameters, arguments, operands, doc)                                               \
    OBSERVED(OBSERVE_BLAS, OBSERVE_BLAS, cublasStatus_t, CUBLAS_STATUS_NOT_SUPPORTED, function, #function,   \
             false, EFFECT_WRITES_NOTHING, EFFECT_READS_NOTHING, parameters, arguments, (0, 0, handle), 0)
#define CUBLASLT(function, parameters, arguments, operands, doc)                                             \
    OBSERVED(OBSERVE_BLAS, OBSERVE_BLAS, cublasStatus_t, CUBLAS_STATUS_NOT_SUPPORTED, function, #function,   \
             false, EFFECT_WRITES_NOTHING, EFFECT_READS_NOTHING, parameters, arguments,                      \
             (0, stream, lightHandle), 0)
#include "hooks/table/cublas.def"

#define CUDNN(function, parameters, arguments, operands, doc)                                                \
    OBSERVED(OBSERVE_DNN, OBSERVE_DNN, cudnnStatus_t, CUDNN_STATUS_NOT_SUPPORTED, function, #function,       \
             false, EFFECT_WRITES_NOTHING, EFFECT_READS_NOTHING, parameters, arguments, (0, 0, handle), 0)
#define CUDNN_BACKEND(function, parameters, arguments, object, doc)                                          \
    OBSERVED(OBSERVE_DNN, OBSERVE_DNN, cudnnStatus_t, CUDNN_STATUS_NOT_SUPPORTED, function, #function,       \
             false, EFFECT_WRITES_NOTHING, EFFECT_READS_NOTHING, parameters, arguments, (0, 0, object), 0)
#include "hooks/table/cudnn.def"
