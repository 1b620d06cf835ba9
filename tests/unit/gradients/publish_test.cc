// Parameters: registration, publication, and how tensors come and go.
#include <fcntl.h>
#include <sys/stat.h>
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

TEST(StoreRegister, RankZerosValuesWinAndOwnersAreEven) {
    Job job(4);
    job.run([](Rank &r) {
        std::vector<Param<>> p;
        for (size_t i = 0; i < 16; i++)
            p.push_back(param_make(4096 + i, float(r.rank)));
        p.push_back(param_make(100, float(r.rank)));
        params_register(r, p);
        uint64_t bytes[kRanksMax] = {};
        for (auto &q : p) {
            bool shared = q.numel * sizeof(float) >= kPage;
            EXPECT_EQ(q.info.shared, shared);
            EXPECT_EQ(q.data[5], 5.0f);
            if (shared) {
                bytes[q.info.owner] += q.info.bytes;
                EXPECT_EQ(q.info.binding, q.data);
                EXPECT_EQ(q.alias()[7], 7.0f);
            }
        }
        for (int rank = 1; rank < r.world; rank++)
            EXPECT_NEAR(double(bytes[rank]), double(bytes[0]), 4 * 16 * 4);
        EXPECT_EQ(inside_check(r.store), CASTOR_OK) << error_text();
    });
}

// Memory that is not the arena's, or part of a larger storage, stays where it is.
TEST(StoreRegister, ForeignMemoryOnOneRankIsNobodysToMap) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<float> foreign(3000, 1.0f);
        Param<> ours = param_make(3000), part = param_make(3000);
        castor_description d[2] = {{r.rank ? foreign.data() : ours.data, 3000, 0, 1, 0},
                                   {part.data, 3000, 0, r.rank == 0, 0}};
        castor_tensor *t[2];
        ASSERT_EQ(castor_register(r.store, d, 2, t), CASTOR_OK) << error_text();
        for (castor_tensor *one : t) {
            castor_tensor_info info;
            castor_tensor_get(one, &info);
            EXPECT_EQ(info.shared, 0);
            EXPECT_EQ(info.binding, nullptr);
        }
        sum_run(r, ours = Param<>{ours.data, 3000, t[0], {}}, foreign.data());
    });
}

class StoreMismatch : public testing::TestWithParam<int> {};

// The same error on every rank, whatever lay in the exchange before.
TEST_P(StoreMismatch, IsOneErrorOnEveryRank) {
    Job job(3);
    job.run([](Rank &r) {
        std::vector<char> noise(4096, char(r.rank + 1)), all(3 * 4096);
        ASSERT_EQ(castor_gather(r.store, noise.data(), noise.size(), all.data(), "noise"), CASTOR_OK);
        int odd = GetParam() / 3;
        bool me = r.rank == odd;
        std::vector<castor_description> d;
        for (int i = 0; i < 3; i++)
            d.push_back({arena_alloc(8192), 1024, 0, 1, 0});
        if (me && GetParam() % 3 == 0)
            d.push_back({arena_alloc(8192), 1024, 0, 1, 0});
        if (me && GetParam() % 3 == 1)
            d[1].numel = 1000;
        if (me && GetParam() % 3 == 2)
            d[2].dtype = 3;
        castor_tensor *out[4];
        EXPECT_EQ(castor_register(r.store, d.data(), uint32_t(d.size()), out), CASTOR_ERR_MISMATCH);
        snprintf(r.board->text[r.rank], sizeof r.board->text[0], "%s", error_text());
        flag_raise(r.board, 0);
        flag_await(r.board, 0, 3);
        EXPECT_STREQ(r.board->text[r.rank], r.board->text[0]);
        std::string name = "rank " + std::to_string(odd ? odd : 1);
        EXPECT_NE(strstr(error_text(), name.c_str()), nullptr) << error_text();
        EXPECT_NE(strstr(error_text(), "Build the same model on every rank"), nullptr) << error_text();
    });
}

INSTANTIATE_TEST_SUITE_P(RankAndWhat, StoreMismatch, testing::Range(0, 9));

// As many as hundreds of small layers have. The time is that of this thread alone, whatever else the machine does.
TEST(StorePublish, RegistrationOfManyTensorsIsLinear) {
    Job job(1);
    job.run([](Rank &r) {
        const size_t count = 200000;
        std::vector<float> values(4 * count, 1.f);
        std::vector<castor_description> d;
        for (size_t i = 0; i < count; i++)
            d.push_back({&values[4 * i], 4, 0, 0, 0});
        d[count - 1].address = &values[0]; // tied to the first
        std::vector<castor_tensor *> out(count);
        timespec begin, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        ASSERT_EQ(castor_register(r.store, d.data(), count, out.data()), CASTOR_OK) << error_text();
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        EXPECT_LT(end.tv_sec - begin.tv_sec, 6) << "comparing each with each takes 20 seconds and more";
    });
}

// A wait whose end is a time of day lasts as long as somebody sets the clock back.
TEST(StorePublish, WaitsUnderABudgetDoNotAskForTheTimeOfDay) {
    Job job(1);
    job.options = {"CASTOR_MEMORY_BUDGET=4M"};
    job.run([](Rank &r) {
        uint32_t before = inside_time_of_day_calls();
        usleep(200000); // castor-budget waits again and again
        castor_store_leave(r.store);
        EXPECT_EQ(inside_time_of_day_calls(), before);
    });
}

TEST(StorePublish, OwnersBytesAreEverybodys) {
    Job job(3);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(300000)};
        params_register(r, p);
        for (int round = 1; round <= 20; round++) {
            uint8_t changed = 2;
            step_run<float>(
                r, p[0],
                [&](float *alias) {
                    for (size_t i = 0; i < 300000; i++)
                        alias[i] += 1;
                },
                &changed);
            EXPECT_EQ(changed, 1);
            ASSERT_EQ(p[0][299999], float(999 + round));
            ASSERT_EQ(p[0][1000], float(round));
        }
        uint8_t changed;
        double value = 0;
        ASSERT_EQ(castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr), CASTOR_OK);
        ASSERT_EQ(castor_publish_end(r.store, &p[0].tensor, 1, &changed), CASTOR_OK);
        EXPECT_EQ(changed, 0) << "a step that published nothing";
    });
}

TEST(StorePublish, EditsOfTheOwnerGoToTheStoreAndOthersEditsAreDropped) {
    Job job(3);
    job.run([](Rank &r) {
        // Two parameters of one owner each; only the first is stepped.
        std::vector<Param<>> p = {param_make(5000), param_make(5000)};
        params_register(r, p);
        for (auto &q : p)
            q[4000] = float(100 + r.rank);
        r.barrier();
        EXPECT_EQ(p[0][4000], float(100 + r.rank)) << "edits are this rank's own";
        step_run<float>(r, p[0], [](float *alias) { alias[1] = -1; });
        EXPECT_EQ(p[0][1], -1.0f);
        EXPECT_EQ(p[0][4000], float(100 + p[0].info.owner)) << "the owner's edit is everybody's";
        EXPECT_EQ(p[1][4000], float(100 + r.rank)) << "what was not published keeps its edits";
    });
}

TEST(StorePublish, RanksSayNumbersOfTheirOwnAtTheBeginningOfAStep) {
    Job job(3);
    job.run([](Rank &r) {
        for (int round = 0; round < 500; round++) {
            const double agreed[2] = {0.5, double(round)}, said[3] = {double(r.rank), double(round), -1.5};
            double every[9];
            ASSERT_EQ(castor_step_begin(r.store, agreed, nullptr, 2, said, 3, every), CASTOR_OK)
                << error_text();
            for (int rank = 0; rank < 3; rank++) {
                ASSERT_EQ(every[3 * rank], rank);
                ASSERT_EQ(every[3 * rank + 1], round);
                ASSERT_EQ(every[3 * rank + 2], -1.5);
            }
        }
        std::vector<double> many(CASTOR_SAID_MAX + 1), every(3 * many.size());
        double value = 0;
        EXPECT_EQ(
            castor_step_begin(r.store, &value, nullptr, 1, many.data(), CASTOR_SAID_MAX + 1, every.data()),
            CASTOR_ERR_ARGUMENT);
        EXPECT_NE(strstr(error_text(), "a rank says 17 numbers, 16 is the most"), nullptr) << error_text();
    });
}

TEST(StorePublish, ValuesThatDifferEndTheStepOnEveryRank) {
    Job job(3);
    job.run([](Rank &r) {
        double rate = r.rank == 1 ? 0.5 : 0.25;
        const char *label = "the learning rate of group 0";
        double said = r.rank, every[3];
        EXPECT_EQ(castor_step_begin(r.store, &rate, &label, 1, &said, 1, every), CASTOR_ERR_MISMATCH);
        EXPECT_NE(strstr(error_text(), "0.5 on rank 1"), nullptr) << error_text();
        EXPECT_NE(strstr(error_text(), label), nullptr) << error_text();
        EXPECT_EQ(castor_barrier(r.store, "the next call"), CASTOR_OK) << "all came";
    });
}

TEST(StorePublish, DeduplicateSharesEqualPagesAndKeepsDifferentOnes) {
    Job job(3);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(4096)}; // four pages
        params_register(r, p);
        for (size_t i = 0; i < 4096; i++)
            p[0][i] = -float(i); // every rank the same
        p[0][2048] = float(r.rank);
        ASSERT_EQ(castor_publish_deduplicate(r.store, &p[0].tensor, 1, "a replicated step"), CASTOR_OK);
        for (size_t i = 0; i < 4096; i++)
            ASSERT_EQ(p[0][i], i == 2048 ? float(r.rank) : -float(i));
        r.barrier();
        // What is shared shows the owner's next write; the page that differs does not.
        if (p[0].mine(r))
            for (size_t at : {0, 1024, 2048 + 1, 3072})
                p[0].alias()[at] = 42;
        r.barrier();
        EXPECT_EQ(p[0][0], 42.0f);
        EXPECT_EQ(p[0][1024], 42.0f);
        EXPECT_EQ(p[0][3072], 42.0f);
        EXPECT_EQ(p[0][2049], p[0].mine(r) ? 42.0f : -2049.0f);
    });
}

TEST(StoreTied, TwoParametersOfOneBlockStayOne) {
    Job job(2);
    job.run([](Rank &r) {
        Param<> a = param_make(5000, float(r.rank));
        std::vector<Param<>> p = {a, param_make(3000), a};
        params_register(r, p);
        EXPECT_EQ(p[0].info.param_alias, p[2].info.param_alias);
        EXPECT_NE(p[0].info.sum, p[2].info.sum) << "each has a gradient of its own";
        EXPECT_EQ(p[0].info.owner, p[2].info.owner);
        step_run<float>(r, p[2], [](float *alias) { alias[4999] = 11; });
        EXPECT_EQ(a[4999], 11.0f);
        uint64_t before = inside_resident_bytes(r.store, CHUNK_PARAM);
        r.barrier();
        castor_tensor_forget(p[0].tensor);
        r.barrier();
        EXPECT_EQ(a[4999], 11.0f) << "the other one is still there";
        castor_tensor_forget(p[2].tensor);
        r.barrier();
        EXPECT_EQ(a[4999], 11.0f) << "and the script may hold the block for as long as it likes";
        EXPECT_EQ(inside_resident_bytes(r.store, CHUNK_PARAM), before);
        r.barrier();
        arena_free(a.data);
        r.barrier();
        EXPECT_EQ(inside_resident_bytes(r.store, CHUNK_PARAM), before - 5 * kPage);
        EXPECT_TRUE(arena_check());
    });
}

TEST(StoreForget, MemoryGoesBackWhenNoRankHoldsAnything) {
    Job job(3);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(kMiB), param_make(kMiB)};
        params_register(r, p);
        std::vector<float> g(kMiB, 1.0f);
        sum_run(r, p[0], g.data());
        castor_window *w;
        void *address;
        ASSERT_EQ(window_take(p[0].tensor, &w, &address), CASTOR_OK);
        auto resident = [&](chunk_kind kind) { return inside_resident_bytes(r.store, kind); };
        r.barrier();
        uint64_t param = resident(CHUNK_PARAM), grad = resident(CHUNK_GRAD);
        EXPECT_EQ(param, 8 * kMiB);
        r.barrier();
        castor_tensor_forget(p[0].tensor);
        r.barrier();
        EXPECT_EQ(static_cast<float *>(address)[77], 3.0f) << "an old gradient keeps its values";
        EXPECT_EQ(p[0][77], 77.0f) << "so does a state_dict";
        EXPECT_EQ(resident(CHUNK_PARAM), param);
        r.barrier();
        arena_free(p[0].data);
        castor_window_return(w);
        r.barrier();
        EXPECT_EQ(resident(CHUNK_PARAM), param - 4 * kMiB);
        EXPECT_EQ(resident(CHUNK_GRAD), grad - 4 * kMiB);
        EXPECT_EQ(p[1][77], 77.0f);
    });
}

TEST(StoreRelease, KeepsWhatThisRankSees) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(5000)};
        params_register(r, p);
        p[0][10] = float(50 + r.rank);
        ASSERT_EQ(castor_tensor_release(p[0].tensor), CASTOR_OK);
        r.barrier();
        if (p[0].mine(r))
            p[0].alias()[4000] = -1; // no longer seen
        r.barrier();
        EXPECT_EQ(p[0][4000], 0.0f);
        EXPECT_EQ(p[0][10], float(50 + r.rank));
        p[0].look();
        EXPECT_EQ(p[0].info.shared, 0);
        arena_free(p[0].data);
        EXPECT_TRUE(arena_check());
    });
}

TEST(StoreRebind, TheNewBlockShowsTheStoreAndTheOldOneKeepsItsValues) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<Param<>> p = {param_make(5000)};
        params_register(r, p);
        p[0][10] = float(50 + r.rank);
        float *old = p[0].data, *fresh = static_cast<float *>(arena_alloc(5000 * sizeof(float)));
        std::vector<float> foreign(5000);
        EXPECT_EQ(inside_rebind(p[0].tensor, foreign.data()), 0);
        EXPECT_EQ(inside_rebind(p[0].tensor, old), 1) << "nothing to do";
        EXPECT_EQ(inside_rebind(p[0].tensor, fresh), 1) << error_text();
        EXPECT_EQ(fresh[10], 10.0f);
        step_run<float>(r, p[0], [](float *alias) { alias[11] = -11; });
        EXPECT_EQ(fresh[11], -11.0f);
        EXPECT_EQ(old[11], 11.0f);
        EXPECT_EQ(old[10], float(50 + r.rank));
        arena_free(old);
        EXPECT_EQ(fresh[11], -11.0f);
        arena_free(fresh);
        EXPECT_TRUE(arena_check());
    });
}

// ---- where the bytes are ----

TEST(StoreChunks, OfAnOffloadDirectoryAreUnlinkedFilesInIt) {
    char directory[] = "/tmp/castor-store-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    int probe = open(directory, O_TMPFILE | O_RDWR, 0600);
    if (probe < 0) {
        rmdir(directory);
        GTEST_SKIP() << "the file system of /tmp has no O_TMPFILE";
    }
    close(probe);
    Job job(2);
    job.options = {std::string("CASTOR_OFFLOAD_DIR=") + directory};
    job.run([&](Rank &r) {
        std::vector<Param<>> p = {param_make(50000)};
        params_register(r, p);
        step_run<float>(r, p[0], [](float *alias) { alias[49999] = 3; });
        EXPECT_EQ(p[0][49999], 3.0f);
        struct stat file, parent;
        ASSERT_EQ(fstat(inside_chunk_file(r.store, CHUNK_PARAM), &file), 0);
        ASSERT_EQ(stat(directory, &parent), 0);
        EXPECT_EQ(file.st_nlink, 0u);
        EXPECT_EQ(file.st_mode & 0777, 0600u);
        EXPECT_EQ(file.st_dev, parent.st_dev);
        EXPECT_GE(inside_resident_bytes(r.store, CHUNK_PARAM), 50000 * sizeof(float));
    });
    EXPECT_EQ(rmdir(directory), 0) << "something was left behind in " << directory;
}

TEST(StoreChunks, AnOffloadDirectoryThatCannotBeIsNamed) {
    Job job(1);
    job.options = {"CASTOR_OFFLOAD_DIR=/nowhere/at/all"};
    job.open = false;
    job.run([](Rank &r) {
        EXPECT_EQ(castor_store_open("group", nullptr, 0, 1, 1, &r.store), CASTOR_ERR_SYSTEM);
        EXPECT_NE(strstr(error_text(), "CASTOR_OFFLOAD_DIR=/nowhere/at/all"), nullptr) << error_text();
    });
}

} // namespace
