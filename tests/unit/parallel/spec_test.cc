// Sharding specs as text and back, what one rank holds, and specs that no mesh can have.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "specs.h"

namespace {

using Axes = std::vector<int>;
using Dict = std::vector<std::pair<int, Axes>>; // as Python's: in order of insertion

std::vector<castor_partition> partitions(const Dict &dict) {
    std::vector<castor_partition> made;
    for (const auto &[dim, axes] : dict) {
        castor_partition one = {};
        one.dim = dim;
        for (int axis : axes)
            one.axes[one.count++] = static_cast<uint8_t>(axis);
        made.push_back(one);
    }
    return made;
}

Dict dict(const std::vector<castor_partition> &of, size_t count) {
    Dict made;
    for (size_t i = 0; i < count; i++)
        made.emplace_back(of[i].dim, Axes(of[i].axes, of[i].axes + of[i].count));
    return made;
}

// Without a dimension: an error, whose text castor_error() has.
Dict converted(int dims, const Dict &from) {
    const auto in = partitions(from);
    std::vector<castor_partition> out(in.size());
    castor_status status =
        castor_partitions_convert(dims, in.data(), static_cast<uint32_t>(in.size()), out.data());
    EXPECT_EQ(dict(in, in.size()), from);
    return status ? Dict{} : dict(out, out.size());
}

Dict merged(int dims, const Dict &from) {
    const auto in = partitions(from);
    std::vector<castor_partition> out(in.size());
    uint32_t count = 0;
    castor_status status =
        castor_partitions_merge(dims, in.data(), static_cast<uint32_t>(in.size()), out.data(), &count);
    EXPECT_EQ(dict(in, in.size()), from); // the original changes its argument
    return status ? Dict{} : dict(out, count);
}

TEST(Partitions, NegativeDimensionsBecomePositive) {
    EXPECT_EQ(converted(3, {{-1, {0}}, {-2, {1}}}),
              (Dict{{2, {0}}, {1, {1}}})); // the original stumbles over two
    EXPECT_EQ(converted(3, {{0, {0}}, {-1, {1, 2}}}), (Dict{{0, {0}}, {2, {1, 2}}}));
    EXPECT_EQ(converted(1, {{-1, {}}}), (Dict{{0, {}}}));
}

TEST(Partitions, OneDimensionTwiceNeedsMerging) {
    EXPECT_EQ(converted(2, {{1, {0}}, {-1, {1}}}), Dict{});
    EXPECT_TRUE(said("dimension 1") && said("named twice") && said("merge_same_dim_mesh_list"))
        << castor_error();
    EXPECT_EQ(merged(2, {{1, {0}}, {-1, {1}}}), (Dict{{1, {0, 1}}}));
    EXPECT_EQ(merged(2, {{1, {0}}, {1, {1}}}), (Dict{{1, {0, 1}}}));
    EXPECT_EQ(merged(3, {{-1, {2}}, {0, {1}}, {2, {0}}}), (Dict{{2, {2, 0}}, {0, {1}}}));
}

TEST(Partitions, DimensionsThatATensorHasNotAreErrors) {
    for (int dim : {2, -3}) {
        EXPECT_EQ(converted(2, {{dim, {0}}}), Dict{});
        EXPECT_TRUE(said("of a tensor that has 2")) << castor_error();
        EXPECT_EQ(merged(2, {{dim, {0}}}), Dict{});
    }
    EXPECT_EQ(merged(2, {{1, {0, 1, 2, 3, 4}}, {-1, {5, 6, 7, 0}}}), Dict{});
    EXPECT_TRUE(said("9 axes")) << castor_error();
}

TEST(Spec, TextAndBack) {
    for (const char *text : {"[S01, R, R]", "[R, R]", "[S0]", "[R, S10, S2]", "[]", "[R, S76543210]"}) {
        size_t dims = std::string(text) == "[]" ? 0 : 1;
        for (const char *p = text; *p; p++)
            dims += *p == ',';
        EXPECT_EQ(printed(parsed(text, Shape(dims, 840))), text);
    }
    const castor_spec spec = parsed("[S01, R, S2]", {8, 6, 4});
    EXPECT_EQ(spec.dims, 3);
    EXPECT_EQ(spec.counts[0], 2);
    EXPECT_EQ(spec.counts[1], 0);
    EXPECT_EQ(spec.axes[0][0], 0);
    EXPECT_EQ(spec.axes[0][1], 1);
    EXPECT_EQ(spec.axes[2][0], 2);
    EXPECT_EQ(spec.shape[1], 6);
}

TEST(Spec, TheLongestText) {
    castor_spec spec = parsed("[R, R, R, R, R, R, R, R, R, R, R, R, R, R, R, R]", Shape(16, 1));
    std::string all = "[";
    for (int dim = 0; dim < 16; dim++) {
        spec.counts[dim] = 8;
        for (uint8_t axis = 0; axis < 8; axis++)
            spec.axes[dim][axis] = axis;
        all += dim ? ", S01234567" : "S01234567";
    }
    EXPECT_EQ(printed(spec), all + "]");
    std::vector<char> text(all.size() + 1); // without room for the end
    EXPECT_EQ(castor_spec_print(&spec, text.data(), text.size()), CASTOR_ERR_ARGUMENT);
}

TEST(Spec, FromPartitions) {
    const Shape shape = {8, 8, 8};
    castor_spec spec = {};
    auto from = [&](const Dict &dict) {
        const auto in = partitions(dict);
        return castor_spec_make(shape.data(), 3, in.data(), static_cast<uint32_t>(in.size()), &spec);
    };
    ASSERT_EQ(from({{-1, {1}}, {0, {0}}}), CASTOR_OK);
    EXPECT_EQ(printed(spec), "[S0, R, S1]");
    ASSERT_EQ(from({{1, {0}}, {-2, {1}}}), CASTOR_OK);
    EXPECT_EQ(printed(spec), "[R, S01, R]");
    ASSERT_EQ(from({}), CASTOR_OK);
    EXPECT_EQ(printed(spec), "[R, R, R]");
    EXPECT_EQ(from({{3, {0}}}), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(from({{0, {0, 1, 2, 3, 4}}, {0, {0, 1, 2, 3, 4}}}), CASTOR_ERR_ARGUMENT);
    const Shape negative = {8, -1};
    EXPECT_EQ(castor_spec_make(negative.data(), 2, nullptr, 0, &spec), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(castor_spec_make(shape.data(), 17, nullptr, 0, &spec), CASTOR_ERR_ARGUMENT);
}

Shape part(const castor_mesh &m, const char *text, const Shape &shape) {
    const castor_spec spec = parsed(text, shape);
    Shape out(shape.size(), -1);
    return castor_spec_shape(&m, &spec, out.data()) ? Shape{-1} : out;
}

TEST(Spec, WhatOneRankHolds) {
    const castor_mesh m = mesh({2, 4, 3});
    EXPECT_EQ(part(m, "[S01, R, S2]", {16, 5, 9}), (Shape{2, 5, 3}));
    EXPECT_EQ(part(m, "[S10, R, S2]", {16, 5, 9}), (Shape{2, 5, 3}));
    EXPECT_EQ(part(m, "[R, R]", {3, 7}), (Shape{3, 7}));
    EXPECT_EQ(part(m, "[S012]", {24}), (Shape{1}));
    EXPECT_EQ(part(m, "[S0]", {0}), (Shape{0}));
    EXPECT_EQ(part(m, "[]", {}), Shape{});
    EXPECT_EQ(part(mesh({64, 64}), "[S01, R]", {1 << 20, 3}), (Shape{256, 3})); // 4,096 ranks
}

TEST(Spec, WhatDoesNotFitIsAnError) {
    const castor_mesh m = mesh({2, 4});
    const Shape error = {-1};
    EXPECT_EQ(part(m, "[S2, R]", {8, 8}), error);
    EXPECT_TRUE(said("[S2, R]") && said("axis 2")) << castor_error();
    for (const char *twice : {"[S0, S0]", "[S00, R]", "[S01, S1]", "[S01, S0]"}) {
        EXPECT_EQ(part(m, twice, {64, 64}), error);
        EXPECT_TRUE(said(twice) && said("twice")) << castor_error();
    }
    EXPECT_EQ(part(m, "[R, S01]", {8, 12}), error);
    EXPECT_TRUE(said("dimension 1 has length 12")) << castor_error();
    castor_spec broken = parsed("[S0, R]", {8, 8});
    broken.axes[0][0] = 8;
    EXPECT_EQ(castor_spec_shape(&m, &broken, nullptr), CASTOR_ERR_ARGUMENT);
    broken.counts[0] = 9;
    EXPECT_EQ(castor_spec_shape(&m, &broken, nullptr), CASTOR_ERR_ARGUMENT);
    broken.dims = 17;
    EXPECT_EQ(castor_spec_shape(&m, &broken, nullptr), CASTOR_ERR_ARGUMENT);
}

} // namespace
