#include <gtest/gtest.h>
#include <string>

extern "C" {
#include "job/signature.h"
}

namespace {

std::string error_of(const char *text) {
    char message[512] = "";
    EXPECT_EQ(signature_check(text, message, sizeof message), CASTOR_ERR_ARGUMENT) << text;
    return message;
}

TEST(Signature, NamesAndTypes) {
    signature out;
    char message[256];
    const char *text = " libcudnn.so.9:cudnnConvolutionForward=i(pp d) ; libz.so.1:crc32=L(LpI);";
    ASSERT_EQ(signature_parse(&text, &out, message, sizeof message), CASTOR_OK);
    EXPECT_STREQ(out.library, "libcudnn.so.9");
    EXPECT_STREQ(out.function, "cudnnConvolutionForward");
    EXPECT_EQ(out.parameter_count, 3u);
    EXPECT_EQ(out.types[0].code, 'i');
    EXPECT_EQ(out.types[3].code, 'd');
    ASSERT_EQ(signature_parse(&text, &out, message, sizeof message), CASTOR_OK);
    EXPECT_STREQ(out.function, "crc32");
    EXPECT_STREQ(text, "");
}

TEST(Signature, StructsAreLaidOutAsInC) {
    struct nested {
        int a;
        struct {
            float b, c;
        } d;
        char e;
        double f;
    };
    signature out;
    char message[256];
    const char *text = "l:f=v({i{ff}bd}p)";
    ASSERT_EQ(signature_parse(&text, &out, message, sizeof message), CASTOR_OK);
    const signature_type &type = out.types[1];
    EXPECT_EQ(type.code, '{');
    EXPECT_EQ(type.size, sizeof(nested));
    EXPECT_EQ(type.alignment, alignof(nested));
    EXPECT_EQ(type.span, 7);
    EXPECT_EQ(out.types[1 + type.span].code, 'p');
    EXPECT_EQ(out.parameter_count, 2u);
}

TEST(Signature, ErrorsShowThePlace) {
    EXPECT_NE(error_of("libm.so.6").find("libm.so.6 <-- here --> : expected LIBRARY:FUNCTION="),
              std::string::npos);
    EXPECT_NE(error_of("libm.so.6:cos").find("libm.so.6:cos <-- here --> : expected a function's name and ="),
              std::string::npos);
    EXPECT_NE(error_of("l:f=d(d").find("l:f=d(d <-- here --> : a ) is missing"), std::string::npos);
    EXPECT_NE(error_of("l:f=q(d)").find("l:f= <-- here --> q(d): no type"), std::string::npos);
    EXPECT_NE(error_of("l:f=i(v)").find("l:f=i( <-- here --> v): v is a result only"), std::string::npos);
    EXPECT_NE(error_of("l:f=i{i}").find("l:f=i <-- here --> {i}: expected ("), std::string::npos);
    EXPECT_NE(error_of("l:f=i(i)x").find("l:f=i(i) <-- here --> x: expected ; or the end"),
              std::string::npos);
    EXPECT_NE(error_of("l:f=i({})").find("at least one member"), std::string::npos);
    EXPECT_NE(error_of("l:f=i({i").find("a } is missing"), std::string::npos);
    EXPECT_NE(error_of("l:f=i({lllllllli})").find("{llllllll <-- here --> i})"), std::string::npos);
    EXPECT_NE(error_of("l:f=i(i);l:g=i(i").find("l:g=i(i <-- here"), std::string::npos);
    EXPECT_NE(error_of("l:f=i({{{{{{{{{i}}}}}}}}})").find("too deep"), std::string::npos);
    EXPECT_NE(error_of(("l:f=v(" + std::string(64, 'i') + ")").c_str()).find("too many parameters"),
              std::string::npos);
    EXPECT_NE(error_of((std::string(200, 'l') + ":f=v()").c_str()).find("too long"), std::string::npos);
    std::string many;
    for (int i = 0; i < 33; i++)
        many += "l:f=v();";
    EXPECT_NE(error_of(many.c_str()).find("too many functions"), std::string::npos);
}

TEST(Signature, EmptyIsNothing) {
    char message[64];
    EXPECT_EQ(signature_check("", message, sizeof message), CASTOR_OK);
}

} // namespace
