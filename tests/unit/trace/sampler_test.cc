#include <atomic>
#include "fixture.h"

extern "C" {
#include "trace/sampler.h"
}

namespace {

using TraceSample = TraceTest;

std::atomic<int> callbacks;

bool has_sampler_thread() {
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks != nullptr && (entry = readdir(tasks)) != nullptr;) {
        std::string path = std::string("/proc/self/task/") + entry->d_name + "/comm";
        char name[32] = "";
        FILE *file = fopen(path.c_str(), "re");
        if (file != nullptr) {
            found |= fgets(name, sizeof name, file) != nullptr && strcmp(name, "castor-sample\n") == 0;
            fclose(file);
        }
    }
    if (tasks != nullptr)
        closedir(tasks);
    return found;
}

/* In a child: the sampler starts once per process. */
TEST_F(TraceSample, SetsTheSetSizeAndAsksTheModules) {
    if (sample_read_set().pss == 0)
        GTEST_SKIP() << "this kernel has no smaps_rollup";
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        EXPECT_EQ(sample_register([] { callbacks++; }), CASTOR_OK);
        EXPECT_EQ(sample_start(), CASTOR_OK);
        EXPECT_EQ(sample_start(), CASTOR_OK);
        EXPECT_NE(sample_register([] {}), CASTOR_OK);
        for (int i = 0; i < 4000 && callbacks < 2;
             i++) /* the sampler rests longer where sampling takes long */
            usleep(10000);
        EXPECT_GE(callbacks, 2);
        EXPECT_TRUE(has_sampler_thread());

        run_child([] {
            trace_fork_child();
            EXPECT_FALSE(has_sampler_thread());
            sample_stop();
#ifndef __SANITIZE_THREAD__ /* which allows no new thread here */
            EXPECT_EQ(sample_start(), CASTOR_OK);
            sample_stop();
#endif
        });

        sample_stop();
        int until_stop = callbacks;
        sample_stop();
        usleep(300000);
        EXPECT_EQ(callbacks, until_stop);
    });
    bool measured = false;
    for (const std::string &name : files(TRACE_COUNTERS_SUFFIX))
        measured |= read_counters(name)->gauges[GAUGE_PSS_BYTES].max > 100000;
    EXPECT_TRUE(measured);
}

} // namespace
