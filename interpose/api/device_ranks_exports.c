/* The exported functions about ranks that train on devices: thin, over the modules. */
#include "castor.h"

#include <stdlib.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "device/devices.h"
#include "events/gate.h"
#include "gradients/buckets.h"
#include "job/options.h"
#include "job/offers.h"
#include "job/rendezvous.h"
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

/* ---- pages that ranks share ---- */

_Static_assert((int)CASTOR_DESCRIPTORS == RENDEZVOUS_DESCRIPTORS, "one value, two names");
_Static_assert(sizeof(int) == sizeof(int32_t), "descriptors pass as they are");

static homes *homes_at(uint64_t address) {
    return devices_homes(devices_find(address));
}

static castor_status no_home(uint64_t address) {
    return error_set(CASTOR_ERR_ARGUMENT, "no home begins at %p", (void *)address);
}

void castor_homes_find(const uint64_t *addresses, uint32_t count, uint64_t *starts, uint64_t *bytes) {
    for (uint32_t i = 0; i < count; i++) {
        homes *h = homes_at(addresses[i]);
        home found = {0};
        if (h && !home_find(h, addresses[i], &found))
            found = (home){0};
        starts[i] = found.address;
        bytes[i] = found.bytes;
    }
}

uint32_t castor_homes_pieces(const uint64_t *starts, uint32_t count) {
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < count; i++) {
        homes *h = homes_at(starts[i]);
        pieces += h ? home_pieces(h, starts[i]) : 0;
    }
    return pieces;
}

castor_status castor_homes_part(const uint64_t *starts, uint32_t count) {
    castor_status status = gate_close(GATE_PATIENCE_NS);
    if (status)
        return status;
    for (uint32_t i = 0; i < count && !status; i++) {
        homes *h = homes_at(starts[i]);
        status = h ? home_leave(h, starts[i], false) : CASTOR_OK;
        if (h && !status)
            status = home_part(h, starts[i]);
    }
    gate_open();
    return status;
}

/* Undoes what was done for the homes before the failed one; the error's text stays. */
static castor_status undo(castor_status status, const uint64_t *starts, uint32_t count) {
    char why[256];
    log_message(why, sizeof why, "%s", error_text());
    castor_homes_part(starts, count);
    return error_set(status, "%s", why);
}

castor_status castor_homes_offer(const uint64_t *starts, uint32_t count, int32_t *descriptors) {
    uint32_t made = 0;
    for (uint32_t i = 0; i < count; i++) {
        homes *h = homes_at(starts[i]);
        castor_status status = h ? home_offer(h, starts[i], descriptors + made) : no_home(starts[i]);
        if (status) {
            for (uint32_t d = 0; d < made; d++)
                close(descriptors[d]);
            return undo(status, starts, i);
        }
        made += home_pieces(h, starts[i]);
    }
    return CASTOR_OK;
}

castor_status castor_homes_take(const uint64_t *starts, uint32_t count, const int32_t *descriptors) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < count; i++) {
        homes *h = homes_at(starts[i]);
        castor_status status = h ? home_take(h, starts[i], descriptors + taken) : no_home(starts[i]);
        if (status)
            return undo(status, starts, i);
        taken += home_pieces(h, starts[i]);
    }
    return CASTOR_OK;
}

static castor_status change(const uint64_t *starts, uint32_t count,
                            castor_status (*one)(homes *, uintptr_t)) {
    const device_driver *driver = devices_driver();
    castor_status status = gate_close(GATE_PATIENCE_NS);
    if (status)
        return status;
    if (count && driver->captures_run(driver->context))
        status = error_set(CASTOR_ERR_UNSUPPORTED, "a graph is being captured");
    for (uint32_t i = 0; i < count && !status; i++) {
        homes *h = homes_at(starts[i]);
        status = h ? one(h, starts[i]) : no_home(starts[i]);
    }
    gate_open();
    return status;
}

castor_status castor_homes_join(const uint64_t *starts, uint32_t count) {
    return change(starts, count, home_join);
}

static castor_status to_host(homes *h, uintptr_t address) {
    return home_flip(h, address, DEVICE_TIER_HOST);
}

static castor_status to_device(homes *h, uintptr_t address) {
    return home_flip(h, address, DEVICE_TIER_DEVICE);
}

castor_status castor_homes_move(const uint64_t *starts, uint32_t count, int tier) {
    return change(starts, count, tier == CASTOR_HOME_HOST ? to_host : to_device);
}

castor_status castor_homes_away(const uint64_t *starts, uint32_t count) {
    return change(starts, count, home_away);
}

void castor_homes_beside(const uint64_t *addresses, uint32_t count, uint64_t *beside) {
    for (uint32_t i = 0; i < count; i++) {
        homes *h = homes_at(addresses[i]);
        beside[i] = h ? home_beside(h, addresses[i]) : 0;
    }
}

void castor_homes_joined(const uint64_t *addresses, uint32_t count, int8_t *joined) {
    for (uint32_t i = 0; i < count; i++) {
        const homes *h = homes_at(addresses[i]);
        joined[i] = h && home_is_joined(h, addresses[i]);
    }
}

castor_status castor_homes_read(int device, void *stream) {
    slots *s = devices_slots(device);
    gate_enter();
    castor_status status = s ? slots_copies_join(s, (uint64_t)stream) : CASTOR_OK;
    gate_leave();
    return status;
}

void castor_homes_written(int device, void *stream, const uint64_t *addresses, const uint64_t *bytes,
                          uint32_t count) {
    slots *s = devices_slots(device);
    gate_enter();
    for (uint32_t i = 0; i < count && s; i++)
        slots_written(s, addresses[i], bytes[i], (uint64_t)stream);
    gate_leave();
}

castor_status castor_descriptors_pass(const char *name, const char *token, int rank, int world,
                                      int32_t *descriptors, uint32_t count) {
    return rendezvous_share(token ? token : options()->job, name, rank, world, descriptors, (int)count,
                            options()->timeout, NULL);
}

uint64_t castor_offer_claim(const char *name) {
    return (uintptr_t)offer_claim(options()->job, name);
}

castor_status castor_offer_give(uint64_t offer_, const int32_t *descriptors, uint32_t count,
                                uint32_t takers) {
    return offer_give((offer *)(uintptr_t)offer_, descriptors, (int)count, takers);
}

uint32_t castor_offer_end(uint64_t offer_) {
    return offer_end((offer *)(uintptr_t)offer_);
}

int castor_offer_take(const char *name, int32_t *descriptors, uint32_t count, double seconds) {
    return rendezvous_ask(options()->job, name, descriptors, (int)count, seconds);
}

uint32_t castor_offers_open(void) {
    return offers_open();
}
