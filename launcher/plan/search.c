#include "plan.h"

#include <stdlib.h>
#include <string.h>
#include "launcher/common/array.h"
#include "launcher/common/text_table.h"

/* Every choice is tried: they are few thousand at any size, since parts of a node, stages and replicas divide each other. */

enum { ACCUMULATE_MOST = 64, PIPELINE_MOST = 16 };

/* What is equal in all figures is taken in this order. */
static const int preferred[PLAN_PLUGINS] = {
    [CASTOR_PLUGIN_GEMINI] = 0, [CASTOR_PLUGIN_ZERO2] = 1, [CASTOR_PLUGIN_ZERO1] = 2,
    [CASTOR_PLUGIN_DDP] = 3,    [CASTOR_PLUGIN_FSDP] = 4,  [CASTOR_PLUGIN_NONE] = 5,
    [CASTOR_PLUGIN_HYBRID] = 6, [PLAN_BOOSTER] = 7};

static int group_of(const plan *p) {
    return !p->cost.fits ? 2 : !plan_plugins[p->choice.plugin].runs;
}

static bool differs(double a, double b) {
    double larger = a > b ? a : b, smaller = a > b ? b : a;
    return larger - smaller > 1e-3 * larger;
}

/* Negative: `a` is better. */
static int compare(const plan *a, const plan *b) {
    if (group_of(a) != group_of(b))
        return group_of(a) - group_of(b);
    if (differs(a->cost.step_seconds, b->cost.step_seconds))
        return a->cost.step_seconds < b->cost.step_seconds ? -1 : 1;
    for (int tier = 0; tier < PLAN_TIER_COUNT; tier++)
        if (differs((double)a->cost.bytes[tier], (double)b->cost.bytes[tier]))
            return a->cost.bytes[tier] < b->cost.bytes[tier] ? -1 : 1;
    if (a->choice.micro != b->choice.micro)
        return a->choice.micro < b->choice.micro ? -1 : 1;
    return preferred[a->choice.plugin] - preferred[b->choice.plugin];
}

/* A total order, for sorting: equality within a tolerance is none. */
static int compare_rows(const void *left, const void *right) {
    const plan *a = left, *b = right;
    if (group_of(a) != group_of(b))
        return group_of(a) - group_of(b);
    if (a->cost.step_seconds != b->cost.step_seconds)
        return a->cost.step_seconds < b->cost.step_seconds ? -1 : 1;
    return preferred[a->choice.plugin] - preferred[b->choice.plugin];
}

typedef struct search {
    const plan_model *model;
    const plan_cluster *cluster;
    plans *out;
    bool failed;
} search;

/* Whether it fits. */
static bool try_choice(search *s, const plan_choice *choice, plan *best, bool *found) {
    plan tried = {.choice = *choice};
    if (plan_cost_of(s->model, s->cluster, choice, &tried.cost) != CASTOR_OK)
        return false;
    s->out->tried++;
    if (!*found || compare(&tried, best) < 0)
        *best = tried;
    *found = true;
    return tried.cost.fits;
}

/* The sequences of a step that each replica has; 0: not known. */
static uint64_t sequences_of(const search *s, uint32_t dp) {
    uint64_t all = s->model->context ? s->model->tokens / s->model->context : 0;
    return all / dp;
}

/* All micro-batches, stages of ZeRO, budgets and activations of a division. */
static void try_division(search *s, plan_choice choice, plan *best, bool *found) {
    uint64_t sequences = sequences_of(s, choice.dp);
    bool counted = s->model->context && s->model->tokens, stages = choice.pp > 1, fits = false;
    uint32_t least = choice.own_batches ? choice.tp * choice.pp : 1;
    uint32_t most = stages ? PIPELINE_MOST * choice.pp : counted ? ACCUMULATE_MOST * least : least;
    if (most < least)
        most = least;
    bool booster = choice.plugin == PLAN_BOOSTER, divides = plan_plugins[choice.plugin].divides;
    /* On one node of cores there is one of everything (CASTOR_ZERO_STAGE). */
    bool shares = booster ? choice.dp > 1 : divides && (s->cluster->devices || s->cluster->nodes > 1);
    int zero_most = !shares ? 0 : booster ? 2 : PLAN_ZERO_STAGES;
    int ways = booster || !plan_plugins[choice.plugin].engine ? 1 : s->cluster->devices && !divides ? 4 : 2;
    if (counted && sequences == 0)
        return;
    for (choice.micro = least; choice.micro <= most; choice.micro *= 2) {
        if (counted && sequences % choice.micro)
            break;
        if (choice.micro > 1 && choice.plugin == CASTOR_PLUGIN_NONE)
            break;
        for (choice.zero = 0; choice.zero <= zero_most; choice.zero++)
            for (int way = 0; way < ways; way++) {
                choice.bounded = way & 1;
                choice.offload = way & 2;
                if (choice.bounded && fits) /* without a budget it does, and moves nothing */
                    continue;
                fits = try_choice(s, &choice, best, found);
            }
    }
}

static void add_division(search *s, plan_choice choice) {
    plan best;
    bool found = false;
    choice.tried = plan_is_split(s->model, s->cluster, &choice);
    choice.own_batches = choice.plugin == CASTOR_PLUGIN_HYBRID && !choice.tried;
    try_division(s, choice, &best, &found);
    if (choice.tried && found && !best.cost.fits) {
        choice.tried = false;
        try_division(s, choice, &best, &found);
    }
    if (!found)
        return;
    plans *out = s->out;
    s->failed |= !array_grow(&out->rows, &out->capacity, out->count, sizeof *out->rows);
    if (!s->failed)
        out->rows[out->count++] = best;
}

static void add_plugins(search *s, uint32_t tp, uint32_t pp, uint32_t dp) {
    for (int plugin = 0; plugin < PLAN_PLUGINS; plugin++) {
        bool alone = tp * pp * dp == 1;
        if (tp * pp > 1 ? !plan_plugins[plugin].divides : plan_plugins[plugin].divides)
            continue;
        /* A process that trains alone on cores shares with nobody. */
        if (alone && !s->cluster->devices && plugin != CASTOR_PLUGIN_NONE)
            continue;
        /* Without a plugin only a script that asks for ranks has some. */
        if (!alone && plugin == CASTOR_PLUGIN_NONE && s->model->command[0] &&
            !plan_ranks_place(s->model->command))
            continue;
        add_division(s, (plan_choice){.plugin = plugin, .tp = tp, .pp = pp, .dp = dp, .micro = 1});
    }
}

/* The ranks of a node have layers together; stages are anywhere. */
static void add_divisions(search *s, uint32_t world, uint32_t of_node) {
    for (uint32_t tp = 1; tp <= of_node; tp++) {
        if (of_node % tp)
            continue;
        for (uint32_t pp = 1; pp <= world / tp; pp++)
            if (world / tp % pp == 0)
                add_plugins(s, tp, pp, world / tp / pp);
    }
}

static void search_cores(search *s) {
    for (uint32_t ranks = 1; ranks <= 2 * s->cluster->cores; ranks *= 2)
        if ((uint64_t)ranks * s->cluster->nodes <= PLAN_RANKS_MAX)
            add_divisions(s, ranks * s->cluster->nodes, ranks);
}

/* ---- why a plan is not the first ---- */

static void write_reason(const plan *first, plan *p, const plan_cluster *cluster) {
    static const char *const tiers[PLAN_TIER_COUNT] = {"a device needs", "a node's memory needs",
                                                       "a node's disk needs"};
    static const char *const terms[PLAN_TERM_COUNT] = {
#define TERM(id, key, reason) reason,
#include "term.def"
    };
    char needs[TEXT_FIGURE_MAX], has[TEXT_FIGURE_MAX];
    const plan_cost *cost = &p->cost, *best = &first->cost;
    if (!cost->fits) {
        uint64_t most = cost->short_of == PLAN_TIER_DEVICE ? cluster->device_bytes : cluster->host_bytes;
        snprintf(p->reason, sizeof p->reason, "does not fit: %s %s of %s", tiers[cost->short_of],
                 text_bytes(needs, cost->bytes[cost->short_of]), text_bytes(has, most));
        return;
    }
    if (!plan_plugins[p->choice.plugin].runs) {
        snprintf(p->reason, sizeof p->reason, "a script asks for %s itself (docs/hybrid.md)",
                 plan_plugins[p->choice.plugin].name);
        return;
    }
    int worst = 0;
    for (int term = 1; term < PLAN_TERM_COUNT; term++)
        if (cost->seconds[term] - best->seconds[term] > cost->seconds[worst] - best->seconds[worst])
            worst = term;
    if (differs(cost->step_seconds, best->step_seconds)) {
        snprintf(p->reason, sizeof p->reason, "%s: %s more a step", terms[worst],
                 text_seconds(needs, cost->seconds[worst] - best->seconds[worst]));
        return;
    }
    for (int tier = 0; tier < PLAN_TIER_COUNT; tier++)
        if (differs((double)cost->bytes[tier], (double)best->bytes[tier]) &&
            cost->bytes[tier] > best->bytes[tier]) {
            snprintf(p->reason, sizeof p->reason, "as fast, but %s %s more", tiers[tier],
                     text_bytes(needs, cost->bytes[tier] - best->bytes[tier]));
            return;
        }
    snprintf(p->reason, sizeof p->reason, "does the same here as %s",
             plan_plugins[first->choice.plugin].name);
}

bool plans_find(const plan_model *model, const plan_cluster *cluster, plans *out) {
    *out = (plans){0};
    search s = {model, cluster, out, false};
    if (cluster->devices)
        add_divisions(&s, cluster->nodes * cluster->devices, cluster->devices);
    else
        search_cores(&s);
    if (s.failed)
        return false;
    if (out->count > 1)
        qsort(out->rows, out->count, sizeof *out->rows, compare_rows);
    /* The best one is first, by all figures. */
    for (size_t i = 1; i < out->count; i++)
        if (compare(&out->rows[i], &out->rows[0]) < 0) {
            plan better = out->rows[i];
            memmove(&out->rows[1], &out->rows[0], i * sizeof *out->rows);
            out->rows[0] = better;
        }
    for (size_t i = 0; i < out->count; i++)
        if (&out->rows[i] != plans_best(out))
            write_reason(&out->rows[0], &out->rows[i], cluster);
    return true;
}

const plan *plans_best(const plans *p) {
    return p->count && group_of(&p->rows[0]) == 0 ? &p->rows[0] : NULL;
}

void plans_free(plans *p) {
    free(p->rows);
    *p = (plans){0};
}
