// Steps on the host, behind streams that read and write the same homes.
#include "homes_fixture.h"

#include <atomic>
#include <random>
#include <thread>

extern "C" {
#include "device/updates.h"
}

namespace {

constexpr uint64_t STREAMS = 3;
constexpr size_t ELEMENTS = UNIT / sizeof(float);
constexpr uint64_t HOMES = 6; // of one unit: parameters, and a gradient for each

// What an operation of a stream does with a parameter: reads it, all elements having the value, or writes it.
struct touch {
    float *at;
    float value;
    bool writes;
    std::atomic<int> *wrong;
};

void run_touch(void *argument) {
    auto *t = static_cast<touch *>(argument);
    for (size_t i = 0; i < ELEMENTS; i++)
        if (t->writes)
            t->at[i] = t->value;
        else if (t->at[i] != t->value)
            (*t->wrong)++;
    delete t;
}

class UpdatesTest : public HomesTest {
  protected:
    void make_updates(uint64_t seed = 1) {
        make(4 * HOMES, HOMES, 8 * HOMES + 80, 0, seed); // the counters take 66 units
        for (uint64_t i = 0; i < HOMES; i++) {
            home made;
            ASSERT_EQ(home_create(h, CHUNK_PARAM, UNIT, &made), CASTOR_OK);
            ASSERT_EQ(made.tier, DEVICE_TIER_HOST);
            at[i] = reinterpret_cast<float *>(made.address);
            for (size_t e = 0; e < ELEMENTS; e++)
                at[i][e] = i % 2 ? 1 : 0; // gradients are 1
        }
        device_runs();
        ASSERT_EQ(updates_create(&u, h, &driver, 0), CASTOR_OK) << error_text();
        device_rests();
    }
    void TearDown() override {
        device_rests();
        if (u)
            updates_destroy(u);
        u = nullptr;
        for (auto *each : at)
            if (each && fake) {
                EXPECT_EQ(home_destroy(h, reinterpret_cast<uintptr_t>(each)), CASTOR_OK);
            }
        end();
    }
    void device_runs() {
        over = false;
        runner = std::thread([this] {
            while (!over)
                if (!fake_device_run(fake))
                    std::this_thread::yield();
        });
    }
    void device_rests() {
        over = true;
        if (runner.joinable())
            runner.join();
    }
    static update_step step_of(double lr) {
        update_step step = {};
        step.kind = UPDATE_SGD;
        step.numbers.sgd.step.param_dtype = step.numbers.sgd.step.grad_dtype = KERNEL_F32;
        step.numbers.sgd.step.inv_scale = step.numbers.sgd.step.clip = 1;
        step.numbers.sgd.grad_weight = 1;
        step.numbers.sgd.negative_lr = -lr;
        return step;
    }
    kernel_range range_of(uint64_t param) {
        kernel_range range = {};
        range.param = at[2 * param];
        range.grad = at[2 * param + 1];
        range.count = range.numel = ELEMENTS;
        return range;
    }
    castor_status add(std::vector<uint64_t> params, uint64_t stream, double lr = 1, int threads = 2) {
        std::vector<kernel_range> ranges;
        for (uint64_t param : params)
            ranges.push_back(range_of(param));
        const update_step step = step_of(lr);
        return updates_add(u, &step, ranges.data(), uint32_t(ranges.size()), 0, threads, stream);
    }
    // Enqueues an operation that reads, or writes, memory of a home, as a hook would see it.
    void enqueue(uint64_t home, uint64_t stream, float value, bool writes) {
        updates_wait(u, reinterpret_cast<uintptr_t>(at[home]), writes ? UNIT : 0, 0, stream);
        fake_device_enqueue(fake, stream, run_touch, new touch{at[home], value, writes, &wrong});
    }
    // What comes in `to` comes after what is in `from`.
    void order(uint64_t from, uint64_t to) {
        uint64_t event;
        ASSERT_EQ(driver.event_make(driver.context, 0, &event), CASTOR_OK);
        ASSERT_EQ(driver.event_record(driver.context, 0, event, from), CASTOR_OK);
        ASSERT_EQ(driver.event_wait(driver.context, 0, to, event), CASTOR_OK);
    }

    updates *u = nullptr;
    float *at[HOMES] = {};
    std::thread runner;
    std::atomic<bool> over{true};
    std::atomic<int> wrong{0};
};

TEST_F(UpdatesTest, WaitForTheDeviceAndReadersForThem) {
    make_updates();
    enqueue(1, 1, 5, true); // the gradient
    ASSERT_EQ(add({0}, 1), CASTOR_OK);
    EXPECT_TRUE(updates_matter());
    enqueue(0, 2, -5, false);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(at[0][0], 0) << "the device has not come to it";
    device_runs();
    EXPECT_EQ(updates_settle(u), CASTOR_OK);
    EXPECT_EQ(at[0][ELEMENTS - 1], -5);
    EXPECT_FALSE(updates_matter());
    device_rests();
    fake_device_run_all(fake);
    EXPECT_EQ(wrong, 0);
}

TEST_F(UpdatesTest, WhatTouchesOthersDoesNotWait) {
    make_updates();
    ASSERT_EQ(add({0}, 1), CASTOR_OK);
    enqueue(2, 2, 0, false);
    EXPECT_TRUE(fake_device_run(fake));
    updates_statistics found;
    updates_statistics_get(u, &found);
    EXPECT_EQ(found.waits, 0u);
    EXPECT_EQ(found.updates, 1u);
    EXPECT_EQ(wrong, 0);
}

TEST_F(UpdatesTest, BatchesFollowEachOther) {
    make_updates();
    updates_delay_set(u, 300);
    for (int i = 0; i < 50; i++)
        ASSERT_EQ(add({0, 1, 2}, 1 + uint64_t(i) % STREAMS), CASTOR_OK);
    device_runs();
    EXPECT_EQ(updates_settle(u), CASTOR_OK);
    for (uint64_t param = 0; param < 3; param++)
        for (size_t i = 0; i < ELEMENTS; i++)
            ASSERT_EQ(at[2 * param][i], -50);
}

TEST_F(UpdatesTest, MoreThanFitWait) {
    make_updates();
    device_runs();
    for (int i = 0; i < 2 * UPDATES_MAX / 3; i++)
        ASSERT_EQ(add({0, 1, 2}, 1), CASTOR_OK);
    EXPECT_EQ(updates_settle(u), CASTOR_OK);
    EXPECT_EQ(at[4][0], -2 * UPDATES_MAX / 3);
}

TEST_F(UpdatesTest, NothingWaitsWithinACapture) {
    make_updates();
    ASSERT_EQ(add({0}, 1), CASTOR_OK);
    fake_device_captures(fake, 2, true);
    updates_wait(u, reinterpret_cast<uintptr_t>(at[0]), 0, 0, 2);
    updates_wait_all(u, 0, 2);
    fake_device_captures(fake, 2, false);
    updates_statistics found;
    updates_statistics_get(u, &found);
    EXPECT_EQ(found.waits, 0u);
}

TEST_F(UpdatesTest, AFailureAddsNothingAndLosesNoWait) {
    make_updates();
    fake_device_fail(fake, fake_device_calls(fake) + 1, false);
    EXPECT_EQ(add({0}, 1), CASTOR_ERR_SYSTEM);
    EXPECT_FALSE(updates_matter());
    ASSERT_EQ(add({0}, 1), CASTOR_OK);
    fake_device_fail(fake, fake_device_calls(fake) + 1, false);
    std::thread later([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        device_runs();
    });
    updates_wait(u, reinterpret_cast<uintptr_t>(at[0]), 0, 0, 2); // the host waits
    later.join();
    EXPECT_EQ(at[0][0], -1);
}

TEST_F(UpdatesTest, AStreamThatCannotWaitIsRefused) {
    make(4, 1, 100, 0);
    fake_device_fail(fake, fake_device_calls(fake) + 3, false); // memory, a stream, the value
    updates *made = nullptr;
    EXPECT_EQ(updates_create(&made, h, &driver, 0), CASTOR_ERR_SYSTEM);
    EXPECT_EQ(made, nullptr);
}

// Streams read and write parameters in random orders, events between them where the script would have some; updates are late.
TEST_F(UpdatesTest, RandomOrders) {
    for (uint64_t seed = 1; seed <= 40; seed++) {
        make_updates(seed);
        updates_delay_set(u, seed % 4 ? uint32_t(40 * seed) : 0);
        std::mt19937 random{uint32_t(seed)};
        float value[HOMES / 2] = {};
        uint64_t last[HOMES / 2] = {1, 1, 1}; // the stream of the last operation that a script orders
        device_runs();
        for (int i = 0; i < 200; i++) {
            const uint64_t param = random() % (HOMES / 2), stream = 1 + random() % STREAMS;
            switch (random() % 4) {
            case 0: {
                std::vector<uint64_t> some;
                for (uint64_t each = 0; each < HOMES / 2; each++)
                    if (each == param || random() % 2) {
                        order(last[each], stream);
                        value[each] -= 1;
                        last[each] = stream;
                        some.push_back(each);
                    }
                ASSERT_EQ(add(some, stream), CASTOR_OK);
                break;
            }
            case 1:
                order(last[param], stream);
                value[param] = float(random() % 100);
                enqueue(2 * param, stream, value[param], true);
                last[param] = stream;
                break;
            default:
                order(last[param], stream);
                enqueue(2 * param, stream, value[param], false);
                last[param] = stream; // a writer that follows comes after it
                break;
            }
        }
        EXPECT_EQ(updates_settle(u), CASTOR_OK) << error_text();
        device_rests();
        fake_device_run_all(fake);
        EXPECT_EQ(wrong, 0) << "seed " << seed;
        for (uint64_t param = 0; param < HOMES / 2; param++)
            EXPECT_EQ(at[2 * param][7], value[param]);
        TearDown();
        std::fill(std::begin(at), std::end(at), nullptr);
        if (HasFailure())
            return;
    }
}

} // namespace
