// Costs of communications by hand; transforms and paths against a search that is written here, on specs written as lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "specs.h"

namespace {

using Texts = std::vector<std::string>;
using Lists = std::vector<std::vector<int>>; // the axes of each dimension

struct Costs : testing::Test {
    const castor_mesh m = mesh({2, 4}, {}, {2, 3}, {0.25, 0.5});
    const castor_spec spec = parsed("[S0, R]", {16, 8}); // a part has 64 elements

    castor_cost cost(int32_t pattern, int32_t axis, bool forward_only = false, double shard_cost = 0) {
        castor_communication c = {};
        c.pattern = pattern;
        c.axis = axis;
        c.forward_only = forward_only;
        c.shard_cost = shard_cost;
        castor_cost found = {-1, -1, -1};
        EXPECT_EQ(castor_communication_cost(&m, &spec, &c, &found), CASTOR_OK) << castor_error();
        EXPECT_DOUBLE_EQ(found.total, found.forward + found.backward);
        return found;
    }
    void expect(int32_t pattern, int32_t axis, double forward, double backward) {
        EXPECT_DOUBLE_EQ(cost(pattern, axis).forward, forward);
        EXPECT_DOUBLE_EQ(cost(pattern, axis).backward, backward);
        EXPECT_DOUBLE_EQ(cost(pattern, axis, true).total, forward);
        EXPECT_EQ(cost(pattern, axis, true).backward, 0);
    }
};

// The figures of mesh_test's CostsByHand: on axis 1, 4 ranks, alpha 3, beta 0.5; 64 elements.
TEST_F(Costs, OfPatternsByHand) {
    expect(CASTOR_GATHER_FWD_SPLIT_BWD, 1, 3 + 24 + 0.1, 0);
    expect(CASTOR_SPLIT_FWD_GATHER_BWD, 1, 0, 3 + 24 + 0.1);
    expect(CASTOR_ALL2ALL_FWD_ALL2ALL_BWD, 1, 3 + 12 + 0.001, 3 + 12 + 0.001);
    expect(CASTOR_ALLREDUCE_FWD_IDENTITY_BWD, 1, 3 + 48 + 0.01, 0);
    expect(CASTOR_IDENTITY_FWD_ALLREDUCE_BWD, 1, 0, 3 + 48 + 0.01);
    // 8 ranks, the largest alpha, the smallest beta: 7/8 of 64, 56, at 0.25.
    expect(CASTOR_MIXGATHER_FWD_SPLIT_BWD, 0, 3 + 14 + 0.1, 0);
}

// All 8 ranks, alpha 3, beta 0.5: 7/8 of 64, 56, at 0.5; an all-reduce twice that; an all-to-all 7/64 of 64, 7, at 0.5, times 8/2.
TEST_F(Costs, OfListsOfAxesAreTheFlattenedMeshs) {
    expect(CASTOR_GATHER_FWD_SPLIT_BWD, CASTOR_ALL_AXES, 3 + 28 + 0.1, 0);
    expect(CASTOR_ALLREDUCE_FWD_IDENTITY_BWD, CASTOR_ALL_AXES, 3 + 56 + 0.01, 0);
    expect(CASTOR_ALL2ALL_FWD_ALL2ALL_BWD, CASTOR_ALL_AXES, 3 + 14 + 0.001, 3 + 14 + 0.001);
}

TEST_F(Costs, TheShardCostIsAParameter) {
    EXPECT_DOUBLE_EQ(cost(CASTOR_GATHER_FWD_SPLIT_BWD, 1, false, 100).backward, 100);
    EXPECT_DOUBLE_EQ(cost(CASTOR_MIXGATHER_FWD_SPLIT_BWD, 1, false, 100).backward, 100);
    EXPECT_DOUBLE_EQ(cost(CASTOR_SPLIT_FWD_GATHER_BWD, 1, false, 100).forward, 100);
    EXPECT_DOUBLE_EQ(cost(CASTOR_GATHER_FWD_SPLIT_BWD, 1, true, 100).backward, 0);
    EXPECT_DOUBLE_EQ(cost(CASTOR_ALLREDUCE_FWD_IDENTITY_BWD, 1, false, 100).total, 3 + 48 + 0.01);
}

TEST_F(Costs, WhatIsNoCommunicationIsAnError) {
    castor_communication c = {};
    castor_cost found = {};
    for (int32_t pattern : {-1, 6}) {
        c.pattern = pattern;
        EXPECT_EQ(castor_communication_cost(&m, &spec, &c, &found), CASTOR_ERR_ARGUMENT);
        EXPECT_TRUE(said("pattern")) << castor_error();
    }
    c.pattern = CASTOR_GATHER_FWD_SPLIT_BWD;
    c.axis = 2;
    EXPECT_EQ(castor_communication_cost(&m, &spec, &c, &found), CASTOR_ERR_ARGUMENT);
    c.axis = 0;
    const castor_spec other = parsed("[S2, R]", {16, 8});
    EXPECT_EQ(castor_communication_cost(&m, &other, &c, &found), CASTOR_ERR_ARGUMENT);
}

std::vector<castor_transform> transforms(const castor_mesh &m, const castor_spec &spec) {
    std::vector<castor_transform> found(CASTOR_TRANSFORMS_MOST);
    uint32_t count = 0;
    EXPECT_EQ(castor_spec_transforms(&m, &spec, 0, 0, found.data(), &count), CASTOR_OK) << castor_error();
    found.resize(count);
    return found;
}

Texts texts(const std::vector<castor_transform> &of) {
    Texts made;
    for (const castor_transform &one : of)
        made.push_back(printed(one.after));
    return made;
}

TEST(Transforms, InTheirOrder) {
    const castor_mesh m = mesh({4, 4});
    EXPECT_EQ(
        texts(transforms(m, parsed("[S0, S1, R]", {64, 64, 64}))),
        (Texts{"[R, S1, R]", "[S0, R, R]",                                    // all-gathers
               "[R, S10, R]", "[R, S1, S0]", "[S01, R, R]", "[S0, R, S1]"})); // all-to-alls; no axis is free
    EXPECT_EQ(texts(transforms(m, parsed("[S0, R, R]", {64, 64, 64}))),
              (Texts{"[R, R, R]", "[R, S0, R]", "[R, R, S0]", "[S01, R, R]", "[S0, S1, R]", "[S0, R, S1]"}));
}

TEST(Transforms, WhatAnActionDoes) {
    const auto found = transforms(mesh({4, 4}), parsed("[S0, R]", {64, 64}));
    ASSERT_EQ(texts(found), (Texts{"[R, R]", "[R, S0]", "[S01, R]", "[S0, S1]"}));
    struct {
        int pattern, gather, shard, axis;
    } const rows[] = {{CASTOR_GATHER_FWD_SPLIT_BWD, 0, 0, 0},
                      {CASTOR_ALL2ALL_FWD_ALL2ALL_BWD, 0, 1, 0},
                      {CASTOR_SPLIT_FWD_GATHER_BWD, 0, 0, 1},
                      {CASTOR_SPLIT_FWD_GATHER_BWD, 1, 1, 1}};
    for (size_t i = 0; i < 4; i++) {
        EXPECT_EQ(found[i].action.pattern, rows[i].pattern);
        EXPECT_EQ(found[i].action.gather_dim, rows[i].gather);
        EXPECT_EQ(found[i].action.shard_dim, rows[i].shard);
        EXPECT_EQ(found[i].action.axis, rows[i].axis);
    }
}

struct Path {
    std::vector<castor_transform> steps;
    castor_cost cost;
};

Path path(const castor_mesh &m, const castor_spec &from, const castor_spec &to, int forward_only = 0,
          double shard_cost = 0) {
    Path made = {std::vector<castor_transform>(CASTOR_PATH_MOST), {}};
    uint32_t count = 0;
    EXPECT_EQ(
        castor_spec_path(&m, &from, &to, forward_only, shard_cost, made.steps.data(), &count, &made.cost),
        CASTOR_OK)
        << castor_error();
    made.steps.resize(count);
    return made;
}

// The path that the original's own example has. Parts of 64 * 64 * 64 elements on 4 x 4 ranks: 16384, then 65536, then 65536.
TEST(Paths, OfTheOriginalsExample) {
    const castor_mesh m = mesh({4, 4});
    const Shape shape = {64, 64, 64};
    const Path found = path(m, parsed("[R, S01, R]", shape), parsed("[S01, R, R]", shape));
    ASSERT_EQ(texts(found.steps), (Texts{"[R, S0, R]", "[S0, R, R]", "[S01, R, R]"}));
    EXPECT_EQ(found.steps[0].action.pattern, CASTOR_GATHER_FWD_SPLIT_BWD);
    EXPECT_EQ(found.steps[0].action.gather_dim, 1);
    EXPECT_EQ(found.steps[0].action.axis, 1);
    EXPECT_EQ(found.steps[1].action.pattern, CASTOR_ALL2ALL_FWD_ALL2ALL_BWD);
    EXPECT_EQ(found.steps[1].action.gather_dim, 1);
    EXPECT_EQ(found.steps[1].action.shard_dim, 0);
    EXPECT_EQ(found.steps[1].action.axis, 0);
    EXPECT_EQ(found.steps[2].action.pattern, CASTOR_SPLIT_FWD_GATHER_BWD);
    EXPECT_EQ(found.steps[2].action.shard_dim, 0);
    EXPECT_EQ(found.steps[2].action.axis, 1);
    // All-gather of 16384: 3/4 of it; all-to-all of 65536: 3/16 of it, twice; the shard's backward gathers 65536.
    const double gather = 1 + 12288 + 0.1, exchange = 1 + 24576 + 0.001, backward = 1 + 49152 + 0.1;
    EXPECT_DOUBLE_EQ(found.cost.forward, gather + exchange);
    EXPECT_DOUBLE_EQ(found.cost.backward, exchange + backward);
    EXPECT_DOUBLE_EQ(found.cost.total, gather + 2 * exchange + backward); // once
    const Path forward = path(m, parsed("[R, S01, R]", shape), parsed("[S01, R, R]", shape), 1, 100);
    EXPECT_DOUBLE_EQ(forward.cost.total, gather + exchange + 100);
    EXPECT_EQ(forward.cost.backward, 0);
}

// What is left to do is 20 for each axis that must leave a dimension, 5 for each that must come, and 6 between them.
TEST(Paths, TakeTheTransformThatComesNearest) {
    const castor_mesh m = mesh({4, 4, 4});
    const Shape shape = {64, 64};
    auto of = [&](const char *from, const char *to) {
        return texts(path(m, parsed(from, shape), parsed(to, shape)).steps);
    };
    // [R, R] leaves 5, [S0, S1] 20.
    EXPECT_EQ(of("[S0, R]", "[R, S1]"), (Texts{"[R, R]", "[R, S1]"}));
    // [R, R] leaves 5 + 6 + 5, [S0, S1] 20 + 5.
    EXPECT_EQ(of("[S0, R]", "[R, S12]"), (Texts{"[R, R]", "[R, S1]", "[R, S12]"}));
    // [S0, S2] leaves 20 + 20, [S01, R] 20 + 6 + 20.
    EXPECT_EQ(of("[S01, S2]", "[R, R]"), (Texts{"[S0, S2]", "[R, S2]", "[R, R]"}));
    EXPECT_EQ(of("[S01, R]", "[S0, S1]"), (Texts{"[S0, S1]"}));
    // [R, S1] and [S0, R] leave 5 + (20 + 6 + 5) both: the first one.
    EXPECT_EQ(of("[S0, S1]", "[S1, S0]"), (Texts{"[R, S1]", "[S1, R]", "[S1, S0]"}));
}

TEST(Paths, BetweenEqualSpecsAreEmpty) {
    const castor_spec spec = parsed("[S0, R]", {8, 8});
    const Path found = path(mesh({2, 2}), spec, spec, 0, 100);
    EXPECT_TRUE(found.steps.empty());
    EXPECT_EQ(found.cost.total, 0);
}

TEST(Paths, BetweenSpecsThatDoNotFitAreErrors) {
    const castor_mesh m = mesh({2, 4});
    castor_transform steps[CASTOR_PATH_MOST];
    castor_cost cost;
    uint32_t count = 0;
    auto fails = [&](const castor_spec &from, const castor_spec &to) {
        return castor_spec_path(&m, &from, &to, 0, 0, steps, &count, &cost) == CASTOR_ERR_ARGUMENT;
    };
    EXPECT_TRUE(fails(parsed("[S1, R]", {6, 8}), parsed("[R, R]", {6, 8})));
    EXPECT_TRUE(fails(parsed("[R, R]", {6, 8}), parsed("[S1, R]", {6, 8})));
    EXPECT_TRUE(fails(parsed("[R, R]", {8, 8}), parsed("[S2, R]", {8, 8})));
    EXPECT_TRUE(fails(parsed("[R, R]", {8, 8}), parsed("[R, R]", {8, 4})));
    EXPECT_TRUE(said("different shapes")) << castor_error();
    EXPECT_TRUE(fails(parsed("[R, R]", {8, 8}), parsed("[R]", {8})));
}

// ---- every spec of small tensors, as lists

std::string text_of(const Lists &lists) {
    std::string text = "[";
    for (size_t dim = 0; dim < lists.size(); dim++) {
        text += dim ? ", " : "";
        text += lists[dim].empty() ? "R" : "S";
        for (int axis : lists[dim])
            text += static_cast<char>('0' + axis);
    }
    return text + "]";
}

struct Tensor {
    std::vector<int32_t> grid;
    Shape shape;

    int64_t parts(const Lists &lists, size_t dim) const {
        int64_t parts = 1;
        for (int axis : lists[dim])
            parts *= grid[static_cast<size_t>(axis)];
        return parts;
    }
    bool holds(const Lists &lists) const {
        for (size_t dim = 0; dim < shape.size(); dim++)
            if (shape[dim] % parts(lists, dim))
                return false;
        return true;
    }
    double elements(const Lists &lists) const {
        double product = 1;
        for (size_t dim = 0; dim < shape.size(); dim++)
            product *= static_cast<double>(shape[dim] / parts(lists, dim));
        return product;
    }
    // Every spec: axis by axis put nowhere or anywhere into a dimension's list.
    std::vector<Lists> specs() const {
        std::set<Lists> all = {Lists(shape.size())};
        for (size_t axis = 0; axis < grid.size(); axis++) {
            const std::set<Lists> before = all;
            for (const Lists &lists : before)
                for (size_t dim = 0; dim < shape.size(); dim++)
                    for (size_t at = 0; at <= lists[dim].size(); at++) {
                        Lists more = lists;
                        more[dim].insert(more[dim].begin() + static_cast<std::ptrdiff_t>(at),
                                         static_cast<int>(axis));
                        all.insert(more);
                    }
        }
        std::vector<Lists> fit;
        std::copy_if(all.begin(), all.end(), std::back_inserter(fit),
                     [&](const Lists &lists) { return holds(lists); });
        return fit;
    }
    // What one transform makes of a spec, with its forward and backward cost for alpha = beta = 1.
    std::map<Lists, std::pair<double, double>> next(const Lists &from) const {
        std::map<Lists, std::pair<double, double>> found;
        std::set<int> used;
        auto add = [&](const Lists &lists, double forward, double backward) {
            if (holds(lists))
                found[lists] = {forward, backward};
        };
        const double size = elements(from);
        for (size_t dim = 0; dim < from.size(); dim++) {
            used.insert(from[dim].begin(), from[dim].end());
            if (from[dim].empty())
                continue;
            Lists less = from;
            const int axis = less[dim].back();
            less[dim].pop_back();
            const double n = grid[static_cast<size_t>(axis)];
            add(less, 1.1 + (n - 1) / n * size, 0);
            for (size_t to = 0; to < from.size(); to++) {
                Lists moved = less;
                moved[to].push_back(axis);
                const double exchange = 1.001 + (n - 1) / (2 * n) * size;
                if (to != dim)
                    add(moved, exchange, exchange);
            }
        }
        for (size_t axis = 0; axis < grid.size(); axis++)
            for (size_t dim = 0; dim < from.size() && !used.count(static_cast<int>(axis)); dim++) {
                Lists more = from;
                more[dim].push_back(static_cast<int>(axis));
                const double n = grid[axis];
                add(more, 0, 1.1 + (n - 1) / n * size);
            }
        return found;
    }
};

// How many axes must leave and come: what stands behind the common beginning of each dimension's lists.
size_t moves(const Lists &from, const Lists &to) {
    size_t sum = 0;
    for (size_t dim = 0; dim < from.size(); dim++) {
        const auto [a, b] = std::mismatch(from[dim].begin(), from[dim].end(), to[dim].begin(), to[dim].end());
        sum += static_cast<size_t>(from[dim].end() - a) + static_cast<size_t>(to[dim].end() - b);
    }
    return sum;
}

void every_pair(const Tensor &tensor) {
    const castor_mesh m = mesh(tensor.grid);
    const std::vector<Lists> specs = tensor.specs();
    std::map<std::string, Lists> by_text;
    std::map<std::string, castor_spec> made;
    for (const Lists &lists : specs) {
        by_text[text_of(lists)] = lists;
        made[text_of(lists)] = parsed(text_of(lists), tensor.shape);
    }
    for (const Lists &from : specs) {
        const castor_spec &source = made.at(text_of(from));
        std::set<std::string> expected, found;
        for (const auto &[lists, cost] : tensor.next(from))
            expected.insert(text_of(lists));
        for (const std::string &text : texts(transforms(m, source)))
            ASSERT_TRUE(found.insert(text).second) << text << " twice";
        ASSERT_EQ(found, expected) << text_of(from);

        std::map<Lists, size_t> distance = {{from, 0}}; // by a search in breadth
        std::queue<Lists> open({from});
        for (; !open.empty(); open.pop())
            for (const auto &[lists, cost] : tensor.next(open.front()))
                if (distance.emplace(lists, distance.at(open.front()) + 1).second)
                    open.push(lists);
        ASSERT_EQ(distance.size(), specs.size()) << "from " << text_of(from) << " every spec can be reached";

        for (const Lists &to : specs) {
            const Path taken = path(m, source, made.at(text_of(to)));
            Lists now = from;
            castor_cost sum = {};
            for (const castor_transform &step : taken.steps) {
                const Lists after = by_text.at(printed(step.after));
                const auto options = tensor.next(now);
                ASSERT_TRUE(options.count(after)) << text_of(now) << " to " << text_of(after);
                ASSERT_NEAR(step.cost.forward, options.at(after).first, 1e-9);
                ASSERT_NEAR(step.cost.backward, options.at(after).second, 1e-9);
                sum.forward += step.cost.forward;
                sum.backward += step.cost.backward;
                now = after;
            }
            ASSERT_EQ(text_of(now), text_of(to)) << "from " << text_of(from);
            ASSERT_GE(taken.steps.size(), distance.at(to));
            ASSERT_LE(taken.steps.size(), moves(from, to)) << text_of(from) << " to " << text_of(to);
            ASSERT_NEAR(taken.cost.forward, sum.forward, 1e-9);
            ASSERT_NEAR(taken.cost.backward, sum.backward, 1e-9);
            ASSERT_NEAR(taken.cost.total, sum.forward + sum.backward, 1e-9);
        }
    }
}

TEST(Paths, BetweenAllSpecsOfSmallTensors) {
    every_pair({{2}, {4, 2}});
    every_pair({{2, 2}, {4, 4, 4}});
    every_pair({{2, 3}, {6, 4, 9}}); // most specs of the last two dimensions are indivisible
    every_pair({{2, 2, 2}, {8, 4}});
}

TEST(Paths, On4096Ranks) {
    const castor_mesh m = mesh({16, 16, 16});
    const Shape shape = {4096, 4096};
    const castor_spec from = parsed("[S012, R]", shape), to = parsed("[R, S210]", shape);
    const Path found = path(m, from, to);
    EXPECT_EQ(texts(found.steps), (Texts{"[S01, S2]", "[S0, S21]", "[R, S210]"}));
    const Path again = path(m, from, to);
    ASSERT_EQ(again.steps.size(), found.steps.size());
    EXPECT_EQ(
        std::memcmp(again.steps.data(), found.steps.data(), found.steps.size() * sizeof(castor_transform)),
        0);
}

// The largest that there is: 8 axes, 16 dimensions.
TEST(Paths, HaveRoom) {
    const castor_mesh m = mesh({2, 2, 2, 2, 2, 2, 2, 2});
    const Shape shape(16, 256);
    std::string from = "[S01234567", to = "[S76543210";
    for (int dim = 1; dim < 16; dim++) {
        from += ", R";
        to += ", R";
    }
    const Path found = path(m, parsed(from + "]", shape), parsed(to + "]", shape));
    ASSERT_FALSE(found.steps.empty());
    EXPECT_EQ(printed(found.steps.back().after), to + "]");
    EXPECT_LE(found.steps.size(), 16U);
    std::string whole = "[R";
    for (int dim = 1; dim < 16; dim++)
        whole += ", R";
    EXPECT_EQ(transforms(m, parsed(whole + "]", shape)).size(), 128U);
}

} // namespace
