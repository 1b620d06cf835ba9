// What the tests of meshes and specs make and read: by the exported functions, which must succeed.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "castor.h"

using Ints = std::vector<int32_t>;
using Shape = std::vector<int64_t>;

inline castor_mesh mesh(const Ints &shape, const Ints &ranks = {}, const std::vector<double> &alpha = {},
                        const std::vector<double> &beta = {}) {
    castor_mesh made = {};
    int32_t count = 1;
    for (int32_t length : shape)
        count *= length;
    EXPECT_EQ(castor_mesh_make(&made, ranks.empty() ? nullptr : ranks.data(), count, shape.data(),
                               static_cast<int32_t>(shape.size()), alpha.empty() ? nullptr : alpha.data(),
                               beta.empty() ? nullptr : beta.data()),
              CASTOR_OK)
        << castor_error();
    return made;
}

inline castor_spec parsed(const std::string &text, const Shape &shape) {
    castor_spec spec = {};
    EXPECT_EQ(castor_spec_parse(text.c_str(), shape.data(), static_cast<int32_t>(shape.size()), &spec),
              CASTOR_OK)
        << castor_error();
    return spec;
}

inline std::string printed(const castor_spec &spec) {
    char text[CASTOR_SPEC_TEXT];
    EXPECT_EQ(castor_spec_print(&spec, text, sizeof text), CASTOR_OK) << castor_error();
    return text;
}

inline bool said(const char *words) {
    return std::string(castor_error()).find(words) != std::string::npos;
}
