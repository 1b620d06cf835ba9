#include "plan.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "launcher/job/reading.h"
#include "launcher/job/runs.h"

/* A step of the real script: it runs as `castor run` runs it, and ends when enough steps are recorded. */

enum {
    STEPS_WANTED = 8, /* the first makes states, and the next ones allocate: the others' median counts */
    STEPS_ENOUGH = 3, /* where steps are long */
    SHORT_SECONDS =
        5, /* memory is sampled some ten times a second: so long, for peaks of short steps to be seen */
    LONG_SECONDS = 60,
    END_SECONDS = 30, /* for the script to end when it is told to */
    LOOK_MS = 100,
};

enum { STATUS_NO_PLAN = 2, STATUS_USAGE = 2, STATUS_NOT_EXECUTABLE = 126, STATUS_NOT_FOUND = 127 };

static void nap(void) {
    nanosleep(&(struct timespec){0, LOOK_MS * 1000000L}, NULL);
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The fewest steps of a rank that steps; 0: none does yet. */
static uint64_t steps_made(const char *directory) {
    job_reading reading;
    uint64_t fewest = 0;
    if (job_reading_take(directory, JOB_LOOK_COUNTERS, &reading)) {
        for (size_t i = 0; i < reading.count; i++) {
            const trace_counters *counters = reading.processes[i].counters;
            uint64_t steps = counters == NULL ? 0 : counters->gauges[GAUGE_STEPS].last;
            if (steps > 0 && (fewest == 0 || steps < fewest))
                fewest = steps;
        }
    }
    job_reading_free(&reading);
    return fewest;
}

static size_t count_words(char *const *words) {
    size_t count = 0;
    while (words[count] != NULL)
        count++;
    return count;
}

static void become_run(char *const *command, const char *directory) {
    const char *const before[] = {"castor",    "run",
                                  "--plugin",  "gemini",
                                  "--log-dir", directory,
                                  "--set",     "CASTOR_MEMORY_BUDGET=0",
                                  "--set",     "CASTOR_LOG_LEVEL=error",
                                  "--"};
    enum { BEFORE = sizeof before / sizeof *before };
    size_t count = count_words(command);
    const char **words = calloc(BEFORE + count + 1, sizeof *words);
    if (words != NULL && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) {
        memcpy(words, before, sizeof before);
        memcpy(words + BEFORE, command, count * sizeof *words);
        execv("/proc/self/exe", (char *const *)words);
    }
    _exit(127);
}

/* Waits until the run is over, at most so long. */
static bool over(pid_t pid, double seconds, int *status) {
    for (double until = now_seconds() + seconds; now_seconds() < until; nap())
        if (waitpid(pid, status, WNOHANG) == pid)
            return true;
    return false;
}

/* True: the run ended by itself, with that status. */
static bool follow(pid_t pid, const char *directory, int *status) {
    double first = 0;
    for (;; nap()) {
        if (waitpid(pid, status, WNOHANG) == pid)
            return true;
        uint64_t steps = steps_made(directory);
        if (steps > 0 && first <= 0)
            first = now_seconds();
        double seconds = first > 0 ? now_seconds() - first : 0;
        if ((steps >= STEPS_WANTED && seconds > SHORT_SECONDS) ||
            (steps >= STEPS_ENOUGH && seconds > LONG_SECONDS))
            break;
    }
    kill(pid, SIGTERM);
    if (!over(pid, END_SECONDS, status)) {
        kill(pid, SIGKILL);
        waitpid(pid, status, 0);
    }
    return false;
}

int plan_record(char *const *command, char *directory, size_t size) {
    char stamp[32];
    time_t now = time(NULL);
    struct tm local;
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    snprintf(directory, size, JOB_RUNS_PARENT "/plan-%s", stamp);
    pid_t pid = fork();
    if (pid < 0) {
        LOG_E("plan: no process can be made: %s", strerror(errno));
        return STATUS_NO_PLAN;
    }
    if (pid == 0)
        become_run(command, directory);
    int status = 0;
    bool ended = follow(pid, directory, &status);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended && steps_made(directory) < 2) {
        /* castor run has said why it did not start a command. */
        if (code != STATUS_USAGE && code != STATUS_NOT_EXECUTABLE && code != STATUS_NOT_FOUND)
            LOG_E("plan: the command ended with status %d before an optimizer had stepped twice", code);
        return STATUS_NO_PLAN;
    }
    LOG_I("plan: recorded in %s", directory);
    return 0;
}
