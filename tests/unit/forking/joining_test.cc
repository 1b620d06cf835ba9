#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

extern "C" {
#include "forking/joining.h"
#include "job/options.h"
}

namespace {

using Values = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

const Words kPython = {"/usr/bin/python3.12", "-u", "train.py"};

/* What has become of a process. */
struct Outcome {
    castor_status status;
    std::string message;
    Values values;
    std::string value(const std::string &name) const {
        auto found = values.find(name);
        return found == values.end() ? "(unset)" : found->second;
    }
};

class Folder {
  public:
    Folder() {
        char name[] = "/tmp/castor-joining-XXXXXX";
        EXPECT_NE(mkdtemp(name), nullptr);
        place = name;
    }
    ~Folder() { std::filesystem::remove_all(place); }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    const std::string &path() const { return place; }
    bool has(const std::string &name) const { return std::filesystem::exists(place + "/" + name); }
    std::string text(const std::string &name) const {
        std::ifstream file(place + "/" + name);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    void write(const std::string &name, const std::string &text) const {
        std::filesystem::create_directories(std::filesystem::path(place + "/" + name).parent_path());
        std::ofstream(place + "/" + name) << text;
    }

  private:
    std::string place;
};

class Joining : public testing::Test {
  protected:
    Folder folder;
    Values torchrun = {{"CASTOR_PLUGIN", "gemini"},
                       {"CASTOR_NPROC", "auto"},
                       {"CASTOR_JOB", "0123456789abcdef0123456789abcdef"},
                       {"CASTOR_LOG_DIR", folder.path()},
                       {"CASTOR_RANK_PROCESS", "1"},
                       {"TORCHELASTIC_RESTART_COUNT", "0"},
                       {"RANK", "0"},
                       {"WORLD_SIZE", "2"},
                       {"LOCAL_RANK", "0"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"HOME", "/somewhere"}};
    Values srun = {{"CASTOR_PLUGIN", "gemini"},
                   {"CASTOR_NPROC", "auto"},
                   {"CASTOR_LOG_PARENT", folder.path()},
                   {"SLURM_PROCID", "0"},
                   {"SLURM_STEP_NUM_TASKS", "2"},
                   {"SLURM_LOCALID", "0"},
                   {"SLURM_STEP_TASKS_PER_NODE", "2"},
                   {"SLURM_STEP_NODELIST", "n1"},
                   {"SLURM_JOB_ID", "7"},
                   {"SLURM_STEP_ID", "0"}};

    static Values with(Values values, const Values &changes) {
        for (const auto &[name, value] : changes)
            values[name] = value;
        return values;
    }

    /* In a process of its own, which ends: outputs and the environment are the process's. */
    static Outcome begin(const Values &values, const Words &words) {
        int line[2];
        EXPECT_EQ(pipe(line), 0);
        pid_t pid = fork();
        if (pid == 0)
            report(values, words, line[1]);
        close(line[1]);
        std::string text;
        char piece[4096];
        for (ssize_t length; (length = read(line[0], piece, sizeof piece)) > 0;)
            text.append(piece, static_cast<size_t>(length));
        close(line[0]);
        int status = -1;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
        Outcome outcome = {CASTOR_OK, "", {}};
        size_t at = text.find('\0');
        outcome.status = static_cast<castor_status>(std::stoi(text.substr(0, at)));
        for (at++; at < text.size(); at = text.find('\0', at) + 1) {
            std::string entry = text.c_str() + at;
            if (outcome.message.empty() && outcome.status != CASTOR_OK)
                outcome.message = entry;
            else if (!entry.empty())
                outcome.values[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
        }
        return outcome;
    }

    [[noreturn]] static void report(const Values &values, const Words &words, int line) {
        static char message[1024];
        std::vector<std::string> entries;
        std::vector<char *> block, pointers;
        entries.reserve(values.size());
        for (const auto &[name, value] : values) {
            entries.push_back(name + "=" + value);
            block.push_back(entries.back().data());
        }
        block.push_back(nullptr);
        for (const std::string &word : words)
            pointers.push_back(const_cast<char *>(word.c_str()));
        pointers.push_back(nullptr);
        environ = block.data();
        castor_status status = options_load(environ, message, sizeof message);
        if (status == CASTOR_OK)
            status = joining_begin(pointers.data(), message, sizeof message);
        std::string text = std::to_string(status) + '\0';
        if (status != CASTOR_OK)
            text += std::string(message) + '\0';
        for (char **entry = environ; *entry; entry++)
            text += std::string(*entry) + '\0';
        bool written = write(line, text.data(), text.size()) == static_cast<ssize_t>(text.size());
        if (values.count("WRITES"))
            written =
                write(STDOUT_FILENO, "out\n", 4) == 4 && write(STDERR_FILENO, "err\n", 4) == 4 && written;
        joining_end();
        _exit(written ? 0 : 1);
    }
};

TEST_F(Joining, ARankOfTorchrunIsOneOfNproc) {
    Outcome found = begin(torchrun, kPython);
    ASSERT_EQ(found.status, CASTOR_OK) << found.message;
    EXPECT_EQ(found.value("CASTOR_RANK"), "0");
    EXPECT_EQ(found.value("CASTOR_WORLD_SIZE"), "2");
    EXPECT_EQ(found.value("CASTOR_LOG_DIR"), folder.path());
    EXPECT_EQ(found.value("CASTOR_FILES"), folder.path() + "/.files/0");
    EXPECT_EQ(found.value("CASTOR_LOG_FILE"), "(unset)");
    EXPECT_EQ(found.value("HOME"), "/somewhere");
    EXPECT_NE(found.value("PYTHONHASHSEED"), "(unset)");
    EXPECT_NE(found.value("OMP_NUM_THREADS"), "(unset)");
    for (const char *hidden : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                               "TORCHELASTIC_RESTART_COUNT", "CASTOR_RANK_PROCESS"})
        EXPECT_EQ(found.value(hidden), "(unset)") << hidden;
    Outcome other = begin(with(torchrun, {{"RANK", "1"}, {"LOCAL_RANK", "1"}, {"WRITES", ""}}), kPython);
    ASSERT_EQ(other.status, CASTOR_OK) << other.message;
    EXPECT_EQ(other.value("CASTOR_RANK"), "1");
    EXPECT_GE(std::stoi(other.value("CASTOR_LOG_FILE")), 200);
    for (const char *same : {"CASTOR_JOB", "CASTOR_FILES", "PYTHONHASHSEED"})
        EXPECT_EQ(other.value(same), found.value(same)) << same;
    EXPECT_EQ(folder.text("rank1.out"), "out\n");
    EXPECT_EQ(folder.text("rank1.err"), "err\n");
    EXPECT_FALSE(folder.has(".files")) << "the last one removes it";
    EXPECT_EQ(begin(found.values, kPython).values, found.values) << "what a rank starts stays what it is";
}

TEST_F(Joining, EachAttemptHasATokenAndFilesOfItsOwn) {
    Outcome first = begin(torchrun, kPython);
    Outcome second = begin(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}}), kPython);
    EXPECT_NE(first.value("CASTOR_JOB"), second.value("CASTOR_JOB"));
    EXPECT_EQ(second.value("CASTOR_FILES"), folder.path() + "/.files/1");
    folder.write(".files/0/rank1/left", "by a killed rank");
    folder.write(".files/1/rank1/left", "by a killed job of the same name");
    begin(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}}), kPython);
    EXPECT_FALSE(folder.has(".files"));
}

TEST_F(Joining, RanksOfAClusterFindEachOther) {
    Outcome first = begin(srun, kPython);
    ASSERT_EQ(first.status, CASTOR_OK) << first.message;
    Outcome second = begin(with(srun, {{"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"}}), kPython);
    EXPECT_EQ(first.value("CASTOR_JOB").size(), 32u);
    for (const char *same : {"CASTOR_JOB", "CASTOR_LOG_DIR", "CASTOR_FILES"})
        EXPECT_EQ(second.value(same), first.value(same)) << same;
    EXPECT_EQ(first.value("CASTOR_LOG_DIR").rfind(folder.path() + "/job-", 0), 0u);
    for (const char *other : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"})
        EXPECT_NE(begin(with(srun, {{other, "9"}}), kPython).value("CASTOR_JOB"), first.value("CASTOR_JOB"))
            << other;
}

TEST_F(Joining, RanksWithACastorRunEachShareAFolderBesideTheirs) {
    Values run = with(torchrun, {{"CASTOR_BEGUN", "runs"}, {"CASTOR_LOG_DIR", folder.path() + "/rank0"}});
    run.insert(srun.begin(), srun.end());
    Outcome first = begin(run, kPython);
    ASSERT_EQ(first.status, CASTOR_OK) << first.message;
    Outcome second = begin(with(run, {{"SLURM_PROCID", "1"},
                                      {"RANK", "1"},
                                      {"CASTOR_JOB", std::string(32, 'f')},
                                      {"CASTOR_LOG_DIR", folder.path() + "/rank1"}}),
                           kPython);
    EXPECT_EQ(second.value("CASTOR_LOG_DIR"), folder.path() + "/rank1");
    for (const char *same : {"CASTOR_JOB", "CASTOR_FILES"})
        EXPECT_EQ(second.value(same), first.value(same)) << same;
    EXPECT_EQ(first.value("CASTOR_FILES").rfind(folder.path() + "/.files-", 0), 0u);
}

TEST_F(Joining, RanksOfSeveralNodesAreToldWhereTheyMeet) {
    Values first = with(torchrun, {{"LOCAL_WORLD_SIZE", "1"},
                                   {"MASTER_ADDR", "n1"},
                                   {"MASTER_PORT", "29400"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                   {"CASTOR_LOG_DIR", folder.path() + "/log0"}});
    Values second = with(
        first,
        {{"RANK", "1"}, {"CASTOR_JOB", std::string(32, 'f')}, {"CASTOR_LOG_DIR", folder.path() + "/log1"}});
    Outcome one = begin(first, kPython), other = begin(second, kPython);
    ASSERT_EQ(one.status, CASTOR_OK) << one.message;
    EXPECT_EQ(one.value("CASTOR_MEETING"), "n1 29400 by-torchrun 0");
    EXPECT_NE(other.value("CASTOR_JOB"), one.value("CASTOR_JOB")) << "each node has its own";
    for (const char *same : {"CASTOR_MEETING", "CASTOR_FILES", "PYTHONHASHSEED"})
        EXPECT_EQ(other.value(same), one.value(same)) << same;
    EXPECT_EQ(other.value("CASTOR_LOG_DIR"), folder.path() + "/log1");
    EXPECT_EQ(one.value("CASTOR_FILES").rfind(folder.path() + "/.files-", 0), 0u);
    Values slurm = with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}, {"SLURM_STEP_NODELIST", "n[1-2]"}});
    std::string meeting = begin(slurm, kPython).value("CASTOR_MEETING");
    EXPECT_EQ(meeting.rfind("n1 2", 0), 0u) << meeting;
    EXPECT_NE(meeting.find(" by-rank-0 0"), std::string::npos) << meeting;
    EXPECT_EQ(begin(torchrun, kPython).value("CASTOR_MEETING"), "(unset)");
}

TEST_F(Joining, OnlyPythonAndNoLauncherIsARank) {
    for (const Words &words : {Words{"bash", "-c", "python train.py"}, Words{"castor", "run"}, Words{},
                               Words{"python", "/usr/bin/torchrun", "--nnodes", "2", "train.py"},
                               Words{"python", "-u", "-m", "torch.distributed.run", "train.py"},
                               Words{"python3", "/opt/bin/accelerate", "launch", "train.py"}})
        EXPECT_EQ(begin(srun, words).values, srun) << (words.empty() ? "" : words.back());
    Values without = torchrun;
    without.erase("CASTOR_NPROC");
    EXPECT_EQ(begin(without, kPython).values, without);
    Values alone = with(torchrun, {{"WORLD_SIZE", "1"}});
    EXPECT_EQ(begin(alone, kPython).values, alone);
}

TEST_F(Joining, WhatCannotBeIsRefusedAndChangesNothing) {
    Values nowhere = torchrun, unnumbered = srun, untold = torchrun, unmeasured = srun;
    Values mpirun = with(torchrun, {{"CASTOR_BEGUN", "runs"},
                                    {"LOCAL_WORLD_SIZE", "1"},
                                    {"OMPI_COMM_WORLD_RANK", "0"},
                                    {"OMPI_COMM_WORLD_SIZE", "2"},
                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
    nowhere.erase("CASTOR_LOG_DIR");
    unnumbered.erase("SLURM_JOB_ID");
    untold.erase("LOCAL_WORLD_SIZE");
    unmeasured.erase("CASTOR_LOG_PARENT");
    const std::vector<std::pair<Values, std::string>> cases = {
        {with(torchrun, {{"LOCAL_WORLD_SIZE", "1"}}),
         "torchrun has started 2 ranks on several nodes, and does not tell where"},
        {untold, "torchrun has started 2 ranks on several nodes, and does not tell where"},
        {mpirun, "Open MPI's mpirun has started 2 ranks on several nodes, and does not tell where"},
        {with(torchrun, {{"CASTOR_PLUGIN", "none"}}), "plugin none would leave 2 copies that train apart"},
        {nowhere, "name one by castor env --log-dir DIR"},
        {unmeasured, "name one by castor env --log-dir DIR"},
        {unnumbered, "nothing tells the ranks of Slurm's srun from those of another job"},
        {with(torchrun, {{"CASTOR_LOG_DIR", "/proc/nothing"}}), "/proc/nothing cannot be written"},
    };
    for (const auto &[values, text] : cases) {
        Outcome found = begin(values, kPython);
        EXPECT_NE(found.status, CASTOR_OK) << text;
        EXPECT_NE(found.message.find(text), std::string::npos) << found.message;
        EXPECT_EQ(found.values, values) << text;
    }
}

} // namespace
