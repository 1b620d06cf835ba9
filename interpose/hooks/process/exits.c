/* _exit, and the functions that wait for children: how a process ended is known to itself, or to its parent alone.
 *
 * The wrappers run in every process that has the library, asleep or not: in signal handlers, and after vfork. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include "job/ends.h"
#include "job/options.h"
#include "hooks/lookup/wrapper.h"
#include "trace/trace.h"

static void note_signal(pid_t pid, int number) {
    if (options()->job[0])
        ends_write(options()->log_dir, (int)pid, ENDS_SIGNAL, (uint64_t)number);
}

/* The exit status is in the counters of the process, if it has any. */
static void note_child(pid_t pid, int status) {
    if (__builtin_expect(pid > 0 && WIFSIGNALED(status), 0))
        note_signal(pid, WTERMSIG(status));
}

/* The function that WAIT_CALL's wrapper calls where the look-up of the real one is in progress. */
static pid_t wait_directly(pid_t pid, int *status, int flags, struct rusage *usage) {
    return (pid_t)syscall(SYS_wait4, pid, status, flags, usage);
}

#define WAIT_CALL(symbol, id, parameters, arguments, directly)                                               \
    pid_t wrap_##symbol parameters {                                                                         \
        int own = 0;                                                                                         \
        if (!status)                                                                                         \
            status = &own;                                                                                   \
        pid_t(*real) parameters = (pid_t(*) parameters)hooks_next(HOOK_##id);                                \
        pid_t pid_found = real ? real arguments : wait_directly directly;                                    \
        note_child(pid_found, *status);                                                                      \
        return pid_found;                                                                                    \
    }                                                                                                        \
    HOOK_LIBC(symbol);
/* libc's headers have names of their own for these parameters. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */
WAIT_CALL(wait, WAIT, (int *status), (status), (-1, status, 0, NULL))
WAIT_CALL(waitpid, WAITPID, (pid_t pid, int *status, int flags), (pid, status, flags),
          (pid, status, flags, NULL))
WAIT_CALL(wait3, WAIT3, (int *status, int flags, struct rusage *usage), (status, flags, usage),
          (-1, status, flags, usage))
WAIT_CALL(wait4, WAIT4, (pid_t pid, int *status, int flags, struct rusage *usage),
          (pid, status, flags, usage), (pid, status, flags, usage))

/* With WNOWAIT the child can be waited for again. */
int wrap_waitid(idtype_t type, id_t id, siginfo_t *info, int flags) {
    int (*real)(idtype_t, id_t, siginfo_t *, int) = hooks_next(HOOK_WAITID);
    int result = real ? real(type, id, info, flags) : (int)syscall(SYS_waitid, type, id, info, flags, NULL);
    if (result == 0 && info && !(flags & WNOWAIT) && info->si_pid > 0 &&
        (info->si_code == CLD_KILLED || info->si_code == CLD_DUMPED))
        note_signal(info->si_pid, info->si_status);
    return result;
}
HOOK_LIBC(waitid);
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

/* As libc's: all threads end. */
#define EXIT_CALL(symbol)                                                                                    \
    void wrap_##symbol(int status) {                                                                         \
        trace_exit(status & 0xff);                                                                           \
        for (;;)                                                                                             \
            syscall(SYS_exit_group, status);                                                                 \
    }                                                                                                        \
    HOOK_LIBC(symbol);
EXIT_CALL(_exit)
EXIT_CALL(_Exit)
