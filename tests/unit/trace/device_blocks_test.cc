/* What a device's memory held when it was fullest. */
#include <array>
#include <map>
#include <random>
#include "fixture.h"

extern "C" {
#include "trace/counters.h"
#include "trace/device_blocks.h"
}

namespace {

using Parts = std::array<uint64_t, DEVICE_PART_COUNT>;

class DeviceBlocks : public TraceTest {
  protected:
    void SetUp() override {
        TraceTest::SetUp();
        device_blocks_reset();
    }
    void TearDown() override {
        device_blocks_reset();
        TraceTest::TearDown();
    }
    static Parts parts(int device) {
        Parts found{};
        device_blocks_write();
        for (int part = 0; part < DEVICE_PART_COUNT; part++)
            found[part] = counters_get()
                              ->counters[trace_slot(TRACE_PEAK, device_part_id(device, device_part(part)))]
                              .bytes;
        return found;
    }
};

TEST_F(DeviceBlocks, ThePeakKeepsWhatWasFreedSince) {
    device_blocks_note(0, 0x1000, 100, 512);
    device_blocks_note(0, 0x2000, 50, 512);
    device_blocks_note(1, 0x9000, 7, 512);
    EXPECT_TRUE(device_blocks_risen());
    EXPECT_FALSE(device_blocks_risen());
    device_blocks_tell(0x1000, DEVICE_PART_PARAM);
    device_blocks_tell(0x2010, DEVICE_PART_GRAD);  // inside of the block
    device_blocks_tell(0x5000, DEVICE_PART_OPTIM); // in none
    device_blocks_note(0, 0x2000, -50, 512);
    device_blocks_note(0, 0x3000, 20, 1024); // after the peak
    EXPECT_FALSE(device_blocks_risen());
    device_blocks_note_used(0, 2048);
    EXPECT_EQ(parts(0), (Parts{100, 50, 0, 0, 1024, 0, 2048}));
    EXPECT_EQ(parts(1), (Parts{0, 0, 0, 7, 512, 0, 0}));
    device_blocks_note(0, 0x2000, 60, 1024); // a higher peak, of the same address: nothing is known of it
    EXPECT_TRUE(device_blocks_risen());
    EXPECT_EQ(parts(0), (Parts{100, 0, 0, 80, 1024, 0, 2048}));
}

TEST_F(DeviceBlocks, AShortageIsAWholeSegment) {
    const uint64_t mib = 1 << 20;
    device_blocks_note(0, 0x1000, 100, 8 * mib);
    device_blocks_note_shortage(0, mib, 8 * mib);
    EXPECT_EQ(parts(0)[DEVICE_PART_NEEDED], 10 * mib);
    device_blocks_note_shortage(0, 4 * mib, 8 * mib);
    EXPECT_EQ(parts(0)[DEVICE_PART_NEEDED], 28 * mib);
    device_blocks_note_shortage(0, 33 * mib, 8 * mib);
    EXPECT_EQ(parts(0)[DEVICE_PART_NEEDED], 42 * mib);
    device_blocks_note_shortage(0, 1, 8 * mib);
    EXPECT_EQ(parts(0)[DEVICE_PART_NEEDED], 42 * mib);
}

/* Beside a copy of all that lives, taken whenever there is more of it than ever. */
TEST_F(DeviceBlocks, AnyOrder) {
    struct Block {
        uint64_t bytes, number;
        device_part part;
    };
    std::mt19937_64 random(5);
    std::map<uint64_t, Block> live, peak; // by address; by number
    const int FILLING = 4000;             // beyond the table's first size
    uint64_t bytes = 0, most = 0, number = 0;
    auto keep = [&] {
        most = bytes;
        peak.clear();
        for (auto &[at, one] : live)
            peak[one.number] = one;
    };
    for (int round = 0; round < 9000; round++) {
        if (round == FILLING)
            keep();
        uint64_t address = (random() % 5000 + 1) << 9;
        auto found = live.find(address);
        if (found == live.end() && (round < FILLING || random() % 2)) {
            Block block = {random() % 512 + 1, ++number, DEVICE_PART_OTHER};
            device_blocks_note(3, address, int64_t(block.bytes), 0);
            live[address] = block;
            bytes += block.bytes;
            if (bytes > most && round >= FILLING)
                keep();
        } else if (found == live.end() || round < FILLING) {
            continue;
        } else if (random() % 3 == 0) {
            found->second.part = device_part(random() % DEVICE_PARTS_OF_PEAK);
            device_blocks_tell(address + random() % found->second.bytes, found->second.part);
            auto held = peak.find(found->second.number);
            if (held != peak.end())
                held->second.part = found->second.part;
        } else {
            device_blocks_note(3, address, -int64_t(found->second.bytes), 1);
            bytes -= found->second.bytes;
            live.erase(found);
        }
    }
    Parts expected{};
    for (auto &[of, one] : peak)
        expected[one.part] += one.bytes;
    expected[DEVICE_PART_RESERVED] = 1;
    EXPECT_EQ(parts(3), expected);
}

} // namespace
