#include <sys/stat.h>
#include <filesystem>
#include <fstream>
#include <string>

extern "C" {
#include "launcher/run/kills.h"
}

namespace {

/* A root with a machine's counts. */
class Kills : public testing::Test {
  protected:
    std::string root;
    run_kills before;
    uint64_t by_cgroup = 0, by_kernel = 0;

    void SetUp() override {
        char name[] = "/tmp/castor-kills-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        root = name;
        write("/proc/vmstat", "nr_free_pages 7\noom_kill 5\n");
    }
    void TearDown() override { std::filesystem::remove_all(root); }
    void write(const std::string &path, const std::string &text) const {
        std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
        std::ofstream(root + path) << text;
    }
    void look() { run_kills_since(root.c_str(), &before, &by_cgroup, &by_kernel); }
    void events(const std::string &folder, int oom, int oom_kill) const {
        write("/sys/fs/cgroup" + folder + "/memory.events", "low 0\nmax 9\noom " + std::to_string(oom) +
                                                                "\noom_kill " + std::to_string(oom_kill) +
                                                                "\noom_group_kill 0\n");
    }
};

TEST_F(Kills, OfTheMachineWhereNoGroupIsSeen) {
    write("/proc/self/cgroup", "0::/\n");
    run_kills_read(root.c_str(), &before);
    look();
    EXPECT_EQ(by_cgroup + by_kernel, 0u);
    write("/proc/vmstat", "oom_kill 7\n");
    look();
    EXPECT_EQ(by_cgroup, 0u);
    EXPECT_EQ(by_kernel, 2u);
}

TEST_F(Kills, ByALimitOfTheGroup) {
    write("/proc/self/cgroup", "0::/user.slice/job\n");
    events("/user.slice/job", 1, 1);
    events("/user.slice", 4, 9);
    run_kills_read(root.c_str(), &before);
    events("/user.slice/job", 2, 2);
    write("/proc/vmstat", "oom_kill 9\n");
    look();
    EXPECT_EQ(by_cgroup, 1u);
    EXPECT_EQ(by_kernel, 0u);
}

TEST_F(Kills, ByALimitAboveTheGroup) {
    write("/proc/self/cgroup", "0::/user.slice/job\n");
    events("/user.slice/job", 0, 0);
    events("/user.slice", 0, 0);
    run_kills_read(root.c_str(), &before);
    events("/user.slice/job", 0, 1);
    events("/user.slice", 1, 1);
    look();
    EXPECT_EQ(by_cgroup, 1u);
}

TEST_F(Kills, ByTheKernelInAGroup) {
    write("/proc/self/cgroup", "0::/job\n");
    events("/job", 3, 0);
    run_kills_read(root.c_str(), &before);
    events("/job", 3, 1);
    look();
    EXPECT_EQ(by_cgroup, 0u);
    EXPECT_EQ(by_kernel, 1u);
}

TEST_F(Kills, OfOtherGroupsDoNotCount) {
    write("/proc/self/cgroup", "0::/job\n");
    events("/job", 0, 0);
    run_kills_read(root.c_str(), &before);
    write("/proc/vmstat", "oom_kill 9\n");
    look();
    EXPECT_EQ(by_cgroup + by_kernel, 0u);
}

TEST_F(Kills, InAContainer) {
    write("/proc/self/cgroup", "0::/\n");
    events("", 0, 0);
    run_kills_read(root.c_str(), &before);
    events("", 1, 1);
    look();
    EXPECT_EQ(by_cgroup, 1u);
}

TEST_F(Kills, OfVersion1) {
    write("/proc/self/cgroup", "5:cpu:/\n4:memory:/jobs/7\n0::/\n");
    const std::string file = "/sys/fs/cgroup/memory/jobs/7/memory.oom_control";
    write(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    run_kills_read(root.c_str(), &before);
    write(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    look();
    EXPECT_EQ(by_cgroup, 1u);
    EXPECT_EQ(by_kernel, 0u);
    /* Of a group below. */
    run_kills_read(root.c_str(), &before);
    write("/proc/vmstat", "oom_kill 6\n");
    look();
    EXPECT_EQ(by_cgroup, 0u);
    EXPECT_EQ(by_kernel, 1u);
}

} // namespace
