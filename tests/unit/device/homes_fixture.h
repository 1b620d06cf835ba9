// Homes on a fake device with units of one page, and what they must be: a list that knows every home's bytes.
#ifndef CASTOR_TESTS_UNIT_DEVICE_HOMES_FIXTURE_H
#define CASTOR_TESTS_UNIT_DEVICE_HOMES_FIXTURE_H

#include <gtest/gtest.h>
#include <cstring>
#include <map>
#include <string>
#include <vector>

extern "C" {
#include "base/error.h"
#include "device/homes.h"
}
#include "tests/support/fake_device.h"

constexpr size_t UNIT = 4096;

struct known_home {
    home is;
    uint64_t birth;
    uint64_t seed; // of its bytes
};

class HomesTest : public testing::Test {
  protected:
    void make(uint64_t range_units, uint64_t device_units, uint64_t host_units, uint64_t budget = UINT64_MAX,
              uint64_t seed = 1) {
        end();
        units = range_units;
        fake_device_settings settings = {UNIT, device_units * UNIT, host_units * UNIT, seed, host};
        fake = fake_device_make(&settings, &driver);
        ASSERT_EQ(driver.reserve(driver.context, 0, units * UNIT, UNIT, &range), CASTOR_OK);
        ASSERT_EQ(homes_create(&h, &driver, 0, range, units * UNIT, budget), CASTOR_OK) << error_text();
    }
    void end() {
        if (!fake)
            return;
        fake_device_fail(fake, 0, false);
        homes_destroy(h);
        if (!leaks) {
            EXPECT_EQ(fake_device_maps(fake), 0u);
            EXPECT_EQ(used(DEVICE_TIER_DEVICE), 0u);
            EXPECT_EQ(used(DEVICE_TIER_HOST), 0u);
            EXPECT_EQ(driver.unreserve(driver.context, range, units * UNIT), CASTOR_OK);
        }
        EXPECT_EQ(fake_device_broken(fake), nullptr) << fake_device_broken(fake);
        fake_device_end(fake);
        fake = nullptr;
        known.clear();
        leaks = false;
    }
    void TearDown() override {
        if (fake)
            check();
        end();
    }

    bool fixed() const { return host == FAKE_HOST_BLOCKS; }
    uint64_t used(device_tier tier) { return fake_device_used(fake, tier); }
    static uint64_t word(uint64_t seed, size_t at) { return (seed + at) * 0x9e3779b97f4a7c15u; }
    void write(known_home &k) {
        k.seed = ++seeds << 32;
        auto *words = reinterpret_cast<uint64_t *>(k.is.address);
        for (size_t at = 0; at < k.is.bytes / 8; at++)
            words[at] = word(k.seed, at);
    }
    static bool intact(const known_home &k) {
        auto *words = reinterpret_cast<const uint64_t *>(k.is.address);
        for (size_t at = 0; at < k.is.bytes / 8; at++)
            if (words[at] != word(k.seed, at))
                return false;
        return true;
    }
    castor_status create(chunk_kind kind, size_t bytes) {
        home made = {};
        castor_status status = home_create(h, kind, bytes, &made);
        if (status != CASTOR_OK)
            return status;
        known_home k = {made, ++births, 0};
        EXPECT_EQ(made.kind, kind);
        EXPECT_EQ(made.bytes, (bytes + UNIT - 1) / UNIT * UNIT);
        write(k);
        known[made.address] = k;
        last = made.address;
        return CASTOR_OK;
    }
    uintptr_t created(chunk_kind kind, size_t count) {
        EXPECT_EQ(create(kind, count * UNIT), CASTOR_OK) << error_text();
        return last;
    }
    castor_status destroy(uintptr_t address) {
        castor_status status = home_destroy(h, address);
        if (status == CASTOR_OK)
            known.erase(address);
        return status;
    }
    static uint64_t pieces(uint64_t count) { return count / 32 + (uint64_t)__builtin_popcountll(count % 32); }
    device_tier tier_of(uintptr_t address) {
        home found = {};
        EXPECT_TRUE(home_find(h, address, &found));
        return found.tier;
    }
    homes_statistics statistics() {
        homes_statistics s;
        homes_statistics_get(h, &s);
        return s;
    }
    /* Every home that should exist does, lies on the tier that it says, and has its bytes; nothing else has memory. */
    void check() {
        ASSERT_EQ(homes_check(h), CASTOR_OK) << error_text();
        ASSERT_EQ(fake_device_broken(fake), nullptr) << fake_device_broken(fake);
        uint64_t bytes[DEVICE_TIER_COUNT] = {}, maps = 0;
        for (auto &[address, k] : known) {
            home found = {}, inside = {};
            ASSERT_TRUE(home_find(h, address, &found));
            ASSERT_TRUE(home_find(h, address + k.is.bytes - 1, &inside));
            ASSERT_EQ(found.address, address);
            ASSERT_EQ(inside.address, address);
            ASSERT_EQ(found.bytes, k.is.bytes);
            ASSERT_EQ(found.kind, k.is.kind);
            k.is.tier = found.tier;
            ASSERT_EQ(fake_device_tier(fake, address, k.is.bytes), found.tier);
            ASSERT_EQ(home_is_on_host(h, address), found.tier == DEVICE_TIER_HOST);
            ASSERT_EQ(home_is_on_host(h, address + k.is.bytes - 1), found.tier == DEVICE_TIER_HOST);
            ASSERT_TRUE(intact(k)) << "home of " << k.is.bytes / UNIT << " units";
            bytes[found.tier] += k.is.bytes;
            maps += fixed() && found.tier == DEVICE_TIER_HOST ? 1 : pieces(k.is.bytes / UNIT);
        }
        if (leaks)
            return;
        ASSERT_EQ(used(DEVICE_TIER_DEVICE), bytes[DEVICE_TIER_DEVICE]);
        ASSERT_EQ(used(DEVICE_TIER_HOST), bytes[DEVICE_TIER_HOST]);
        ASSERT_EQ(homes_evictable(h), fixed() ? 0 : bytes[DEVICE_TIER_DEVICE]);
        ASSERT_EQ(fake_device_maps(fake), maps);
        homes_statistics s = statistics();
        uint64_t count = 0, sums[DEVICE_TIER_COUNT] = {};
        for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
            count += s.count[kind];
            for (int tier = 0; tier < DEVICE_TIER_COUNT; tier++)
                sums[tier] += s.bytes[kind][tier];
        }
        ASSERT_EQ(count, known.size());
        ASSERT_EQ(sums[DEVICE_TIER_DEVICE], bytes[DEVICE_TIER_DEVICE]);
        ASSERT_EQ(sums[DEVICE_TIER_HOST], bytes[DEVICE_TIER_HOST]);
    }
    bool says(const char *part) { return strstr(error_text(), part) != nullptr; }

    fake_host host = FAKE_HOST_PAGES; // of the next device that is made
    fake_device *fake = nullptr;
    device_driver driver;
    homes *h = nullptr;
    uintptr_t range = 0, last = 0;
    uint64_t units = 0, births = 0, seeds = 0;
    std::map<uintptr_t, known_home> known;
    bool leaks = false; // the driver failed in a way after which memory cannot be given back
};

#endif
