/* Updates: steps of an optimizer, and sums of gradients, that the processors do where parameter, gradient and states lie on the host.
 *
 * Vocabulary
 *   update   the step of one parameter. It reads the gradient, and writes the parameter and its states. Or a sum: a gradient is read, and added
 *            to another one, the range's `param`
 *   batch    the updates of one call, which share no memory that they write. They begin when the device has come, in the stream of the call, to
 *            where the call was made, and when all batches before are over
 *   number   of an update, counted from 1. They are over in this order: one comparison says whether one is
 *   counter  a number in memory of the host that streams write or wait for (driver.h: value_write, value_wait)
 *
 * Invariants
 *   - whoever calls updates_wait before he enqueues something comes after every update added before that may touch its bytes: of a home that
 *     an update touches all bytes
 *   - the host waits in updates_settle alone, and in updates_add where UPDATES_MAX are not over
 *   - nobody waits for good: what the device never comes to ends a wait of the host by its bound, and a wait of a stream with the process
 *
 * Safe from any thread. updates_add is called inside of the gate, since a flip moves what the processors would be at; who closes it drains
 * the device, and with it these (devices.c). The counters and tables are mapped; no malloc but that of pthread_create. After a fork the
 * child's copy must not be used. */
#ifndef CASTOR_DEVICE_UPDATES_H
#define CASTOR_DEVICE_UPDATES_H

#include "homes.h"
#include "kernels/optimizer.h"

#define UPDATES_MAX 16384 /* that are not over */

typedef struct updates updates;

typedef enum update_kind { UPDATE_ADAM, UPDATE_SGD, UPDATE_SUM } update_kind;

/* What the device alone knows when the updates are added, two doubles for each: nothing; Adam's root_divisor and negative_step; or the
 * count of steps, twice, of which the processors make these. */
typedef enum update_late { UPDATE_KNOWN, UPDATE_LATE, UPDATE_COUNTED } update_late;

/* What all updates of a batch share. */
typedef struct update_step {
    update_kind kind;
    union {
        kernel_step common;
        kernel_adam adam;
        kernel_sgd sgd; /* UPDATE_SUM: a step of SGD that goes by 1 */
    } numbers;
    kernel_roots roots;
    bool has_roots; /* else the processor's (kernel_host) */
    update_late late;
    double lr, beta1, beta2; /* UPDATE_COUNTED; power: libm's pow */
    double (*power)(double, double);
} update_step;

typedef struct updates_statistics {
    uint64_t updates, elements; /* but sums */
    uint64_t waits;             /* that streams were given */
} updates_statistics;

/* CASTOR_ERR_UNSUPPORTED: the device's streams do not write and wait for values, or the processors do not reach its homes. */
castor_status updates_create(updates **out, homes *h, const device_driver *driver, int device);

/* What is not over never will be; what runs is waited for. No other thread may be inside. */
void updates_destroy(updates *u);

/* The ranges lie in homes on the host, or in other memory of it. A master takes up first what was written into its parameter
 * (kernel_settle). What is enqueued in `stream` up to now comes before. `threads`: how many of the processors do it; the first call's counts.
 * `late`: where on the device the doubles are that the step waits for, in the order of the ranges. An error: the step was not added, or not
 * all of it, if there are more than UPDATES_MAX / 2 ranges. */
castor_status updates_add(updates *u, const update_step *step, const kernel_range *ranges, uint32_t count,
                          uintptr_t late, int threads, uint64_t stream);

/* How many are not over, of all devices. Atomic. */
extern uint32_t updates_open;
static inline bool updates_matter(void) {
    return __builtin_expect(__atomic_load_n(&updates_open, __ATOMIC_ACQUIRE) != 0, 0);
}

/* What comes next in `stream`, one of `device`, comes after the updates that may touch the homes of [address, address + bytes); 0 bytes:
 * of that which holds the address. Within a capture nothing waits: its replays wait for all. */
void updates_wait(updates *u, uintptr_t address, size_t bytes, int device, uint64_t stream);
/* For all that were added. */
void updates_wait_all(updates *u, int device, uint64_t stream);
/* The host waits for all. CASTOR_ERR_TIMEOUT: they are not over after a bounded wait. */
castor_status updates_settle(updates *u);

/* For tests: each piece is late by up to so many microseconds. */
void updates_delay_set(updates *u, uint32_t microseconds);

/* NULL: those of no update. */
void updates_statistics_get(updates *u, updates_statistics *out);

#endif
