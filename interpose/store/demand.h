/* Demand paging between nodes: a range that only one node keeps is loaded on another node when something touches it there.
 *
 * Vocabulary
 *   keeper   the node that steps a tensor (tensor.node). Between backward passes it alone keeps the tensor's sum and, where
 *            parameters are sharded as well, its parameter
 *   away     on every other node: the range has no pages in the store's file
 *   loaded   the range's pages are in the file for a while, read from the keeper. Beyond a bound the oldest are dropped
 *
 * userfaultfd stops whoever touches a missing page of a watched mapping, in user code or in the kernel. The thread
 * `castor-demand` of that process then loads the tensor's range into the store's file, where every rank of the node finds it.
 *
 * Invariants
 *   - every mapping of a range that may be away (views, windows, aliases) is watched before anything can touch it
 *   - a loaded range holds the keeper's bytes. Before the keeper changes them, every node has dropped its copy (sums: when a
 *     backward begins; parameters: when a step begins)
 *   - `demand_lock` in the store's control block orders loads and drops on the node. A thread that holds it touches no watched
 *     mapping */
#ifndef CASTOR_STORE_DEMAND_H
#define CASTOR_STORE_DEMAND_H

#include "tensor.h"

/* A smaller tensor, and one smaller than a sixteenth of a chunk, is not worth the system calls: every node keeps it. */
#define DEMAND_BYTES_WORTH (64ul << 10)

typedef enum demand_residency { DEMAND_HERE, DEMAND_AWAY, DEMAND_LOADED } demand_residency;

/* Reads a range of the keeper's file of that kind. From any thread, one at a time. */
typedef struct demand_source {
    castor_status (*read)(void *context, int node, chunk_kind kind, uint64_t offset, void *out, size_t bytes);
    void *context;
} demand_source;

/* Whether the kernel lets this process see all of its own page faults, also those of system calls: Linux 5.7 and
 * CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or access to /dev/userfaultfd. Else the error says so. */
castor_status demand_probe(void);

/* Before the first tensor, after store_shard. `kinds`: 1 sums, 2 parameters too. At most `room` bytes stay
 * loaded, except that the last range always does. */
castor_status demand_start(store *s, int kinds, const demand_source *source, uint64_t room);

/* As it was started with; NULL: it was not. */
const demand_source *demand_source_of(const store *s);

/* Whether a tensor of so many bytes is kept by one node only, when something is. */
bool demand_worth(const store *s, size_t bytes);
/* The tensor's bytes of the kind are kept by one node only, and whether that is another one. */
bool demand_single(const tensor *t, chunk_kind kind);
bool demand_elsewhere(const tensor *t, chunk_kind kind);

/* A mapping of the tensor's whole range, from its first byte. Nothing to do unless another node keeps it. */
castor_status demand_watch(tensor *t, chunk_kind kind, char *address);

/* Drops the range if another node keeps it; its owner's process calls it, and nobody needs the bytes that are there. */
castor_status demand_drop(tensor *t, chunk_kind kind);
/* This node writes a sum of its own into the range. */
castor_status demand_take_over(tensor *t);

/* Loads the range and keeps it loaded until demand_unpin, for readers that must not fault. Other ranks' faults wait meanwhile. */
castor_status demand_pin(tensor *t, chunk_kind kind);
void demand_unpin(tensor *t, chunk_kind kind);

#endif
