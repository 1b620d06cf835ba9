#include "buckets.h"

#include <stdbool.h>
#include <stdlib.h>
#include "base/error.h"

static uint64_t padded(uint64_t bytes) {
    return (bytes + BUCKET_ALIGNMENT - 1) / BUCKET_ALIGNMENT * BUCKET_ALIGNMENT;
}

static uint64_t most_bytes(const uint64_t *bytes, uint32_t count, uint32_t owners) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < count; i++)
        all += padded(bytes[i]);
    uint64_t most = all / owners / BUCKETS_PER_OWNER;
    most = most < BUCKET_LEAST_BYTES ? BUCKET_LEAST_BYTES : most;
    return most > BUCKET_BYTES ? BUCKET_BYTES : most;
}

typedef struct sized {
    uint64_t bytes;
    uint32_t bucket;
    int32_t owner;
} sized;

/* The largest first, of equal ones the earlier. */
static int larger_first(const void *a, const void *b) {
    const sized *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes > right->bytes ? -1 : 1;
    return left->bucket < right->bucket ? -1 : 1;
}

static int by_number(const void *a, const void *b) {
    return ((const sized *)a)->bucket < ((const sized *)b)->bucket ? -1 : 1;
}

/* Each that has none to the owner that has the fewest bytes by then. */
static void owners_choose(sized *buckets, uint32_t count, uint64_t *owned, uint32_t owners) {
    qsort(buckets, count, sizeof *buckets, larger_first);
    for (uint32_t i = 0; i < count; i++)
        if (buckets[i].owner >= 0)
            owned[buckets[i].owner] += buckets[i].bytes;
    for (uint32_t i = 0; i < count; i++) {
        if (buckets[i].owner >= 0)
            continue;
        uint32_t least = 0;
        for (uint32_t owner = 1; owner < owners; owner++)
            if (owned[owner] < owned[least])
                least = owner;
        owned[least] += buckets[i].bytes;
        buckets[i].owner = (int32_t)least;
    }
    qsort(buckets, count, sizeof *buckets, by_number);
}

uint32_t buckets_divide(const uint64_t *bytes, const int32_t *types, const int32_t *known, uint32_t count,
                        uint32_t owners, bucket_place *out, castor_status *status) {
    *status = CASTOR_OK;
    if (!count)
        return 0;
    sized *buckets = calloc(count, sizeof *buckets);
    uint64_t *owned = calloc(owners, sizeof *owned);
    uint64_t most = most_bytes(bytes, count, owners);
    uint32_t made = 0;
    for (uint32_t i = count; buckets && i-- > 0;) {
        bool fits = i + 1 < count && types[i] == types[i + 1] && known[i] == known[i + 1] &&
                    buckets[made - 1].bytes + bytes[i] <= most;
        if (!fits) {
            buckets[made].bucket = made;
            buckets[made].owner = known[i];
            made++;
        }
        sized *last = &buckets[made - 1];
        out[i] = (bucket_place){.offset = last->bytes, .bucket = made - 1};
        last->bytes += padded(bytes[i]);
    }
    if (buckets && owned)
        owners_choose(buckets, made, owned, owners);
    else
        *status = error_set(CASTOR_ERR_MEMORY, "no memory for the buckets of %u parameters", count);
    for (uint32_t i = 0; i < count && !*status; i++)
        out[i].owner = buckets[out[i].bucket].owner;
    free(buckets);
    free(owned);
    return *status ? 0 : made;
}
