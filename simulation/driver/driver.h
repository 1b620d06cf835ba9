/* The CUDA driver's functions over the engine. The headers give the names their suffixes (_v2, _ptsz). */
#ifndef SIM_DRIVER_DRIVER_H
#define SIM_DRIVER_DRIVER_H

#include "sim.h"

/* A function that is called before cuInit, or in a forked child, fails. */
bool driver_ready(void);

#define ENTER_EARLY() SIM_ENTER(CUresult, __func__)
#define ENTER()                                                                                              \
    do {                                                                                                     \
        ENTER_EARLY();                                                                                       \
        if (!driver_ready())                                                                                 \
            return CUDA_ERROR_NOT_INITIALIZED;                                                               \
    } while (0)

/* Stream 0, in the files that are compiled twice. */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define HERE(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#else
#define HERE(stream) (stream)
#endif

#endif
