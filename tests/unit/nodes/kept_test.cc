// What a rank keeps for others, read over a connection of this process to itself, from a fake device.
#include <gtest/gtest.h>
#include <unistd.h>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "base/error.h"
#include "device/devices.h"
#include "nodes/kept.h"
}
#include "tests/support/fake_device.h"

namespace {

constexpr uint64_t NAME = 7, MIB = 1 << 20;
const char *const TOKEN = "token of this job";

class Kept : public testing::Test {
  protected:
    void SetUp() override {
        fake_device_settings settings = {64 << 10, 64 * MIB, 64 * MIB, 1, FAKE_HOST_PAGES};
        fake = fake_device_make(&settings, &driver);
        devices_settings of_device = {32 * MIB, UINT64_MAX, {}};
        ASSERT_EQ(devices_start(&driver, 0, &of_device), CASTOR_OK) << error_text();
        ASSERT_EQ(devices_home_create(0, CHUNK_OPTIM, 9 * MIB, &made), CASTOR_OK) << error_text();
        ASSERT_EQ(kept_serve(TOKEN, "127.0.0.1", &port), CASTOR_OK) << error_text();
        auto *bytes = reinterpret_cast<unsigned char *>(made.address);
        for (size_t i = 0; i < made.bytes; i++)
            bytes[i] = (unsigned char)(i * 31 + i / 4096);
        peer = fetch_peer_of("127.0.0.1", port, TOKEN, 0.6);
        ASSERT_EQ(fetch_open(&peer, false), CASTOR_OK) << error_text();
    }
    void TearDown() override { fetch_close(&peer); }
    castor_status show(uint64_t version, bool lasts = false) {
        kept_range ranges[] = {{made.address, 5 * MIB}, {made.address + 5 * MIB, 100}};
        return kept_show(NAME, version, lasts, 0, 1, "directory", 9, ranges, 2);
    }

    device_driver driver;
    fake_device *fake;
    home made;
    int port;
    fetch_peer peer;
};

// One test: the devices of a process are started once.
TEST_F(Kept, IsWhatTheStepHasLeft) {
    void *directory;
    uint64_t bytes;
    std::vector<unsigned char> got(5 * MIB);

    // Nothing is there yet: who asks waits, and not for ever.
    EXPECT_EQ(kept_directory(&peer, NAME, 1, &directory, &bytes), CASTOR_ERR_TIMEOUT);
    EXPECT_NE(strstr(error_text(), "CASTOR_TIMEOUT"), nullptr) << error_text();

    // The device must have come there first.
    ASSERT_EQ(show(1), CASTOR_OK) << error_text();
    EXPECT_EQ(kept_directory(&peer, NAME, 1, &directory, &bytes), CASTOR_ERR_TIMEOUT);
    fake_device_run_all(fake);
    ASSERT_EQ(kept_directory(&peer, NAME, 1, &directory, &bytes), CASTOR_OK) << error_text();
    EXPECT_EQ(std::string((char *)directory, bytes), "directory");
    free(directory);

    ASSERT_EQ(kept_read(&peer, NAME, 1, 0, got.data(), 5 * MIB), CASTOR_OK) << error_text();
    EXPECT_EQ(memcmp(got.data(), (void *)made.address, 5 * MIB), 0);
    ASSERT_EQ(kept_read(&peer, NAME, 1, 1, got.data(), 100), CASTOR_OK) << error_text();
    EXPECT_EQ(memcmp(got.data(), (char *)made.address + 5 * MIB, 100), 0);

    // What is not there is an error at once, and the connection goes on.
    EXPECT_EQ(kept_read(&peer, NAME, 1, 2, got.data(), 100), CASTOR_ERR_PEER);
    EXPECT_EQ(kept_read(&peer, NAME, 1, 1, got.data(), 101), CASTOR_ERR_PEER);

    // A step runs: the next version comes when it is over, and the last one is gone then.
    kept_hide(NAME);
    EXPECT_EQ(kept_read(&peer, NAME, 1, 1, got.data(), 100), CASTOR_ERR_TIMEOUT);
    std::thread owner([&] {
        usleep(50000);
        ((char *)made.address)[5 * MIB] = 42;
        EXPECT_EQ(show(2), CASTOR_OK);
        fake_device_run_all(fake);
    });
    EXPECT_EQ(kept_read(&peer, NAME, 2, 1, got.data(), 100), CASTOR_OK) << error_text();
    owner.join();
    EXPECT_EQ(got[0], 42);
    EXPECT_EQ(kept_read(&peer, NAME, 1, 1, got.data(), 100), CASTOR_ERR_PEER);

    // What lasts can be read beside the next version, and no longer.
    ASSERT_EQ(show(3, true), CASTOR_OK);
    EXPECT_EQ(kept_read(&peer, NAME, 2, 1, got.data(), 100), CASTOR_OK) << error_text();
    EXPECT_EQ(kept_read(&peer, NAME, 3, 1, got.data(), 100), CASTOR_ERR_TIMEOUT);
    fake_device_run_all(fake);
    EXPECT_EQ(kept_read(&peer, NAME, 3, 1, got.data(), 100), CASTOR_OK) << error_text();

    // Nor before the device has come to it, though the next version is shown already.
    ASSERT_EQ(show(3, true), CASTOR_OK);
    ASSERT_EQ(show(4, true), CASTOR_OK);
    EXPECT_EQ(kept_read(&peer, NAME, 3, 1, got.data(), 100), CASTOR_ERR_TIMEOUT);
    fake_device_run_all(fake);
    EXPECT_EQ(kept_read(&peer, NAME, 3, 1, got.data(), 100), CASTOR_OK) << error_text();
    ASSERT_EQ(show(5), CASTOR_OK);
    fake_device_run_all(fake);
    EXPECT_EQ(kept_read(&peer, NAME, 3, 1, got.data(), 100), CASTOR_ERR_PEER);

    // The memory is the owner's again when the others say that they ask no more; then it is gone.
    EXPECT_EQ(kept_drops(NAME), 0u);
    ASSERT_EQ(kept_drop(&peer, NAME), CASTOR_OK) << error_text();
    ASSERT_EQ(kept_drop(&peer, NAME), CASTOR_OK) << error_text();
    EXPECT_EQ(kept_drops(NAME), 2u);
    EXPECT_EQ(kept_read(&peer, NAME, 5, 1, got.data(), 100), CASTOR_OK) << error_text();
    kept_end(NAME);
    EXPECT_EQ(kept_read(&peer, NAME, 5, 1, got.data(), 100), CASTOR_ERR_PEER);
    // Who drops before anything was shown counts as well.
    ASSERT_EQ(kept_drop(&peer, NAME + 1), CASTOR_OK) << error_text();
    EXPECT_EQ(kept_drops(NAME + 1), 1u);

    // Who does not know the token gets nothing.
    fetch_peer stranger = fetch_peer_of("127.0.0.1", port, "another token", 0.6);
    ASSERT_EQ(fetch_open(&stranger, false), CASTOR_OK);
    EXPECT_EQ(kept_read(&stranger, NAME, 4, 1, got.data(), 100), CASTOR_ERR_PEER);
    fetch_close(&stranger);
}

} // namespace
