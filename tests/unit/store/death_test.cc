// A rank that dies or leaves: whoever waits for it gets an error that names it, within seconds, wherever the wait is.
#include "tests/unit/support/store_ranks.h"
extern "C" {
#include "job/rendezvous.h"
}

namespace {

using namespace store_test;

constexpr double kBound = 5; // seconds from a death to the errors of the others: the contract

enum class Wait { BARRIER, FINISH, PUBLISH, GATHER, REGISTER, STEP_BEGIN, COUNT };
const char *const wait_names[] = {"Barrier", "Finish", "Publish", "Gather", "Register", "StepBegin"};

enum class End { KILLED, KILLED_ZOMBIE, LEFT };
const char *const end_names[] = {"Killed", "KilledZombie", "Left"};

class StoreDeath : public testing::TestWithParam<std::tuple<int, int>> {};

int wait_there(Rank &r, Wait wait, Param<> &p, const std::vector<float> &g) {
    uint64_t ticket;
    uint8_t flag;
    double value = 0;
    int status;
    std::vector<int64_t> all(size_t(r.world));
    std::vector<Param<>> more;
    switch (wait) {
    case Wait::FINISH:
        if ((status = gradient_add(p.tensor, g.data(), 1, 1, &ticket)) != CASTOR_OK)
            return status;
        return castor_gradients_finish(r.store, &p.tensor, 1, &flag);
    case Wait::PUBLISH:
        return castor_publish_end(r.store, &p.tensor, 1, &flag);
    case Wait::GATHER:
        return castor_gather(r.store, &all[0], sizeof all[0], all.data(), "a gather");
    case Wait::REGISTER:
        more.push_back(param_make(5000));
        return params_register_status(r, more);
    case Wait::STEP_BEGIN:
        return castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr);
    default:
        return castor_barrier(r.store, "a barrier");
    }
}

TEST_P(StoreDeath, IsTheErrorOfAllThatWait) {
    Wait wait = Wait(std::get<0>(GetParam()));
    End end = End(std::get<1>(GetParam()));
    const int victim = 1;
    Job job(3);
    job.zombies = end == End::KILLED_ZOMBIE;
    if (end != End::LEFT)
        job.killed = {victim};
    job.run([=](Rank &r) {
        std::vector<Param<>> p = {param_make(400000)};
        params_register(r, p);
        std::vector<float> g(400000, 1.0f);
        sum_run(r, p[0], g.data());
        castor_sums_release(&p[0].tensor, 1);
        if (wait == Wait::PUBLISH) {
            double value = 0;
            ASSERT_EQ(castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr), CASTOR_OK);
        }
        if (r.rank == victim) {
            flag_await(r.board, 0, 2);
            usleep(50000); // the others wait by now
            if (end == End::LEFT) {
                castor_store_leave(r.store);
                flag_await(r.board, 1, 2);
                return;
            }
            raise(SIGKILL);
        }
        flag_raise(r.board, 0);
        double begin = now_seconds();
        EXPECT_EQ(wait_there(r, wait, p[0], g), CASTOR_ERR_PEER) << error_text();
        EXPECT_LT(now_seconds() - begin, kBound);
        EXPECT_NE(strstr(error_text(), "rank 1 (pid"), nullptr) << error_text();
        EXPECT_NE(strstr(error_text(), end == End::LEFT ? "has ended" : "died"), nullptr) << error_text();
        // It stays so.
        EXPECT_NE(castor_barrier(r.store, "another one"), CASTOR_OK);
        flag_raise(r.board, 1);
    });
}

INSTANTIATE_TEST_SUITE_P(WhereAndHow, StoreDeath,
                         testing::Combine(testing::Range(0, int(Wait::COUNT)), testing::Range(0, 3)),
                         [](const auto &info) {
                             return std::string(wait_names[std::get<0>(info.param)]) +
                                    end_names[std::get<1>(info.param)];
                         });

// While other ranks keep the node's events coming, a wait must still look after its peers.
TEST(StoreDeaths, AreNoticedAmongOthersEvents) {
    Job job(3);
    job.killed = {2};
    job.run([](Rank &r) {
        if (r.rank == 2) {
            flag_await(r.board, 0);
            raise(SIGKILL);
        }
        if (r.rank == 1) { // alive, and never quiet
            double until = now_seconds() + 2 * kBound;
            while (!r.board->flag[1].load() && now_seconds() < until) {
                castor_activity_set(r.store, INSIDE_SAVE);
                castor_activity_set(r.store, INSIDE_SCRIPT);
                usleep(1000);
            }
            return;
        }
        flag_raise(r.board, 0);
        double begin = now_seconds();
        EXPECT_EQ(castor_barrier(r.store, "a barrier"), CASTOR_ERR_PEER) << error_text();
        EXPECT_LT(now_seconds() - begin, kBound);
        flag_raise(r.board, 1);
    });
}

// A rank that found the others, and dies before it has opened its part of the store.
TEST(StoreDeaths, AreNoticedWhileTheStoreIsOpened) {
    Job job(3);
    job.open = false;
    job.killed = {1};
    job.run([](Rank &r) {
        if (r.rank == 1) {
            int fds[4];
            ASSERT_EQ(rendezvous_share(r.token.c_str(), "death", 1, 3, fds, 4, 20, nullptr), CASTOR_OK)
                << error_text();
            raise(SIGKILL);
        }
        double begin = now_seconds();
        EXPECT_EQ(castor_store_open("death", nullptr, r.rank, 3, 3, &r.store), CASTOR_ERR_PEER)
            << error_text();
        EXPECT_LT(now_seconds() - begin, kBound);
        EXPECT_NE(strstr(error_text(), "rank 1 (pid"), nullptr) << error_text();
    });
}

// One that did its part before it left is waited for no more.
TEST(StoreDeaths, WhoLeavesAfterItsPartIsNotMissed) {
    Job job(2);
    job.run([](Rank &r) {
        if (r.rank == 1) {
            flag_await(r.board, 0);
            usleep(50000);
        } else {
            flag_raise(r.board, 0);
        }
        ASSERT_EQ(castor_barrier(r.store, "the last barrier"), CASTOR_OK) << error_text();
        castor_store_leave(r.store);
    });
}

} // namespace
