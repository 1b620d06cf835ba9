/* What the parts of the driver share: driver.c (its operations) and driver_find.c (the devices, and what each can do). */
#ifndef CASTOR_HOOKS_CUDA_DRIVER_INSIDE_H
#define CASTOR_HOOKS_CUDA_DRIVER_INSIDE_H

#include "base/status.h"
#include "driver.h"
#include "shims/cuda/types.h"

/* Found with the first device. */
typedef struct cuda_calls {
#define CALL(version, function, symbol, parameters) CUresult(*function) parameters;
#include "driver_calls.def"
} cuda_calls;
extern cuda_calls cu;

/* Constant once it was found. */
typedef struct cuda_device {
    CUcontext context; /* NULL: not found yet */
    CUstream copies;   /* of copies that the caller waits for */
    size_t unit;       /* 0: it cannot map memory */
    CUmemLocation_v1 host;
    bool host_is_mapped; /* the processors may access host pages */
    bool rdma;
    CUresult refused; /* why no host pages are mapped at its addresses; CUDA_SUCCESS: they are */
    char why[160];    /* the same in words */
} cuda_device;

/* What a thread has while a call of ours runs, and gets back. */
typedef struct scope {
    bool pushed, relaxed;
    CUstreamCaptureMode mode;
} scope;

#endif
