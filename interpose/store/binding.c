#include "binding.h"

#include <stdlib.h>
#include <string.h>
#include "arena/pages.h"
#include "base/error.h"
#include "wait.h"
#include "window.h"

/* What a rank says of a tensor. */
enum { NOTE_AWAY = 1, NOTE_STUCK = 2 /* its binding can only end */ };

/* ... and, if its binding may move, of its values. */
typedef struct binding_values {
    uint64_t bytes, states;
} binding_values;

/* An address range of a claim. */
typedef struct binding_range {
    const char *start, *end;
    uint32_t claim;
} binding_range;

typedef struct settling {
    store *s;
    tensor *const *tensors;
    const binding_claim *claims;
    uint32_t count;
    uint8_t *notes; /* this rank's */
    uint8_t *verdicts;
    binding_values *values; /* this rank's */
    binding_range *ranges;
} settling;

bool binding_is_at(const tensor *t, const void *address, uint64_t layout) {
    if (t->mode != TENSOR_SHARED)
        return t->seen == address;
    return t->binding == address && t->layout == layout;
}

static bool is_away(const settling *g, uint32_t i) {
    return !binding_is_at(g->tensors[i], g->claims[i].address, g->claims[i].layout);
}

/* The tensor can be bound to the block where it is now. */
static bool can_move(const tensor *t, const binding_claim *claim) {
    return claim->layout == t->layout && t->tied == t &&
           tensor_is_mappable(claim->address, t->bytes, claim->flags & BINDING_WHOLE);
}

static int by_start(const void *a, const void *b) {
    const binding_range *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (x->claim > y->claim) - (x->claim < y->claim);
}

/* They were registered as one, and are where they are bound. */
static bool are_tied(const settling *g, uint32_t i, uint32_t j) {
    const tensor *a = g->tensors[i], *b = g->tensors[j];
    if (a == b)
        return true;
    if (is_away(g, i) || is_away(g, j))
        return false;
    for (const tensor *other = a->tied; other != a; other = other->tied)
        if (other == b)
            return true;
    return false;
}

/* A step writes one of two tensors in the store and the other one where it stands: both must not be the same memory. */
static void overlaps_note(settling *g) {
    for (uint32_t i = 0; i < g->count; i++) {
        const char *start = g->claims[i].address;
        g->ranges[i] = (binding_range){start, start + g->claims[i].bytes, i};
    }
    qsort(g->ranges, g->count, sizeof *g->ranges, by_start);
    uint32_t widest = 0; /* of those before, the one that ends last */
    for (uint32_t k = 1; k < g->count; k++) {
        const binding_range *before = &g->ranges[widest], *range = &g->ranges[k];
        if (range->start < before->end && range->start < range->end &&
            !are_tied(g, before->claim, range->claim)) {
            g->notes[before->claim] |= NOTE_STUCK;
            g->notes[range->claim] |= NOTE_STUCK;
        }
        if (range->end > before->end)
            widest = k;
    }
}

/* Of what every rank put into its area: a tensor's binding ends if it is stuck anywhere, and may move if it is away anywhere. */
static castor_status notes_meet(settling *g) {
    castor_status status = store_exchange_put(g->s, EXCHANGE_CALL, g->notes, g->count);
    if (status || (status = wait_barrier(g->s, "where the parameters are")))
        return status;
    for (int rank = 0; rank < g->s->world; rank++) {
        size_t bytes;
        const uint8_t *theirs = store_exchange_get(g->s, EXCHANGE_CALL, rank, &bytes);
        for (uint32_t i = 0; i < g->count && i < bytes; i++) {
            if (theirs[i] & NOTE_STUCK)
                g->verdicts[i] = BINDING_ENDS;
            else if (theirs[i] & NOTE_AWAY && g->verdicts[i] == BINDING_STAYS)
                g->verdicts[i] = BINDING_MOVES;
        }
    }
    return CASTOR_OK;
}

static uint64_t mix(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * 0x9E3779B97F4A7C15u;
    return digest ^ digest >> 29;
}

uint64_t binding_digest(const void *data, size_t bytes) {
    uint64_t digest = bytes, word;
    const char *at = data;
    for (; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word) {
        memcpy(&word, at, sizeof word);
        digest = mix(digest, word);
    }
    word = 0;
    memcpy(&word, at, bytes);
    return mix(digest, word);
}

castor_status binding_edits_digest(const tensor *t, uint64_t *digest) {
    *digest = t->bytes;
    if (t->mode != TENSOR_SHARED || !t->binding)
        return CASTOR_OK;
    castor_status status = pages_edited_drop_equal(t->binding, t->param_alias, t->span);
    char *end = t->binding + t->span;
    page_run run;
    for (char *from = t->binding;
         !status && from < end && pages_edited_next(from, (size_t)(end - from), &run);
         from = run.start + run.bytes) {
        *digest = mix(*digest, (uint64_t)(run.start - t->binding));
        *digest = mix(*digest, binding_digest(run.start, run.bytes));
    }
    return status;
}

/* What may move does where all ranks have the same values. */
static castor_status values_meet(settling *g) {
    for (uint32_t i = 0; i < g->count; i++)
        if (g->verdicts[i] == BINDING_MOVES && g->tensors[i]->mode == TENSOR_SHARED)
            g->values[i] = (binding_values){binding_digest(g->claims[i].address, g->tensors[i]->bytes),
                                            g->claims[i].states};
    castor_status status = store_exchange_put(g->s, EXCHANGE_STATES, g->values, g->count * sizeof *g->values);
    if (status || (status = wait_barrier(g->s, "what the parameters are")))
        return status;
    for (int rank = 0; rank < g->s->world; rank++) {
        size_t bytes;
        const binding_values *theirs = store_exchange_get(g->s, EXCHANGE_STATES, rank, &bytes);
        for (uint32_t i = 0; i < g->count; i++)
            if (theirs[i].bytes != g->values[i].bytes || theirs[i].states != g->values[i].states)
                g->verdicts[i] = BINDING_ENDS;
    }
    for (uint32_t i = 0; i < g->count; i++) {
        /* Of several nodes that shard, one alone has the states. */
        uint64_t states = g->tensors[i]->node < 0 ? g->values[i].states : 0;
        uint64_t told[] = {g->verdicts[i], g->values[i].bytes, states};
        store_agreed_add(g->s, told, sizeof told);
    }
    return CASTOR_OK;
}

static castor_status end(tensor *t, const void *address) {
    castor_status status = window_detach_all(t);
    if (status == CASTOR_OK)
        status = tensor_release(t);
    t->seen = address;
    return status;
}

/* Blocks that the script may still hold keep their values; the store takes the owners' where bindings move. */
static castor_status values_move(settling *g) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < g->count && !status; i++) {
        tensor *t = g->tensors[i];
        if (t->mode != TENSOR_SHARED)
            t->seen = g->claims[i].address;
        else if (g->verdicts[i] == BINDING_ENDS)
            status = end(t, g->claims[i].address);
        else if (is_away(g, i))
            status = tensor_unbind(t);
    }
    if (status || (status = wait_barrier(g->s, "what the parameters are")))
        return status;
    for (uint32_t i = 0; i < g->count; i++) {
        tensor *t = g->tensors[i];
        if (g->verdicts[i] != BINDING_MOVES || t->owner != g->s->rank || t->mode != TENSOR_SHARED)
            continue;
        if (is_away(g, i))
            memcpy(t->param_alias, g->claims[i].address, t->bytes);
        else
            pages_edited_copy(t->binding, t->param_alias, t->span);
    }
    if ((status = wait_barrier(g->s, "what the parameters are")))
        return status;
    for (uint32_t i = 0; i < g->count && !status; i++)
        if (g->verdicts[i] == BINDING_MOVES && g->tensors[i]->mode == TENSOR_SHARED && is_away(g, i) &&
            !tensor_rebind(g->tensors[i], g->claims[i].address))
            status = error_set(CASTOR_ERR_MEMORY, "a parameter's new memory cannot be mapped over: %s",
                               error_text());
    return status;
}

castor_status bindings_settle(store *s, tensor *const *tensors, const binding_claim *claims, uint32_t count,
                              uint8_t *verdicts) {
    castor_status status = CASTOR_ERR_MEMORY;
    settling g = {.s = s, .tensors = tensors, .claims = claims, .count = count, .verdicts = verdicts};
    g.notes = calloc(count + 1, sizeof *g.notes);
    g.values = calloc(count + 1, sizeof *g.values);
    g.ranges = calloc(count + 1, sizeof *g.ranges);
    if (!g.notes || !g.values || !g.ranges) {
        status = store_fail(s, error_set(status, "no memory to look at %u parameters", count));
        goto done;
    }
    memset(verdicts, BINDING_STAYS, count);
    for (uint32_t i = 0; i < count; i++) {
        bool shared = tensors[i]->mode == TENSOR_SHARED, away = is_away(&g, i);
        if (shared && (away || claims[i].flags & BINDING_STATES_AWAY))
            g.notes[i] |= NOTE_AWAY;
        if (shared &&
            ((away && !can_move(tensors[i], &claims[i])) || claims[i].flags & BINDING_STATES_REACHED))
            g.notes[i] |= NOTE_STUCK;
    }
    overlaps_note(&g);
    if ((status = notes_meet(&g)) == CASTOR_OK && (status = values_meet(&g)) == CASTOR_OK)
        status = values_move(&g);
    if (status)
        store_fail(s, status);
done:
    free(g.notes);
    free(g.values);
    free(g.ranges);
    return status;
}
