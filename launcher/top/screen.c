/* A terminal without a terminal library: seven escape sequences that every terminal since the VT100 family knows, or none
 * at all where standard output is no terminal or TERM says that it knows none. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "top.h"

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

void top_screen_open(top_screen *screen, bool whole) {
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

void top_screen_close(top_screen *screen) {
    if (screen->full)
        write_text(ESCAPE_LEAVE);
    terminal_give_back();
    screen->full = false;
    for (int i = 0; i < WATCHED_COUNT; i++)
        if (actions_before[i].sa_handler != SIG_IGN)
            sigaction(watched[i], &actions_before[i], NULL);
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
}

void top_screen_show(top_screen *screen, const top_text *text) {
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

top_event top_screen_wait(top_screen *screen, uint64_t deadline_ns, int *signal) {
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
