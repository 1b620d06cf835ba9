#include "rehearse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "job/options.h"
#include "launcher/common/device_peaks.h"
#include "launcher/common/text_table.h"
#include "launcher/report/collective_statistics.h"
#include "launcher/report/report.h"
#include "launcher/run/run.h"

enum { RANKS_SHOWN = 8, LINE_MAX_BYTES = 512 };

#define MIB (UINT64_C(1) << 20)

/* ---- memory ---- */

typedef struct fullest {
    const report_rank *rank,
        *short_rank; /* NULL: no device was used; no block was without room where that ended a rank */
    device_peak peak, short_peak;
} fullest;

/* Of one device: a simulated device's use where it is known, else what PyTorch had of it. */
static uint64_t taken(const device_peak *peak) {
    return peak->parts[DEVICE_PART_USED] > 0 ? peak->parts[DEVICE_PART_USED]
                                             : peak->parts[DEVICE_PART_RESERVED];
}

static void find_fullest(const report *report, fullest *out) {
    *out = (fullest){0};
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        device_peak peaks[DEVICE_PARTS_DEVICES];
        size_t count = device_peaks_read(rank->process->counters, peaks);
        for (size_t at = 0; at < count; at++) {
            if (!out->rank || taken(&peaks[at]) > taken(&out->peak)) {
                out->rank = rank;
                out->peak = peaks[at];
            }
            if (rank->end.kind == JOB_END_EXCEPTION &&
                strstr(rank->end.exception->type, "OutOfMemoryError") &&
                peaks[at].parts[DEVICE_PART_NEEDED] > out->short_peak.parts[DEVICE_PART_NEEDED]) {
                out->short_rank = rank;
                out->short_peak = peaks[at];
            }
        }
    }
}

static const char *rank_name(const report_rank *rank, char out[32]) {
    job_ended_name(rank->rank, rank->process->counters->pid, out);
    return out;
}

/* As --memory takes it. */
static uint64_t whole_mib(uint64_t bytes) {
    return bytes / MIB + (bytes % MIB > 0);
}

static void say_outcome(const report *report, int status) {
    char memory[TEXT_FIGURE_MAX], figure[TEXT_FIGURE_MAX], name[32];
    fullest found;
    find_fullest(report, &found);
    text_bytes(memory, options()->rehearse_memory);
    if (found.short_rank) {
        uint64_t needed = found.short_peak.parts[DEVICE_PART_NEEDED];
        LOG_W(
            "rehearsal: it does not fit in %s: device %d of %s needed %s at one time; with --memory %" PRIu64
            "M or more it goes on from there",
            memory, found.short_peak.device, rank_name(found.short_rank, name), text_bytes(figure, needed),
            whole_mib(needed));
    } else if (status != 0) {
        const char *how =
            strncmp(report->outcome, "failed: ", 8) == 0 ? report->outcome + 8 : report->outcome;
        LOG_W("rehearsal: it failed: %s", how);
    } else if (!found.rank) {
        LOG_W("rehearsal: it ran, and used no device");
    } else {
        uint64_t most = taken(&found.peak);
        LOG_I("rehearsal: it runs, and fits in %s: the fullest device took %s (--memory %" PRIu64 "M)",
              memory, text_bytes(figure, most), whole_mib(most));
    }
}

static void say_peaks(const report *report) {
    size_t said = 0, all = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        device_peak peaks[DEVICE_PARTS_DEVICES];
        size_t count = device_peaks_read(rank->process->counters, peaks);
        all += count;
        for (size_t at = 0; at < count && said < RANKS_SHOWN; at++, said++) {
            char parts[LINE_MAX_BYTES], figure[TEXT_FIGURE_MAX], name[32];
            device_peak_text(&peaks[at], parts, sizeof parts);
            LOG_I("%s, device %d: peak %s: %s", rank_name(rank, name), peaks[at].device,
                  text_bytes(figure, peaks[at].bytes), parts);
        }
    }
    if (all > said)
        LOG_I("and %zu more devices (castor report has all)", all - said);
}

/* ---- collectives ---- */

typedef struct call {
    uint64_t begin_ns, bytes;
    uint32_t operation;
} call;

typedef struct calls {
    const report_rank *rank;
    call *rows;
    size_t count;
} calls;

static int compare_begins(const void *left, const void *right) {
    uint64_t a = ((const call *)left)->begin_ns, b = ((const call *)right)->begin_ns;
    return a < b ? -1 : a > b;
}

static bool is_message(const char *operation) {
    return strncmp(operation, "send", 4) == 0 || strncmp(operation, "recv", 4) == 0;
}

/* Whether ranks may give it different sizes. */
static bool has_own_sizes(const char *operation) {
    return strcmp(operation, "scatter") == 0 || strcmp(operation, "gather") == 0 ||
           strncmp(operation, "alltoall", 8) == 0;
}

static const report_rank *rank_of(const report *report, uint32_t process) {
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].process == &report->processes[process])
            return &report->ranks[i];
    return NULL;
}

/* What a process called in a group, in order. False: memory is out. */
static bool collect(const report *report, uint32_t group, uint32_t process, calls *out) {
    const report_collectives *all = report->matched;
    *out = (calls){.rank = rank_of(report, process), .rows = calloc(all->entry_count + 1, sizeof *out->rows)};
    for (size_t i = 0; out->rows && i < all->entry_count; i++) {
        const report_key *key = &all->keys[all->entries[i].key];
        if (key->group == group && key->process == process && !is_message(all->operations[key->operation]))
            out->rows[out->count++] = (call){all->entries[i].begin_job_ns, key->size_bytes, key->operation};
    }
    if (out->count > 0)
        qsort(out->rows, out->count, sizeof *out->rows, compare_begins);
    return out->rows != NULL;
}

/* A rank that failed by itself has not called what would have come. */
static bool is_cut_off(const calls *of) {
    if (!of->rank)
        return true;
    job_end_kind kind = of->rank->end.kind;
    return kind == JOB_END_EXCEPTION || kind == JOB_END_STATUS || kind == JOB_END_SIGNAL ||
           kind == JOB_END_MEMORY;
}

static bool differs(const report_collectives *all, const calls *a, const calls *b, size_t at) {
    if (at >= a->count || at >= b->count)
        return at >= a->count ? at < b->count && !is_cut_off(a) : !is_cut_off(b);
    const call *x = &a->rows[at], *y = &b->rows[at];
    return x->operation != y->operation ||
           (x->bytes != y->bytes && !has_own_sizes(all->operations[x->operation]));
}

static void say_difference(const report *report, const report_process_group *group, const calls *of,
                           size_t at) {
    char line[LINE_MAX_BYTES] = "", figure[TEXT_FIGURE_MAX], name[32];
    size_t used = 0;
    for (size_t i = 0; i < group->process_count && i < RANKS_SHOWN; i++) {
        const calls *one = &of[i];
        used += log_format(line + used, sizeof line - used, "%s%s called ", i > 0 ? ", " : "",
                           one->rank ? rank_name(one->rank, name) : "a process");
        if (at < one->count)
            used += log_format(line + used, sizeof line - used, "%s of %s",
                               report->matched->operations[one->rows[at].operation],
                               text_bytes(figure, one->rows[at].bytes));
        else
            used += log_format(line + used, sizeof line - used, "none");
    }
    LOG_W("the collectives do not match: number %zu of process group %s: %s%s", at + 1, group->label, line,
          group->process_count > RANKS_SHOWN ? ", ..." : "");
}

/* Compares a group's ranks, call by call. Returns how many calls all of them made alike; `*alike`: no call is different. */
static size_t check_group(const report *report, uint32_t number, bool *alike) {
    const report_process_group *group = &report->matched->groups[number];
    calls *of = calloc(group->process_count + 1, sizeof *of);
    bool read = of != NULL;
    size_t longest = 0, at = 0;
    *alike = true;
    for (size_t i = 0; read && i < group->process_count; i++) {
        read = collect(report, number, group->processes[i], &of[i]);
        longest = of[i].count > longest ? of[i].count : longest;
    }
    for (; read && *alike && at < longest; at++) {
        bool by_all = true;
        for (size_t i = 0; i < group->process_count; i++)
            by_all &= at < of[i].count;
        for (size_t i = 1; *alike && i < group->process_count; i++)
            *alike = !differs(report->matched, &of[0], &of[i], at);
        if (!*alike)
            say_difference(report, group, of, at);
        if (!*alike || !by_all)
            break;
    }
    for (size_t i = 0; of && i < group->process_count; i++)
        free(of[i].rows);
    free(of);
    return at;
}

static void say_collectives(const report *report, int status) {
    const report_collectives *all = report->matched;
    size_t count = 0, groups = 0;
    bool alike = true;
    if (!all || all->entries_left_out > 0 || report->truncated) {
        if (all && all->key_count > 0)
            LOG_I("the collectives were not compared: the trace has not all of them (CASTOR_TRACE_MAX)");
        return;
    }
    for (size_t i = 0; alike && i < all->group_count; i++) {
        size_t found = all->groups[i].process_count > 1 ? check_group(report, (uint32_t)i, &alike) : 0;
        count += found;
        groups += found > 0;
    }
    /* What the trace does not have: type, reduction and root. The simulation compares these as well. */
    for (size_t i = 0; alike && i < report->rank_count; i++) {
        const job_end *end = &report->ranks[i].end;
        if (end->exception && strstr(end->exception->message, "the ranks called different collectives")) {
            LOG_W("the collectives do not match: %s", end->exception->message);
            alike = false;
        }
    }
    if (alike && count > 0)
        LOG_I("%zu collectives of %zu process group%s: those of all ranks %s", count, groups,
              groups == 1 ? "" : "s", status == 0 ? "match" : "have the same operation and size");
}

static void summarize(const run_job *job, int status) {
    report report;
    if (report_read(&report, job->directory.path)) {
        say_outcome(&report, status);
        say_peaks(&report);
        say_collectives(&report, status);
    }
    report_free(&report);
}

int rehearse_main(int argc, char **argv) {
    return run_main_as(SUBCOMMAND_rehearse, summarize, argc, argv);
}
