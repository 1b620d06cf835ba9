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

// From a text as castor_spec_print writes it.
inline castor_spec parsed(const std::string &text, const Shape &shape) {
    castor_spec spec = {};
    std::vector<castor_partition> divided;
    int32_t dim = -1;
    for (char c : text) {
        if (c == 'S' || c == 'R') {
            castor_partition one = {};
            one.dim = ++dim;
            divided.push_back(one);
        } else if (c >= '0' && c < '8') {
            castor_partition &last = divided.back();
            last.axes[last.count++] = static_cast<uint8_t>(c - '0');
        }
    }
    EXPECT_EQ(static_cast<size_t>(dim + 1), shape.size()) << text;
    EXPECT_EQ(castor_spec_make(shape.data(), static_cast<int32_t>(shape.size()), divided.data(),
                               static_cast<uint32_t>(divided.size()), &spec),
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
