#include "store_inside.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "api/rank_check.h"
#include "gradients/gradient_state.h"
#include "gradients/reduce.h"
#include "hooks/cuda/driver.h"
#include "hooks/cuda/operands.h"
#include "hooks/lookup/wrapper.h"
#include "hooks/table/hooks.h"
#include "hooks/torch/device_names.h"
#include "store/consensus.h"
#include "store/store.h"
#include "store/tensor.h"
#include "store/wait.h"
#include "start.h"

_Static_assert((int)INSIDE_DATA == ACTIVITY_DATA, "the activities are numbered alike");

int inside_rebind(castor_tensor *t, void *address) {
    return tensor_rebind(t, address);
}

/* ---- stand-ins for what the unit tests do not link ---- */

static void (*collective_entered)(hook_id id);

void hooks_collective_observe(void (*entered)(hook_id id)) {
    collective_entered = entered;
}

void inside_collective_enter(void) {
    if (collective_entered)
        collective_entered((hook_id)0);
}

bool hooks_collective_pending(void) {
    return false;
}

/* libc's, and a count. */
static _Atomic uint32_t time_of_day_calls;

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock == CLOCK_REALTIME)
        time_of_day_calls++;
    return (int)syscall(SYS_clock_gettime, clock, out);
}

uint32_t inside_time_of_day_calls(void) {
    return time_of_day_calls;
}

const device_driver *cuda_driver(void) {
    return NULL;
}

castor_status cuda_operands_install(void) {
    return CASTOR_OK;
}

void *hooks_real(hook_id id) {
    (void)id;
    return NULL;
}

castor_status start_wake(void) {
    return CASTOR_OK;
}

castor_status start_again(void) {
    return CASTOR_OK;
}

void start_engine(void) {}

void start_beside(void) {}

void device_names_replace(void) {}

void device_names_say(void) {}

/* ---- the inside ---- */

int inside_activity(const castor_store *s, int rank) {
    return store_activity_get(s, rank);
}

uint64_t inside_resident_bytes(const castor_store *s, chunk_kind kind) {
    return store_resident_bytes(s, kind);
}

int inside_chunk_file(const castor_store *s, chunk_kind kind) {
    return s->chunks.list[kind].fd;
}

int inside_consensus(castor_store *s, uint64_t key, int able, double patience_seconds, int *committed) {
    bool all = false;
    castor_status status = consensus_try(s, key, able, patience_seconds, &all);
    *committed = all;
    return status;
}

int inside_gradient_begin(castor_tensor *t, int flags) {
    if (flags & ADD_CARRY)
        gradient_carry(t, true);
    if (flags & ADD_CARRY && t->gradient.carry != GRADIENT_CARRIED)
        return CASTOR_ERR_ARGUMENT;
    return flags & ADD_USED ? gradient_happens(t, GRADIENT_IS_READY) : CASTOR_OK;
}

int inside_gradient_add(castor_tensor *t, const void *source, double scale, int flags, uint64_t queue_bytes,
                        uint64_t *ticket) {
    castor_status status = inside_gradient_begin(t, flags);
    if (status)
        return status;
    if (gradient_is_used(t))
        reduce_mark_used(t);
    t->sum_continues = flags & ADD_KEEP;
    status = reduce_submit(t, source, scale, gradient_goes_on(t), queue_bytes, ticket);
    return status ? status : gradient_happens(t, GRADIENT_IS_SUBMITTED);
}

uint64_t inside_gradients_done(const castor_store *s) {
    return reduce_done(s);
}

castor_status inside_agree(castor_store *s, const char *what, const double *values, const char *const *labels,
                           uint32_t count) {
    return ranks_agree(s, what, &(ranks_values){values, labels, count}, NULL, 0, NULL);
}

castor_status inside_check(castor_store *s) {
    return invariants_check(s);
}

int inside_sums_wait(castor_store *s, castor_tensor *const *tensors, uint32_t count) {
    castor_status status = reduce_finish(s, tensors, count);
    for (uint32_t i = 0; i < count && !status; i++)
        status = gradient_happens(tensors[i], GRADIENT_IS_COMPLETE);
    return status;
}

bool inside_was_used(const castor_tensor *t) {
    return reduce_was_used(t);
}

static bool race_reported;
bool inside_race_reported(void) {
    return race_reported;
}

#ifdef __SANITIZE_THREAD__
void __tsan_on_report(void *report);
__attribute__((visibility("default"))) void __tsan_on_report(void *report) {
    (void)report;
    race_reported = true;
}
#endif
