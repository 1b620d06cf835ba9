#include "smallest.h"

#include <stdlib.h>
#include "arena/arena.h"
#include "arena/pages.h"
#include "store/registration.h"
#include "store/tensor.h"
#include "training/division.h"

#define TRIES_MAX  100
#define FILE_BYTES (1ull << 50) /* of an owner's states, in the file of a layout that has none */

/* The chunks of the store's tensors as they would be. */
typedef struct layout {
    const budget *budget;
    chunk_table table;
    int32_t *chunk[CHUNK_KIND_COUNT]; /* by tensor: of parameters and gradients */
    uint32_t *part[CHUNK_KIND_COUNT]; /* by chunk: the last part that used it, counted from 1 on */
    uint64_t *bytes;                  /* of one owner's tensors that it steps */
    uint32_t *ids, *ends;             /* ... their numbers, and the ends of the parts */
    uint32_t parts;
    uint32_t states; /* of a tensor whose states are not known */
} layout;

static uint64_t rounded(uint64_t bytes) {
    return (bytes + SMALLEST_UNIT - 1) / SMALLEST_UNIT * SMALLEST_UNIT;
}

static uint32_t paged_states(const tensor *t) {
    uint32_t count = 0;
    for (const state_range *range = t->states; range; range = range->next)
        count += pages_own(range->bytes);
    return count;
}

/* How many states each parameter has; false: no step has shown it. */
static bool states_known(const budget *b, uint32_t *count) {
    const store *s = b->store;
    chunk_statistics found;
    chunk_manager_statistics(b->manager, &found);
    *count = 0;
    for (uint32_t id = 0; id < s->tensor_count; id++) {
        uint32_t states = paged_states(s->tensors[id]);
        *count = states > *count ? states : *count;
    }
    return *count > 0 || found.steps > 0;
}

static void layout_drop(layout *l) {
    chunk_table_drop(&l->table);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        free(l->chunk[kind]);
        free(l->part[kind]);
    }
    free(l->bytes);
    free(l->ids);
    free(l->ends);
}

static castor_status reserve(layout *l, chunk_kind kind, const tensor *t, uint64_t bytes, bool paged) {
    uint64_t offset;
    castor_status status =
        chunk_reserve(&l->table, kind, t->owner, bytes, paged ? PAGE_BYTES : TENSOR_VALUE_ALIGNMENT, &offset);
    if (status == CASTOR_OK && l->chunk[kind])
        l->chunk[kind][t->id] = chunk_index(&l->table, kind, offset);
    return status;
}

static const tensor *first_tied(const tensor *t) {
    const tensor *first = t;
    for (const tensor *other = t->tied; other != t; other = other->tied)
        first = other->id < first->id ? other : first;
    return first;
}

/* As registration does it (ranges_allocate). */
static castor_status tensors_place(layout *l) {
    const store *s = l->budget->store;
    castor_status status = CASTOR_OK;
    for (uint32_t id = 0; id < s->tensor_count && !status; id++) {
        const tensor *t = s->tensors[id], *first = first_tied(t);
        bool shared = t->mode == TENSOR_SHARED;
        status = reserve(l, CHUNK_GRAD, t, shared ? t->sum_span : t->sum_bytes ? t->sum_bytes : 1, shared);
        if (shared && first == t && !status)
            status = reserve(l, CHUNK_PARAM, t, t->span, true);
        else if (shared)
            l->chunk[CHUNK_PARAM][id] = l->chunk[CHUNK_PARAM][first->id];
    }
    for (int kind = 0; kind < CHUNK_OPTIM && !status; kind++)
        if (!(l->part[kind] = calloc(l->table.list[kind].count + 1ul, sizeof *l->part[kind])))
            return CASTOR_ERR_MEMORY;
    return status;
}

static castor_status states_place(layout *l, const tensor *t) {
    castor_status status = CASTOR_OK;
    for (const state_range *range = t->states; range && !status; range = range->next)
        if (pages_own(range->bytes))
            status = reserve(l, CHUNK_OPTIM, t, range->bytes, true);
    for (uint32_t i = 0; !t->states && i < l->states && !status; i++)
        status = reserve(l, CHUNK_OPTIM, t, t->sum_span, true);
    return status;
}

static uint64_t bytes_of(const layout *l, chunk_kind kind, uint32_t index) {
    return chunk_unit_round(&l->table, l->table.list[kind].chunks[index].used);
}

/* The bytes of the chunks that the part with the tensors `ids[begin]` to `ids[end - 1]` uses; its states have chunks of their own. */
static castor_status part_need(layout *l, uint32_t begin, uint32_t end, uint64_t *need) {
    const store *s = l->budget->store;
    castor_status status = CASTOR_OK;
    uint32_t first_state = l->table.list[CHUNK_OPTIM].count;
    l->parts++;
    *need = 0;
    for (uint32_t i = begin; i < end && !status; i++) {
        uint32_t id = l->ids[i];
        status = states_place(l, s->tensors[id]);
        for (int kind = 0; kind < CHUNK_OPTIM; kind++) {
            uint32_t chunk = (uint32_t)l->chunk[kind][id];
            if (l->part[kind][chunk] != l->parts)
                *need += bytes_of(l, (chunk_kind)kind, chunk);
            l->part[kind][chunk] = l->parts;
        }
    }
    for (uint32_t i = first_state; i < l->table.list[CHUNK_OPTIM].count; i++)
        *need += bytes_of(l, CHUNK_OPTIM, i);
    chunk_close(&l->table, CHUNK_OPTIM);
    return status;
}

/* What the largest part of an owner needs. */
static castor_status owner_need(layout *l, int owner, uint64_t part_bytes, uint64_t *most) {
    const store *s = l->budget->store;
    castor_status status = CASTOR_OK;
    uint32_t count = 0;
    *most = 0;
    for (uint32_t id = 0; id < s->tensor_count; id++) {
        const tensor *t = s->tensors[id];
        bool stepped = t->owner == owner && t->mode == TENSOR_SHARED && !t->forgotten && first_tied(t) == t &&
                       (t->node < 0 || t->node == s->node);
        if (stepped) {
            l->ids[count] = id;
            l->bytes[count++] = t->bytes;
        }
    }
    uint32_t parts = parts_divide(l->bytes, count, part_bytes, l->ends);
    for (uint32_t i = 0, begin = 0; i < parts && !status; begin = l->ends[i++]) {
        uint64_t need;
        status = part_need(l, begin, l->ends[i], &need);
        *most = need > *most ? need : *most;
    }
    return status;
}

/* The budget that the node needs where chunks and parts are as `bytes` makes them; 0: no memory to tell. */
static uint64_t needed_under(const budget *b, uint64_t bytes, uint64_t other_bytes, uint64_t part_bytes,
                             uint32_t states) {
    const store *s = b->store;
    size_t count = s->tensor_count + 1ul;
    uint64_t needed = 0, all = atomic_load(&b->all_load);
    layout l = {.budget = b, .states = states};
    chunk_table_init(&l.table, declarations_chunk_bytes_under(s, bytes), FILE_BYTES);
    l.table.unit_bytes = s->chunks.unit_bytes;
    for (int kind = 0; kind < CHUNK_OPTIM; kind++)
        l.chunk[kind] = calloc(count, sizeof *l.chunk[kind]);
    l.bytes = calloc(count, sizeof *l.bytes);
    l.ids = calloc(count, sizeof *l.ids);
    l.ends = calloc(count, sizeof *l.ends);
    castor_status status = l.chunk[CHUNK_PARAM] && l.chunk[CHUNK_GRAD] && l.bytes && l.ids && l.ends
                               ? tensors_place(&l)
                               : CASTOR_ERR_MEMORY;
    for (int owner = 0; owner < s->owners && !status; owner++) {
        uint64_t need = 0, own = s->owner_load[owner];
        if ((status = owner_need(&l, owner, part_bytes, &need)) || !own || !need)
            continue;
        /* Its share of the budget has room for these chunks and for its share of the other data. */
        uint64_t of_node = own == all ? need : (uint64_t)((double)need * ((double)all / (double)own)) + 2;
        needed = of_node + other_bytes > needed ? of_node + other_bytes : needed;
    }
    layout_drop(&l);
    return status ? 0 : needed;
}

/* The bytes of freed blocks that the ranks would keep under a larger budget, beyond those that they keep now. They take what they
 * may if they do so already, or if no step has shown otherwise; every rank does as this one. */
static uint64_t freed_more(const budget *b, uint64_t bytes, bool stepped) {
    arena_stats found;
    arena_get_stats(&found);
    uint64_t kept = found.dirty_bytes * (uint64_t)b->store->world;
    if (stepped && kept * 2 <= b->bytes / BUDGET_FREED_SHARE)
        return 0;
    uint64_t room = bytes / BUDGET_FREED_SHARE;
    return room > kept ? room - kept : 0;
}

smallest budget_smallest(budget *b, uint64_t least, uint64_t part_most) {
    const store *s = b->store;
    uint32_t states;
    bool known = states_known(b, &states);
    uint64_t others = 0, bytes = least > b->bytes ? least : b->bytes + 1;
    for (int rank = 0; rank < s->world; rank++)
        others += atomic_load(&s->control->rank[rank].other_bytes);
    bytes = rounded(bytes);
    /* The need grows slower than the budget, so the first one that is enough is the smallest. */
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        uint64_t part = budget_part_bytes_under(b, bytes);
        if (part_most && (part_most < part || part_most == SMALLEST_PARTS_ALL))
            part = part_most;
        uint64_t other_bytes = others + freed_more(b, bytes, known);
        uint64_t needed = needed_under(b, bytes, other_bytes, part, known ? states : SMALLEST_STATES);
        if (!needed)
            break;
        if (needed <= bytes)
            return (smallest){bytes, !known};
        bytes = rounded(needed);
    }
    return (smallest){0, !known};
}
