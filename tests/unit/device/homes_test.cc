#include "homes_fixture.h"

#include <atomic>
#include <thread>

TEST_F(HomesTest, FillTheBudgetThenTheHost) {
    make(64, 32, 16, 8 * UNIT);
    EXPECT_EQ(tier_of(created(CHUNK_PARAM, 5)), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(created(CHUNK_PARAM, 4)), DEVICE_TIER_HOST);
    EXPECT_EQ(tier_of(created(CHUNK_GRAD, 3)), DEVICE_TIER_DEVICE); // exactly the rest
    EXPECT_EQ(tier_of(created(CHUNK_OPTIM, 1)), DEVICE_TIER_HOST);
    EXPECT_EQ(create(CHUNK_OPTIM, 12 * UNIT), CASTOR_ERR_MEMORY); // the host has 11
    EXPECT_TRUE(says("48.0 KiB")) << error_text();
    EXPECT_TRUE(says("the host has 44.0 KiB left")) << error_text();
    EXPECT_TRUE(says("larger budget")) << error_text();
    homes_statistics s = statistics();
    EXPECT_EQ(s.refused, 1u);
    EXPECT_EQ(s.budget_bytes, 8 * UNIT);
    EXPECT_EQ(s.bytes[CHUNK_PARAM][DEVICE_TIER_DEVICE], 5 * UNIT);
    EXPECT_EQ(s.bytes[CHUNK_PARAM][DEVICE_TIER_HOST], 4 * UNIT);
    EXPECT_EQ(s.count[CHUNK_PARAM], 2u);
}

TEST_F(HomesTest, AFullDeviceLeadsToTheHostWhole) {
    make(256, 70, 200);
    created(CHUNK_PARAM, 30);
    uintptr_t address = created(CHUNK_PARAM, 70); // the first of its pieces fits
    EXPECT_EQ(tier_of(address), DEVICE_TIER_HOST);
    check();
    EXPECT_EQ(tier_of(created(CHUNK_PARAM, 40)), DEVICE_TIER_DEVICE);
}

TEST_F(HomesTest, TheHostHasALimit) {
    make(256, 4, 100, 0);
    fake_device_others(fake, 0, 60 * UNIT);
    created(CHUNK_OPTIM, 40);
    EXPECT_EQ(create(CHUNK_OPTIM, UNIT), CASTOR_ERR_MEMORY);
    fake_device_others(fake, 0, 59 * UNIT);
    created(CHUNK_OPTIM, 1);
}

/* The host's limit is asked for before pages are made: the driver itself would have made them. */
TEST_F(HomesTest, TheDriversHostRoomDecides) {
    make(256, 4, 100, 0);
    homes *limited = nullptr;
    device_driver small = driver;
    small.host_room = [](void *) -> uint64_t { return 2 * UNIT; };
    ASSERT_EQ(homes_create(&limited, &small, 0, range, units * UNIT, 0), CASTOR_OK);
    home made;
    uint64_t calls = fake_device_calls(fake);
    EXPECT_EQ(home_create(limited, CHUNK_PARAM, 3 * UNIT, &made), CASTOR_ERR_MEMORY);
    EXPECT_EQ(fake_device_calls(fake), calls);
    EXPECT_EQ(home_create(limited, CHUNK_PARAM, 2 * UNIT, &made), CASTOR_OK);
    homes_destroy(limited);
}

TEST_F(HomesTest, PiecesArePowersOfTwo) {
    make(512, 512, 0);
    for (size_t count : {1, 31, 32, 33, 100}) {
        uint64_t maps = fake_device_maps(fake);
        created(CHUNK_PARAM, count);
        EXPECT_EQ(fake_device_maps(fake) - maps, pieces(count));
    }
    EXPECT_EQ(create(CHUNK_PARAM, 1), CASTOR_OK); // one byte takes a unit
    EXPECT_EQ(known[last].is.bytes, UNIT);
}

TEST_F(HomesTest, AFragmentedRange) {
    make(64, 64, 64);
    std::vector<uintptr_t> all;
    for (int i = 0; i < 16; i++)
        all.push_back(created(CHUNK_PARAM, 4));
    EXPECT_EQ(create(CHUNK_PARAM, UNIT), CASTOR_ERR_MEMORY);
    for (size_t i = 0; i < all.size(); i += 2)
        EXPECT_EQ(destroy(all[i]), CASTOR_OK);
    check();
    EXPECT_EQ(create(CHUNK_PARAM, 5 * UNIT), CASTOR_ERR_MEMORY);
    EXPECT_TRUE(says("no addresses")) << error_text();
    EXPECT_TRUE(says("has 16.0 KiB.")) << error_text(); // the longest
    EXPECT_EQ(created(CHUNK_GRAD, 4), all[0]);          // the first that fits
    EXPECT_EQ(created(CHUNK_GRAD, 1), all[2]);
    EXPECT_EQ(destroy(all[5]), CASTOR_OK); // between two holes
    EXPECT_EQ(created(CHUNK_OPTIM, 12), all[4]);
    EXPECT_EQ(created(CHUNK_OPTIM, 3), all[2] + UNIT);
    EXPECT_EQ(create(CHUNK_PARAM, 65 * UNIT), CASTOR_ERR_MEMORY);
    EXPECT_EQ(create(CHUNK_PARAM, SIZE_MAX), CASTOR_ERR_MEMORY);
    EXPECT_EQ(create(CHUNK_PARAM, (size_t)1 << 45),
              CASTOR_ERR_MEMORY); // more units than a number of 32 bits holds
}

TEST_F(HomesTest, Arguments) {
    make(64, 64, 64);
    home made, found;
    EXPECT_EQ(home_create(h, CHUNK_PARAM, 0, &made), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(home_create(h, CHUNK_KIND_COUNT, UNIT, &made), CASTOR_ERR_ARGUMENT);
    uintptr_t address = created(CHUNK_PARAM, 2);
    for (uintptr_t other : {address + UNIT, address + 8, address + 2 * UNIT, address - UNIT,
                            range + 64 * UNIT, (uintptr_t)0, UINTPTR_MAX}) {
        EXPECT_EQ(home_destroy(h, other), CASTOR_ERR_ARGUMENT);
        EXPECT_EQ(home_flip(h, other, DEVICE_TIER_HOST), CASTOR_ERR_ARGUMENT);
    }
    EXPECT_EQ(home_flip(h, address, DEVICE_TIER_COUNT), CASTOR_ERR_ARGUMENT);
    for (uintptr_t other : {address + 2 * UNIT, address - 1, range + 64 * UNIT, (uintptr_t)0, UINTPTR_MAX}) {
        EXPECT_FALSE(home_find(h, other, &found));
        EXPECT_FALSE(home_is_on_host(h, other));
    }
    uintptr_t first, past;
    homes_range(h, &first, &past);
    EXPECT_EQ(first, range);
    EXPECT_EQ(past, range + 64 * UNIT);
    homes *none = nullptr;
    EXPECT_EQ(homes_create(&none, &driver, 0, range, UNIT + 1, 0), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(homes_create(&none, &driver, 0, range + 1, UNIT, 0), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(homes_create(&none, &driver, 0, range, 0, 0), CASTOR_ERR_ARGUMENT);
    device_driver unable = driver;
    unable.granularity = [](void *, int) -> size_t { return 0; };
    EXPECT_EQ(homes_create(&none, &unable, 0, range, UNIT, 0), CASTOR_ERR_UNSUPPORTED);
}

static void raise_flag(void *flag) {
    *static_cast<bool *>(flag) = true;
}

TEST_F(HomesTest, AFlipKeepsTheBytes) {
    make(256, 100, 100);
    uintptr_t address = created(CHUNK_OPTIM, 71);
    created(CHUNK_PARAM, 1);
    bool done = false;
    fake_device_enqueue(fake, 1, raise_flag, &done);
    ASSERT_EQ(home_flip(h, address, DEVICE_TIER_HOST), CASTOR_OK) << error_text();
    EXPECT_TRUE(done); // the device was drained
    EXPECT_EQ(tier_of(address), DEVICE_TIER_HOST);
    check();
    write(known[address]);
    uint64_t drains = fake_device_drains(fake);
    EXPECT_EQ(home_flip(h, address, DEVICE_TIER_HOST), CASTOR_OK); // it is there
    EXPECT_EQ(fake_device_drains(fake), drains);
    ASSERT_EQ(home_flip(h, address, DEVICE_TIER_DEVICE), CASTOR_OK) << error_text();
    EXPECT_EQ(tier_of(address), DEVICE_TIER_DEVICE);
    homes_statistics s = statistics();
    EXPECT_EQ(s.flips[DEVICE_TIER_HOST], 1u);
    EXPECT_EQ(s.flips[DEVICE_TIER_DEVICE], 1u);
    EXPECT_EQ(s.flipped_bytes[DEVICE_TIER_DEVICE], 71 * UNIT);
    EXPECT_EQ(s.peak_bytes[CHUNK_OPTIM][DEVICE_TIER_HOST], 71 * UNIT);
    EXPECT_GT(s.flip_ns, 0u);
}

TEST_F(HomesTest, AFlipNeedsRoom) {
    make(256, 100, 50, 60 * UNIT);
    uintptr_t large = created(CHUNK_PARAM, 51), small = created(CHUNK_PARAM, 9),
              third = created(CHUNK_PARAM, 2);
    EXPECT_EQ(tier_of(third), DEVICE_TIER_HOST);
    uint64_t drains = fake_device_drains(fake);
    EXPECT_EQ(home_flip(h, large, DEVICE_TIER_HOST), CASTOR_ERR_MEMORY);
    EXPECT_TRUE(says("the host, which has 192.0 KiB left")) << error_text();
    EXPECT_EQ(home_flip(h, third, DEVICE_TIER_DEVICE), CASTOR_ERR_MEMORY); // the budget
    EXPECT_TRUE(says("budget of 240.0 KiB")) << error_text();
    EXPECT_EQ(fake_device_drains(fake), drains);
    homes_budget_set(h, UINT64_MAX);
    fake_device_others(fake, 39 * UNIT, 0); // one unit is free
    EXPECT_EQ(home_flip(h, third, DEVICE_TIER_DEVICE), CASTOR_ERR_MEMORY);
    check();
    EXPECT_EQ(home_flip(h, small, DEVICE_TIER_HOST), CASTOR_OK) << error_text();
    EXPECT_EQ(home_flip(h, third, DEVICE_TIER_DEVICE), CASTOR_OK) << error_text();
}

TEST_F(HomesTest, ADrainThatHangsChangesNothing) {
    make(256, 100, 100);
    uintptr_t address = created(CHUNK_PARAM, 40);
    fake_device_drain_hangs(fake, true);
    EXPECT_EQ(home_flip(h, address, DEVICE_TIER_HOST), CASTOR_ERR_TIMEOUT);
    check();
    EXPECT_EQ(homes_evict(h, UNIT), 0u);
    EXPECT_TRUE(says("does not come to rest")) << error_text();
    check();
    EXPECT_EQ(statistics().rescues, 0u);
    fake_device_drain_hangs(fake, false);
    EXPECT_EQ(homes_evict(h, UNIT), 40 * UNIT);
}

TEST_F(HomesTest, EvictionHasAnOrder) {
    make(256, 100, 100);
    uintptr_t parameters[] = {created(CHUNK_PARAM, 2), created(CHUNK_PARAM, 2)};
    uintptr_t states[] = {created(CHUNK_OPTIM, 2), created(CHUNK_OPTIM, 2)};
    uintptr_t gradients[] = {created(CHUNK_GRAD, 2), created(CHUNK_GRAD, 2)};
    for (uintptr_t address :
         {states[1], states[0], gradients[1], gradients[0], parameters[1], parameters[0]}) {
        EXPECT_EQ(homes_evict(h, 1), 2 * UNIT);
        EXPECT_EQ(tier_of(address), DEVICE_TIER_HOST);
        check();
    }
    EXPECT_EQ(homes_evictable(h), 0u);
    uint64_t drains = fake_device_drains(fake);
    EXPECT_EQ(homes_evict(h, 1), 0u); // nothing is left, and the device not drained for it
    EXPECT_EQ(fake_device_drains(fake), drains);
    EXPECT_EQ(statistics().rescues, 6u);
}

TEST_F(HomesTest, EvictionDrainsOnceAndGoesAsFarAsNeeded) {
    make(256, 100, 100);
    for (int i = 0; i < 10; i++)
        created(CHUNK_PARAM, 5);
    uint64_t drains = fake_device_drains(fake);
    EXPECT_EQ(homes_evict(h, 11 * UNIT), 15 * UNIT);
    EXPECT_EQ(fake_device_drains(fake), drains + 1);
    EXPECT_EQ(homes_evict(h, 0), 0u);
    EXPECT_EQ(homes_evict(h, UINT64_MAX), 35 * UNIT);
}

/* A flip back makes a home no younger; one that died is passed over. */
TEST_F(HomesTest, EvictionGoesByBirth) {
    make(256, 100, 100);
    uintptr_t a = created(CHUNK_PARAM, 1), b = created(CHUNK_PARAM, 1), c = created(CHUNK_PARAM, 1);
    uintptr_t d = created(CHUNK_PARAM, 1);
    EXPECT_EQ(home_flip(h, a, DEVICE_TIER_HOST), CASTOR_OK);
    EXPECT_EQ(home_flip(h, a, DEVICE_TIER_DEVICE), CASTOR_OK);
    EXPECT_EQ(destroy(c), CASTOR_OK);
    EXPECT_EQ(homes_evict(h, 2 * UNIT), 2 * UNIT);
    EXPECT_EQ(tier_of(d), DEVICE_TIER_HOST);
    EXPECT_EQ(tier_of(b), DEVICE_TIER_HOST);
    EXPECT_EQ(tier_of(a), DEVICE_TIER_DEVICE);
    EXPECT_EQ(created(CHUNK_PARAM, 1), c); // the youngest, at a lower address
    EXPECT_EQ(homes_evict(h, UNIT), UNIT);
    EXPECT_EQ(tier_of(c), DEVICE_TIER_HOST);
}

TEST_F(HomesTest, EvictionPassesOverWhatTheHostCannotTake) {
    make(256, 100, 10);
    uintptr_t small = created(CHUNK_PARAM, 3), large = created(CHUNK_PARAM, 20);
    EXPECT_EQ(homes_evict(h, 5 * UNIT), 3 * UNIT);
    EXPECT_EQ(tier_of(small), DEVICE_TIER_HOST);
    EXPECT_EQ(tier_of(large), DEVICE_TIER_DEVICE);
    EXPECT_TRUE(says("cannot move to the host")) << error_text();
}

TEST_F(HomesTest, ASmallerBudget) {
    make(256, 100, 100);
    created(CHUNK_PARAM, 20);
    created(CHUNK_OPTIM, 20);
    homes_budget_set(h, 10 * UNIT);
    check(); // what is there stays
    EXPECT_EQ(tier_of(created(CHUNK_PARAM, 1)), DEVICE_TIER_HOST);
    EXPECT_EQ(homes_evict(h, 30 * UNIT), 40 * UNIT);
    EXPECT_EQ(tier_of(created(CHUNK_PARAM, 10)), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(created(CHUNK_PARAM, 1)), DEVICE_TIER_HOST);
    homes_budget_set(h, 11 * UNIT);
    EXPECT_EQ(tier_of(created(CHUNK_PARAM, 1)), DEVICE_TIER_DEVICE);
}

// Look-ups without a lock, beside homes that come, go and move.
TEST_F(HomesTest, Threads) {
    make(256, 60, 200);
    uintptr_t still = created(CHUNK_PARAM, 3);
    std::atomic<bool> over{false};
    std::atomic<int> failures{0};
    auto comes_and_goes = [&](chunk_kind kind, size_t count) {
        for (int i = 0; i < 150; i++) {
            home made, found;
            failures += home_create(h, kind, count * UNIT, &made) != CASTOR_OK;
            memset(reinterpret_cast<void *>(made.address), i, made.bytes);
            failures += !home_find(h, made.address, &found) || found.bytes != made.bytes;
            if (i % 4 == 0)
                home_flip(h, made.address, DEVICE_TIER_HOST);
            failures += *reinterpret_cast<unsigned char *>(made.address + made.bytes - 1) != i;
            failures += home_destroy(h, made.address) != CASTOR_OK;
        }
    };
    std::thread reader([&] {
        while (!over) {
            failures += home_is_on_host(h, still);
            failures += homes_evictable(h) > 60 * UNIT;
            homes_statistics s;
            homes_statistics_get(h, &s);
            failures += homes_check(h) != CASTOR_OK;
        }
    });
    std::thread one(comes_and_goes, CHUNK_GRAD, 33), other(comes_and_goes, CHUNK_OPTIM, 20);
    one.join();
    other.join();
    over = true;
    reader.join();
    EXPECT_EQ(failures, 0);
}
