// Slots on homes of a fake device, and programs whose order is defined: each use comes after the last writer of its storage, each
// writer after all before it, by events of the test's own where their streams differ. Operations compare what they read when they
// run.
#ifndef CASTOR_TESTS_UNIT_DEVICE_SLOTS_FIXTURE_H
#define CASTOR_TESTS_UNIT_DEVICE_SLOTS_FIXTURE_H

#include <gtest/gtest.h>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

extern "C" {
#include "base/error.h"
#include "device/slots.h"
#include "device/slots_inside.h"
}
#include "tests/support/fake_device.h"

// The driver that slots see: the fake one's, counted, with a call that fails. The test's own calls go past it.
struct counted_driver {
    device_driver real;
    uint64_t calls = 0, fail_at = 0, fails = 0;
    bool fail_more = false;
    uint64_t records = 0, waits = 0;
    bool fail() {
        calls++;
        bool now = fail_at && (calls == fail_at || (fail_more && calls > fail_at));
        fails += now;
        return now;
    }
};
#define COUNTED(type, name, parameters, arguments, count)                                                    \
    static type counted_##name parameters {                                                                  \
        auto *c = static_cast<counted_driver *>(context);                                                    \
        if (c->fail())                                                                                       \
            return error_set(CASTOR_ERR_SYSTEM, #name " fails (injected)");                                  \
        count;                                                                                               \
        context = c->real.context;                                                                           \
        return c->real.name arguments;                                                                       \
    }
#define PASSED(type, name, parameters, arguments)                                                            \
    static type counted_##name parameters {                                                                  \
        auto *c = static_cast<counted_driver *>(context);                                                    \
        context = c->real.context;                                                                           \
        return c->real.name arguments;                                                                       \
    }
PASSED(size_t, granularity, (void *context, int device), (context, device))
COUNTED(castor_status, reserve,
        (void *context, int device, size_t bytes, size_t alignment, uintptr_t *address),
        (context, device, bytes, alignment, address), )
PASSED(castor_status, unreserve, (void *context, uintptr_t address, size_t bytes), (context, address, bytes))
COUNTED(castor_status, create, (void *context, int device, device_tier tier, size_t bytes, uint64_t *pages),
        (context, device, tier, bytes, pages), )
PASSED(void, release, (void *context, uint64_t pages), (context, pages))
COUNTED(castor_status, map, (void *context, int device, uintptr_t address, size_t bytes, uint64_t pages),
        (context, device, address, bytes, pages), )
PASSED(castor_status, unmap, (void *context, uintptr_t address, size_t bytes), (context, address, bytes))
PASSED(castor_status, drain, (void *context, int device), (context, device))
COUNTED(castor_status, stream_make, (void *context, int device, uint64_t *stream),
        (context, device, stream), )
PASSED(void, stream_end, (void *context, uint64_t stream), (context, stream))
PASSED(bool, captures_run, (void *context), (context))
PASSED(bool, stream_captures, (void *context, int device, uint64_t stream), (context, device, stream))
COUNTED(castor_status, event_make, (void *context, int device, uint64_t *event), (context, device, event), )
PASSED(void, event_end, (void *context, uint64_t event), (context, event))
COUNTED(castor_status, event_record, (void *context, int device, uint64_t event, uint64_t stream),
        (context, device, event, stream), c->records++)
COUNTED(castor_status, event_wait, (void *context, int device, uint64_t stream, uint64_t event),
        (context, device, stream, event), c->waits++)
PASSED(bool, event_done, (void *context, uint64_t event), (context, event))
COUNTED(castor_status, copy_enqueue,
        (void *context, int device, uintptr_t to, uintptr_t from, size_t bytes, uint64_t stream),
        (context, device, to, from, bytes, stream), )
PASSED(castor_status, value_write,
       (void *context, int device, uintptr_t address, uint64_t value, uint64_t stream),
       (context, device, address, value, stream))
PASSED(castor_status, value_wait,
       (void *context, int device, uintptr_t address, uint64_t value, uint64_t stream),
       (context, device, address, value, stream))
PASSED(uint64_t, now_ns, (void *context), (context))

#define UNIT UINT64_C(4096)

struct point { // in a stream: what was enqueued there so far
    uint64_t stream = 0, event = 0;
};

struct memory { // a storage as the test sees it
    uintptr_t address = 0;
    size_t bytes = 0;
    uint64_t version = 0;
    point writer;
    std::vector<point> readers; // since then
};

struct operation_argument {
    uintptr_t address;
    size_t bytes;
    uint64_t version;
    int *wrong;
};

static inline unsigned char pattern(uint64_t version, size_t at) {
    return static_cast<unsigned char>(version * 31 + version / 8 + at * 7);
}

static inline void operation_write(void *argument) {
    auto *o = static_cast<operation_argument *>(argument);
    auto *to = reinterpret_cast<unsigned char *>(o->address);
    for (size_t i = 0; i < o->bytes; i += 16)
        to[i] = pattern(o->version, i);
}

static inline void operation_read(void *argument) {
    auto *o = static_cast<operation_argument *>(argument);
    auto *from = reinterpret_cast<const unsigned char *>(o->address);
    for (size_t i = 0; i < o->bytes; i += 16)
        if (from[i] != pattern(o->version, i)) {
            ++*o->wrong;
            return;
        }
}

class SlotsTest : public testing::Test {
  protected:
    void SetUp() override { fresh(16 * UNIT, 1); }
    void fresh(uint64_t region_bytes, uint64_t seed) {
        done();
        fake_device_settings settings = {UNIT, 4096 * UNIT, 4096 * UNIT, seed, host};
        fake = fake_device_make(&settings, &real);
        counted = std::make_unique<counted_driver>();
        counted->real = real;
        driver = {counted.get(),
                  counted_granularity,
                  counted_reserve,
                  counted_unreserve,
                  nullptr,
                  nullptr,
                  nullptr,
                  nullptr,
                  counted_create,
                  nullptr,
                  nullptr,
                  counted_release,
                  counted_map,
                  nullptr,
                  counted_unmap,
                  nullptr,
                  counted_drain,
                  nullptr,
                  nullptr,
                  counted_stream_make,
                  counted_stream_end,
                  counted_captures_run,
                  counted_stream_captures,
                  counted_event_make,
                  counted_event_end,
                  counted_event_record,
                  counted_event_wait,
                  counted_event_done,
                  counted_copy_enqueue,
                  counted_value_write,
                  counted_value_wait,
                  counted_now_ns};
        ASSERT_EQ(real.reserve(real.context, 0, 1024 * UNIT, UNIT, &range), CASTOR_OK);
        ASSERT_EQ(homes_create(&h, &real, 0, range, 1024 * UNIT, 0), CASTOR_OK) << error_text();
        ASSERT_EQ(slots_create(&s, h, &driver, 0, region_bytes), CASTOR_OK) << error_text();
    }
    fake_host host = FAKE_HOST_PAGES;
    void done() {
        if (!fake)
            return;
        fake_device_run_all(fake);
        check();
        slots_destroy(s);
        homes_destroy(h);
        EXPECT_EQ(fake_device_used(fake, DEVICE_TIER_DEVICE), 0u);
        EXPECT_EQ(fake_device_broken(fake), nullptr) << fake_device_broken(fake);
        EXPECT_EQ(wrong, 0) << "reads of other bytes than the home had";
        fake_device_end(fake);
        fake = nullptr;
        arguments.clear();
        memories.clear();
        wrong = 0;
    }
    void TearDown() override { done(); }

    void check() { ASSERT_EQ(slots_check(s), CASTOR_OK) << error_text(); }
    slots_statistics statistics() {
        slots_statistics out;
        slots_statistics_get(s, &out);
        return out;
    }
    uintptr_t home_make(size_t bytes) {
        home out;
        EXPECT_EQ(home_create(h, CHUNK_PARAM, bytes, &out), CASTOR_OK) << error_text();
        EXPECT_EQ(out.tier, DEVICE_TIER_HOST);
        return out.address;
    }
    // A storage, written on the host, not known to slots.
    memory *memory_at(uintptr_t address, size_t bytes) {
        auto &m = memories[address] = {};
        m.address = address;
        m.bytes = bytes;
        write_now(&m);
        return &m;
    }
    void write_now(memory *m) {
        m->version = ++versions;
        operation_argument o = {m->address, m->bytes, m->version, &wrong};
        operation_write(&o);
    }
    // In a home of its own, of so many bytes.
    memory *add(size_t bytes) {
        memory *m = memory_at(home_make(bytes), bytes);
        EXPECT_EQ(slots_storage_add(s, m->address, bytes), CASTOR_OK) << error_text();
        return m;
    }
    void enqueue(uint64_t stream, void (*operation)(void *), const memory *m, uintptr_t address) {
        arguments.push_back(
            std::make_unique<operation_argument>(operation_argument{address, m->bytes, m->version, &wrong}));
        fake_device_enqueue(fake, stream, operation, arguments.back().get());
    }
    void capture(uint64_t stream) {
        slots_writes_end(s);
        fake_device_captures(fake, stream, true);
    }
    void capture_end(uint64_t stream) { fake_device_captures(fake, stream, false); }
    point now(uint64_t stream) {
        point p = {stream, 0};
        EXPECT_EQ(real.event_make(real.context, 0, &p.event), CASTOR_OK);
        EXPECT_EQ(real.event_record(real.context, 0, p.event, stream), CASTOR_OK);
        return p;
    }
    void after(uint64_t stream, const point &p) {
        if (p.event && p.stream != stream) {
            EXPECT_EQ(real.event_wait(real.context, 0, stream, p.event), CASTOR_OK);
        }
    }
    // The order that any program has to make, with slots or without.
    void before_read(memory *m, uint64_t stream) { after(stream, m->writer); }
    void before_write(memory *m, uint64_t stream) {
        after(stream, m->writer);
        for (const point &p : m->readers)
            after(stream, p);
    }

    slot_use begin(memory *m, uint64_t stream) {
        before_read(m, stream);
        slot_use use = slot_use_begin(s, m->address, m->bytes, stream);
        EXPECT_TRUE(use.storage != SLOT_USE_NONE || use.pointer == m->address);
        return use;
    }
    // Two reads: the memory must keep its bytes in between as well.
    void read(memory *m, const slot_use &use) {
        enqueue(use.stream, operation_read, m, use.pointer);
        enqueue(use.stream, operation_read, m, use.pointer);
    }
    void end(memory *m, const slot_use &use) {
        slot_use_end(s, &use);
        m->readers.push_back(now(use.stream));
    }
    // Returns whether it read a slot.
    bool use(memory *m, uint64_t stream) {
        slot_use u = begin(m, stream);
        read(m, u);
        end(m, u);
        return u.pointer != m->address;
    }
    // A writer that nobody notes.
    void write_unseen(memory *m, uint64_t stream) {
        before_write(m, stream);
        m->version = ++versions;
        m->readers.clear();
        enqueue(stream, operation_write, m, m->address);
        m->writer = now(stream);
    }
    void write(memory *m, uint64_t stream) {
        write_unseen(m, stream);
        slots_written(s, m->address, m->bytes, stream);
    }
    bool may_hold(uintptr_t address, bool captured = true) {
        uintptr_t first;
        size_t bytes;
        bool may = slots_may_hold(s, address, captured, &first, &bytes);
        EXPECT_LT(address - first, bytes);
        for (uintptr_t at : {first, first + bytes - 1}) { // they all say the same
            uintptr_t again;
            EXPECT_EQ(slots_may_hold(s, at, captured, &again, &bytes), may);
            EXPECT_EQ(again, first);
        }
        return may;
    }
    // A kernel gets addresses in all of them, as hooks/cuda/writers.c notes it. Returns how many are noted.
    size_t launch(const std::vector<memory *> &all, uint64_t stream) {
        std::vector<uintptr_t> addresses;
        for (memory *m : all) {
            write_unseen(m, stream);
            if (may_hold(m->address, false))
                addresses.push_back(m->address);
        }
        for (size_t i = 0; i < addresses.size(); i += SLOTS_ADDRESSES_MOST)
            slots_written_each(s, &addresses[i],
                               uint32_t(std::min<size_t>(addresses.size() - i, SLOTS_ADDRESSES_MOST)),
                               stream);
        return addresses.size();
    }
    void run() { fake_device_run_all(fake); }
    void run_some(uint32_t operations) {
        while (operations-- && fake_device_run(fake))
            ;
    }
    // The same program with other orders of what the device does.
    template <typename program> void seeds(uint64_t region_bytes, uint64_t count, program p) {
        for (uint64_t seed = 1; seed <= count && !HasFailure(); seed++) {
            fresh(region_bytes, seed);
            p();
            run();
            EXPECT_EQ(wrong, 0) << "seed " << seed;
        }
    }

    fake_device *fake = nullptr;
    device_driver real = {}, driver = {};
    std::unique_ptr<counted_driver> counted;
    uintptr_t range = 0;
    homes *h = nullptr;
    slots *s = nullptr;
    std::map<uintptr_t, memory> memories;
    std::vector<std::unique_ptr<operation_argument>> arguments;
    uint64_t versions = 0;
    int wrong = 0;
};

#endif
