// Where ranks meet: barriers, values that must agree, gather, broadcast, and operations that all do or none.
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include "tests/unit/support/store_ranks.h"

namespace {

using namespace store_test;

TEST(StoreMeeting, BarrierLetsNobodyThroughBeforeAllHaveCome) {
    Job job(4);
    job.run([](Rank &r) {
        for (uint32_t round = 1; round <= 200; round++) {
            r.board->flag[r.rank] = round;
            r.barrier();
            for (int other = 0; other < r.world; other++)
                ASSERT_GE(r.board->flag[other].load(), round) << "rank " << other;
            r.barrier();
        }
    });
}

TEST(StoreMeeting, BarrierTimesOutWithTheRankNamed) {
    Job job(3);
    job.timeout_seconds = 0.5;
    job.run([](Rank &r) {
        if (r.rank == 2) {
            castor_activity_set(r.store, INSIDE_COLLECTIVE);
            flag_await(r.board, 0, 2);
            return;
        }
        ASSERT_NE(castor_barrier(r.store, "the test's own barrier"), CASTOR_OK);
        EXPECT_NE(strstr(error_text(), "for rank 2"), nullptr) << error_text();
        EXPECT_NE(strstr(error_text(), "the test's own barrier"), nullptr) << error_text();
        EXPECT_NE(strstr(error_text(), "in a collective of the script's"), nullptr) << error_text();
        flag_raise(r.board, 0);
    });
}

TEST(StoreMeeting, AgreeNamesRanksAndValuesOnEveryRank) {
    Job job(3);
    job.run([](Rank &r) {
        const double same[2] = {0.5, 3};
        ASSERT_EQ(inside_agree(r.store, "the first look", same, nullptr, 2), CASTOR_OK) << error_text();
        r.barrier();
        const double different[2] = {0.5, r.rank == 2 ? 0.25 : 0.125};
        const char *labels[2] = {"the first", "the learning rate"};
        ASSERT_EQ(inside_agree(r.store, "the second look", different, labels, 2), CASTOR_ERR_MISMATCH);
        for (const char *part : {"the second look", "the learning rate", "0.125 on rank 0", "0.25 on rank 2"})
            EXPECT_NE(strstr(error_text(), part), nullptr) << part << " in: " << error_text();
        r.barrier();
        ASSERT_EQ(inside_agree(r.store, "the third look", same, nullptr, r.rank == 1 ? 1 : 2),
                  CASTOR_ERR_MISMATCH);
        EXPECT_NE(strstr(error_text(), "rank 0 has 2 values, rank 1 has 1"), nullptr) << error_text();
    });
}

TEST(StoreMeeting, GatherAndBroadcast) {
    Job job(4);
    job.run([](Rank &r) {
        for (int round = 0; round < 50; round++) {
            const int64_t mine[3] = {r.rank, round, r.rank * round};
            int64_t all[4][3];
            ASSERT_EQ(castor_gather(r.store, mine, sizeof mine, all, "a gather"), CASTOR_OK) << error_text();
            for (int other = 0; other < r.world; other++) {
                EXPECT_EQ(all[other][0], other);
                EXPECT_EQ(all[other][2], other * round);
            }
            std::vector<char> large(1000003, char(r.rank + round));
            ASSERT_EQ(castor_broadcast(r.store, large.data(), large.size(), "a broadcast"), CASTOR_OK);
            EXPECT_EQ(large, std::vector<char>(large.size(), char(round)));
        }
        int nothing;
        EXPECT_EQ(castor_gather(r.store, nullptr, 0, &nothing, "an empty gather"), CASTOR_OK);
    });
}

// Small ones need no second barrier: a rank that goes on at once must not write what a slow one has yet to read. They alternate
// with ones that go through the exchange.
TEST(StoreMeeting, GathersOfAllSizesOneAfterTheOther) {
    Job job(4);
    job.run([](Rank &r) {
        std::mt19937 random(7);
        for (int round = 0; round < 3000; round++) {
            size_t count = 1 + random() % (CASTOR_SAID_MAX + 2);
            std::vector<double> mine(count), all(count * 4);
            for (size_t i = 0; i < count; i++)
                mine[i] = r.rank * 1e6 + round + double(i) / 64;
            ASSERT_EQ(castor_gather(r.store, mine.data(), count * sizeof(double), all.data(), "a gather"),
                      CASTOR_OK);
            for (size_t i = 0; i < all.size(); i++)
                ASSERT_EQ(all[i], double(i / count) * 1e6 + round + double(i % count) / 64)
                    << "round " << round;
            if (round % 100 == r.rank)
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    });
}

TEST(StoreMeeting, GatherOfDifferentSizesIsAnError) {
    Job job(2);
    job.run([](Rank &r) {
        char data[8] = {}, all[16];
        EXPECT_EQ(castor_gather(r.store, data, r.rank ? 4 : 8, all, "an uneven gather"), CASTOR_ERR_PARTED);
        for (const char *part : {"rank 0 waits for the others (an uneven gather, 8 bytes)",
                                 "rank 1 waits for the others (an uneven gather, 4 bytes)"})
            EXPECT_NE(strstr(error_text(), part), nullptr) << part << " in: " << error_text();
    });
}

// Each rank is told by the same words where two of them are; what the last one does is of no interest.
TEST(StoreMeeting, RanksThatPartedNameTheirPlacesOnEveryRank) {
    Job job(3);
    job.run([](Rank &r) {
        static int line;
        line = 10 + r.rank;
        castor_line_reader_set(
            [](char *out, size_t size) { snprintf(out, size, "train.py, line %d", line); });
        for (int round = 0; round < 3; round++)
            r.barrier();
        char data[8] = {}, all[3 * sizeof data];
        int status = r.rank == 1 ? castor_barrier(r.store, "a saved file")
                                 : castor_gather(r.store, data, sizeof data, all, "the loss");
        EXPECT_EQ(status, CASTOR_ERR_PARTED);
        const char *said = "rank 0 waits at train.py, line 10 (the loss) and rank 1 waits at train.py, line "
                           "11 (a saved file): the script decided differently on them";
        EXPECT_EQ(strncmp(error_text(), said, strlen(said)), 0) << error_text();
    });
}

// As many as a script with hundreds of parameter groups brings.
TEST(StoreMeeting, AgreeComparesAllValues) {
    Job job(3);
    job.run([](Rank &r) {
        std::vector<double> values(5000, 0.5);
        std::vector<std::string> names;
        for (size_t i = 0; i < values.size(); i++)
            names.push_back("value " + std::to_string(i));
        std::vector<const char *> labels;
        for (const std::string &name : names)
            labels.push_back(name.c_str());
        ASSERT_EQ(inside_agree(r.store, "a step", values.data(), labels.data(), 5000), CASTOR_OK)
            << error_text();
        r.barrier();
        if (r.rank == 2)
            values[4321] = 0.75;
        ASSERT_EQ(inside_agree(r.store, "a step", values.data(), labels.data(), 5000), CASTOR_ERR_MISMATCH);
        const char *said = "value 4321 is 0.5 on rank 0 and 0.75 on rank 2";
        EXPECT_NE(strstr(error_text(), said), nullptr) << error_text();
    });
}

TEST(StoreMeeting, TooMuchToHandOverEndsEveryRank) {
    Job job(2);
    job.run([](Rank &r) {
        std::vector<char> data(17 * kMiB);
        EXPECT_NE(castor_broadcast(r.store, data.data(), data.size(), "a large broadcast"), CASTOR_OK);
        EXPECT_NE(strstr(error_text(), "16.0 MiB"), nullptr) << error_text();
    });
}

TEST(StoreMeeting, FailureOfOneIsTheErrorOfAll) {
    Job job(3);
    job.run([](Rank &r) {
        if (r.rank == 1) {
            castor_fail(r.store, "its data is gone", 17);
        } else {
            EXPECT_EQ(castor_barrier(r.store, "a barrier"), CASTOR_ERR_PEER);
            EXPECT_EQ(strncmp(error_text(), "rank 1 (pid ", 12), 0) << error_text();
            EXPECT_NE(strstr(error_text(), ") stopped: its data is gone"), nullptr) << error_text();
            char text[64];
            EXPECT_EQ(castor_failure_get(r.store, text, sizeof text), 1);
            EXPECT_EQ(strncmp(text, error_text(), sizeof text - 1), 0) << text;
            EXPECT_EQ(castor_failure_cause(r.store, 1), 17u);
            EXPECT_EQ(castor_failure_cause(r.store, r.rank), 0u);
        }
    });
}

// ---- consensus ----

TEST(StoreTogether, CommitsOnEveryRankWhenAllCome) {
    Job job(4);
    job.run([](Rank &r) {
        for (uint64_t key = 1; key <= 300; key++) {
            int committed = 0;
            ASSERT_EQ(castor_consensus(r.store, key, 1, &committed), CASTOR_OK) << error_text();
            ASSERT_EQ(committed, 1) << "key " << key;
            r.barrier();
        }
    });
}

// The other rank stays where `place` says; one comes alone.
class StoreTogetherAlone : public testing::TestWithParam<int> {};

TEST_P(StoreTogetherAlone, IsLetGo) {
    Job job(3);
    job.run([](Rank &r) {
        if (r.rank == 0) {
            flag_await(r.board, 0, 2);
            int committed = 1;
            double begin = now_seconds();
            // Under the store's own patience, but for a rank in the script's code, which may still come.
            double patience = GetParam() == INSIDE_SCRIPT ? 0.5 : 1e6;
            ASSERT_EQ(inside_consensus(r.store, 7, 1, patience, &committed), CASTOR_OK) << error_text();
            EXPECT_EQ(committed, 0);
            r.board->number[0] = now_seconds() - begin;
            flag_raise(r.board, 1);
        } else {
            castor_activity_set(r.store, GetParam());
            flag_raise(r.board, 0);
            flag_await(r.board, 1);
            castor_activity_set(r.store, INSIDE_SCRIPT);
        }
        // Late comers are not let in, and do not wait.
        int committed = 1;
        if (r.rank == 1) {
            EXPECT_EQ(inside_consensus(r.store, 7, 1, 1e6, &committed), CASTOR_OK);
            EXPECT_EQ(committed, 0);
        }
        r.barrier();
        EXPECT_EQ(castor_consensus(r.store, 8, 1, &committed), CASTOR_OK);
        EXPECT_EQ(committed, 1) << "the next one goes as ever";
    });
}

INSTANTIATE_TEST_SUITE_P(Place, StoreTogetherAlone,
                         testing::Values(INSIDE_SCRIPT, INSIDE_BACKWARD, INSIDE_STEP, INSIDE_COLLECTIVE,
                                         INSIDE_SAVE, INSIDE_DATA));

TEST(StoreTogether, AloneAfterTheOthersLeftIsNoError) {
    Job job(2);
    job.run([](Rank &r) {
        if (r.rank == 1) {
            castor_store_leave(r.store);
            flag_raise(r.board, 0);
            flag_await(r.board, 1);
            return;
        }
        flag_await(r.board, 0);
        int committed = 1;
        EXPECT_EQ(castor_consensus(r.store, 1, 1, &committed), CASTOR_OK) << error_text();
        EXPECT_EQ(committed, 0);
        flag_raise(r.board, 1);
    });
}

TEST(StoreTogether, ACollectiveOfTheScriptsIsElsewhere) {
    Job job(2);
    job.run([](Rank &r) {
        int committed = 1;
        if (r.rank == 0) {
            flag_await(r.board, 0);
            EXPECT_EQ(inside_consensus(r.store, 1, 1, 1e6, &committed), CASTOR_OK);
            EXPECT_EQ(committed, 0);
            flag_raise(r.board, 1);
        } else {
            inside_collective_enter();
            EXPECT_EQ(inside_activity(r.store, 1), INSIDE_COLLECTIVE);
            flag_raise(r.board, 0);
            flag_await(r.board, 1);
        }
    });
}

// Its sums were added in the background: the first rank has left the end of the backward before the other came there.
TEST(StoreTogether, WhoComesToTheEndOfTheBackwardLateIsAwaited) {
    Job job(2);
    job.run([](Rank &r) {
        for (uint64_t key = 1; key <= 20; key++) {
            if (r.rank == 1) {
                while (inside_activity(r.store, 0) != INSIDE_CONSENSUS)
                    std::this_thread::yield();
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
                castor_activity_set(r.store, INSIDE_BACKWARD);
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
                castor_activity_set(r.store, INSIDE_SCRIPT);
            }
            int committed = 0;
            ASSERT_EQ(inside_consensus(r.store, key, 1, 1e6, &committed), CASTOR_OK) << error_text();
            EXPECT_EQ(committed, 1);
            r.barrier();
        }
    });
}

// The other rank has gone on to where the ranks meet next, and says nothing of where that is.
TEST(StoreTogether, ARankAtABarrierIsElsewhere) {
    Job job(3);
    job.run([](Rank &r) {
        for (uint64_t key = 1; key <= 50; key++) {
            int committed = 1;
            if (r.rank != 1) {
                ASSERT_EQ(inside_consensus(r.store, key, 1, 1e6, &committed), CASTOR_OK) << error_text();
                EXPECT_EQ(committed, 0);
            }
            r.barrier();
        }
    });
}

// Each comes with a key of its own, and then meets the others.
TEST(StoreTogether, DifferentKeysDoNotWaitForEachOther) {
    Job job(3);
    job.run([](Rank &r) {
        std::mt19937 own(r.rank);
        for (uint64_t round = 0; round < 50; round++) {
            usleep(own() % 2000);
            int committed = 1;
            ASSERT_EQ(inside_consensus(r.store, 10 * round + uint64_t(r.rank), 1, 1e6, &committed), CASTOR_OK)
                << error_text();
            EXPECT_EQ(committed, 0);
            r.barrier();
        }
    });
}

TEST(StoreTogether, DifferentKeysOrUnableMeansNobody) {
    Job job(3);
    job.run([](Rank &r) {
        int committed = 1;
        // Ranks 0 and 2 may be gone before rank 1 comes: only its patience tells it.
        ASSERT_EQ(inside_consensus(r.store, r.rank == 1 ? 11 : 10, 1, 0.3, &committed), CASTOR_OK)
            << error_text();
        EXPECT_EQ(committed, 0);
        r.barrier();
        committed = 1;
        ASSERT_EQ(inside_consensus(r.store, 20, r.rank != 2, 1e6, &committed), CASTOR_OK) << error_text();
        EXPECT_EQ(committed, 0);
    });
}

// Two that meet with different keys both give up; a third, with the key of one of them, must not wait for it.
TEST(StoreTogether, LateComerToAnAbandonedKeyDoesNotWait) {
    Job job(3);
    job.run([](Rank &r) {
        for (uint64_t round = 0; round < 20; round++) {
            int committed = 1;
            uint64_t key = 100 + 2 * round + (r.rank == 1);
            if (r.rank == 2)
                flag_await(r.board, 0, uint32_t(2 * (round + 1)));
            ASSERT_EQ(inside_consensus(r.store, key, 1, r.rank == 2 ? 1e6 : 0.1, &committed), CASTOR_OK)
                << error_text();
            EXPECT_EQ(committed, 0);
            if (r.rank != 2)
                flag_raise(r.board, 0);
            r.barrier();
        }
    });
}

// Every rank goes its own way between the operations; whatever the order, all get the same verdict and nobody hangs.
TEST(StoreTogether, AnyOrderEndsWithOneVerdict) {
    Job job(3);
    const int rounds = 40;
    job.run([=](Rank &r) {
        std::mt19937 same(1234), own(99 + r.rank);
        for (int round = 0; round < rounds; round++) {
            // What the ranks do in this round: come, come with another key, unable, elsewhere.
            int how[kRanksMax];
            for (int rank = 0; rank < r.world; rank++)
                how[rank] = int(same() % 10);
            if (same() % 3 == 0)
                std::fill(how, how + kRanksMax, 0);
            bool all = true;
            for (int rank = 0; rank < r.world; rank++)
                all = all && how[rank] < 7;
            usleep(own() % 2000);
            int committed = 0, mine = how[r.rank];
            if (mine == 9) {
                castor_activity_set(r.store, INSIDE_STEP);
            } else {
                uint64_t key = uint64_t(round) * 2 + (mine == 7);
                ASSERT_EQ(castor_consensus(r.store, key, mine != 8, &committed), CASTOR_OK) << error_text();
            }
            int32_t verdict = committed, verdicts[kRanksMax];
            inside_collective_enter();
            ASSERT_EQ(castor_gather(r.store, &verdict, sizeof verdict, verdicts, "the verdicts"), CASTOR_OK);
            castor_activity_set(r.store, INSIDE_SCRIPT);
            for (int rank = 0; rank < r.world; rank++)
                ASSERT_EQ(verdicts[rank], verdicts[0]) << "round " << round << ", rank " << rank;
            if (!all) {
                ASSERT_EQ(committed, 0) << "round " << round;
            }
            r.barrier();
        }
    });
}

// The patience of one ends just as the last one comes.
TEST(StoreTogether, ImpatienceNeverSplitsTheVerdict) {
    Job job(3);
    job.run([](Rank &r) {
        std::mt19937 own(5 + r.rank);
        for (int round = 0; round < 2000; round++) {
            int committed = 0;
            usleep(own() % 200);
            ASSERT_EQ(inside_consensus(r.store, uint64_t(round), 1, 1e-6 * double(own() % 300), &committed),
                      CASTOR_OK);
            int32_t verdict = committed, verdicts[kRanksMax];
            ASSERT_EQ(castor_gather(r.store, &verdict, sizeof verdict, verdicts, "the verdicts"), CASTOR_OK);
            for (int rank = 0; rank < r.world; rank++)
                ASSERT_EQ(verdicts[rank], verdicts[0]) << "round " << round << ", rank " << rank;
        }
    });
}

} // namespace
