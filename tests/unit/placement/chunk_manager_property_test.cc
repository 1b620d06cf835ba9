// Random programs on the chunk manager, with the invariants looked at after each operation; a failure at every call that may
// fail; threads.
#include <atomic>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "chunk_manager_fixture.h"

namespace {

class ChunkManagerProperty : public ChunkManagerTest {
  protected:
    static constexpr uint32_t kChunks = 20;

    void build(std::mt19937 &random) {
        fake.latency_ns = random() % 50;
        fake.can_cancel = int(random() % 2);
        fake.one_at_a_time = int(random() % 2);
        backend.keeps_copies = random() % 2;
        settings = chunk_manager_defaults(random() % 3 ? PLACEMENT_AUTO : PLACEMENT_STATIC);
        settings.moments = {random() % 2 ? 64u : 12u, random() % 2 ? 256u : 20u, uint32_t(random() % 4)};
        settings.moves_at_a_time = 1 + random() % 4;
        settings.placement.offload_optim_frac = 1;
        settings.placement.offload_param_frac = (random() % 3) / 2.0;
        fake.capacity[0] = 800 + random() % 2000;
        users.assign(kChunks, 0);
        pins.assign(kChunks, 0);
    }
    // Registration, which may fail; false: it did.
    bool populate(std::mt19937 &random) {
        if (chunk_manager_create(&m, &backend, &settings) != CASTOR_OK)
            return m = nullptr, false;
        for (uint32_t i = 0; i < kChunks; i++) {
            uint32_t chunk, tier = 1 + random() % (backend.tiers - 1);
            uint64_t bytes = 20 + random() % 100;
            if (chunk_manager_add_chunk(m, chunk_kind(random() % CHUNK_KIND_COUNT), bytes, tier, &chunk) !=
                CASTOR_OK)
                return false;
            fake_place(&fake, chunk, tier, bytes);
        }
        chunk_manager_place(m);
        return true;
    }
    // What the manager says about a chunk that is in use is so.
    void in_use_is_there() {
        for (uint32_t chunk = 0; chunk < kChunks; chunk++)
            ASSERT_TRUE(!users[chunk] || fake.tier[chunk] == 0) << chunk;
    }
    castor_status operation(std::mt19937 &random) {
        uint32_t chunk = uint32_t(random()) % kChunks;
        castor_status status = CASTOR_OK;
        switch (random() % 14) {
        case 0:
        case 1:
        case 2:
        case 3:
            status = chunk_manager_access(m, chunk, random() % 2);
            users[chunk] += status == CASTOR_OK;
            break;
        case 4:
        case 5:
        case 6:
        case 7: {
            bool was = users[chunk] > 0;
            status = chunk_manager_release(m, chunk);
            EXPECT_EQ(status == CASTOR_OK, was);
            users[chunk] -= was;
            return CASTOR_OK;
        }
        case 8:
            chunk_manager_event(m, moment_event(random() % MOMENT_EVENT_COUNT), uint32_t(random()) % 3);
            break;
        case 9:
            if (random() % 4 == 0)
                chunk_manager_step_end(m);
            else
                chunk_manager_advance(m);
            break;
        case 10:
            if (!users[chunk] && !pins[chunk])
                status = chunk_manager_move(m, chunk, uint32_t(random()) % backend.tiers);
            break;
        case 11:
            if (pins[chunk])
                pins[chunk] -= chunk_manager_unpin(m, chunk) == CASTOR_OK;
            else if (random() % 4 == 0)
                pins[chunk] += chunk_manager_pin(m, chunk) == CASTOR_OK;
            break;
        case 12:
            chunk_manager_touch(m, chunk, random() % 2);
            // Who uses it without an access has brought the pages itself.
            if (!fake.moves[chunk].running)
                fake.tier[chunk] = chunk_manager_tier(m, chunk);
            break;
        case 13:
            fake_advance(&fake, random() % 200);
            fake_non_model(&fake, random() % 400);
            if (random() % 8 == 0)
                chunk_manager_resync(m, 5);
            break;
        }
        return status;
    }
    void settle_down() {
        for (uint32_t chunk = 0; chunk < kChunks; chunk++)
            while (users[chunk]--)
                chunk_manager_release(m, chunk);
        check();
    }
    std::vector<int> users, pins;
};

TEST_F(ChunkManagerProperty, RandomProgramsKeepTheInvariants) {
    for (uint32_t seed = 0; seed < 120; seed++) {
        std::mt19937 random(seed);
        fresh(2 + seed % 2);
        build(random);
        ASSERT_TRUE(populate(random)) << error_text();
        for (int i = 0; i < 600; i++) {
            castor_status status = operation(random);
            ASSERT_TRUE(status == CASTOR_OK || status == CASTOR_ERR_MEMORY) << seed << ": " << error_text();
            ASSERT_EQ(chunk_manager_check(m), CASTOR_OK) << seed << ", " << i << ": " << error_text();
            ASSERT_EQ(fake.broken, nullptr) << seed << ": " << fake.broken;
            in_use_is_there();
        }
        settle_down();
    }
}

// A step as a training makes it; every access is right or an error.
class ChunkManagerFaults : public ChunkManagerProperty {
  protected:
    void train(std::mt19937 &random, int steps) {
        for (int step = 0; step < steps; step++) {
            for (uint32_t i = 0; i < 2 * kChunks; i++) {
                uint32_t chunk = i < kChunks ? i : 2 * kChunks - 1 - i;
                chunk_manager_event(m, i < kChunks ? MOMENT_FORWARD : MOMENT_BACKWARD, chunk);
                if (chunk_manager_access(m, chunk, true) == CASTOR_OK) {
                    EXPECT_EQ(fake.tier[chunk], 0u);
                    EXPECT_EQ(chunk_manager_release(m, chunk), CASTOR_OK);
                } else {
                    EXPECT_TRUE(fake.failed) << error_text();
                    errors++;
                }
                ASSERT_EQ(chunk_manager_check(m), CASTOR_OK) << error_text();
                ASSERT_EQ(fake.broken, nullptr) << fake.broken;
                fake_advance(&fake, random() % 300);
            }
            chunk_manager_step_end(m);
        }
    }
    uint64_t errors = 0;
};

TEST_F(ChunkManagerFaults, AnyOneCallMayFail) {
    uint64_t calls = 1, recovered = 0;
    for (uint64_t nth = 0; nth <= calls; nth++) {
        std::mt19937 random(7);
        fresh(2);
        build(random);
        settings = chunk_manager_defaults(PLACEMENT_AUTO);
        settings.moments = {64, 64, 1};
        fake.capacity[0] = 1000;
        fake.fail_at = nth;
        errors = 0;
        error_set(CASTOR_OK, "");
        if (!populate(random)) {
            EXPECT_STRNE(error_text(), "") << nth;
            EXPECT_EQ(fake.failed, 1u);
            done();
            continue;
        }
        train(random, 3);
        EXPECT_LE(errors, 1u) << nth; // the access that met it, at most
        if (nth == 0)
            calls = fake.calls;
        else if (errors == 0)
            recovered++;
        uint64_t before = errors;
        train(random, 1);
        EXPECT_EQ(errors, before) << nth; // and all is well afterwards
    }
    EXPECT_GT(calls, 200u);
    EXPECT_GT(recovered, calls / 2);
}

TEST_F(ChunkManagerFaults, ADiskThatFailsForGoodIsAnErrorEachTime) {
    for (uint64_t nth : {40, 100, 171, 300}) {
        std::mt19937 random(3);
        fresh(2);
        build(random);
        settings = chunk_manager_defaults(PLACEMENT_AUTO);
        settings.moments = {64, 64, 1};
        fake.capacity[0] = 1000;
        ASSERT_TRUE(populate(random));
        fake.fail_at = nth;
        fake.fail_more = 1;
        train(random, 3);
        EXPECT_GT(errors, 0u);
        fake.fail_more = 0; // it comes back
        chunk_manager_step_end(m);
        errors = 0;
        train(random, 2);
        EXPECT_EQ(errors, 0u);
    }
}

TEST_F(ChunkManagerFaults, AMoveThatNeverEndsIsAnErrorInTime) {
    settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.moments = {16, 16, 1};
    settings.timeout_ns = 30000000;
    create(settings, 1000);
    add(CHUNK_PARAM, 100, 1);
    fake.stuck = 1;
    EXPECT_EQ(chunk_manager_access(m, 0, false), CASTOR_ERR_TIMEOUT);
    EXPECT_NE(std::string(error_text()).find("chunk 0"), std::string::npos);
    check();
    fake.stuck = 0;
    use(0);
}

TEST_F(ChunkManagerProperty, ThreadsThatWantTheSameChunkMoveItOnce) {
    for (int round = 0; round < 50; round++) {
        fresh(2);
        create(PLACEMENT_AUTO, 1000);
        add(CHUNK_PARAM, 100, 1);
        std::vector<std::thread> threads;
        std::atomic<int> ready{0}, bad{0};
        for (int i = 0; i < 4; i++)
            threads.emplace_back([&] {
                ready++;
                while (ready < 4)
                    std::this_thread::yield();
                bad += chunk_manager_access(m, 0, false) != CASTOR_OK;
                bad += chunk_manager_release(m, 0) != CASTOR_OK;
            });
        for (std::thread &t : threads)
            t.join();
        EXPECT_EQ(bad, 0);
        EXPECT_EQ(fake.started, 1u);
        check();
    }
}

TEST_F(ChunkManagerProperty, ThreadsAtRandom) {
    for (int cancels = 0; cancels < 2; cancels++) {
        fresh(2);
        fake.can_cancel = cancels;
        settings = chunk_manager_defaults(PLACEMENT_AUTO);
        settings.moments = {64, 256, 2};
        settings.timeout_ns = UINT64_C(60000000000);
        create(settings, 1000); // two chunks of 150 for each of three threads at most
        for (uint32_t i = 0; i < kChunks; i++)
            add(CHUNK_PARAM, 150, 1);
        std::mutex lock;
        std::set<std::string> wrong;
        auto expect = [&](bool holds) {
            if (holds)
                return;
            std::lock_guard<std::mutex> guard(lock);
            wrong.insert(error_text());
        };
        std::atomic<bool> over{false};
        std::vector<std::thread> threads;
        for (uint32_t seed = 0; seed < 3; seed++)
            threads.emplace_back([&, seed] {
                std::mt19937 random(seed);
                for (int i = 0; i < 400; i++) {
                    uint32_t a = uint32_t(random()) % kChunks, b = uint32_t(random()) % kChunks;
                    expect(chunk_manager_access(m, a, random() % 2) == CASTOR_OK);
                    expect(chunk_manager_tier(m, a) == 0);
                    expect(chunk_manager_access(m, b, false) == CASTOR_OK);
                    expect(chunk_manager_tier(m, b) == 0);
                    expect(chunk_manager_release(m, a) == CASTOR_OK);
                    expect(chunk_manager_release(m, b) == CASTOR_OK);
                }
            });
        threads.emplace_back([&] {
            std::mt19937 random(9);
            while (!over) {
                chunk_manager_event(m, MOMENT_FORWARD, uint32_t(random()) % 3);
                if (random() % 8 == 0)
                    chunk_manager_step_end(m);
                expect(chunk_manager_check(m) == CASTOR_OK);
                uint32_t chunk; // tables grow meanwhile
                if (random() % 16 == 0 && chunk_manager_add_chunk(m, CHUNK_GRAD, 1, 1, &chunk) == CASTOR_OK)
                    fake_place(&fake, chunk, 1, 1);
                fake_advance(&fake, random() % 50);
                std::this_thread::yield();
            }
        });
        for (size_t i = 0; i + 1 < threads.size(); i++)
            threads[i].join();
        over = true;
        threads.back().join();
        EXPECT_EQ(wrong, std::set<std::string>());
        check();
    }
}

} // namespace
