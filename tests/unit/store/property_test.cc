// The store against a plain model: random scripts on two to four ranks, each of which must see, after every operation,
// the bytes that plain memory would hold (store_script.h). STORE_PROPERTY_SEED runs one seed, STORE_PROPERTY_SECONDS makes
// the runs longer.
#include <cstdlib>
#include "tests/unit/support/store_script.h"

namespace {

using namespace store_test;

struct Plan {
    int world, operations;
    std::vector<std::string> options;
};

Plan plan_of(uint64_t seed) {
    static const char *const chunk_sizes[] = {"64K", "256K", "32M"};
    Plan plan;
    plan.world = 2 + int(mix(seed) % 3);
    plan.operations = 60;
    plan.options.push_back(std::string("CASTOR_CHUNK_SIZE=") + chunk_sizes[mix(seed + 1) % 3]);
    static const char *const budgets[] = {"0", "1M", "4M", "32M"};
    plan.options.push_back(std::string("CASTOR_MEMORY_BUDGET=") + budgets[mix(seed + 4) % 4]);
    return plan;
}

// A script with its seed, on all ranks. `victim` >= 0: that one is killed at some moment.
void run_seed(uint64_t seed, int victim) {
    SCOPED_TRACE("STORE_PROPERTY_SEED=" + std::to_string(seed));
    Plan plan = plan_of(seed);
    Job job(plan.world);
    job.options = plan.options;
    job.alarm_seconds = 120;
    if (victim >= 0)
        job.killed = {victim};
    job.zombies = mix(seed + 2) % 2;
    job.start([&](Rank &r) {
        Script script(r, seed, victim >= 0);
        flag_raise(r.board, 0);
        // One that is to be killed, and those that wait for it, go on until it is.
        script.run(victim >= 0 ? 1000000 : plan.operations);
        if (victim < 0)
            return;
        EXPECT_EQ(script.failed_status(), CASTOR_ERR_PEER)
            << "operation " << script.operation() << ": " << error_text();
        std::string text = "rank " + std::to_string(victim) + " (pid";
        EXPECT_NE(strstr(error_text(), text.c_str()), nullptr) << error_text();
        flag_raise(r.board, 1);
    });
    if (testing::Test::HasFatalFailure())
        return;
    if (victim >= 0) {
        double until = now_seconds() + 30;
        while (job.board->flag[0].load() < uint32_t(plan.world) && now_seconds() < until)
            usleep(1000);
        usleep(unsigned(mix(seed + 3) % 300000));
        kill(job.pids[size_t(victim)], SIGKILL);
        until = now_seconds() + 5;
        while (job.board->flag[1].load() < uint32_t(plan.world) - 1 && now_seconds() < until)
            usleep(2000);
        EXPECT_EQ(job.board->flag[1].load(), uint32_t(plan.world) - 1)
            << "ranks that had their error within 5 s of the death of rank " << victim;
    }
    job.finish();
}

TEST(StoreProperty, EachRankSeesWhatPlainMemoryWouldHold) {
    const char *seed_text = getenv("STORE_PROPERTY_SEED"), *seconds_text = getenv("STORE_PROPERTY_SECONDS");
    uint64_t seed = seed_text ? strtoull(seed_text, nullptr, 10) : uint64_t(time(nullptr)) * 1000;
    double until = now_seconds() + (seconds_text ? atof(seconds_text) : 12);
    printf("STORE_PROPERTY_SEED=%lu\n", static_cast<unsigned long>(seed));
    unsigned runs = 0;
    do {
        bool kills = mix(seed + 4) % 4 == 0;
        run_seed(seed, kills ? int(mix(seed + 5) % uint64_t(plan_of(seed).world)) : -1);
        seed++;
        runs++;
    } while (!HasFailure() && !seed_text && now_seconds() < until);
    printf("%u scripts\n", runs);
}

} // namespace
