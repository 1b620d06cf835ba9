// Random births, deaths, flips, evictions and budgets. What happens is compared with what a plain list of homes says must happen;
// where the driver fails, with what must stay.
#include "homes_fixture.h"

#include <algorithm>
#include <random>

class HomesPropertyTest : public HomesTest, public testing::WithParamInterface<uint64_t> {
  protected:
    uint64_t draw(uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); }
    uint64_t on(device_tier tier) {
        uint64_t sum = 0;
        for (auto &entry : known)
            sum += entry.second.is.tier == tier ? entry.second.is.bytes : 0;
        return sum;
    }
    uint64_t left(device_tier tier) {
        uint64_t all = (tier == DEVICE_TIER_DEVICE ? device_units : host_units) * UNIT;
        uint64_t taken = on(tier) + others[tier];
        return all > taken ? all - taken : 0;
    }
    bool device_takes(uint64_t bytes) {
        return on(DEVICE_TIER_DEVICE) + bytes <= budget && bytes <= left(DEVICE_TIER_DEVICE);
    }
    // The lowest addresses for a home; 0: none.
    uintptr_t place(uint64_t bytes) {
        uintptr_t at = range;
        for (auto &entry : known) {
            if (entry.first - range >= units * UNIT)
                continue; // fixed
            if (entry.first - at >= bytes)
                return at;
            at = entry.first + entry.second.is.bytes;
        }
        return range + units * UNIT - at >= bytes ? at : 0;
    }
    known_home *any() {
        if (known.empty())
            return nullptr;
        auto entry = known.begin();
        std::advance(entry, draw(known.size() - 1));
        return &entry->second;
    }
    // What eviction must move, in order.
    std::vector<uintptr_t> victims(uint64_t bytes) {
        std::vector<const known_home *> candidates;
        for (auto &entry : known)
            if (entry.second.is.tier == DEVICE_TIER_DEVICE)
                candidates.push_back(&entry.second);
        std::sort(candidates.begin(), candidates.end(), [](const known_home *a, const known_home *b) {
            return a->is.kind != b->is.kind ? a->is.kind > b->is.kind : a->birth > b->birth;
        });
        static_assert(CHUNK_OPTIM > CHUNK_GRAD && CHUNK_GRAD > CHUNK_PARAM, "the order of eviction");
        std::vector<uintptr_t> out;
        uint64_t freed = 0, host = left(DEVICE_TIER_HOST);
        for (const known_home *k : candidates) {
            if (freed >= bytes)
                break;
            if (k->is.bytes > host)
                continue;
            host -= k->is.bytes;
            freed += k->is.bytes;
            out.push_back(k->is.address);
        }
        return out;
    }

    void step_create() {
        uint64_t count = draw(3) ? 1 + draw(7) : 1 + draw(80), bytes = count * UNIT;
        uintptr_t at = place(bytes);
        bool device = device_takes(bytes), possible = at && (device || bytes <= left(DEVICE_TIER_HOST));
        castor_status status = create((chunk_kind)draw(2), bytes - draw(UNIT - 1));
        if (failing)
            return;
        ASSERT_EQ(status, possible ? CASTOR_OK : CASTOR_ERR_MEMORY) << error_text();
        if (possible) {
            if (device || !fixed()) {
                ASSERT_EQ(last, at);
            }
            ASSERT_EQ(known[last].is.tier, device ? DEVICE_TIER_DEVICE : DEVICE_TIER_HOST);
        }
    }
    void step_flip(known_home *k) {
        device_tier to = (device_tier)draw(1), from = k->is.tier;
        bool possible =
            to == from || (to == DEVICE_TIER_HOST ? k->is.bytes <= left(to) : device_takes(k->is.bytes));
        castor_status status = home_flip(h, k->is.address, to);
        ASSERT_EQ(tier_of(k->is.address), status == CASTOR_OK ? to : from);
        if (fixed()) {
            ASSERT_EQ(status, to == from ? CASTOR_OK : CASTOR_ERR_UNSUPPORTED) << error_text();
        } else if (!failing) {
            ASSERT_EQ(status, possible ? CASTOR_OK : CASTOR_ERR_MEMORY) << error_text();
        }
    }
    void step_evict() {
        uint64_t bytes = draw(30) * UNIT + draw(1), expected = 0;
        std::vector<uintptr_t> moved = fixed() ? std::vector<uintptr_t>() : victims(bytes);
        for (uintptr_t address : moved)
            expected += known[address].is.bytes;
        uint64_t there = on(DEVICE_TIER_DEVICE), freed = homes_evict(h, bytes);
        ASSERT_EQ(there - used(DEVICE_TIER_DEVICE), freed);
        if (failing)
            return;
        ASSERT_EQ(freed, expected);
        for (uintptr_t address : moved)
            ASSERT_EQ(tier_of(address), DEVICE_TIER_HOST);
    }
    void step() {
        known_home *k = any();
        switch (draw(9)) {
        case 0:
        case 1:
        case 2:
            return step_create();
        case 3:
        case 4:
            if (k && destroy(k->is.address) != CASTOR_OK) {
                ASSERT_TRUE(failing) << error_text();
            }
            return;
        case 5:
        case 6:
            if (k)
                step_flip(k);
            return;
        case 7:
            return step_evict();
        case 8:
            if (k)
                write(*k);
            return;
        default:
            if (draw(1)) {
                budget = draw(3) ? draw(device_units + 10) * UNIT : UINT64_MAX;
                homes_budget_set(h, budget);
            } else {
                others[DEVICE_TIER_DEVICE] = draw(device_units / 2) * UNIT;
                others[DEVICE_TIER_HOST] = draw(host_units / 2) * UNIT;
                fake_device_others(fake, others[DEVICE_TIER_DEVICE], others[DEVICE_TIER_HOST]);
            }
        }
    }

    static constexpr uint64_t device_units = 96, host_units = 120;
    std::mt19937_64 random;
    uint64_t budget = UINT64_MAX, others[DEVICE_TIER_COUNT] = {};
    bool failing = false; // one call of the driver, soon
};

TEST_P(HomesPropertyTest, Random) {
    random.seed(GetParam());
    host = GetParam() > 100 ? FAKE_HOST_BLOCKS : FAKE_HOST_PAGES;
    make(fixed() ? 600 : 180, device_units, host_units, budget, GetParam());
    for (int i = 0; i < 500; i++) {
        SCOPED_TRACE("step " + std::to_string(i));
        failing = GetParam() % 2 && draw(2) == 0;
        if (failing) {
            fake_device_fail_with(fake, draw(1) ? (castor_status)(CASTOR_ERR_MEMORY + draw(1)) : CASTOR_OK);
            fake_device_fail(fake, fake_device_calls(fake) + 1 + draw(draw(1) ? 4 : 40), false);
        }
        step();
        fake_device_fail(fake, 0, false);
        if (HasFatalFailure())
            return;
        check();
        if (HasFatalFailure())
            return;
    }
}
INSTANTIATE_TEST_SUITE_P(Seeds, HomesPropertyTest, testing::Range<uint64_t>(1, 9));
// Where homes are fixed.
INSTANTIATE_TEST_SUITE_P(Fixed, HomesPropertyTest, testing::Range<uint64_t>(101, 109));
