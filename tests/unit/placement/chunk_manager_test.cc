// The chunk manager on a fake backend; every figure is worked out by hand.
#include "chunk_manager_fixture.h"

namespace {

using ChunkManager = ChunkManagerTest;

TEST_F(ChunkManager, AnAccessLoadsTheChunkAndWaitsForIt) {
    create(PLACEMENT_AUTO, 1000); // warm-up: 200 for chunks
    uint32_t a = add(CHUNK_OPTIM, 100, 1);
    EXPECT_EQ(chunk_manager_tier(m, a), 1u);
    use(a);
    EXPECT_EQ(chunk_manager_tier(m, a), 0u);
    EXPECT_EQ(fake.now_ns, 100u);
    use(a);
    chunk_statistics s = statistics();
    EXPECT_EQ(s.stall_ns, 100u);
    EXPECT_EQ(s.misses, 1u);
    EXPECT_EQ(s.accesses, 2u);
    EXPECT_EQ(s.moves[1][0], 1u);
    EXPECT_EQ(s.moved_bytes[1][0], 100u);
    EXPECT_EQ(s.bytes[CHUNK_OPTIM][0], 100u);
    EXPECT_EQ(s.peak_bytes[CHUNK_OPTIM][1], 100u);
    EXPECT_EQ(s.tier_bytes[1], 0u);
}

TEST_F(ChunkManager, WithoutARecordingTheLongestUnusedLeavesThenTheLowestNumber) {
    create(PLACEMENT_AUTO, 1500); // warm-up: 300
    for (int i = 0; i < 5; i++)
        add(CHUNK_PARAM, 100, 1);
    use(2);
    use(0);
    use(1);
    EXPECT_EQ(resident(), "012");
    use(3);
    EXPECT_EQ(resident(), "013"); // 2 was used first
    use(0);
    use(4);
    EXPECT_EQ(resident(), "034");
}

TEST_F(ChunkManager, InUseAndPinnedChunksStay) {
    create(PLACEMENT_AUTO, 1500);
    for (int i = 0; i < 4; i++)
        add(CHUNK_PARAM, 100, 1);
    for (int i = 0; i < 3; i++)
        use(i);
    EXPECT_EQ(chunk_manager_pin(m, 0), CASTOR_OK);
    EXPECT_EQ(chunk_manager_access(m, 1, false), CASTOR_OK);
    use(3);
    EXPECT_EQ(resident(), "013"); // 2 was used last
    EXPECT_EQ(chunk_manager_move(m, 0, 1), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(chunk_manager_move(m, 1, 1), CASTOR_ERR_ARGUMENT);
    EXPECT_NE(std::string(error_text()).find("1 users"), std::string::npos);
    EXPECT_EQ(chunk_manager_release(m, 1), CASTOR_OK);
    EXPECT_EQ(chunk_manager_move(m, 3, 1), CASTOR_OK);
    EXPECT_EQ(resident(), "01");
    EXPECT_EQ(chunk_manager_unpin(m, 0), CASTOR_OK);
    EXPECT_EQ(chunk_manager_unpin(m, 0), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(chunk_manager_release(m, 0), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(chunk_manager_access(m, 9, false), CASTOR_ERR_ARGUMENT);
}

TEST_F(ChunkManager, ShortOfRoomIsAnErrorThatNamesChunkNeedAndCapacity) {
    create(PLACEMENT_AUTO, 1000); // warm-up: 200, which chunks in use may pass within the capacity
    fake_non_model(&fake, 500);
    for (int i = 0; i < 3; i++)
        add(CHUNK_GRAD, 200, 1);
    ASSERT_EQ(chunk_manager_access(m, 0, false), CASTOR_OK);
    ASSERT_EQ(chunk_manager_access(m, 1, false), CASTOR_OK);
    EXPECT_EQ(statistics().over_limit, 1u);
    EXPECT_EQ(chunk_manager_access(m, 2, false), CASTOR_ERR_MEMORY);
    std::string text = error_text();
    for (const char *word : {"chunk 2 (gradient)", "200 B", "1000 B", "400 B", "500 B"})
        EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
    check();
    EXPECT_EQ(chunk_manager_release(m, 2), CASTOR_ERR_ARGUMENT); // it was never accessed
    chunk_manager_release(m, 0);
    EXPECT_EQ(chunk_manager_access(m, 2, false), CASTOR_OK);
    EXPECT_EQ(resident(), "12");
    chunk_manager_release(m, 1);
    chunk_manager_release(m, 2);
}

TEST_F(ChunkManager, AnAccessToWhatIsLeavingCancelsTheMoveOrWaitsForIt) {
    for (int cancels = 0; cancels < 2; cancels++) {
        fresh(2);
        fake.can_cancel = cancels;
        chunk_manager_settings s = chunk_manager_defaults(PLACEMENT_STATIC);
        s.placement.offload_optim_frac = 1;
        s.moments = {16, 16, 2};
        create(s, 1000);
        add(CHUNK_OPTIM, 100, 0);
        chunk_manager_place(m);
        EXPECT_EQ(resident(), "A"); // it goes back
        use(0);
        EXPECT_EQ(resident(), "0");
        EXPECT_EQ(fake.now_ns, cancels ? 0u : 200u); // there and back
        EXPECT_EQ(statistics().cancelled_moves, uint64_t(cancels));
    }
}

TEST_F(ChunkManager, WhatHasNoRoomIsRefusedAlsoWhileItLeaves) {
    for (int cancels = 0; cancels < 2; cancels++) {
        fresh(2);
        fake.can_cancel = cancels;
        create(PLACEMENT_AUTO, 1000); // 900 for those that are there from the start
        for (int i = 0; i < 3; i++)
            add(CHUNK_PARAM, 500, 0);
        ASSERT_EQ(chunk_manager_access(m, 0, false), CASTOR_OK) << error_text();
        chunk_manager_event(m, MOMENT_OPTIMIZER, 0);
        EXPECT_EQ(resident(), "0BC");
        ASSERT_EQ(chunk_manager_access(m, 2, false), CASTOR_OK) << error_text(); // beside chunk 0
        EXPECT_EQ(chunk_manager_access(m, 1, false), CASTOR_ERR_MEMORY);
        EXPECT_NE(std::string(error_text()).find("no room for chunk 1"), std::string::npos) << error_text();
        EXPECT_EQ(resident(), "02");
        EXPECT_EQ(chunk_manager_release(m, 0), CASTOR_OK);
        use(1); // in the place of chunk 0
        EXPECT_EQ(chunk_manager_release(m, 2), CASTOR_OK);
    }
}

TEST_F(ChunkManager, WhatNobodyWroteToNeedsNoWayBack) {
    backend.keeps_copies = true;
    create(PLACEMENT_AUTO, 500); // warm-up: 100
    add(CHUNK_PARAM, 100, 1);
    add(CHUNK_PARAM, 100, 1);
    use(0);
    use(1); // 0 leaves without a copy
    EXPECT_EQ(fake.now_ns, 200u);
    EXPECT_EQ(statistics().dropped_bytes, 100u);
    use(1, true);
    use(0); // 1 is written back
    EXPECT_EQ(fake.now_ns, 400u);
    EXPECT_EQ(statistics().moved_bytes[0][1], 100u);
}

TEST_F(ChunkManager, ToldLateTheChunkIsSimplyThere) {
    create(PLACEMENT_AUTO, 500);
    add(CHUNK_PARAM, 100, 1);
    add(CHUNK_PARAM, 100, 1);
    fake.tier[0] = 0;
    chunk_manager_touch(m, 0, false);
    check();
    EXPECT_EQ(resident(), "0");
    EXPECT_EQ(fake.started, 0u);
    EXPECT_EQ(statistics().unnoticed, 1u);
    fake.tier[0] = 1;
    fake.tier[1] = 0;
    chunk_manager_resync(m, 10);
    check();
    EXPECT_EQ(chunk_manager_tier(m, 0), 1u);
    EXPECT_EQ(chunk_manager_tier(m, 1), 0u);
}

TEST_F(ChunkManager, ThreeTiersAFullOneIsPassedBy) {
    fresh(3);
    fake.capacity[1] = 150;
    create(PLACEMENT_AUTO, 500); // warm-up: 100
    for (int i = 0; i < 3; i++)
        add(CHUNK_PARAM, 100, 2);
    use(0);
    use(1);
    EXPECT_EQ(chunk_manager_tier(m, 0), 1u);
    use(2);
    EXPECT_EQ(chunk_manager_tier(m, 1), 2u); // tier 1 has 50 left
    fake.capacity[2] = 0;
    EXPECT_EQ(chunk_manager_access(m, 1, false), CASTOR_OK); // within the capacity, since nothing can leave
    chunk_manager_release(m, 1);
    EXPECT_GE(statistics().over_limit, 1u);
}

// A step of two layers whose moments take 1000 ns each; chunk 3 is used in the optimizer alone.
class ChunkManagerSteps : public ChunkManagerTest {
  protected:
    void moment(moment_event event, uint32_t identity, std::vector<uint32_t> chunks, uint64_t non_model = 0,
                uint64_t ns = 1000) {
        fake_non_model(&fake, non_model);
        chunk_manager_event(m, event, identity);
        check();
        for (uint32_t chunk : chunks)
            use(chunk, event == MOMENT_OPTIMIZER);
        pass(ns);
    }
    void end() {
        chunk_manager_step_end(m);
        check();
    }
};

TEST_F(ChunkManagerSteps, TheVictimIsTheChunkWithTheFarthestNextUse) {
    settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.moments = {64, 64, 2};
    create(settings, 1000); // warm-up 200, then 900
    for (int i = 0; i < 3; i++)
        add(CHUNK_PARAM, 300, 1);
    add(CHUNK_OPTIM, 300, 1);
    for (int step = 0; step < 3; step++) {
        moment(MOMENT_FORWARD, 0, {0});
        moment(MOMENT_FORWARD, 1, {1});
        moment(MOMENT_FORWARD, 2, {2});
        if (step == 2)
            break;
        moment(MOMENT_BACKWARD, 1, {1});
        moment(MOMENT_BACKWARD, 0, {0});
        moment(MOMENT_OPTIMIZER, 0, {0, 3});
        end();
    }
    // After its forward chunk 2 is not used until the next step, so that chunk 3 takes its place, two moments before
    // the optimizer; 0 and 1 stay for their backward.
    pass(1);
    moment(MOMENT_BACKWARD, 1, {1});
    moment(MOMENT_BACKWARD, 0, {0});
    EXPECT_EQ(resident(), "013");
    chunk_statistics before = statistics();
    moment(MOMENT_OPTIMIZER, 0, {0, 3});
    chunk_statistics s = statistics();
    EXPECT_EQ(s.stall_ns, before.stall_ns);
    EXPECT_EQ(s.hits, before.hits + 1);
}

TEST_F(ChunkManagerSteps, AutoFollowsThePeakUntilTheNextMoment) {
    settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.moments = {64, 64, 2};
    create(settings, 1000);
    for (int i = 0; i < 6; i++)
        add(CHUNK_PARAM, 100, 1);
    for (int step = 0; step < 4; step++) {
        moment(MOMENT_FORWARD, 0, {0, 1, 2});
        if (step == 3) {
            EXPECT_EQ(resident(), "012345"); // 900 - 0: all of 600
        }
        fake_non_model(&fake, 0);
        chunk_manager_event(m, MOMENT_BACKWARD, 0); // in it other data grow to 650: 250 are left
        check();
        if (step == 3) { // before they grow: 3, 4 and 5 are used soonest, then 0
            pass(1000);
            EXPECT_EQ(resident().size(), 2u);
        }
        fake_non_model(&fake, 650);
        pass(1000);
        moment(MOMENT_GRADIENT, 0, {3, 4, 5}, 0);
        end();
    }
}

TEST_F(ChunkManagerSteps, APrefetchBeginsAtTheLastMomentThatIsInTime) {
    settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.moments = {64, 64, 0};
    create(settings, 10000); // warm-up 2000, then 9000
    add(CHUNK_PARAM, 4500, 0);
    add(CHUNK_PARAM, 1600, 0); // planned to take 2000
    add(CHUNK_OPTIM, 4500, 1);
    // Ten moments of 1000 ns. Chunk 1 is used at 6000: its move must begin at 4000, which is when moment 4 begins. It
    // lies on the disk, brought there by hand; the room is free but for the moments 0 to 2.
    for (int step = 0; step < 4; step++) {
        uint64_t begin = fake.now_ns;
        for (uint32_t i = 0; i < 10; i++) {
            if (i == 1) {
                ASSERT_EQ(chunk_manager_move(m, 1, 1), CASTOR_OK) << error_text();
                begin = fake.now_ns - 1000;
            }
            moment(MOMENT_FORWARD, i, i == 6 ? std::vector<uint32_t>{1} : std::vector<uint32_t>{});
        }
        end();
        if (step >= 2) {
            EXPECT_NEAR(double(fake.begun_ns[1] - begin), 4000, 1001) << step;
            EXPECT_EQ(statistics().late, 0u);
        }
    }
    EXPECT_GE(statistics().hits, 2u);
}

TEST_F(ChunkManagerSteps, WhatComesAheadOfItsUseMakesWay) {
    for (int cancels = 0; cancels < 2; cancels++) {
        fresh(2);
        fake.can_cancel = cancels;
        settings = chunk_manager_defaults(PLACEMENT_AUTO);
        settings.moments = {64, 64, 2};
        create(settings, 1000);
        add(CHUNK_PARAM, 400, 0);
        add(CHUNK_PARAM, 500, 1);
        add(CHUNK_PARAM, 500, 1);
        for (int step = 0; step < 2; step++) {
            moment(MOMENT_FORWARD, 0, {0});
            moment(MOMENT_FORWARD, 1, {1});
            ASSERT_EQ(chunk_manager_move(m, 1, 1), CASTOR_OK) << error_text();
            end();
        }
        chunk_manager_event(m, MOMENT_FORWARD, 0);
        ASSERT_EQ(chunk_manager_access(m, 0, false), CASTOR_OK) << error_text();
        EXPECT_EQ(resident(), "0b") << "the next one comes";
        // There is room for two of the three, and none of those that are there may leave.
        ASSERT_EQ(chunk_manager_access(m, 2, false), CASTOR_OK) << error_text();
        EXPECT_EQ(resident(), "02");
        check();
        EXPECT_EQ(chunk_manager_release(m, 2), CASTOR_OK);
        EXPECT_EQ(chunk_manager_release(m, 0), CASTOR_OK);
        done();
    }
}

TEST_F(ChunkManagerSteps, OptimizerStatesAreStreamed) {
    backend.keeps_copies = true;
    settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.moments = {64, 64, 0};
    create(settings, 5000); // warm-up 1000, then 4500: four chunks of twelve
    for (int i = 0; i < 12; i++)
        add(CHUNK_OPTIM, 1000, 1);
    for (int step = 0; step < 5; step++) {
        chunk_statistics before = statistics();
        uint64_t begin = fake.now_ns, both = 0;
        for (uint32_t i = 0; i < 12; i++) {
            moment(MOMENT_OPTIMIZER, i, {i}, 0, 1500);
            bool in = false, out = false;
            for (uint32_t j = 0; j < 12; j++) {
                in |= fake.begun_ns[j] + 1000 > begin && fake.moves[j].move.to == 0;
                out |= fake.begun_ns[j] + 1000 > begin && fake.moves[j].move.to == 1;
            }
            both += in && out;
        }
        end();
        if (step < 3)
            continue;
        chunk_statistics s = statistics();
        EXPECT_EQ(s.stall_ns, before.stall_ns) << step; // reading and writing 1000 fits beside 1500 of work
        EXPECT_EQ(s.misses, before.misses);
        EXPECT_GE(both, 8u);
        // With four places no order of victims moves fewer than nine of twelve; one that is read into and one that is
        // written back from leave one chunk to stay from step to step.
        uint64_t moved = s.moved_bytes[1][0] - before.moved_bytes[1][0];
        EXPECT_GE(moved, 9000u);
        EXPECT_LE(moved, 11000u);
    }
}

TEST_F(ChunkManagerSteps, ALongerSequenceWarmsUpAnew) {
    settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.moments = {64, 64, 2};
    create(settings, 1000);
    for (int i = 0; i < 6; i++)
        add(CHUNK_PARAM, 100, 1);
    auto step = [&](uint64_t non_model) {
        moment(MOMENT_FORWARD, 0, {0, 1}, non_model);
        moment(MOMENT_FORWARD, 1, {2, 3}, non_model);
        moment(MOMENT_FORWARD, 2, {4, 5}, non_model);
        end();
    };
    step(300);
    step(300);
    EXPECT_EQ(statistics().warmups, 1u);
    EXPECT_EQ(resident(), "012345");
    step(700);
    EXPECT_EQ(statistics().warmups, 2u);
    EXPECT_LE(statistics().tier_bytes[0] + 700, 1000u);
    for (int i = 0; i < 3; i++)
        step(700);
    EXPECT_EQ(statistics().warmups, 2u);
    EXPECT_LE(statistics().tier_bytes[0] + 700, 1000u); // 900 - 700: two chunks
}

TEST_F(ChunkManagerSteps, UnderStaticChunksGoBackAndComeInTime) {
    settings = chunk_manager_defaults(PLACEMENT_STATIC);
    settings.moments = {64, 64, 0};
    settings.placement.offload_optim_frac = 0.5;
    create(settings, 10000);
    add(CHUNK_PARAM, 1000, 0);
    for (int i = 0; i < 4; i++)
        add(CHUNK_OPTIM, 1000, 0);
    chunk_manager_place(m);
    pass(5000);
    EXPECT_EQ(resident(), "034");
    for (int step = 0; step < 4; step++) {
        chunk_statistics before = statistics();
        for (uint32_t i = 0; i < 6; i++)
            moment(MOMENT_FORWARD, i, {0}, 0, 2000);
        for (uint32_t i = 1; i < 5; i++)
            moment(MOMENT_OPTIMIZER, i, {i}, 0, 2000);
        end();
        if (step > 1) {
            EXPECT_EQ(statistics().stall_ns, before.stall_ns);
            EXPECT_EQ(statistics().moved_bytes[1][0] - before.moved_bytes[1][0], 2000u);
        }
    }
}

TEST_F(ChunkManagerSteps, ANumberThatIsUsedAgain) {
    create(PLACEMENT_AUTO, 1000);
    for (int i = 0; i < 4; i++)
        add(CHUNK_PARAM, 300, 1);
    for (int step = 0; step < 3; step++) {
        for (uint32_t i = 0; i < 4; i++)
            moment(MOMENT_FORWARD, i, {i}, 0, 1000);
        end();
    }
    ASSERT_EQ(chunk_manager_access(m, 1, false), CASTOR_OK);
    EXPECT_EQ(chunk_manager_key(m, 1), 0u);
    EXPECT_EQ(chunk_manager_reuse_chunk(m, 1, 200), CASTOR_ERR_ARGUMENT);
    ASSERT_EQ(chunk_manager_release(m, 1), CASTOR_OK);
    ASSERT_EQ(chunk_manager_pin(m, 1), CASTOR_OK);
    EXPECT_EQ(chunk_manager_reuse_chunk(m, 1, 200), CASTOR_ERR_ARGUMENT);
    ASSERT_EQ(chunk_manager_unpin(m, 1), CASTOR_OK);
    EXPECT_EQ(chunk_manager_reuse_chunk(m, 9, 200), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(chunk_manager_key(m, 9), 0u);
    ASSERT_EQ(chunk_manager_move(m, 1, 1), CASTOR_OK);
    uint64_t bytes = statistics().tier_bytes[1];
    EXPECT_EQ(chunk_manager_reuse_chunk(m, 1, 0), CASTOR_ERR_ARGUMENT);
    ASSERT_EQ(chunk_manager_reuse_chunk(m, 1, 200), CASTOR_OK);
    fake.room[1] -= 100; // that is the backend's to know
    EXPECT_EQ(statistics().tier_bytes[1], bytes - 100);
    check();
    // Nobody foresees its use.
    moment(MOMENT_FORWARD, 0, {0}, 0, 1000);
    pass(1000);
    EXPECT_EQ(chunk_manager_tier(m, 1), 1u);
    moment(MOMENT_FORWARD, 1, {1}, 0, 1000);
    EXPECT_EQ(chunk_manager_tier(m, 1), 0u);
    // What is never used again leaves before what is.
    EXPECT_GT(chunk_manager_key(m, 1), chunk_manager_key(m, 2));
    moment(MOMENT_FORWARD, 2, {2}, 0, 1000);
    moment(MOMENT_FORWARD, 3, {3}, 0, 1000);
    end();
    check();
}

TEST_F(ChunkManagerSteps, TheRecordingAsText) {
    create(PLACEMENT_AUTO, 1000);
    add(CHUNK_PARAM, 100, 0);
    add(CHUNK_OPTIM, 200, 1);
    std::string text;
    auto sink = [](void *context, const char *piece, uint64_t length) {
        static_cast<std::string *>(context)->append(piece, length);
    };
    EXPECT_FALSE(chunk_manager_write_recording(m, sink, &text));
    moment(MOMENT_FORWARD, 4, {0}, 50);
    end();
    EXPECT_TRUE(chunk_manager_write_recording(m, sink, &text));
    EXPECT_EQ(text, "castor-moments 1\nchunk 0 parameter 100\nchunk 1 state 200\nmoment forward 4 0 50\nuse "
                    "0 r\nend 1000\n");
}

} // namespace
