// The store against a plain model: random scripts on two to four ranks, each of which must see, after every operation,
// the bytes that plain memory would hold.
//
// All ranks draw the same operations from the seed, and each computes what every rank does; so a rank knows without a
// message what it must see. How long a rank dawdles is its own affair. STORE_PROPERTY_SEED runs one seed,
// STORE_PROPERTY_SECONDS makes the runs longer.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <thread>
#include "store_ranks.h"

namespace {

using namespace store_test;
using Values = std::vector<float>;

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// The kernels round each product and each sum for itself.
float times(float a, float b) {
    volatile float product = a * b;
    return product;
}
float plus(float a, float b) {
    volatile float sum = a + b;
    return sum;
}

enum class GradKind { NONE, WINDOW, OWN };

// p.grad as one rank sees it.
struct Grad {
    GradKind kind = GradKind::NONE;
    Values values;
    bool untouched = false; // a window that shows the newest sum as it is
};

struct Parameter {
    size_t numel;
    bool shared;
    int owner;
    Values stored;            // what the store holds
    std::vector<Values> seen; // by rank
    std::vector<Grad> grad;   // by rank
    // This rank's.
    Param<> p;
    castor_window *window = nullptr;
    float *window_address = nullptr;
    Values own; // p.grad where it is no window
};

// What the script keeps although it is no parameter's any more: old gradients, replaced p.data, forgotten parameters.
struct Kept {
    const float *address;
    Values values;
    castor_window *window; // NULL: a block
};

class Script {
  public:
    Script(Rank &r, uint64_t seed, bool killing) : r(r), seed(seed), killing(killing) {}

    // Ends at the first error of the store, which is expected only where a rank is killed.
    void run(int operations) {
        adopt(3);
        for (op = 1; op <= operations && good(); op++) {
            dawdle();
            uint64_t what = draw(0) % 100;
            name = what < 30   ? "backward"
                   : what < 42 ? "step"
                   : what < 50 ? "replicated step"
                   : what < 60 ? "clip"
                   : what < 70 ? "edit parameters"
                   : what < 77 ? "edit gradients"
                   : what < 87 ? "drop gradients"
                   : what < 91 ? "adopt"
                   : what < 94 ? "forget"
                   : what < 96 ? "release"
                   : what < 98 ? "replace"
                               : "fork";
            if (name == "backward")
                backward();
            else if (name == "step")
                step();
            else if (name == "replicated step")
                step_replicated();
            else if (name == "clip")
                clip();
            else if (name == "edit parameters")
                edit_parameters();
            else if (name == "edit gradients")
                edit_gradients();
            else if (name == "drop gradients")
                drop_gradients();
            else if (name == "adopt")
                adopt(1 + draw(1) % 2);
            else if (name == "forget")
                forget(false);
            else if (name == "release")
                forget(true);
            else if (name == "replace")
                replace();
            else
                fork_child();
            if (good())
                compare();
        }
        if (good())
            end();
    }

    int failed_status() const { return status; }
    int operation() const { return op; }

  private:
    Rank &r;
    const uint64_t seed;
    const bool killing;
    int op = 0;
    std::string name = "adopt";
    int status = CASTOR_OK;
    std::vector<std::unique_ptr<Parameter>> parameters;
    std::deque<Kept> kept;
    std::vector<pid_t> children;
    int child_flag = 8;

    // The same on every rank.
    uint64_t draw(uint64_t salt, uint64_t rank = 77, uint64_t parameter = 77) const {
        return mix(seed ^ mix(uint64_t(op) * 1000003 + salt) ^ mix(rank * 131 + 7) ^
                   mix(parameter * 8191 + 3));
    }
    bool chance(double probability, uint64_t salt, uint64_t rank = 77, uint64_t parameter = 77) const {
        return double(draw(salt, rank, parameter) % 10000) < probability * 10000;
    }
    float value(uint64_t salt, uint64_t rank, uint64_t parameter, size_t i) const {
        uint64_t bits = draw(salt, rank, parameter) + i * 0x9e3779b97f4a7c15;
        return float(int64_t((bits >> 20) % 20001) - 10000) / 4096.0f;
    }

    bool good() const { return status == CASTOR_OK && !testing::Test::HasFailure(); }

    // Records the status of a call on every rank.
    bool call(int got, const char *what) {
        if (got == CASTOR_OK)
            return true;
        status = got;
        if (!killing)
            ADD_FAILURE() << where() << what << ": " << error_text();
        return false;
    }
    std::string where() const {
        return "seed " + std::to_string(seed) + ", rank " + std::to_string(r.rank) + " of " +
               std::to_string(r.world) + ", operation " + std::to_string(op) + " (" + name + "): ";
    }

    void dawdle() const {
        uint64_t local = mix(seed + uint64_t(op) * 31 + uint64_t(r.rank) * 977);
        if (local % 4 == 0)
            usleep(unsigned(local >> 8) % 400);
        if (local % 97 == 0)
            usleep(5000);
    }

    void expect_equal(const float *found, const Values &expected, const std::string &what) {
        if (memcmp(found, expected.data(), expected.size() * sizeof(float)) == 0)
            return;
        size_t i = 0;
        while (memcmp(&found[i], &expected[i], sizeof(float)) == 0)
            i++;
        ADD_FAILURE() << where() << what << ", element " << i << " of " << expected.size() << ": found "
                      << found[i] << ", expected " << expected[i];
    }

    void compare() {
        for (size_t i = 0; i < parameters.size() && good(); i++) {
            Parameter &q = *parameters[i];
            std::string name = "parameter " + std::to_string(i);
            expect_equal(q.p.data, q.seen[r.rank], name);
            Grad &g = q.grad[r.rank];
            if (g.kind != GradKind::NONE)
                expect_equal(g.kind == GradKind::OWN ? q.own.data() : q.window_address, g.values,
                             "the gradient of " + name);
            if (g.kind == GradKind::WINDOW && g.untouched) {
                EXPECT_EQ(castor_window_edited(q.window), 0u) << where() << name;
            }
        }
        for (size_t i = 0; i < kept.size() && good(); i++)
            expect_equal(kept[i].address, kept[i].values, "what was kept, number " + std::to_string(i));
        if (good()) {
            EXPECT_EQ(castor_store_check(r.store), CASTOR_OK) << where() << error_text();
        }
        while (kept.size() > 12 || (!kept.empty() && chance(0.1, 90)))
            let_go();
    }

    void let_go() {
        Kept k = kept.front();
        kept.pop_front();
        if (!k.window)
            arena_free(const_cast<float *>(k.address));
        else
            window_return(k.window);
    }

    void window_return(castor_window *w) {
        if (chance(0.1, 91, uint64_t(r.rank)))
            std::thread([w] { castor_window_return(w); }).join();
        else
            castor_window_return(w);
    }

    size_t size_draw(uint64_t salt) const {
        switch (draw(salt) % 8) {
        case 0:
            return 1 + draw(salt + 1) % 900; // less than a page
        case 1:
            return 1024 * (1 + draw(salt + 1) % 4);
        case 2:
            return 270000 + draw(salt + 1) % 50000; // more than a block of the sums
        case 3:
            return 17000 + draw(salt + 1) % 20000;
        default:
            return 1025 + draw(salt + 1) % 6000;
        }
    }

    void adopt(size_t count) {
        if (parameters.size() > 7)
            return;
        std::vector<Param<>> fresh;
        for (size_t i = 0; i < count; i++)
            fresh.push_back(param_make(size_draw(10 + 2 * i)));
        std::vector<std::vector<Values>> seen(count, std::vector<Values>(size_t(r.world)));
        for (size_t i = 0; i < count; i++)
            for (int rank = 0; rank < r.world; rank++) {
                Values &v = seen[i][size_t(rank)];
                v.resize(fresh[i].numel);
                for (size_t k = 0; k < v.size(); k++)
                    v[k] = value(30, uint64_t(rank), i, k);
                if (rank == r.rank)
                    memcpy(fresh[i].data, v.data(), v.size() * sizeof(float));
            }
        if (!call(params_register_status(r, fresh), "registration"))
            return;
        for (size_t i = 0; i < count; i++) {
            auto q = std::make_unique<Parameter>();
            q->p = fresh[i];
            q->numel = fresh[i].numel;
            q->shared = fresh[i].info.shared;
            q->owner = fresh[i].info.owner;
            EXPECT_EQ(q->shared, q->numel * sizeof(float) >= kPage);
            seen[i].assign(size_t(r.world), Values(seen[i][0]));
            q->stored = seen[i][0];
            q->seen = seen[i];
            q->grad.resize(size_t(r.world));
            parameters.push_back(std::move(q));
        }
    }

    // What rank `rank` adds to the sum of parameter i; false: nothing.
    bool contribution(size_t i, int rank, bool used, Values &out) const {
        const Grad &g = parameters[i]->grad[size_t(rank)];
        if (!used && g.kind == GradKind::NONE)
            return false;
        out = g.kind == GradKind::NONE ? Values(parameters[i]->numel) : g.values;
        for (size_t k = 0; used && k < out.size(); k++)
            out[k] = g.kind == GradKind::NONE ? value(40, uint64_t(rank), i, k)
                                              : plus(out[k], value(40, uint64_t(rank), i, k));
        return true;
    }

    void backward() {
        size_t count = parameters.size();
        uint64_t queue_bytes = chance(0.5, 41) ? 64 * kMiB : 1;
        std::vector<Values> sums(count), mine(count);
        std::vector<uint8_t> any(count), used(count), adds(count);
        auto scale_of = [&](int rank) { return float(1 + draw(42, uint64_t(rank)) % 7) / 4; };
        for (size_t i = 0; i < count; i++) {
            sums[i].assign(parameters[i]->numel, 0);
            for (int rank = 0; rank < r.world; rank++) {
                bool uses = chance(0.75, 43, uint64_t(rank), i) && !chance(0.1, 44, 77, i);
                Values v;
                any[i] |= uses;
                bool has = contribution(i, rank, uses, v);
                for (size_t k = 0; has && k < v.size(); k++)
                    sums[i][k] =
                        rank ? plus(sums[i][k], times(v[k], scale_of(rank))) : times(v[k], scale_of(rank));
                if (rank == r.rank) {
                    mine[i] = v;
                    used[i] = uses;
                    adds[i] = has;
                }
            }
        }
        // Gradients come in an order of this rank's own; those of unused parameters at the end.
        std::vector<size_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
            return std::make_pair(!used[a], draw(45, uint64_t(r.rank), a)) <
                   std::make_pair(!used[b], draw(45, uint64_t(r.rank), b));
        });
        std::vector<castor_tensor *> tensors;
        for (auto &q : parameters)
            tensors.push_back(q->p.tensor);
        uint64_t ticket = 0;
        for (size_t i : order) {
            Parameter &q = *parameters[i];
            GradKind kind = q.grad[size_t(r.rank)].kind;
            const float *source = nullptr;
            if (adds[i] && kind == GradKind::NONE) {
                source = mine[i].data();
            } else if (adds[i]) {
                float *at = kind == GradKind::OWN ? q.own.data() : q.window_address;
                if (used[i])
                    memcpy(at, mine[i].data(), mine[i].size() * sizeof(float));
                source = at;
            }
            if (q.shared && !call(castor_windows_detach(q.p.tensor), "detaching"))
                return;
            if (!q.shared)
                castor_sum_release(q.p.tensor);
            if (!call(inside_gradient_add(q.p.tensor, source, double(scale_of(r.rank)), used[i], queue_bytes,
                                          &ticket),
                      "adding a gradient"))
                return;
        }
        std::vector<uint8_t> some(count + 1);
        if (!call(castor_gradients_finish(r.store, tensors.data(), uint32_t(count), some.data()),
                  "the end of backward"))
            return;
        for (size_t i = 0; i < count; i++) {
            EXPECT_EQ(some[i], any[i]) << where() << "use of parameter " << i;
            show(i, any[i], sums[i]);
            if (!good())
                return;
        }
    }

    // p.grad of parameter i after a backward, on every rank in the model and on this one in truth.
    void show(size_t i, bool any, const Values &sum) {
        Parameter &q = *parameters[i];
        for (int rank = 0; rank < r.world; rank++) {
            Grad &g = q.grad[size_t(rank)];
            bool mine = rank == r.rank;
            g.untouched = false;
            if (!any) {
                if (mine)
                    castor_sum_release(q.p.tensor);
                continue;
            }
            bool keeps_own = g.kind == GradKind::OWN || !q.shared ||
                             (g.kind == GradKind::NONE && chance(0.1, 46, uint64_t(rank), i));
            g.values = sum;
            if (keeps_own) {
                g.kind = GradKind::OWN;
                if (mine) {
                    q.own.assign(q.p.sum(), q.p.sum() + q.numel);
                    castor_sum_release(q.p.tensor);
                }
                continue;
            }
            g.untouched = true;
            if (mine && g.kind == GradKind::WINDOW) {
                call(castor_window_refresh(q.window), "refreshing");
            } else if (mine) {
                void *address = nullptr;
                if (call(castor_window_take(q.p.tensor, &q.window, &address), "taking a window"))
                    q.window_address = static_cast<float *>(address);
            }
            g.kind = GradKind::WINDOW;
        }
    }

    float *grad_address(Parameter &q) {
        return q.grad[size_t(r.rank)].kind == GradKind::OWN ? q.own.data() : q.window_address;
    }

    void clip() {
        // A rank that does not come at all does nothing; the others clip for themselves.
        const float factor = 0.5f;
        bool alone = chance(0.2, 50);
        int who = int(draw(51) % uint64_t(r.world));
        uint64_t first_key = 0;
        bool all = !alone, untouched_all = true;
        for (int rank = 0; rank < r.world; rank++) {
            uint64_t key = mix(uint64_t(op));
            for (size_t i = 0; i < parameters.size(); i++) {
                const Grad &g = parameters[i]->grad[size_t(rank)];
                if (g.kind != GradKind::NONE)
                    key = mix(key + i + 1);
                if (g.kind != GradKind::NONE && parameters[i]->shared)
                    untouched_all = untouched_all && g.kind == GradKind::WINDOW && g.untouched;
            }
            if (rank == 0)
                first_key = key;
            all = all && key == first_key;
        }
        all = all && untouched_all;
        uint64_t key = mix(uint64_t(op));
        bool able = true;
        for (size_t i = 0; i < parameters.size(); i++) {
            const Grad &g = parameters[i]->grad[size_t(r.rank)];
            if (g.kind != GradKind::NONE)
                key = mix(key + i + 1);
            if (g.kind != GradKind::NONE && parameters[i]->shared)
                able = able && g.kind == GradKind::WINDOW && g.untouched;
        }
        int committed = 0;
        bool come = !alone || who == r.rank;
        if (!come)
            castor_place_set(r.store, INSIDE_STEP);
        else if (!call(inside_together(r.store, key, able, alone ? 0.2 : 1.0, &committed), "together"))
            return;
        // The verdict is one for all.
        int32_t verdict = come ? committed : -1, verdicts[kRanksMax];
        inside_collective_enter();
        if (!call(castor_gather(r.store, &verdict, sizeof verdict, verdicts, "the verdicts"), "gather"))
            return;
        castor_place_set(r.store, INSIDE_SCRIPT);
        for (int rank = 0; rank < r.world && !alone; rank++)
            EXPECT_EQ(verdicts[rank], verdict) << where() << "the verdict of rank " << rank;
        EXPECT_TRUE(all || !committed) << where() << "committed although not all came able and with one key";
        for (size_t i = 0; i < parameters.size(); i++) {
            Parameter &q = *parameters[i];
            for (int rank = 0; rank < r.world; rank++) {
                Grad &g = q.grad[size_t(rank)];
                if (g.kind == GradKind::NONE || (alone && rank != who))
                    continue;
                for (float &x : g.values)
                    x = times(x, factor);
                if (!committed)
                    g.untouched = false;
            }
            if (q.grad[size_t(r.rank)].kind == GradKind::NONE || !come)
                continue;
            float *at = !committed || !q.shared ? grad_address(q) : q.owner == r.rank ? q.p.sum() : nullptr;
            for (size_t k = 0; at && k < q.numel; k++)
                at[k] *= factor;
        }
        if (committed)
            call(castor_barrier(r.store, "the end of clipping"), "barrier");
    }

    static float stepped(float p, float g) { return plus(p, times(g, -0.125f)); }

    void step() {
        double values[2] = {0.125, double(parameters.size())};
        if (!call(castor_step_begin(r.store, values, nullptr, 2), "the begin of a step"))
            return;
        std::vector<castor_tensor *> tensors;
        std::vector<uint8_t> publishes;
        for (size_t i = 0; i < parameters.size(); i++) {
            Parameter &q = *parameters[i];
            if (q.shared) {
                const Grad &g = q.grad[size_t(q.owner)];
                tensors.push_back(q.p.tensor);
                publishes.push_back(g.kind != GradKind::NONE && !chance(0.15, 60, 77, i));
                if (!publishes.back())
                    continue;
                Values &v = q.seen[size_t(q.owner)];
                for (size_t k = 0; k < q.numel; k++)
                    v[k] = stepped(v[k], g.values[k]);
                if (q.owner == r.rank) {
                    castor_publish_push(&q.p.tensor, 1);
                    const float *from = g.untouched ? q.p.sum() : grad_address(q);
                    for (size_t k = 0; k < q.numel; k++)
                        q.p.alias()[k] = stepped(q.p.alias()[k], from[k]);
                    castor_publish_mark(q.p.tensor);
                }
                q.stored = v;
                q.seen.assign(size_t(r.world), q.stored);
            } else {
                step_private(q);
            }
        }
        std::vector<uint8_t> changed(tensors.size() + 1);
        dawdle();
        if (!call(castor_publish_end(r.store, tensors.data(), uint32_t(tensors.size()), changed.data()),
                  "the end of a step"))
            return;
        changed.resize(tensors.size());
        EXPECT_EQ(changed, publishes) << where();
    }

    // Every rank for itself, in its own view.
    void step_private(Parameter &q) {
        for (int rank = 0; rank < r.world; rank++) {
            const Grad &g = q.grad[size_t(rank)];
            for (size_t k = 0; g.kind != GradKind::NONE && k < q.numel; k++)
                q.seen[size_t(rank)][k] = stepped(q.seen[size_t(rank)][k], g.values[k]);
        }
        if (q.grad[size_t(r.rank)].kind != GradKind::NONE)
            for (size_t k = 0; k < q.numel; k++)
                q.p.data[k] = stepped(q.p.data[k], grad_address(q)[k]);
    }

    void step_replicated() {
        std::vector<castor_tensor *> tensors;
        for (auto &q : parameters) {
            bool all = true;
            for (const Grad &g : q->grad)
                all = all && g.kind != GradKind::NONE;
            step_private(*q);
            if (!q->shared || !all)
                continue;
            tensors.push_back(q->p.tensor);
            q->stored = q->seen[size_t(q->owner)];
        }
        call(castor_publish_deduplicate(r.store, tensors.data(), uint32_t(tensors.size()),
                                        "a replicated step"),
             "a replicated step");
    }

    void edit_parameters() {
        bool everyone = chance(0.4, 70);
        for (size_t i = 0; i < parameters.size(); i++) {
            if (!chance(0.4, 71, 77, i))
                continue;
            Parameter &q = *parameters[i];
            size_t from = draw(72, 77, i) % q.numel;
            size_t to =
                chance(0.5, 73, 77, i) ? from + 1 : std::min(q.numel, from + 1 + draw(74, 77, i) % 3000);
            for (int rank = 0; rank < r.world; rank++) {
                if (!everyone && rank != int(draw(75, 77, i) % uint64_t(r.world)))
                    continue;
                for (size_t k = from; k < to; k++) {
                    float x = value(76, everyone ? 77 : uint64_t(rank), i, k);
                    q.seen[size_t(rank)][k] = x;
                    if (rank == r.rank)
                        q.p.data[k] = x;
                }
            }
        }
    }

    void edit_gradients() {
        for (size_t i = 0; i < parameters.size(); i++)
            for (int rank = 0; rank < r.world; rank++) {
                Parameter &q = *parameters[i];
                Grad &g = q.grad[size_t(rank)];
                if (g.kind == GradKind::NONE || !chance(0.3, 77, uint64_t(rank), i))
                    continue;
                g.untouched = false;
                bool zero = g.kind == GradKind::WINDOW && chance(0.5, 78, uint64_t(rank), i);
                size_t k = draw(79, uint64_t(rank), i) % q.numel;
                if (zero)
                    g.values.assign(q.numel, 0);
                else
                    g.values[k] = value(80, uint64_t(rank), i, k);
                if (rank != r.rank)
                    continue;
                if (zero)
                    call(castor_window_zero(q.window), "zeroing a window");
                else
                    grad_address(q)[k] = g.values[k];
            }
    }

    // p.grad = None, or kept in a list.
    void drop_gradients() {
        for (size_t i = 0; i < parameters.size(); i++)
            for (int rank = 0; rank < r.world; rank++)
                if (chance(0.6, 81, uint64_t(rank), i) || chance(0.4, 82))
                    drop_gradient(*parameters[i], rank, chance(0.3, 83, uint64_t(rank), i));
    }

    void drop_gradient(Parameter &q, int rank, bool keep) {
        Grad &g = q.grad[size_t(rank)];
        if (rank == r.rank && g.kind == GradKind::WINDOW) {
            if (keep)
                kept.push_back({q.window_address, g.values, q.window});
            else
                window_return(q.window);
            q.window = nullptr;
            q.window_address = nullptr;
        }
        g = Grad();
    }

    // The script drops a parameter on every rank, or takes it out of the store; its bytes it may still keep.
    void forget(bool release) {
        if (parameters.size() < 2)
            return;
        size_t i = draw(100) % parameters.size();
        Parameter &q = *parameters[i];
        for (int rank = 0; rank < r.world; rank++)
            drop_gradient(q, rank, chance(0.5, 101, uint64_t(rank)));
        bool keep = chance(0.5, 102, uint64_t(r.rank));
        if (release && !call(castor_tensor_release(q.p.tensor), "release"))
            return;
        if (!keep)
            arena_free(q.p.data);
        castor_tensor_forget(q.p.tensor);
        if (keep)
            kept.push_back({q.p.data, q.seen[size_t(r.rank)], nullptr});
        parameters.erase(parameters.begin() + long(i));
    }

    // p.data is another block; what kept the old one keeps its values.
    void replace() {
        for (size_t i = 0; i < parameters.size(); i++) {
            Parameter &q = *parameters[i];
            for (int rank = 0; rank < r.world; rank++) {
                if (!q.shared || !chance(0.4, 110, uint64_t(rank), i))
                    continue;
                if (rank == r.rank) {
                    auto *block = static_cast<float *>(arena_alloc(q.numel * sizeof(float)));
                    ASSERT_NE(block, nullptr);
                    EXPECT_EQ(castor_tensor_rehome(q.p.tensor, block), 1) << error_text();
                    if (chance(0.5, 111, uint64_t(rank), i))
                        kept.push_back({q.p.data, q.seen[size_t(rank)], nullptr});
                    else
                        arena_free(q.p.data);
                    q.p.data = block;
                }
                q.seen[size_t(rank)] = q.stored;
            }
        }
    }

    // A child sees everything as it was at the fork, whatever its parents do meanwhile.
    void fork_child() {
        if (children.size() >= 3 || child_flag >= 60)
            return;
        fflush(nullptr);
        pid_t pid = fork();
        ASSERT_GE(pid, 0);
        int flag = child_flag++;
        if (pid) {
            children.push_back(pid);
            return;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
        name = "in a child";
        double until = now_seconds() + 30;
        while (!r.board->flag[flag].load() && now_seconds() < until)
            usleep(2000);
        for (size_t i = 0; i < parameters.size(); i++) {
            Parameter &q = *parameters[i];
            expect_equal(q.p.data, q.seen[size_t(r.rank)], "parameter " + std::to_string(i));
            if (q.grad[size_t(r.rank)].kind != GradKind::NONE)
                expect_equal(grad_address(q), q.grad[size_t(r.rank)].values,
                             "the gradient of " + std::to_string(i));
            // Its own writes stay its own: the parents would notice.
            memset(q.p.data, 0x55, q.numel * sizeof(float));
        }
        for (const Kept &k : kept)
            expect_equal(k.address, k.values, "what was kept");
        process_end(testing::Test::HasFailure() ? 1 : 0);
    }

    void end() {
        for (int flag = 8; flag < child_flag; flag++)
            r.board->flag[flag] = 1;
        for (pid_t pid : children) {
            int child_status = -1;
            waitpid(pid, &child_status, 0);
            EXPECT_EQ(child_status, 0) << where() << "a child";
        }
        op++;
        name = "the end";
        compare();
        while (!parameters.empty() && good())
            forget_last();
        while (!kept.empty())
            let_go();
        if (!good() || !call(castor_barrier(r.store, "the end"), "barrier"))
            return;
        EXPECT_TRUE(arena_check());
    }

    void forget_last() {
        Parameter &q = *parameters.back();
        drop_gradient(q, r.rank, false);
        castor_tensor_forget(q.p.tensor);
        arena_free(q.p.data);
        parameters.pop_back();
    }
};

struct Plan {
    int world, operations;
    std::vector<std::string> options;
};

Plan plan_of(uint64_t seed) {
    static const char *const chunk_sizes[] = {"64K", "256K", "32M"};
    Plan plan;
    plan.world = 2 + int(mix(seed) % 3);
    plan.operations = 60;
    plan.options.push_back(std::string("CASTOR_CHUNK_SIZE=") + chunk_sizes[mix(seed + 1) % 3]);
    return plan;
}

// A script with its seed, on all ranks. `victim` >= 0: that one is killed at some moment.
void run_seed(uint64_t seed, int victim) {
    SCOPED_TRACE("STORE_PROPERTY_SEED=" + std::to_string(seed));
    Plan plan = plan_of(seed);
    Job job(plan.world);
    job.options = plan.options;
    job.alarm_seconds = 120;
    if (victim >= 0)
        job.killed = {victim};
    job.zombies = mix(seed + 2) % 2;
    job.start([&](Rank &r) {
        Script script(r, seed, victim >= 0);
        flag_raise(r.board, 0);
        // One that is to be killed, and those that wait for it, go on until it is.
        script.run(victim >= 0 ? 1000000 : plan.operations);
        if (victim < 0)
            return;
        EXPECT_EQ(script.failed_status(), CASTOR_ERR_PEER)
            << "operation " << script.operation() << ": " << error_text();
        std::string text = "rank " + std::to_string(victim) + " (pid";
        EXPECT_NE(strstr(error_text(), text.c_str()), nullptr) << error_text();
        flag_raise(r.board, 1);
    });
    if (testing::Test::HasFatalFailure())
        return;
    if (victim >= 0) {
        double until = now_seconds() + 30;
        while (job.board->flag[0].load() < uint32_t(plan.world) && now_seconds() < until)
            usleep(1000);
        usleep(unsigned(mix(seed + 3) % 300000));
        kill(job.pids[size_t(victim)], SIGKILL);
        until = now_seconds() + 5;
        while (job.board->flag[1].load() < uint32_t(plan.world) - 1 && now_seconds() < until)
            usleep(2000);
        EXPECT_EQ(job.board->flag[1].load(), uint32_t(plan.world) - 1)
            << "ranks that had their error within 5 s of the death of rank " << victim;
    }
    job.finish();
}

TEST(StoreProperty, EachRankSeesWhatPlainMemoryWouldHold) {
    const char *seed_text = getenv("STORE_PROPERTY_SEED"), *seconds_text = getenv("STORE_PROPERTY_SECONDS");
    uint64_t seed = seed_text ? strtoull(seed_text, nullptr, 10) : uint64_t(time(nullptr)) * 1000;
    double until = now_seconds() + (seconds_text ? atof(seconds_text) : 12);
    printf("STORE_PROPERTY_SEED=%lu\n", static_cast<unsigned long>(seed));
    unsigned runs = 0;
    do {
        bool kills = mix(seed + 4) % 4 == 0;
        run_seed(seed, kills ? int(mix(seed + 5) % uint64_t(plan_of(seed).world)) : -1);
        seed++;
        runs++;
    } while (!HasFailure() && !seed_text && now_seconds() < until);
    printf("%u scripts\n", runs);
}

} // namespace
