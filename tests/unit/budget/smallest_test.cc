// A budget that is too small: the error names the smallest one that works. The same job runs under it, and is refused under a
// smaller one.
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

struct Model {
    int world;
    std::vector<size_t> sizes; // of the parameters, in KiB
    int states;                // of each
    size_t other_mib;          // other data of each rank
    bool divisible;
    std::vector<std::string> options;
};

// Two steps, as an optimizer makes them. Returns what refused them on rank 0, or on another rank; empty: nothing did.
std::string steps_under(const Model &model, unsigned mib) {
    Job job(model.world);
    job.options = model.options;
    job.options.push_back("CASTOR_MEMORY_BUDGET=" + std::to_string(mib) + "M");
    job.run([&](Rank &r) {
        char *other = static_cast<char *>(arena_alloc(model.other_mib * kMiB + kPage));
        memset(other, 1, model.other_mib * kMiB + kPage);
        std::vector<Param<>> all;
        for (size_t kib : model.sizes)
            all.push_back(param_make(kib * 256));
        params_register(r, all);
        std::vector<castor_tensor *> own;
        std::vector<uint64_t> bytes;
        for (Param<> &p : all)
            if (p.mine(r)) {
                own.push_back(p.tensor);
                bytes.push_back(p.info.bytes);
            }
        std::vector<uint32_t> ends(own.size() + 1);
        for (int step = 0; step < 2; step++) {
            for (Param<> &p : all)
                sum_run(r, p, p.data);
            double value = 1;
            ASSERT_EQ(castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr), CASTOR_OK);
            uint32_t count = uint32_t(own.size()), parts = 1;
            if (model.divisible)
                parts = castor_part_divide(r.store, bytes.data(), count, 0, ends.data());
            else
                ends[0] = count;
            for (uint32_t i = 0, begin = 0; i < parts; begin = ends[i++]) {
                int status = castor_part_begin(r.store, 7, i, &own[begin], ends[i] - begin);
                if (status != CASTOR_OK && !r.board->text[r.rank][0]) {
                    EXPECT_EQ(status, CASTOR_ERR_MEMORY);
                    snprintf(r.board->text[r.rank], sizeof r.board->text[0], "%s", error_text());
                }
                for (uint32_t k = begin; k < ends[i] && status == CASTOR_OK; k++)
                    for (int state = 0; step == 0 && state < model.states; state++) {
                        uint64_t offset;
                        void *alias;
                        ASSERT_EQ(castor_state_allocate(own[k], bytes[k], &offset, &alias), CASTOR_OK);
                    }
                ASSERT_EQ(castor_part_end(r.store), CASTOR_OK);
            }
            std::vector<castor_tensor *> tensors;
            for (Param<> &p : all)
                tensors.push_back(p.tensor);
            std::vector<uint8_t> changed(tensors.size());
            ASSERT_EQ(castor_publish_end(r.store, tensors.data(), uint32_t(tensors.size()), changed.data()),
                      CASTOR_OK)
                << error_text();
            bool refused = false;
            for (int rank = 0; rank < r.world; rank++)
                refused = refused || r.board->text[rank][0];
            if (refused)
                break;
        }
    });
    for (int rank = 0; rank < model.world; rank++)
        if (job.board->text[rank][0])
            return job.board->text[rank];
    return "";
}

unsigned named_in(const std::string &text) {
    size_t at = text.find("the smallest that works is CASTOR_MEMORY_BUDGET=");
    EXPECT_NE(at, std::string::npos) << text;
    return at == std::string::npos ? 0 : unsigned(atoi(text.c_str() + text.find('=', at) + 1));
}

class SmallestBudget : public testing::TestWithParam<Model> {};

TEST_P(SmallestBudget, WorksAndASmallerOneDoesNot) {
    const Model &model = GetParam();
    std::string text = steps_under(model, 4);
    for (const char *word : {"no room for chunk", "it needs", "of which chunks in use have"})
        EXPECT_NE(text.find(word), std::string::npos) << text;
    EXPECT_NE(text.find("if the optimizer has two states, as Adam has"), std::string::npos) << text;
    unsigned named = named_in(text);
    EXPECT_EQ(steps_under(model, named), "");
    // It has room for the freed blocks that ranks may keep (BUDGET_FREED_SHARE), which a run need not have.
    std::string less = steps_under(model, named - named / 32 - 2);
    EXPECT_NE(named_in(less), 0u);
}

// Chunks of 2 MiB; a large parameter has one of each kind for itself: 24 KiB of them are whole units of 2 MiB.
INSTANTIATE_TEST_SUITE_P(
    Models, SmallestBudget,
    testing::Values(Model{1, {12288, 16, 16, 1024}, 2, 1, true, {}},
                    Model{1, std::vector<size_t>(60, 1024), 2, 40, true, {}},
                    Model{1, std::vector<size_t>(30, 1024), 2, 1, false, {}},
                    Model{2, {9000, 3000, 3000, 3000, 64}, 2, 3, true, {}},
                    Model{1, {6000, 512, 512, 100}, 2, 2, true, {"CASTOR_CHUNK_SIZE=4M"}}));

} // namespace
