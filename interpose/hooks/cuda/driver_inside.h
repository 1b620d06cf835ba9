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

/* The device, ready for calls. NULL: it is none, or cannot map memory; the error's text says why. */
cuda_device *cuda_device_find(int device);

/* What a thread has while a call of ours runs, and gets back. */
typedef struct scope {
    bool pushed, relaxed;
    CUstreamCaptureMode mode;
} scope;
void cuda_scope_begin(const cuda_device *d, scope *s);
void cuda_scope_end(scope *s);
/* The device of a call, and the thread's scope from here to cuda_scope_end. */
cuda_device *cuda_device_enter(int device, scope *s);
/* The same for calls that no capture of another stream forbids: in a stream, or about it. */
bool cuda_device_enter_in_stream(int device, scope *s);

const char *cuda_text(CUresult result);
/* `bytes`: 0: the call has no size. */
castor_status cuda_failed(CUresult result, const char *call, int device, uint64_t bytes);

CUmemLocation_v1 cuda_location(int device);
CUmemAllocationProp_v1 cuda_property(const cuda_device *d, CUmemLocation_v1 location);
/* Makes mapped pages accessible for the device and, if their location is given, for the processors. */
CUresult cuda_access_set(uintptr_t address, size_t bytes, int device, const CUmemLocation_v1 *host);
/* Memory of the host, aligned to `unit`, that the device has at the same address. `block`: what cuMemFreeHost takes. The thread is in
 * the device's scope. */
castor_status cuda_host_make(int device, size_t bytes, size_t unit, uintptr_t *address, uint64_t *block);

#endif
