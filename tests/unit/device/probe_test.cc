/* What a probe finds of a device: each level, and what it leaves. */
#include <gtest/gtest.h>
#include <string>

extern "C" {
#include "base/error.h"
#include "device/probe.h"
}
#include "tests/support/fake_device.h"

namespace {

constexpr size_t MIB = 1 << 20;

class Probe : public testing::Test {
  protected:
    device_driver driver;
    fake_device *fake = nullptr;
    device_probe found;

    void make(uint64_t device_bytes, uint64_t host_bytes, fake_host host = FAKE_HOST_PAGES) {
        fake_device_settings settings = {2 * MIB, device_bytes, host_bytes, 1, host};
        fake = fake_device_make(&settings, &driver);
    }
    castor_status probe() { return device_probe_run(&driver, 0, 7 * MIB, &found); }
    void TearDown() override {
        EXPECT_EQ(fake_device_maps(fake), 0u);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 0u);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_HOST), 0u);
        EXPECT_EQ(fake_device_broken(fake), nullptr) << fake_device_broken(fake);
        fake_device_end(fake);
    }
};

TEST_F(Probe, AllLevels) {
    make(100 * MIB, 80 * MIB);
    EXPECT_EQ(probe(), CASTOR_OK) << error_text();
    EXPECT_EQ(found.level, DEVICE_LEVEL_FLIPS);
    EXPECT_EQ(found.unit_bytes, 2 * MIB);
    EXPECT_EQ(found.total_bytes, 100 * MIB);
    EXPECT_EQ(found.free_bytes, 100 * MIB);
    EXPECT_EQ(found.host_bytes, 80 * MIB);
    EXPECT_EQ(found.copy_bytes, 8 * MIB);
    EXPECT_GT(found.copy_ns[DEVICE_TIER_DEVICE], 0u);
    EXPECT_GT(found.copy_ns[DEVICE_TIER_HOST], 0u);
}

TEST_F(Probe, TheDeviceIsFull) {
    make(6 * MIB, 80 * MIB);
    EXPECT_EQ(probe(), CASTOR_ERR_MEMORY);
    EXPECT_EQ(found.level, DEVICE_LEVEL_NONE);
    EXPECT_EQ(found.total_bytes, 6 * MIB);
}

TEST_F(Probe, NoPagesOfTheHost) {
    make(100 * MIB, 6 * MIB);
    EXPECT_EQ(probe(), CASTOR_ERR_MEMORY);
    EXPECT_EQ(found.level, DEVICE_LEVEL_PAGES);
    EXPECT_EQ(found.copy_ns[DEVICE_TIER_HOST], 0u);
}

TEST_F(Probe, ADeviceThatDoesNotComeToRest) {
    make(100 * MIB, 80 * MIB);
    fake_device_drain_hangs(fake, true);
    EXPECT_EQ(probe(), CASTOR_ERR_TIMEOUT);
    EXPECT_EQ(found.level, DEVICE_LEVEL_HOST_PAGES);
    EXPECT_GT(found.copy_ns[DEVICE_TIER_HOST], 0u);
}

TEST_F(Probe, NoUnit) {
    make(100 * MIB, 80 * MIB);
    driver.granularity = [](void *, int) -> size_t {
        error_set(CASTOR_ERR_UNSUPPORTED, "device 0 cannot map memory");
        return 0;
    };
    EXPECT_EQ(probe(), CASTOR_ERR_UNSUPPORTED);
    EXPECT_STREQ(error_text(), "device 0 cannot map memory");
    EXPECT_EQ(found.level, DEVICE_LEVEL_NONE);
}

TEST_F(Probe, ADriverThatMapsNoPagesOfTheHost) {
    make(100 * MIB, 80 * MIB, FAKE_HOST_BLOCKS);
    EXPECT_EQ(probe(), CASTOR_ERR_UNSUPPORTED);
    EXPECT_STREQ(error_text(), "the device maps no pages of the host");
    EXPECT_EQ(found.level, DEVICE_LEVEL_HOST_MEMORY);
    EXPECT_GT(found.copy_ns[DEVICE_TIER_DEVICE], 0u);
    EXPECT_GT(found.copy_ns[DEVICE_TIER_HOST], 0u);
}

TEST_F(Probe, ADriverThatTakesNoMemoryOfTheHost) {
    make(100 * MIB, 80 * MIB, FAKE_HOST_NONE);
    EXPECT_EQ(probe(), CASTOR_ERR_UNSUPPORTED);
    EXPECT_EQ(found.level, DEVICE_LEVEL_NONE);
}

/* A driver that says that it has copied, and has not. */
TEST_F(Probe, BytesThatDoNotArrive) {
    make(100 * MIB, 80 * MIB);
    driver.copy = [](void *, int, uintptr_t, uintptr_t, size_t) { return CASTOR_OK; };
    EXPECT_EQ(probe(), CASTOR_ERR_MISMATCH);
    EXPECT_EQ(found.level, DEVICE_LEVEL_NONE);
    EXPECT_NE(std::string(error_text()).find("pages of the device"), std::string::npos) << error_text();
}

/* A flip whose bytes stay behind, that of each direction. */
TEST_F(Probe, FlipsThatLoseBytes) {
    static device_driver real;
    static int left;
    make(100 * MIB, 80 * MIB);
    real = driver;
    driver.copy = [](void *context, int device, uintptr_t to, uintptr_t from, size_t bytes) {
        bool of_a_flip = bytes == 2 * MIB && left-- == 0;
        return of_a_flip ? CASTOR_OK : real.copy(context, device, to, from, bytes);
    };
    for (const char *where : {"to the host's pages", "back to the device's pages"}) {
        left = where[0] == 'b';
        EXPECT_EQ(probe(), CASTOR_ERR_MISMATCH);
        EXPECT_EQ(found.level, DEVICE_LEVEL_HOST_PAGES);
        EXPECT_NE(std::string(error_text()).find(where), std::string::npos) << error_text();
    }
}

/* Whatever fails, the probe says so and gives back what it took. */
TEST_F(Probe, EachCallFails) {
    for (fake_host host : {FAKE_HOST_PAGES, FAKE_HOST_BLOCKS}) {
        if (fake)
            TearDown();
        make(100 * MIB, 80 * MIB, host);
        device_level most = host == FAKE_HOST_PAGES ? DEVICE_LEVEL_FLIPS : DEVICE_LEVEL_HOST_MEMORY;
        probe();
        ASSERT_EQ(found.level, most);
        uint64_t calls = fake_device_calls(fake);
        for (uint64_t call = 1; call <= calls; call++) {
            fake_device_fail(fake, fake_device_calls(fake) + call, false);
            castor_status status = probe();
            if (host == FAKE_HOST_PAGES)
                EXPECT_EQ(status == CASTOR_OK, found.level == most) << call;
            else
                EXPECT_NE(status, CASTOR_OK);
            fake_device_fail(fake, 0, false);
        }
        probe();
        ASSERT_EQ(found.level, most);
    }
}

} // namespace
