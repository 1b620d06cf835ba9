/* The CUDA runtime's functions over the engine. Every function starts with ENTER, which starts the driver, and ends with runtime_result. */
#ifndef SIM_RUNTIME_RUNTIME_H
#define SIM_RUNTIME_RUNTIME_H

#include "sim.h"

#include <cuda_runtime_api.h>

/* Remembers an error for cudaGetLastError. */
cudaError_t runtime_result_of(int code, const char *function);
#define runtime_result(code) runtime_result_of((int)(code), __func__)

#define ENTER()                                                                                              \
    do {                                                                                                     \
        int fault = sim_fault(__func__);                                                                     \
        if (fault)                                                                                           \
            return runtime_result(fault);                                                                    \
        sim_start();                                                                                         \
    } while (0)

/* The device address of a variable that a program registered, on the current device. */
CUresult runtime_symbol(const void *symbol, CUdeviceptr *address, size_t *size);

/* Stream 0, in the files that are compiled twice. */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define HERE(stream) ((stream) ? (stream) : cudaStreamPerThread)
#else
#define HERE(stream) (stream)
#endif

#endif
