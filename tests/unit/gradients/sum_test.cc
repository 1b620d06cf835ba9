// Ordered sums: the same bytes as one process would compute in rank order, whatever the timing, dtype and size.
#include <algorithm>
#include <cmath>
#include <random>
#include "tests/unit/support/store_ranks.h"
extern "C" {
#include "kernels/kernels.h"
}

namespace {

using namespace store_test;

// Values of every kind of exponent, as raw elements.
std::vector<unsigned char> elements_make(int32_t dtype, size_t numel, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<unsigned char> bytes(numel * kernel_dtype_bytes(kernel_dtype(dtype)));
    for (size_t i = 0; i < numel; i++) {
        double x = (double(random()) / 4294967296.0 - 0.5) * std::ldexp(1.0, int(random() % 12) - 6);
        if (dtype == KERNEL_F64) {
            memcpy(&bytes[i * 8], &x, 8);
            continue;
        }
        float f = float(x);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        // Halves: sign, exponent near one, mantissa at random; bfloat16: the upper half of a float.
        uint16_t half = uint16_t((random() & 0x83ff) | ((12 + random() % 6) << 10)),
                 upper = uint16_t(bits >> 16);
        if (dtype == KERNEL_F32)
            memcpy(&bytes[i * 4], &f, 4);
        else
            memcpy(&bytes[i * 2], dtype == KERNEL_F16 ? &half : &upper, 2);
    }
    return bytes;
}

// The reference: whole tensors, one rank after the other, in plain C.
std::vector<unsigned char> sum_in_order(int32_t dtype, size_t numel,
                                        const std::vector<std::vector<unsigned char>> &sources,
                                        const std::vector<bool> &used, double scale) {
    std::vector<unsigned char> sum(numel * kernel_dtype_bytes(kernel_dtype(dtype)));
    for (size_t rank = 0; rank < sources.size(); rank++) {
        if (!used[rank])
            continue;
        if (rank == 0)
            kernel_scale_store(kernel_dtype(dtype), sum.data(), sources[rank].data(), numel, scale);
        else
            kernel_scale_add(kernel_dtype(dtype), sum.data(), sources[rank].data(), numel, scale);
    }
    return sum;
}

struct SumCase {
    int32_t dtype;
    size_t numel;
    bool shared;
};

std::string case_name(const SumCase &c) {
    static const char *const names[] = {"F32", "F64", "F16", "BF16"};
    return names[c.dtype] + std::string("x") + std::to_string(c.numel) + (c.shared ? "" : "Value");
}

class StoreSum : public testing::TestWithParam<SumCase> {};

TEST_P(StoreSum, IsTheSequentialSumBitForBit) {
    const SumCase c = GetParam();
    Job job(3);
    job.run([=](Rank &r) {
        size_t bytes = c.numel * kernel_dtype_bytes(kernel_dtype(c.dtype));
        void *block = arena_alloc(bytes);
        castor_description d = {block, c.numel, c.dtype, c.shared, 0};
        castor_tensor *t;
        ASSERT_EQ(castor_register(r.store, &d, 1, &t), CASTOR_OK) << error_text();
        castor_tensor_info info;
        castor_tensor_get(t, &info);
        EXPECT_EQ(info.shared, int(c.shared && bytes >= kPage));
        EXPECT_EQ(info.bytes, bytes);
        for (uint32_t round = 0; round < 8; round++) {
            // Every set of ranks that use it, none and rank 0 alone among them.
            std::vector<std::vector<unsigned char>> sources;
            std::vector<bool> used;
            for (int rank = 0; rank < r.world; rank++) {
                sources.push_back(elements_make(c.dtype, c.numel, round * 16 + uint32_t(rank)));
                used.push_back(!((round >> rank) & 1));
            }
            double scale = round % 2 ? 1.0 / 3 : 1;
            std::vector<unsigned char> expected = sum_in_order(c.dtype, c.numel, sources, used, scale);
            if ((round + uint32_t(r.rank)) % 3 == 0)
                usleep(2000);
            uint64_t ticket;
            bool mine = used[size_t(r.rank)];
            ASSERT_EQ(gradient_add(t, mine ? sources[size_t(r.rank)].data() : nullptr, scale, mine, &ticket),
                      CASTOR_OK);
            uint8_t some;
            ASSERT_EQ(castor_gradients_finish(r.store, &t, 1, &some), CASTOR_OK) << error_text();
            EXPECT_EQ(some, round != 7);
            EXPECT_TRUE(!bytes || memcmp(info.sum, expected.data(), bytes) == 0) << "round " << round;
            castor_sums_release(&t, 1);
            ASSERT_EQ(inside_check(r.store), CASTOR_OK) << error_text();
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, StoreSum,
                         testing::Values(SumCase{0, 1, true}, SumCase{0, 1023, true}, SumCase{0, 1024, true},
                                         SumCase{0, 1025, true}, SumCase{0, 262144, true},
                                         SumCase{0, 600001, true}, SumCase{0, 600001, false},
                                         SumCase{1, 300007, true}, SumCase{1, 3, true},
                                         SumCase{2, 700007, true}, SumCase{2, 33, false},
                                         SumCase{3, 700007, true}, SumCase{3, 2049, true},
                                         SumCase{0, 0, true}),
                         [](const auto &info) { return case_name(info.param); });

// One rank is already a backward ahead, and uses what nobody used in the one before.
TEST(StoreSums, UseOfTheNextBackwardIsNotUseOfThisOne) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(5000)};
        params_register(r, p);
        castor_tensor *t = p[0].tensor;
        uint64_t ticket;
        ASSERT_EQ(gradient_add(t, nullptr, 1, 0, &ticket), CASTOR_OK);
        ASSERT_EQ(inside_sums_wait(r.store, &t, 1), CASTOR_OK);
        if (r.rank == 1)
            flag_await(r.board, 0);
        EXPECT_FALSE(inside_was_used(t));
        castor_sums_release(&t, 1);
        std::vector<float> g(5000, 1.0f);
        ASSERT_EQ(gradient_add(t, g.data(), 1, r.rank == 0, &ticket), CASTOR_OK);
        if (r.rank == 0)
            flag_raise(r.board, 0);
        ASSERT_EQ(inside_sums_wait(r.store, &t, 1), CASTOR_OK);
        EXPECT_TRUE(inside_was_used(t));
    });
}

// Two more gradients go into the sum that stands there. A window shows it until this rank's own gradient is ready, and it
// stays where nobody has a window.
TEST(StoreSums, ASumGoesOn) {
    Job job(3);
    job.options = {"CASTOR_GRADIENT_RETURN=100"};
    job.run([](Rank &r) {
        arena_free(arena_alloc(16 * kMiB)); // a peak: memory that is let go of now would go back
        std::vector<Param<>> p = {param_make(400000)};
        params_register(r, p);
        castor_tensor *t = p[0].tensor;
        std::vector<float> g(400000, 1.0f);
        castor_window *window = nullptr;
        void *address = nullptr;
        auto shows = [&](int gradients) {
            for (size_t i = 0; i < g.size(); i += 997)
                ASSERT_EQ(static_cast<float *>(address)[i], 3.0f * float(gradients)) << "element " << i;
        };
        for (int part = 0; part < 9; part++) {
            int before = part % 3;
            usleep(unsigned(r.rank) * 5000);
            if (window)
                shows(before ? before : 3);
            if (part == 4) {
                castor_window_return(window);
                window = nullptr;
            }
            ASSERT_EQ(before ? window_carry(t, window) : castor_windows_detach(t), CASTOR_OK);
            uint64_t ticket;
            uint8_t used;
            int flags = ADD_USED | (before ? ADD_CARRY : 0) | (before < 2 ? ADD_KEEP : 0);
            ASSERT_EQ(gradient_add(t, g.data(), 1, flags, &ticket, window), CASTOR_OK);
            ASSERT_EQ(castor_gradients_finish(r.store, &t, 1, &used), CASTOR_OK) << error_text();
            ASSERT_EQ(window ? window_refresh(window) : window_take(t, &window, &address), CASTOR_OK);
            EXPECT_EQ(window_edited(window), 0u);
            shows(before + 1);
        }
        castor_window_return(window);
    });
}

TEST(StoreSums, RanksThatGoOnDifferentlyAreAnError) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(5000)};
        params_register(r, p);
        castor_tensor *t = p[0].tensor;
        std::vector<float> g(5000, 1.0f);
        uint64_t ticket;
        uint8_t used;
        ASSERT_EQ(gradient_add(t, g.data(), 1, ADD_KEEP, &ticket), CASTOR_OK);
        ASSERT_EQ(castor_gradients_finish(r.store, &t, 1, &used), CASTOR_OK) << error_text();
        castor_sums_release(&t, 1);
        int flags = r.rank ? 0 : ADD_CARRY;
        ASSERT_EQ(gradient_add(t, g.data(), 1, flags, &ticket), CASTOR_OK);
        EXPECT_NE(castor_gradients_finish(r.store, &t, 1, &used), CASTOR_OK);
        EXPECT_NE(strstr(error_text(), "rank 1 does not add to"), nullptr) << error_text();
    });
}

// Gradients that wait for their sums have so many bytes; the next one waits for room.
TEST(StoreSums, TheQueueIsBounded) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p;
        for (int i = 0; i < 3; i++)
            p.push_back(param_make(kMiB / sizeof(float)));
        params_register(r, p);
        std::vector<float> g(kMiB / sizeof(float), 1.0f);
        std::vector<castor_tensor *> tensors;
        std::vector<uint8_t> used(p.size());
        if (r.rank == 0)
            usleep(200000); // rank 1's parts wait for those of this rank
        for (size_t i = 0; i < p.size(); i++) {
            uint64_t ticket;
            tensors.push_back(p[i].tensor);
            ASSERT_EQ(castor_windows_detach(p[i].tensor), CASTOR_OK);
            ASSERT_EQ(inside_gradient_add(p[i].tensor, g.data(), 1, ADD_USED, kMiB, &ticket), CASTOR_OK);
            EXPECT_GE(inside_gradients_done(r.store), i);
        }
        ASSERT_EQ(castor_gradients_finish(r.store, tensors.data(), uint32_t(p.size()), used.data()),
                  CASTOR_OK);
    });
}

// Gradients become ready in different orders, leases are still out, and the queue holds next to nothing.
TEST(StoreSums, FullQueuesInDifferentOrdersDoNotLock) {
    Job job(3);
    job.run([](Rank &r) {
        std::vector<Param<>> p;
        for (int i = 0; i < 6; i++)
            p.push_back(param_make(20000 + size_t(i)));
        params_register(r, p);
        std::vector<castor_tensor *> tensors;
        for (auto &q : p)
            tensors.push_back(q.tensor);
        std::vector<float> g(30000, 1.0f);
        std::vector<uint8_t> used(p.size());
        std::vector<castor_window *> windows;
        std::vector<float *> addresses;
        for (int round = 1; round <= 20; round++) {
            std::mt19937 own(uint32_t(round * 10 + r.rank));
            std::vector<Param<>> order = p;
            std::shuffle(order.begin(), order.end(), own);
            uint64_t ticket;
            for (auto &q : order) {
                ASSERT_EQ(castor_windows_detach(q.tensor), CASTOR_OK);
                ASSERT_EQ(inside_gradient_add(q.tensor, g.data(), round, 1, 1, &ticket), CASTOR_OK)
                    << error_text();
            }
            ASSERT_EQ(castor_gradients_finish(r.store, tensors.data(), uint32_t(p.size()), used.data()),
                      CASTOR_OK)
                << error_text();
            // The windows of the round before kept their values, although a lease may have gone back early.
            for (size_t i = 0; i < windows.size(); i++) {
                ASSERT_EQ(*addresses[i], float(3 * (round - 1)));
                castor_window_return(windows[i]);
            }
            windows.clear();
            addresses.clear();
            for (auto &q : p) {
                castor_window *w;
                void *address;
                ASSERT_EQ(window_take(q.tensor, &w, &address), CASTOR_OK);
                windows.push_back(w);
                addresses.push_back(static_cast<float *>(address));
                ASSERT_EQ(addresses.back()[100], float(3 * round));
            }
        }
    });
}

} // namespace
