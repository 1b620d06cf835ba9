// Random programs, calls of the driver that fail, and threads: never a read of other bytes than the home has.
#include "slots_fixture.h"

#include <cstdlib>
#include <random>
#include <thread>

class SlotsPropertyTest : public SlotsTest {
  protected:
    uint32_t pick(uint32_t below) { return std::uniform_int_distribution<uint32_t>(0, below - 1)(random); }
    uint64_t stream() { return pick(4); }
    memory *any() { return places.empty() ? nullptr : places[pick(uint32_t(places.size()))]; }
    // Several storages in a home, or one.
    void home_add() {
        if (places.size() > 24)
            return;
        std::vector<size_t> sizes(1 + pick(4));
        size_t bytes = 0;
        for (size_t &n : sizes)
            bytes += n = 16 * (1 + pick(pick(3) ? 300 : 900));
        uintptr_t at = home_make(bytes);
        for (size_t n : sizes) {
            memory *m = memory_at(at, n);
            add_again(m);
            places.push_back(m);
            at += n;
        }
    }
    void add_again(memory *m) {
        bool added = slots_storage_add(s, m->address, m->bytes) == CASTOR_OK;
        EXPECT_TRUE(added || counted->fails) << error_text();
        if (added)
            known.insert(m);
    }
    // The device has come to rest, as before any free.
    void home_drop() {
        memory *m = any();
        if (!m || !open.empty())
            return;
        home at;
        ASSERT_TRUE(home_find(h, m->address, &at));
        if (pick(2)) {
            slots_forget(s, at.address, at.bytes);
            run();
        } else {
            run();
            slots_forget(s, at.address, at.bytes);
            run();
        }
        for (size_t i = 0; i < places.size();)
            if (places[i]->address - at.address < at.bytes) {
                seen.erase(places[i]);
                known.erase(places[i]);
                memories.erase(places[i]->address);
                places.erase(places.begin() + long(i));
            } else {
                i++;
            }
        ASSERT_EQ(home_destroy(h, at.address), CASTOR_OK);
    }
    void home_move() {
        memory *m = any();
        home at;
        if (!m || !open.empty())
            return;
        ASSERT_TRUE(home_find(h, m->address, &at));
        homes_budget_set(h, UINT64_MAX);
        run();
        home_flip(h, at.address, at.tier == DEVICE_TIER_HOST ? DEVICE_TIER_DEVICE : DEVICE_TIER_HOST);
        homes_budget_set(h, 0);
    }
    void use_begin() {
        memory *m = any();
        if (!m || open.size() > 3)
            return;
        slot_use u = begin(m, stream());
        read(m, u);
        open.emplace_back(m, u);
        if (pick(4))
            use_end();
    }
    // A use's operations come before what the program orders after it, whenever the use ends.
    void use_end() {
        if (open.empty())
            return;
        size_t i = pick(uint32_t(open.size()));
        end(open[i].first, open[i].second);
        open.erase(open.begin() + long(i));
    }
    void write_any() {
        memory *m = any();
        if (!m)
            return;
        for (const auto &o : open)
            m->readers.push_back(now(o.second.stream)); // open uses may be of it
        if (seen.count(m))
            write_unseen(m, stream()); // a graph is replayed
        else if (pick(6) == 0)
            written_all(m);
        else if (pick(6) == 0)
            written_with_others(m);
        else if (pick(3) == 0)
            launched(m);
        else
            write(m, stream());
    }
    void written_all(memory *m) {
        uint64_t in = stream();
        write_unseen(m, in);
        slots_written_all(s, in);
    }
    void launched(memory *m) {
        std::vector<memory *> some = {m};
        for (int i = 0; i < 3; i++)
            if (memory *also = any(); also && !seen.count(also) && also != m && (!i || also != some.back()))
                some.push_back(also);
        for (memory *each : some)
            for (const auto &o : open)
                each->readers.push_back(now(o.second.stream));
        launch(some, stream());
    }
    void written_with_others(memory *m) {
        uint64_t in = stream();
        write_unseen(m, in);
        slots_written(s, m->address - 100, m->bytes + 5000, in);
    }
    void captured() {
        memory *m = any();
        uint64_t in = stream();
        if (!m || pick(8))
            return;
        capture(in);
        slot_use u = slot_use_begin(s, m->address, m->bytes, in);
        EXPECT_EQ(u.pointer, m->address);
        slot_use_end(s, &u);
        if (pick(5) == 0) {
            slots_written_all(s, in);
            seen.insert(known.begin(), known.end());
        } else {
            slots_written(s, m->address, m->bytes, in);
            if (known.count(m))
                seen.insert(m);
        }
        capture_end(in);
    }
    // Known or not: who writes in that home later is not seen.
    void keep() {
        memory *m = any();
        home at;
        if (!m || pick(16))
            return;
        slots_kept(s, m->address + pick(uint32_t(m->bytes)), true);
        ASSERT_TRUE(home_find(h, m->address, &at));
        for (memory *other : places)
            if (other->address - at.address < at.bytes)
                seen.insert(other);
    }
    // Who frees memory has nothing any more that writes it.
    void forget_or_add() {
        memory *m = any();
        if (!m)
            return;
        if (pick(2)) {
            slots_forget(s, m->address, pick(2) ? 1 : m->bytes);
            seen.erase(m);
            known.erase(m);
        }
        if (pick(3))
            add_again(m);
    }
    // Steps alike, so that copies are made ahead.
    void sequence() {
        std::vector<memory *> order;
        for (memory *m : places)
            if (pick(2))
                order.push_back(m);
        while (!open.empty())
            use_end();
        for (int round = 0; round < 4; round++) {
            slots_step_end(s);
            uint64_t in = stream();
            for (memory *m : order) {
                use(m, in);
                run_some(pick(12));
                if (pick(30) == 0)
                    write_any();
            }
            for (memory *m : order)
                if (pick(3))
                    seen.count(m) ? write_unseen(m, stream()) : write(m, stream());
        }
        slots_step_end(s);
    }
    void one() {
        switch (pick(40)) {
        case 0:
            home_add();
            break;
        case 1:
            home_drop();
            break;
        case 2:
            home_move();
            break;
        case 3:
            sequence();
            break;
        case 4:
            captured();
            keep();
            break;
        case 5:
            slots_step_end(s);
            break;
        case 6:
            forget_or_add();
            break;
        case 7 ... 15:
            write_any();
            break;
        case 16 ... 22:
            use_end();
            break;
        default:
            use_begin();
            break;
        }
        run_some(pick(6));
    }
    void begin_script(uint64_t seed) {
        places.clear();
        open.clear();
        seen.clear();
        known.clear();
        random.seed(seed);
        host = seed % 3 == 0 ? FAKE_HOST_BLOCKS : FAKE_HOST_PAGES;
        fresh((1 + pick(12)) * UNIT, seed);
        for (int i = 0; i < 4; i++)
            home_add();
    }
    void end_script() {
        while (!open.empty())
            use_end();
        check();
        run();
    }

    std::mt19937_64 random;
    std::vector<memory *> places;
    std::vector<std::pair<memory *, slot_use>> open;
    std::set<memory *> seen;  // a graph writes them, unseen
    std::set<memory *> known; // storages
};

TEST_F(SlotsPropertyTest, RandomPrograms) {
    const char *more = getenv("SLOTS_SEEDS");
    uint64_t hits = 0, ahead = 0, uses = 0, stale = 0, copies = 0;
    for (uint64_t seed = 1; seed <= (more ? strtoull(more, nullptr, 10) : 60) && !HasFailure(); seed++) {
        SCOPED_TRACE(seed);
        begin_script(seed);
        for (int i = 0; i < 300 && !HasFailure(); i++) {
            one();
            check();
        }
        end_script();
        slots_statistics now = statistics();
        hits += now.hits, ahead += now.prefetched, uses += now.uses, stale += now.stale, copies += now.copies;
        EXPECT_EQ(wrong, 0);
    }
    // It has seen all of it.
    EXPECT_GT(hits, uses / 10);
    EXPECT_GT(ahead, 50u);
    EXPECT_GT(stale, copies / 20);
    done();
}

TEST_F(SlotsPropertyTest, EachCallFails) {
    testing::internal::CaptureStderr();
    for (uint64_t seed = 1; seed <= 3 && !HasFailure(); seed++)
        for (int more = 0; more < 2; more++)
            for (uint64_t call = 1;; call += more ? 7 : 1) {
                SCOPED_TRACE(testing::Message()
                             << "seed " << seed << ", call " << call << (more ? " and all after" : ""));
                begin_script(seed);
                counted->fail_at = call;
                counted->fail_more = more;
                for (int i = 0; i < 60 && !HasFailure(); i++) {
                    one();
                    check();
                }
                bool reached = counted->fails > 0;
                end_script();
                EXPECT_EQ(wrong, 0);
                if (!reached || HasFailure() || call > 400)
                    break;
            }
    testing::internal::GetCapturedStderr();
    done();
}

// After one call that failed, slots go on as before.
TEST_F(SlotsPropertyTest, OneFailureIsForgotten) {
    testing::internal::CaptureStderr();
    for (uint64_t call = 1; call < 60 && !HasFailure(); call++) {
        SCOPED_TRACE(call);
        fresh(4 * UNIT, call);
        std::vector<memory *> all;
        for (int i = 0; i < 6; i++)
            all.push_back(add(UNIT));
        counted->fail_at = call;
        for (int step = 0; step < 10; step++) {
            uint64_t hits = statistics().hits;
            for (size_t i = 0; i < 2 * all.size(); i++) {
                use(all[i < 6 ? i : 11 - i], 1 + i % 2);
                run_some(8);
                check();
            }
            for (memory *m : all)
                write(m, 1);
            slots_step_end(s);
            check();
            if (step == 9) {
                EXPECT_GE(statistics().hits - hits, 9u);
            }
        }
    }
    testing::internal::GetCapturedStderr();
    done();
}

// Threads with storages and streams of their own, one of which writes all; the device runs meanwhile.
TEST_F(SlotsPropertyTest, Threads) {
    fresh(6 * UNIT, 3);
    std::vector<memory *> mine[2];
    for (auto &all : mine)
        for (int i = 0; i < 6; i++)
            all.push_back(add(UNIT));
    std::vector<std::unique_ptr<operation_argument>> kept[2];
    int wrongs[2] = {0, 0};
    bool over = false;
    auto body = [&](uint32_t which) {
        std::mt19937 chance(which + 1);
        uint64_t version = 1000 * (which + 1), in = which + 1;
        auto enqueue = [&](void (*operation)(void *), const memory *m, uintptr_t address) {
            kept[which].push_back(std::make_unique<operation_argument>(
                operation_argument{address, m->bytes, m->version, &wrongs[which]}));
            fake_device_enqueue(fake, in, operation, kept[which].back().get());
        };
        for (int round = 0; round < 40; round++) {
            for (memory *m : mine[which]) {
                slot_use u = slot_use_begin(s, m->address, m->bytes, in);
                enqueue(operation_read, m, u.pointer);
                slot_use_end(s, &u);
                if (chance() % 3)
                    continue;
                m->version = ++version;
                enqueue(operation_write, m, m->address);
                if (which && chance() % 4 == 0)
                    slots_written_all(s, in);
                else
                    slots_written(s, m->address, m->bytes, in);
            }
            EXPECT_TRUE(may_hold(mine[1 - which][0]->address));
            slots_step_end(s);
            if (round % 10 == 9) {
                EXPECT_EQ(slots_storage_add(s, mine[which][0]->address, UNIT), CASTOR_OK);
                slots_forget(s, mine[which][1]->address, UNIT);
                EXPECT_EQ(slots_storage_add(s, mine[which][1]->address, UNIT), CASTOR_OK);
            }
        }
    };
    std::thread device([&] {
        while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE))
            if (!fake_device_run(fake))
                std::this_thread::yield();
    });
    std::thread other(body, 1);
    body(0);
    other.join();
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
    device.join();
    run();
    EXPECT_EQ(wrongs[0] + wrongs[1], 0);
    check();
    done();
}
