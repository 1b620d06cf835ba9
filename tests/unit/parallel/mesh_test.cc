// Coordinates and lines of meshes, by hand and by their properties; costs against the formulas worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "specs.h"

namespace {

Ints coordinates(const castor_mesh &m, int32_t rank) {
    Ints out(static_cast<size_t>(m.axes), -1);
    return castor_mesh_coordinates(&m, rank, out.data()) ? out : Ints{};
}

Ints line(const castor_mesh &m, const Ints &axes, int32_t index) {
    int32_t lines = 0, length = 0;
    const auto count = static_cast<int32_t>(axes.size());
    EXPECT_EQ(castor_mesh_line(&m, axes.data(), count, index, nullptr, &lines, &length), CASTOR_OK)
        << castor_error();
    EXPECT_EQ(lines * length, m.count);
    Ints out(static_cast<size_t>(length), -1);
    EXPECT_EQ(castor_mesh_line(&m, axes.data(), count, index, out.data(), &lines, &length), CASTOR_OK);
    return out;
}

// 0 1 2 3
// 4 5 6 7
TEST(Mesh, TwoByFour) {
    const castor_mesh m = mesh({2, 4});
    EXPECT_EQ(coordinates(m, 0), (Ints{0, 0}));
    EXPECT_EQ(coordinates(m, 6), (Ints{1, 2}));
    EXPECT_EQ(coordinates(m, 8), Ints{});
    EXPECT_EQ(coordinates(m, -1), Ints{});
    EXPECT_EQ(line(m, {0}, 1), (Ints{1, 5}));
    EXPECT_EQ(line(m, {1}, 1), (Ints{4, 5, 6, 7}));
    EXPECT_EQ(line(m, {0, 1}, 0), (Ints{0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(line(m, {1, 0}, 0), (Ints{0, 4, 1, 5, 2, 6, 3, 7}));
    EXPECT_EQ(line(m, {}, 5), (Ints{5}));
}

// Two nodes of 4 ranks each, of which the first two ranks stand in for each other.
TEST(Mesh, RanksInAnyOrder) {
    const Ints ranks = {11, 10, 12, 13, 21, 20, 22, 23};
    const castor_mesh m = mesh({2, 2, 2}, ranks);
    EXPECT_EQ(coordinates(m, 20), (Ints{1, 0, 1}));
    EXPECT_EQ(coordinates(m, 0), Ints{});
    int32_t rank = -1;
    const Ints where = {1, 1, 0};
    ASSERT_EQ(castor_mesh_rank(&m, where.data(), &rank), CASTOR_OK);
    EXPECT_EQ(rank, 22);
    // Lines along the middle axis: by node, then by the last axis.
    EXPECT_EQ(line(m, {1}, 0), (Ints{11, 12}));
    EXPECT_EQ(line(m, {1}, 1), (Ints{10, 13}));
    EXPECT_EQ(line(m, {1}, 2), (Ints{21, 22}));
    EXPECT_EQ(line(m, {0, 2}, 1), (Ints{12, 13, 22, 23}));
}

TEST(Mesh, OfTheMostRanks) {
    EXPECT_EQ(coordinates(mesh({256, 256}), 65535), (Ints{255, 255}));
}

TEST(Mesh, EveryRankIsOnOneLineOfAnyAxes) {
    for (const Ints &shape :
         {Ints{1}, {7}, {4096}, {64, 64}, {8, 1, 16}, {2, 3, 5, 7}, {2, 2, 2, 2, 2, 2, 2, 2}, {16, 16, 16}}) {
        Ints ranks(static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>())));
        for (size_t i = 0; i < ranks.size(); i++)
            ranks[i] = static_cast<int32_t>((i * 13) % ranks.size() * 2 + 1); // 13 divides none of the sizes
        const castor_mesh m = mesh(shape, ranks);
        for (uint32_t mask = 0; mask<1U << shape.size(); mask += shape.size()> 4 ? 5 : 1) {
            Ints axes;
            for (int32_t axis = m.axes - 1; axis >= 0; axis--)
                if (mask >> axis & 1)
                    axes.push_back(axis);
            std::set<int32_t> seen;
            int32_t lines = 0, length = 0;
            ASSERT_EQ(castor_mesh_line(&m, axes.data(), static_cast<int32_t>(axes.size()), 0, nullptr, &lines,
                                       &length),
                      0);
            for (int32_t index = 0; index < lines; index++) {
                const Ints on = line(m, axes, index);
                for (size_t place = 0; place < on.size(); place++) {
                    ASSERT_TRUE(seen.insert(on[place]).second);
                    // Every 16th, since a rank is looked for among all.
                    if (ranks.size() > 1000 && (place + static_cast<size_t>(index)) % 16)
                        continue;
                    int32_t found = -1, position = -1;
                    ASSERT_EQ(castor_mesh_line_of(&m, axes.data(), static_cast<int32_t>(axes.size()),
                                                  on[place], &found, &position),
                              CASTOR_OK);
                    ASSERT_EQ(found, index);
                    ASSERT_EQ(position, static_cast<int32_t>(place));
                    // Where the line goes, its axes' coordinates change alone.
                    const Ints first = coordinates(m, on[0]), here = coordinates(m, on[place]);
                    for (int32_t axis = 0; axis < m.axes; axis++)
                        if (!(mask >> axis & 1)) {
                            ASSERT_EQ(first[static_cast<size_t>(axis)], here[static_cast<size_t>(axis)]);
                        }
                }
            }
            ASSERT_EQ(seen.size(), ranks.size());
        }
        for (size_t cell = 0; cell < ranks.size(); cell += 7) { // row-major, as written out here
            const Ints here = coordinates(m, ranks[cell]);
            size_t index = 0;
            for (size_t axis = 0; axis < shape.size(); axis++)
                index = index * static_cast<size_t>(shape[axis]) + static_cast<size_t>(here[axis]);
            ASSERT_EQ(index, cell);
            int32_t rank = -1;
            ASSERT_EQ(castor_mesh_rank(&m, here.data(), &rank), CASTOR_OK);
            ASSERT_EQ(rank, ranks[cell]);
        }
    }
}

TEST(Mesh, WhatIsNoMeshIsAnError) {
    castor_mesh m = {};
    const Ints twice = {0, 1, 2, 1}, shape = {2, 2}, huge = {65536, 2}, zero = {0, 4}, nine(9, 1);
    const double bad[] = {1, -1}, none[] = {std::nan(""), 1},
                 infinite[] = {1, std::numeric_limits<double>::infinity()};
    EXPECT_EQ(castor_mesh_make(&m, nullptr, 5, shape.data(), 2, nullptr, nullptr), CASTOR_ERR_ARGUMENT);
    EXPECT_TRUE(said("4 cells for 5 ranks")) << castor_error();
    EXPECT_EQ(castor_mesh_make(&m, twice.data(), 4, shape.data(), 2, nullptr, nullptr), CASTOR_ERR_ARGUMENT);
    EXPECT_TRUE(said("rank 1 is twice")) << castor_error();
    EXPECT_EQ(castor_mesh_make(&m, nullptr, 131072, huge.data(), 2, nullptr, nullptr), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(castor_mesh_make(&m, nullptr, 0, zero.data(), 2, nullptr, nullptr), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(castor_mesh_make(&m, nullptr, 1, nine.data(), 9, nullptr, nullptr), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(castor_mesh_make(&m, nullptr, 1, nine.data(), 0, nullptr, nullptr), CASTOR_ERR_ARGUMENT);
    for (const double *values : {bad, none, infinite}) {
        EXPECT_EQ(castor_mesh_make(&m, nullptr, 4, shape.data(), 2, values, nullptr), CASTOR_ERR_ARGUMENT);
        EXPECT_EQ(castor_mesh_make(&m, nullptr, 4, shape.data(), 2, nullptr, values), CASTOR_ERR_ARGUMENT);
        EXPECT_TRUE(said("beta")) << castor_error();
    }
}

TEST(Mesh, WhatIsNotInItIsAnError) {
    const castor_mesh m = mesh({2, 4});
    int32_t rank = 0, place = 0, lines = 0, length = 0;
    double cost = 0;
    const Ints outside[] = {{0, 4}, {2, 0}, {-1, 0}}, axes[] = {{2}, {-1}, {1, 1}};
    for (const Ints &where : outside)
        EXPECT_EQ(castor_mesh_rank(&m, where.data(), &rank), CASTOR_ERR_ARGUMENT);
    for (const Ints &of : axes)
        EXPECT_EQ(
            castor_mesh_line(&m, of.data(), static_cast<int32_t>(of.size()), 0, nullptr, &lines, &length),
            CASTOR_ERR_ARGUMENT);
    const int32_t axis = 0;
    for (int32_t index : {-1, 4})
        EXPECT_EQ(castor_mesh_line(&m, &axis, 1, index, nullptr, &lines, &length), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(castor_mesh_line_of(&m, &axis, 1, 8, &rank, &place), CASTOR_ERR_ARGUMENT);
    for (int32_t of : {2, -2})
        EXPECT_EQ(castor_mesh_cost(&m, CASTOR_MESH_ALL_GATHER, 1, of, &cost), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(castor_mesh_cost(&m, 4, 1, 0, &cost), CASTOR_ERR_ARGUMENT);
}

double cost(const castor_mesh &m, int collective, double size, int32_t axis) {
    double found = -1;
    EXPECT_EQ(castor_mesh_cost(&m, collective, size, axis, &found), CASTOR_OK) << castor_error();
    return found;
}

// Axis 1 has 4 ranks, alpha 3, beta 0.5; a tensor of 64 elements. 3/4 of it, 48, at 0.5 each: 24. All-to-all: 3/16 of it, 12, at 0.5,
// times 4/2: 12.
TEST(Mesh, CostsByHand) {
    const castor_mesh m = mesh({2, 4}, {}, {2, 3}, {0.25, 0.5});
    EXPECT_DOUBLE_EQ(cost(m, CASTOR_MESH_ALL_GATHER, 64, 1), 3 + 24 + 0.1);
    EXPECT_DOUBLE_EQ(cost(m, CASTOR_MESH_ALL_REDUCE, 64, 1), 3 + 48 + 0.01);
    EXPECT_DOUBLE_EQ(cost(m, CASTOR_MESH_REDUCE_SCATTER, 64, 1), 3 + 24 + 0.001);
    EXPECT_DOUBLE_EQ(cost(m, CASTOR_MESH_ALL_TO_ALL, 64, 1), 3 + 12 + 0.001);
    // Axis 0: 2 ranks, alpha 2, beta 0.25: half of it, 32, at 0.25.
    EXPECT_DOUBLE_EQ(cost(m, CASTOR_MESH_ALL_GATHER, 64, 0), 2 + 8 + 0.1);
    EXPECT_DOUBLE_EQ(cost(m, CASTOR_MESH_ALL_TO_ALL, 64, 0), 2 + 4 + 0.001);
    // All 8 ranks on one axis, alpha 3, beta 0.5: 7/8 of it, 56, at 0.5.
    EXPECT_DOUBLE_EQ(cost(m, CASTOR_MESH_ALL_GATHER, 64, CASTOR_ALL_AXES), 3 + 28 + 0.1);
}

// alpha 1 and beta 1 on 4 ranks, and 1 rank, to which nothing comes.
TEST(Mesh, CostsByDefault) {
    EXPECT_DOUBLE_EQ(cost(mesh({4}), CASTOR_MESH_ALL_REDUCE, 16, 0), 1 + 24 + 0.01);
    EXPECT_DOUBLE_EQ(cost(mesh({1}), CASTOR_MESH_ALL_TO_ALL, 16, 0), 1.001);
}

} // namespace
