#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "job/ends.h"

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
