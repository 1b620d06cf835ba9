#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "launcher/job/first_failure.h"
}

namespace {

constexpr uint64_t SECOND = 1000000000, BEGIN = 1000 * SECOND;

class Ends : public testing::Test {
  protected:
    std::string directory;
    std::vector<std::unique_ptr<trace_counters>> counters;
    std::vector<job_ended> ranks;
    std::vector<job_end> ends;
    std::string notes, outcome;
    size_t first = JOB_NO_FAILURE;

    void SetUp() override {
        char name[] = "/tmp/castor-ends-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        directory = name;
    }
    void TearDown() override {
        unlink((directory + "/ends").c_str());
        rmdir(directory.c_str());
    }
    /* A rank that is gone: nobody saw how. */
    trace_counters &rank() {
        counters.push_back(std::make_unique<trace_counters>());
        trace_counters *made = counters.back().get();
        made->pid = 100 + (uint32_t)ranks.size();
        made->start_realtime_ns = BEGIN;
        ranks.push_back({made, (int)ranks.size(), false});
        return *made;
    }
    void exits(int status, uint64_t after_s) {
        trace_counters &made = rank();
        made.exit_state = TRACE_PROCESS_EXITED;
        made.exit_status = status;
        made.exit_realtime_ns = BEGIN + after_s * SECOND;
    }
    void raises(const char *type, const char *message, uint64_t after_s, bool by_other = false) {
        exits(1, after_s);
        trace_exception &exception = counters.back()->exception;
        exception.realtime_ns = BEGIN + after_s * SECOND;
        exception.by_other = by_other;
        strcpy(exception.type, type);
        strcpy(exception.message, message);
        strcpy(exception.place, "train.py, line 12");
    }
    void note(uint64_t after_s, int pid, const char *word, int number) {
        notes += std::to_string(BEGIN + after_s * SECOND) + " " + std::to_string(pid) + " " + word + " " +
                 std::to_string(number) + "\n";
    }
    void killed(int signal, uint64_t after_s) { note(after_s, (int)rank().pid, "signal", signal); }
    void find() {
        std::ofstream(directory + "/ends") << notes;
        int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        job_notes read;
        ASSERT_TRUE(job_notes_read(folder, &read));
        close(folder);
        ends.resize(ranks.size());
        first = job_ends_find(&read, ranks.data(), ranks.size(), ends.data());
        char text[JOB_END_TEXT_MAX];
        job_ends_outcome(&read, ranks.data(), ends.data(), first, text);
        outcome = text;
        job_notes_free(&read);
    }
    std::string sentence(size_t index) const {
        char text[JOB_END_TEXT_MAX];
        job_end_sentence(&ends[index], text);
        return text;
    }
    std::string word(size_t index) const {
        char text[JOB_END_TEXT_MAX];
        job_end_word(&ends[index], text);
        return text;
    }
};

TEST_F(Ends, WhereNothingFailedThereIsNoOutcome) {
    exits(0, 1);
    rank();
    ranks[1].runs = true;
    find();
    EXPECT_EQ(first, JOB_NO_FAILURE);
    EXPECT_EQ(outcome, "");
    EXPECT_EQ(word(0), "finished");
    EXPECT_EQ(word(1), "running");
}

TEST_F(Ends, AnExceptionHasTypeMessageAndLine) {
    exits(0, 1);
    raises("ValueError", "too long", 1);
    find();
    EXPECT_EQ(first, 1u);
    EXPECT_EQ(word(1), "ValueError");
    EXPECT_EQ(outcome, "failed: rank 1 raised ValueError: too long (train.py, line 12)");
}

TEST_F(Ends, AnExceptionBeforeAGoodEndIsNone) {
    raises("ValueError", "shown by a console", 1);
    counters[0]->exit_status = 0;
    find();
    EXPECT_EQ(word(0), "finished");
    EXPECT_EQ(first, JOB_NO_FAILURE);
}

TEST_F(Ends, AStatusAndASignal) {
    exits(3, 2);
    killed(SIGSEGV, 1);
    find();
    EXPECT_EQ(first, 1u);
    EXPECT_EQ(sentence(0), "exited with status 3");
    EXPECT_EQ(outcome, "failed: rank 1 was ended by SIGSEGV");
}

TEST_F(Ends, ACrashAfterTheExitIsWhatTheParentSaw) {
    exits(0, 1);
    note(1, 100, "signal", SIGABRT);
    find();
    EXPECT_EQ(word(0), "SIGABRT");
}

TEST_F(Ends, NotesOfAnEarlierProcessOfThatNumberDoNotCount) {
    exits(0, 5);
    counters[0]->start_realtime_ns = BEGIN + 2 * SECOND;
    note(1, 100, "signal", SIGKILL);
    find();
    EXPECT_EQ(word(0), "finished");
}

TEST_F(Ends, KillsForMemoryAreAsManyAsWereCounted) {
    killed(SIGKILL, 9);
    killed(SIGKILL, 1);
    note(10, 7, "killed-cgroup", 1);
    note(10, 7, "job", 137);
    find();
    EXPECT_EQ(first, 1u);
    EXPECT_EQ(word(1), "killed for memory");
    EXPECT_EQ(outcome, "killed for memory: rank 1 was killed for memory, by the limit of its control group");
    EXPECT_EQ(sentence(0), "ended because rank 1 failed"); /* killed 8 s later */
}

TEST_F(Ends, KillsForMemoryByTheKernelAndByNobodyKnown) {
    killed(SIGKILL, 1);
    note(2, 7, "killed", 1);
    find();
    EXPECT_EQ(sentence(0), "was killed for memory, by the kernel");
    notes.clear();
    note(1, 100, "signal", SIGKILL);
    find();
    EXPECT_EQ(outcome, "failed: rank 0 was ended by SIGKILL; who sent it is not known");
}

TEST_F(Ends, AnEffectIsNotFirstThoughItWasNotedFirst) {
    raises("RuntimeError", "Connection closed by peer", 1, true);
    killed(SIGKILL, 2); /* its launcher looks for ended workers now and then */
    killed(SIGTERM, 3);
    find();
    EXPECT_EQ(first, 1u);
    EXPECT_EQ(sentence(0), "ended because rank 1 failed");
    EXPECT_EQ(outcome, "failed: rank 1 was ended by SIGKILL; who sent it is not known");
}

TEST_F(Ends, LaunchersEndTheOthersByTerm) {
    killed(SIGTERM, 2);
    raises("ValueError", "made", 1);
    find();
    EXPECT_EQ(first, 1u);
    EXPECT_EQ(ends[0].kind, JOB_END_OTHER_RANK);
    EXPECT_EQ(ends[0].by_rank, 1);
    EXPECT_EQ(ends[0].signal, SIGTERM);
    EXPECT_EQ(word(0), "by rank 1");
}

TEST_F(Ends, LaunchersEndTheOthersOfOneThatASignalEnded) {
    killed(SIGTERM, 3);
    killed(SIGKILL, 1);
    killed(SIGKILL, 9); /* it did not heed SIGTERM */
    find();
    EXPECT_EQ(first, 1u);
    EXPECT_EQ(word(0), "by rank 1");
    EXPECT_EQ(word(1), "SIGKILL");
    EXPECT_EQ(word(2), "by rank 1");
}

TEST_F(Ends, ASignalForAllRanksIsNoEffect) {
    killed(SIGTERM, 1);
    killed(SIGTERM, 1);
    find();
    EXPECT_EQ(word(0), "SIGTERM");
    EXPECT_EQ(word(1), "SIGTERM");
}

TEST_F(Ends, OfEffectsAloneTheFirstOneTells) {
    exits(0, 1); /* it left early */
    raises("GroupError", "rank 0 (pid 100) has ended while other ranks wait for it", 3, true);
    raises("GroupError", "rank 0 (pid 100) has ended while other ranks wait for it", 2, true);
    find();
    EXPECT_EQ(first, 2u);
    EXPECT_EQ(ends[2].kind, JOB_END_EXCEPTION);
}

TEST_F(Ends, InterruptedTerminatedAndKilledAreThreeThings) {
    raises("KeyboardInterrupt", "", 2);
    counters[0]->exit_state = TRACE_PROCESS_RUNNING; /* Python ends itself by SIGINT */
    note(1, 7, "told", SIGINT);
    note(2, 100, "signal", SIGINT);
    find();
    EXPECT_EQ(outcome, "interrupted");
    EXPECT_EQ(word(0), "interrupted");
    notes.clear();
    counters[0]->exception.realtime_ns = 0;
    note(1, 7, "told", SIGTERM);
    note(2, 100, "signal", SIGTERM);
    find();
    EXPECT_EQ(outcome, "terminated");
    EXPECT_EQ(word(0), "terminated");
    notes.clear();
    note(1, 7, "told", SIGHUP);
    note(2, 100, "signal", SIGHUP);
    find();
    EXPECT_EQ(outcome, "terminated (SIGHUP)");
}

TEST_F(Ends, ASignalAfterAFailureChangesNothing) {
    raises("ValueError", "made", 1);
    exits(1, 4);
    note(3, 7, "told", SIGINT);
    find();
    EXPECT_EQ(first, 0u);
    EXPECT_EQ(outcome.rfind("failed: rank 0 raised ValueError", 0), 0u) << outcome;
    EXPECT_EQ(word(1), "interrupted");
}

TEST_F(Ends, WithoutAnyNoteARankDied) {
    rank();
    find();
    EXPECT_EQ(outcome, "died");
    EXPECT_EQ(word(0), "died");
}

TEST_F(Ends, TheCommandMayFailWhereNoRankDoes) {
    exits(0, 1);
    note(2, 7, "job", 3);
    find();
    EXPECT_EQ(outcome, "failed: the command exited with status 3");
}

TEST_F(Ends, LinesThatAreNoneAreLeftOut) {
    exits(0, 1);
    notes = "1 2\n\x01\xff 4\nnothing\n99999999999999999999999 100 signal 9 more\n5 100 unheard 9\n" +
            std::string(70000, 'x');
    find();
    EXPECT_EQ(word(0), "finished");
    EXPECT_EQ(outcome, "");
}

TEST_F(Ends, WhatIsWrittenIsRead) {
    EXPECT_FALSE(ends_exist(directory.c_str()));
    ends_write(directory.c_str(), 100, ENDS_SIGNAL, SIGSEGV);
    EXPECT_TRUE(ends_exist(directory.c_str()));
    int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    job_notes read;
    ASSERT_TRUE(job_notes_read(folder, &read));
    close(folder);
    ASSERT_EQ(read.count, 1u);
    EXPECT_EQ(read.rows[0].pid, 100);
    EXPECT_EQ(read.rows[0].event, ENDS_SIGNAL);
    EXPECT_EQ(read.rows[0].number, (uint64_t)SIGSEGV);
    job_notes_free(&read);
}

/* No signal, and no file without an end. */
TEST_F(Ends, NothingIsWrittenBeyondALimit) {
    rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit none = {8, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
    ends_write(directory.c_str(), 100, ENDS_SIGNAL, SIGSEGV);
    setrlimit(RLIMIT_FSIZE, &before);
    struct stat info;
    ASSERT_EQ(stat((directory + "/ends").c_str(), &info), 0);
    EXPECT_EQ(info.st_size, 0);
    for (int i = 0; i < 4000; i++)
        ends_write(directory.c_str(), 100, ENDS_SIGNAL, SIGSEGV);
    ASSERT_EQ(stat((directory + "/ends").c_str(), &info), 0);
    EXPECT_LE(info.st_size, ENDS_BYTES_MAX);
}

} // namespace
