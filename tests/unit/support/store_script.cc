// The script's operations one after another, those on parameters and processes, and the comparison after each.
#include "store_script.h"

#include <thread>

namespace store_test {

// Of a number below 100, the first row whose `below` is above it.
const Script::Operation Script::table[] = {
    {30, "backward", &Script::backward},
    {42, "step", &Script::step},
    {50, "replicated step", &Script::step_replicated},
    {60, "clip", &Script::clip},
    {70, "edit parameters", &Script::edit_parameters},
    {77, "edit gradients", &Script::edit_gradients},
    {87, "drop gradients", &Script::drop_gradients},
    {91, "adopt", &Script::adopt_some},
    {94, "forget", &Script::forget},
    {96, "release", &Script::release},
    {98, "replace", &Script::replace},
    {100, "fork", &Script::fork_child},
};

void Script::run(int operations) {
    adopt(3);
    for (op = 1; op <= operations && good(); op++) {
        dawdle();
        uint64_t what = draw(0) % 100;
        const Operation *chosen = table;
        while (what >= chosen->below)
            chosen++;
        name = chosen->name;
        (this->*chosen->run)();
        if (good())
            compare();
    }
    if (good())
        end();
}

bool Script::call(int got, const char *what) {
    if (got == CASTOR_OK)
        return true;
    status = got;
    if (!killing)
        ADD_FAILURE() << where() << what << ": " << error_text();
    return false;
}

std::string Script::where() const {
    return "seed " + std::to_string(seed) + ", rank " + std::to_string(r.rank) + " of " +
           std::to_string(r.world) + ", operation " + std::to_string(op) + " (" + name + "): ";
}

void Script::dawdle() const {
    uint64_t local = mix(seed + uint64_t(op) * 31 + uint64_t(r.rank) * 977);
    if (local % 4 == 0)
        usleep(unsigned(local >> 8) % 400);
    if (local % 97 == 0)
        usleep(5000);
}

void Script::expect_equal(const float *found, const Values &expected, const std::string &what) {
    if (memcmp(found, expected.data(), expected.size() * sizeof(float)) == 0)
        return;
    size_t i = 0;
    while (memcmp(&found[i], &expected[i], sizeof(float)) == 0)
        i++;
    ADD_FAILURE() << where() << what << ", element " << i << " of " << expected.size() << ": found "
                  << found[i] << ", expected " << expected[i];
}

void Script::compare() {
    for (size_t i = 0; i < parameters.size() && good(); i++) {
        Parameter &q = *parameters[i];
        std::string name = "parameter " + std::to_string(i);
        expect_equal(q.p.data, q.seen[r.rank], name);
        Grad &g = q.grad[r.rank];
        if (g.kind != GradKind::NONE)
            expect_equal(g.kind == GradKind::OWN ? q.own.data() : q.window_address, g.values,
                         "the gradient of " + name);
        if (g.kind == GradKind::WINDOW && g.untouched) {
            EXPECT_EQ(window_edited(q.window), 0u) << where() << name;
        }
    }
    for (size_t i = 0; i < kept.size() && good(); i++)
        expect_equal(kept[i].address, kept[i].values, "what was kept, number " + std::to_string(i));
    if (good()) {
        EXPECT_EQ(inside_check(r.store), CASTOR_OK) << where() << error_text();
    }
    while (kept.size() > 12 || (!kept.empty() && chance(0.1, 90)))
        let_go();
}

void Script::let_go() {
    Kept k = kept.front();
    kept.pop_front();
    if (!k.window)
        arena_free(const_cast<float *>(k.address));
    else
        window_return(k.window);
}

void Script::window_return(castor_window *w) {
    if (chance(0.1, 91, uint64_t(r.rank)))
        std::thread([w] { castor_window_return(w); }).join();
    else
        castor_window_return(w);
}

size_t Script::size_draw(uint64_t salt) const {
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

void Script::adopt(size_t count) {
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

void Script::edit_parameters() {
    bool everyone = chance(0.4, 70);
    for (size_t i = 0; i < parameters.size(); i++) {
        if (!chance(0.4, 71, 77, i))
            continue;
        Parameter &q = *parameters[i];
        size_t from = draw(72, 77, i) % q.numel;
        size_t to = chance(0.5, 73, 77, i) ? from + 1 : std::min(q.numel, from + 1 + draw(74, 77, i) % 3000);
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

void Script::drop_parameter(bool release) {
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

void Script::adopt_some() {
    adopt(1 + draw(1) % 2);
}

void Script::forget() {
    drop_parameter(false);
}

void Script::release() {
    drop_parameter(true);
}

void Script::replace() {
    for (size_t i = 0; i < parameters.size(); i++) {
        Parameter &q = *parameters[i];
        for (int rank = 0; rank < r.world; rank++) {
            if (!q.shared || !chance(0.4, 110, uint64_t(rank), i))
                continue;
            if (rank == r.rank) {
                auto *block = static_cast<float *>(arena_alloc(q.numel * sizeof(float)));
                ASSERT_NE(block, nullptr);
                EXPECT_EQ(inside_rebind(q.p.tensor, block), 1) << error_text();
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

void Script::fork_child() {
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

void Script::end() {
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

void Script::forget_last() {
    Parameter &q = *parameters.back();
    drop_gradient(q, r.rank, false);
    castor_tensor_forget(q.p.tensor);
    arena_free(q.p.data);
    parameters.pop_back();
}

} // namespace store_test
