#include "run.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    char entry[sizeof "CASTOR_JOB=" + RUN_TOKEN_DIGITS];
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

size_t run_job_signal(const char *token, int signal) {
    job_query query = {.signal = signal};
    snprintf(query.entry, sizeof query.entry, "CASTOR_JOB=%s", token);
    return each_process(visit_of_job, &query);
}
