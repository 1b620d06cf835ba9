/* Which words of a launch's arguments could be addresses. */
#include <gtest/gtest.h>
#include <vector>

extern "C" {
#include "interpose/hooks/cuda/arguments.h"
}

namespace {

const uintptr_t first = 0x200000000000;
const uint64_t bytes = 0x1000;

std::vector<uintptr_t> *seen;
void *context_seen;

void visit(uintptr_t word, void *context) {
    seen->push_back(word);
    context_seen = context;
}

std::vector<uintptr_t> scanned(const arguments_layout &layout, const std::vector<const void *> &arguments) {
    std::vector<uintptr_t> words;
    seen = &words;
    arguments_scan(&layout, (void *const *)arguments.data(), first, bytes, visit, &context_seen);
    return words;
}

} // namespace

TEST(Arguments, AddressesAmongParameters) {
    arguments_layout layout = {};
    const uintptr_t in = first + 8, last = first + bytes - 1, after = first + bytes, before = first - 1;
    const int32_t small = -1;
    for (size_t offset : {0, 8, 16, 24, 32})
        EXPECT_TRUE(arguments_add(&layout, offset, offset == 16 ? 4 : 8));
    EXPECT_EQ(scanned(layout, {&in, &after, &small, &last, &before}), (std::vector<uintptr_t>{in, last}));
    EXPECT_EQ(context_seen, &context_seen);
}

TEST(Arguments, StructsByValue) {
    struct {
        uint32_t count;
        uintptr_t one;
        uintptr_t two[3];
        uint32_t rest;
    } __attribute__((packed, aligned(4))) value = {9, first, {first + 1, 0, first + 2}, 5};
    arguments_layout layout = {};
    /* At an offset of four, the first word of eight begins four bytes on. */
    ASSERT_TRUE(arguments_add(&layout, 4, sizeof value));
    EXPECT_EQ(scanned(layout, {&value}), (std::vector<uintptr_t>{first, first + 1, first + 2}));
    arguments_layout elsewhere = {};
    ASSERT_TRUE(arguments_add(&elsewhere, 8, sizeof value));
    EXPECT_EQ(scanned(elsewhere, {&value}), (std::vector<uintptr_t>{}));
}

TEST(Arguments, NothingIsReadBehindAParameter) {
    for (size_t offset = 0; offset < 8; offset++)
        for (size_t size = 1; size < 24; size++) {
            arguments_layout layout = {};
            ASSERT_TRUE(arguments_add(&layout, offset, size));
            size_t begin = layout.parameters[0] >> 13, words = layout.parameters[0] & 0x1fff;
            EXPECT_TRUE(words == 0 || begin + 8 * words <= size) << offset << " " << size;
            EXPECT_TRUE(words == 0 || (offset + begin) % 8 == 0);
            EXPECT_TRUE(begin + 8 * words + 8 > size) << "a whole word is left out";
        }
}

TEST(Arguments, LayoutsThatDoNotFitAreUnknown) {
    arguments_layout layout = {};
    for (int i = 0; i < ARGUMENTS_MAX; i++)
        ASSERT_TRUE(arguments_add(&layout, 8 * i, 8));
    EXPECT_FALSE(arguments_add(&layout, 8 * ARGUMENTS_MAX, 8));
    EXPECT_EQ(layout.count, ARGUMENTS_UNKNOWN);
    arguments_layout large = {};
    EXPECT_TRUE(arguments_add(&large, 0, 8 * 8191));
    EXPECT_FALSE(arguments_add(&large, 65536, 8 * 8192));
}

TEST(Arguments, Blocks) {
    uintptr_t block[] = {1, first + 16, 0, first + bytes};
    size_t size = sizeof block, found_bytes = 0;
    const void *found = nullptr;
    void *both[] = {(void *)1, block, (void *)2, &size, nullptr};
    ASSERT_TRUE(arguments_block(both, &found, &found_bytes));
    EXPECT_EQ(found, block);
    EXPECT_EQ(found_bytes, sizeof block);
    std::vector<uintptr_t> words;
    seen = &words;
    arguments_scan_words(found, found_bytes / 8, first, bytes, visit, nullptr);
    EXPECT_EQ(words, (std::vector<uintptr_t>{first + 16}));
    void *none[] = {nullptr};
    EXPECT_FALSE(arguments_block(none, &found, &found_bytes));
    EXPECT_FALSE(arguments_block(nullptr, &found, &found_bytes));
}
