/* What the trace gets of copies on a device's streams. */
#include "tests/unit/trace/fixture.h"

extern "C" {
#include "device/copies.h"
}
#include "tests/support/fake_device.h"

namespace {

uint64_t clock_ns;

class Copies : public TraceTest {
  protected:
    void run(const std::function<void(fake_device *, copies *)> &body) {
        run_child([&] {
            device_driver driver;
            fake_device_settings settings = {65536, 1 << 20, 1 << 20, 1};
            fake_device *fake = fake_device_make(&settings, &driver);
            driver.now_ns = [](void *) { return clock_ns; };
            clock_ns = COPIES_LOOK_NS;
            trace_start(directory.c_str(), 1 << 20, 0);
            copies *c = copies_create(&driver, 3);
            ASSERT_NE(c, nullptr);
            body(fake, c);
            EXPECT_EQ(fake_device_broken(fake), nullptr);
            copies_destroy(c);
            fake_device_end(fake);
            trace_flush();
        });
    }
    void expect(const trace_record &record, copy_kind kind, uint64_t begin, uint64_t end, uint64_t bytes,
                uint64_t enqueued) {
        EXPECT_EQ(record.id, (uint32_t)kind);
        EXPECT_EQ(record.begin_ns, COPIES_LOOK_NS + begin);
        EXPECT_EQ(record.end_ns, COPIES_LOOK_NS + end);
        EXPECT_EQ(record.bytes, bytes);
        EXPECT_EQ(record.a, 3u);
        EXPECT_EQ(record.b, COPIES_LOOK_NS + enqueued);
    }
};

TEST_F(Copies, FromWhenItCouldBeginToWhenItIsSeenDone) {
    run([](fake_device *fake, copies *c) {
        copies_note(c, COPY_SLOT, 300, 1);
        clock_ns += 10;
        copies_note(c, COPY_SLOT, 100, 1);
        copies_look(c, true); /* nothing is done yet */
        fake_device_run_all(fake);
        clock_ns += 390;
        copies_look(c, true);
        copies_note(c, COPY_SLOT, 50, 1);
        clock_ns += 100;
        copies_note(c, COPY_PART_OUT, 7, 2);
        fake_device_run_all(fake);
        copies_look(c, false); /* too soon after the last one */
        clock_ns += COPIES_LOOK_NS;
        copies_look(c, false);
    });
    auto found = read_records_of(TRACE_COPY);
    ASSERT_EQ(found.size(), 4u);
    expect(found[0], COPY_SLOT, 0, 300, 300, 0); /* by their bytes */
    expect(found[1], COPY_SLOT, 300, 400, 100, 10);
    expect(found[2], COPY_SLOT, 400, 500 + COPIES_LOOK_NS, 50, 400);
    expect(found[3], COPY_PART_OUT, 500, 500 + COPIES_LOOK_NS, 7, 500);
    EXPECT_STREQ(trace_read_name(read_only_counters().get(), TRACE_COPY, COPY_SLOT), "copy into a slot");
}

TEST_F(Copies, TheOldestThatIsNotDoneHoldsUpTheOthers) {
    run([](fake_device *fake, copies *c) {
        copies_note(c, COPY_PART_IN, 1, 1);
        copies_note(c, COPY_PART_IN, 2, 1);
        fake_device_run(fake);
        clock_ns += 5;
        copies_look(c, true);
        clock_ns += 5;
        copies_look(c, true);
        fake_device_run_all(fake);
        copies_look(c, true);
    });
    auto found = read_records_of(TRACE_COPY);
    ASSERT_EQ(found.size(), 2u);
    expect(found[0], COPY_PART_IN, 0, 5, 1, 0);
    expect(found[1], COPY_PART_IN, 5, 10, 2, 0);
}

TEST_F(Copies, TooManyAndThoseWithoutAnEventHaveNone) {
    run([](fake_device *fake, copies *c) {
        fake_device_fail(fake, fake_device_calls(fake) + 1, false);
        copies_note(c, COPY_SLOT, 1, 1); /* no event */
        for (uint64_t i = 0; i < COPIES_MAX + 10; i++)
            copies_note(c, COPY_SLOT, 2, 1);
        fake_device_run_all(fake);
        for (int i = 0; i < 3; i++) /* a full ring is looked at first */
            copies_note(c, COPY_SLOT, 3, 1);
        fake_device_run_all(fake);
        copies_look(c, true);
        copies_note(nullptr, COPY_SLOT, 1, 1);
        copies_look(nullptr, true);
    });
    uint64_t bytes[4] = {};
    for (const trace_record &record : read_records_of(TRACE_COPY))
        bytes[record.bytes]++;
    EXPECT_EQ(bytes[1], 0u);
    EXPECT_EQ(bytes[2], (uint64_t)COPIES_MAX);
    EXPECT_EQ(bytes[3], 3u);
}

} // namespace
