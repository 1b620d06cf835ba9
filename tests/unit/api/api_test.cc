#include <gtest/gtest.h>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

extern "C" {
#include "job/options.h"
}
#include "castor.h"

namespace {

TEST(Api, RowsAreTheDeclarationsAndTheSizesOfStructures) {
    std::map<std::string, uint64_t> rows;
    uint64_t bytes;
    uint32_t index = 0;
    for (const char *row; (row = castor_api_row(index, &bytes)); index++)
        rows[row] = bytes;
    EXPECT_EQ(rows.size(), index);
    EXPECT_EQ(rows.count(
                  "function castor_status castor_gather(castor_store *store, const void *data, size_t bytes, "
                  "void *out, const char *what)"),
              1u);
    EXPECT_EQ(rows.count("callback void castor_line_reader(char *out, size_t size)"), 1u);
    EXPECT_EQ(
        rows.count("enum {CASTOR_MODE_PLAIN, CASTOR_MODE_OWNER, CASTOR_MODE_REPLICATED, CASTOR_MODE_LOCAL}"),
        1u);
    auto range =
        rows.find("struct castor_range{ void *address; uint64_t numel; int32_t dtype; int32_t node; }");
    ASSERT_NE(range, rows.end());
    EXPECT_EQ(range->second, sizeof(castor_range));
}

TEST(Api, StatusesHaveTheirValues) {
    uint64_t bytes;
    EXPECT_TRUE(strstr(castor_api_row(0, &bytes), "CASTOR_ERR_PARTED = 9"));
    EXPECT_EQ(CASTOR_ERR_PARTED, 9);
}

TEST(Api, OptionsHaveTheirTypes) {
    const char *environment[] = {"CASTOR_PLUGIN=zero1",   "CASTOR_DEBUG=1",
                                 "CASTOR_ACCUMULATE=4",   "CASTOR_LAZY_BYTES=2M",
                                 "CASTOR_TIMEOUT=2.5",    "CASTOR_OFFLOAD_OPTIM_FRAC=0.25",
                                 "CASTOR_SEPARABLE=A, B", nullptr};
    char message[256];
    ASSERT_EQ(options_load(const_cast<char *const *>(environment), message, sizeof message), CASTOR_OK)
        << message;
    std::map<std::string, castor_option> values;
    std::map<std::string, std::string> texts;
    castor_option option;
    for (uint32_t index = 0; castor_option_get(index, &option); index++) {
        values[option.name] = option;
        texts[option.name] = option.text;
    }
    EXPECT_EQ(values.size(), (size_t)OPTION_COUNT);
    EXPECT_EQ(values["plugin"].kind, CASTOR_OPTION_TEXT);
    EXPECT_EQ(texts["plugin"], "zero1");
    EXPECT_EQ(texts["separable"], "A, B");
    EXPECT_EQ(values["debug"].kind, CASTOR_OPTION_BOOL);
    EXPECT_EQ(values["debug"].integer, 1);
    EXPECT_EQ(values["accumulate"].kind, CASTOR_OPTION_INTEGER);
    EXPECT_EQ(values["accumulate"].integer, 4);
    EXPECT_EQ(values["gradient_return"].integer, -1);
    EXPECT_EQ(values["lazy_bytes"].integer, 2 << 20);
    EXPECT_EQ(values["chunk_size"].integer, -1); /* auto */
    EXPECT_EQ(values["timeout"].kind, CASTOR_OPTION_DECIMAL);
    EXPECT_EQ(values["timeout"].decimal, 2.5);
    EXPECT_EQ(values["offload_optim_frac"].decimal, 0.25);
    char *none[] = {nullptr};
    EXPECT_EQ(options_load(none, message, sizeof message), CASTOR_OK);
}

} // namespace
