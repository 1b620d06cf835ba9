// Windows and leases: what p.grad shows stays as it was for as long as somebody looks.
#include <algorithm>
#include <fstream>
#include <thread>
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

struct View {
    castor_window *window = nullptr;
    float *at = nullptr;
};

View window_take(const Param<> &p) {
    View v;
    void *address = nullptr;
    EXPECT_EQ(store_test::window_take(p.tensor, &v.window, &address), CASTOR_OK) << error_text();
    v.at = static_cast<float *>(address);
    return v;
}

// A parameter with one sum, of 1 from each rank.
struct Fixture {
    std::vector<Param<>> p;
    std::vector<float> ones;
    Fixture(Rank &r, size_t numel = 5000) : p{param_make(numel)}, ones(numel, 1.0f) {
        params_register(r, p);
        sum(r, 1);
    }
    void sum(Rank &r, double scale) { sum_run(r, p[0], ones.data(), scale); }
};

TEST(StoreWindow, HeldValuesOutliveTheNextSums) {
    Job job(2);
    job.run([](Rank &r) {
        Fixture f(r);
        std::vector<View> held = {window_take(f.p[0])};
        for (int round = 2; round < 6; round++) {
            f.sum(r, round);
            held.push_back(window_take(f.p[0]));
            for (size_t i = 0; i < held.size(); i++) {
                ASSERT_EQ(held[i].at[0], 2.0f * float(i + 1)) << "round " << round;
                ASSERT_EQ(held[i].at[4999], 2.0f * float(i + 1)) << "round " << round;
            }
        }
        EXPECT_GT(window_edited(held[0].window), 0u) << "an old window is no view of the sum";
        EXPECT_EQ(window_edited(held.back().window), 0u);
        for (View &v : held)
            castor_window_return(v.window);
    });
}

// Nobody reads a sum before the first gradient: its owner's blocks lie there, and keep their bytes when it is made.
TEST(StoreWindow, BlocksLieOnSumsFromTheRegistrationOn) {
    Job job(2);
    job.run([](Rank &r) {
        const size_t numel = kMiB, bytes = numel * sizeof(float);
        std::vector<Param<>> p = {param_make(numel), param_make(numel)};
        std::vector<float> ones(numel, 1.0f);
        params_register(r, p);
        auto *block = static_cast<float *>(arena_alloc(bytes));
        std::fill(block, block + numel, float(r.rank + 3));
        arena_stats arena;
        arena_get_stats(&arena);
        EXPECT_EQ(arena.loan_bytes, bytes) << "each rank owns a parameter";
        uint64_t moved_before = arena.moved_bytes;
        for (Param<> &one : p)
            sum_run(r, one, ones.data(), 1);
        arena_get_stats(&arena);
        EXPECT_EQ(arena.loan_bytes, 0u);
        EXPECT_EQ(arena.moved_bytes - moved_before, bytes);
        for (const Param<> &one : p) {
            View v = window_take(one);
            EXPECT_EQ(std::count(v.at, v.at + numel, 2.0f), long(numel));
            castor_window_return(v.window);
        }
        EXPECT_EQ(std::count(block, block + numel, float(r.rank + 3)), long(numel));
        arena_free(block);
        EXPECT_TRUE(arena_check());
    });
}

// Lines of this process's map that are views of sums.
size_t views_of_sums() {
    std::ifstream maps("/proc/self/maps");
    size_t found = 0;
    for (std::string line; std::getline(maps, line);)
        found += line.find(" rw-p ") != std::string::npos && line.find("castor-grad") != std::string::npos;
    return found;
}

TEST(StoreWindow, MappingsEndWithTheirTensor) {
    Job job(2);
    job.run([](Rank &r) {
        Fixture f(r);
        EXPECT_EQ(views_of_sums(), 0u);
        View returned = window_take(f.p[0]), held = window_take(f.p[0]);
        castor_window_return(returned.window);
        EXPECT_EQ(views_of_sums(), 2u) << "a returned one waits for the next sum";
        castor_tensor_forget(f.p[0].tensor);
        EXPECT_EQ(views_of_sums(), 1u);
        EXPECT_EQ(held.at[4999], 2.0f) << "the script holds its gradient for as long as it likes";
        castor_window_return(held.window);
        EXPECT_EQ(views_of_sums(), 0u);
    });
}

TEST(StoreWindow, NobodyWritesTheNextSumBeforeTheLeaseIsBack) {
    Job job(2);
    job.run([](Rank &r) {
        Fixture f(r);
        View v = window_take(f.p[0]);
        if (r.rank == 0) { // goes ahead with its next gradient, while rank 1 still looks
            uint64_t ticket;
            castor_window_return(v.window);
            ASSERT_EQ(gradient_add(f.p[0].tensor, f.ones.data(), 5, 1, &ticket), CASTOR_OK);
            flag_raise(r.board, 0);
            flag_await(r.board, 1);
            EXPECT_EQ(inside_gradients_done(r.store), 1u);
            flag_raise(r.board, 2);
        } else {
            flag_await(r.board, 0);
            usleep(100000);
            EXPECT_EQ(v.at[0], 2.0f);
            flag_raise(r.board, 1);
            flag_await(r.board, 2);
            uint64_t ticket;
            // From another thread, as a storage's deleter may.
            std::thread([&] { castor_window_return(v.window); }).join();
            ASSERT_EQ(gradient_add(f.p[0].tensor, f.ones.data(), 1, 1, &ticket), CASTOR_OK);
        }
        uint8_t used;
        ASSERT_EQ(castor_gradients_finish(r.store, &f.p[0].tensor, 1, &used), CASTOR_OK) << error_text();
        EXPECT_EQ(f.p[0].sum()[0], 6.0f);
    });
}

TEST(StoreWindow, EditsAreThisRanksOwnAndRefreshDropsThem) {
    Job job(2);
    job.run([](Rank &r) {
        Fixture f(r);
        View v = window_take(f.p[0]);
        if (r.rank == 1)
            v.at[3000] = 7;
        r.barrier();
        EXPECT_EQ(v.at[3000], r.rank == 1 ? 7.0f : 2.0f);
        EXPECT_EQ(window_edited(v.window), r.rank == 1 ? kPage : 0u);
        EXPECT_EQ(f.p[0].sum()[3000], 2.0f);
        ASSERT_EQ(window_refresh(v.window), CASTOR_OK);
        EXPECT_EQ(v.at[3000], 2.0f);
        castor_window_return(v.window);
        View again = window_take(f.p[0]);
        EXPECT_EQ(again.at, v.at) << "a returned mapping serves again";
        EXPECT_EQ(again.at[3000], 2.0f);
        castor_window_return(again.window);
    });
}

TEST(StoreWindow, ZeroIsZeroUntilRefreshed) {
    Job job(2);
    job.run([](Rank &r) {
        Fixture f(r);
        View v = window_take(f.p[0]);
        v.at[10] = 9;
        ASSERT_EQ(castor_windows_zero(&v.window, 1), CASTOR_OK);
        for (size_t i = 0; i < 5000; i++)
            ASSERT_EQ(v.at[i], 0.0f);
        EXPECT_GT(window_edited(v.window), 0u);
        v.at[20] = 4; // a gradient accumulates into it
        f.sum(r, 3);
        EXPECT_EQ(v.at[20], 4.0f);
        ASSERT_EQ(window_refresh(v.window), CASTOR_OK);
        EXPECT_EQ(v.at[20], 6.0f);
        ASSERT_EQ(castor_windows_zero(&v.window, 1), CASTOR_OK);
        castor_window_return(v.window);
        f.sum(r, 4);
        View again = window_take(f.p[0]);
        EXPECT_EQ(again.at[20], 8.0f);
        castor_window_return(again.window);
    });
}

// What owners write into the sum between barriers shows in every untouched window, and in no other.
TEST(StoreWindow, OwnersWriteForUntouchedWindows) {
    Job job(3);
    job.run([](Rank &r) {
        Fixture f(r);
        View v = window_take(f.p[0]);
        if (r.rank == 2)
            v.at[0] = 1;
        int committed = 0;
        bool able = window_edited(v.window) == 0;
        ASSERT_EQ(castor_consensus(r.store, 3, able, &committed), CASTOR_OK);
        EXPECT_EQ(committed, 0);
        r.barrier();
        if (f.p[0].mine(r))
            f.p[0].sum()[0] = f.p[0].sum()[4000] = 0.5f;
        r.barrier();
        EXPECT_EQ(v.at[0], r.rank == 2 ? 1.0f : 0.5f);
        EXPECT_EQ(v.at[4000], 0.5f) << "another page";
        castor_window_return(v.window);
    });
}

// The memory of a sum goes back when every rank has dropped it and its activations, and comes back with the next sum.
TEST(StoreWindow, MemoryOfDroppedSumsGoesBackAndComesBack) {
    for (int world : {2, 4}) {
        Job job(world);
        job.options = {"CASTOR_GRADIENT_RETURN=100"};
        job.run([](Rank &r) {
            // One that is too small for it, one of a single block, one that ends within a page, a piece and a block.
            std::vector<Param<>> p = {param_make(5000), param_make(200000), param_make(700003)};
            params_register(r, p);
            size_t returnable = 0;
            std::vector<castor_tensor *> tensors;
            for (Param<> &q : p) {
                returnable += q.numel > 20000 ? q.numel * sizeof(float) / kPage * kPage : 0;
                tensors.push_back(q.tensor);
            }
            for (int round = 0; round < 8; round++) {
                bool nobody = round == 5, without_first = round == 2;
                void *activations = arena_alloc(16 * kMiB);
                for (Param<> &q : p) {
                    std::vector<float> g(q.numel);
                    for (size_t i = 0; i < q.numel; i++)
                        g[i] = float((r.rank + 1) * int((i + size_t(round)) % 1009));
                    bool mine = !nobody && !(without_first && r.rank == 0);
                    uint64_t ticket;
                    ASSERT_EQ(gradient_add(q.tensor, mine ? g.data() : nullptr, 0.5, mine, &ticket),
                              CASTOR_OK);
                    while (inside_gradients_done(r.store) < ticket) // g goes
                        usleep(200);
                }
                uint8_t used[3];
                ASSERT_EQ(castor_gradients_finish(r.store, tensors.data(), 3, used), CASTOR_OK)
                    << error_text();
                EXPECT_GE(inside_resident_bytes(r.store, CHUNK_GRAD), returnable);
                r.barrier();
                arena_free(activations);
                int all = nobody ? 0 : r.world * (r.world + 1) / 2 - without_first;
                for (Param<> &q : p) {
                    View v = window_take(q);
                    for (size_t i = 0; i < q.numel; i++)
                        ASSERT_EQ(v.at[i], 0.5f * float(all * int((i + size_t(round)) % 1009)))
                            << "round " << round << " element " << i;
                    castor_window_return(v.window);
                }
                r.barrier();
                EXPECT_LT(inside_resident_bytes(r.store, CHUNK_GRAD), returnable);
                r.barrier();
            }
        });
    }
}

// Whoever asks for it gets what was asked for.
TEST(StoreWindow, TheSumsMemoryGoesBackIfAskedFor) {
    const struct {
        int world;
        std::vector<std::string> options;
        bool goes_back;
    } cases[] = {
        {2, {}, false},
        {4, {}, false},
        {2, {"CASTOR_GRADIENT_RETURN=-1"}, false},
        {4, {"CASTOR_GRADIENT_RETURN=100"}, true},
        {2, {"CASTOR_GRADIENT_RETURN=100"}, true},
    };
    for (const auto &c : cases) {
        Job job(c.world);
        job.options = c.options;
        job.run([&c](Rank &r) {
            Fixture f(r, 200 * kPage);
            size_t sum_bytes = f.ones.size() * sizeof(float);
            void *activations = arena_alloc(16 * kMiB);
            f.sum(r, 2);
            EXPECT_GE(inside_resident_bytes(r.store, CHUNK_GRAD), sum_bytes);
            r.barrier();
            arena_free(activations);
            castor_window_return(window_take(f.p[0]).window);
            r.barrier();
            uint64_t resident = inside_resident_bytes(r.store, CHUNK_GRAD);
            EXPECT_EQ(resident < sum_bytes, c.goes_back)
                << c.world << " ranks, " << resident << " of " << sum_bytes;
            r.barrier();
        });
    }
}

} // namespace
