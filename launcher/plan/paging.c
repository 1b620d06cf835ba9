#include "paging.h"

#include <stdlib.h>
#include <string.h>
#include "replay.h"

enum {
    CHUNKS_MOST = 512, /* more are replayed as larger ones */
    STEPS = 2,         /* after the warm ones: all later ones are alike */
    KINDS = CHUNK_KIND_COUNT,
    REMEMBERED = 16,
};

/* ---- the moments of a step ---- */

typedef struct maker {
    replay_step step;
    const paging_request *request;
    uint64_t chunk_bytes, now_ns;
    uint32_t first[KINDS + 1]; /* numbers of chunks, by kind */
} maker;

static uint64_t chunks_of(uint64_t bytes, uint64_t chunk_bytes) {
    return (bytes + chunk_bytes - 1) / chunk_bytes;
}

static uint64_t chunks_of_all(const paging_request *r, uint64_t chunk_bytes) {
    uint64_t count = 0;
    for (int kind = 0; kind < KINDS; kind++)
        count += chunks_of(r->kept_bytes[kind], chunk_bytes);
    return count;
}

static bool maker_begin(maker *m, const paging_request *r) {
    *m = (maker){.request = r, .chunk_bytes = r->chunk_bytes};
    while (chunks_of_all(r, m->chunk_bytes) > CHUNKS_MOST)
        m->chunk_bytes += m->chunk_bytes / 2;
    uint32_t all = (uint32_t)chunks_of_all(r, m->chunk_bytes);
    /* Three moments of each group, one of each chunk of states; a moment uses the chunks of its part, and one that it shares. */
    size_t moments = 3 * r->groups + all, uses = 8 * (size_t)all + 8 * r->groups + 8;
    m->step.bytes = calloc(all, sizeof *m->step.bytes);
    m->step.kinds = calloc(all, sizeof *m->step.kinds);
    m->step.moments = calloc(moments, sizeof *m->step.moments);
    m->step.uses = calloc(uses, sizeof *m->step.uses);
    if (!m->step.bytes || !m->step.kinds || !m->step.moments || !m->step.uses)
        return false;
    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t left = r->kept_bytes[kind];
        m->first[kind] = m->step.chunks;
        for (; left > 0; m->step.chunks++) {
            uint64_t bytes = left < m->chunk_bytes ? left : m->chunk_bytes;
            m->step.bytes[m->step.chunks] = bytes;
            m->step.kinds[m->step.chunks] = (chunk_kind)kind;
            left -= bytes;
        }
    }
    m->first[KINDS] = m->step.chunks;
    return true;
}

static void maker_free(maker *m) {
    free(m->step.bytes);
    free(m->step.kinds);
    free(m->step.moments);
    free(m->step.uses);
}

static void add_moment(maker *m, moment_event event, uint64_t identity, uint64_t non_model, double seconds) {
    m->step.moments[m->step.moments_count++] = (moment){.begin_ns = m->now_ns,
                                                        .non_model_bytes = non_model,
                                                        .first_use = m->step.uses_count,
                                                        .identity = (uint32_t)identity,
                                                        .event = event};
    m->now_ns += (uint64_t)(seconds * 1e9) + 1;
    m->step.step_ns = m->now_ns;
}

/* The chunks that hold part `part` of `parts` equal ones of a kind. */
static void add_uses(maker *m, chunk_kind kind, uint64_t part, uint64_t parts, bool write) {
    double bytes = (double)m->request->kept_bytes[kind], share = bytes / (double)parts;
    uint64_t begin = (uint64_t)(share * (double)part) / m->chunk_bytes;
    uint64_t end = chunks_of((uint64_t)(share * (double)(part + 1)), m->chunk_bytes);
    for (uint64_t chunk = m->first[kind] + begin; chunk < m->first[kind] + end && chunk < m->first[kind + 1];
         chunk++)
        m->step.uses[m->step.uses_count++] = (replay_use){(uint32_t)chunk, write};
}

static void make_step(maker *m) {
    const paging_request *r = m->request;
    uint64_t groups = r->groups, states = m->first[KINDS] - m->first[CHUNK_OPTIM];
    double pass = r->compute_seconds / 3 / (double)groups; /* a backward pass is two forward ones */
    for (uint64_t group = 0; group < groups; group++) {
        add_moment(m, MOMENT_FORWARD, group, r->activation_bytes * (group + 1) / groups, pass);
        add_uses(m, CHUNK_PARAM, group, groups, false);
    }
    for (uint64_t group = groups; group-- > 0;) {
        add_moment(m, MOMENT_BACKWARD, group, r->activation_bytes * (group + 1) / groups, 2 * pass);
        add_uses(m, CHUNK_PARAM, group, groups, false);
        add_moment(m, MOMENT_GRADIENT, group, r->activation_bytes * group / groups, 0);
        add_uses(m, CHUNK_GRAD, group, groups, true);
    }
    for (uint64_t part = 0; part < states; part++) {
        add_moment(m, MOMENT_OPTIMIZER, part, 0, r->optimizer_seconds / (double)states);
        add_uses(m, CHUNK_OPTIM, part, states, true);
        add_uses(m, CHUNK_PARAM, part, states, true);
        add_uses(m, CHUNK_GRAD, part, states, false);
    }
}

static paging_result replay_request(const paging_request *r) {
    paging_result found = {0};
    replay_result run;
    maker m;
    if (maker_begin(&m, r)) {
        make_step(&m);
        uint64_t rate = (uint64_t)r->disk_bytes_per_second;
        replay_machine machine = {r->budget_bytes, rate, rate, true};
        found.fits = replay_run(&m.step, &machine, STEPS, &run) == CASTOR_OK;
    }
    if (found.fits) {
        for (int way = 0; way < 2; way++)
            found.moved_bytes +=
                (run.after.moved_bytes[way][!way] - run.before.moved_bytes[way][!way]) / STEPS;
        found.wait_seconds = (double)(run.after.stall_ns - run.before.stall_ns) / STEPS / 1e9;
    }
    maker_free(&m);
    return found;
}

/* Plugins differ in what several nodes shard alone, so a search asks the same several times. */
paging_result paging_find(const paging_request *request) {
    static struct {
        paging_request request;
        paging_result result;
    } remembered[REMEMBERED];
    static unsigned next;
    for (unsigned i = 0; i < REMEMBERED; i++)
        if (memcmp(&remembered[i].request, request, sizeof *request) == 0)
            return remembered[i].result;
    unsigned at = next++ % REMEMBERED;
    remembered[at].request = *request;
    remembered[at].result = replay_request(request);
    return remembered[at].result;
}
