#include "report.h"

#include <inttypes.h>
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

/* What the job came to: that it was refused, else the first outcome that a rank told, else that of a process which the
 * agent did not reach, else how the ranks ended. */
static bool find_outcome(report *report) {
    const char *told = NULL;
    size_t running = 0, died = 0;
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
        died += rank->state == REPORT_RANK_DIED;
    }
    if (report->outcome != NULL &&
        (told == NULL || strncmp(report->outcome, refused, sizeof refused - 1) == 0))
        return true;
    free(report->outcome);
    report->outcome = strdup(told != NULL ? told : died > 0 ? "died" : running > 0 ? "running" : "exited");
    return report->outcome != NULL;
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
                report_add_note(report,
                                "%s (pid %u) ended without leaving in order (killed, or it called _exit); "
                                "what it recorded until then is complete",
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

bool report_find_outcome(report *report) {
    return find_outcome(report) && add_notes(report);
}
