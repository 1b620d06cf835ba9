// A chunk manager on a fake backend: 1 byte a nanosecond in each direction unless a test says otherwise.
#ifndef CASTOR_TESTS_UNIT_PLACEMENT_CHUNK_MANAGER_FIXTURE_H
#define CASTOR_TESTS_UNIT_PLACEMENT_CHUNK_MANAGER_FIXTURE_H

#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include "base/error.h"
#include "placement/chunk_manager.h"
}
#include "tests/support/fake_backend.h"

class ChunkManagerTest : public testing::Test {
  protected:
    void SetUp() override { fresh(2); }
    void fresh(uint32_t tiers) {
        done();
        fake_init(&fake, tiers, &backend);
        for (auto &from : fake.bytes_per_second)
            for (uint64_t &speed : from)
                speed = 1000000000;
        live = true;
    }
    void done() {
        if (!live)
            return;
        chunk_manager_destroy(m);
        m = nullptr;
        EXPECT_EQ(fake.live_allocations, 0u);
        EXPECT_EQ(fake.broken, nullptr) << fake.broken;
        fake_free(&fake);
        live = false;
    }
    void TearDown() override {
        if (m)
            check();
        done();
    }
    void create(placement_policy policy, uint64_t capacity) {
        settings = chunk_manager_defaults(policy);
        settings.moments = {256, 1024, 2};
        create(settings, capacity);
    }
    void create(const chunk_manager_settings &with, uint64_t capacity) {
        settings = with;
        fake.capacity[0] = capacity;
        ASSERT_EQ(chunk_manager_create(&m, &backend, &settings), CASTOR_OK) << error_text();
    }
    uint32_t add(chunk_kind kind, uint64_t bytes, uint32_t tier) {
        uint32_t chunk = 0;
        EXPECT_EQ(chunk_manager_add_chunk(m, kind, bytes, tier, &chunk), CASTOR_OK) << error_text();
        fake_place(&fake, chunk, tier, bytes);
        return chunk;
    }
    void check() {
        EXPECT_EQ(chunk_manager_check(m), CASTOR_OK) << error_text();
        EXPECT_EQ(fake.broken, nullptr) << fake.broken;
    }
    void use(uint32_t chunk, bool write = false, uint64_t ns = 0) {
        ASSERT_EQ(chunk_manager_access(m, chunk, write), CASTOR_OK) << error_text();
        EXPECT_EQ(fake.tier[chunk], 0u);
        fake_advance(&fake, ns);
        ASSERT_EQ(chunk_manager_release(m, chunk), CASTOR_OK);
        check();
    }
    // Time passes, and whoever moves chunks tells the manager when a move has ended.
    void pass(uint64_t ns) {
        uint64_t until = fake.now_ns + ns, end;
        while ((end = fake_next_end(&fake)) <= until) {
            fake_advance(&fake, end - fake.now_ns);
            chunk_manager_advance(m);
            check();
        }
        fake_advance(&fake, until - fake.now_ns);
    }
    // The chunks on tier 0, as letters; small ones come, capital ones go.
    std::string resident() {
        std::string out;
        for (uint32_t chunk = 0; chunk < 26; chunk++) {
            const fake_move &move = fake.moves[chunk];
            if (move.running)
                out += char((move.move.to == 0 ? 'a' : 'A') + chunk);
            else if (fake.room[0] && chunk_manager_tier(m, chunk) == 0 && fake.tier[chunk] == 0 &&
                     known(chunk))
                out += char('0' + chunk % 10);
        }
        return out;
    }
    bool known(uint32_t chunk) {
        bool yes = chunk_manager_pin(m, chunk) == CASTOR_OK;
        if (yes)
            chunk_manager_unpin(m, chunk);
        return yes;
    }
    chunk_statistics statistics() {
        chunk_statistics s;
        chunk_manager_statistics(m, &s);
        return s;
    }
    fake_backend fake;
    chunk_backend backend;
    chunk_manager_settings settings;
    chunk_manager *m = nullptr;
    bool live = false;
};

#endif
