/* A save that is killed at each of its system calls in turn, and one in which each system call fails in turn: the checkpoint that
 * was there before loads, or the new one does, and nothing else is left. */
#include "fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

using namespace checkpoint;

/* A sanitizer's runtime, where there is one, makes calls of its own, and ends a process in which one of them fails. */
extern "C" {
__attribute__((weak)) void __asan_init(void);
__attribute__((weak)) void __tsan_init(void);
}

namespace {

const size_t kShardBytes = (4 << 20) + 777; /* more than the buffer */

/* Made once: these are compiled without optimization. */
const std::string kShards[2][2] = {{bytes_of(1, 0, kShardBytes), bytes_of(1, 1, 70000)},
                                   {bytes_of(2, 0, kShardBytes), bytes_of(2, 1, 70000)}};
const std::string kSmall[2] = {bytes_of(2, 0, 100), bytes_of(2, 1, 100)};

/* In the short length every seventh call; in the other every one. */
int stride() {
    const char *length = getenv("TEST_LENGTH");
    return length && strcmp(length, "all") == 0 ? 1 : 7;
}

enum What { KILL, FAIL };

struct Result {
    bool reached; /* there was such a call */
    int status;   /* of the process that saved: 0 saved, 1 it said an error */
    long number;  /* the call */
};

/* Saves version 2 in a process of its own whose call `nth` (from 0, of all its threads) is the last one, or fails with the errno. */
Result save_traced(const Folder &folder, bool background, What what, int nth, int error) {
    pid_t child = fork();
    if (child == 0) {
        job *j = job_of(folder, 2, kShards[1]);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        castor_status status = background ? start(j) : queue_write(j);
        if (background && status == CASTOR_OK)
            status = queue_wait();
        syscall(SYS_exit_group, status == CASTOR_OK ? 0 : 1);
    }
    Result result = {false, -1, -1};
    int status, count = 0;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    std::set<pid_t> inside; /* threads between the begin and the end of a call */
    pid_t failing = 0;
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0)
            break;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == child) {
                result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                break;
            }
            continue;
        }
        int signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80)) {
            bool begins = inside.insert(thread).second;
            if (!begins)
                inside.erase(thread);
#ifdef __x86_64__
            struct user_regs_struct registers;
            ptrace(PTRACE_GETREGS, thread, 0, &registers);
            if (!begins && thread == failing) {
                /* brk says the end of the heap, or one that is too low, and never an errno. */
                registers.rax = result.number == SYS_brk ? 0 : (unsigned long long)-error;
                ptrace(PTRACE_SETREGS, thread, 0, &registers);
                failing = 0;
            }
            /* Calls by which threads wait and end, and that only free, cannot fail for the reasons of files. */
            long number = (long)registers.orig_rax;
            bool counts = what == KILL ||
                          (number != SYS_futex && number != SYS_exit_group && number != SYS_munmap &&
                           number != SYS_close && number != SYS_rt_sigprocmask && number != SYS_unlink &&
                           number != SYS_unlinkat && number != SYS_rseq && number != SYS_set_robust_list);
#else
            long number = 0;
            bool counts = true;
#endif
            if (begins && counts && count++ == nth) {
                result.reached = true;
                result.number = number;
                if (what == KILL) {
                    kill(child, SIGKILL);
                    continue;
                }
#ifdef __x86_64__
                registers.orig_rax = (unsigned long long)-1;
                ptrace(PTRACE_SETREGS, thread, 0, &registers);
                failing = thread;
#endif
            }
            signal = 0;
        } else if (signal == SIGTRAP || signal == SIGSTOP) {
            signal = 0;
        }
        ptrace(PTRACE_SYSCALL, thread, 0, (void *)(intptr_t)signal);
    }
    return result;
}

void save_first(const Folder &folder) {
    for (const std::string &name : names(folder.path))
        unlink((folder / name).c_str());
    ASSERT_EQ(queue_write(job_of(folder, 1, kShards[0])), CASTOR_OK) << error_text();
}

const std::set<std::string> kOld = {"index", "shard0.1", "shard1.1"},
                            kNew = {"index", "shard0.2", "shard1.2"};

void killed_at_each_call(bool background) {
    Folder folder(true);
    std::string why;
    int nth = 0, old = 0, fresh = 0;
    for (;; nth += stride()) {
        save_first(folder);
        Result result = save_traced(folder, background, KILL, nth, 0);
        if (!result.reached) {
            EXPECT_EQ(result.status, 0);
            break;
        }
        int version = loads(folder, &why);
        ASSERT_TRUE(version == 1 || version == 2)
            << "killed at call " << nth << " (" << result.number << "): " << why;
        (version == 1 ? old : fresh)++;
        /* The next save there removes what is left. Files of a save that was killed have names that no index knows: it names the same. */
        ASSERT_EQ(queue_write(job_of(folder, 2, kSmall)), CASTOR_OK) << error_text();
        ASSERT_EQ(names(folder.path), kNew) << "after a save that was killed at call " << nth;
        ASSERT_EQ(loads(folder, &why), 2) << why;
    }
    EXPECT_GT(old, 20 / stride());
    EXPECT_GT(fresh, 0);
}

TEST(Calls, KilledAtEachOne) {
    killed_at_each_call(false);
}

TEST(Calls, KilledAtEachOneInTheBackground) {
    killed_at_each_call(true);
}

#ifdef __x86_64__
void failing_calls(bool background, int error) {
    if (__asan_init || __tsan_init)
        GTEST_SKIP() << "calls of the sanitizer's would fail";
    Folder folder(true);
    std::string why;
    int failed = 0;
    for (int nth = 0;; nth += stride()) {
        save_first(folder);
        Result result = save_traced(folder, background, FAIL, nth, error);
        int version = loads(folder, &why);
        std::set<std::string> left = names(folder.path);
        if (!result.reached)
            break;
        std::string where = "call " + std::to_string(nth) + " (" + std::to_string(result.number) +
                            ") fails with " + std::to_string(error);
        if (result.status == 0) { /* it was not needed */
            ASSERT_EQ(version, 2) << where << ": " << why;
            ASSERT_EQ(left, kNew) << where;
        } else {
            failed++;
            ASSERT_EQ(result.status, 1) << where;
            ASSERT_TRUE(version == 1 || version == 2) << where << ": " << why;
            if (version == 1) {
                ASSERT_EQ(left, kOld) << where;
            }
        }
    }
    EXPECT_GT(failed, 8 / stride());
}

TEST(Calls, EachOneFindsTheDiskFull) {
    failing_calls(false, ENOSPC);
}
TEST(Calls, EachOneFails) {
    failing_calls(false, EIO);
}
TEST(Calls, EachOneFindsTheDiskFullInTheBackground) {
    failing_calls(true, ENOSPC);
}
TEST(Calls, EachOneFailsInTheBackground) {
    failing_calls(true, EIO);
}
#endif

} // namespace
