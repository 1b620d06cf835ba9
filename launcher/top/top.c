#include "top.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "base/log.h"
#include "launcher/common/command_line.h"
#include "launcher/common/trace_read.h"
#include "launcher/job/runs.h"

enum { STATUS_SHOWN = 0, STATUS_NOTHING = 1, STATUS_USAGE = 2 };

static const double interval_min_seconds = 0.1, interval_max_seconds = 3600;

typedef struct top_request {
    char directory[PATH_MAX];
    uint64_t interval_ns;
    bool once;
} top_request;

/* ---- command line ---- */

static bool parse_interval(const char *text, uint64_t *out_ns) {
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(seconds) || seconds < interval_min_seconds ||
        seconds > interval_max_seconds)
        return false;
    *out_ns = (uint64_t)(seconds * 1e9);
    return true;
}

/* -1: go on; else the status to end with. */
static int parse_arguments(int argc, char **argv, top_request *out) {
    *out = (top_request){.interval_ns = UINT64_C(1000000000)};
    command_line line = {SUBCOMMAND_top, argc, argv, 1, NULL};
    for (bool more = true; more;) {
        switch (command_line_next(&line)) {
        case ARGUMENT_top_once:
            out->once = true;
            break;
        case ARGUMENT_top_interval:
            if (!parse_interval(line.value, &out->interval_ns)) {
                LOG_E("top: --interval `%s`: must be seconds from 0.1 to 3600", line.value);
                return STATUS_USAGE;
            }
            break;
        case COMMAND_LINE_WORD:
            if (out->directory[0] != '\0' || strlen(line.value) >= sizeof out->directory) {
                LOG_E("top: takes one directory: castor top DIR");
                return STATUS_USAGE;
            }
            if (line.value[0] == '\0') {
                LOG_E("top: the directory's name is empty: castor top DIR");
                return STATUS_USAGE;
            }
            memcpy(out->directory, line.value, strlen(line.value) + 1);
            break;
        case COMMAND_LINE_HELP:
            command_help_write(line.command, stdout);
            return STATUS_SHOWN;
        case COMMAND_LINE_WRONG:
            return STATUS_USAGE;
        default:
            more = false;
        }
    }
    if (out->directory[0] == '\0' && !job_runs_newest(out->directory, sizeof out->directory)) {
        LOG_E("top: there is no run in ./" JOB_RUNS_PARENT "; name its log directory: castor top DIR");
        return STATUS_NOTHING;
    }
    return -1;
}

/* ---- looking ---- */

typedef enum reading_status { READING_ADDED, READING_EMPTY, READING_FAILED } reading_status;

typedef struct watcher {
    top_job job;
    job_reading reading;
    top_history history;
    char shown[PATH_MAX]; /* the directory's name, safe to print */
} watcher;

static bool is_running(const job_reading *reading) {
    for (size_t i = 0; i < reading->count; i++)
        if (reading->processes[i].state == JOB_RUNNING || reading->processes[i].state == JOB_STOPPED)
            return true;
    return false;
}

static reading_status read_again(watcher *w, const char *directory) {
    job_reading_free(&w->reading);
    if (!job_reading_take(directory, JOB_LOOK_LIVE | JOB_LOOK_COUNTERS, &w->reading)) {
        LOG_E("top: %s cannot be read: %s", w->shown, strerror(errno));
        return READING_FAILED;
    }
    /* In this order: a run that ends between the two is found ended at the next reading. */
    w->job.ended = !is_running(&w->reading);
    w->job.in_use = job_directory_in_use(directory);
    w->job.ended &= !w->job.in_use;
    bool counters = false;
    for (size_t i = 0; i < w->reading.count; i++)
        counters |= w->reading.processes[i].counters != NULL;
    if (!counters && w->job.ended)
        return READING_EMPTY;
    size_t *ranks, count;
    bool added = top_ranks_choose(&w->reading, &ranks, &count);
    if (added) {
        added = top_history_add(&w->history, &w->reading, ranks, count);
        free(ranks);
    }
    if (!added)
        LOG_E("top: out of memory");
    return added ? READING_ADDED : READING_FAILED;
}

static void show(watcher *w, top_screen *screen, bool hint) {
    top_text text = {0};
    size_t width = screen->full ? screen->width : 0;
    top_view(&w->job, &w->reading, &w->history, width, &text);
    if (screen->full && text.count >= screen->height) {
        while (text.count > 0 && text.count >= screen->height)
            free(text.lines[--text.count]);
        top_text_add(&text, "... (the window is too low for the rest)");
    } else if (hint && screen->full && screen->keys) {
        top_text_add(&text, "%s", "");
        top_text_add(&text, "q quits");
    }
    if (!screen->full)
        top_text_add(&text, "%s", "");
    top_text_cut(&text, width);
    top_screen_show(screen, &text);
    top_text_free(&text);
}

static int refuse_empty(const watcher *w) {
    if (w->reading.unreadable > 0)
        LOG_E("top: %s holds no trace that can be read: %s", w->shown, w->reading.message);
    else
        LOG_E("top: %s holds no trace; it is no log directory, or no process of the run used PyTorch",
              w->shown);
    return STATUS_NOTHING;
}

/* The last state stays on the terminal: as plain lines, when the screen is given back. */
static void show_last(watcher *w, top_screen *screen) {
    top_screen_close(screen);
    show(w, screen, false);
    puts("the job has ended; castor report shows all of it");
    fflush(stdout);
}

static int watch(watcher *w, const top_request *request) {
    reading_status seen = read_again(w, request->directory);
    if (seen != READING_ADDED)
        return seen == READING_EMPTY ? refuse_empty(w) : STATUS_NOTHING;
    if (w->job.ended) {
        top_screen plain = {0};
        show(w, &plain, false);
        puts("the job has ended; castor report shows all of it");
        return fflush(stdout) == 0 ? STATUS_SHOWN : STATUS_NOTHING;
    }
    top_screen screen;
    int signal = 0, status = STATUS_SHOWN;
    top_screen_open(&screen, !request->once); /* what is shown once stays on the terminal */
    uint64_t deadline_ns = w->reading.now_ns + request->interval_ns;
    for (;;) {
        if (!request->once || w->history.count >= 2)
            show(w, &screen, true);
        if (request->once && w->history.count >= 2)
            break;
        top_event event = top_screen_wait(&screen, deadline_ns, &signal);
        if (event == TOP_QUIT)
            break;
        if (event == TOP_REDRAW)
            continue;
        seen = read_again(w, request->directory);
        if (seen != READING_ADDED) {
            top_screen_close(&screen);
            return seen == READING_EMPTY ? refuse_empty(w) : STATUS_NOTHING;
        }
        deadline_ns = w->reading.now_ns + request->interval_ns;
        if (w->job.ended) {
            show_last(w, &screen);
            return STATUS_SHOWN;
        }
    }
    top_screen_close(&screen);
    if (signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT)
        status = 128 + signal;
    return status;
}

int top_main(int argc, char **argv) {
    top_request request;
    int status = parse_arguments(argc, argv, &request);
    if (status >= 0)
        return status;
    watcher w = {0};
    snprintf(w.shown, sizeof w.shown, "%s", request.directory);
    trace_read_clean(w.shown, sizeof w.shown);
    w.job.directory = w.shown;
    status = watch(&w, &request);
    top_history_free(&w.history);
    job_reading_free(&w.reading);
    return status;
}
