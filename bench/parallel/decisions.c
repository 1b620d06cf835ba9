/* How many decisions of hybrid parallelism (interpose/parallel) one core makes in a second. Prints JSON: for each decision its case and
 * one figure a round.
 *
 *     bench-parallel ROUNDS MILLISECONDS
 *
 * Decisions take turns, round by round, so that other load on the machine hits all of them; each runs for that long a round. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "parallel/mesh.h"
#include "parallel/pipeline.h"
#include "parallel/rank_lists.h"
#include "parallel/spec.h"
#include "parallel/spec_path.h"
#include "parallel/stages.h"

enum {
    RANKS = 4096,
    TP = 16,
    DP = 256,
    STAGES = 64,
    MICROBATCHES = 512,
    SLICES = 4,
    LAYERS = 4096,
    ROUNDS_MOST = 64
};

static int32_t shuffled[RANKS], sorted[RANKS], list[RANKS];
static mesh grid; /* 16 x 16 x 16 */
static const int32_t grid_shape[] = {16, 16, 16};
static const int64_t shape[] = {4096, 4096};
static spec source, target;
static pipeline_operation operations[2 * MICROBATCHES * SLICES]; /* and 3 * MICROBATCHES */
static uint64_t costs[LAYERS];
static uint32_t ends[LAYERS];

/* Each decides once, for the next rank, stage or the like; false: it failed. */
typedef bool decision(uint32_t turn);

static bool sort_ranks(uint32_t turn) {
    (void)turn;
    return rank_list_sort(shuffled, RANKS, sorted) == CASTOR_OK;
}

static bool lists_of_rank(uint32_t turn) {
    int32_t place = (int32_t)(turn % RANKS);
    return !rank_list_get(RANK_LIST_TENSOR, sorted, TP, DP, place / TP, list) &&
           !rank_list_get(RANK_LIST_DATA, sorted, TP, DP, place % TP, list);
}

static bool make_mesh(uint32_t turn) {
    (void)turn;
    return mesh_make(&grid, sorted, RANKS, grid_shape, 3, NULL, NULL) == CASTOR_OK;
}

static bool line_of_rank(uint32_t turn) {
    int32_t axis = (int32_t)(turn % 3), index, place, lines, length;
    return !mesh_line_of(&grid, &axis, 1, sorted[turn % RANKS], &index, &place) &&
           !mesh_line(&grid, &axis, 1, index, list, &lines, &length);
}

static bool collective_cost(uint32_t turn) {
    double cost;
    return mesh_cost(&grid, (mesh_collective)(turn % 4), turn, (int32_t)(turn % 3), &cost) == CASTOR_OK;
}

/* [S012, R] and [R, S210] */
static const partition divided[2] = {{.dim = 0, .count = 3, .axes = {0, 1, 2}},
                                     {.dim = 1, .count = 3, .axes = {2, 1, 0}}};

static bool make_and_print(uint32_t turn) {
    (void)turn;
    char text[SPEC_TEXT];
    spec s;
    return !spec_make(shape, 2, &divided[0], 1, &s) && !spec_print(&s, text, sizeof text);
}

static bool communication_of_spec(uint32_t turn) {
    communication c = {.pattern = (int32_t)(turn % 6), .axis = (int32_t)(turn % 3)};
    communication_cost cost;
    return communication_cost_of(&grid, &source, &c, &cost) == CASTOR_OK;
}

static bool all_transforms(uint32_t turn) {
    (void)turn;
    static transform found[TRANSFORMS_MOST];
    uint32_t count;
    return transforms_of(&grid, &source, 0, 0, found, &count) == CASTOR_OK;
}

static bool path_of_specs(uint32_t turn) {
    (void)turn;
    static transform found[PATH_MOST];
    uint32_t count;
    communication_cost cost;
    return spec_path(&grid, &source, &target, 0, 0, found, &count, &cost) == CASTOR_OK;
}

static bool schedule(pipeline_style style, int32_t slices, uint32_t turn) {
    pipeline p = {(int32_t)style, STAGES, MICROBATCHES, slices};
    uint64_t count;
    return !pipeline_operations(&p, (int32_t)(turn % STAGES), operations,
                                sizeof operations / sizeof *operations, &count);
}

static bool schedule_1f1b(uint32_t turn) {
    return schedule(PIPELINE_1F1B, 1, turn);
}

static bool schedule_interleaved(uint32_t turn) {
    return schedule(PIPELINE_INTERLEAVED, SLICES, turn);
}

static bool schedule_zero_bubble(uint32_t turn) {
    return schedule(PIPELINE_ZERO_BUBBLE, 1, turn);
}

static bool divide_128(uint32_t turn) {
    uint64_t largest;
    return stages_divide(costs + turn % 64, 128, 16, ends, &largest) == CASTOR_OK;
}

static bool divide_4096(uint32_t turn) {
    (void)turn;
    uint64_t largest;
    return stages_divide(costs, LAYERS, 256, ends, &largest) == CASTOR_OK;
}

static struct {
    const char *name, *of;
    decision *decide;
    double per_second[ROUNDS_MOST];
} rows[] = {
    {"sort and check ranks", "4096 ranks", sort_ranks, {0}},
    {"tensor and data list of a rank", "4096 ranks, tp 16", lists_of_rank, {0}},
    {"make a mesh", "16 x 16 x 16 given ranks", make_mesh, {0}},
    {"line of a rank along an axis", "16 x 16 x 16 given ranks", line_of_rank, {0}},
    {"cost of a collective", "", collective_cost, {0}},
    {"make and print a spec", "[S012, R]", make_and_print, {0}},
    {"cost of a communication", "[S012, R]", communication_of_spec, {0}},
    {"all transforms of a spec", "[S012, R]", all_transforms, {0}},
    {"path between two specs", "[S012, R] to [R, S210]", path_of_specs, {0}},
    {"1F1B of a stage", "64 stages, 512 microbatches", schedule_1f1b, {0}},
    {"interleaved of a stage", "64 stages, 512 microbatches, 4 model chunks", schedule_interleaved, {0}},
    {"zero bubble of a stage", "64 stages, 512 microbatches", schedule_zero_bubble, {0}},
    {"divide layers", "128 layers, 16 stages", divide_128, {0}},
    {"divide layers", "4096 layers, 256 stages", divide_4096, {0}},
};
enum { ROWS = sizeof rows / sizeof *rows };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Decisions per second; 0: one failed. */
static double measure(decision *decide, double seconds) {
    double begin = now(), end = begin;
    uint32_t turn = 0, batch = 1;
    while (end - begin < seconds) {
        for (uint32_t i = 0; i < batch; i++)
            if (!decide(turn++))
                return 0;
        batch *= 2;
        end = now();
    }
    return turn / (end - begin);
}

static bool prepare(void) {
    uint32_t random = 1;
    for (int32_t i = 0; i < RANKS; i++) {
        shuffled[i] = i * 2731 % RANKS; /* odd: each rank once */
        random = random * 1664525u + 1013904223u;
        costs[i] = random >> 8;
    }
    return sort_ranks(0) && make_mesh(0) && !spec_make(shape, 2, &divided[0], 1, &source) &&
           !spec_make(shape, 2, &divided[1], 1, &target);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    double seconds = argc > 2 ? strtod(argv[2], NULL) / 1000 : 0;
    if (rounds < 1 || rounds > ROUNDS_MOST || seconds <= 0 || !prepare()) {
        fprintf(stderr, "usage: bench-parallel ROUNDS (1 to %d) MILLISECONDS\n", ROUNDS_MOST);
        return 2;
    }
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < ROWS; i++) {
            rows[i].per_second[round] = measure(rows[i].decide, seconds);
            if (rows[i].per_second[round] == 0) {
                fprintf(stderr, "bench-parallel: %s failed\n", rows[i].name);
                return 1;
            }
        }
    printf("[");
    for (int i = 0; i < ROWS; i++) {
        printf("%s\n {\"decision\": \"%s\", \"case\": \"%s\", \"per_second\": [", i ? "," : "", rows[i].name,
               rows[i].of);
        for (long round = 0; round < rounds; round++)
            printf("%s%.0f", round ? ", " : "", rows[i].per_second[round]);
        printf("]}");
    }
    printf("\n]\n");
    return 0;
}
