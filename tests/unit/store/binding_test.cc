// Bindings: where a step finds a parameter elsewhere, its binding moves or ends, as all ranks agree.
#include "tests/unit/support/store_ranks.h"

namespace store_test {
namespace {

const uint64_t LAYOUT = 7, OTHER = 8;

template <typename T> castor_binding_claim claim_of(const Param<T> &p, T *at, uint64_t layout = LAYOUT) {
    return {at, layout, p.numel * sizeof(T), 0, CASTOR_BINDING_WHOLE, 0};
}

Param<> registered(Rank &r, size_t numel) {
    Param<> p = param_make(numel);
    castor_description d = {p.data, p.numel, 0, CASTOR_DESCRIPTION_WHOLE, LAYOUT};
    EXPECT_EQ(castor_register(r.store, &d, 1, &p.tensor), CASTOR_OK) << error_text();
    p.look();
    return p;
}

int settled(Rank &r, Param<> &p, const castor_binding_claim &claim) {
    uint8_t verdict = 99;
    EXPECT_EQ(castor_bindings_settle(r.store, &p.tensor, &claim, 1, &verdict), CASTOR_OK) << error_text();
    return verdict;
}

float *copy_of(const Param<> &p) {
    auto *block = static_cast<float *>(arena_alloc(p.numel * sizeof(float)));
    memcpy(block, p.data, p.numel * sizeof(float));
    return block;
}

bool away(const Param<> &p, void *address, uint64_t layout = LAYOUT) {
    uint8_t flag;
    return castor_bindings_check(&p.tensor, &address, &layout, 1, &flag) != 0;
}

TEST(Binding, IsToTheBlockInItsLayoutAndNotTheAddress) {
    Job job(1);
    job.run([](Rank &r) {
        Param<> p = registered(r, 5000);
        EXPECT_FALSE(away(p, p.data));
        EXPECT_TRUE(away(p, p.data, OTHER));
        float *elsewhere = copy_of(p);
        EXPECT_TRUE(away(p, elsewhere));
        arena_free(p.data);
        EXPECT_TRUE(away(p, p.data)) << "another block may begin there by now";
        arena_free(elsewhere);
    });
}

TEST(Binding, IsToAWholeBlockOfTheArenaWithPagesOfItsOwn) {
    Job job(1);
    job.run([](Rank &r) {
        EXPECT_FALSE(castor_is_paged(kPage - 1));
        EXPECT_TRUE(castor_is_paged(kPage));
        Param<> p = param_make(5000);
        const uint64_t bytes = 5000 * sizeof(float);
        EXPECT_TRUE(castor_is_mappable(p.data, bytes, 1));
        EXPECT_FALSE(castor_is_mappable(p.data, bytes, 0)) << "something else is in its storage";
        EXPECT_FALSE(castor_is_mappable(p.data, kPage - 1, 1));
        EXPECT_FALSE(castor_is_mappable(p.data + 1024, kPage, 1)) << "within a block";
        EXPECT_FALSE(castor_is_mappable(p.data, bytes + kPage, 1)) << "beyond its block";
        alignas(kPage) static char foreign[2 * kPage];
        EXPECT_FALSE(castor_is_mappable(foreign, sizeof foreign, 1));
        castor_description d = {p.data, p.numel, 0, CASTOR_DESCRIPTION_WHOLE, LAYOUT};
        ASSERT_EQ(castor_register(r.store, &d, 1, &p.tensor), CASTOR_OK);
        EXPECT_FALSE(castor_is_mappable(p.data, bytes, 1)) << "a tensor is bound to it already";
        ASSERT_EQ(castor_tensor_unbind(p.tensor), CASTOR_OK);
        EXPECT_TRUE(castor_is_mappable(p.data, bytes, 1));
    });
}

TEST(Binding, MovesToEqualValues) {
    Job job(2);
    job.run([](Rank &r) {
        Param<> p = registered(r, 5000);
        float *fresh = copy_of(p), *old = p.data;
        fresh[3] = -3;
        EXPECT_EQ(settled(r, p, claim_of(p, fresh)), CASTOR_BINDING_MOVES);
        EXPECT_FALSE(away(p, fresh));
        step_run<float>(r, p, [](float *alias) { alias[11] = -11; });
        EXPECT_EQ(fresh[11], -11.0f);
        EXPECT_EQ(fresh[3], -3.0f);
        EXPECT_EQ(old[11], 11.0f);
        // ... and back again, where the block has pages of its own since then.
        EXPECT_EQ(settled(r, p, claim_of(p, old)), CASTOR_BINDING_MOVES);
        EXPECT_EQ(settled(r, p, claim_of(p, old)), CASTOR_BINDING_STAYS);
        EXPECT_EQ(fresh[11], -11.0f);
        arena_free(fresh);
        arena_free(old);
        EXPECT_TRUE(arena_check());
    });
}

TEST(Binding, OfOneRankAloneMovesToEqualValues) {
    Job job(2);
    job.run([](Rank &r) {
        Param<> p = registered(r, 5000);
        float *now = r.rank == 1 ? copy_of(p) : p.data;
        EXPECT_EQ(settled(r, p, claim_of(p, now)), CASTOR_BINDING_MOVES);
        step_run<float>(r, p, [](float *alias) { alias[11] = -11; });
        EXPECT_EQ(now[11], -11.0f);
    });
}

TEST(Binding, EndsWithOtherValuesLayoutsAndMemory) {
    Job job(2);
    job.run([](Rank &r) {
        for (int what = 0; what < 4; what++) {
            Param<> p = registered(r, 5000);
            float *now = what < 3 ? copy_of(p) : p.data;
            std::vector<float> foreign(p.data, p.data + p.numel);
            castor_binding_claim claim = claim_of(p, now);
            if (what == 0)
                now[4999] = float(r.rank);
            if (what == 1 && r.rank)
                claim.layout = OTHER;
            if (what == 2)
                claim.address = now = foreign.data();
            if (what == 3 && r.rank)
                claim.flags |= CASTOR_BINDING_STATES_AWAY | CASTOR_BINDING_STATES_REACHED;
            EXPECT_EQ(settled(r, p, claim), CASTOR_BINDING_ENDS) << what;
            EXPECT_EQ(now[4999], what == 0 ? float(r.rank) : 999.0f);
            p.look();
            EXPECT_EQ(p.info.shared, 0);
            EXPECT_FALSE(away(p, now));
        }
    });
}

TEST(Binding, EndsWhereTensorsOverlap) {
    Job job(1);
    job.run([](Rank &r) {
        Param<> p = registered(r, 5000), q = registered(r, 3000);
        castor_tensor *tensors[] = {p.tensor, q.tensor};
        castor_binding_claim claims[] = {claim_of(p, p.data), claim_of(q, p.data + 100)};
        uint8_t verdicts[2];
        ASSERT_EQ(castor_bindings_settle(r.store, tensors, claims, 2, verdicts), CASTOR_OK);
        EXPECT_EQ(verdicts[0], CASTOR_BINDING_ENDS);
        EXPECT_EQ(verdicts[1], CASTOR_BINDING_ENDS);
    });
}

TEST(Binding, AStateKeepsWhatItShowsWhenItsParameterIsForgotten) {
    Job job(1);
    job.run([](Rank &r) {
        Param<> p = registered(r, 5000);
        uint64_t offset;
        void *alias, *view;
        ASSERT_EQ(castor_state_allocate(p.tensor, 8192, &offset, &alias), CASTOR_OK);
        memset(alias, 5, 8192);
        ASSERT_EQ(castor_state_view(p.tensor, offset, 8192, &view), CASTOR_OK);
        arena_free(p.data);
        castor_tensor_forget(p.tensor);
        registered(r, 100); // which gives the states of forgotten tensors back
        EXPECT_EQ(static_cast<char *>(view)[8191], 5);
    });
}

} // namespace
} // namespace store_test
