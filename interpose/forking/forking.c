#include "forking.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "base/process.h"
#include "events/life.h"
#include "files/calls.h"
#include "files/overlay.h"
#include "job/fork_line.h"
#include "job/options.h"
#include "outputs.h"
#include "trace/phases.h"

/* Whether a process that has just imported PyTorch may be forked, so that all that follows is as if each of the ranks had been started by
 * itself: nothing of what it has may be shared with a child, or be missing there (docs/forking.md). */

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

/* Remembers which files the process was started with. Before anything of the process's own has run. */
static void fitness_start(void) {
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

static bool separate_file(int number, void *context) {
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

/* In a forked process: files that were open for reading get a position of their own. False: one cannot be opened again. */
static bool fitness_separate_files(void) {
    return each_file(separate_file, NULL);
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

/* Ends threads that end before a fork by themselves (OpenBLAS's), then looks. False: `reason` says what the process has. `command`: the
 * parent of the process that may be forked. */
static bool fitness_check(pid_t command, char *reason, size_t reason_size) {
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

/* What a new rank writes to `up`. */
typedef struct birth {
    int32_t rank, pid;
} birth;

static int up[2] = {-1, -1}; /* from the ranks to rank 0 */
static int go[2] = {-1, -1}; /* from rank 0 to the ranks: castor's answer once for each, or nothing */

static pid_t castor; /* its process id */

static void close_file(int *file) {
    if (*file >= 0)
        close(*file);
    *file = -1;
}

void forking_start(void) {
    if (options()->fork_line > 0 || options()->fork_server)
        fitness_start();
}

/* castor's process id; 0: the line does not lead there, since this process was started without it. */
static pid_t castor_pid(int line) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    int type = 0;
    socklen_t type_size = sizeof type;
    if (line <= 0 || getsockopt(line, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 ||
        type != SOCK_SEQPACKET || getsockopt(line, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return 0;
    return peer.pid;
}

/* False: castor does not let the ranks go on. */
static bool ask(const line_question *question, line_answer *answer) {
    int line = options()->fork_line;
    ssize_t length;
    *answer = (line_answer){0};
    do {
        length = send(line, question, sizeof *question, MSG_NOSIGNAL);
    } while (length < 0 && errno == EINTR);
    bool asked = length > 0;
    while (asked && (length = recv(line, answer, sizeof *answer, 0)) < 0 && errno == EINTR)
        ;
    close(line);
    return asked && length == sizeof *answer && answer->go;
}

int forking_ready(void) {
    line_question question = {0};
    line_answer answer;
    int ranks = options()->world_size;
    castor = castor_pid(options()->fork_line);
    if (!castor || ranks < 2 || ranks > LINE_RANKS_MAX)
        return 0;
    bool fit = fitness_check(castor, question.reason, sizeof question.reason);
    if (fit && (pipe2(up, O_CLOEXEC) != 0 || pipe2(go, O_CLOEXEC) != 0)) {
        log_format(question.reason, sizeof question.reason, "no pipe: error %d", errno);
        fit = false;
    }
    if (!fit) {
        ask(&question, &answer);
        return 0;
    }
    fflush(NULL); /* what is kept would be written by each rank */
    return ranks;
}

/* ---- a rank ---- */

static bool take_answer(line_answer *answer) {
    ssize_t length;
    do {
        length = read(go[0], answer, sizeof *answer);
    } while (length < 0 && errno == EINTR);
    return length == sizeof *answer && answer->go;
}

int forking_become(int rank, int *log_file) {
    line_answer answer;
    birth own = {rank, (int32_t)getpid()};
    close_file(&up[0]);
    close_file(&go[1]);
    close(options()->fork_line);
    *log_file = -1;
    bool told = fitness_separate_files() && write(up[1], &own, sizeof own) == sizeof own;
    close_file(&up[1]);
    bool goes = told && take_answer(&answer);
    close_file(&go[0]);
    if (!goes)
        return 0;                     /* rank 0 sees that one is missing, or castor has refused */
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* castor is the parent now, the helper has ended */
    if (!outputs_take_input() ||
        (!answer.outputs_pass && !outputs_take(rank, options()->log_dir, log_file))) {
        LOG_E("rank %d cannot open its outputs in %s: error %d", rank, options()->log_dir, errno);
        return 1;
    }
    return getppid() == castor ? -1 : 1;
}

/* ---- rank 0 ---- */

/* How many have said their process ids. */
static int collect(int ranks, line_question *question) {
    int count = 0;
    birth found;
    close_file(&up[1]);
    close_file(&go[0]);
    for (;;) {
        ssize_t length = read(up[0], &found, sizeof found);
        if (length < 0 && errno == EINTR)
            continue;
        if (length != sizeof found)
            break;
        if (found.rank > 0 && found.rank < ranks) {
            question->pids[found.rank - 1] = found.pid;
            count++;
        }
    }
    close_file(&up[0]);
    return count;
}

bool forking_finish(pid_t helper) {
    static line_question question;
    line_answer answer;
    int status = -1, ranks = options()->world_size;
    while (helper > 0 && waitpid(helper, &status, 0) < 0 && errno == EINTR)
        ;
    int made = collect(ranks, &question);
    if (helper > 0 && status == 0 && made == ranks - 1)
        question.made = made;
    else
        log_format(question.reason, sizeof question.reason, "%d of %d ranks could be forked", made,
                   ranks - 1);
    bool together = ask(&question, &answer) && question.made;
    if (together)
        files_forget_notes(); /* the ranks begin here, with all that rank 0 has done */
    for (int rank = 1; together && rank < ranks; rank++)
        if (write(go[1], &answer, sizeof answer) != sizeof answer)
            LOG_W("a forked rank is gone");
    close_file(&go[1]);
    return together;
}

/* ---- ranks of another launcher ---- */

static char how[LINE_REASON_MAX + 32]; /* for the report */

const char *serving_why_not(void) {
    return how;
}

bool serving_ready(void) {
    char reason[LINE_REASON_MAX];
    if (!options()->fork_server)
        return false;
    if (!fitness_check(getppid(), reason, sizeof reason)) {
        log_format(how, sizeof how, "one by one: %s", reason);
        return false;
    }
    fflush(NULL);
    return true;
}

void serving_begin_launcher(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void serving_begin_server(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "castor-ranks");
}

/* What ps and /proc/PID/cmdline show: as much as the launcher's own words have room for. */
static void take_words(const char *words, size_t bytes) {
    size_t room;
    char *begin = process_words(&room);
    if (!begin)
        return;
    memset(begin, 0, room);
    memcpy(begin, words, bytes < room ? bytes : room - 1);
}

bool serving_become(pid_t launcher, const char *name, const char *words, size_t bytes) {
    enum { PARENT_MS = 10000 };
    phases_start();
    prctl(PR_SET_NAME, name);
    take_words(words, bytes);
    for (int waited = 0; getppid() != launcher && waited < PARENT_MS; waited++) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    return getppid() == launcher && fitness_separate_files();
}
