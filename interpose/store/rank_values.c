#include "rank_values.h"

#include <string.h>
#include "base/error.h"
#include "wait.h"

#define EXCHANGE_CALL_SIZE (16ul << 20)

static char *exchange_area(const store *s, store_exchange channel, int rank, size_t *capacity) {
    char *area = (char *)s->control + STORE_CONTROL_BYTES + (size_t)rank * STORE_EXCHANGE_BYTES;
    *capacity = channel == EXCHANGE_CALL ? EXCHANGE_CALL_SIZE : STORE_EXCHANGE_BYTES - EXCHANGE_CALL_SIZE;
    return channel == EXCHANGE_CALL ? area : area + EXCHANGE_CALL_SIZE;
}

castor_status store_exchange_put(store *s, store_exchange channel, const void *data, size_t bytes) {
    size_t capacity;
    char *area = exchange_area(s, channel, s->rank, &capacity);
    if (bytes > capacity)
        return error_set(CASTOR_ERR_ARGUMENT, "%B to hand to the other ranks, %B is the most",
                         (uint64_t)bytes, (uint64_t)capacity);
    if (bytes)
        memcpy(area, data, bytes);
    atomic_store(&s->control->rank[s->rank].exchange_bytes[channel], bytes);
    return CASTOR_OK;
}

const void *store_exchange_get(const store *s, store_exchange channel, int rank, size_t *bytes) {
    size_t capacity;
    const char *area = exchange_area(s, channel, rank, &capacity);
    *bytes = atomic_load(&s->control->rank[rank].exchange_bytes[channel]);
    return area;
}

/* Of the values' bits: two lists that differ have different ones, but for one chance in 2^64. */
static uint64_t values_digest(const double *values, uint32_t count) {
    uint64_t digest = 0x9e3779b97f4a7c15ull ^ count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        digest = (digest ^ bits) * 0xff51afd7ed558ccdull;
        digest ^= digest >> 32;
    }
    return digest;
}

/* The ranks have come with different values, and all know it: now each says all of its own. */
static castor_status values_compare(store *s, const char *what, const ranks_values *agreed) {
    castor_status status =
        store_exchange_put(s, EXCHANGE_CALL, agreed->values, agreed->count * sizeof *agreed->values);
    if (status || (status = wait_barrier(s, what)))
        return status;
    size_t bytes0, bytes;
    const double *first = store_exchange_get(s, EXCHANGE_CALL, 0, &bytes0);
    for (int rank = 1; rank < s->world; rank++) {
        const double *theirs = store_exchange_get(s, EXCHANGE_CALL, rank, &bytes);
        if (bytes != bytes0)
            return error_set(
                CASTOR_ERR_MISMATCH,
                "the ranks disagree at %s: rank %d has %lu values, rank %d has %lu. All ranks must "
                "make the same calls",
                what, store_job_rank(s, 0), (unsigned long)(bytes0 / sizeof *first), store_job_rank(s, rank),
                (unsigned long)(bytes / sizeof *first));
        for (uint32_t i = 0; i < agreed->count; i++)
            if (memcmp(&first[i], &theirs[i], sizeof *first) != 0)
                return error_set(
                    CASTOR_ERR_MISMATCH,
                    "the ranks disagree at %s: %s is %g on rank %d and %g on rank %d. Set the same "
                    "on every rank",
                    what, agreed->labels ? agreed->labels[i] : "a value", first[i], store_job_rank(s, 0),
                    theirs[i], store_job_rank(s, rank));
    }
    return CASTOR_OK; /* each rank's are rank 0's */
}

/* A meeting at which `every` takes what each rank says. */
static castor_status said_take(store *s, const char *what, const void *said, size_t bytes, uint64_t digest,
                               void *every, bool *alike) {
    castor_status status = wait_meeting(s, what, said, bytes, digest, alike);
    for (int rank = 0; rank < s->world && bytes && !status; rank++)
        memcpy((char *)every + (size_t)rank * bytes, wait_said(s, rank), bytes);
    return status;
}

castor_status ranks_agree(store *s, const char *what, const ranks_values *agreed, const void *said,
                          size_t bytes, void *every) {
    bool alike;
    uint64_t digest = values_digest(agreed->values, agreed->count);
    castor_status status = said_take(s, what, said, bytes, digest, every, &alike);
    return status || alike ? status : values_compare(s, what, agreed);
}

/* Every rank's `bytes` bytes are there: the meeting has compared their number. */
static void take(const store *s, int from, void *out, size_t bytes) {
    size_t sent;
    const void *area = store_exchange_get(s, EXCHANGE_CALL, from, &sent);
    if (bytes)
        memcpy(out, area, bytes);
}

castor_status ranks_broadcast(store *s, void *data, size_t bytes, const char *what) {
    castor_status status = CASTOR_OK;
    if (s->rank == 0)
        status = store_exchange_put(s, EXCHANGE_CALL, data, bytes);
    if (status)
        return store_fail(s, status);
    bool alike;
    if ((status = wait_meeting(s, what, NULL, bytes, 0, &alike)))
        return status;
    take(s, 0, data, bytes);
    /* Rank 0 must not write its area again before everyone has read it. */
    return wait_barrier(s, what);
}

castor_status ranks_gather(store *s, const void *data, size_t bytes, void *out, const char *what) {
    bool alike;
    if (bytes <= STORE_SAID_MAX)
        return said_take(s, what, data, bytes, 0, out, &alike);
    castor_status status = store_exchange_put(s, EXCHANGE_CALL, data, bytes);
    if (status)
        return store_fail(s, status);
    if ((status = wait_meeting(s, what, NULL, bytes, 0, &alike)))
        return status;
    for (int rank = 0; rank < s->world; rank++)
        take(s, rank, (char *)out + (size_t)rank * bytes, bytes);
    return wait_barrier(s, what);
}
