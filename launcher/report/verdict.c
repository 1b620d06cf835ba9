#include "report.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "launcher/common/text_table.h"

#define NOTE_LINES    64
#define MISSING_NAMED 16 /* ranks that left no trace */

static const char refused[] = "refused";

bool report_read_outcome(report *report, const char *name, int fd) {
    char text[16384];
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    bool complete = true;
    text[length > 0 ? length : 0] = '\0';
    char *rest = NULL;
    unsigned lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && lines < NOTE_LINES && complete;
         line = strtok_r(NULL, "\n", &rest), lines++) {
        trace_read_clean(line, strlen(line) + 1);
        complete = report_add_note(report, "%s", line);
        const char *reason = strstr(line, ": ");
        if (complete && report->outcome == NULL)
            complete = asprintf(&report->outcome, "%s: %s",
                                strncmp(name, refused, sizeof refused - 1) == 0 ? refused : name,
                                reason == NULL ? line : reason + 2) >= 0;
    }
    return complete;
}

/* How each rank ended; `failed` gets what the job came to by that, "" if nothing failed. False when memory is out. */
static bool find_ends(report *report, char failed[JOB_END_TEXT_MAX]) {
    job_ended *ranks = calloc(report->rank_count + 1, sizeof *ranks);
    job_end *ends = calloc(report->rank_count + 1, sizeof *ends);
    bool complete = ranks != NULL && ends != NULL;
    for (size_t i = 0; i < report->rank_count && complete; i++)
        ranks[i] = (job_ended){report->ranks[i].process->counters, report->ranks[i].rank,
                               report->ranks[i].state == REPORT_RANK_RUNNING};
    failed[0] = '\0';
    if (complete) {
        report->first_failure = job_ends_find(&report->ends, ranks, report->rank_count, ends);
        job_ends_outcome(&report->ends, ranks, ends, report->first_failure, failed);
        for (size_t i = 0; i < report->rank_count; i++)
            report->ranks[i].end = ends[i];
    }
    free(ranks);
    free(ends);
    return complete;
}

/* What the job came to: that it was refused, else how it failed, else the first outcome that a rank told, else that of a process
 * which the agent did not reach, else whether it runs. */
static bool find_outcome(report *report) {
    const char *told = NULL;
    char failed[JOB_END_TEXT_MAX];
    size_t running = 0;
    bool noted = true;
    report->plugin = report->command = "";
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        const trace_counters *counters = rank->process->counters;
        if (told == NULL && counters->outcome[0] != '\0')
            told = counters->outcome;
        if (report->plugin[0] == '\0')
            report->plugin = counters->plugin;
        if (report->command[0] == '\0')
            report->command = counters->command;
        running += rank->state == REPORT_RANK_RUNNING;
    }
    if (!find_ends(report, failed))
        return false;
    if (report->outcome != NULL && strncmp(report->outcome, refused, sizeof refused - 1) == 0)
        return true;
    if (failed[0] != '\0') {
        if (told != NULL) /* it is in the notes, if a process that the agent did not reach told it */
            noted = report_add_note(report, "%s", told);
        told = failed;
    }
    if (told == NULL && report->outcome != NULL)
        return true;
    free(report->outcome);
    report->outcome = strdup(told != NULL ? told : running > 0 ? "running" : "exited");
    return noted && report->outcome != NULL;
}

static bool add_notes(report *report) {
    bool added = true;
    char figure[TEXT_FIGURE_MAX];
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        char who[32] = "a process";
        if (rank->rank >= 0)
            snprintf(who, sizeof who, "rank %d", rank->rank);
        if (rank->state == REPORT_RANK_DIED)
            added &=
                report_add_note(report, "%s (pid %u) was killed; what it recorded until then is complete",
                                who, rank->process->counters->pid);
    }
    /* Ranks are in order, unknown ones last. A damaged file may tell any rank. */
    uint64_t missing = 0;
    for (size_t i = 0, next = 0; i < report->rank_count && added && report->ranks[i].rank >= 0; i++) {
        for (; next < (size_t)report->ranks[i].rank && added; next++) {
            if (missing >= MISSING_NAMED) {
                missing += (size_t)report->ranks[i].rank - next;
                break;
            }
            missing++;
            added &= report_add_note(report, "rank %zu left no trace", next);
        }
        next = (size_t)report->ranks[i].rank + 1;
    }
    if (missing > MISSING_NAMED)
        added &= report_add_note(report, "and %" PRIu64 " more ranks below the highest one left no trace",
                                 missing - MISSING_NAMED);
    bool full = false, failed = false;
    for (size_t i = 0; i < report->process_count; i++) {
        full |= report->processes[i].counters->recording == TRACE_RECORDING_FULL;
        failed |= report->processes[i].counters->recording == TRACE_RECORDING_FAILED;
    }
    if (full)
        added &= report_add_note(
            report,
            "the trace reached CASTOR_TRACE_MAX (%s): %" PRIu64 " records were counted but not "
            "kept; counts, bytes and seconds are complete, step times are of the first part",
            text_bytes(figure, report->trace_max_bytes), report->dropped);
    if (failed)
        added &= report_add_note(report,
                                 "a trace file could not be written (no space, or a limit): %" PRIu64
                                 " records were counted but not kept",
                                 report->dropped);
    return added;
}

static bool is_rank(const report *report, int pid) {
    for (size_t i = 0; i < report->rank_count; i++)
        if (report->ranks[i].process->counters->pid == (uint32_t)pid)
            return true;
    return false;
}

/* What the ranks' own ends do not tell. */
static bool add_end_notes(report *report) {
    const job_note *job = job_notes_find(&report->ends, ENDS_JOB, 0, 0);
    bool added = true, counted = job_notes_find(&report->ends, ENDS_KILLED, 0, 0) != NULL ||
                                 job_notes_find(&report->ends, ENDS_KILLED_GROUP, 0, 0) != NULL;
    if (job != NULL && job->number == 0 && report->first_failure != JOB_NO_FAILURE)
        added &= report_add_note(report, "the command ended with status 0 although a rank failed");
    if (job_notes_find(&report->ends, ENDS_LOST, 0, 0) != NULL)
        added &= report_add_note(report, "castor itself was killed, and its ranks were ended for that");
    unsigned noted = 0;
    for (size_t i = 0; i < report->ends.count && counted && noted < MISSING_NAMED; i++) {
        const job_note *note = &report->ends.rows[i];
        if (note->event != ENDS_SIGNAL || note->number != SIGKILL || is_rank(report, note->pid))
            continue;
        noted++;
        added &= report_add_note(report,
                                 "process %d, which is no rank (a worker of a DataLoader?), was killed; the "
                                 "kernel has counted kills for memory",
                                 note->pid);
    }
    return added;
}

bool report_find_outcome(report *report) {
    return find_outcome(report) && add_notes(report) && add_end_notes(report);
}
