#include <math.h>
#include <gtest/gtest.h>
#include "fixture.h"

extern "C" {
#include "launcher/common/json.h"
}

namespace {

std::string written(void (*write)(json_writer *)) {
    char *text = nullptr;
    size_t size = 0;
    json_writer json = {};
    json.out = open_memstream(&text, &size);
    write(&json);
    fclose(json.out);
    std::string result(text, size);
    free(text);
    return result;
}

TEST(ReportJson, EscapesWhatMustBeAndKeepsTheRest) {
    Json value = Json::parse(written([](json_writer *json) {
        json_object_begin(json, nullptr);
        json_string(json, "a\"b\\c\n", "\x01 \x7f tab\t \xc3\xa4 \xe2\x82\xac");
        json_string(json, "bad", "x\xff\xc3(\xed\xa0\x80y");
        json_string(json, "c1", "\xc2\x9b\xc2\xa0");
        json_string(json, "none", nullptr);
        json_object_end(json);
    }));
    EXPECT_EQ(value["a\"b\\c\n"].text, "\x01 \x7f tab\t \xc3\xa4 \xe2\x82\xac");
    EXPECT_EQ(value["bad"].text, "x<fffd><fffd>(<fffd><fffd><fffd>y");
    EXPECT_EQ(value["c1"].text, "<009b>\xc2\xa0");
    EXPECT_EQ(value["none"].kind, Json::NULL_VALUE);
}

TEST(ReportJson, NumbersAndNesting) {
    std::string text = written([](json_writer *json) {
        json_array_begin(json, nullptr);
        json_unsigned(json, nullptr, UINT64_MAX);
        json_signed(json, nullptr, -5);
        json_number(json, nullptr, 0.25);
        json_number(json, nullptr, NAN);
        json_number(json, nullptr, INFINITY);
        json_bool(json, nullptr, true);
        json_object_begin(json, nullptr);
        json_object_end(json);
        json_array_begin(json, nullptr);
        json_array_end(json);
        json_array_end(json);
    });
    EXPECT_NE(text.find("18446744073709551615"), std::string::npos);
    Json value = Json::parse(text);
    ASSERT_EQ(value.items.size(), 8u);
    EXPECT_EQ(value[1].number, -5);
    EXPECT_EQ(value[2].number, 0.25);
    EXPECT_EQ(value[3].kind, Json::NULL_VALUE);
    EXPECT_EQ(value[4].kind, Json::NULL_VALUE);
    EXPECT_EQ(value[5].kind, Json::BOOLEAN);
    EXPECT_EQ(value[6].kind, Json::OBJECT);
    EXPECT_EQ(value[7].kind, Json::ARRAY);
}

} // namespace
