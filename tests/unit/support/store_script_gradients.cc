// The script's operations on gradients, and the steps that use them.
#include "store_script.h"

#include <algorithm>
#include <numeric>

namespace store_test {

bool Script::contribution(size_t i, int rank, bool used, bool carry, Values &out) const {
    const Grad none, &g = carry ? none : parameters[i]->grad[size_t(rank)];
    if (!used && g.kind == GradKind::NONE)
        return false;
    out = g.kind == GradKind::NONE ? Values(parameters[i]->numel) : g.values;
    for (size_t k = 0; used && k < out.size(); k++)
        out[k] = g.kind == GradKind::NONE ? value(40, uint64_t(rank), i, k)
                                          : plus(out[k], value(40, uint64_t(rank), i, k));
    return true;
}

void Script::backward() {
    size_t count = parameters.size();
    uint64_t queue_bytes = chance(0.5, 41) ? 64 * kMiB : 1;
    std::vector<Values> mine(count);
    std::vector<uint8_t> any(count), used(count), adds(count), carry(count);
    auto scale_of = [&](int rank) { return float(1 + draw(42, uint64_t(rank)) % 7) / 4; };
    for (size_t i = 0; i < count; i++) {
        Parameter &q = *parameters[i];
        carry[i] = q.kept && chance(0.6, 48, 77, i);
        Values sum = carry[i] ? q.sum : Values(q.numel, 0);
        for (int rank = 0; rank < r.world; rank++) {
            bool uses = chance(0.75, 43, uint64_t(rank), i) && !chance(0.1, 44, 77, i);
            Values v;
            any[i] |= uses;
            bool has = contribution(i, rank, uses, carry[i], v);
            for (size_t k = 0; has && k < v.size(); k++)
                sum[k] = rank || carry[i] ? plus(sum[k], times(v[k], scale_of(rank)))
                                          : times(v[k], scale_of(rank));
            if (rank == r.rank) {
                mine[i] = v;
                used[i] = uses;
                adds[i] = has;
            }
        }
        q.sum = std::move(sum);
        q.kept = chance(0.5, 49, 77, i);
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
        if (adds[i] && (kind == GradKind::NONE || carry[i])) {
            source = mine[i].data();
        } else if (adds[i]) {
            float *at = kind == GradKind::OWN ? q.own.data() : q.window_address;
            if (used[i])
                memcpy(at, mine[i].data(), mine[i].size() * sizeof(float));
            source = at;
        }
        castor_window *window = kind == GradKind::WINDOW ? q.window : nullptr;
        if (q.shared && carry[i] && !call(window_carry(q.p.tensor, window), "going on"))
            return;
        if (q.shared && !carry[i] && !call(castor_windows_detach(q.p.tensor), "detaching"))
            return;
        if (!q.shared)
            castor_sums_release(&q.p.tensor, 1);
        int flags = (used[i] ? ADD_USED : 0) | (carry[i] ? ADD_CARRY : 0) | (q.kept ? ADD_KEEP : 0);
        if (!call(inside_gradient_add(q.p.tensor, source, double(scale_of(r.rank)), flags, queue_bytes,
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
        show(i, any[i], carry[i]);
        if (!good())
            return;
    }
}

void Script::show(size_t i, bool any, bool carried) {
    Parameter &q = *parameters[i];
    const Values &sum = q.sum;
    for (int rank = 0; rank < r.world; rank++) {
        Grad &g = q.grad[size_t(rank)];
        bool mine = rank == r.rank;
        g.untouched = false;
        if (!any && !(carried && g.kind == GradKind::WINDOW)) {
            if (mine)
                castor_sums_release(&q.p.tensor, 1);
            continue;
        }
        bool keeps_own = g.kind == GradKind::OWN || !q.shared ||
                         (g.kind == GradKind::NONE && chance(0.1, 46, uint64_t(rank), i));
        g.values = sum;
        if (keeps_own) {
            g.kind = GradKind::OWN;
            if (mine) {
                q.own.assign(q.p.sum(), q.p.sum() + q.numel);
                castor_sums_release(&q.p.tensor, 1);
            }
            continue;
        }
        g.untouched = true;
        if (mine && g.kind == GradKind::WINDOW) {
            call(window_refresh(q.window), "refreshing");
        } else if (mine) {
            void *address = nullptr;
            if (call(window_take(q.p.tensor, &q.window, &address), "taking a window"))
                q.window_address = static_cast<float *>(address);
        }
        g.kind = GradKind::WINDOW;
    }
}

Script::Offer Script::offer_of(int rank) const {
    Offer offer = {mix(uint64_t(op)), true};
    for (size_t i = 0; i < parameters.size(); i++) {
        const Grad &g = parameters[i]->grad[size_t(rank)];
        if (g.kind == GradKind::NONE)
            continue;
        offer.key = mix(offer.key + i + 1);
        if (parameters[i]->shared)
            offer.able = offer.able && g.kind == GradKind::WINDOW && g.untouched;
    }
    return offer;
}

void Script::clip() {
    // A rank that does not come at all does nothing; the others clip for themselves.
    const float factor = 0.5f;
    bool alone = chance(0.2, 50);
    int who = int(draw(51) % uint64_t(r.world));
    Offer mine = offer_of(r.rank), first = offer_of(0);
    bool all = !alone;
    for (int rank = 0; rank < r.world; rank++) {
        Offer offer = offer_of(rank);
        all = all && offer.able && offer.key == first.key;
    }
    int committed = 0;
    bool come = !alone || who == r.rank;
    if (!come)
        castor_activity_set(r.store, INSIDE_STEP);
    else if (!call(inside_consensus(r.store, mine.key, mine.able, alone ? 0.2 : 1.0, &committed), "together"))
        return;
    // The verdict is one for all.
    int32_t verdict = come ? committed : -1, verdicts[kRanksMax];
    inside_collective_enter();
    if (!call(castor_gather(r.store, &verdict, sizeof verdict, verdicts, "the verdicts"), "gather"))
        return;
    castor_activity_set(r.store, INSIDE_SCRIPT);
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
        for (size_t k = 0; committed && q.shared && k < q.numel; k++)
            q.sum[k] = times(q.sum[k], factor);
        float *at = !committed || !q.shared ? grad_address(q) : q.owner == r.rank ? q.p.sum() : nullptr;
        for (size_t k = 0; at && k < q.numel; k++)
            at[k] *= factor;
    }
    if (committed)
        call(castor_barrier(r.store, "the end of clipping"), "barrier");
}

void Script::step() {
    double values[2] = {0.125, double(parameters.size())};
    if (!call(castor_step_begin(r.store, values, nullptr, 2, nullptr, 0, nullptr), "the begin of a step"))
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
                int part = castor_part_begin(r.store, 7, uint32_t(i), &q.p.tensor, 1);
                EXPECT_TRUE(part == CASTOR_OK || part == CASTOR_ERR_MEMORY) << where() << error_text();
                castor_publish_push(&q.p.tensor, 1);
                const float *from = g.untouched ? q.p.sum() : grad_address(q);
                for (size_t k = 0; k < q.numel; k++)
                    q.p.alias()[k] = stepped(q.p.alias()[k], from[k]);
                castor_publish_mark(&q.p.tensor, 1);
                EXPECT_EQ(castor_part_end(r.store), CASTOR_OK) << where() << error_text();
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

void Script::step_private(Parameter &q) {
    for (int rank = 0; rank < r.world; rank++) {
        const Grad &g = q.grad[size_t(rank)];
        for (size_t k = 0; g.kind != GradKind::NONE && k < q.numel; k++)
            q.seen[size_t(rank)][k] = stepped(q.seen[size_t(rank)][k], g.values[k]);
    }
    if (q.grad[size_t(r.rank)].kind != GradKind::NONE)
        for (size_t k = 0; k < q.numel; k++)
            q.p.data[k] = stepped(q.p.data[k], grad_address(q)[k]);
}

void Script::step_replicated() {
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
    call(castor_publish_deduplicate(r.store, tensors.data(), uint32_t(tensors.size()), "a replicated step"),
         "a replicated step");
}

void Script::edit_gradients() {
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
                call(castor_windows_zero(&q.window, 1), "zeroing a window");
            else
                grad_address(q)[k] = g.values[k];
        }
}

void Script::drop_gradients() {
    for (size_t i = 0; i < parameters.size(); i++)
        for (int rank = 0; rank < r.world; rank++)
            if (chance(0.6, 81, uint64_t(rank), i) || chance(0.4, 82))
                drop_gradient(*parameters[i], rank, chance(0.3, 83, uint64_t(rank), i));
}

void Script::drop_gradient(Parameter &q, int rank, bool keep) {
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

} // namespace store_test
