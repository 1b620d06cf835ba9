// Room in the region, homes that flip, and what whole steps copy.
#include "slots_fixture.h"

class SlotsRoomTest : public SlotsTest {};

TEST_F(SlotsRoomTest, ARegionTooSmallForAStorage) {
    fresh(2 * UNIT, 1);
    memory *a = add(3 * UNIT), *b = add(2 * UNIT);
    EXPECT_FALSE(use(a, 1));
    EXPECT_TRUE(use(b, 1));
    EXPECT_FALSE(use(a, 1));
    EXPECT_EQ(statistics().home_reads, 2u);
    fresh(0, 1);
    EXPECT_FALSE(use(add(UNIT), 1));
    EXPECT_EQ(counted->calls, 0u);
}

TEST_F(SlotsRoomTest, NoMemoryForTheRegion) {
    memory *a = add(UNIT);
    fake_device_others(fake, 4096 * UNIT, 0);
    testing::internal::CaptureStderr();
    EXPECT_FALSE(use(a, 1));
    uint64_t calls = counted->calls;
    EXPECT_FALSE(use(a, 1));
    EXPECT_EQ(counted->calls, calls); // not tried again in this step
    slots_step_end(s);
    EXPECT_FALSE(use(a, 1));
    std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("no memory for"), std::string::npos) << said;
    EXPECT_EQ(said.find("no memory for"), said.rfind("no memory for")) << said;
    slots_step_end(s);
    fake_device_others(fake, 0, 0);
    EXPECT_TRUE(use(a, 1));
}

TEST_F(SlotsRoomTest, ARegionOfWhatThereIs) {
    for (uint64_t left : {8, 5, 3, 2}) {
        fresh(8 * UNIT, 1);
        memory *a = add(3 * UNIT), *b = add(UNIT);
        fake_device_others(fake, (4096 - left) * UNIT, 0);
        EXPECT_EQ(use(a, 1), left >= 3) << left;
        EXPECT_EQ(use(b, 1), left >= 3) << left;
        EXPECT_EQ(statistics().region_bytes, (left == 5 ? 4 : left == 3 ? 3 : 8) * UNIT) << left;
        check();
    }
}

TEST_F(SlotsRoomTest, TheRegionIsGivenBack) {
    seeds(8 * UNIT, 5, [&] {
        memory *a = add(3 * UNIT), *b = add(2 * UNIT);
        EXPECT_EQ(slots_region_give(s), 0u);
        EXPECT_TRUE(use(a, 1));
        EXPECT_TRUE(use(b, 2));
        write(b, 1);
        slot_use u = begin(a, 3);
        read(a, u);
        EXPECT_EQ(slots_region_give(s), 0u); // in use
        end(a, u);
        for (int pause : {1, 3, 7}) { // of so many steps
            EXPECT_EQ(slots_region_give(s), 8 * UNIT);
            EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 0u);
            check();
            for (int step = 0; step < pause; step++) {
                EXPECT_FALSE(use(a, 1));
                write(a, 2);
                slots_step_end(s);
            }
            EXPECT_TRUE(use(a, 1));
            EXPECT_TRUE(use(b, 1));
            check();
        }
    });
}

TEST_F(SlotsRoomTest, ARegionThatStepsDoNotUse) {
    fresh(8 * UNIT, 1);
    memory *a = add(3 * UNIT);
    for (int again = 0; again < 2; again++) {
        EXPECT_TRUE(use(a, 1));
        for (int step = 0; step <= SLOTS_UNUSED_STEPS; step++) {
            EXPECT_FALSE(slots_region_is_unused(s)) << step;
            slots_region_end_unused(s);
            EXPECT_EQ(slots_region_held(s), 8 * UNIT);
            slots_step_end(s);
        }
        EXPECT_TRUE(slots_region_is_unused(s));
        slots_region_end_unused(s);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 0u);
        slots_step_end(s);
        EXPECT_EQ(slots_region_held(s), 0u);
        check();
    }
}

TEST_F(SlotsRoomTest, ASmallerRegion) {
    seeds(8 * UNIT, 5, [&] {
        memory *a = add(3 * UNIT), *b = add(2 * UNIT);
        slots_region_limit(s, 4 * UNIT);
        EXPECT_TRUE(use(a, 1));
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 4 * UNIT);
        slots_region_limit(s, 2 * UNIT);
        EXPECT_TRUE(use(a, 1)); // it stays until it is given back
        check();
        EXPECT_EQ(slots_region_give(s), 4 * UNIT);
        EXPECT_FALSE(use(a, 1));
        slots_step_end(s);
        EXPECT_FALSE(use(a, 1));
        EXPECT_TRUE(use(b, 1));
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 2 * UNIT);
        check();
    });
}

TEST_F(SlotsRoomTest, OperandsOfOneCallDoNotEvictEachOther) {
    seeds(3 * UNIT, 20, [&] {
        memory *a = add(2 * UNIT), *b = add(2 * UNIT), *c = add(UNIT);
        slot_use u = begin(a, 1), v = begin(b, 1), w = begin(c, 1), again = begin(a, 1);
        EXPECT_NE(u.pointer, a->address);
        EXPECT_EQ(v.pointer, b->address);
        EXPECT_NE(w.pointer, c->address);
        EXPECT_EQ(again.pointer, u.pointer);
        read(a, u);
        read(b, v);
        read(c, w);
        check();
        end(a, u);
        slot_use x = begin(b, 1); // one use of a is open still
        EXPECT_EQ(x.pointer, b->address);
        read(b, x);
        end(b, x);
        end(a, again);
        end(b, v);
        end(c, w);
        EXPECT_TRUE(use(b, 1));
        check();
    });
}

// Slots of one unit between free ones: what needs two in a row gets them.
TEST_F(SlotsRoomTest, RunsOfNeighboursLeave) {
    fresh(6 * UNIT, 1);
    std::vector<memory *> one;
    for (int i = 0; i < 6; i++) {
        one.push_back(add(UNIT));
        EXPECT_TRUE(use(one[i], 1));
    }
    // 0, 2 and 4 are free; 1, 3 and 5 were used in this order.
    for (int i : {0, 2, 4})
        write(one[i], 1);
    memory *two = add(2 * UNIT), *three = add(3 * UNIT);
    uint64_t copies = statistics().copies;
    EXPECT_TRUE(use(two, 1)); // instead of 1
    check();
    EXPECT_TRUE(use(one[3], 1));
    EXPECT_TRUE(use(one[5], 1));
    EXPECT_EQ(statistics().copies, copies + 1);
    slot_use u =
        begin(one[3], 1); // in use: nothing of 3 units is left beside it but where two and the free unit are
    EXPECT_TRUE(use(three, 1));
    EXPECT_TRUE(use(one[5], 1));
    EXPECT_EQ(statistics().copies, copies + 2);
    EXPECT_TRUE(use(two, 1));
    read(one[3], u);
    end(one[3], u);
}

// The manager's own victims lie apart; of the others those that are not in use surround what another one left.
TEST_F(SlotsRoomTest, RunsWithWhatOthersLeft) {
    seeds(13 * UNIT, 10, [&] {
        std::vector<memory *> one;
        std::vector<std::pair<memory *, slot_use>> in_use;
        for (int i = 0; i < 13; i++) {
            one.push_back(add(UNIT));
            EXPECT_TRUE(use(one[i], 1));
        }
        for (int i : {4, 6, 8, 10, 12, 0, 2})
            EXPECT_TRUE(use(one[i], 1));
        for (int i : {3, 5, 7, 9, 11}) {
            in_use.emplace_back(one[i], begin(one[i], 1));
            read(one[i], in_use.back().second);
        }
        write(one[1], 2);
        EXPECT_TRUE(use(add(3 * UNIT), 1));
        for (auto &u : in_use)
            end(u.first, u.second);
        check();
    });
}

// What leaves is read until its last use is passed, whatever comes there.
TEST_F(SlotsRoomTest, MemoryIsTakenAfterItsUses) {
    seeds(2 * UNIT, 60, [&] {
        std::vector<memory *> all;
        for (int i = 0; i < 6; i++)
            all.push_back(add(i % 3 == 2 ? 2 * UNIT : UNIT));
        for (int round = 0; round < 4; round++)
            for (uint64_t i = 0; i < all.size(); i++)
                EXPECT_TRUE(use(all[i], i % 2));
        check();
    });
}

TEST_F(SlotsRoomTest, OneSlotInManyStreams) {
    seeds(UNIT, 60, [&] {
        memory *a = add(UNIT), *b = add(UNIT);
        for (int round = 0; round < 3; round++) {
            for (uint64_t stream = 0; stream < 9; stream++)
                EXPECT_TRUE(use(a, stream));
            EXPECT_TRUE(use(b, 3));
        }
        check();
    });
}

TEST_F(SlotsRoomTest, WrittenWhileOthersRead) {
    seeds(2 * UNIT, 40, [&] {
        memory *a = add(UNIT), *b = add(UNIT), *c = add(UNIT);
        for (uint64_t i = 0; i < 8; i++) {
            EXPECT_TRUE(use(a, i % 3));
            EXPECT_TRUE(use(b, (i + 1) % 3));
            write(a, (i + 2) % 3);
            EXPECT_TRUE(use(c, i % 2));
        }
    });
}

// ---- homes ----

TEST_F(SlotsRoomTest, HomesOnTheDeviceAreReadThere) {
    memory *a = add(UNIT), *b = add(UNIT);
    EXPECT_TRUE(use(a, 1));
    run();
    homes_budget_set(h, UINT64_MAX);
    ASSERT_EQ(home_flip(h, a->address, DEVICE_TIER_DEVICE), CASTOR_OK) << error_text();
    EXPECT_FALSE(use(a, 1));
    EXPECT_EQ(statistics().uses, 1u);
    write(a, 1);
    EXPECT_FALSE(use(a, 2));
    run();
    ASSERT_EQ(home_flip(h, a->address, DEVICE_TIER_HOST), CASTOR_OK) << error_text();
    EXPECT_TRUE(use(a, 1));
    EXPECT_TRUE(use(b, 1));
}

TEST_F(SlotsRoomTest, AWriterWhileTheHomeIsOnTheDevice) {
    memory *a = add(UNIT);
    EXPECT_TRUE(use(a, 1));
    run();
    homes_budget_set(h, UINT64_MAX);
    ASSERT_EQ(home_flip(h, a->address, DEVICE_TIER_DEVICE), CASTOR_OK);
    write(a, 1);
    run();
    ASSERT_EQ(home_flip(h, a->address, DEVICE_TIER_HOST), CASTOR_OK);
    EXPECT_TRUE(use(a, 1));
    EXPECT_EQ(statistics().copies, 2u);
}

TEST_F(SlotsRoomTest, DestroyedWhileTheDeviceHangs) {
    memory *a = add(UNIT);
    EXPECT_TRUE(use(a, 1));
    fake_device_drain_hangs(fake, true);
    slots_destroy(s); // what may still run keeps its memory
    EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 16 * UNIT);
    fake_device_drain_hangs(fake, false);
    run();
    EXPECT_EQ(wrong, 0);
    homes_destroy(h);
    EXPECT_EQ(fake_device_broken(fake), nullptr);
    fake_device_end(fake);
    fake = nullptr;
}

// ---- steps ----

class SlotsStepTest : public SlotsTest {
  protected:
    // Forward 0 to n - 1, backward n - 1 to 0, an optimizer that writes all; the device does a few operations for each call.
    void step(const std::vector<memory *> &all, bool one_by_one, uint32_t pace) {
        for (size_t i = 0; i < 2 * all.size(); i++) {
            use(all[i < all.size() ? i : 2 * all.size() - 1 - i], 1);
            run_some(pace);
        }
        for (memory *m : all) {
            if (one_by_one)
                write(m, 1);
            else
                write_unseen(m, 1);
            run_some(1);
        }
        if (!one_by_one)
            slots_written_all(s, 1);
        slots_step_end(s);
        check();
        ASSERT_EQ(fake_device_broken(fake), nullptr);
    }
    // `share` of hits at least, and `most` copied units a use.
    void steps(const std::vector<size_t> &units, uint64_t region_units, double share, double most,
               bool one_by_one) {
        fresh(region_units * UNIT, 7);
        std::vector<memory *> all;
        for (size_t n : units)
            all.push_back(add(n * UNIT));
        for (int i = 0; i < 4; i++)
            step(all, one_by_one, 6);
        slots_statistics before = statistics();
        for (int i = 0; i < 6; i++)
            step(all, one_by_one, 6);
        slots_statistics after = statistics();
        double uses = double(after.uses - before.uses), hits = double(after.hits - before.hits);
        EXPECT_GE(hits / uses, share);
        EXPECT_LE(double(after.copied_bytes - before.copied_bytes) / uses, most * double(UNIT));
        EXPECT_EQ(after.home_reads, before.home_reads);
    }
};

// The most copied units are 3% above what the best choice of victims needs without fragments: three quarters of the uses, where
// half of the storages have room.
TEST_F(SlotsStepTest, EqualStorages) {
    steps(std::vector<size_t>(40, 2), 40, 0.99, 1.55, true);
    steps(std::vector<size_t>(40, 2), 40, 0.99, 1.55, false);
    steps(std::vector<size_t>(40, 2), 10, 0.95, 1.94, true);
}

TEST_F(SlotsStepTest, StoragesOfATransformer) {
    std::vector<size_t> units = {8};
    for (int layer = 0; layer < 10; layer++)
        for (size_t n : {3, 1, 4, 4})
            units.push_back(n);
    units.push_back(8);
    steps(units, 68, 0.99, 2.51, true);
    steps(units, 24, 0.95, 3.1, true);
}

TEST_F(SlotsStepTest, StoragesOfAnySize) {
    std::vector<size_t> units;
    for (size_t i = 0; i < 60; i++)
        units.push_back(1 + i * 37 % 61 % 9);
    steps(units, 24, 0.9, 5, true);
    steps(units, 68, 0.97, 5, true);
}

// Nothing is written, and each step uses all from 0 on: most of what has room stays. The best choice of victims needs a copy for
// what has no room and one more, 11 of 40; copies are made for 5 uses at a time.
TEST_F(SlotsStepTest, TheSameOrderInEachStep) {
    fresh(60 * UNIT, 7);
    std::vector<memory *> all;
    for (int i = 0; i < 40; i++)
        all.push_back(add(2 * UNIT));
    slots_statistics before = statistics();
    for (int i = 0; i < 10; i++) {
        if (i == 4)
            before = statistics();
        for (memory *m : all) {
            use(m, 1);
            run_some(6);
        }
        slots_step_end(s);
    }
    slots_statistics later = statistics();
    EXPECT_LE(later.copies - before.copies, 6u * 16);
    EXPECT_GE(later.hits - before.hits, 6u * 39);
}
