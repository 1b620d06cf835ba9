#include <gtest/gtest.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" {
#include "job/options.h"
#include "hooks/table/hooks.h"
#include "launcher/tables/tables.h"
}

namespace {

using Words = std::vector<std::string>;

Words lines_of(void (*write)(FILE *)) {
    char *text = nullptr;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    write(file);
    fclose(file);
    Words lines;
    std::string whole(text, size);
    free(text);
    EXPECT_EQ(whole.back(), '\n');
    for (size_t from = 0; from < whole.size();) {
        size_t end = whole.find('\n', from);
        lines.push_back(whole.substr(from, end - from));
        from = end + 1;
    }
    return lines;
}

TEST(Tables, OptionsAsMarkdownHoldEachRowForUsers) {
    Words lines = lines_of(options_write_markdown);
    EXPECT_EQ(lines[0], "| name | default | values | what it does |");
    size_t next = 2;
    for (const option_info &row : option_table) {
        if (row.internal)
            continue;
        ASSERT_LT(next, lines.size());
        EXPECT_EQ(lines[next].rfind(std::string("| `") + row.env + "` | ", 0), 0u) << lines[next];
        EXPECT_NE(lines[next].find(row.doc), std::string::npos);
        next++;
    }
    EXPECT_EQ(next, lines.size());
    EXPECT_EQ(
        lines[2].rfind(
            "| `CASTOR_PLUGIN` | `none` | `none`, `ddp`, `zero1`, `zero2`, `gemini`, `hybrid`, `fsdp` | ", 0),
        0u)
        << lines[2];
}

TEST(Tables, OptionsAsTextShowValues) {
    char entry[] = "CASTOR_TIMEOUT=12.5", message[256], *block[] = {entry, nullptr};
    ASSERT_EQ(options_load(block, message, sizeof message), CASTOR_OK);
    Words lines = lines_of(options_write_text);
    EXPECT_NE(std::find(lines.begin(), lines.end(),
                        "CASTOR_TIMEOUT=12.5  (from the environment; 0.1 to 86400 seconds)"),
              lines.end());
    EXPECT_NE(std::find(lines.begin(), lines.end(), "CASTOR_ARENA=1  (default; 0, 1)"), lines.end());
}

TEST(Tables, HooksAsMarkdownHoldEachRow) {
    Words lines = lines_of(hooks_write_markdown);
    ASSERT_EQ(lines.size(), 2u + HOOK_COUNT);
    for (int id = 0; id < HOOK_COUNT; id++) {
        EXPECT_NE(lines[2 + id].find(std::string("| `") + hook_table[id].name + "` |"), std::string::npos);
        EXPECT_EQ(std::count(lines[2 + id].begin(), lines[2 + id].end(), '|'), 5) << lines[2 + id];
    }
    Words text = lines_of(hooks_write_text);
    EXPECT_GE(text.size(), 2u * HOOK_COUNT);
}

TEST(Tables, NamesOfOneOperationAreTwins) {
    int renamed = 0;
    for (int index = 0; index < HOOK_COUNT; index++) {
        auto id = static_cast<hook_id>(index);
        hook_id other = hook_other_name(id), known = hook_operation(id);
        EXPECT_EQ(hook_other_name(other), id) << hook_table[id].name;
        EXPECT_EQ(hook_table[other].layer, hook_table[id].layer) << hook_table[id].name;
        EXPECT_TRUE(known == id || (known == other && hook_is_later(id) && !hook_is_later(other)))
            << hook_table[id].name;
        renamed += known != id;
    }
    EXPECT_GT(renamed, 0);
    EXPECT_TRUE(hook_is_later(HOOK_GLOO_ALLTOALL));
    EXPECT_FALSE(hook_is_later(HOOK_GLOO_ALLREDUCE));
}

} // namespace
