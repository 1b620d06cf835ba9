/* The waits of this process's threads for their devices, for its live file (live_format.h: live_device).
 *
 * The host cannot see into a device. It sees CUDA calls that do not return, events that are queried and not done yet, and the
 * completion of enqueued work. The wrappers record these here. The sampler's thread checks them once a second, and writes the
 * live file if a thread waits.
 *
 * Vocabulary
 *   handle   a recorded event that has not been seen done, or a stream that was queried and was not done
 *   progress a wait for a device that ended, or a handle that is done
 *
 * No malloc and no lock on the path of a call: each thread writes a slot of its own. */
#ifndef CASTOR_TRACE_DEVICE_WAITS_H
#define CASTOR_TRACE_DEVICE_WAITS_H

#include <stddef.h>
#include <stdint.h>

typedef enum device_action {
    DEVICE_NONE,
    DEVICE_ENQUEUE, /* a kernel, copy or set: the device does it later, or the call waits for it */
    DEVICE_WAIT,    /* waits for enqueued work */
    DEVICE_ASK,     /* queries whether a handle is done */
    DEVICE_RECORD,  /* records an event on a stream */
    DEVICE_FORGET,  /* destroys an event or stream */
} device_action;

/* A thread's slot. Written by its thread, read by the sampler's: all but tid relaxed, begin_ns last and with release. */
typedef struct device_thread {
    uint64_t begin_ns; /* of the call in progress; 0: none */
    const char *call;
    int32_t device;
    uint32_t tid;         /* 0: free */
    const char *enqueued; /* its last enqueued work */
    uint64_t enqueued_ns, enqueued_bytes, stream;
} device_thread;

extern __thread device_thread *device_own __attribute__((tls_model("initial-exec"), visibility("hidden")));
device_thread *device_thread_claim(void);

/* The thread enters a CUDA function. `function` must stay valid. */
static inline void device_call_begin(const char *function, int device, uint64_t now_ns) {
    device_thread *own = device_own;
    if (__builtin_expect(own == NULL, 0))
        own = device_thread_claim();
    __atomic_store_n(&own->call, function, __ATOMIC_RELAXED);
    __atomic_store_n(&own->device, device, __ATOMIC_RELAXED);
    __atomic_store_n(&own->begin_ns, now_ns, __ATOMIC_RELEASE);
}

/* The thread has enqueued work, by a call of CUDA or of NCCL. */
void device_enqueued(const char *function, uint64_t now_ns, uint64_t bytes, uint64_t stream);

typedef enum device_result { DEVICE_DONE, DEVICE_NOT_READY, DEVICE_FAILED } device_result;

/* The function has returned. handle: the event's, else that of the queried stream. */
void device_call_end(device_action action, device_result result, uint64_t end_ns, uint64_t bytes,
                     uint64_t stream, uint64_t handle);

/* Writes the threads' waits into the live file. The sampler calls it about once a second. */
void device_update(uint64_t now_ns);
void device_reset(void); /* in a forked child: it has no device, and other threads */

#endif
