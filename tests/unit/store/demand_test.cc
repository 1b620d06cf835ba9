// What another node keeps, brought when it is touched: two stores in one test, each a node whose first rank serves.
#include <fcntl.h>
#include <algorithm>
#include <random>
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

constexpr int kNodes = 2;
constexpr size_t kChunk = 64 << 10; // CASTOR_CHUNK_SIZE
constexpr int kSums = 1, kParameters = 0;

// Rank r of the job becomes rank r % local of node r / local.
struct Node {
    int node = 0, round = 0;
    Rank here{0, 1, nullptr, nullptr, ""};
    std::vector<Param<>> params;
};

// All ranks of the job are here.
void meet(Node &n, const Rank &r) {
    flag_raise(r.board, 0);
    flag_await(r.board, 0, uint32_t(++n.round * r.world));
}

std::vector<castor_tensor *> tensors_of(const Node &n) {
    std::vector<castor_tensor *> tensors;
    for (const Param<> &p : n.params)
        tensors.push_back(p.tensor);
    return tensors;
}

// The owners' part; then nobody of this node sees what stood there.
void drop(Node &n, int sums) {
    std::vector<castor_tensor *> tensors = tensors_of(n);
    ASSERT_EQ(castor_demand_drop(sums, tensors.data(), uint32_t(tensors.size())), CASTOR_OK) << error_text();
    n.here.barrier();
}

void node_open(Node &n, const Rank &r, int kinds, const std::vector<size_t> &numels) {
    int local = r.world / kNodes, ports[kNodes] = {0};
    n.node = r.rank / local;
    n.here = {r.rank % local, local, nullptr, r.board, r.token};
    std::string name = "node " + std::to_string(n.node);
    ASSERT_EQ(castor_store_open(name.c_str(), r.token.c_str(), n.here.rank, local, local, &n.here.store),
              CASTOR_OK)
        << error_text();
    ASSERT_EQ(castor_store_shard(n.here.store, n.node, kNodes), CASTOR_OK) << error_text();
    if (n.here.rank == 0) {
        int port;
        ASSERT_EQ(castor_serve(n.here.store, "the token", "127.0.0.1", &port), CASTOR_OK) << error_text();
        r.board->number[n.node] = port;
    }
    meet(n, r);
    const char *addresses[kNodes] = {"127.0.0.1", "127.0.0.1"}, *tokens[kNodes] = {"the token", "the token"};
    for (int node = 0; node < kNodes; node++)
        ports[node] = int(r.board->number[node]);
    ASSERT_EQ(castor_demand(n.here.store, kinds, addresses, ports, tokens), CASTOR_OK) << error_text();
    for (size_t numel : numels)
        n.params.push_back(param_make<float>(numel, 1));
    params_register(n.here, n.params);
    meet(n, r);
    drop(n, kSums);
    drop(n, kParameters);
}

bool keeps(const Node &n, const Param<> &p) {
    return p.info.node == n.node;
}

// A step: each keeper's owner writes `value`, and the other node's copies are dropped.
void step(Node &n, const Rank &r, float value) {
    std::vector<castor_tensor *> tensors = tensors_of(n);
    std::vector<uint8_t> changed(tensors.size());
    meet(n, r);
    double agreed = value;
    ASSERT_EQ(castor_step_begin(n.here.store, &agreed, nullptr, 1, nullptr, 0, nullptr), CASTOR_OK)
        << error_text();
    for (Param<> &p : n.params)
        if (keeps(n, p) && p.mine(n.here)) {
            std::fill(p.alias(), p.alias() + p.numel, value);
            castor_publish_mark(&p.tensor, 1);
        }
    meet(n, r);
    for (Param<> &p : n.params)
        if (!keeps(n, p) && p.mine(n.here))
            castor_publish_mark(&p.tensor, 1);
    drop(n, kParameters);
    ASSERT_EQ(castor_publish_end(n.here.store, tensors.data(), uint32_t(tensors.size()), changed.data()),
              CASTOR_OK);
}

// What crosses between the nodes, here shared memory.
float *lanes_make(size_t numel) {
    void *memory =
        mmap(nullptr, numel * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<float *>(memory);
}

// Each rank of the job gives its rank + 1 times `value`; the keepers add the other node's part.
void backward(Node &n, const Rank &r, float value, float *lanes) {
    std::vector<castor_tensor *> tensors = tensors_of(n);
    for (Param<> &p : n.params)
        ASSERT_EQ(castor_windows_detach(p.tensor), CASTOR_OK);
    meet(n, r);
    std::vector<std::vector<float>> gradients;
    for (Param<> &p : n.params) {
        gradients.emplace_back(p.numel, float(r.rank + 1) * value);
        uint64_t ticket;
        ASSERT_EQ(gradient_add(p.tensor, gradients.back().data(), 1, ADD_USED, &ticket), CASTOR_OK);
    }
    std::vector<uint8_t> used(tensors.size());
    ASSERT_EQ(castor_gradients_finish(n.here.store, tensors.data(), uint32_t(tensors.size()), used.data()),
              CASTOR_OK)
        << error_text();
    size_t at = 0;
    for (Param<> &p : n.params) {
        if (p.mine(n.here) && p.info.node != n.node)
            memcpy(lanes + at, p.sum(), p.numel * sizeof(float));
        at += p.numel;
    }
    meet(n, r);
    at = 0;
    for (Param<> &p : n.params) {
        for (size_t i = 0; p.mine(n.here) && keeps(n, p) && i < p.numel; i++)
            p.sum()[i] += lanes[at + i];
        at += p.numel;
    }
    drop(n, kSums);
    meet(n, r);
}

uint64_t resident(const Node &n, chunk_kind kind) {
    return inside_resident_bytes(n.here.store, kind);
}

class Demand : public testing::Test {
  protected:
    void SetUp() override {
        if (castor_demand_probe() != CASTOR_OK)
            GTEST_SKIP() << error_text();
    }
    void run(int world, const std::function<void(Rank &)> &body) {
        Job job(world);
        job.open = false;
        job.options.push_back("CASTOR_CHUNK_SIZE=64K");
        job.run(body);
    }
};

const std::vector<size_t> kNumels = {40000, 16384, 16384, 9000, 16384, 16384, 2000, 10, 16384, 16384};

TEST_F(Demand, OneNodeKeepsEachLargerTensor) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        uint64_t kept = 0, whole = 0;
        for (const Param<> &p : n.params) {
            uint64_t span = (p.info.bytes + kPage - 1) / kPage * kPage;
            EXPECT_EQ(p.info.single_parameter, p.info.shared && span >= kChunk / 16);
            EXPECT_EQ(p.info.single_sum, p.info.single_parameter);
            whole += p.info.shared ? span : 0;
            kept += p.info.shared && (!p.info.single_sum || keeps(n, p)) ? span : 0;
        }
        EXPECT_LT(kept, whole * 3 / 4);
        EXPECT_EQ(resident(n, CHUNK_PARAM), kept);
        EXPECT_LE(resident(n, CHUNK_GRAD), kept + kPage);
        meet(n, r);
    });
}

TEST_F(Demand, SumsAloneLeaveParametersWhereTheyAre) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 1, kNumels);
        for (const Param<> &p : n.params)
            EXPECT_EQ(p.info.single_parameter, 0);
        EXPECT_GT(resident(n, CHUNK_PARAM), resident(n, CHUNK_GRAD) * 3 / 2);
        meet(n, r);
    });
}

TEST_F(Demand, WhatIsExchangedGoesByKeeper) {
    for (int kinds : {1, 2})
        run(4, [&](Rank &r) {
            Node n;
            node_open(n, r, kinds, kNumels);
            std::vector<castor_tensor *> tensors = tensors_of(n);
            const std::vector<uint8_t> all(tensors.size(), 1);
            for (int what :
                 {CASTOR_EXCHANGE_SUMS, CASTOR_EXCHANGE_PARAMETERS, CASTOR_EXCHANGE_STEPPED_SUMS}) {
                bool parameters = what == CASTOR_EXCHANGE_PARAMETERS;
                std::vector<std::pair<int, void *>> expected, found; // node, address
                for (int node = -1; node < kNodes; node++)
                    for (const Param<> &p : n.params) {
                        bool single = parameters ? p.info.single_parameter : p.info.single_sum;
                        bool moves = what == CASTOR_EXCHANGE_SUMS
                                         ? node == (single ? p.info.node : -1)
                                         : node >= 0 && node == p.info.node && !single;
                        if (moves && p.mine(n.here))
                            expected.push_back({node, parameters ? p.info.param_alias : p.info.sum});
                    }
                std::vector<castor_range> ranges(tensors.size());
                uint32_t count = 0;
                ASSERT_EQ(castor_node_ranges(what, tensors.data(), uint32_t(tensors.size()), all.data(), 0,
                                             ranges.data(), &count),
                          CASTOR_OK);
                for (uint32_t i = 0; i < count; i++)
                    found.push_back({ranges[i].node, ranges[i].address});
                EXPECT_EQ(found, expected) << what << " with " << kinds;
            }
            meet(n, r);
        });
}

TEST_F(Demand, ParametersComeWhenTheyAreTouched) {
    run(4, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        for (Param<> &p : n.params) {
            EXPECT_EQ(p[0], 1.f) << "as registered";
            EXPECT_EQ(p[p.numel - 1], 1.f + float((p.numel - 1) % 1000));
        }
        for (int round = 2; round < 12; round++) {
            step(n, r, float(round));
            for (size_t k = 0; k < n.params.size(); k++) {
                Param<> &p = n.params[(k * 7 + size_t(r.rank)) % n.params.size()];
                if (!p.info.single_parameter)
                    continue;
                EXPECT_EQ(p[p.numel / 2], float(round));
                EXPECT_EQ(p[0], float(round));
                EXPECT_EQ(p[p.numel - 1], float(round));
            }
        }
        meet(n, r);
    });
}

TEST_F(Demand, TheOldestGoBeyondTheRoom) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, std::vector<size_t>(40, 16384)); // a chunk each
        uint64_t before = resident(n, CHUNK_PARAM);
        for (int round = 0; round < 3; round++)
            for (Param<> &p : n.params) {
                EXPECT_EQ(p[5], 6.f);
                EXPECT_LE(resident(n, CHUNK_PARAM), before + 2 * kChunk) << "two chunks for the rank";
            }
        EXPECT_EQ(resident(n, CHUNK_PARAM), before + 2 * kChunk);
        meet(n, r);
    });
}

TEST_F(Demand, SystemCallsWaitForWhatTheyRead) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        step(n, r, 3);
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        for (Param<> &p : n.params) {
            float got[64];
            ASSERT_EQ(write(ends[1], p.data, sizeof got), ssize_t(sizeof got)); // a block is a page at least
            ASSERT_EQ(read(ends[0], got, sizeof got), ssize_t(sizeof got));
            EXPECT_EQ(memcmp(got, p.data, std::min(sizeof got, p.numel * 4)), 0);
            EXPECT_EQ(got[0], p.info.single_parameter ? 3.f : 1.f);
        }
        close(ends[0]);
        close(ends[1]);
        meet(n, r);
    });
}

TEST_F(Demand, WritesStayThisRanksOwn) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        step(n, r, 3);
        for (Param<> &p : n.params)
            p[1] = float(100 + r.rank);
        meet(n, r);
        for (Param<> &p : n.params) {
            EXPECT_EQ(p[1], float(100 + r.rank));
            EXPECT_EQ(p[0], p.info.single_parameter ? 3.f : 1.f) << "the rest of the page is the keeper's";
        }
        step(n, r, 4);
        for (Param<> &p : n.params)
            EXPECT_EQ(p[1], p.info.single_parameter ? 4.f : float(100 + r.rank))
                << "a publication takes it over";
        meet(n, r);
    });
}

TEST_F(Demand, ForkedChildrenSeeWhatTheirParentsSaw) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        step(n, r, 3);
        meet(n, r);
        pid_t child = fork();
        if (child == 0) {
            bool good = true;
            for (Param<> &p : n.params)
                good = good &&
                       p[p.numel - 1] == (p.info.single_parameter ? 3.f : 1.f + float((p.numel - 1) % 1000));
            process_end(good ? 0 : 1);
        }
        int status = 1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        meet(n, r);
    });
}

TEST_F(Demand, WindowsShowTheSumsOfAllNodes) {
    size_t numel = 0;
    for (size_t each : kNumels)
        numel += each;
    float *lanes = lanes_make(numel);
    ASSERT_NE(lanes, nullptr);
    run(4, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        std::mt19937 random(7); // the same on every rank
        for (int round = 1; round < 12; round++) {
            backward(n, r, float(round), lanes);
            std::vector<std::pair<castor_window *, float *>> held;
            for (Param<> &p : n.params) {
                bool keep = random() % 3 == 0;
                if (!p.info.single_sum) {
                    castor_sums_release(&p.tensor, 1);
                    continue;
                }
                castor_window *window;
                void *address;
                ASSERT_EQ(window_take(p.tensor, &window, &address), CASTOR_OK);
                float *sum = static_cast<float *>(address);
                EXPECT_EQ(sum[0], float(round) * 10) << "1 + 2 + 3 + 4 ranks";
                EXPECT_EQ(sum[p.numel - 1], float(round) * 10);
                if (keep)
                    held.emplace_back(window, sum);
                else
                    castor_window_return(window);
            }
            if (round % 2)
                step(n, r, float(round));
            for (Param<> &p : n.params)
                ASSERT_EQ(castor_windows_detach(p.tensor), CASTOR_OK);
            for (auto &[window, sum] : held) {
                EXPECT_EQ(sum[1], float(round) * 10) << "what the script holds keeps its values";
                castor_window_return(window);
            }
        }
        meet(n, r);
    });
    munmap(lanes, numel * sizeof(float));
}

// Ranks of different nodes and of one touch the same and different ranges at once, while the room is for a part of them.
TEST_F(Demand, ManyTouchAtOnce) {
    run(4, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, std::vector<size_t>(24, 16384));
        for (int round = 2; round < 6; round++) {
            step(n, r, float(round));
            std::mt19937 random(unsigned(100 * round + r.rank));
            for (int k = 0; k < 300; k++) {
                Param<> &p = n.params[random() % n.params.size()];
                ASSERT_EQ(p[random() % p.numel], float(round));
            }
        }
        meet(n, r);
    });
}

bool expects_signal;
void on_signal(int) {
    process_end(expects_signal && !testing::Test::HasFailure() ? 0 : 1);
}

TEST_F(Demand, AKeeperThatIsGoneEndsWhoTouches) {
    Job job(2);
    job.open = false;
    job.timeout_seconds = 3;
    job.options.push_back("CASTOR_CHUNK_SIZE=64K");
    job.killed = {0};
    job.run([&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        meet(n, r);
        if (r.rank == 0)
            raise(SIGKILL);
        signal(SIGBUS, on_signal);
        usleep(200000);
        expects_signal = true;
        for (Param<> &p : n.params)
            if (!keeps(n, p) && p.info.single_parameter) {
                EXPECT_EQ(p[0], 1.f) << "the keeper had ended";
            }
        process_end(1);
    });
}

TEST_F(Demand, WaitsDoNotAskForTheTimeOfDay) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        meet(n, r);
        uint32_t before = inside_time_of_day_calls();
        for (Param<> &p : n.params)
            EXPECT_EQ(p[0], 1.f);
        EXPECT_EQ(inside_time_of_day_calls(), before);
        meet(n, r);
    });
}

TEST_F(Demand, WhoServesWaitsForWhoReads) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        meet(n, r);
        if (r.rank == 1) {
            usleep(300000);
            for (Param<> &p : n.params)
                EXPECT_EQ(p[0], 1.f);
            r.board->number[2] = 1;
        }
        castor_demand_leave(n.here.store);
        ASSERT_EQ(castor_serve_wait(n.here.store, 1), CASTOR_OK) << error_text();
        EXPECT_EQ(r.board->number[2], 1) << "the other node has not read yet";
    });
}

TEST_F(Demand, WhoServesDoesNotWaitWhenItsRanksCannotGoOn) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        meet(n, r);
        castor_fail(n.here.store, "no more", 0);
        EXPECT_EQ(castor_serve_wait(n.here.store, 1), CASTOR_ERR_PEER) << "the other node reads still";
        meet(n, r);
    });
}

TEST_F(Demand, WhatNobodyHoldsIsSwept) {
    run(2, [&](Rank &r) {
        Node n;
        node_open(n, r, 2, kNumels);
        uint64_t before = resident(n, CHUNK_PARAM);
        std::vector<uint8_t> gone(n.params.size(), 7);
        EXPECT_EQ(castor_demand_forgotten(n.here.store, gone.data(), uint32_t(gone.size())), gone.size());
        EXPECT_EQ(std::count(gone.begin(), gone.end(), 0), long(gone.size())) << "all are held";
        std::vector<float *> held;
        for (Param<> &p : n.params) {
            EXPECT_TRUE(!p.info.single_parameter || p[0] == 1.f);
            castor_tensor_forget(p.tensor);
            held.push_back(p.data);
        }
        castor_demand_forgotten(n.here.store, gone.data(), uint32_t(gone.size()));
        EXPECT_EQ(std::count(gone.begin(), gone.end(), 0), long(gone.size())) << "their blocks are not freed";
        meet(n, r);
        for (size_t i = 0; i < held.size(); i++)
            EXPECT_EQ(held[i][0], 1.f) << "whoever holds the block sees the parameter";
        meet(n, r);
        for (float *block : held)
            arena_free(block);
        castor_demand_forgotten(n.here.store, gone.data(), uint32_t(gone.size()));
        size_t single = 0;
        for (size_t i = 0; i < gone.size(); i++) {
            EXPECT_EQ(gone[n.params[i].info.id], n.params[i].info.single_parameter);
            single += n.params[i].info.single_parameter && keeps(n, n.params[i]) ? n.params[i].info.bytes : 0;
        }
        meet(n, r);
        EXPECT_GT(resident(n, CHUNK_PARAM), single - 1) << "another node may still hold them";
        castor_demand_sweep(n.here.store, gone.data(), uint32_t(gone.size()));
        EXPECT_LT(resident(n, CHUNK_PARAM), before / 4);
        castor_demand_forgotten(n.here.store, gone.data(), uint32_t(gone.size()));
        EXPECT_EQ(std::count(gone.begin(), gone.end(), 0), long(gone.size())) << "once";
        meet(n, r);
    });
}

TEST_F(Demand, WhatCannotBeIsAnError) {
    Job job(1);
    job.run([&](Rank &r) {
        const char *text[1] = {"127.0.0.1"};
        int ports[1] = {1};
        EXPECT_EQ(castor_demand(r.store, 2, text, ports, text), CASTOR_ERR_ARGUMENT) << "one node";
        ASSERT_EQ(castor_store_shard(r.store, 0, 2), CASTOR_OK);
        const char *two[2] = {"127.0.0.1", "127.0.0.1"};
        int closed[2] = {1, 1};
        EXPECT_EQ(castor_demand(r.store, 2, two, closed, two), CASTOR_ERR_PEER) << "nobody listens";
        EXPECT_NE(std::string(error_text()).find("cannot be reached"), std::string::npos) << error_text();
    });
}

} // namespace
