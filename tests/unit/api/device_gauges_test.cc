/* What the trace gets of devices: homes, slots, what stayed outside, what else was allocated. */
#include "tests/unit/trace/fixture.h"

extern "C" {
#include "api/gauges.h"
#include "castor.h"
#include "device/devices.h"
#include "trace/device_memory.h"
}
#include "tests/support/fake_device.h"

namespace {

constexpr uint64_t UNIT = 65536;

class DeviceGauges : public TraceTest {
  protected:
    /* A device is never ended: each test is a process. */
    void run(const std::function<void(fake_device *)> &body) {
        run_child([&] {
            device_driver driver;
            fake_device_settings settings = {UNIT, 256 * UNIT, 256 * UNIT, 1, FAKE_HOST_PAGES};
            fake_device *fake = fake_device_make(&settings, &driver);
            trace_start(directory.c_str(), 1 << 20, 0);
            gauges_start();
            devices_settings of_device = {
                .reserved_bytes = 1024 * UNIT, .budget_bytes = 160 * UNIT, .placement = {}};
            ASSERT_EQ(devices_start(&driver, 0, &of_device), CASTOR_OK) << castor_error();
            body(fake);
            trace_flush();
        });
    }
    uint64_t last(trace_gauge gauge) const { return read_only_counters()->gauges[gauge].last; }
};

TEST_F(DeviceGauges, HomesCountThemselves) {
    run([](fake_device *) {
        home param, grad, optim;
        ASSERT_EQ(home_create(devices_homes(0), CHUNK_PARAM, 3 * UNIT, &param), CASTOR_OK);
        ASSERT_EQ(home_create(devices_homes(0), CHUNK_GRAD, 2 * UNIT, &grad), CASTOR_OK);
        ASSERT_EQ(home_create(devices_homes(0), CHUNK_OPTIM, 5 * UNIT, &optim), CASTOR_OK);
        ASSERT_EQ(home_flip(devices_homes(0), optim.address, DEVICE_TIER_HOST), CASTOR_OK);
        ASSERT_EQ(home_flip(devices_homes(0), grad.address, DEVICE_TIER_HOST), CASTOR_OK);
        ASSERT_EQ(home_flip(devices_homes(0), grad.address, DEVICE_TIER_DEVICE), CASTOR_OK);
        EXPECT_EQ(homes_evict(devices_homes(0), UNIT), 2 * UNIT);
        /* A parameter in a home, one outside, and one on the CPU. */
        uint64_t addresses[] = {param.address + 64, 4096}, bytes[] = {100, 70};
        uint8_t kinds[] = {0, 0};
        device_memory_note(DEVICE_MEMORY_ALLOCATE, 4096, 1000);
        castor_event_device_data(addresses, bytes, kinds, 2);
        castor_event_device_copied(0, CASTOR_HOME_DEVICE, 11, nullptr);
        castor_event_device_copied(0, CASTOR_HOME_HOST, 13, nullptr);
        castor_event_model_data(5, 0, 0);
        castor_memory memory;
        castor_memory_get(&memory);
        EXPECT_EQ(memory.bytes[CHUNK_PARAM][0], 3 * UNIT + 70);
        EXPECT_EQ(memory.bytes[CHUNK_PARAM][1], 5u);
        EXPECT_EQ(memory.bytes[CHUNK_GRAD][1], 2 * UNIT);
        EXPECT_EQ(memory.bytes[CHUNK_OPTIM][0], 0u);
        EXPECT_EQ(memory.bytes[CHUNK_OPTIM][1], 5 * UNIT);
    });
    EXPECT_EQ(last(GAUGE_PARAM_BYTES), 3 * UNIT + 70 + 5);
    EXPECT_EQ(last(GAUGE_DEVICE_PARAM_BYTES), 3 * UNIT + 70);
    EXPECT_EQ(last(GAUGE_GRAD_BYTES), 2 * UNIT);
    EXPECT_EQ(last(GAUGE_DEVICE_GRAD_BYTES), 0u);
    EXPECT_EQ(last(GAUGE_OPTIM_BYTES), 5 * UNIT);
    EXPECT_EQ(last(GAUGE_DEVICE_OPTIM_BYTES), 0u);
    EXPECT_EQ(last(GAUGE_DEVICE_OUTSIDE_BYTES), 70u);
    EXPECT_EQ(last(GAUGE_DEVICE_OTHER_BYTES), 930u);
    EXPECT_EQ(last(GAUGE_DEVICE_SLOTS_BYTES), 0u); // nothing was copied yet
    EXPECT_GT(last(GAUGE_DEVICE_BUDGET_BYTES), 0u);
    EXPECT_LT(last(GAUGE_DEVICE_BUDGET_BYTES), 160 * UNIT);
    EXPECT_EQ(last(GAUGE_FLIPS_TO_HOST), 3u);
    EXPECT_EQ(last(GAUGE_FLIPPED_TO_HOST_BYTES), 9 * UNIT);
    EXPECT_EQ(last(GAUGE_FLIPS_TO_DEVICE), 1u);
    EXPECT_EQ(last(GAUGE_FLIPPED_TO_DEVICE_BYTES), 2 * UNIT);
    EXPECT_EQ(last(GAUGE_RESCUES), 1u);
    EXPECT_EQ(last(GAUGE_LINK_TO_HOST_BYTES), 9 * UNIT + 13);
    EXPECT_EQ(last(GAUGE_LINK_TO_DEVICE_BYTES), 2 * UNIT + 11);
    /* Each flip is a record, with its reason. */
    std::vector<std::string> flips;
    auto counters = read_only_counters();
    for (const trace_record &record : read_records_of(TRACE_CHUNK)) {
        flips.push_back(trace_read_name(counters.get(), TRACE_CHUNK, record.id));
        EXPECT_GE(record.end_ns, record.begin_ns);
        EXPECT_EQ(record.bytes, record.a == CHUNK_OPTIM ? 5 * UNIT : 2 * UNIT);
    }
    EXPECT_EQ(flips, (std::vector<std::string>{"home to host", "home to host", "home to device",
                                               "home to host, for an allocation"}));
}

TEST_F(DeviceGauges, Slots) {
    run([](fake_device *fake) {
        home param;
        ASSERT_EQ(home_create(devices_homes(0), CHUNK_PARAM, UNIT, &param), CASTOR_OK);
        ASSERT_EQ(home_flip(devices_homes(0), param.address, DEVICE_TIER_HOST), CASTOR_OK);
        slots *s = devices_slots(0);
        ASSERT_EQ(slots_storage_add(s, param.address, UNIT), CASTOR_OK);
        for (int step = 0; step < 3; step++) {
            slot_use use = slot_use_begin(s, param.address, UNIT, 1);
            slot_use_end(s, &use);
            fake_device_run_all(fake);
            slots_step_end(s);
        }
        slots_written(s, param.address, UNIT, 1);
        castor_event_device_copied(0, CASTOR_HOME_DEVICE, 30, reinterpret_cast<void *>(2));
        castor_event_device_copied(0, CASTOR_HOME_HOST, 40, reinterpret_cast<void *>(3));
        fake_device_run_all(fake);
        castor_event_devices_end();
    });
    EXPECT_EQ(last(GAUGE_SLOT_USES), 3u);
    EXPECT_GT(last(GAUGE_SLOT_HITS), 0u);
    EXPECT_GT(last(GAUGE_SLOT_COPIES), 0u);
    EXPECT_EQ(last(GAUGE_SLOT_COPIED_BYTES), last(GAUGE_SLOT_COPIES) * UNIT);
    EXPECT_EQ(last(GAUGE_LINK_TO_DEVICE_BYTES), last(GAUGE_SLOT_COPIED_BYTES) + 30);
    EXPECT_GT(last(GAUGE_DEVICE_SLOTS_BYTES), 0u);
    EXPECT_EQ(last(GAUGE_SLOT_STALE), 1u);
    /* Each copy is a record. */
    uint64_t bytes[COPY_KIND_COUNT] = {};
    for (const trace_record &record : read_records_of(TRACE_COPY))
        bytes[record.id] += record.bytes;
    EXPECT_EQ(bytes[COPY_SLOT], last(GAUGE_SLOT_COPIED_BYTES));
    EXPECT_EQ(bytes[COPY_PART_IN], 30u);
    EXPECT_EQ(bytes[COPY_PART_OUT], 40u);
}

/* Under the plugin none, say: other data alone. */
TEST_F(DeviceGauges, WithoutHomes) {
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        gauges_start();
        uint64_t addresses[] = {4096, 8192}, bytes[] = {100, 70};
        uint8_t kinds[] = {0, 2};
        device_memory_note(DEVICE_MEMORY_ALLOCATE, 4096, 1000);
        castor_event_device_data(addresses, bytes, kinds, 2);
        castor_event_model_data(0, 0, 0);
        trace_flush();
    });
    EXPECT_EQ(last(GAUGE_PARAM_BYTES), 100u);
    EXPECT_EQ(last(GAUGE_DEVICE_PARAM_BYTES), 100u);
    EXPECT_EQ(last(GAUGE_DEVICE_OPTIM_BYTES), 70u);
    EXPECT_EQ(last(GAUGE_DEVICE_OTHER_BYTES), 830u);
    EXPECT_EQ(last(GAUGE_DEVICE_OUTSIDE_BYTES), 0u);
}

TEST_F(DeviceGauges, WhatIsFreedAtTheEndWasThere) {
    run([](fake_device *) {
        home made;
        ASSERT_EQ(home_create(devices_homes(0), CHUNK_OPTIM, 2 * UNIT, &made), CASTOR_OK);
        castor_event_devices_end();
        ASSERT_EQ(home_destroy(devices_homes(0), made.address), CASTOR_OK);
        gauges_sample();
    });
    EXPECT_EQ(last(GAUGE_OPTIM_BYTES), 2 * UNIT);
    EXPECT_EQ(last(GAUGE_DEVICE_OPTIM_BYTES), 2 * UNIT);
}

/* A forked child has the numbers of its parent's homes, and no homes. */
TEST_F(DeviceGauges, AForkedChildHasNoDevices) {
    run([&](fake_device *) {
        home made;
        ASSERT_EQ(home_create(devices_homes(0), CHUNK_PARAM, UNIT, &made), CASTOR_OK);
        run_child([] {
            castor_memory memory;
            castor_memory_get(&memory);
            EXPECT_EQ(memory.bytes[CHUNK_PARAM][0], 0u);
        });
    });
}

} // namespace
