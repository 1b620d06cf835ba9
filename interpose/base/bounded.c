#include "bounded.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "clock.h"
#include "error.h"
#include "thread.h"

#define PLACES 16

/* Of a place, and how it goes from one to the next: its caller makes it busy, the thread done and the caller free again; or
 * the caller makes it left, and the thread free. */
enum { PLACE_FREE, PLACE_BUSY, PLACE_DONE, PLACE_LEFT };

typedef struct bounded_place {
    uint32_t state; /* a futex */
    int result;     /* written before it is done */
    int (*call)(const void *);
    const void *context;
} bounded_place;

static bounded_place places[PLACES];

static bool state_change(bounded_place *place, uint32_t from, uint32_t to) {
    return __atomic_compare_exchange_n(&place->state, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void *place_run(void *context) {
    bounded_place *place = context;
    place->result = place->call(place->context);
    if (state_change(place, PLACE_BUSY, PLACE_DONE))
        syscall(SYS_futex, &place->state, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
    else
        __atomic_store_n(&place->state, PLACE_FREE, __ATOMIC_RELEASE);
    return NULL;
}

castor_status bounded_call(int (*call)(const void *context), const void *context, uint64_t timeout_ns,
                           int *result) {
    bounded_place *place = NULL;
    for (size_t i = 0; i < PLACES && place == NULL; i++)
        if (state_change(&places[i], PLACE_FREE, PLACE_BUSY))
            place = &places[i];
    if (place == NULL)
        return error_set(CASTOR_ERR_TIMEOUT, "%d earlier calls have not returned", PLACES);
    place->call = call;
    place->context = context;
    int error = thread_start(place_run, place);
    if (error != 0) {
        __atomic_store_n(&place->state, PLACE_FREE, __ATOMIC_RELEASE);
        return error_set(CASTOR_ERR_SYSTEM, "no thread could be started: error %d", error);
    }
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC), deadline_ns = now_ns + timeout_ns;
    while (__atomic_load_n(&place->state, __ATOMIC_ACQUIRE) == PLACE_BUSY && now_ns < deadline_ns) {
        uint64_t left_ns = deadline_ns - now_ns;
        struct timespec rest = {.tv_sec = (time_t)(left_ns / 1000000000u),
                                .tv_nsec = (long)(left_ns % 1000000000u)};
        syscall(SYS_futex, &place->state, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, PLACE_BUSY, &rest, NULL, 0);
        now_ns = clock_ns(CLOCK_MONOTONIC);
    }
    if (state_change(place, PLACE_BUSY, PLACE_LEFT))
        return error_set(CASTOR_ERR_TIMEOUT, "it did not return within %.1f s", (double)timeout_ns * 1e-9);
    *result = place->result;
    __atomic_store_n(&place->state, PLACE_FREE, __ATOMIC_RELEASE);
    return CASTOR_OK;
}
