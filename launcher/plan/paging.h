/* What a budget makes a node move to disk and back in a step: its moments are made from what is known of the model, and
 * replayed. */
#ifndef CASTOR_LAUNCHER_PLAN_PAGING_H
#define CASTOR_LAUNCHER_PLAN_PAGING_H

#include "placement/chunk.h"
#include "plan.h"

/* Of one rank: its share of everything. */
typedef struct paging_request {
    uint64_t kept_bytes[CHUNK_KIND_COUNT];
    uint64_t chunk_bytes, activation_bytes, budget_bytes;
    uint64_t groups; /* layers */
    double compute_seconds, optimizer_seconds, disk_bytes_per_second;
} paging_request;

typedef struct paging_result {
    uint64_t moved_bytes; /* in a step, both ways */
    double wait_seconds;
    bool fits;
} paging_result;

paging_result paging_find(const paging_request *request);

#endif
