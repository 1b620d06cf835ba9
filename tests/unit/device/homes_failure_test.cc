// Each call of the driver fails in turn: alone, with all that follow, as a lack of memory and as another error.
#include "homes_fixture.h"

class HomesFailureTest : public HomesTest, public testing::WithParamInterface<castor_status> {
  protected:
    // Three homes; the one in question has pieces of 32, 8, 2 and 1 units.
    void fresh() {
        make(256, 100, 160);
        created(CHUNK_GRAD, 2);
        it = created(CHUNK_OPTIM, 43);
        created(CHUNK_PARAM, 3);
        fake_device_fail_with(fake, GetParam());
    }
    void arm(uint64_t n, bool more) {
        armed = fake_device_calls(fake) + n;
        fake_device_fail(fake, armed, more);
    }
    // Whether the call was made.
    bool disarm() {
        fake_device_fail(fake, 0, false);
        return fake_device_calls(fake) >= armed;
    }
    uintptr_t it = 0;
    uint64_t armed = 0;
};

static std::string status_name(const testing::TestParamInfo<castor_status> &info) {
    return info.param == CASTOR_OK ? "own" : info.param == CASTOR_ERR_MEMORY ? "memory" : "system";
}
// CASTOR_OK: each call with the status that is usual for it.
INSTANTIATE_TEST_SUITE_P(Each, HomesFailureTest,
                         testing::Values(CASTOR_OK, CASTOR_ERR_MEMORY, CASTOR_ERR_SYSTEM), status_name);

TEST_P(HomesFailureTest, Create) {
    bool made = true;
    uint64_t n = 0;
    while (made && !HasFatalFailure()) {
        SCOPED_TRACE(++n);
        fresh();
        arm(n, false);
        castor_status status = create(CHUNK_PARAM, 44 * UNIT);
        made = disarm();
        if (made && GetParam() == CASTOR_ERR_SYSTEM) {
            EXPECT_EQ(status, CASTOR_ERR_SYSTEM);
            EXPECT_TRUE(says("(injected)")) << error_text();
            EXPECT_EQ(known.size(), 3u);
            EXPECT_EQ(statistics().refused, 1u);
        } else {
            EXPECT_EQ(status, CASTOR_OK) << error_text();
            EXPECT_EQ(tier_of(last), made ? DEVICE_TIER_HOST : DEVICE_TIER_DEVICE);
        }
        check();
        EXPECT_EQ(create(CHUNK_PARAM, 10 * UNIT), CASTOR_OK);
    }
    EXPECT_EQ(n, 7u); // three pieces: each is created and mapped
}

// Nothing can be undone: what is mapped stays so, and its addresses are not used again.
TEST_P(HomesFailureTest, CreateWithAllThatFollows) {
    bool made = true;
    for (uint64_t n = 1; made && !HasFatalFailure(); n++) {
        SCOPED_TRACE(n);
        fresh();
        arm(n, true);
        castor_status status = create(CHUNK_PARAM, 44 * UNIT);
        made = disarm();
        EXPECT_EQ(status == CASTOR_OK, !made);
        if (made) {
            EXPECT_EQ(status, GetParam() == CASTOR_ERR_SYSTEM ? CASTOR_ERR_SYSTEM : CASTOR_ERR_MEMORY);
        }
        leaks = fake_device_maps(fake) > pieces(2) + pieces(43) + pieces(3);
        EXPECT_EQ(leaks, n > 2) << "pieces that stay mapped";
        check();
        EXPECT_EQ(create(CHUNK_PARAM, 44 * UNIT), CASTOR_OK) << error_text();
        check();
    }
}

TEST_P(HomesFailureTest, Destroy) {
    bool made = true;
    uint64_t n = 0;
    while (made && !HasFatalFailure()) {
        SCOPED_TRACE(++n);
        fresh();
        arm(n, false);
        castor_status status = destroy(it);
        made = disarm();
        EXPECT_EQ(status == CASTOR_OK, !made);
        check(); // it is there, or gone
        if (made) {
            EXPECT_EQ(destroy(it), CASTOR_OK) << error_text();
        }
        EXPECT_EQ(created(CHUNK_PARAM, 43), it);
    }
    EXPECT_EQ(n, 5u);
}

TEST_P(HomesFailureTest, DestroyWithAllThatFollows) {
    bool made = true;
    for (uint64_t n = 1; made && !HasFatalFailure(); n++) {
        SCOPED_TRACE(n);
        fresh();
        arm(n, true);
        castor_status status = destroy(it);
        made = disarm();
        EXPECT_EQ(status == CASTOR_OK, !made);
        if (made) {
            EXPECT_EQ(says("is lost"), n > 1) << error_text();
            EXPECT_EQ(fake_device_maps(fake), pieces(2) + pieces(3) + 4 - (n - 1));
            if (n > 1) {
                EXPECT_EQ(homes_evictable(h), 5 * UNIT);
            }
            EXPECT_EQ(homes_check(h), CASTOR_OK) << error_text();
            EXPECT_EQ(destroy(it), CASTOR_OK) << error_text();
        }
        check();
        EXPECT_EQ(created(CHUNK_PARAM, 43), it);
    }
}

TEST_P(HomesFailureTest, Flip) {
    for (device_tier to : {DEVICE_TIER_HOST, DEVICE_TIER_DEVICE}) {
        bool made = true;
        uint64_t n = 0;
        while (made && !HasFatalFailure()) {
            SCOPED_TRACE(++n);
            fresh();
            if (to == DEVICE_TIER_DEVICE) {
                ASSERT_EQ(home_flip(h, it, DEVICE_TIER_HOST), CASTOR_OK);
            }
            device_tier from = tier_of(it);
            arm(n, false);
            castor_status status = home_flip(h, it, to);
            made = disarm();
            EXPECT_EQ(status == CASTOR_OK, !made);
            EXPECT_EQ(tier_of(it), made ? from : to);
            EXPECT_EQ(statistics().flips[to], made ? 0u : 1u);
            if (made) {
                EXPECT_TRUE(says("(injected)")) << error_text();
                EXPECT_FALSE(says("lost") || says("moved no more")) << error_text();
            }
            check();
            if (made) {
                EXPECT_EQ(home_flip(h, it, to), CASTOR_OK) << error_text();
            }
            check();
        }
        /* A drain, the alias once, four pieces: create; map, copy, unmap; unmap, map. */
        EXPECT_EQ(n, 1u + (to == DEVICE_TIER_HOST) + 4 + 12 + 8 + 1);
    }
}

TEST_P(HomesFailureTest, FlipWithAllThatFollows) {
    bool made = true;
    int lost = 0, stuck = 0;
    for (uint64_t n = 1; made && !HasFatalFailure(); n++) {
        SCOPED_TRACE(n);
        fresh();
        arm(n, true);
        castor_status status = home_flip(h, it, DEVICE_TIER_HOST);
        made = disarm();
        EXPECT_EQ(status == CASTOR_OK, !made);
        if (!made)
            break;
        /* A call that unmaps the alias in vain leaves it behind. */
        bool alias = fake_device_maps(fake) > pieces(2) + pieces(43) + pieces(3);
        leaks = alias;
        bool is_lost = says("is lost"), is_stuck = says("moved no more");
        lost += is_lost;
        stuck += is_stuck;
        if (!is_lost) {
            EXPECT_TRUE(intact(known[it]));
        } else {
            EXPECT_LT(fake_device_maps(fake), pieces(2) + pieces(43) + pieces(3));
        }
        if (!is_lost && !is_stuck) {
            check();
            EXPECT_EQ(home_flip(h, it, DEVICE_TIER_HOST), CASTOR_OK) << error_text();
            check();
            continue;
        }
        EXPECT_EQ(homes_check(h), CASTOR_OK) << error_text();
        EXPECT_EQ(home_flip(h, it, DEVICE_TIER_HOST), CASTOR_ERR_SYSTEM);
        EXPECT_EQ(homes_evictable(h), 5 * UNIT);
        EXPECT_EQ(homes_evict(h, UINT64_MAX), 5 * UNIT); // the others still move
        EXPECT_EQ(destroy(it), CASTOR_OK) << error_text();
        check();
        EXPECT_EQ(created(CHUNK_PARAM, 43), it);
    }
    EXPECT_EQ(stuck,
              3); // a second, third or fourth piece that is not unmapped, and a first that does not come back
    EXPECT_EQ(lost, 4); // an unmapped piece that can be mapped neither way
}

// Homes that moved before the failure stay where they are.
TEST_P(HomesFailureTest, Evict) {
    bool made = true;
    uint64_t n = 0;
    while (made && !HasFatalFailure()) {
        SCOPED_TRACE(++n);
        fresh();
        arm(n, false);
        uint64_t there = used(DEVICE_TIER_DEVICE), freed = homes_evict(h, UINT64_MAX);
        made = disarm();
        EXPECT_EQ(there - used(DEVICE_TIER_DEVICE), freed);
        if (made) {
            EXPECT_TRUE(says("(injected)")) << error_text();
        } else {
            EXPECT_EQ(freed, 48 * UNIT);
        }
        check();
        EXPECT_EQ(statistics().rescues, freed ? 1u : 0u);
        EXPECT_EQ(homes_evict(h, UINT64_MAX), 48 * UNIT - freed);
    }
}

// A home for which memory is missing is passed over, and smaller ones are tried.
TEST_F(HomesTest, EvictionGoesOnAfterALackOfMemory) {
    make(256, 100, 160);
    uintptr_t small = created(CHUNK_PARAM, 2), large = created(CHUNK_OPTIM, 43);
    fake_device_fail_with(fake, CASTOR_ERR_MEMORY);
    fake_device_fail(fake, fake_device_calls(fake) + 4,
                     false); // after the drain and the alias: its second piece
    EXPECT_EQ(homes_evict(h, UINT64_MAX), 2 * UNIT);
    EXPECT_EQ(tier_of(small), DEVICE_TIER_HOST);
    EXPECT_EQ(tier_of(large), DEVICE_TIER_DEVICE);
}

// The device fails in the middle of a birth, and what was mapped there cannot be unmapped: the host's pages come elsewhere.
TEST_F(HomesTest, AHomeComesElsewhereWhereAddressesAreGivenUp) {
    make(256, 100, 160);
    static device_driver real;
    static int maps, unmaps;
    real = driver;
    maps = unmaps = 0;
    device_driver failing = driver;
    failing.map = [](void *context, int device, uintptr_t address, size_t bytes, uint64_t pages) {
        if (++maps == 2) {
            return error_set(CASTOR_ERR_MEMORY, "the second map fails");
        }
        return real.map(context, device, address, bytes, pages);
    };
    failing.unmap = [](void *context, uintptr_t address, size_t bytes) {
        if (++unmaps == 1) {
            return error_set(CASTOR_ERR_SYSTEM, "the first unmap fails");
        }
        return real.unmap(context, address, bytes);
    };
    homes_destroy(h);
    ASSERT_EQ(homes_create(&h, &failing, 0, range, units * UNIT, UINT64_MAX), CASTOR_OK);
    leaks = true;
    EXPECT_EQ(created(CHUNK_PARAM, 40), range + 32 * UNIT);
    EXPECT_EQ(tier_of(last), DEVICE_TIER_HOST);
    EXPECT_EQ(used(DEVICE_TIER_DEVICE), 32 * UNIT); // what stays mapped
}
