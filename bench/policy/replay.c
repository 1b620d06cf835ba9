/* Replays a recording of a training step (interpose/placement/moments.h) through the chunk manager on a backend without memory or
 * time, at a budget and bandwidths of one's choice, and prints as JSON what the manager did, beside plain LRU without prefetch
 * and beside Belady's optimum.
 *
 *     replay RECORDING BUDGET READ_BYTES_PER_SECOND WRITE_BYTES_PER_SECOND STEPS [half]
 *
 * half: reads and writes take turns on the disk. The first two steps are warm-up and not counted.
 *
 * belady    the least bytes that any order of victims on demand reads (chunks of one size), found with the whole future
 *           known; its stall is a bound that nothing can pass: all its moves at full bandwidth beside all the work
 * lru       least recently used, each chunk brought when it is accessed, one move after another
 * A chunk that nobody wrote to since it came leaves without being written. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "launcher/plan/replay.h"
#include "placement/placement.h"

typedef struct figures {
    uint64_t read_bytes, written_bytes, stall_ns;
} figures;

static void *grown(void *table, uint32_t count, size_t size) {
    if (count & (count - 1))
        return table;
    table = realloc(table, (count ? 2 * (size_t)count : 1) * size);
    if (!table)
        exit(1);
    return table;
}

static bool recording_read(const char *path, replay_step *s) {
    char line[256], word[32];
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file) || strcmp(line, "castor-moments 1\n") != 0)
        return false;
    while (fgets(line, sizeof line, file)) {
        uint64_t bytes, begin, non_model;
        uint32_t number;
        char mode;
        if (sscanf(line, "chunk %" SCNu32 " %31s %" SCNu64, &number, word, &bytes) == 3) {
            s->bytes = grown(s->bytes, s->chunks, sizeof *s->bytes);
            s->kinds = grown(s->kinds, s->chunks, sizeof *s->kinds);
            s->kinds[s->chunks] = word[0] == 'p' ? CHUNK_PARAM : word[0] == 'g' ? CHUNK_GRAD : CHUNK_OPTIM;
            s->bytes[s->chunks++] = bytes;
        } else if (sscanf(line, "moment %31s %" SCNu32 " %" SCNu64 " %" SCNu64, word, &number, &begin,
                          &non_model) == 4) {
            uint32_t event = 0;
            while (event + 1 < MOMENT_EVENT_COUNT && strcmp(word, moment_event_names[event]) != 0)
                event++;
            s->moments = grown(s->moments, s->moments_count, sizeof *s->moments);
            s->moments[s->moments_count++] = (moment){begin, non_model, 0, s->uses_count, number, event};
        } else if (sscanf(line, "use %" SCNu32 " %c", &number, &mode) == 2 && number < s->chunks) {
            s->uses = grown(s->uses, s->uses_count, sizeof *s->uses);
            s->uses[s->uses_count++] = (replay_use){number, mode == 'w'};
        } else if (sscanf(line, "end %" SCNu64, &s->step_ns) != 1) {
            break;
        }
    }
    fclose(file);
    return s->chunks && s->moments_count && s->uses_count && s->step_ns;
}

static uint64_t seconds_ns(uint64_t bytes, uint64_t per_second) {
    return (uint64_t)((double)bytes * 1e9 / (double)per_second);
}

/* A cache of a size that each moment may change; `next` of a use is the number of the same chunk's next one. */
static figures cache_replay(const replay_step *s, const uint64_t *limit, uint32_t steps, bool optimal) {
    figures f = {0};
    uint64_t *key = calloc(s->chunks, sizeof *key), held = 0, clock = 0;
    bool *in = calloc(s->chunks, sizeof *in), *dirty = calloc(s->chunks, sizeof *dirty);
    uint32_t *next = malloc(s->uses_count * sizeof *next), *first = malloc(s->chunks * sizeof *first);
    if (!key || !in || !dirty || !next || !first)
        exit(1);
    memset(first, 0xff, s->chunks * sizeof *first);
    for (uint32_t i = s->uses_count; i-- > 0;) {
        next[i] = first[s->uses[i].chunk];
        first[s->uses[i].chunk] = i;
    }
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t at = 0; at < s->moments_count; at++)
            for (uint32_t i = s->moments[at].first_use; i < replay_uses_end(s, at); i++, clock++) {
                uint32_t chunk = s->uses[i].chunk;
                uint64_t counted = step >= REPLAY_WARM_STEPS, bytes = in[chunk] ? 0 : s->bytes[chunk];
                while (held + bytes > limit[at]) {
                    uint32_t victim = UINT32_MAX;
                    for (uint32_t c = 0; c < s->chunks; c++)
                        if (in[c] && c != chunk &&
                            (victim == UINT32_MAX || (optimal ? key[c] > key[victim] : key[c] < key[victim])))
                            victim = c;
                    if (victim == UINT32_MAX)
                        break;
                    in[victim] = false;
                    held -= s->bytes[victim];
                    f.written_bytes += counted && dirty[victim] ? s->bytes[victim] : 0;
                    dirty[victim] = false;
                }
                held += bytes;
                f.read_bytes += counted ? bytes : 0;
                in[chunk] = true;
                dirty[chunk] |= s->uses[i].write;
                key[chunk] = !optimal                ? clock
                             : next[i] != UINT32_MAX ? (uint64_t)step * s->uses_count + next[i]
                                                     : (uint64_t)(step + 1) * s->uses_count + first[chunk];
            }
    free(key);
    free(in);
    free(dirty);
    free(next);
    free(first);
    return f;
}

static void print_figures(const char *name, const figures *f, uint32_t steps) {
    printf("\"%s\": {\"read_bytes\": %" PRIu64 ", \"written_bytes\": %" PRIu64 ", \"stall_ns\": %" PRIu64
           "}, ",
           name, f->read_bytes / steps, f->written_bytes / steps, f->stall_ns / steps);
}

static uint64_t sum(const uint64_t *bytes, uint32_t count) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < count; i++)
        all += bytes[i];
    return all;
}

int main(int count, char **argument) {
    static replay_step s;
    if (count < 6 || !recording_read(argument[1], &s)) {
        fprintf(stderr,
                "usage: replay RECORDING BUDGET READ_BYTES_PER_SECOND WRITE_BYTES_PER_SECOND STEPS [half]\n");
        return 2;
    }
    uint64_t budget = strtoull(argument[2], NULL, 10), read = strtoull(argument[3], NULL, 10);
    uint64_t write = strtoull(argument[4], NULL, 10);
    uint32_t steps = (uint32_t)strtoul(argument[5], NULL, 10), counted = steps - REPLAY_WARM_STEPS;
    bool half = count > 6 && strcmp(argument[6], "half") == 0;
    if (steps <= REPLAY_WARM_STEPS || s.chunks > REPLAY_CHUNKS_MAX)
        return 1;
    replay_result run;
    castor_status status = replay_run(&s, &(replay_machine){budget, read, write, half}, counted, &run);
    if (status != CASTOR_OK) {
        printf("{\"status\": %d}\n", status);
        return 0;
    }
    const chunk_statistics *before = &run.before, *after = &run.after;
    figures castor = {after->moved_bytes[1][0] - before->moved_bytes[1][0],
                      after->moved_bytes[0][1] - before->moved_bytes[0][1],
                      after->stall_ns - before->stall_ns};
    /* The others get the same room, what the manager's policy allows in each moment. */
    placement_settings placement = placement_defaults(PLACEMENT_AUTO);
    uint64_t *limit = calloc(s.moments_count, sizeof *limit);
    for (uint32_t at = 0; limit && at < s.moments_count; at++)
        limit[at] = placement_limit(&placement, false, budget, s.moments[at].non_model_bytes);
    figures belady = cache_replay(&s, limit, steps, true), lru = cache_replay(&s, limit, steps, false);
    lru.stall_ns = seconds_ns(lru.read_bytes, read) + seconds_ns(lru.written_bytes, write);
    uint64_t in = seconds_ns(belady.read_bytes, read), out = seconds_ns(belady.written_bytes, write);
    uint64_t busy = half ? in + out : in > out ? in : out, all = s.step_ns * counted;
    belady.stall_ns = busy > all ? busy - all : 0;
    uint64_t hits = after->hits - before->hits;
    uint64_t needed = hits + after->late - before->late + after->misses - before->misses;
    printf("{\"status\": 0, \"chunks\": %u, \"moments\": %u, \"uses\": %u, \"model_bytes\": %" PRIu64
           ", \"step_ns\": %" PRIu64 ", ",
           s.chunks, s.moments_count, s.uses_count, sum(s.bytes, s.chunks), s.step_ns);
    print_figures("castor", &castor, counted);
    print_figures("belady", &belady, counted);
    print_figures("lru", &lru, counted);
    printf("\"hit_rate\": %.4f, \"peak_bytes\": %" PRIu64 ", \"over_limit\": %" PRIu64
           ", \"warmups\": %" PRIu64 ", \"calls\": %" PRIu64 ", \"ns_per_call\": %.0f}\n",
           needed ? (double)hits / (double)needed : 1.0, after->tier_peak_bytes[0], after->over_limit,
           after->warmups, run.calls, (double)run.calls_ns / (double)run.calls);
    free(limit);
    return 0;
}
