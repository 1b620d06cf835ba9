#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "launcher/common/trace_read.h"
#include "top.h"

uint64_t top_steps(const trace_counters *counters) {
    uint64_t most = 0;
    for (uint32_t id = 0; id < trace_slot_ids(TRACE_STEP); id++) {
        uint64_t count = counters->counters[trace_slot(TRACE_STEP, id)].count;
        most = count > most ? count : most;
    }
    return most > 0 ? most : counters->gauges[GAUGE_STEPS].last;
}

/* ---- which processes are the ranks ---- */

bool top_ranks_choose(const job_reading *reading, size_t **indices, size_t *count) {
    bool any_known = false;
    *count = 0;
    *indices = malloc((reading->count + 1) * sizeof **indices);
    if (*indices == NULL)
        return false;
    for (size_t i = 0; i < reading->count; i++)
        any_known |= reading->processes[i].counters != NULL && reading->processes[i].rank >= 0;
    for (size_t i = 0; i < reading->count; i++) {
        const job_process *process = &reading->processes[i];
        if (process->counters == NULL)
            continue;
        if (process->rank < 0) {
            /* A launcher that loads PyTorch, or a worker: shown only where nobody is a rank. */
            if (trace_read_has_trained(process->counters) ||
                (!any_known && process->counters->parent_uid == 0))
                (*indices)[(*count)++] = i;
            continue;
        }
        size_t last = *count > 0 ? (*indices)[*count - 1] : SIZE_MAX;
        if (last == SIZE_MAX || reading->processes[last].rank != process->rank)
            (*indices)[(*count)++] = i;
        else if (trace_read_speaks_rather(process->counters, reading->processes[last].counters))
            (*indices)[*count - 1] = i;
    }
    return true;
}

/* ---- samples ---- */

static void add_operations(top_sample *sample, const trace_counters *counters) {
    for (uint32_t id = 0; id < trace_slot_ids(TRACE_COLLECTIVE); id++) {
        const trace_counter *counter = &counters->counters[trace_slot(TRACE_COLLECTIVE, id)];
        const char *name = counter->count > 0 ? trace_read_name(counters, TRACE_COLLECTIVE, id) : NULL;
        if (name == NULL)
            continue;
        top_operation *operation = sample->operations;
        top_operation *end = operation + sample->operation_count;
        while (operation < end && strncmp(operation->name, name, TOP_NAME_MAX - 1) != 0)
            operation++;
        if (operation == end) {
            if (sample->operation_count == TOP_OPERATIONS_MAX)
                continue;
            sample->operation_count++;
            snprintf(operation->name, sizeof operation->name, "%s", name);
        }
        operation->count += counter->count;
        operation->bytes += counter->bytes;
        operation->ns += counter->ns;
    }
}

bool top_history_add(top_history *history, const job_reading *reading, const size_t *ranks,
                     size_t rank_count) {
    top_sample sample = {.at_ns = reading->now_ns, .ranks = calloc(rank_count + 1, sizeof *sample.ranks)};
    if (sample.ranks == NULL)
        return false;
    for (size_t i = 0; i < rank_count; i++) {
        const job_process *process = &reading->processes[ranks[i]];
        const trace_gauge_value *gauges = process->counters->gauges;
        sample.ranks[sample.rank_count++] = (top_rank_sample){
            .uid = process->uid,
            .steps = top_steps(process->counters),
            .wait_ns = gauges[GAUGE_WAIT_NS].last,
            .link_bytes = {gauges[GAUGE_LINK_TO_DEVICE_BYTES].last, gauges[GAUGE_LINK_TO_HOST_BYTES].last}};
        add_operations(&sample, process->counters);
    }
    if (history->count == TOP_SAMPLES_MAX) {
        free(history->samples[0].ranks);
        memmove(history->samples, history->samples + 1, (TOP_SAMPLES_MAX - 1) * sizeof *history->samples);
        history->count--;
    }
    history->samples[history->count++] = sample;
    return true;
}

void top_history_free(top_history *history) {
    for (size_t i = 0; i < history->count; i++)
        free(history->samples[i].ranks);
    history->count = 0;
}

/* ---- rates ---- */

static const top_rank_sample *rank_in(const top_sample *sample, uint64_t uid) {
    for (size_t i = 0; i < sample->rank_count; i++)
        if (sample->ranks[i].uid == uid)
            return &sample->ranks[i];
    return NULL;
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

/* Between the first and the last reading with new steps, so that the rate of steps that take longer than an update does not
 * flicker; the rate of a rank that makes no more steps sinks. */
double top_step_rate(const top_history *history, uint64_t uid) {
    uint64_t first_ns = 0, last_ns = 0, first_steps = 0, steps = 0, oldest_ns = 0, oldest_steps = 0;
    size_t changes = 0;
    bool seen = false;
    for (size_t i = 0; i < history->count; i++) {
        const top_rank_sample *rank = rank_in(&history->samples[i], uid);
        if (rank == NULL)
            continue;
        if (!seen) {
            seen = true;
            oldest_ns = history->samples[i].at_ns;
            oldest_steps = steps = rank->steps;
        }
        if (rank->steps != steps) {
            if (changes++ == 0) {
                first_ns = history->samples[i].at_ns;
                first_steps = rank->steps;
            }
            last_ns = history->samples[i].at_ns;
            steps = rank->steps;
        }
    }
    uint64_t now_ns = history->count > 0 ? history->samples[history->count - 1].at_ns : 0;
    double all = seconds_between(oldest_ns, now_ns);
    if (!seen || all <= 0)
        return -1;
    if (changes < 2)
        return (double)(steps - oldest_steps) / all;
    double rate = (double)(steps - first_steps) / seconds_between(first_ns, last_ns);
    double silent = seconds_between(last_ns, now_ns);
    return silent * rate > 2 ? (double)(steps - first_steps) / seconds_between(first_ns, now_ns) : rate;
}

double top_wait_share(const top_history *history, uint64_t uid) {
    const top_sample *newest = history->count > 0 ? &history->samples[history->count - 1] : NULL;
    const top_rank_sample *now = newest != NULL ? rank_in(newest, uid) : NULL;
    for (size_t i = 0; now != NULL && i + 1 < history->count; i++) {
        const top_rank_sample *then = rank_in(&history->samples[i], uid);
        if (then != NULL && now->wait_ns >= then->wait_ns)
            return (double)(now->wait_ns - then->wait_ns) / 1e9 /
                   seconds_between(history->samples[i].at_ns, newest->at_ns);
    }
    return -1;
}

double top_link_rate(const top_history *history, int to) {
    if (history->count < 2)
        return -1;
    const top_sample *oldest = &history->samples[0], *newest = &history->samples[history->count - 1];
    double bytes = 0, seconds = seconds_between(oldest->at_ns, newest->at_ns);
    for (size_t i = 0; i < newest->rank_count; i++) {
        const top_rank_sample *now = &newest->ranks[i], *then = rank_in(oldest, now->uid);
        if (then != NULL && now->link_bytes[to] > then->link_bytes[to])
            bytes += (double)(now->link_bytes[to] - then->link_bytes[to]);
    }
    return seconds > 0 ? bytes / seconds : -1;
}

double top_operation_change(const top_history *history, const top_operation *total, top_operation *change) {
    *change = *total;
    if (history->count < 2)
        return 0;
    const top_sample *oldest = &history->samples[0];
    for (size_t i = 0; i < oldest->operation_count; i++) {
        const top_operation *then = &oldest->operations[i];
        if (strcmp(then->name, total->name) == 0 && then->count <= total->count &&
            then->bytes <= total->bytes && then->ns <= total->ns) {
            change->count -= then->count;
            change->bytes -= then->bytes;
            change->ns -= then->ns;
        }
    }
    return seconds_between(oldest->at_ns, history->samples[history->count - 1].at_ns);
}
