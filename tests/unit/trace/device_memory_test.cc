/* What was allocated on devices and not freed yet. */
#include <map>
#include <random>
#include "fixture.h"

extern "C" {
#include "trace/device_memory.h"
}

namespace {

class DeviceMemory : public testing::Test {
  protected:
    void SetUp() override { device_memory_reset(); }
    void TearDown() override { device_memory_reset(); }
};

TEST_F(DeviceMemory, CountsWhatLives) {
    device_memory_note(DEVICE_MEMORY_ALLOCATE, 0x1000, 100);
    device_memory_note(DEVICE_MEMORY_ALLOCATE, 0x2000, 30);
    EXPECT_EQ(device_memory_bytes(), 130u);
    device_memory_note(DEVICE_MEMORY_FREE, 0x1000, 0);
    device_memory_note(DEVICE_MEMORY_FREE, 0x1000, 0);
    device_memory_note(DEVICE_MEMORY_FREE, 0x3000, 0); // not ours
    device_memory_note(DEVICE_MEMORY_FREE, 0, 0);      // cudaFree(NULL)
    EXPECT_EQ(device_memory_bytes(), 30u);
    device_memory_note(DEVICE_MEMORY_ALLOCATE, 0x2000, 50); // the free was not seen
    EXPECT_EQ(device_memory_bytes(), 50u);
    device_memory_reset();
    EXPECT_EQ(device_memory_bytes(), 0u);
}

/* More than the table holds are not counted, and leave it as it was. */
TEST_F(DeviceMemory, AFullTable) {
    for (uint64_t i = 1; i <= 40000; i++)
        device_memory_note(DEVICE_MEMORY_ALLOCATE, i << 21, 1);
    EXPECT_EQ(device_memory_bytes(), 16384u);
    for (uint64_t i = 1; i <= 40000; i++)
        device_memory_note(DEVICE_MEMORY_FREE, i << 21, 0);
    EXPECT_EQ(device_memory_bytes(), 0u);
}

TEST_F(DeviceMemory, AnyOrder) {
    std::mt19937_64 random(7);
    std::map<uint64_t, uint64_t> live;
    uint64_t bytes = 0;
    for (int round = 0; round < 60000; round++) {
        uint64_t object = (random() % 9000 + 1) << 9; // collisions, and runs that wrap around the table
        auto found = live.find(object);
        if (found != live.end() || random() % 2) {
            device_memory_note(DEVICE_MEMORY_FREE, object, 0);
            bytes -= found == live.end() ? 0 : found->second;
            live.erase(object);
        } else {
            uint64_t more = random() % 1000;
            device_memory_note(DEVICE_MEMORY_ALLOCATE, object, more);
            live[object] = more;
            bytes += more;
        }
        ASSERT_EQ(device_memory_bytes(), bytes);
    }
    for (const auto &[object, more] : live)
        device_memory_note(DEVICE_MEMORY_FREE, object, 0);
    EXPECT_EQ(device_memory_bytes(), 0u);
}

} // namespace
