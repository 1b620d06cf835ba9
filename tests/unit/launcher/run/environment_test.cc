#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

extern "C" {
#include "base/version.h"
#include "launcher/run/run.h"
}

namespace {

using Words = std::vector<std::string>;

class RunEnvironment : public testing::Test {
  protected:
    run_request request = {};
    run_job job = {};

    void SetUp() override {
        request.ranks = 1;
        job.request = &request;
        strcpy(job.install.library, "/opt/lib/libcastor.so");
        strcpy(job.install.python, "/opt/lib/castor");
        strcpy(job.directory.path, "/logs/now");
        strcpy(job.token, "0123456789abcdef0123456789abcdef");
    }
    /* The environment of a rank, and every name in it once. */
    std::map<std::string, std::string> build(Words base, Words settings = {}, int rank = 0) {
        std::vector<char *> base_block = block(base), setting_block = block(settings);
        request.settings = setting_block.data();
        request.setting_count = settings.size();
        run_environment environment;
        EXPECT_TRUE(run_environment_build(&job, base_block.data(), rank, -1, -1, &environment));
        std::map<std::string, std::string> values;
        EXPECT_EQ(environment.entries[environment.count], nullptr);
        for (size_t i = 0; i < environment.count; i++) {
            std::string entry = environment.entries[i];
            size_t equals = entry.find('=');
            EXPECT_TRUE(values.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second) << entry;
        }
        run_environment_free(&environment);
        return values;
    }
    static std::vector<char *> block(Words &entries) {
        std::vector<char *> pointers;
        for (std::string &entry : entries)
            pointers.push_back(entry.data());
        pointers.push_back(nullptr);
        return pointers;
    }
};

using Values = std::map<std::string, std::string>;

TEST_F(RunEnvironment, OfOneProcess) {
    EXPECT_EQ(build({}), (Values{{"CASTOR_PLUGIN", "none"},
                                 {"CASTOR_LOG_DIR", "/logs/now"},
                                 {"CASTOR_JOB", "0123456789abcdef0123456789abcdef"},
                                 {"LD_PRELOAD", "/opt/lib/libcastor.so"},
                                 {"PYTHONPATH", "/opt/lib/castor"}}));
}

TEST_F(RunEnvironment, OfRanks) {
    request.ranks = 4;
    Values values = build({}, {"CASTOR_PLUGIN=gemini"}, 3);
    EXPECT_EQ(values["CASTOR_RANK"], "3");
    EXPECT_EQ(values["CASTOR_WORLD_SIZE"], "4");
    EXPECT_EQ(values["CASTOR_PLUGIN"], "gemini");
    EXPECT_EQ(values["PYTHONHASHSEED"], std::to_string(0x01234567));
    cpu_set_t cores;
    ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
    EXPECT_EQ(values["OMP_NUM_THREADS"], std::to_string(std::max(1, CPU_COUNT(&cores) / 4)));
    request.ranks = 60000;
    EXPECT_EQ(build({})["OMP_NUM_THREADS"], "1");
    memset(job.token, '0', 8);
    EXPECT_EQ(build({})["PYTHONHASHSEED"], "1") << "0 would mean: no randomization";
}

TEST_F(RunEnvironment, KeepsWhatTheUserSet) {
    request.ranks = 2;
    Values values =
        build({"OMP_NUM_THREADS=3", "PYTHONHASHSEED=random", "HOME=/h", "A=b=c", "E=", "no equals"});
    EXPECT_EQ(values["OMP_NUM_THREADS"], "3");
    EXPECT_EQ(values["PYTHONHASHSEED"], "random");
    EXPECT_EQ(values["A"], "b=c");
    EXPECT_EQ(values.count("E"), 1u);
    EXPECT_EQ(build({"OMP_NUM_THREADS="})["OMP_NUM_THREADS"].empty(), false);
}

TEST_F(RunEnvironment, TheLastSettingCounts) {
    Values values = build({"CASTOR_CHUNK_SIZE=1M", "CASTOR_CHUNK_SIZE=2M", "CASTOR_TIMEOUT=5"},
                          {"CASTOR_CHUNK_SIZE=3M", "CASTOR_CHUNK_SIZE=4M", "CASTOR_SEPARABLE=a=b"});
    EXPECT_EQ(values["CASTOR_CHUNK_SIZE"], "4M");
    EXPECT_EQ(values["CASTOR_TIMEOUT"], "5");
    EXPECT_EQ(values["CASTOR_SEPARABLE"], "a=b");
}

TEST_F(RunEnvironment, NothingIsLeftOfAnOuterRun) {
    Words outer = {"CASTOR_JOB=ff",
                   "CASTOR_RANK=2",
                   "CASTOR_WORLD_SIZE=4",
                   "CASTOR_LOG_DIR=/outer",
                   "LD_PRELOAD=/opt/lib/libcastor.so",
                   "PYTHONPATH=/opt/lib/castor:/a"};
    Values values = build(outer);
    EXPECT_EQ(values.count("CASTOR_RANK"), 0u);
    EXPECT_EQ(values.count("CASTOR_WORLD_SIZE"), 0u);
    EXPECT_EQ(values["CASTOR_JOB"], job.token);
    EXPECT_EQ(values["LD_PRELOAD"], "/opt/lib/libcastor.so");
    EXPECT_EQ(values["PYTHONPATH"], "/opt/lib/castor:/a");

    std::vector<char *> base = block(outer);
    run_environment settled;
    request.setting_count = 0;
    ASSERT_TRUE(run_environment_settle(&request, base.data(), &settled));
    EXPECT_EQ(run_environment_get(&settled, "CASTOR_LOG_DIR"), nullptr)
        << "the outer run's directory is its own";
    run_environment_free(&settled);
    Words alone = {"CASTOR_LOG_DIR=/mine"};
    base = block(alone);
    ASSERT_TRUE(run_environment_settle(&request, base.data(), &settled));
    EXPECT_STREQ(run_environment_get(&settled, "CASTOR_LOG_DIR"), "/mine");
    run_environment_free(&settled);
}

TEST_F(RunEnvironment, PathListsHoldNoEmptyElement) {
    struct {
        const char *given, *python, *preload;
    } cases[] = {
        {"", "/opt/lib/castor", "/opt/lib/libcastor.so"},
        {"/a", "/opt/lib/castor:/a", "/opt/lib/libcastor.so:/a"},
        {":", "/opt/lib/castor:.:.", "/opt/lib/libcastor.so"},
        {"/a:", "/opt/lib/castor:/a:.", "/opt/lib/libcastor.so:/a"},
        {":/a::/b", "/opt/lib/castor:.:/a:.:/b", "/opt/lib/libcastor.so:/a:/b"},
        {"/opt/lib/castor", "/opt/lib/castor", "/opt/lib/libcastor.so:/opt/lib/castor"},
        {"/opt/lib/castor2:/opt/lib", "/opt/lib/castor:/opt/lib/castor2:/opt/lib",
         "/opt/lib/libcastor.so:/opt/lib/castor2:/opt/lib"},
    };
    for (const auto &c : cases) {
        std::string given = c.given;
        Values values = build({"PYTHONPATH=" + given, "LD_PRELOAD=" + given});
        EXPECT_EQ(values["PYTHONPATH"], c.python) << given;
        EXPECT_EQ(values["LD_PRELOAD"], c.preload) << given;
    }
    EXPECT_EQ(build({"LD_PRELOAD= /a  /b "})["LD_PRELOAD"], "/opt/lib/libcastor.so:/a:/b");
    std::string many;
    for (int i = 0; i < 3000; i++)
        many += ":";
    EXPECT_EQ(build({"PYTHONPATH=" + many})["PYTHONPATH"].find("::"), std::string::npos);
}

TEST_F(RunEnvironment, OtherNamesOfThePackageOnItsPath) {
    EXPECT_EQ(build({}, {"CASTOR_COMPAT=1"})["PYTHONPATH"], "/opt/lib/castor:/opt/lib/castor/castor/names");
    EXPECT_EQ(build({"PYTHONPATH=:/a", "CASTOR_COMPAT=1"})["PYTHONPATH"],
              "/opt/lib/castor:/opt/lib/castor/castor/names:.:/a");
    EXPECT_EQ(build({}, {"CASTOR_COMPAT=0"})["PYTHONPATH"], "/opt/lib/castor");
}

TEST_F(RunEnvironment, ManyEntries) {
    Words base;
    for (int i = 0; i < 5000; i++)
        base.push_back("NAME" + std::to_string(i) + "=" + std::string(i % 50, 'v'));
    EXPECT_EQ(build(base).size(), 5005u);
}

/* ---- where castor is ---- */

class RunInstall : public testing::Test {
  protected:
    std::string root;
    void SetUp() override {
        char name[] = "/tmp/castor-install-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        char real[PATH_MAX];
        root = realpath(name, real);
    }
    void TearDown() override { EXPECT_EQ(system(("rm -rf '" + root + "'").c_str()), 0); }
    void make(const std::string &path) {
        ASSERT_EQ(system(("mkdir -p '" + root + "/" + path + "'").c_str()), 0);
    }
    void touch(const std::string &path) { std::ofstream(root + "/" + path) << "x"; }
    int find(const std::string &binary, run_install *install, std::string *said = nullptr) {
        testing::internal::CaptureStderr();
        int status = run_install_find_from((root + "/" + binary).c_str(), install);
        std::string text = testing::internal::GetCapturedStderr();
        EXPECT_EQ(status != 0, !text.empty());
        if (said)
            *said = text;
        return status;
    }
};

TEST_F(RunInstall, Installed) {
    make("bin");
    make("lib/castor/castor");
    touch("lib/" CASTOR_SONAME);
    run_install install;
    ASSERT_EQ(find("bin/castor", &install), 0);
    EXPECT_EQ(install.library, root + "/lib/" CASTOR_SONAME);
    EXPECT_EQ(install.python, root + "/lib/castor");
}

TEST_F(RunInstall, InTheBuildTree) {
    make("build/bin");
    make("build/lib/castor");
    make("shims/castor");
    touch("build/lib/" CASTOR_SONAME);
    ASSERT_EQ(symlink("../../../shims/castor", (root + "/build/lib/castor/castor").c_str()), 0);
    run_install install;
    ASSERT_EQ(find("build/bin/castor", &install), 0);
    EXPECT_EQ(install.library, root + "/build/lib/" CASTOR_SONAME);
    EXPECT_EQ(install.python,
              root + "/build/lib/castor"); // not shims, whose other folders Python would take for packages
}

TEST_F(RunInstall, PartsThatAreMissing) {
    make("bin");
    make("lib/castor");
    run_install install;
    std::string said;
    EXPECT_EQ(find("bin/castor", &install, &said), RUN_EXIT_SYSTEM);
    EXPECT_NE(said.find(CASTOR_SONAME " is missing"), std::string::npos) << said;
    touch("lib/" CASTOR_SONAME);
    EXPECT_EQ(find("bin/castor", &install, &said), RUN_EXIT_SYSTEM);
    EXPECT_NE(said.find("Python part"), std::string::npos) << said;
}

TEST_F(RunInstall, PathsThatCannotBeListed) {
    for (std::string name : {"with space", "with:colon"}) {
        make(name + "/bin");
        make(name + "/lib/castor/castor");
        touch(name + "/lib/" CASTOR_SONAME);
        run_install install;
        std::string said;
        EXPECT_EQ(find(name + "/bin/castor", &install, &said), RUN_EXIT_SYSTEM);
        EXPECT_NE(said.find("install it elsewhere"), std::string::npos) << said;
    }
}

TEST_F(RunEnvironment, ARankOfAClusterGetsWhatTorchrunWouldTell) {
    char python[] = "python", script[] = "train.py";
    char *const command[] = {python, script, nullptr};
    request.command = command;
    Words slurm = {"SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4",          "SLURM_LOCALID=1",
                   "SLURM_NODEID=1", "SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_STEP_NODELIST=n[1-2]"};
    Values values = build(slurm);
    EXPECT_EQ(values["RANK"], "3");
    EXPECT_EQ(values["WORLD_SIZE"], "4");
    EXPECT_EQ(values["LOCAL_RANK"], "1");
    EXPECT_EQ(values["LOCAL_WORLD_SIZE"], "2");
    EXPECT_EQ(values["MASTER_ADDR"], "n1");
    EXPECT_NE(values["MASTER_PORT"], "");
    Words with_address = slurm;
    with_address.push_back("MASTER_ADDR=10.0.0.7");
    EXPECT_EQ(build(with_address)["MASTER_ADDR"], "10.0.0.7") << "what the user says counts";
    Words with_rank = slurm;
    with_rank.push_back("RANK=0");
    EXPECT_EQ(build(with_rank).count("WORLD_SIZE"), 0u) << "the ranks were told already";
    char torchrun[] = "torchrun";
    char *const launcher[] = {torchrun, script, nullptr};
    request.command = launcher;
    EXPECT_EQ(build(slurm).count("RANK"), 0u) << "torchrun tells its own ranks";
}

} // namespace
