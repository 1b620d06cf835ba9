#include "slots_fixture.h"

TEST_F(SlotsTest, AUseReadsACopy) {
    memory *a = add(3 * UNIT);
    slot_use u = slot_use_begin(s, a->address + 512, UNIT, 1);
    EXPECT_NE(u.pointer, a->address + 512);
    EXPECT_NE(u.storage, SLOT_USE_NONE);
    u.pointer -= 512; // of the whole storage
    EXPECT_EQ(u.pointer % SLOTS_ALIGNMENT, a->address % SLOTS_ALIGNMENT);
    read(a, u);
    slot_use_end(s, &u);
    run();
    EXPECT_EQ(statistics().copies, 1u);
    EXPECT_EQ(statistics().copied_bytes, 3 * UNIT);
    EXPECT_EQ(statistics().hits, 0u);
    EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 16 * UNIT);

    EXPECT_TRUE(use(a, 2));
    EXPECT_EQ(statistics().copies, 1u);
    EXPECT_EQ(statistics().hits, 1u);
    EXPECT_EQ(statistics().in_time, 1u);
    EXPECT_EQ(statistics().prefetched, 0u);
    EXPECT_EQ(statistics().uses, 2u);
    EXPECT_EQ(statistics().storages, 1u);
    EXPECT_EQ(statistics().storage_bytes, 3 * UNIT);
}

TEST_F(SlotsTest, AlignmentIsTheStorages) {
    uintptr_t base = home_make(2 * UNIT);
    memory *a = memory_at(base + 16, 1000), *b = memory_at(base + 1024 + 48, 992);
    ASSERT_EQ(slots_storage_add(s, a->address, a->bytes), CASTOR_OK);
    ASSERT_EQ(slots_storage_add(s, b->address, b->bytes), CASTOR_OK);
    slot_use u = begin(a, 1), v = begin(b, 1);
    EXPECT_NE(u.pointer, a->address);
    EXPECT_EQ(u.pointer % SLOTS_ALIGNMENT, a->address % SLOTS_ALIGNMENT);
    EXPECT_EQ(v.pointer % SLOTS_ALIGNMENT, b->address % SLOTS_ALIGNMENT);
    read(a, u);
    read(b, v);
    end(a, u);
    end(b, v);
}

TEST_F(SlotsTest, TheRegionIsMadeByTheFirstUse) {
    memory *a = add(UNIT);
    EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 0u);
    write(a, 1);
    EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 0u);
    EXPECT_TRUE(use(a, 1));
}

TEST_F(SlotsTest, WhatNoStorageHoldsWholeIsReadWhereItIs) {
    uintptr_t base = home_make(4 * UNIT);
    memory *a = memory_at(base, 1024), *b = memory_at(base + 1024, 1024),
           *none = memory_at(base + 3 * UNIT, 512);
    EXPECT_EQ(slots_storage_add(s, a->address, a->bytes), CASTOR_OK);
    EXPECT_EQ(slots_storage_add(s, b->address, b->bytes), CASTOR_OK);
    EXPECT_EQ(slot_use_begin(s, a->address, 1025, 1).pointer, a->address);
    EXPECT_EQ(slot_use_begin(s, b->address + 1, 1024, 1).pointer, b->address + 1);
    EXPECT_EQ(slot_use_begin(s, none->address, 16, 1).storage, SLOT_USE_NONE);
    EXPECT_EQ(slot_use_begin(s, base + 2048, 0, 1).storage, SLOT_USE_NONE);
    EXPECT_EQ(slot_use_begin(s, range - 1, 1, 1).pointer, range - 1);
    EXPECT_EQ(slot_use_begin(s, range + 1024 * UNIT, 1, 1).storage, SLOT_USE_NONE);
    EXPECT_EQ(statistics().uses, 0u);
    // An unknown length goes to the storage's end.
    slot_use u = slot_use_begin(s, b->address + 8, 0, 1);
    EXPECT_NE(u.storage, SLOT_USE_NONE);
    slot_use_end(s, &u);
    EXPECT_TRUE(may_hold(b->address + 1023));
    EXPECT_FALSE(may_hold(base + 4 * UNIT));
    EXPECT_FALSE(may_hold(range - 1));
    EXPECT_FALSE(may_hold(range + 1024 * UNIT));
    EXPECT_FALSE(may_hold(0));
    EXPECT_FALSE(may_hold(UINTPTR_MAX));
}

TEST_F(SlotsTest, StoragesLieInOneHome) {
    uintptr_t base = home_make(2 * UNIT);
    EXPECT_EQ(slots_storage_add(s, base, 0), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(slots_storage_add(s, base + UNIT, UNIT + 1), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(slots_storage_add(s, base + UNIT, SIZE_MAX), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(slots_storage_add(s, range + 900 * UNIT, 16), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(slots_storage_add(s, base + UNIT, UNIT), CASTOR_OK);
    // Whoever gets an address in the home may write the storage.
    EXPECT_TRUE(may_hold(base + UNIT));
    EXPECT_TRUE(may_hold(base));
    EXPECT_FALSE(may_hold(base + 2 * UNIT));
}

// ---- writers ----

TEST_F(SlotsTest, AWriterBeforeTheFirstUse) {
    seeds(16 * UNIT, 30, [&] {
        memory *a = add(UNIT), *b = add(UNIT);
        write(a, 1);
        write(b, 2);
        EXPECT_TRUE(use(a, 1));
        EXPECT_TRUE(use(b, 1)); // after an event
    });
}

// A kernel that gets an address in a home: the tensor there may go over storages that were registered for others.
TEST_F(SlotsTest, AWriterOfUnknownLength) {
    for (int where = 0; where < 4; where++)
        seeds(16 * UNIT, 10, [&] {
            uintptr_t base = home_make(4 * UNIT);
            memory *a = memory_at(base + UNIT, 1024), *b = memory_at(base + 3 * UNIT, 1024), *c = add(UNIT);
            EXPECT_EQ(slots_storage_add(s, a->address, a->bytes), CASTOR_OK);
            EXPECT_EQ(slots_storage_add(s, b->address, b->bytes), CASTOR_OK);
            for (memory *m : {a, b, c})
                EXPECT_TRUE(use(m, 1));
            write_unseen(a, 1);
            write_unseen(b, 1);
            const uintptr_t addresses[] = {base, a->address + 8, base + 2 * UNIT, base + 4 * UNIT - 1};
            slots_written(s, addresses[where], 0, 1);
            EXPECT_EQ(statistics().stale, 2u);
            for (memory *m : {a, b, c})
                EXPECT_TRUE(use(m, 1));
        });
}

// What was never copied has no writers; after its first copy it has, whether or not it is in a slot.
TEST_F(SlotsTest, ALaunchMattersToWhatWasCopied) {
    seeds(16 * UNIT, 10, [&] {
        memory *a = add(UNIT), *b = add(UNIT);
        EXPECT_TRUE(may_hold(a->address));
        EXPECT_EQ(launch({a, b}, 1), 0u);
        EXPECT_TRUE(use(a, 1));
        EXPECT_EQ(launch({a, b}, 2), 1u);
        EXPECT_EQ(launch({b, a}, 1), 1u);
        EXPECT_TRUE(use(a, 1));
        EXPECT_TRUE(use(b, 2));
        EXPECT_EQ(launch({a, b}, 1), 2u);
        EXPECT_TRUE(use(b, 2));
        EXPECT_TRUE(use(a, 2));
        slots_forget(s, b->address, 1);
        EXPECT_FALSE(may_hold(b->address, false));
        EXPECT_TRUE(may_hold(a->address, false));
        slots_forget(s, a->address, 1);
        EXPECT_FALSE(may_hold(a->address, false));
    });
}

// One event for all addresses of a launch, and each of them ends all copies of its home.
TEST_F(SlotsTest, ALaunchWithManyAddresses) {
    seeds(64 * UNIT, 10, [&] {
        std::vector<memory *> all;
        std::vector<uintptr_t> addresses;
        for (int i = 0; i < 20; i++) {
            uintptr_t base = home_make(2 * UNIT);
            for (int half = 0; half < 2; half++) {
                all.push_back(memory_at(base + half * UNIT, 1024));
                EXPECT_EQ(slots_storage_add(s, all.back()->address, 1024), CASTOR_OK);
            }
        }
        for (memory *m : all)
            EXPECT_TRUE(use(m, 1));
        for (size_t i = 0; i < SLOTS_ADDRESSES_MOST; i++) {
            write_unseen(all[i], 1);
            addresses.push_back(all[i]->address);
        }
        uint64_t calls = fake_device_calls(fake);
        slots_written_each(s, addresses.data(), SLOTS_ADDRESSES_MOST, 1);
        EXPECT_LE(fake_device_calls(fake), calls + 2); // an event is made and recorded
        EXPECT_EQ(statistics().stale, uint64_t(SLOTS_ADDRESSES_MOST));
        write_unseen(all[38], 1);
        write_unseen(all[39], 1);
        slots_written_each(s, &all[39]->address, 1, 1);
        EXPECT_EQ(statistics().stale, uint64_t(SLOTS_ADDRESSES_MOST + 2));
        for (memory *m : all)
            EXPECT_TRUE(use(m, 2));
        EXPECT_EQ(statistics().copies, 40u + SLOTS_ADDRESSES_MOST + 2);
        EXPECT_EQ(launch(all, 2), 40u);
        for (memory *m : all)
            EXPECT_TRUE(use(m, 2));
    });
}

TEST_F(SlotsTest, AWriterAfterACopy) {
    seeds(16 * UNIT, 30, [&] {
        memory *a = add(UNIT);
        for (uint64_t stream = 1; stream < 5; stream++) {
            EXPECT_TRUE(use(a, 1));
            write(a, stream / 2);
            EXPECT_TRUE(use(a, stream % 3));
            EXPECT_EQ(statistics().stale, stream);
        }
        EXPECT_EQ(statistics().copies, 5u);
    });
}

TEST_F(SlotsTest, TwoWritersInTwoStreams) {
    seeds(16 * UNIT, 30, [&] {
        memory *a = add(UNIT);
        uintptr_t base = a->address;
        use(a, 1);
        // Halves, by streams that do not know each other.
        memory low = *a, high = *a;
        low.bytes = high.bytes = UNIT / 2;
        high.address += UNIT / 2;
        before_write(a, 1);
        before_write(a, 2);
        a->version = low.version = ++versions;
        enqueue(1, operation_write, &low, base);
        slots_written(s, base, UNIT / 2, 1);
        high.version = ++versions;
        enqueue(2, operation_write, &high, high.address);
        slots_written(s, high.address, UNIT / 2, 2);
        point first = now(1), second = now(2);
        after(3, first);
        after(3, second);
        slot_use u = slot_use_begin(s, base, UNIT, 3);
        EXPECT_NE(u.pointer, base);
        enqueue(3, operation_read, &low, u.pointer);
        enqueue(3, operation_read, &high, u.pointer + UNIT / 2);
        slot_use_end(s, &u);
    });
}

TEST_F(SlotsTest, AWriterOfSeveralStorages) {
    seeds(16 * UNIT, 30, [&] {
        uintptr_t base = home_make(UNIT);
        std::vector<memory *> all;
        for (uint32_t i = 0; i < 8; i++) {
            all.push_back(memory_at(base + 512 * i, 512));
            EXPECT_EQ(slots_storage_add(s, all[i]->address, 512), CASTOR_OK);
            EXPECT_TRUE(use(all[i], 1));
        }
        for (uint32_t i = 1; i < 7; i++)
            write_unseen(all[i], 2);
        slots_written(s, base + 512 + 511, 512 * 5, 2);
        EXPECT_EQ(statistics().stale, 6u);
        for (memory *m : all)
            EXPECT_TRUE(use(m, 1));
        EXPECT_EQ(statistics().hits, 2u);
        for (memory *m : all)
            write_unseen(m, 3);
        slots_written_all(s, 3);
        for (memory *m : all)
            EXPECT_TRUE(use(m, 1));
        EXPECT_EQ(statistics().stale, 14u);
        EXPECT_EQ(statistics().hits, 2u);
    });
}

TEST_F(SlotsTest, AllWrittenInTwoStreams) {
    seeds(16 * UNIT, 30, [&] {
        memory *a = add(UNIT), *b = add(UNIT);
        use(a, 1);
        use(b, 1);
        write_unseen(a, 2);
        slots_written_all(s, 2);
        write_unseen(b, 3);
        slots_written_all(s, 3);
        EXPECT_TRUE(use(a, 1));
        EXPECT_TRUE(use(b, 1));
    });
}

TEST_F(SlotsTest, WritersOfWhatWasNeverCopiedCostNothing) {
    memory *a = add(UNIT), *b = add(UNIT);
    for (int i = 0; i < 10; i++) {
        write(a, 1);
        write(b, 2);
        slots_written_all(s, 1);
        slots_written(s, range, 1024 * UNIT, 2);
    }
    EXPECT_EQ(counted->calls, 0u);
    use(a, 1);
    uint64_t records = counted->records;
    for (int i = 0; i < 10; i++)
        write(b, 2);
    slots_written(s, range + 512 * UNIT, UNIT, 1);
    EXPECT_EQ(counted->records, records);
    // One event for all writers of what was copied, and a wait when it is copied again.
    uint64_t waits = counted->waits;
    for (int i = 0; i < 10; i++)
        write(a, 3);
    EXPECT_EQ(counted->records, records);
    slots_writes_end(s);
    EXPECT_EQ(counted->records, records + 1);
    EXPECT_EQ(counted->waits, waits);
    use(a, 1);
    EXPECT_EQ(counted->waits, waits + 3); // the writers, those that read the slot, and the use for its copy
}

TEST_F(SlotsTest, AWriterInsideAUse) {
    seeds(16 * UNIT, 30, [&] {
        memory *a = add(UNIT);
        slot_use u = begin(a, 1);
        read(a, u);
        a->readers.push_back(now(1));
        write(a, 2); // before the use has ended
        slot_use v = begin(a, 1);
        EXPECT_EQ(v.pointer, a->address); // the slot is in use, and stale
        EXPECT_EQ(v.storage, SLOT_USE_NONE);
        read(a, v);
        end(a, v);
        check();
        slot_use_end(s, &u);
        check();
        EXPECT_TRUE(use(a, 1));
        EXPECT_EQ(statistics().home_reads, 1u);
        EXPECT_EQ(statistics().stale, 1u);
    });
}

TEST_F(SlotsTest, AWriterInACapture) {
    memory *a = add(UNIT), *b = add(UNIT), *c = add(UNIT);
    EXPECT_TRUE(use(a, 1));
    EXPECT_TRUE(use(c, 1));
    capture(2);
    EXPECT_EQ(slot_use_begin(s, a->address, UNIT, 2).pointer,
              a->address); // reads its home, now and whenever it is replayed
    slots_written(s, a->address, UNIT, 2);
    slots_written(s, b->address, UNIT, 2);
    capture_end(2);
    check();
    for (int replay = 0; replay < 3; replay++) {
        write_unseen(a, 2);
        write_unseen(b, 2);
        EXPECT_FALSE(use(a, 1));
        EXPECT_FALSE(use(b, 2));
        EXPECT_TRUE(use(c, 1));
    }
    // The same memory by another name is written all the same.
    EXPECT_EQ(slots_storage_add(s, a->address, UNIT / 2), CASTOR_OK);
    a->bytes = UNIT / 2;
    write_unseen(a, 2);
    EXPECT_FALSE(use(a, 1));
    // Other memory there is not.
    slots_forget(s, a->address, UNIT);
    EXPECT_EQ(slots_storage_add(s, a->address, UNIT / 2), CASTOR_OK);
    EXPECT_TRUE(use(a, 1));
}

TEST_F(SlotsTest, AllWrittenInACapture) {
    memory *a = add(UNIT), *b = add(UNIT);
    EXPECT_TRUE(use(a, 1));
    slot_use u = begin(a, 1);
    read(a, u);
    capture(2);
    slots_written_all(s, 2);
    capture_end(2);
    check();
    end(a, u);
    check();
    write_unseen(a, 2);
    write_unseen(b, 2);
    EXPECT_FALSE(use(a, 1));
    EXPECT_FALSE(use(b, 1));
    memory *c = add(UNIT);
    EXPECT_TRUE(use(c, 1));
}

// ---- storages that come and go ----

TEST_F(SlotsTest, ForgottenWhileInUse) {
    seeds(16 * UNIT, 20, [&] {
        memory *a = add(UNIT);
        slot_use u = begin(a, 1);
        read(a, u);
        slots_forget(s, a->address, 1);
        check();
        EXPECT_EQ(statistics().storages, 0u);
        EXPECT_FALSE(may_hold(a->address));
        EXPECT_FALSE(use(a, 2));
        // The same addresses again, while the old copy is still in use.
        EXPECT_EQ(slots_storage_add(s, a->address, UNIT), CASTOR_OK);
        slot_use v = begin(a, 2);
        EXPECT_NE(v.storage, u.storage);
        EXPECT_NE(v.pointer, u.pointer);
        read(a, v);
        check();
        end(a, u);
        check();
        end(a, v);
        write(a, 1);
        EXPECT_TRUE(use(a, 1));
    });
}

TEST_F(SlotsTest, AddedOverOthers) {
    seeds(16 * UNIT, 20, [&] {
        uintptr_t base = home_make(4 * UNIT);
        memory *a = memory_at(base, UNIT), *b = memory_at(base + UNIT, UNIT),
               *c = memory_at(base + 2 * UNIT, UNIT);
        for (memory *m : {a, b, c}) {
            EXPECT_EQ(slots_storage_add(s, m->address, UNIT), CASTOR_OK);
            EXPECT_TRUE(use(m, 1));
        }
        EXPECT_EQ(slots_storage_add(s, base, UNIT), CASTOR_OK); // nothing changes
        EXPECT_TRUE(use(a, 1));
        EXPECT_EQ(statistics().hits, 1u);
        EXPECT_EQ(slots_storage_add(s, base + UNIT / 2, UNIT), CASTOR_OK);
        check();
        EXPECT_EQ(statistics().storages, 2u);
        EXPECT_FALSE(use(a, 1));
        EXPECT_FALSE(use(b, 1));
        EXPECT_TRUE(use(c, 1));
        EXPECT_EQ(statistics().hits, 2u);
        run(); // the host writes
        memory *d = memory_at(base + UNIT / 2, UNIT);
        slots_written(s, d->address, UNIT, 1);
        EXPECT_TRUE(use(d, 2));
    });
}

TEST_F(SlotsTest, NumbersAreUsedAgain) {
    for (int round = 0; round < 300; round++) {
        std::vector<memory *> all;
        for (int i = 0; i < 10; i++) {
            size_t bytes = 512 * size_t(1 + (round * 10 + i) % 37);
            all.push_back(add(bytes));
            EXPECT_TRUE(use(all.back(), 1));
            write(all.back(), 2);
            EXPECT_TRUE(use(all.back(), 1));
        }
        if (round % 3 == 0)
            slots_step_end(s);
        for (memory *m : all)
            slots_forget(s, m->address, m->bytes);
        run();
        for (memory *m : all) {
            ASSERT_EQ(home_destroy(h, m->address), CASTOR_OK);
        }
        memories.clear();
        check();
    }
    EXPECT_LE(s->storages_count, 10u);
    EXPECT_EQ(wrong, 0);
}

// A recorded step knows numbers whose storages are gone: nothing is copied for them, and others are.
TEST_F(SlotsTest, RecordedUsesOfForgottenStorages) {
    fresh(3 * UNIT, 1);
    std::vector<memory *> all;
    for (int i = 0; i < 8; i++)
        all.push_back(add(UNIT));
    for (int step = 0; step < 4; step++) {
        for (memory *m : all)
            use(m, 1);
        slots_step_end(s);
    }
    slots_forget(s, all[4]->address, UNIT);
    uint64_t hits = statistics().hits;
    for (int i = 0; i < 8; i++)
        if (i != 4)
            use(all[i], 1);
    check();
    EXPECT_GE(statistics().hits, hits + 3);
}

// Steps are recorded, but of some storages nobody noted the last writer: they are other ones with known numbers, or its event failed.
// Only a use may copy them, after what it comes after.
TEST_F(SlotsTest, NothingIsCopiedAheadWhoseWritersAreUnknown) {
    for (bool fails : {false, true})
        seeds(3 * UNIT, 30, [&] {
            std::vector<memory *> all;
            for (int i = 0; i < 6; i++)
                all.push_back(add(UNIT));
            for (int step = 0; step < 4; step++) {
                for (memory *m : all)
                    use(m, 1);
                slots_step_end(s);
            }
            for (memory *m : {all[1], all[2], all[0]}) {
                if (!fails) {
                    slots_forget(s, m->address, UNIT);
                    EXPECT_EQ(slots_storage_add(s, m->address, UNIT), CASTOR_OK);
                }
                counted->fail_at = fails ? counted->calls + 1 : 0;
                write(m, 2);
            }
            counted->fail_at = 0;
            slots_step_end(s);
            for (memory *m : all)
                EXPECT_TRUE(use(m, 1) || fails);
            check();
        });
}

TEST_F(SlotsTest, NothingIsCopiedAheadThatIsOnTheDevice) {
    fresh(3 * UNIT, 1);
    std::vector<memory *> all;
    for (int i = 0; i < 6; i++)
        all.push_back(add(UNIT));
    for (int step = 0; step < 4; step++) {
        for (memory *m : all)
            use(m, 1);
        for (memory *m : all)
            write(m, 1);
        if (step == 3) {
            run();
            homes_budget_set(h, UINT64_MAX);
            ASSERT_EQ(home_flip(h, all[1]->address, DEVICE_TIER_DEVICE), CASTOR_OK);
        }
        slots_step_end(s);
    }
    EXPECT_NE(s->storages[slots_find(s, all[0]->address)].entry, SLOTS_NONE);
    EXPECT_EQ(s->storages[slots_find(s, all[1]->address)].entry, SLOTS_NONE);
    EXPECT_NE(s->storages[slots_find(s, all[2]->address)].entry, SLOTS_NONE);
    check();
}

// A writer whose event could not be recorded is one that the next use comes after.
TEST_F(SlotsTest, WritersThatCannotBeNoted) {
    seeds(4 * UNIT, 30, [&] {
        memory *a = add(UNIT), *b = add(UNIT);
        for (uint64_t i = 0; i < 3; i++) {
            EXPECT_TRUE(use(a, 1));
            EXPECT_TRUE(use(b, 1));
            write_unseen(a, 2);
            write_unseen(b, 2);
            counted->fail_at = counted->calls + 1;
            if (i == 0) {
                slots_written_all(s, 2);
            } else if (i == 1) {
                slots_written(s, range, 1024 * UNIT, 2);
            } else {
                slots_written(s, a->address, UNIT, 2);
                slots_written(s, b->address, UNIT, 2);
            }
            EXPECT_GT(counted->fails, i);
            uint64_t calls = counted->calls;
            write(a, 2); // that costs nothing
            EXPECT_EQ(counted->calls, calls);
            EXPECT_TRUE(use(b, 1));
            EXPECT_TRUE(use(a, 3));
        }
    });
}
