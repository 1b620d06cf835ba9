#include "homes_fixture.h"

#include <fcntl.h>
#include <unistd.h>

/* Two ranks of a node: homes of their own on one device, whose driver passes pages between them. */
class SharedTest : public HomesTest {
  protected:
    static constexpr size_t COUNT = 37; // units: three pieces

    void SetUp() override {
        make(128, 64, 256, 0);
        ASSERT_EQ(driver.reserve(driver.context, 0, 128 * UNIT, UNIT, &other_range), CASTOR_OK);
        ASSERT_EQ(homes_create(&other, &driver, 0, other_range, 128 * UNIT, 0), CASTOR_OK);
        home made;
        ASSERT_EQ(home_create(h, CHUNK_PARAM, COUNT * UNIT, &made), CASTOR_OK);
        here = made.address;
        ASSERT_EQ(home_create(other, CHUNK_PARAM, COUNT * UNIT, &made), CASTOR_OK);
        there = made.address;
        for (uintptr_t at : {here, there})
            memset(reinterpret_cast<void *>(at), 7, COUNT * UNIT);
        zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    }
    void TearDown() override {
        close(zeros);
        fake_device_fail(fake, 0, false);
        EXPECT_EQ(homes_check(h), CASTOR_OK) << error_text();
        EXPECT_EQ(homes_check(other), CASTOR_OK) << error_text();
        homes_destroy(other);
        EXPECT_EQ(driver.unreserve(driver.context, other_range, 128 * UNIT), CASTOR_OK);
        end();
        EXPECT_EQ(homes_joined, 0u);
    }
    castor_status share() {
        std::vector<int> fds(home_pieces(h, here));
        castor_status status = home_offer(h, here, fds.data());
        if (status != CASTOR_OK)
            return status;
        status = home_take(other, there, fds.data());
        for (int fd : fds)
            close(fd);
        return status;
    }
    void joined() {
        ASSERT_EQ(share(), CASTOR_OK) << error_text();
        ASSERT_EQ(home_join(h, here), CASTOR_OK) << error_text();
        ASSERT_EQ(home_join(other, there), CASTOR_OK) << error_text();
    }
    /* Whether all of it can be written: a kernel that wants to writes zeros there. */
    bool writable(uintptr_t at) const { return read(zeros, reinterpret_cast<void *>(at), 1) == 1; }
    static uint8_t byte(uintptr_t at) { return *reinterpret_cast<uint8_t *>(at); }
    static void set(uintptr_t at, uint8_t value) { *reinterpret_cast<uint8_t *>(at) = value; }

    homes *other = nullptr;
    uintptr_t other_range = 0, here = 0, there = 0;
    int zeros = -1;
};

TEST_F(SharedTest, OneRanksPagesAreBothHomes) {
    EXPECT_EQ(home_pieces(h, here), 3u);
    EXPECT_EQ(home_pieces(h, here + UNIT), 0u);
    EXPECT_EQ(home_beside(h, here), 0u);
    joined();
    EXPECT_EQ(homes_joined, 2u);
    EXPECT_EQ(used(DEVICE_TIER_HOST), COUNT * UNIT); // once
    size_t far = 33 * UNIT + 5;
    set(home_beside(other, there + far), 9);
    EXPECT_EQ(byte(here + far), 9);
    EXPECT_EQ(byte(there + far), 9);
    EXPECT_EQ(byte(there + far + 1), 7);
    EXPECT_FALSE(writable(here));
    EXPECT_FALSE(writable(there + COUNT * UNIT - 1));
    EXPECT_TRUE(home_is_joined(other, there + far));
    EXPECT_TRUE(home_is_on_host(other, there + far));
    homes_statistics s;
    homes_statistics_get(other, &s);
    EXPECT_EQ(s.taken_bytes, COUNT * UNIT);
    EXPECT_EQ(s.beside_bytes, 0u);
    EXPECT_EQ(statistics().taken_bytes, 0u);
    EXPECT_EQ(statistics().beside_bytes, 0u);
    EXPECT_EQ(home_destroy(h, here), CASTOR_OK);
    EXPECT_EQ(byte(there + far), 9); // whoever made the pages
}

TEST_F(SharedTest, WhoLeavesHasTheBytesForItself) {
    joined();
    ASSERT_EQ(home_leave(other, there, false), CASTOR_OK) << error_text();
    EXPECT_FALSE(home_is_joined(other, there));
    EXPECT_EQ(home_leave(other, there, false), CASTOR_OK);
    EXPECT_EQ(byte(there + 34 * UNIT), 7);
    set(there, 1);
    set(home_beside(h, here), 2);
    EXPECT_EQ(byte(there), 1);
    EXPECT_EQ(byte(home_beside(other, there)), 2);
    EXPECT_EQ(byte(here), 2);
    ASSERT_EQ(home_join(other, there), CASTOR_OK) << error_text(); // again
    EXPECT_EQ(byte(there), 2);
    EXPECT_EQ(used(DEVICE_TIER_HOST), COUNT * UNIT);
}

TEST_F(SharedTest, WhereThereIsRoomItLeavesToTheDevice) {
    joined();
    homes_budget_set(other, 64 * UNIT);
    ASSERT_EQ(home_leave(other, there, false), CASTOR_OK);
    EXPECT_FALSE(home_is_on_host(other, there));
    EXPECT_EQ(byte(there + UNIT), 7);
    ASSERT_EQ(home_flip(other, there, DEVICE_TIER_HOST), CASTOR_OK);
    EXPECT_FALSE(home_is_joined(other, there));
    EXPECT_TRUE(writable(there));
}

TEST_F(SharedTest, ForTheProcessorsItLeavesToTheHost) {
    joined();
    homes_budget_set(other, 64 * UNIT);
    ASSERT_EQ(home_leave(other, there, true), CASTOR_OK) << error_text();
    EXPECT_FALSE(home_is_joined(other, there));
    EXPECT_TRUE(home_is_on_host(other, there));
    EXPECT_TRUE(writable(there));
    EXPECT_EQ(byte(there + UNIT), 7);
}

TEST_F(SharedTest, WhoDoesNotUseItLeavesToTheHost) {
    joined();
    homes_budget_set(other, 64 * UNIT);
    ASSERT_EQ(home_away(other, there), CASTOR_OK) << error_text();
    ASSERT_EQ(home_leave(other, there, false), CASTOR_OK) << error_text();
    EXPECT_FALSE(home_is_joined(other, there));
    EXPECT_TRUE(home_is_on_host(other, there));
    EXPECT_TRUE(writable(there));
    homes_return(other);
    EXPECT_TRUE(home_is_on_host(other, there));
    ASSERT_EQ(home_flip(other, there, DEVICE_TIER_DEVICE), CASTOR_OK);
    ASSERT_EQ(home_away(other, there), CASTOR_OK) << error_text();
    EXPECT_TRUE(home_is_on_host(other, there));
    EXPECT_EQ(byte(there + UNIT), 7);
    EXPECT_EQ(home_away(other, there + UNIT), CASTOR_ERR_ARGUMENT);
    homes_statistics s;
    homes_statistics_get(other, &s);
    EXPECT_EQ(s.away_bytes, COUNT * UNIT);
    ASSERT_EQ(home_destroy(other, there), CASTOR_OK);
    homes_statistics_get(other, &s);
    EXPECT_EQ(s.away_bytes, 0u);
}

TEST_F(SharedTest, AFlipEndsIt) {
    joined();
    homes_budget_set(h, 64 * UNIT);
    ASSERT_EQ(home_flip(h, here, DEVICE_TIER_DEVICE), CASTOR_OK);
    EXPECT_FALSE(home_is_joined(h, here));
    EXPECT_EQ(statistics().beside_bytes, COUNT * UNIT);
    EXPECT_TRUE(writable(here));
    EXPECT_NE(home_beside(h, here), 0u);
}

TEST_F(SharedTest, WhatCannotBe) {
    EXPECT_EQ(home_join(h, here), CASTOR_ERR_ARGUMENT);
    joined();
    int fd;
    EXPECT_EQ(home_offer(h, here, &fd), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(home_join(h, here), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(home_part(h, here), CASTOR_ERR_ARGUMENT);
    ASSERT_EQ(home_leave(h, here, false), CASTOR_OK);
    EXPECT_EQ(home_part(h, here), CASTOR_OK);
    EXPECT_EQ(home_beside(h, here), 0u);
    EXPECT_EQ(home_leave(h, here + UNIT, false), CASTOR_ERR_ARGUMENT);
}

/* Each call of the driver fails in turn: every home keeps its bytes, and can be shared afterwards. */
TEST_F(SharedTest, FailuresLoseNothing) {
    for (uint64_t call = 1;; call++) {
        uint64_t before = fake_device_calls(fake);
        fake_device_fail(fake, before + call, false);
        bool shared = share() == CASTOR_OK;
        bool done = shared && home_join(h, here) == CASTOR_OK && home_join(other, there) == CASTOR_OK &&
                    home_leave(h, here, false) == CASTOR_OK && home_leave(other, there, false) == CASTOR_OK;
        bool failed = fake_device_calls(fake) >= before + call;
        fake_device_fail(fake, 0, false);
        for (uintptr_t at : {here, there})
            for (size_t unit = 0; unit < COUNT; unit++)
                ASSERT_EQ(byte(at + unit * UNIT), 7) << "call " << call;
        ASSERT_EQ(homes_check(h), CASTOR_OK) << error_text();
        ASSERT_EQ(homes_check(other), CASTOR_OK) << error_text();
        for (auto [of, at] : {std::pair(h, here), std::pair(other, there)}) {
            ASSERT_EQ(home_leave(of, at, false), CASTOR_OK) << "call " << call << ": " << error_text();
            if (home_beside(of, at)) {
                ASSERT_EQ(home_part(of, at), CASTOR_OK) << "call " << call << ": " << error_text();
            }
        }
        ASSERT_EQ(used(DEVICE_TIER_HOST), 2 * COUNT * UNIT) << "call " << call;
        ASSERT_EQ(statistics().beside_bytes, 0u) << "call " << call;
        if (!failed) {
            EXPECT_TRUE(done);
            EXPECT_GT(call, 40u);
            return;
        }
        (void)done;
    }
}
