#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "job/ends.h"
#include "run.h"

/* Calls `visit` with the id of each process there is, and counts those for which it returns true. */
static size_t each_process(bool (*visit)(pid_t pid, const void *context), const void *context) {
    DIR *entries = opendir("/proc");
    if (!entries)
        return 0;
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(entries));)
        if (isdigit((unsigned char)entry->d_name[0]))
            count += visit((pid_t)strtol(entry->d_name, NULL, 10), context);
    closedir(entries);
    return count;
}

static int open_proc(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

typedef struct child_query {
    pid_t parent, except,
        session; /* session 0: one that another process namespace leads, as in a container */
    bool any_session;
    int signal;
} child_query;

static bool visit_child(pid_t pid, const void *context) {
    const child_query *query = context;
    char text[512];
    int file = open_proc(pid, "stat");
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = '\0';
    /* The name in parentheses may hold anything, parentheses too. */
    const char *after = strrchr(text, ')');
    char state;
    int parent, group, session;
    if (!after || sscanf(after + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4)
        return false;
    if (parent != query->parent || pid == query->except || state == 'Z' ||
        (!query->any_session && session != query->session))
        return false;
    kill(pid, query->signal);
    return true;
}

size_t run_children_signal(pid_t except, bool same_session, int signal) {
    child_query query = {getpid(), except, getsid(0), !same_session, signal};
    return each_process(visit_child, &query);
}

typedef struct job_query {
    char entry[sizeof "CASTOR_JOB=" + JOB_TOKEN_DIGITS];
    int signal;
} job_query;

/* Whether the process was started with this entry in its environment. */
static bool has_entry(pid_t pid, const char *entry) {
    enum { BLOCK = 32768 };
    size_t wanted = strlen(entry) + 1, kept = 0; /* with its terminator */
    char block[BLOCK];
    int file = open_proc(pid, "environ");
    if (file < 0)
        return false;
    bool found = false;
    for (ssize_t length;
         !found && kept < sizeof block && (length = read(file, block + kept, sizeof block - kept)) > 0;) {
        size_t available = kept + (size_t)length;
        found = memmem(block, available, entry, wanted) != NULL;
        kept = available < wanted ? available : wanted - 1; /* the entry may continue in the next block */
        memmove(block, block + available - kept, kept);
    }
    close(file);
    return found;
}

static bool visit_of_job(pid_t pid, const void *context) {
    const job_query *query = context;
    return pid != getpid() && has_entry(pid, query->entry) && kill(pid, query->signal) == 0;
}

/* Sends `signal` to each process that was started with CASTOR_JOB=token; not to the calling one. */
static size_t run_job_signal(const char *token, int signal) {
    job_query query = {.signal = signal};
    snprintf(query.entry, sizeof query.entry, "CASTOR_JOB=%s", token);
    return each_process(visit_of_job, &query);
}

/* castor may be killed by SIGKILL: by the kernel when memory is out, or by whoever started it after a time
 * limit. The ranks get SIGTERM then (PR_SET_PDEATHSIG), which lets a launcher among them end its own workers.
 * The guard gives them this long, and ends what is left. */
enum { GRACE_MS = 3000, STEP_MS = 50, KILL_ROUNDS = 20 };

static void pause_ms(long milliseconds) {
    struct timespec duration = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&duration, NULL);
}

static void watch(int line, const run_job *job, const char *files) {
    const char *token = job->token;
    pid_t castor = getppid();
    char word;
    ssize_t length;
    do {
        length = read(line, &word, 1);
    } while (length < 0 && errno == EINTR);
    if (length > 0) /* dismissed */
        return;
    ends_write(job->directory.path, (int)castor, ENDS_LOST, 0);
    for (int waited = 0; waited < GRACE_MS && run_job_signal(token, 0); waited += STEP_MS)
        pause_ms(STEP_MS);
    for (int round = 0; round < KILL_ROUNDS && run_job_signal(token, SIGKILL); round++)
        pause_ms(STEP_MS);
    run_files_remove(files);
}

/* Closes everything but `line`: whoever reads castor's output must not wait for the guard. */
static void close_others(int line) {
    DIR *entries = opendir("/proc/self/fd");
    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));) {
        int file = (int)strtol(entry->d_name, NULL, 10);
        if (entry->d_name[0] != '.' && file != line && file != dirfd(entries))
            close(file);
    }
    closedir(entries);
}

bool run_guard_start(const run_job *job, const char *files, run_guard *out) {
    int ends[2];
    *out = (run_guard){.line = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) {
        setsid(); /* out of reach of what is sent to castor's group or by its terminal */
        prctl(PR_SET_NAME, "castor-guard");
        close_others(ends[1]);
        watch(ends[1], job, files);
        _exit(0);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return false;
    }
    *out = (run_guard){pid, ends[0]};
    return true;
}

void run_guard_dismiss(run_guard *guard) {
    if (guard->line >= 0) {
        send(guard->line, "", 1, MSG_NOSIGNAL); /* it may be gone */
        close(guard->line);
    }
    if (guard->pid > 0)
        while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    *guard = (run_guard){.line = -1};
}
