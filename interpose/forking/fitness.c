#include "fitness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "events/life.h"
#include "files/calls.h"

enum { FILES_MAX = 256, NAME_BYTES = 512, THREADS_MS = 200 };

/* ---- files ---- */

typedef struct known_file {
    int number;
    dev_t device;
    ino_t inode;
} known_file;

static known_file known[FILES_MAX];
static int known_count;

/* Calls `visit` for each open file of this process, until it returns false. */
static bool each_file(bool (*visit)(int number, void *context), void *context) {
    char entries[4096];
    long size;
    bool go_on = true;
    int folder = call_open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (folder < 0)
        return false;
    while (go_on && (size = call_entries(folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < size && go_on;) {
            const call_entry *entry = (const call_entry *)(entries + at);
            int number = 0;
            at += entry->size;
            for (const char *digit = entry->name; *digit; digit++)
                number = number * 10 + (*digit - '0');
            if (entry->name[0] != '.' && number != folder)
                go_on = visit(number, context);
        }
    close(folder);
    return go_on;
}

static bool remember(int number, void *context) {
    struct stat info;
    (void)context;
    if (known_count < FILES_MAX && call_fstat(number, &info) == 0)
        known[known_count++] = (known_file){number, info.st_dev, info.st_ino};
    return true;
}

void fitness_start(void) {
    known_count = 0;
    each_file(remember, NULL);
}

static bool is_known(int number, const struct stat *info) {
    for (int i = 0; i < known_count; i++)
        if (known[i].number == number && known[i].device == info->st_dev && known[i].inode == info->st_ino)
            return true;
    return false;
}

/* Devices that give the same to everybody. */
static bool is_plain_device(const struct stat *info) {
    static const struct {
        unsigned major, minor;
    } plain[] = {{1, 3}, {1, 5}, {1, 8}, {1, 9}, {5, 0}}; /* null, zero, random, urandom, tty */
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (S_ISCHR(info->st_mode) && info->st_rdev == makedev(plain[i].major, plain[i].minor))
            return true;
    return false;
}

static bool is_for_reading(int number, const struct stat *info) {
    return (S_ISREG(info->st_mode) || S_ISDIR(info->st_mode)) &&
           (fcntl(number, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

/* The same file with a position of its own; -1: it cannot be opened. */
static int open_again(int number, const struct stat *info) {
    char name[32];
    log_format(name, sizeof name, "/proc/self/fd/%d", number);
    return call_open(name, O_RDONLY | O_CLOEXEC | (S_ISDIR(info->st_mode) ? O_DIRECTORY : 0), 0);
}

typedef struct verdict {
    char *reason;
    size_t size;
} verdict;

static bool check_file(int number, void *context) {
    const verdict *v = context;
    struct stat info;
    char link[32], name[NAME_BYTES];
    if (call_fstat(number, &info) != 0 || is_known(number, &info) || is_plain_device(&info))
        return true;
    log_format(link, sizeof link, "/proc/self/fd/%d", number);
    ssize_t length = call_readlink(link, name, sizeof name - 1);
    name[length > 0 ? length : 0] = '\0';
    if (!is_for_reading(number, &info)) {
        log_format(v->reason, v->size, "%.160s is open%s", name, S_ISREG(info.st_mode) ? " for writing" : "");
        return false;
    }
    int again = open_again(number, &info);
    if (again < 0)
        log_format(v->reason, v->size, "%.160s is open, and cannot be opened again", name);
    else
        close(again);
    return again >= 0;
}

static bool part_file(int number, void *context) {
    struct stat info;
    (void)context;
    if (call_fstat(number, &info) != 0 || is_known(number, &info) || !is_for_reading(number, &info))
        return true;
    int flags = fcntl(number, F_GETFD), again = open_again(number, &info);
    if (again < 0)
        return false;
    lseek(again, lseek(number, 0, SEEK_CUR), SEEK_SET);
    bool done = dup3(again, number, flags & FD_CLOEXEC ? O_CLOEXEC : 0) >= 0;
    close(again);
    return done;
}

bool fitness_part_files(void) {
    return each_file(part_file, NULL);
}

/* ---- threads, memory, timers ---- */

static int thread_count(void) {
    char entries[2048];
    long size;
    int count = 0, folder = call_open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    while (folder >= 0 && (size = call_entries(folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < size; at += ((const call_entry *)(entries + at))->size)
            count += ((const call_entry *)(entries + at))->name[0] != '.';
    if (folder >= 0)
        close(folder);
    return count;
}

/* Who has prepared its threads for a fork has none afterwards, and starts them again when it needs them. */
static int threads_after_a_fork(void) {
    int count = thread_count();
    if (count == 1)
        return 1;
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            syscall(SYS_exit_group, 0);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    for (int waited = 0; waited < THREADS_MS && (count = thread_count()) > 1; waited++) {
        struct timespec pause = {0, 1000000}; /* threads that have been joined may still be listed */
        nanosleep(&pause, NULL);
    }
    return count;
}

/* Memory that a child would share: what the process writes there, the child sees. */
static bool check_mappings(char *reason, size_t reason_size) {
    char line[NAME_BYTES];
    FILE *maps = fopen("/proc/self/maps", "re");
    bool shared = false;
    while (maps && !shared && fgets(line, sizeof line, maps)) {
        const char *rights = strchr(line, ' '), *name = strchr(line, '/');
        line[strcspn(line, "\n")] = '\0';
        shared = rights && rights[2] == 'w' && rights[4] == 's';
        if (shared)
            log_format(reason, reason_size, "it shares memory: %.160s", name ? name : "without a name");
    }
    if (!maps)
        log_format(reason, reason_size, "/proc/self/maps cannot be read");
    else
        fclose(maps);
    return maps && !shared;
}

/* A child has none of them. */
static bool has_timer(void) {
    static const int kinds[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
    struct itimerval timer;
    char line[16];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (getitimer(kinds[i], &timer) == 0 && (timer.it_value.tv_sec || timer.it_value.tv_usec))
            return true;
    int file = call_open("/proc/self/timers", O_RDONLY | O_CLOEXEC, 0);
    bool has = file >= 0 && read(file, line, sizeof line) > 0;
    if (file >= 0)
        close(file);
    return has;
}

static bool has_child(void) {
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

bool fitness_check(pid_t command, char *reason, size_t reason_size) {
    verdict v = {reason, reason_size};
    reason[0] = '\0';
    if (getppid() != command)
        log_format(reason, reason_size, "the command starts Python as a process of its own");
    else if (life_is_awake())
        log_format(reason, reason_size, "PyTorch was used before its import had ended");
    else if (has_child())
        log_format(reason, reason_size, "it has started a process");
    else if (has_timer())
        log_format(reason, reason_size, "a timer runs");
    if (reason[0])
        return false;
    int threads = threads_after_a_fork();
    if (threads > 1) {
        log_format(reason, reason_size, "%d threads run beside the script's", threads - 1);
        return false;
    }
    if (!each_file(check_file, &v)) {
        if (!reason[0])
            log_format(reason, reason_size, "/proc/self/fd cannot be read");
        return false;
    }
    return check_mappings(reason, reason_size);
}
