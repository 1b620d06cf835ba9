// What a machine and its control groups give, from trees of files made here.
#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <string>

extern "C" {
#include "base/machine.h"
}

namespace {

constexpr uint64_t kMiB = 1 << 20;
const char kMeminfo[] =
    "MemTotal:       24000000 kB\nMemFree:          500000 kB\nMemAvailable:    1048576 kB\n";

class Machine : public testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/castor-machine-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        root = name;
        write("/proc/meminfo", kMeminfo);
    }
    void TearDown() override { std::filesystem::remove_all(root); }
    void write(const std::string &path, const std::string &text) {
        std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
        std::ofstream(root + path) << text;
    }
    uint64_t available() { return machine_memory_available(root.c_str()); }
    std::string root;
};

TEST_F(Machine, WithoutControlGroupsWhatIsAvailableCounts) {
    EXPECT_EQ(available(), 1024 * kMiB);
    uint64_t value = 0;
    EXPECT_TRUE(machine_meminfo(root.c_str(), "MemFree", &value));
    EXPECT_EQ(value, 500000u * 1024);
    EXPECT_FALSE(machine_meminfo(root.c_str(), "Mem", &value)) << "a whole name";
}

TEST_F(Machine, OfSeveralControlGroupsTheTightestCounts) {
    write("/proc/self/cgroup", "0::/outer/inner\n");
    write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
    write("/sys/fs/cgroup/outer/inner/memory.current", "1048576\n");
    write("/sys/fs/cgroup/outer/memory.max", std::to_string(600 * kMiB));
    write("/sys/fs/cgroup/outer/memory.current", std::to_string(300 * kMiB));
    write("/sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file " + std::to_string(100 * kMiB) + "\n");
    EXPECT_EQ(available(), 400 * kMiB) << "clean pages of files go when others want them";
    write("/sys/fs/cgroup/outer/inner/memory.max", std::to_string(51 * kMiB));
    EXPECT_EQ(available(), 50 * kMiB);
    write("/sys/fs/cgroup/outer/inner/memory.current", std::to_string(60 * kMiB));
    EXPECT_EQ(available(), 0u) << "beyond its limit";
}

TEST_F(Machine, VersionOneHasAFolderForEachController) {
    write("/proc/self/cgroup", "7:cpu,cpuacct:/a\n4:memory:/a\n");
    write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4096\n");
    EXPECT_EQ(available(), 1024 * kMiB) << "no limit";
    write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(80 * kMiB));
    write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(30 * kMiB));
    EXPECT_EQ(available(), 50 * kMiB);
    write("/sys/fs/cgroup/memory/memory.stat",
          "inactive_file 1\ntotal_inactive_file " + std::to_string(10 * kMiB));
    EXPECT_EQ(available(), 60 * kMiB) << "with the groups below it";
}

TEST_F(Machine, TheInnermostLimitIsTold) {
    write("/proc/self/cgroup", "3:cpuset:/\n0::/a/b\n");
    char text[64] = "";
    machine_controller memory = {"memory", "memory.max", "memory.limit_in_bytes"};
    EXPECT_FALSE(machine_cgroup_limit(root.c_str(), &memory, text));
    write("/sys/fs/cgroup/memory.max", "300");
    write("/sys/fs/cgroup/a/memory.max", "200");
    write("/sys/fs/cgroup/a/b/memory.max", "max");
    EXPECT_TRUE(machine_cgroup_limit(root.c_str(), &memory, text));
    EXPECT_STREQ(text, "200");
}

TEST_F(Machine, WithoutFilesNothingIsKnown) {
    std::filesystem::remove_all(root + "/proc");
    EXPECT_EQ(available(), UINT64_MAX);
}

} // namespace
