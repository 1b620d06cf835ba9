#include <gtest/gtest.h>
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
#include "job/options.h"
#include "launcher/run/run.h"
}

namespace {

/* ---- the command line of castor run ---- */

class RunArguments : public testing::Test {
  protected:
    run_request request = {};
    std::string said;

    int parse(std::vector<std::string> words) {
        run_request_free(&request);
        kept = std::move(words);
        pointers = {const_cast<char *>("run")};
        for (std::string &word : kept)
            pointers.push_back(word.data());
        pointers.push_back(nullptr);
        testing::internal::CaptureStderr();
        int status = run_arguments_parse(SUBCOMMAND_run, int(pointers.size() - 1), pointers.data(), &request);
        said = testing::internal::GetCapturedStderr();
        EXPECT_EQ(status != 0, !said.empty()) << said;
        return status;
    }
    std::vector<std::string> command() const {
        std::vector<std::string> words;
        for (char *const *word = request.command; word && *word; word++)
            words.push_back(*word);
        return words;
    }
    std::vector<std::string> settings() const {
        return {request.settings, request.settings + request.setting_count};
    }
    void TearDown() override { run_request_free(&request); }

  private:
    std::vector<std::string> kept;
    std::vector<char *> pointers;
};

using Words = std::vector<std::string>;

TEST_F(RunArguments, Defaults) {
    ASSERT_EQ(parse({"python", "train.py"}), 0);
    EXPECT_EQ(request.ranks, 1);
    EXPECT_FALSE(request.all_output);
    EXPECT_EQ(request.setting_count, 0u);
    EXPECT_EQ(command(), Words({"python", "train.py"}));
}

TEST_F(RunArguments, All) {
    ASSERT_EQ(
        parse({"--plugin", "gemini", "--nproc=4", "--set", "CASTOR_CHUNK_SIZE=1M",
               "--set=CASTOR_SEPARABLE=A=B", "--log-dir", "a b", "--all-output", "--", "--plugin", "x"}),
        0);
    EXPECT_EQ(request.ranks, 4);
    EXPECT_TRUE(request.all_output);
    EXPECT_EQ(settings(), Words({"CASTOR_PLUGIN=gemini", "CASTOR_CHUNK_SIZE=1M", "CASTOR_SEPARABLE=A=B",
                                 "CASTOR_LOG_DIR=a b"}));
    EXPECT_EQ(command(), Words({"--plugin", "x"}));
}

TEST_F(RunArguments, OptionsEndAtTheCommand) {
    ASSERT_EQ(parse({"--nproc", "2", "python", "--nproc", "3", "--", "--help"}), 0);
    EXPECT_EQ(request.ranks, 2);
    EXPECT_EQ(command(), Words({"python", "--nproc", "3", "--", "--help"}));
}

TEST_F(RunArguments, Help) {
    ASSERT_EQ(parse({"--nproc", "2", "--help"}), 0);
    EXPECT_TRUE(request.help);
}

TEST_F(RunArguments, WhatIsWrongIsRefused) {
    for (const Words &words : std::vector<Words>{
             {},
             {"--"},
             {""},
             {"--nproc"},
             {"--nproc", "--", "true"},
             {"--nproc", "0", "true"},
             {"--nproc", "-3", "true"},
             {"--nproc", "1e3", "true"},
             {"--nproc", "+2", "true"},
             {"--nproc", "18446744073709551617", "true"},
             {"--plugin", "", "true"},
             {"--plugin", "none|gemini", "true"},
             {"--set", "CASTOR_CHUNK_SIZE", "true"},
             {"--set", "=1", "true"},
             {"--set", "CASTOR_JOB=0", "true"},
             {"--set", "CASTOR_WORLD_SIZE=2", "true"},
             {"--set", std::string(5000, 'x') + "=1", "true"},
             {"--log-dir=", "true"},
             {"--all-output=1", "true"},
             {"-n", "2", "true"},
             {"-", "true"},
             {"---", "true"},
         }) {
        EXPECT_EQ(parse(words), RUN_EXIT_USAGE) << (words.empty() ? "" : words[0]);
        EXPECT_EQ(said.rfind("castor: ", 0), 0u);
        EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    }
}

/* ---- other launchers ---- */

std::string launcher_of(std::vector<std::string> words, std::string *fix = nullptr) {
    std::vector<char *> command;
    for (std::string &word : words)
        command.push_back(word.data());
    command.push_back(nullptr);
    const char *number = nullptr, *name = run_command_launcher(command.data(), &number);
    if (fix)
        *fix = number ? number : "";
    return name ? name : "";
}

TEST(RunCommandLauncher, IsRecognized) {
    struct {
        Words command;
        const char *name, *fix;
    } cases[] = {
        {{"torchrun", "x.py"}, "torchrun", "--nproc-per-node"},
        {{"/opt/venv/bin/torchrun"}, "torchrun", "--nproc-per-node"},
        {{"accelerate", "launch", "x.py"}, "accelerate", "--num_processes"},
        {{"deepspeed", "x.py"}, "deepspeed", "--num_gpus"},
        {{"mpirun", "python", "x.py"}, "mpirun", "-n"},
        {{"mpiexec"}, "mpiexec", "-n"},
        {{"srun", "python"}, "srun", "--ntasks"},
        {{"horovodrun"}, "horovodrun", "-np"},
        {{"python", "-m", "torch.distributed.run"}, "torch.distributed.run", "--nproc-per-node"},
        {{"python3", "-m", "torch.distributed.launch", "x"}, "torch.distributed.launch", "--nproc-per-node"},
        {{"/usr/bin/python3.13", "-u", "-m", "torch.distributed.run"},
         "torch.distributed.run",
         "--nproc-per-node"},
        {{"python", "-Bum", "torch.distributed.run"}, "torch.distributed.run", "--nproc-per-node"},
        {{"python", "-mtorch.distributed.run"}, "torch.distributed.run", "--nproc-per-node"},
        {{"python", "-X", "importtime", "-W", "ignore", "-m", "torch.distributed.run"},
         "torch.distributed.run",
         "--nproc-per-node"},
        {{"python", "-Xdev", "-m", "accelerate.commands.launch"},
         "accelerate.commands.launch",
         "--num_processes"},
        {{"python", "--check-hash-based-pycs", "always", "-m", "torch.distributed.run"},
         "torch.distributed.run",
         "--nproc-per-node"},
        {{"python", "/opt/venv/bin/torchrun", "x.py"}, "torchrun", "--nproc-per-node"},
        {{"env", "A=b", "-u", "C", "torchrun"}, "torchrun", "--nproc-per-node"},
        {{"nohup", "nice", "-n", "5", "python", "-m", "torch.distributed.run"},
         "torch.distributed.run",
         "--nproc-per-node"},
        {{"numactl", "--cpunodebind=0", "torchrun"}, "torchrun", "--nproc-per-node"},
        {{"uv", "run", "torchrun"}, "torchrun", "--nproc-per-node"},
    };
    for (const auto &c : cases) {
        std::string fix;
        EXPECT_EQ(launcher_of(c.command, &fix), c.name);
        EXPECT_EQ(fix, c.fix) << c.name;
    }
}

TEST(RunCommandLauncher, NothingElseIs) {
    for (const Words &command : std::vector<Words>{
             {},
             {"python", "train.py", "torchrun"},
             {"python", "train.py", "-m", "torch.distributed.run"},
             {"python", "-c", "import torch", "-m", "torch.distributed.run"},
             {"python", "-m", "train", "torchrun"},
             {"python", "-m"},
             {"python"},
             {"python", "-X"},
             {"python-config", "torchrun"},
             {"./train.sh", "torchrun"},
             {"torchrun.py"},
             {"mytorchrun"},
             {"env", "A=b", "python", "train.py", "torchrun"},
             {"env"},
         })
        EXPECT_EQ(launcher_of(command), "") << (command.empty() ? "" : command[0]);
}

bool is_input(std::vector<std::string> words) {
    std::vector<char *> command;
    for (std::string &word : words)
        command.push_back(word.data());
    command.push_back(nullptr);
    return run_command_is_input(command.data());
}

TEST(RunCommandInput, PythonReadsItsScriptThere) {
    for (const Words &command : std::vector<Words>{
             {"python"},
             {"/opt/venv/bin/python3.12"},
             {"python", "-"},
             {"python", "-", "train.py"},
             {"python", "-u", "-X", "dev"},
             {"python", "-uW", "ignore", "-", "--lr", "1"},
             {"python", "--check-hash-based-pycs", "never"},
             {"python", "/dev/stdin"},
             {"env", "A=b", "python"},
             {"nice", "-n", "5", "python", "-i"},
         })
        EXPECT_TRUE(is_input(command)) << command[0] << " and " << command.size() - 1;
}

TEST(RunCommandInput, NothingElseDoes) {
    for (const Words &command : std::vector<Words>{
             {},
             {"env"},
             {"python", "train.py"},
             {"python", "-u", "train.py", "-"},
             {"python", "--", "train.py"},
             {"python", "-c", "import train"},
             {"python", "-cimport train"},
             {"python", "-m", "train"},
             {"python", "-mtrain"},
             {"python", "-V"},
             {"python", "--version"},
             {"python", "--help-all"},
             {"./train.py", "-"},
             {"env", "A=b", "python", "train.py"},
             {"torchrun", "-"},
             {"env", "torchrun", "python"},
         })
        EXPECT_FALSE(is_input(command)) << (command.empty() ? "" : command[0]) << command.size();
}

/* ---- the file ---- */

std::string search(const std::string &name, const char *path, int *status) {
    char found[PATH_MAX] = "";
    testing::internal::CaptureStderr();
    *status = run_command_find(name.c_str(), path, found, sizeof found);
    std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(*status != 0, !said.empty());
    return found;
}

TEST(RunCommandFind, LooksAsAShellDoes) {
    int status;
    EXPECT_EQ(search("sh", "/nowhere:/bin", &status), "/bin/sh");
    EXPECT_EQ(status, 0);
    EXPECT_EQ(search("sh", nullptr, &status).substr(0, 1), "/") << "without PATH, the system's places";
    EXPECT_EQ(status, 0);
    EXPECT_EQ(search("/bin/sh", "", &status), "/bin/sh");
    search("sh", "/nowhere", &status);
    EXPECT_EQ(status, RUN_EXIT_NOT_FOUND);
    search("passwd", "/nowhere:/etc", &status);
    EXPECT_EQ(status, RUN_EXIT_NOT_EXECUTABLE);
    search("/etc", "/bin", &status);
    EXPECT_EQ(status, RUN_EXIT_NOT_EXECUTABLE);
    search(std::string(5000, '/'), "/bin", &status);
    EXPECT_EQ(status, RUN_EXIT_NOT_FOUND);
    search(std::string(5000, 'x'), "/bin", &status);
    EXPECT_EQ(status, RUN_EXIT_NOT_FOUND);
}

TEST(RunPathQuote, IsWhatAShellNeeds) {
    struct {
        const char *path, *quoted;
    } cases[] = {{"castor-logs/20250101-000000", "castor-logs/20250101-000000"},
                 {"a b", "'a b'"},
                 {"it's", "'it'\\''s'"},
                 {"", "''"},
                 {"$HOME", "'$HOME'"},
                 {"a;b", "'a;b'"}};
    for (const auto &c : cases) {
        char out[64];
        run_path_quote(c.path, out, sizeof out);
        EXPECT_STREQ(out, c.quoted);
    }
    char small[5];
    run_path_quote("a very long path", small, sizeof small);
    EXPECT_LT(strlen(small), sizeof small);
}

} // namespace
