/* What a rank keeps for others in the memory of its devices: the optimizer states of parameters that it alone steps, sums of gradients that it
 * alone has.
 *
 * While they are shown any rank may read them, by the connections of serve.h, and nobody writes. What changes them hides them; who asks
 * meanwhile, or for a version that is still to come, asks again. So a reader sees the version that it knows, whatever the owner's script
 * does meanwhile. With states the owner cannot be a step ahead, since all ranks begin a step together. With sums it can be a backward ahead
 * of a rank that has not begun it: the version before lasts until then.
 *
 * Nor does the owner's script end what another rank may still read: the owner keeps the memory until each rank has said that it asks no more.
 *
 *   kept       the states of one optimizer, or the sums of one model, by a number that is the same on all ranks
 *   version    the number of the step, or of the backward, that has left them
 *   directory  what the owner says of them, in bytes that this file does not look into */
#ifndef CASTOR_NODES_KEPT_H
#define CASTOR_NODES_KEPT_H

#include <stddef.h>
#include "fetch.h"

typedef struct kept_range {
    uint64_t address, bytes; /* of the device */
} kept_range;

/* Starts this process's thread that answers reads; later calls give the same port. Error: the address is not this machine's. */
castor_status kept_serve(const char *token, const char *address, int *port);
/* The bytes there are what the work that is enqueued on `stream` by now leaves. The directory and the ranges are copied. `lasts`: the version
 * before stays what it was, in other memory, as long as a rank may ask for it, and until the next one. */
castor_status kept_show(uint64_t name, uint64_t version, bool lasts, int device, uint64_t stream,
                        const void *directory, size_t directory_bytes, const kept_range *ranges,
                        uint32_t count);
/* Before anything writes there. Waits for reads that run, which the timeouts of sockets bound. */
void kept_hide(uint64_t name);
/* How many ranks have said that they ask for it no more. */
unsigned kept_drops(uint64_t name);
/* No rank asks for it any more: its memory is the owner's to free. Waits as kept_hide does. */
void kept_end(uint64_t name);

/* ---- the reader's side ---- */

/* The owner's directory of that version. *out: from malloc. CASTOR_ERR_TIMEOUT: it has not come. CASTOR_ERR_PEER: the owner has ended. */
castor_status kept_directory(fetch_peer *p, uint64_t name, uint64_t version, void **out, uint64_t *bytes);
/* All of range number `range`, of `bytes`, to this process's memory. */
castor_status kept_read(fetch_peer *p, uint64_t name, uint64_t version, uint32_t range, void *out,
                        uint64_t bytes);
/* This rank asks for it no more. */
castor_status kept_drop(fetch_peer *p, uint64_t name);

#endif
