// Several nodes: two stores of two ranks each in one test, whose owners exchange through shared memory what collectives
// would move between nodes.
#include <algorithm>
#include <random>
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

constexpr int kNodes = 2, kLocal = 2;

// What the ranks of one lane hand each other.
struct Lane {
    std::atomic<uint32_t> came;
    float values[kNodes][1 << 16];
};

Lane *lanes_make() {
    void *memory =
        mmap(nullptr, kLocal * sizeof(Lane), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<Lane *>(memory);
}

// A rank of the job becomes rank % 2 of node rank / 2.
struct Node {
    int node;
    Rank here;
    Lane *lane;
    uint32_t rounds = 0;
};

void node_open(Node &n, const Rank &r, Lane *lanes, bool shards) {
    n.node = r.rank / kLocal;
    n.here = {r.rank % kLocal, kLocal, nullptr, r.board, r.token};
    n.lane = &lanes[n.here.rank];
    std::string name = "group on node " + std::to_string(n.node);
    ASSERT_EQ(castor_store_open(name.c_str(), r.token.c_str(), n.here.rank, kLocal, kLocal, &n.here.store),
              CASTOR_OK)
        << error_text();
    if (shards) {
        ASSERT_EQ(castor_store_shard(n.here.store, n.node, kNodes), CASTOR_OK) << error_text();
    }
}

void lane_meet(Node &n) {
    n.lane->came.fetch_add(1);
    n.rounds++;
    while (n.lane->came.load() < n.rounds * kNodes)
        usleep(200);
}

// The lane's all-reduce.
void lane_sum(Node &n, float *data, size_t numel) {
    memcpy(n.lane->values[n.node], data, numel * sizeof *data);
    lane_meet(n);
    for (size_t i = 0; i < numel; i++)
        data[i] = n.lane->values[0][i] + n.lane->values[1][i];
    lane_meet(n);
}

std::vector<castor_range> ranges_of(int what, std::vector<Param<>> &params,
                                    const std::vector<uint8_t> &wanted, bool merge) {
    std::vector<castor_tensor *> tensors;
    for (Param<> &p : params)
        tensors.push_back(p.tensor);
    std::vector<castor_range> ranges(params.size() + 1);
    uint32_t count = 0;
    EXPECT_EQ(castor_node_ranges(what, tensors.data(), uint32_t(tensors.size()), wanted.data(), merge,
                                 ranges.data(), &count),
              CASTOR_OK);
    ranges.resize(count);
    return ranges;
}

// Backward on every rank: rank r of the job gives (r + 1) * (i + 1) for parameter i when it uses it.
void backward(Node &n, std::vector<Param<>> &params, const std::vector<uint8_t> &uses, int rank,
              std::vector<uint8_t> &used) {
    std::vector<castor_tensor *> tensors;
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < params.size(); i++) {
        tensors.push_back(params[i].tensor);
        gradients.emplace_back(params[i].numel, float((rank + 1) * int(i + 1)));
        uint64_t ticket;
        ASSERT_EQ(castor_windows_detach(params[i].tensor), CASTOR_OK);
        ASSERT_EQ(gradient_add(params[i].tensor, uses[i] ? gradients[i].data() : nullptr, 0.25,
                               uses[i] ? ADD_USED : 0, &ticket),
                  CASTOR_OK);
    }
    used.assign(params.size(), 0);
    ASSERT_EQ(castor_gradients_finish(n.here.store, tensors.data(), uint32_t(tensors.size()), used.data()),
              CASTOR_OK)
        << error_text();
    // The owner asks the other node which of its tensors were used.
    std::vector<float> word(params.size());
    for (size_t i = 0; i < params.size(); i++)
        word[i] = params[i].mine(n.here) ? used[i] : 0;
    lane_sum(n, word.data(), word.size());
    std::vector<uint8_t> wanted(params.size());
    for (size_t i = 0; i < params.size(); i++)
        wanted[i] = word[i] > 0, used[i] = params[i].mine(n.here) ? wanted[i] : used[i];
    for (const castor_range &range : ranges_of(CASTOR_EXCHANGE_SUMS, params, wanted, true))
        lane_sum(n, static_cast<float *>(range.address), range.numel);
    ASSERT_EQ(castor_sums_settle(n.here.store, n.node, tensors.data(), uint32_t(tensors.size()), used.data()),
              CASTOR_OK)
        << error_text();
}

std::vector<Param<>> params_make(const std::vector<size_t> &numels) {
    std::vector<Param<>> params;
    for (size_t numel : numels)
        params.push_back(param_make<float>(numel, 1));
    return params;
}

const std::vector<size_t> kNumels = {3000, 16, 1024, 5000, 7, 2048, 1, 4096};

TEST(Nodes, SumsAreOfAllNodesAndUseIsKnownToAll) {
    Job job(kNodes * kLocal);
    job.open = false;
    Lane *lanes = lanes_make();
    job.run([&](Rank &r) {
        Node n;
        node_open(n, r, lanes, false);
        std::vector<Param<>> params = params_make(kNumels);
        params_register(n.here, params);
        for (int round = 0; round < 3; round++) {
            // Parameter 0 by every rank, 3 by the last rank only, 4 by nobody, the others by the first node.
            std::vector<uint8_t> uses(params.size()), used;
            for (size_t i = 0; i < params.size(); i++)
                uses[i] = i == 0 || (i == 3 ? r.rank == 3 : i != 4 && n.node == 0);
            backward(n, params, uses, r.rank, used);
            for (size_t i = 0; i < params.size(); i++) {
                float ranks = i == 0 ? 1 + 2 + 3 + 4 : i == 3 ? 4 : i == 4 ? 0 : 1 + 2;
                EXPECT_EQ(used[i], i != 4) << "parameter " << i;
                EXPECT_EQ(params[i].sum()[0], ranks * 0.25f * float(i + 1)) << "parameter " << i;
                EXPECT_EQ(params[i].sum()[params[i].numel - 1], ranks * 0.25f * float(i + 1));
                castor_sums_release(&params[i].tensor, 1);
            }
        }
    });
    munmap(lanes, kLocal * sizeof(Lane));
}

// The bytes of the ranges are those of the wanted tensors, each once, whatever was placed between.
TEST(Nodes, RangesHoldWhatIsWantedAndNothingElse) {
    for (const char *chunk : {"CASTOR_CHUNK_SIZE=64K", "CASTOR_CHUNK_SIZE=32M"}) {
        Job job(1);
        job.options.push_back(chunk);
        job.run([&](Rank &r) {
            ASSERT_EQ(castor_store_shard(r.store, 0, kNodes), CASTOR_OK);
            std::mt19937 random(99);
            std::vector<size_t> numels;
            for (int i = 0; i < 60; i++)
                numels.push_back(random() % 3 ? 1 + random() % 700 : 1024 * (1 + random() % 30));
            std::vector<Param<>> params = params_make(numels);
            params_register(r, params);
            for (int round = 0; round < 30; round++)
                for (int what : {CASTOR_EXCHANGE_SUMS, CASTOR_EXCHANGE_PARAMETERS}) {
                    std::vector<uint8_t> wanted;
                    for (size_t i = 0; i < params.size(); i++)
                        wanted.push_back(random() % 4 != 0);
                    std::vector<castor_range> merged = ranges_of(what, params, wanted, true),
                                              single = ranges_of(what, params, wanted, false);
                    EXPECT_LE(merged.size(), single.size());
                    size_t held = 0;
                    for (const castor_range &one : single)
                        for (const castor_range &range : merged) {
                            const float *from = static_cast<float *>(range.address);
                            const float *at = static_cast<float *>(one.address);
                            held += at >= from && at + one.numel <= from + range.numel;
                        }
                    EXPECT_EQ(held, single.size()) << "each in exactly one";
                    for (size_t i = 0; i < params.size(); i++) {
                        const float *at = what == CASTOR_EXCHANGE_SUMS ? params[i].sum() : params[i].alias();
                        for (const castor_range &range : merged) {
                            const float *from = static_cast<float *>(range.address);
                            EXPECT_TRUE(wanted[i] || !at || at + params[i].numel <= from ||
                                        at >= from + range.numel)
                                << "parameter " << i << " is not wanted";
                            if (wanted[i] && at >= from && at < from + range.numel) {
                                EXPECT_EQ(range.node,
                                          what == CASTOR_EXCHANGE_SUMS ? -1 : params[i].info.node);
                            }
                        }
                    }
                }
        });
    }
}

TEST(Nodes, NeighboursAreOneRange) {
    Job job(1);
    job.run([&](Rank &r) {
        std::vector<Param<>> params = params_make({4096, 4096, 4096});
        params_register(r, params);
        std::vector<castor_range> ranges = ranges_of(CASTOR_EXCHANGE_SUMS, params, {1, 1, 1}, true);
        ASSERT_EQ(ranges.size(), 1u);
        EXPECT_EQ(ranges[0].numel, 3u * 4096);
        EXPECT_EQ(ranges_of(CASTOR_EXCHANGE_SUMS, params, {1, 0, 1}, true).size(), 2u);
    });
}

TEST(Nodes, WhatIsShardedIsSteppedOnOneNodeAndBalanced) {
    Job job(kNodes * kLocal);
    job.open = false;
    Lane *lanes = lanes_make();
    job.run([&](Rank &r) {
        Node n;
        node_open(n, r, lanes, true);
        std::vector<Param<>> params = params_make({8192, 8192, 8192, 8192, 4096, 4096, 4096, 4096, 10});
        params_register(n.here, params);
        uint64_t of[kNodes][kLocal] = {};
        for (const Param<> &p : params) {
            if (!p.info.shared) {
                EXPECT_EQ(p.info.node, -1) << "what each rank keeps for itself it steps for itself";
                continue;
            }
            ASSERT_TRUE(p.info.node >= 0 && p.info.node < kNodes);
            of[p.info.node][p.info.owner] += p.info.bytes;
        }
        for (auto &node : of)
            for (uint64_t bytes : node)
                EXPECT_EQ(bytes, (8192u + 4096u) * 4);
    });
    munmap(lanes, kLocal * sizeof(Lane));
}

TEST(Nodes, StatesAreReadWithoutTheOtherNodesScript) {
    Job job(2);
    job.open = false;
    job.run([&](Rank &r) {
        Rank here{0, 1, nullptr, r.board, r.token};
        std::string name = "alone " + std::to_string(r.rank);
        ASSERT_EQ(castor_store_open(name.c_str(), nullptr, 0, 1, 1, &here.store), CASTOR_OK);
        const size_t large = 3 * kMiB / 4, small = 5;
        if (r.rank == 0) {
            std::vector<Param<>> params = params_make({2048});
            params_register(here, params);
            uint64_t offset[2];
            void *alias[2];
            ASSERT_EQ(castor_state_allocate(params[0].tensor, small * 4, &offset[0], &alias[0]), CASTOR_OK);
            ASSERT_EQ(castor_state_allocate(params[0].tensor, large * 4, &offset[1], &alias[1]), CASTOR_OK);
            for (size_t i = 0; i < large; i++)
                static_cast<float *>(alias[1])[i] = float(i);
            for (size_t i = 0; i < small; i++)
                static_cast<float *>(alias[0])[i] = -float(i);
            int port;
            ASSERT_EQ(castor_serve(here.store, "the token", "127.0.0.1", &port), CASTOR_OK) << error_text();
            snprintf(r.board->text[0], sizeof r.board->text[0], "%d %lu %lu", port, (unsigned long)offset[0],
                     (unsigned long)offset[1]);
            flag_raise(r.board, 0);
            flag_await(r.board, 1); // it makes no call meanwhile
            return;
        }
        flag_await(r.board, 0);
        int port;
        unsigned long offset[2];
        ASSERT_EQ(sscanf(r.board->text[0], "%d %lu %lu", &port, &offset[0], &offset[1]), 3);
        std::vector<float> first(small), second(large);
        uint64_t offsets[2] = {offset[0], offset[1]}, bytes[2] = {small * 4, large * 4};
        void *out[2] = {first.data(), second.data()};
        for (int round = 0; round < 3; round++) {
            std::fill(second.begin(), second.end(), 0.f);
            ASSERT_EQ(castor_node_read("127.0.0.1", port, "the token", offsets, bytes, out, 2), CASTOR_OK)
                << error_text();
            for (size_t i = 0; i < small; i++)
                ASSERT_EQ(first[i], -float(i));
            for (size_t i = 0; i < large; i++)
                ASSERT_EQ(second[i], float(i));
        }
        EXPECT_EQ(castor_node_read("127.0.0.1", port, "another token", offsets, bytes, out, 1),
                  CASTOR_ERR_PEER);
        offsets[0] = UINT64_MAX - 8;
        EXPECT_EQ(castor_node_read("127.0.0.1", port, "the token", offsets, bytes, out, 1), CASTOR_ERR_PEER)
            << "beyond the end of the file";
        offsets[0] = offset[0];
        EXPECT_EQ(castor_node_read("127.0.0.1", port, "the token", offsets, bytes, out, 2), CASTOR_OK)
            << "the server goes on: " << error_text();
        flag_raise(r.board, 1);
        std::string said;
        for (int tries = 0; tries < 1000 && said.empty(); tries++, usleep(10000))
            if (castor_node_read("127.0.0.1", port, "the token", offsets, bytes, out, 1) != CASTOR_OK)
                said = error_text();
        EXPECT_NE(said.find("its ranks have ended"), std::string::npos) << said;
    });
}

TEST(Nodes, ErrorsNameTheRanksAsTheJobCountsThem) {
    Job job(2);
    job.run([&](Rank &r) {
        const int32_t ranks[2] = {5, 7};
        ASSERT_EQ(castor_store_ranks_set(r.store, ranks), CASTOR_OK);
        double value = r.rank;
        const char *label = "the value";
        EXPECT_EQ(inside_agree(r.store, "a test", &value, &label, 1), CASTOR_ERR_MISMATCH);
        std::string said = error_text();
        EXPECT_NE(said.find("on rank 5 and"), std::string::npos) << said;
        EXPECT_NE(said.find("on rank 7."), std::string::npos) << said;
    });
}

TEST(Nodes, AddressesThatAreNoneAreErrors) {
    Job job(1);
    job.run([&](Rank &r) {
        int port;
        EXPECT_EQ(castor_serve(r.store, "t", "not-an-address", &port), CASTOR_ERR_ARGUMENT);
        EXPECT_NE(std::string(error_text()).find("CASTOR_NODE_ADDRESS"), std::string::npos) << error_text();
        EXPECT_EQ(castor_serve(r.store, "t", "192.0.2.1", &port), CASTOR_ERR_SYSTEM)
            << "an address of nobody";
        EXPECT_EQ(castor_store_shard(r.store, 2, 2), CASTOR_ERR_ARGUMENT);
        EXPECT_EQ(castor_store_open("more", nullptr, 0, 1, 2, &r.store), CASTOR_ERR_ARGUMENT);
    });
}

} // namespace
