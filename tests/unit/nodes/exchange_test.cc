// What nodes exchange of what a rank owns: in which units, where neighbours may go as one, and what nodes compare.
#include <random>
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

constexpr size_t kUnit = 4 * kMiB; // EXCHANGE_UNIT_BYTES
constexpr size_t kFloats = kMiB / sizeof(float);

std::vector<castor_tensor *> tensors_of(const std::vector<Param<>> &params) {
    std::vector<castor_tensor *> tensors;
    for (const Param<> &p : params)
        tensors.push_back(p.tensor);
    return tensors;
}

std::vector<Param<>> registered(const Rank &r, const std::vector<size_t> &numels) {
    std::vector<Param<>> params;
    for (size_t numel : numels)
        params.push_back(param_make<float>(numel, 1));
    params_register(r, params);
    return params;
}

struct Units {
    std::vector<int32_t> unit;
    std::vector<uint32_t> waits;
    bool operator==(const Units &other) const { return unit == other.unit && waits == other.waits; }
};

Units units_of(const std::vector<Param<>> &params, const std::vector<uint8_t> &used) {
    std::vector<castor_tensor *> tensors = tensors_of(params);
    Units u = {std::vector<int32_t>(params.size(), 99), std::vector<uint32_t>(params.size())};
    u.waits.resize(castor_node_units(tensors.data(), uint32_t(params.size()), used.data(), u.unit.data(),
                                     u.waits.data()));
    return u;
}

TEST(ExchangeUnits, ByHand) {
    Job job(1);
    job.run([](Rank &r) {
        const size_t M = kFloats;
        std::vector<Param<>> params = registered(r, {M, 3 * M, 5 * M, 2 * M, 2 * M, M});
        EXPECT_EQ(units_of(params, {1, 1, 1, 1, 1, 1}), (Units{{2, 2, 1, 0, 0, 0}, {3, 4, 6}}));
        EXPECT_EQ(units_of(params, {1, 1, 1, 1, 0, 1}), (Units{{1, 1, 0, 0, -1, 0}, {3, 5}}));
        EXPECT_EQ(units_of(params, {1, 0, 1, 0, 0, 0}), (Units{{1, -1, 0, -1, -1, -1}, {1, 2}}))
            << "the last one may be smaller";
        EXPECT_EQ(units_of(params, {0, 0, 0, 0, 0, 0}), (Units{{-1, -1, -1, -1, -1, -1}, {}}));
    });
}

// As one would say it: of the used sums in the order of a backward this rank's are gathered until they are large enough, or
// until there are no more sums to wait for.
Units units_expected(const std::vector<Param<>> &params, const std::vector<uint8_t> &used, int rank) {
    Units u = {std::vector<int32_t>(params.size(), -1), {}};
    std::vector<size_t> order, gathered;
    for (size_t i = params.size(); i-- > 0;)
        if (used[i])
            order.push_back(i);
    for (size_t end = 1; end <= order.size(); end++) {
        size_t bytes = 0;
        if (params[order[end - 1]].info.owner == rank)
            gathered.push_back(order[end - 1]);
        for (size_t i : gathered)
            bytes += params[i].info.bytes;
        if (gathered.empty() || (bytes < kUnit && end < order.size()))
            continue;
        for (size_t i : gathered)
            u.unit[i] = int32_t(u.waits.size());
        u.waits.push_back(uint32_t(end));
        gathered.clear();
    }
    return u;
}

TEST(ExchangeUnits, OfTwoOwnersAtRandom) {
    Job job(2);
    job.run([](Rank &r) {
        std::mt19937 random(5);
        std::vector<size_t> numels;
        for (int i = 0; i < 14; i++)
            numels.push_back(random() % 4 ? 1 + random() % (3 * kFloats) : random() % 3);
        std::vector<Param<>> params = registered(r, numels);
        for (int round = 0; round < 200; round++) {
            std::vector<uint8_t> used;
            for (size_t i = 0; i < params.size(); i++)
                used.push_back(random() % 4 != 0);
            ASSERT_EQ(units_of(params, used), units_expected(params, used, r.rank)) << "round " << round;
        }
    });
}

TEST(ExchangeUnits, TheirTurnComesAsSumsAreComplete) {
    Job job(1);
    job.run([](Rank &r) {
        std::vector<Param<>> params = registered(r, {5000, 5000, 5000, 5000});
        std::vector<castor_tensor *> tensors = tensors_of(params);
        std::vector<float> gradient(5000, 1.f);
        const std::vector<uint8_t> all = {1, 1, 1, 1}, some = {1, 1, 0, 1};
        uint64_t ticket = 0;
        for (size_t i : {3, 1}) {
            ASSERT_EQ(gradient_add(tensors[i], gradient.data(), 1, ADD_USED, &ticket), CASTOR_OK);
        }
        while (inside_gradients_done(r.store) < ticket)
            usleep(200);
        EXPECT_EQ(castor_sums_complete(tensors.data(), 4, all.data()), 1u) << "the third one is not";
        EXPECT_EQ(castor_sums_complete(tensors.data(), 4, some.data()), 2u);
    });
}

uint64_t layout_of(int what, const std::vector<Param<>> &params) {
    std::vector<castor_tensor *> tensors = tensors_of(params);
    uint64_t digest = 1;
    EXPECT_EQ(castor_node_layout(what, tensors.data(), uint32_t(tensors.size()), &digest), CASTOR_OK);
    EXPECT_LT(digest, uint64_t(1) << 63);
    return digest;
}

// The stores of one process stand for two nodes.
void other_open(const Rank &r, const char *name, Rank &other) {
    other = r;
    ASSERT_EQ(castor_store_open(name, nullptr, r.rank, r.world, r.world, &other.store), CASTOR_OK)
        << error_text();
    ASSERT_EQ(castor_store_shard(other.store, 1, 2), CASTOR_OK);
}

TEST(ExchangeLayout, IsThatOfAnotherNodeWhereParametersLieAlike) {
    Job job(1);
    job.run([](Rank &r) {
        const std::vector<size_t> numels = {5000, 40, 3000, 17, 8192, 3};
        ASSERT_EQ(castor_store_shard(r.store, 0, 2), CASTOR_OK);
        Rank alike{}, differs{};
        other_open(r, "alike", alike);
        other_open(r, "differs", differs);
        std::vector<Param<>> here = registered(r, numels), there = registered(alike, numels), elsewhere;
        EXPECT_EQ(castor_agreed_take(r.store), castor_agreed_take(alike.store));
        std::vector<castor_description> d;
        for (size_t i = 0; i < numels.size(); i++) {
            elsewhere.push_back(param_make<float>(numels[i], 1));
            d.push_back({elsewhere[i].data, numels[i], 0, i == 2 ? 0 : CASTOR_DESCRIPTION_WHOLE,
                         0}); // one is not shared
        }
        std::vector<castor_tensor *> out(d.size());
        ASSERT_EQ(castor_register(differs.store, d.data(), uint32_t(d.size()), out.data()), CASTOR_OK);
        for (size_t i = 0; i < d.size(); i++)
            elsewhere[i].tensor = out[i];
        for (int what : {CASTOR_EXCHANGE_SUMS, CASTOR_EXCHANGE_PARAMETERS}) {
            EXPECT_EQ(layout_of(what, here), layout_of(what, there)) << what;
            EXPECT_NE(layout_of(what, here), layout_of(what, elsewhere)) << what;
        }
        EXPECT_NE(castor_agreed_take(differs.store), 0u);
    });
}

TEST(ExchangeLayout, ChangesWithTheOrderInAChunk) {
    Job job(1);
    job.run([](Rank &r) {
        std::vector<Param<>> params = registered(r, {4096, 4096}), turned = {params[1], params[0]};
        EXPECT_NE(layout_of(CASTOR_EXCHANGE_SUMS, params), layout_of(CASTOR_EXCHANGE_SUMS, turned));
    });
}

// What a store says after this much.
uint64_t agreed_after(const Rank &r, Param<> &p, double value, bool moved, uint64_t states = 0) {
    EXPECT_EQ(castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr), CASTOR_OK);
    uint8_t flag;
    if (moved) {
        castor_binding_claim claim = {
            p.data, 0, p.info.bytes, states, CASTOR_BINDING_WHOLE | CASTOR_BINDING_STATES_AWAY, 0};
        EXPECT_EQ(castor_bindings_settle(r.store, &p.tensor, &claim, 1, &flag), CASTOR_OK);
    }
    EXPECT_EQ(castor_publish_end(r.store, &p.tensor, 1, &flag), CASTOR_OK);
    return castor_agreed_take(r.store);
}

TEST(ExchangeAgreed, IsOfEverythingThatNodesMustHaveInCommon) {
    Job job(1);
    job.run([](Rank &r) {
        EXPECT_EQ(castor_agreed_take(r.store), 0u);
        Param<> p = registered(r, {5000})[0];
        uint64_t of_registration = castor_agreed_take(r.store);
        EXPECT_NE(of_registration, 0u);
        EXPECT_EQ(castor_agreed_take(r.store), 0u) << "it begins anew";
        uint64_t of_one = agreed_after(r, p, 1, false);
        EXPECT_LT(of_one, uint64_t(1) << 63);
        EXPECT_EQ(agreed_after(r, p, 1, false), of_one);
        EXPECT_NE(agreed_after(r, p, 1 + 1e-15, false), of_one);
        uint64_t of_move = agreed_after(r, p, 1, true);
        EXPECT_NE(of_move, of_one);
        EXPECT_EQ(agreed_after(r, p, 1, true), of_move);
        EXPECT_NE(agreed_after(r, p, 1, true, 5), of_move) << "with other states";
        p.data[3] = -3;
        EXPECT_NE(agreed_after(r, p, 1, true), of_move) << "with another value";
    });
}

TEST(ExchangeAgreed, StatesThatOneNodeKeepsAreNotCompared) {
    Job job(1);
    job.run([](Rank &r) {
        ASSERT_EQ(castor_store_shard(r.store, 0, 2), CASTOR_OK);
        Param<> p = registered(r, {5000})[0];
        castor_agreed_take(r.store);
        EXPECT_EQ(agreed_after(r, p, 1, true, 5), agreed_after(r, p, 1, true, 0));
    });
}

} // namespace
