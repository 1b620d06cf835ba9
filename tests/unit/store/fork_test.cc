// Forked children (a DataLoader's workers): they see the weights as they were at the fork, and write to nobody.
#include <sys/resource.h>
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

// Runs `body` in a child of this rank, which begins to look only when `meanwhile` has run in the parents.
void child_run(Rank &r, int flag, const std::function<void()> &meanwhile, const std::function<void()> &body) {
    fflush(nullptr);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(30);
        flag_await(r.board, flag, uint32_t(r.world));
        body();
        process_end(testing::Test::HasFailure());
    }
    meanwhile();
    flag_raise(r.board, flag);
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << "the child failed";
    r.barrier();
}

TEST(StoreFork, ChildSeesParametersGradientsAndStatesAsAtTheFork) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(300000), param_make(5000)};
        params_register(r, p);
        std::vector<float> g(300000, 1.0f);
        sum_run(r, p[0], g.data());
        castor_window *w;
        void *address;
        ASSERT_EQ(window_take(p[0].tensor, &w, &address), CASTOR_OK);
        float *grad = static_cast<float *>(address);
        uint64_t offset = 0;
        void *state_alias = nullptr, *state_view = nullptr;
        // The owner's state, and everybody's view of it.
        if (p[0].mine(r)) {
            ASSERT_EQ(castor_state_allocate(p[0].tensor, 20000, &offset, &state_alias), CASTOR_OK);
            memset(state_alias, 5, 20000);
        }
        uint64_t offsets[2];
        ASSERT_EQ(castor_gather(r.store, &offset, sizeof offset, offsets, "the place of a state"), CASTOR_OK);
        offset = offsets[p[0].info.owner];
        ASSERT_EQ(castor_state_view(p[0].tensor, offset, 20000, &state_view), CASTOR_OK) << error_text();
        const char *state = static_cast<char *>(state_view);
        // This rank's own edits go along.
        p[0][70000] = float(500 + r.rank);
        grad[10000] = float(600 + r.rank);
        for (int round = 0; round < 3; round++) {
            std::vector<float> p0(p[0].data, p[0].data + p[0].numel), p1(p[1].data, p[1].data + p[1].numel),
                g0(grad, grad + p[0].numel);
            char s0 = state[19999];
            child_run(
                r, round,
                [&] {
                    for (auto &q : p)
                        step_run<float>(r, q, [&](float *alias) {
                            for (size_t i = 0; i < q.numel; i++)
                                alias[i] += 1;
                        });
                    if (state_alias)
                        memset(state_alias, 6 + round, 20000);
                    sum_run(r, p[0], g.data(), 2 + round);
                    ASSERT_EQ(window_refresh(w), CASTOR_OK);
                    r.barrier();
                },
                [&] {
                    EXPECT_EQ(memcmp(p[0].data, p0.data(), p0.size() * sizeof(float)), 0);
                    EXPECT_EQ(memcmp(p[1].data, p1.data(), p1.size() * sizeof(float)), 0);
                    EXPECT_EQ(memcmp(grad, g0.data(), g0.size() * sizeof(float)), 0);
                    EXPECT_EQ(state[19999], s0);
                    // The child's writes are its own, whatever they hit.
                    memset(p[0].data, 0x11, p[0].numel * sizeof(float));
                    memset(p[1].data, 0x11, p[1].numel * sizeof(float));
                    memset(grad, 0x11, p[0].numel * sizeof(float));
                });
            EXPECT_EQ(p[1][1], float(2 + round));
            EXPECT_EQ(grad[0], float(2 * (2 + round)));
            EXPECT_EQ(state[0], 6 + round);
            EXPECT_EQ(p[0].alias()[3], p[0][3]) << "nothing came from a child";
        }
        castor_state_unview(r.store, state_view, 20000);
    });
}

// What changes without a step or a sum of this rank's must be in the next child's copy as well.
TEST(StoreFork, EachChildSeesItsOwnMoment) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(5000)};
        params_register(r, p);
        std::vector<float> g(5000, 1.0f);
        sum_run(r, p[0], g.data());
        auto nothing = [] {};
        child_run(r, 0, nothing, [&] { EXPECT_EQ(p[0][1], 1.0f); });
        castor_window *w;
        void *address;
        ASSERT_EQ(window_take(p[0].tensor, &w, &address), CASTOR_OK);
        float *grad = static_cast<float *>(address);
        child_run(r, 1, nothing,
                  [&] { EXPECT_EQ(grad[4999], 2.0f) << "a window taken since the last fork"; });
        r.barrier();
        if (p[0].mine(r))
            p[0].sum()[4999] = 0.25f;
        r.barrier();
        child_run(r, 2, nothing, [&] { EXPECT_EQ(grad[4999], 0.25f) << "a sum that its owner clipped"; });
        float *fresh = static_cast<float *>(arena_alloc(5000 * sizeof(float)));
        ASSERT_EQ(inside_rebind(p[0].tensor, fresh), 1);
        child_run(r, 3, nothing, [&] { EXPECT_EQ(fresh[4999], 999.0f) << "a new block"; });
        castor_tensor_forget(p[0].tensor);
        child_run(
            r, 4,
            [&] {
                arena_free(fresh);
                arena_free(p[0].data);
                r.barrier();
            },
            [&] {
                EXPECT_EQ(fresh[4999], 999.0f) << "a forgotten parameter whose bytes the script still had";
            });
    });
}

TEST(StoreFork, GrandchildrenSeeTheSame) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(5000)};
        params_register(r, p);
        child_run(
            r, 0, [&] { step_run<float>(r, p[0], [](float *alias) { alias[0] = -5; }); },
            [&] {
                pid_t pid = fork();
                if (pid == 0)
                    process_end(p[0][0] == 0.0f && p[0][4999] == 999.0f ? 0 : 1);
                int status = -1;
                waitpid(pid, &status, 0);
                EXPECT_EQ(status, 0);
            });
        EXPECT_EQ(p[0][0], -5.0f);
    });
}

// It would count as its parent, twice: the others would go on before the parent has come.
TEST(StoreFork, ChildThatCannotMapItsViewIsTold) {
    Job job(1);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(300000)};
        params_register(r, p);
        rlimit limit, none;
        getrlimit(RLIMIT_AS, &limit);
        none = {1, limit.rlim_max};
        testing::internal::CaptureStderr();
        for (const rlimit &during :
             {limit, none}) { // what both children are to map is made for the first one
            setrlimit(RLIMIT_AS, &during);
            pid_t pid = fork();
            if (pid == 0)
                _exit(0);
            setrlimit(RLIMIT_AS, &limit);
            int status = -1;
            waitpid(pid, &status, 0);
            EXPECT_EQ(status, 0);
        }
        std::string said = testing::internal::GetCapturedStderr();
        EXPECT_NE(said.find("no memory for the forked child's view of the weights"), std::string::npos)
            << said;
    });
}

TEST(StoreFork, ChildIsNoRank) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(5000)};
        params_register(r, p);
        std::vector<float> g(5000, 1.0f);
        sum_run(r, p[0], g.data());
        castor_window *window;
        void *address;
        ASSERT_EQ(window_take(p[0].tensor, &window, &address), CASTOR_OK);
        castor_tensor *tensor = p[0].tensor;
        auto calls = [&] {
            double value = 1, values[2];
            uint64_t number = 0;
            int committed = 0;
            uint8_t flags[1];
            castor_window *other;
            castor_description description = {p[0].data, p[0].numel, 0, 1, 0};
            const std::pair<const char *, int> got[] = {
                {"castor_barrier", castor_barrier(r.store, "a barrier")},
                {"castor_broadcast", castor_broadcast(r.store, &value, sizeof value, "a broadcast")},
                {"castor_gather", castor_gather(r.store, &value, sizeof value, values, "a gather")},
                {"castor_register", castor_register(r.store, &description, 1, &tensor)},
                {"castor_gradients_add", gradient_add(tensor, g.data(), 1, 1, &number)},
                {"castor_gradients_finish", castor_gradients_finish(r.store, &tensor, 1, flags)},
                {"castor_windows_show, taking", window_take(tensor, &other, &address)},
                {"castor_windows_show", window_refresh(window)},
                {"castor_consensus", castor_consensus(r.store, 1, 1, &committed)},
                {"castor_step_begin", castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr)},
                {"castor_publish_end", castor_publish_end(r.store, &tensor, 1, flags)},
                {"castor_publish_deduplicate",
                 castor_publish_deduplicate(r.store, &tensor, 1, "the end of a step")},
                {"castor_state_allocate", castor_state_allocate(tensor, 64, &number, &address)},
                {"castor_state_view", castor_state_view(p[0].tensor, 0, 64, &address)},
                {"castor_directory_put", castor_directory_put(r.store, &value, sizeof value)},
            };
            for (auto [name, status] : got)
                EXPECT_EQ(status, CASTOR_ERR_UNSUPPORTED) << name;
            EXPECT_EQ(castor_barrier(r.store, "a barrier"), CASTOR_ERR_UNSUPPORTED);
            std::string expected = "castor_barrier: this process was forked from rank " +
                                   std::to_string(r.rank) + " (pid " + std::to_string(getppid()) + ")";
            EXPECT_EQ(std::string(error_text()).rfind(expected, 0), 0u) << error_text();
            p[0][0] = 77;
            castor_publish_push(&tensor, 1);
            castor_publish_mark(&tensor, 1);
        };
        child_run(
            r, 0, [] {}, calls);
        // Nothing of it reached the ranks: they meet, add and step as ever.
        EXPECT_EQ(p[0].alias()[0], 0.0f);
        uint8_t changed = 1;
        double value = 1;
        ASSERT_EQ(castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr), CASTOR_OK)
            << error_text();
        ASSERT_EQ(castor_publish_end(r.store, &tensor, 1, &changed), CASTOR_OK) << error_text();
        EXPECT_EQ(changed, 0) << "a child's mark";
        sum_run(r, p[0], g.data(), 3);
        EXPECT_EQ(p[0].sum()[4999], 6.0f);
        EXPECT_EQ(inside_check(r.store), CASTOR_OK) << error_text();
        r.barrier();
    });
}

} // namespace
