// Collectives through a group's memory: ranks are processes, each with worker threads that come to the operations in
// their own time. Every result is compared with what a loop over the ranks gives.
#include <sched.h>
#include <optional>
#include <thread>
#include "tests/unit/support/store_ranks.h"
extern "C" {
#include "collectives/node_collective.h"
}

namespace {

using namespace store_test;

constexpr size_t kCell = NODE_CELL_BYTES;
constexpr double kPatience = 120; // seconds: others may want the cores as well

void sum_apply(void *, void *out, const void *a, const void *b, size_t numel) {
    auto *to = static_cast<float *>(out);
    auto *left = static_cast<const float *>(a), *right = static_cast<const float *>(b);
    for (size_t i = 0; i < numel; i++)
        to[i] = left[i] + right[i];
}
const node_reduction kSum = {sum_apply, nullptr};

// Different on each rank and in each operation; their sums depend on the order.
float value(int rank, uint32_t tag, size_t i) {
    uint64_t x = (uint64_t(rank + 1) << 40) + (uint64_t(tag + 1) << 20) + i;
    x = (x ^ x >> 29) * 0x9e3779b97f4a7c15ull;
    return float(int(x >> 40) - (1 << 23)) * (x & 1 ? 1.f : 1e-4f);
}

float sum_value(int world, uint32_t tag, size_t i) {
    float sum = value(0, tag, i);
    for (int rank = 1; rank < world; rank++)
        sum += value(rank, tag, i);
    return sum;
}

struct Group {
    node_group *g = nullptr;
    int rank, world;

    explicit Group(Rank &r, const char *name = "group") : rank(r.rank), world(r.world) {
        EXPECT_EQ(node_group_open(r.token.c_str(), name, r.rank, r.world, kPatience, &g), CASTOR_OK)
            << error_text();
    }
    ~Group() {
        if (g)
            node_group_leave(g);
    }
    Group(const Group &) = delete;

    void allreduce(uint32_t tag, size_t numel, bool in_place = true, uint32_t channel = 0) {
        std::vector<float> in(numel), out(numel, -1);
        for (size_t i = 0; i < numel; i++)
            in[i] = value(rank, tag, i);
        node_call call = {channel, tag, kPatience};
        std::vector<float> &result = in_place ? in : out;
        ASSERT_EQ(node_allreduce(g, &call, in.data(), result.data(), numel, sizeof(float), &kSum), CASTOR_OK)
            << error_text();
        for (size_t i = 0; i < numel; i++)
            ASSERT_EQ(result[i], sum_value(world, tag, i)) << i << " of " << numel;
    }

    void broadcast(uint32_t tag, size_t numel, int root) {
        std::vector<float> data(numel, -1);
        for (size_t i = 0; rank == root && i < numel; i++)
            data[i] = value(root, tag, i);
        node_call call = {0, tag, kPatience};
        ASSERT_EQ(node_broadcast(g, &call, data.data(), numel * sizeof(float), root), CASTOR_OK)
            << error_text();
        for (size_t i = 0; i < numel; i++)
            ASSERT_EQ(data[i], value(root, tag, i)) << i << " of " << numel;
    }

    void allgather(uint32_t tag, size_t numel, bool in_place = false) {
        std::vector<float> out(numel * size_t(world), -1), in(numel);
        float *own = in_place ? out.data() + numel * size_t(rank) : in.data();
        for (size_t i = 0; i < numel; i++)
            own[i] = value(rank, tag, i);
        node_call call = {0, tag, kPatience};
        ASSERT_EQ(node_allgather(g, &call, own, out.data(), numel * sizeof(float)), CASTOR_OK)
            << error_text();
        for (size_t i = 0; i < out.size(); i++)
            ASSERT_EQ(out[i], value(int(i / numel), tag, i % numel)) << i << " of " << numel;
    }

    void reduce(uint32_t tag, size_t numel, int root, bool in_place = true) {
        std::vector<float> in(numel), out(numel, -1);
        for (size_t i = 0; i < numel; i++)
            in[i] = value(rank, tag, i);
        node_call call = {0, tag, kPatience};
        std::vector<float> &result = in_place ? in : out;
        ASSERT_EQ(node_reduce(g, &call, in.data(), result.data(), numel, sizeof(float), &kSum, root),
                  CASTOR_OK)
            << error_text();
        for (size_t i = 0; i < numel; i++) {
            float otherwise = in_place ? value(rank, tag, i) : -1; // nothing was written
            ASSERT_EQ(result[i], rank == root ? sum_value(world, tag, i) : otherwise) << i << " of " << numel;
        }
    }

    void gather(uint32_t tag, size_t numel, int root) {
        std::vector<float> out(rank == root ? numel * size_t(world) : 0, -1), in(numel);
        for (size_t i = 0; i < numel; i++)
            in[i] = value(rank, tag, i);
        node_call call = {0, tag, kPatience};
        ASSERT_EQ(node_gather(g, &call, in.data(), out.data(), numel * sizeof(float), root), CASTOR_OK)
            << error_text();
        for (size_t i = 0; i < out.size(); i++)
            ASSERT_EQ(out[i], value(int(i / numel), tag, i % numel)) << i << " of " << numel;
    }

    void scatter(uint32_t tag, size_t numel, int root) {
        std::vector<float> in(rank == root ? numel * size_t(world) : 0), out(numel, -1);
        std::vector<const void *> inputs(size_t(world), nullptr);
        for (size_t i = 0; i < in.size(); i++)
            in[i] = value(root, tag, i);
        for (size_t to = 0; rank == root && to < inputs.size(); to++)
            inputs[to] = in.data() + to * numel;
        node_call call = {0, tag, kPatience};
        ASSERT_EQ(node_scatter(g, &call, inputs.data(), out.data(), numel * sizeof(float), root), CASTOR_OK)
            << error_text();
        for (size_t i = 0; i < numel; i++)
            ASSERT_EQ(out[i], value(root, tag, size_t(rank) * numel + i)) << i << " of " << numel;
    }

    void alltoall(uint32_t tag, size_t numel) {
        std::vector<float> in(numel * size_t(world)), out(in.size(), -1);
        for (size_t i = 0; i < in.size(); i++)
            in[i] = value(rank, tag, i);
        node_call call = {0, tag, kPatience};
        ASSERT_EQ(node_alltoall(g, &call, in.data(), out.data(), numel * sizeof(float)), CASTOR_OK)
            << error_text();
        for (size_t i = 0; i < out.size(); i++)
            ASSERT_EQ(out[i], value(int(i / numel), tag, size_t(rank) * numel + i % numel))
                << i << " of " << numel;
    }

    void barrier(uint32_t tag) {
        node_call call = {0, tag, kPatience};
        ASSERT_EQ(node_barrier(g, &call), CASTOR_OK) << error_text();
    }

    castor_status barrier_status(uint32_t tag, double timeout_seconds) {
        node_call call = {0, tag, timeout_seconds};
        return node_barrier(g, &call);
    }

    void any(uint32_t tag) {
        size_t numel = 1 + (tag * 2654435761u >> 7) % (tag % 5 ? 3000 : 3 * kCell / sizeof(float));
        int root = int(tag / 8) % world;
        switch (tag % 8) {
        case 0:
            return allreduce(tag, numel);
        case 1:
            return broadcast(tag, numel, root);
        case 2:
            return allgather(tag, numel);
        case 3:
            return reduce(tag, numel, root);
        case 4:
            return gather(tag, numel, root);
        case 5:
            return scatter(tag, numel, root);
        case 6:
            return alltoall(tag, numel);
        default:
            return barrier(tag);
        }
    }
};

class NodeCollective : public testing::TestWithParam<int> {
  protected:
    Job job{GetParam()};
    void SetUp() override { job.open = false; }
};

TEST_P(NodeCollective, AllSizesGiveWhatALoopOverTheRanksGives) {
    job.run([](Rank &r) {
        Group group(r);
        uint32_t tag = 7;
        constexpr size_t cell = kCell / sizeof(float);
        for (size_t numel : {size_t(1), size_t(2), size_t(63), size_t(1000), cell / 16, cell / 4 + 1,
                             cell - 1, cell, cell + 1, 2 * cell + 1, 5 * cell + 77, 19 * cell + 3}) {
            group.allreduce(tag++, numel);
            group.allreduce(tag++, numel, false);
            for (int root = 0; root < r.world; root++) {
                group.broadcast(tag++, numel, root);
                if (root != int(numel) % r.world && numel > cell / 4)
                    continue; // large ones take their time
                group.reduce(tag++, numel, root, root % 2);
                group.gather(tag++, numel, root);
                group.scatter(tag++, numel, root);
            }
            group.allgather(tag++, numel);
            group.allgather(tag++, numel, true);
            group.alltoall(tag++, numel);
            group.barrier(tag++);
        }
    });
}

TEST_P(NodeCollective, CallsWithOneTagComeOneAfterAnother) {
    job.run([](Rank &r) {
        Group group(r);
        for (uint32_t tag = 0; tag < 50; tag++) {
            group.broadcast(tag, 10, int(tag) % r.world);
            group.allgather(tag, 100);
            group.allreduce(tag, 100000);
            group.allreduce(tag, 10, true, 1); // another channel
        }
    });
}

// As process groups do: two threads take operations from one queue, and stop for a while anywhere.
TEST_P(NodeCollective, ThreadsComeInTheirOwnTime) {
    job.run([](Rank &r) {
        Group group(r);
        std::atomic<uint32_t> next{0};
        auto work = [&](int thread) {
            unsigned random = unsigned(r.rank * 7 + thread + 1);
            for (uint32_t tag; (tag = next++) < 300;) {
                random = random * 1103515245 + 12345;
                if (random >> 16 & 1)
                    usleep((random >> 17) % 300);
                group.any(tag);
            }
        };
        std::thread other(work, 1);
        work(0);
        other.join();
    });
}

TEST_P(NodeCollective, GroupsDoNotMeetEachOther) {
    job.run([](Rank &r) {
        for (int round = 0; round < 5; round++) {
            std::string name = "all " + std::to_string(round);
            Group all(r, name.c_str());
            Rank part = r;
            part.rank = r.rank / 2;
            part.world = r.rank % 2 ? r.world / 2 : (r.world + 1) / 2;
            std::string half = name + (r.rank % 2 ? " odd" : " even");
            std::optional<Group> own;
            if (part.world > 1)
                own.emplace(part, half.c_str());
            for (uint32_t tag = 0; tag < 20; tag++) {
                if (own)
                    own->any(tag);
                all.any(1000 + tag);
            }
        }
    });
}

// All begin on one processor, and part; none is bound to where it went.
TEST_P(NodeCollective, RanksStayFreeToRunAnywhere) {
    job.run([](Rank &r) {
        Group group(r);
        cpu_set_t before, after, first;
        ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
        CPU_ZERO(&first);
        for (size_t cpu = 0; CPU_COUNT(&first) == 0 && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &before))
                CPU_SET(cpu, &first);
        for (uint32_t tag = 0; tag < 8; tag++) {
            ASSERT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
            group.barrier(2 * tag);
            ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
            group.allreduce(2 * tag + 1, 40 * kCell / sizeof(float));
            ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
            ASSERT_TRUE(CPU_EQUAL(&before, &after));
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NodeCollective, testing::Values(2, 3, 4));

struct NodeCollectiveEnds : testing::Test {
    Job job{3};
    void SetUp() override { job.open = false; }
};

TEST_F(NodeCollectiveEnds, AKilledRankFailsTheOthersSoon) {
    job.killed = {1};
    job.run([](Rank &r) {
        Group group(r);
        group.any(0);
        if (r.rank == 1)
            raise(SIGKILL);
        double begin = now_seconds();
        std::vector<float> data(10 * kCell / sizeof(float));
        node_call call = {0, 1, 300};
        ASSERT_EQ(node_allreduce(group.g, &call, data.data(), data.data(), data.size(), sizeof(float), &kSum),
                  CASTOR_ERR_PEER);
        EXPECT_LT(now_seconds() - begin, 20);
        EXPECT_NE(std::string(error_text()).find("rank 1"), std::string::npos) << error_text();
        EXPECT_EQ(group.barrier_status(2, 300), CASTOR_ERR_PEER); // and for good
    });
}

TEST_F(NodeCollectiveEnds, WhatALeavingRankOfferedIsStillThere) {
    job.run([](Rank &r) {
        Group *group = new Group(r);
        if (r.rank == 0) {
            group->broadcast(5, 1000, 0); // waits for nobody
            delete group;
            flag_raise(r.board, 0);
        } else {
            flag_await(r.board, 0);
            group->broadcast(5, 1000, 0);
            EXPECT_EQ(group->barrier_status(6, 300), CASTOR_ERR_PEER);
            EXPECT_NE(std::string(error_text()).find("has left"), std::string::npos) << error_text();
            delete group;
        }
    });
}

TEST_F(NodeCollectiveEnds, ATimeoutIsTheOperationsOwn) {
    job.run([](Rank &r) {
        Group group(r);
        if (r.rank == 2)
            return flag_await(r.board, 0, 2);
        castor_status status = group.barrier_status(0, r.rank == 0 ? 0.3 : 300);
        EXPECT_EQ(status, r.rank == 0 ? CASTOR_ERR_TIMEOUT : CASTOR_ERR_PEER);
        EXPECT_NE(std::string(error_text()).find("Timed out"), std::string::npos) << error_text();
        flag_raise(r.board, 0);
    });
}

TEST_F(NodeCollectiveEnds, DifferentCallsAreAnError) {
    job.run([](Rank &r) {
        Group group(r);
        std::vector<float> data(100);
        node_call call = {0, 9, 20};
        castor_status status = node_allreduce(group.g, &call, data.data(), data.data(),
                                              r.rank == 1 ? 99 : 100, sizeof(float), &kSum);
        EXPECT_TRUE(status == CASTOR_ERR_MISMATCH || status == CASTOR_ERR_PEER);
        EXPECT_NE(std::string(error_text()).find("All ranks must make the same calls"), std::string::npos);
    });
}

TEST_F(NodeCollectiveEnds, MoreThreadsThanSlotsAreAnError) {
    job.run([](Rank &r) {
        Group group(r);
        for (uint32_t tag = 0; tag < NODE_THREADS_MAX; tag++) {
            // Threads that are there together have different names.
            static std::vector<std::thread> threads;
            static std::atomic<bool> over{false};
            std::atomic<bool> done{false};
            threads.emplace_back([&group, &done, tag] {
                group.barrier(tag); // nobody leaves it before all have come
                done = true;
                while (!over)
                    usleep(1000);
            });
            while (!done)
                usleep(100);
            if (tag + 1 == NODE_THREADS_MAX) {
                EXPECT_NE(group.barrier_status(100, 20), CASTOR_OK);
                EXPECT_NE(std::string(error_text()).find("CASTOR_NODE_COLLECTIVES"), std::string::npos);
                over = true;
                for (std::thread &thread : threads)
                    thread.join();
            }
        }
    });
}

} // namespace
