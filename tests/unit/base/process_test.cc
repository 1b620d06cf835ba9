// Which process is meant: a pid and the moment at which it began.
#include <gtest/gtest.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <string>

extern "C" {
#include "base/process.h"
}

namespace {

TEST(Process, ItselfUnderBothNames) {
    uint64_t ticks = process_start_ticks(0);
    EXPECT_NE(ticks, 0u);
    EXPECT_EQ(process_start_ticks(getpid()), ticks);
    EXPECT_NE(process_state(getpid(), ticks), 0);
}

TEST(Process, AnotherThatHasThePidIsNotTheOne) {
    EXPECT_EQ(process_state(getpid(), process_start_ticks(0) + 1), 0);
    EXPECT_EQ(process_state(getpid(), 0), 0) << "a start that is unknown is nobody's";
}

TEST(Process, NoProcess) {
    EXPECT_EQ(process_start_ticks(INT32_MAX), 0u);
    EXPECT_EQ(process_start_ticks(-1), 0u);
    EXPECT_EQ(process_state(-1, 1), 0);
}

TEST(Process, ItsOwnCommandLine) {
    size_t bytes = 0;
    const char *words = process_words(&bytes);
    ASSERT_NE(words, nullptr);
    std::string shown(bytes + 1, '?');
    FILE *file = fopen("/proc/self/cmdline", "re");
    ASSERT_NE(file, nullptr);
    shown.resize(fread(shown.data(), 1, shown.size(), file));
    fclose(file);
    EXPECT_EQ(shown, std::string(words, bytes));
}

// A name that looks like the fields that follow it; then stopped, then killed but not yet waited for.
TEST(Process, StatesOfAChildWithAConfusingName) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, ") Z 1 (1) 2 3");
        if (write(ready[1], "r", 1) == 1)
            raise(SIGSTOP);
        _exit(0);
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    int status;
    ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    uint64_t ticks = process_start_ticks(pid);
    EXPECT_GE(ticks, process_start_ticks(0));
    EXPECT_EQ(process_state(pid, ticks), 'T');
    kill(pid, SIGKILL);
    siginfo_t ended;
    ASSERT_EQ(waitid(P_PID, id_t(pid), &ended, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(process_start_ticks(pid), ticks) << "its entry is there until it is waited for";
    EXPECT_EQ(process_state(pid, ticks), 0);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(process_start_ticks(pid), 0u);
    close(ready[0]);
    close(ready[1]);
}

} // namespace
