// Homes where the driver maps no pages of the host: what is there lies outside of the range, and nothing moves.
#include "homes_fixture.h"

extern "C" {
#include "device/devices.h"
}

class HomesFixedTest : public HomesTest {
  protected:
    void SetUp() override { host = FAKE_HOST_BLOCKS; }
    bool in_range(uintptr_t address) const { return address - range < units * UNIT; }
};

TEST_F(HomesFixedTest, TheHostTakesWhatTheBudgetDoesNot) {
    make(256, 100, 160, 10 * UNIT);
    EXPECT_TRUE(homes_are_fixed(h));
    uintptr_t there = created(CHUNK_PARAM, 8), on_host = created(CHUNK_PARAM, 43),
              again = created(CHUNK_OPTIM, 2);
    EXPECT_EQ(tier_of(there), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(on_host), DEVICE_TIER_HOST);
    EXPECT_EQ(tier_of(again), DEVICE_TIER_DEVICE);
    EXPECT_TRUE(in_range(there));
    EXPECT_FALSE(in_range(on_host));
    home found;
    EXPECT_FALSE(home_find(h, on_host - 1, &found));
    EXPECT_FALSE(home_find(h, on_host + 43 * UNIT, &found));
    EXPECT_EQ(homes_unit(h, on_host - 1), HOMES_NO_UNIT);
    EXPECT_EQ(homes_unit(h, on_host + 43 * UNIT), HOMES_NO_UNIT);
    EXPECT_EQ(homes_unit(h, UINTPTR_MAX), HOMES_NO_UNIT);
    EXPECT_FALSE(home_is_on_host(h, on_host + 43 * UNIT));
    uintptr_t first, past;
    homes_range(h, &first, &past);
    EXPECT_EQ(first, range);
    EXPECT_EQ(past, range + 256 * UNIT);
    check();
}

TEST_F(HomesFixedTest, TheHostTakesWhatTheDeviceDoesNot) {
    make(256, 20, 160);
    uintptr_t there = created(CHUNK_PARAM, 12), on_host = created(CHUNK_PARAM, 12);
    EXPECT_EQ(tier_of(there), DEVICE_TIER_DEVICE);
    EXPECT_EQ(tier_of(on_host), DEVICE_TIER_HOST);
    EXPECT_EQ(destroy(there), CASTOR_OK);
    EXPECT_EQ(destroy(on_host), CASTOR_OK);
    EXPECT_EQ(destroy(on_host), CASTOR_ERR_ARGUMENT);
}

TEST_F(HomesFixedTest, NothingMoves) {
    make(256, 100, 160, 10 * UNIT);
    uintptr_t there = created(CHUNK_OPTIM, 8), on_host = created(CHUNK_PARAM, 8);
    EXPECT_EQ(homes_evict(h, UNIT), 0u);
    EXPECT_EQ(home_flip(h, there, DEVICE_TIER_HOST), CASTOR_ERR_UNSUPPORTED);
    EXPECT_EQ(home_flip(h, on_host, DEVICE_TIER_DEVICE), CASTOR_ERR_UNSUPPORTED);
    EXPECT_TRUE(says("moves no homes")) << error_text();
    EXPECT_EQ(home_flip(h, on_host, DEVICE_TIER_HOST), CASTOR_OK);
    homes_budget_set(h, UINT64_MAX);
    for (int step = 0; step < 2 * HOMES_RETURN_STEPS; step++)
        EXPECT_FALSE(homes_step_end(h));
    EXPECT_EQ(tier_of(on_host), DEVICE_TIER_HOST);
}

TEST_F(HomesFixedTest, NoRoomAnywhere) {
    make(256, 20, 30);
    created(CHUNK_PARAM, 20);
    created(CHUNK_PARAM, 20);
    EXPECT_EQ(create(CHUNK_PARAM, 12 * UNIT), CASTOR_ERR_MEMORY);
    EXPECT_TRUE(says("and the host has 40.0 KiB left")) << error_text();
    EXPECT_EQ(create(CHUNK_PARAM, 10 * UNIT), CASTOR_OK);
}

TEST_F(HomesFixedTest, EachCallFails) {
    make(256, 100, 160, 0);
    created(CHUNK_PARAM, 3);
    for (castor_status with : {CASTOR_ERR_MEMORY, CASTOR_ERR_SYSTEM}) {
        fake_device_fail_with(fake, with);
        fake_device_fail(fake, fake_device_calls(fake) + 1, true);
        EXPECT_EQ(create(CHUNK_PARAM, 5 * UNIT), with);
        EXPECT_EQ(destroy(last), with);
        check();
        fake_device_fail(fake, 0, false);
        uintptr_t made = created(CHUNK_PARAM, 5);
        EXPECT_EQ(destroy(made), CASTOR_OK);
        last = known.begin()->first;
    }
}

TEST_F(HomesFixedTest, AddressesBeyondTheTable) {
    make(256, 100, 160, 0);
    static uint64_t ended;
    device_driver far = driver;
    far.host_make = [](void *, int, size_t, uintptr_t *address, uint64_t *block) {
        *address = uintptr_t(1) << 52;
        *block = 77;
        return CASTOR_OK;
    };
    far.host_end = [](void *, int, uint64_t block) {
        ended = block;
        return CASTOR_OK;
    };
    homes *other;
    home made;
    ASSERT_EQ(homes_create(&other, &far, 0, range, units * UNIT, 0), CASTOR_OK);
    EXPECT_EQ(home_create(other, CHUNK_PARAM, UNIT, &made), CASTOR_ERR_SYSTEM);
    EXPECT_TRUE(says("beyond 48 bits")) << error_text();
    EXPECT_EQ(ended, 77u);
    EXPECT_EQ(homes_check(other), CASTOR_OK);
    homes_destroy(other);
}

// Every home is in the range that one comparison decides about, and is its own device's, wherever the driver has put it.
static int devices_find_them() {
    fake_device_settings settings = {UNIT, 64 * UNIT, 4096 * UNIT, 7, FAKE_HOST_BLOCKS};
    device_driver driver;
    fake_device_make(&settings, &driver);
    devices_settings of = {256 * UNIT, 0, {}};
    std::vector<home> made[2];
    int wrong = 0;
    for (int device = 0; device < 2; device++)
        wrong += devices_start(&driver, device, &of) != CASTOR_OK;
    for (int i = 0; i < 40; i++) {
        home one;
        wrong += devices_home_create(i % 2, CHUNK_PARAM, (1 + i % 3) * UNIT, &one) != CASTOR_OK;
        made[i % 2].push_back(one);
        for (int device = 0; device < 2; device++)
            for (const home &is : made[device]) {
                uintptr_t past = is.address + is.bytes;
                wrong += is.tier != DEVICE_TIER_HOST;
                wrong += !devices_may_hold(is.address) || !devices_may_hold(past - 1);
                wrong += devices_find(is.address) != device || devices_find(past - 1) != device;
                wrong += devices_find(is.address - 1) != -1 || devices_find(past) != -1;
            }
    }
    for (const home &is : made[1]) {
        wrong += home_destroy(devices_homes(1), is.address) != CASTOR_OK;
        wrong += devices_find(is.address) != -1;
    }
    for (const home &is : made[0])
        wrong += devices_find(is.address) != 0;
    return wrong > 100 ? 100 : wrong;
}

TEST_F(HomesFixedTest, DevicesFindThem) {
    GTEST_FLAG_SET(death_test_style, "threadsafe"); // a process where no device was started
    EXPECT_EXIT(exit(devices_find_them()), testing::ExitedWithCode(0), "");
}
