#include "top.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "launcher/common/command_line.h"
#include "launcher/common/trace_read.h"
#include "launcher/job/runs.h"

/* A terminal without a terminal library: seven escape sequences that every terminal since the VT100 family knows, or none
 * at all where standard output is no terminal or TERM says that it knows none. */

#define ESCAPE_ENTER "\033[?1049h\033[?25l" /* the second screen, no cursor */
#define ESCAPE_LEAVE "\033[?25h\033[?1049l"
#define ESCAPE_HOME  "\033[H"
#define ESCAPE_LINE  "\033[K" /* clears the rest of the line */
#define ESCAPE_REST  "\033[J" /* clears what is below */

static const int watched[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT};
enum { WATCHED_COUNT = sizeof watched / sizeof *watched };

static volatile sig_atomic_t arrived[WATCHED_COUNT];
static sigset_t mask_before;
static struct sigaction actions_before[WATCHED_COUNT];
static struct termios terminal_before;
static bool terminal_changed;

static void note(int number) {
    for (int i = 0; i < WATCHED_COUNT; i++)
        if (watched[i] == number)
            arrived[i] = 1;
}

static bool take(int number) {
    for (int i = 0; i < WATCHED_COUNT; i++)
        if (watched[i] == number && arrived[i]) {
            arrived[i] = 0;
            return true;
        }
    return false;
}

static void write_all(const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t part = write(STDOUT_FILENO, text, bytes);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return; /* the terminal is gone: SIGHUP follows */
        text += part;
        bytes -= (size_t)part;
    }
}

static void write_text(const char *text) {
    write_all(text, strlen(text));
}

static void measure(top_screen *screen) {
    struct winsize size;
    screen->width = screen->height = 0;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 &&
        size.ws_row > 0) {
        screen->width = size.ws_col;
        screen->height = size.ws_row;
    } else if (screen->full) {
        screen->width = 80;
        screen->height = 24;
    }
}

static bool terminal_knows_escapes(void) {
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, "TERM=", 5) == 0)
            return (*entry)[5] != '\0' && strcmp(*entry + 5, "dumb") != 0;
    return false;
}

/* Keys come one by one and are not shown; Ctrl-C stays a signal. */
static void terminal_take(const top_screen *screen) {
    struct termios changed;
    if (!screen->full || !screen->keys || tcgetattr(STDIN_FILENO, &terminal_before) != 0)
        return;
    changed = terminal_before;
    changed.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    changed.c_cc[VMIN] = 1;
    changed.c_cc[VTIME] = 0;
    terminal_changed = tcsetattr(STDIN_FILENO, TCSANOW, &changed) == 0;
}

static void terminal_give_back(void) {
    if (terminal_changed)
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
    terminal_changed = false;
}

static void top_screen_open(top_screen *screen, bool whole) {
    bool terminal = isatty(STDOUT_FILENO) == 1;
    /* In front of a pager the keys are the pager's. */
    *screen = (top_screen){.full = whole && terminal && terminal_knows_escapes(),
                           .keys = terminal && isatty(STDIN_FILENO) == 1};
    measure(screen);
    /* Signals arrive only while waiting, so that no frame is cut in the middle. */
    sigset_t blocked;
    sigemptyset(&blocked);
    struct sigaction action = {.sa_handler = note};
    for (int i = 0; i < WATCHED_COUNT; i++) {
        if (sigaction(watched[i], NULL, &actions_before[i]) != 0 || actions_before[i].sa_handler == SIG_IGN)
            continue;
        sigaddset(&blocked, watched[i]);
        sigaction(watched[i], &action, NULL);
    }
    sigprocmask(SIG_BLOCK, &blocked, &mask_before);
    terminal_take(screen);
    if (screen->full)
        write_text(ESCAPE_ENTER);
}

/* Restores the terminal. */
static void top_screen_close(top_screen *screen) {
    if (screen->full)
        write_text(ESCAPE_LEAVE);
    terminal_give_back();
    screen->full = false;
    for (int i = 0; i < WATCHED_COUNT; i++)
        if (actions_before[i].sa_handler != SIG_IGN)
            sigaction(watched[i], &actions_before[i], NULL);
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
}

/* `whole`: takes the whole screen if the terminal can. */
static void top_screen_show(top_screen *screen, const top_text *text) {
    size_t size = 64;
    for (size_t i = 0; i < text->count; i++)
        size += strlen(text->lines[i]) + sizeof ESCAPE_LINE + 2;
    char *frame = malloc(size + 64), *at = frame;
    if (frame == NULL)
        return;
    size_t rows = text->count;
    if (screen->full) {
        at = stpcpy(at, ESCAPE_HOME);
        if (screen->height > 0 && rows > screen->height)
            rows = screen->height;
    }
    for (size_t i = 0; i < rows; i++) {
        at = stpcpy(at, text->lines[i]);
        if (screen->full) {
            at = stpcpy(at, ESCAPE_LINE);
            if (i + 1 < rows) /* a line break after the last row would scroll */
                at = stpcpy(at, "\r\n");
        } else {
            at = stpcpy(at, "\n");
        }
    }
    if (screen->full)
        at = stpcpy(at, ESCAPE_REST);
    write_all(frame, (size_t)(at - frame));
    free(frame);
}

/* Ctrl-Z: the terminal is the shell's until castor goes on. */
static void suspend(top_screen *screen) {
    if (screen->full)
        write_text(ESCAPE_LEAVE);
    terminal_give_back();
    struct sigaction plain = {.sa_handler = SIG_DFL}, noting = {.sa_handler = note};
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    sigaction(SIGTSTP, &plain, NULL);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, NULL); /* stops here */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    sigaction(SIGTSTP, &noting, NULL);
    terminal_take(screen);
    if (screen->full)
        write_text(ESCAPE_ENTER);
}

/* True when somebody wants to leave. */
static bool read_keys(top_screen *screen) {
    char keys[64];
    ssize_t count = read(STDIN_FILENO, keys, sizeof keys);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN))
        screen->keys = false; /* no more keys; the terminal may be gone */
    for (ssize_t i = 0; i < count; i++)
        if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == '\003')
            return true;
    return false;
}

/* Waits until `deadline_ns` (CLOCK_MONOTONIC), a key, or a signal. TOP_QUIT: `signal` is the signal, 0 for the key. */
static top_event top_screen_wait(top_screen *screen, uint64_t deadline_ns, int *signal) {
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (;;) {
        *signal = 0;
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            if (take(ends[i])) {
                *signal = ends[i];
                return TOP_QUIT;
            }
        if (take(SIGTSTP)) {
            suspend(screen);
            measure(screen);
            return TOP_REDRAW;
        }
        bool resized = take(SIGWINCH), continued = take(SIGCONT);
        if (resized || continued) {
            measure(screen);
            return TOP_REDRAW;
        }
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (now >= deadline_ns)
            return TOP_TIME;
        uint64_t left = deadline_ns - now;
        struct timespec limit = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        if (ppoll(&input, screen->keys ? 1 : 0, &limit, &mask_before) > 0 && read_keys(screen))
            return TOP_QUIT;
    }
}

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
