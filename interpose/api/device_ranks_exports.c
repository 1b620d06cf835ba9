/* The exported functions about ranks that train on devices: thin, over the modules. */
#include "castor.h"

#include <stdlib.h>
#include "base/error.h"
#include "gradients/buckets.h"
#include "job/options.h"
#include "nodes/kept.h"

_Static_assert(sizeof(castor_bucket_place) == sizeof(bucket_place), "one layout, two names");

castor_status castor_buckets_divide(const uint64_t *bytes, const int32_t *types, const int32_t *known,
                                    uint32_t count, uint32_t owners, castor_bucket_place *out,
                                    uint32_t *buckets) {
    castor_status status;
    *buckets = buckets_divide(bytes, types, known, count, owners, (bucket_place *)out, &status);
    return status;
}

castor_status castor_kept_serve(const char *token, const char *address, int *port) {
    return kept_serve(token, address, port);
}

castor_status castor_kept_show(uint64_t name, uint64_t version, int lasts, int device, uint64_t stream,
                               const void *directory, uint64_t directory_bytes, const uint64_t *addresses,
                               const uint64_t *bytes, uint32_t count) {
    kept_range *ranges = malloc((count ? count : 1) * sizeof *ranges);
    if (!ranges)
        return error_set(CASTOR_ERR_MEMORY, "no memory for a directory of %u optimizer states", count);
    for (uint32_t i = 0; i < count; i++)
        ranges[i] = (kept_range){addresses[i], bytes[i]};
    castor_status status =
        kept_show(name, version, lasts != 0, device, stream, directory, directory_bytes, ranges, count);
    free(ranges);
    return status;
}

void castor_kept_hide(uint64_t name) {
    kept_hide(name);
}

uint32_t castor_kept_drops(uint64_t name) {
    return kept_drops(name);
}

void castor_kept_end(uint64_t name) {
    kept_end(name);
}

castor_status castor_kept_drop(const char *address, int port, const char *token, uint64_t name) {
    fetch_peer peer = fetch_peer_of(address, port, token, options()->timeout);
    castor_status status = fetch_open(&peer, false);
    if (!status)
        status = kept_drop(&peer, name);
    fetch_close(&peer);
    return status;
}

castor_status castor_kept_directory(const char *address, int port, const char *token, uint64_t name,
                                    uint64_t version, const void **data, uint64_t *bytes) {
    static _Thread_local void *last;
    free(last);
    last = NULL;
    fetch_peer peer = fetch_peer_of(address, port, token, options()->timeout);
    castor_status status = fetch_open(&peer, false);
    if (!status)
        status = kept_directory(&peer, name, version, &last, bytes);
    fetch_close(&peer);
    *data = last;
    return status;
}

castor_status castor_kept_read(const char *address, int port, const char *token, uint64_t name,
                               uint64_t version, const uint32_t *ranges, const uint64_t *bytes,
                               void *const *out, uint32_t count) {
    fetch_peer peer = fetch_peer_of(address, port, token, options()->timeout);
    castor_status status = fetch_open(&peer, false);
    for (uint32_t i = 0; i < count && !status; i++)
        status = kept_read(&peer, name, version, ranges[i], out[i], bytes[i]);
    fetch_close(&peer);
    return status;
}
