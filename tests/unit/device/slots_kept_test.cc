// Addresses that the device keeps in its memory.
#include "slots_fixture.h"

TEST_F(SlotsTest, WhatTheDeviceKeepsTheAddressOfIsReadInItsHome) {
    memory *a = add(UNIT), *b = add(UNIT), *c = add(UNIT);
    EXPECT_TRUE(use(a, 1));
    EXPECT_TRUE(use(b, 1));
    slots_kept(s, a->address + 8, false);       // looks like an address
    slots_kept(s, c->address + c->bytes, true); // in nothing's home
    EXPECT_TRUE(use(a, 1));
    slot_use u = begin(a, 1);
    read(a, u);
    slots_kept(s, a->address + 8, true);
    slots_kept(s, b->address, false); // where a storage begins
    EXPECT_EQ(statistics().stale, 2u);
    end(a, u);
    check();
    for (int round = 0; round < 3; round++) {
        write_unseen(a, 2);
        write_unseen(b, 2);
        EXPECT_FALSE(use(a, 1));
        EXPECT_FALSE(use(b, 1));
        EXPECT_EQ(use(c, 1), true);
        slots_step_end(s);
    }
    // Others over the same memory, and then other memory.
    EXPECT_EQ(slots_storage_add(s, a->address + 16, UNIT / 2), CASTOR_OK);
    EXPECT_EQ(slot_use_begin(s, a->address + 16, 16, 1).pointer, a->address + 16);
}

TEST_F(SlotsTest, AnAddressIsKeptBeforeItsStorageComes) {
    uintptr_t base = home_make(4 * UNIT);
    memory *a = memory_at(base, UNIT), *b = memory_at(base + 3 * UNIT, UNIT), *other = add(UNIT);
    slots_kept(s, base, false); // no storage begins there yet
    EXPECT_EQ(slots_storage_add(s, a->address, a->bytes), CASTOR_OK);
    EXPECT_TRUE(use(a, 1));
    slots_kept(s, base + 2 * UNIT + 5, true);
    EXPECT_EQ(slots_storage_add(s, b->address, b->bytes), CASTOR_OK);
    EXPECT_FALSE(use(a, 1));
    EXPECT_FALSE(use(b, 1));
    EXPECT_TRUE(use(other, 1));
    check();
    run();
    slots_forget(s, base, 4 * UNIT - 1); // not all of it
    EXPECT_EQ(slots_storage_add(s, b->address, b->bytes), CASTOR_OK);
    EXPECT_FALSE(use(b, 1));
    run();
    slots_forget(s, base, 4 * UNIT);
    EXPECT_EQ(slots_storage_add(s, b->address, b->bytes), CASTOR_OK);
    EXPECT_TRUE(use(b, 1));
}
