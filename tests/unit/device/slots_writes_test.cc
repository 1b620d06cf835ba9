#include "tests/unit/device/slots_fixture.h"

class SlotsWritesTest : public SlotsTest {
  protected:
    // Of several writers' streams in turn; each copy has to come after all of its own.
    void write_in_turn(const std::vector<memory *> &all, int rounds) {
        for (int round = 0; round < rounds; round++)
            for (size_t i = 0; i < all.size(); i++)
                write(all[i], 3 + (i + static_cast<size_t>(round)) % 3);
    }
};

TEST_F(SlotsWritesTest, OfSeveralStreamsInTurn) {
    seeds(16 * UNIT, 30, [&] {
        std::vector<memory *> all = {add(UNIT), add(UNIT), add(UNIT), add(UNIT)};
        for (int step = 0; step < 4; step++) {
            for (memory *m : all)
                EXPECT_TRUE(use(m, 1));
            write_in_turn(all, 3);
            if (step % 2)
                slots_step_end(s);
        }
        EXPECT_GT(statistics().copies, 8u);
    });
}

// More than there are events: the copy stream waits for the oldest before their event stands for others.
TEST_F(SlotsWritesTest, MoreBatchesThanEvents) {
    seeds(16 * UNIT, 30, [&] {
        std::vector<memory *> all = {add(UNIT), add(UNIT), add(UNIT)};
        for (memory *m : all)
            EXPECT_TRUE(use(m, 1));
        memory *other = memory_at(home_make(UNIT), UNIT);
        for (uint32_t i = 0; i < 8 * SLOTS_BATCHES; i++) // the device is long in that stream
            write_unseen(other, 7);
        write(all[0], 7);
        write_in_turn({all[1], all[2]}, SLOTS_BATCHES);
        EXPECT_GT(s->batches.last, SLOTS_BATCHES);
        for (memory *m : all)
            EXPECT_TRUE(use(m, 1));
    });
}

// Two threads' streams of one name: each writer's event is recorded where only it can be.
TEST_F(SlotsWritesTest, InAStreamPerThread) {
    memory *a = add(UNIT), *b = add(UNIT);
    use(a, 1);
    use(b, 1);
    uint64_t records = counted->records;
    write(a, DEVICE_STREAM_PER_THREAD);
    write(b, DEVICE_STREAM_PER_THREAD);
    EXPECT_EQ(counted->records, records + 2);
    EXPECT_FALSE(s->batches.open);
}

// Uses, too: the copy stream waits for the first before the second one's event takes its place.
TEST_F(SlotsWritesTest, UsesInAStreamPerThread) {
    memory *a = add(UNIT);
    use(a, DEVICE_STREAM_PER_THREAD);
    uint64_t waits = counted->waits;
    use(a, DEVICE_STREAM_PER_THREAD);
    EXPECT_EQ(counted->waits, waits + 2); // the use for its copy, and that
}

TEST_F(SlotsWritesTest, AStreamThatIsCapturedNext) {
    seeds(16 * UNIT, 10, [&] {
        memory *a = add(UNIT), *b = add(UNIT);
        use(a, 1);
        use(b, 1);
        write(a, 3);
        capture(3); // the fake device takes no event there
        uint64_t records = counted->records;
        write(b, 1); // at once: its stream may be taken into the capture
        EXPECT_EQ(counted->records, records + 1);
        EXPECT_TRUE(use(a, 1));
        capture_end(3);
        EXPECT_TRUE(use(b, 1));
    });
}

// What a failed record stood for is waited for by what comes next, also where later writers are noted.
TEST_F(SlotsWritesTest, ARecordFails) {
    seeds(16 * UNIT, 20, [&] {
        memory *a = add(UNIT), *b = add(UNIT);
        for (int i = 0; i < 3; i++) {
            EXPECT_TRUE(use(a, 1));
            EXPECT_TRUE(use(b, 1));
            write(a, 3);
            counted->fail_at = counted->calls + 1;
            slots_writes_end(s);
            EXPECT_EQ(counted->fails, static_cast<uint64_t>(i + 1));
            write(b, 4);
            EXPECT_TRUE(use(b, 1));
            EXPECT_TRUE(use(a, 5));
        }
    });
}

// A number of a batch that never came to be: nobody waits for its event.
TEST_F(SlotsWritesTest, ABatchThatIsNone) {
    seeds(2 * UNIT, 10, [&] {
        std::vector<memory *> all = {add(UNIT), add(UNIT), add(UNIT)};
        for (memory *m : all)
            EXPECT_TRUE(use(m, 1));
        write(all[0], 3);
        counted->fail_at = counted->calls + 1;
        slots_writes_end(s);
        for (int round = 0; round < 3; round++) // each makes room for another
            for (memory *m : all)
                EXPECT_TRUE(use(m, 1));
    });
}
