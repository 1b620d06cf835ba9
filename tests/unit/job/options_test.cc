#include <gtest/gtest.h>
#include <cstdint>
#include <string>
#include <vector>

extern "C" {
#include "base/nearest.h"
#include "job/options.h"
}

namespace {

/* options_load with these entries, and its message. */
castor_status load(std::vector<std::string> entries, std::string *message = nullptr) {
    std::vector<char *> block;
    for (std::string &entry : entries)
        block.push_back(entry.data());
    block.push_back(nullptr);
    char text[512];
    castor_status status = options_load(block.data(), text, sizeof text);
    if (message)
        *message = text;
    return status;
}

std::string load_error(const std::string &entry) {
    std::string message;
    EXPECT_EQ(load({entry}, &message), CASTOR_ERR_ARGUMENT) << entry;
    return message;
}

std::string formatted(option_id id) {
    char text[OPTION_STRING_MAX];
    size_t length = option_format(id, text, sizeof text);
    EXPECT_EQ(length, strlen(text));
    return text;
}

std::vector<std::string> split(const std::string &text, const std::string &separator) {
    std::vector<std::string> parts;
    size_t from = 0;
    for (size_t at; (at = text.find(separator, from)) != std::string::npos; from = at + separator.size())
        parts.push_back(text.substr(from, at - from));
    parts.push_back(text.substr(from));
    return parts;
}

/* ---- every row of the table ---- */

class OptionRow : public testing::TestWithParam<int> {
  protected:
    const option_info &row = option_table[GetParam()];
    option_id id = option_id(GetParam());
    std::string entry(const std::string &value) { return std::string(row.env) + "=" + value; }
};

INSTANTIATE_TEST_SUITE_P(Table, OptionRow, testing::Range(0, int(OPTION_COUNT)),
                         [](const auto &info) { return std::string(option_table[info.param].field); });

TEST_P(OptionRow, IsWellFormed) {
    std::string name = row.env;
    EXPECT_EQ(name.rfind("CASTOR_", 0), 0u);
    std::string from_field = "CASTOR_";
    for (const char *c = row.field; *c; c++)
        from_field += char(toupper(*c));
    EXPECT_EQ(name, from_field);
    std::string doc = row.doc;
    EXPECT_FALSE(doc.empty());
    EXPECT_EQ(doc.find_first_of("|\n"), std::string::npos) << "it is a cell of a Markdown table";
    for (int other = 0; other < OPTION_COUNT; other++)
        EXPECT_EQ(std::string(row.env) == option_table[other].env, other == GetParam());
}

TEST_P(OptionRow, TakesItsDefault) {
    char message[512];
    EXPECT_EQ(option_check(row.env, row.def, message, sizeof message), CASTOR_OK) << message;
    ASSERT_EQ(load({}), CASTOR_OK);
    EXPECT_EQ(formatted(id), row.def);
    EXPECT_EQ(option_set_by(id), OPTION_FROM_DEFAULT);
}

TEST_P(OptionRow, TakesTheEndsOfWhatIsAllowedAndNothingBeyond) {
    std::string type = row.type, allowed = row.allowed;
    std::vector<std::string> good, bad;
    if (type == "STRING") {
        good = {"", "a", "a=b", std::string(OPTION_STRING_MAX - 1, 'x')};
        bad = {std::string(OPTION_STRING_MAX, 'x')};
    } else if (type == "SIGNATURES") {
        good = {"", "libm.so.6:cos=d(d)", "libm.so.6:cos=d(d);libz.so.1:crc32=l(lpi)"};
        bad = {"x", "libm.so.6:cos", "libm.so.6:cos=d", "libm.so.6:=d(d)", "cos=d(d)", "libm.so.6:cos=d(?)"};
    } else if (type == "ENUM" || type == "BOOL") {
        good = split(allowed, "|");
        bad = {"", allowed, good[0] + " ", good[0] + "|", "x" + good[0]};
    } else {
        bool automatic = allowed.rfind("auto|", 0) == 0;
        good = split(automatic ? allowed.substr(5) : allowed, "..");
        ASSERT_EQ(good.size(), 2u) << allowed;
        bad = {"",
               " ",
               "x",
               "-",
               "1x",
               "0x10",
               "..",
               allowed,
               "-2",
               "99999999999999999999999",
               good[0] + " ",
               "nan",
               "inf"};
        if (type == "INT")
            bad.push_back(std::to_string(std::stol(good[1]) + 1));
        (automatic ? good : bad).push_back("auto");
    }
    for (const std::string &value : good) {
        ASSERT_EQ(load({entry(value)}), CASTOR_OK) << entry(value);
        EXPECT_EQ(formatted(id), value);
        EXPECT_EQ(option_set_by(id), OPTION_FROM_ENVIRONMENT);
    }
    for (const std::string &value : bad) {
        std::string message = load_error(entry(value));
        EXPECT_EQ(message.rfind(row.env, 0), 0u) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos);
        EXPECT_EQ(formatted(id), row.def) << "a bad value leaves the default";
        EXPECT_EQ(option_set_by(id), OPTION_FROM_DEFAULT);
        char checked[512];
        EXPECT_EQ(option_check(row.env, value.c_str(), checked, sizeof checked), CASTOR_ERR_ARGUMENT);
        EXPECT_EQ(message, checked);
    }
}

TEST_P(OptionRow, IsSuggestedForANameThatIsNearlyIts) {
    std::string name = row.env, wrong = name;
    std::swap(wrong[wrong.size() - 1], wrong[wrong.size() - 2]);
    if (wrong == name)
        wrong += "S";
    std::string message = load_error(wrong + "=1");
    EXPECT_EQ(message.rfind(wrong + ": unknown option", 0), 0u) << message;
    if (row.internal)
        EXPECT_EQ(message.find("did you mean " + name + "?"), std::string::npos) << "not for users";
    else
        EXPECT_NE(message.find("did you mean " + name + "?"), std::string::npos) << message;
}

/* ---- types ---- */

TEST(Options, StoresEachType) {
    ASSERT_EQ(load({"CASTOR_PLUGIN=gemini", "CASTOR_BATCH=scale", "CASTOR_CHUNK_SIZE=3m",
                    "CASTOR_SEPARABLE=A,B", "CASTOR_DEBUG=1", "CASTOR_ARENA=0", "CASTOR_TIMEOUT=2.25",
                    "CASTOR_RANK=-1", "CASTOR_WORLD_SIZE=7"}),
              CASTOR_OK);
    EXPECT_EQ(options()->plugin, CASTOR_PLUGIN_GEMINI);
    EXPECT_EQ(options()->batch, CASTOR_BATCH_SCALE);
    EXPECT_EQ(options()->chunk_size, 3u << 20);
    EXPECT_STREQ(options()->separable, "A,B");
    EXPECT_TRUE(options()->debug);
    EXPECT_FALSE(options()->arena);
    EXPECT_DOUBLE_EQ(options()->timeout, 2.25);
    EXPECT_EQ(options()->rank, -1);
    EXPECT_EQ(options()->world_size, 7);
}

TEST(Options, EnumsArePositionsInTheirLists) {
    const char *plugins[] = {
#define PLUGIN(id, name, engine, shards, doc) name,
#include "job/plugins.def"
    };
    for (int position = 0; position < CASTOR_PLUGIN_COUNT; position++) {
        ASSERT_EQ(load({std::string("CASTOR_PLUGIN=") + plugins[position]}), CASTOR_OK);
        EXPECT_EQ(options()->plugin, position);
    }
    ASSERT_EQ(load({"CASTOR_ON_ERROR=passthrough", "CASTOR_LOG_LEVEL=debug"}), CASTOR_OK);
    EXPECT_EQ(options()->on_error, CASTOR_ON_ERROR_PASSTHROUGH);
    EXPECT_EQ(options()->log_level, 3);
}

TEST(Options, BytesTakeSuffixes) {
    struct {
        const char *text;
        uint64_t bytes;
        const char *shown;
    } cases[] = {
        {"0", 0, "0"},
        {"1000", 1000, "1000"},
        {"1023", 1023, "1023"},
        {"1024", 1024, "1K"},
        {"3k", 3072, "3K"},
        {"2KiB", 2048, "2K"},
        {"2KB", 2048, "2K"},
        {"2kb", 2048, "2K"},
        {"2kib", 2048, "2K"},
        {"20GB", UINT64_C(20) << 30, "20G"},
        {"20GiB", UINT64_C(20) << 30, "20G"},
        {"1TB", UINT64_C(1) << 40, "1T"},
        {"1536K", 1536 << 10, "1536K"},
        {"5M", 5 << 20, "5M"},
        {"1024M", 1 << 30, "1G"},
        {"7G", UINT64_C(7) << 30, "7G"},
        {"1T", UINT64_C(1) << 40, "1T"},
    };
    for (const auto &c : cases) {
        ASSERT_EQ(load({std::string("CASTOR_TRACE_MAX=") + c.text}), CASTOR_OK) << c.text;
        EXPECT_EQ(options()->trace_max, c.bytes);
        EXPECT_EQ(formatted(OPTION_ID_trace_max), c.shown);
    }
    for (const char *text :
         {"1KBB", "1KiBB", "1B", "1P", "K", "1 K", "1.5G", "-1", "+1", "2T", "18446744073709551616",
          "18446744073709551615T", "16777216T", "1KK", "1Ki", "1iB"})
        EXPECT_NE(load_error(std::string("CASTOR_TRACE_MAX=") + text).find("from 0 to 1T"),
                  std::string::npos);
}

TEST(Options, SecondsTakeDecimals) {
    struct {
        const char *text;
        double seconds;
        const char *shown;
    } cases[] = {{"1", 1, "1"},          {"0.1", 0.1, "0.1"},
                 {"0.25", 0.25, "0.25"}, {"10.500", 10.5, "10.5"},
                 {"100", 100, "100"},    {"1.000000000000000000001", 1, "1"}};
    for (const auto &c : cases) {
        ASSERT_EQ(load({std::string("CASTOR_TIMEOUT=") + c.text}), CASTOR_OK) << c.text;
        EXPECT_DOUBLE_EQ(options()->timeout, c.seconds);
        EXPECT_EQ(formatted(OPTION_ID_timeout), c.shown);
    }
    for (const char *text : {"0", "0.09", "86400.1", "1e3", "1.", ".5", "1,5", "1s", "-1", "1..2", "1.2.3"})
        EXPECT_NE(load_error(std::string("CASTOR_TIMEOUT=") + text).find("from 0.1 to 86400"),
                  std::string::npos);
}

TEST(Options, BoolsSayWhatToWrite) {
    for (const char *text : {"true", "on", "yes", "2", "01", ""})
        EXPECT_NE(load_error(std::string("CASTOR_DEBUG=") + text).find("1 (on) or 0 (off)"),
                  std::string::npos);
}

/* ---- the environment ---- */

TEST(Options, IgnoresTheRestOfTheEnvironment) {
    std::string message;
    EXPECT_EQ(
        load({"PATH=/bin", "CASTOR", "CASTOR=1", "CASTOR_DEBUG", "XCASTOR_FOO=1", "castor_plugin=x", ""},
             &message),
        CASTOR_OK);
    EXPECT_EQ(message, "");
    char text[64];
    EXPECT_EQ(options_load(nullptr, text, sizeof text), CASTOR_OK);
}

TEST(Options, TheFirstOfTwoEntriesCounts) {
    ASSERT_EQ(load({"CASTOR_TIMEOUT=7", "CASTOR_TIMEOUT=8", "CASTOR_TIMEOUT=never"}), CASTOR_OK);
    EXPECT_EQ(options()->timeout, 7);
}

TEST(Options, ABadEntryDoesNotHideTheOthers) {
    std::string message;
    EXPECT_EQ(load({"CASTOR_TIMEOUT=x", "CASTOR_PLUGIN=gemini", "CASTOR_NOPE=1", "CASTOR_DEBUG=1"}, &message),
              CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(message.rfind("CASTOR_TIMEOUT=x", 0), 0u) << "the first complaint is told";
    EXPECT_EQ(options()->plugin, CASTOR_PLUGIN_GEMINI);
    EXPECT_TRUE(options()->debug);
    EXPECT_EQ(options()->timeout, 300);
}

TEST(Options, LoadingAgainForgetsWhatWasBefore) {
    ASSERT_EQ(load({"CASTOR_DEBUG=1", "CASTOR_LOG_DIR=/a"}), CASTOR_OK);
    ASSERT_EQ(load({}), CASTOR_OK);
    EXPECT_FALSE(options()->debug);
    EXPECT_STREQ(options()->log_dir, "");
    EXPECT_EQ(option_set_by(OPTION_ID_debug), OPTION_FROM_DEFAULT);
}

TEST(Options, MessagesFitAnyBuffer) {
    std::string environment = "CASTOR_PLUGIN=" + std::string(5000, 'x');
    for (size_t size : {size_t(1), size_t(2), size_t(20), size_t(300)}) {
        std::vector<char> text(size + 1, '#');
        char *block[] = {environment.data(), nullptr};
        EXPECT_EQ(options_load(block, text.data(), size), CASTOR_ERR_ARGUMENT);
        EXPECT_LT(strnlen(text.data(), size), size);
        EXPECT_EQ(text[size], '#');
    }
}

/* ---- suggestions ---- */

TEST(Options, SuggestsNames) {
    struct {
        const char *wrong, *right;
    } cases[] = {
        {"CASTOR_PLUGN", "CASTOR_PLUGIN"},           {"CASTOR_CHUNKSIZE", "CASTOR_CHUNK_SIZE"},
        {"CASTOR_CHUNK", "CASTOR_CHUNK_SIZE"},       {"CASTOR_LOGDIR", "CASTOR_LOG_DIR"},
        {"CASTOR_plugin", "CASTOR_PLUGIN"},          {"CASTOR_TIMEOUT_S", "CASTOR_TIMEOUT"},
        {"CASTOR_OFLOAD_DIR", "CASTOR_OFFLOAD_DIR"},
    };
    for (const auto &c : cases)
        EXPECT_NE(load_error(std::string(c.wrong) + "=1").find(std::string("did you mean ") + c.right + "?"),
                  std::string::npos)
            << c.wrong;
    char message[512];
    EXPECT_EQ(option_check("CHUNK_SIZE", "1M", message, sizeof message), CASTOR_ERR_ARGUMENT);
    EXPECT_NE(std::string(message).find("did you mean CASTOR_CHUNK_SIZE?"), std::string::npos) << message;
    for (const char *far : {"CASTOR_QQQQQQQQ", "CASTOR_", "CASTOR_X"})
        EXPECT_EQ(load_error(std::string(far) + "=1").find("did you mean"), std::string::npos) << far;
    EXPECT_EQ(load_error("CASTOR_" + std::string(3000, 'A') + "=1").find("did you mean"), std::string::npos);
}

TEST(Options, SuggestsValues) {
    EXPECT_NE(load_error("CASTOR_PLUGIN=gemni")
                  .find("did you mean gemini? (allowed: none, ddp, zero1, zero2, gemini, hybrid, fsdp)"),
              std::string::npos);
    EXPECT_NE(load_error("CASTOR_PLUGIN=GEMINI").find("did you mean gemini?"), std::string::npos);
    EXPECT_NE(load_error("CASTOR_LOG_LEVEL=warning").find("did you mean warn?"), std::string::npos);
    std::string far = load_error("CASTOR_PLUGIN=quux");
    EXPECT_EQ(far.find("did you mean"), std::string::npos);
    EXPECT_NE(far.find("allowed: none, ddp, zero1, zero2, gemini"), std::string::npos);
}

TEST(Nearest, CountsEdits) {
    auto distance = [](std::string a, std::string b) {
        return nearest_distance(a.data(), a.size(), b.data(), b.size());
    };
    EXPECT_EQ(distance("", ""), 0u);
    EXPECT_EQ(distance("", "abc"), 3u);
    EXPECT_EQ(distance("abc", ""), 3u);
    EXPECT_EQ(distance("Kitten", "sitting"), 3u);
    EXPECT_EQ(distance("abcd", "acbd"), 1u);
    EXPECT_EQ(distance("abc", "ABC"), 0u);
    EXPECT_EQ(distance("chunk", "chunk_size"), 2u) << "contained";
    EXPECT_EQ(distance("abc", "abcdefgh"), 5u) << "too short to count as contained";
    EXPECT_EQ(distance(std::string(64, 'a'), std::string(64, 'b')), 64u);
    EXPECT_EQ(distance(std::string(65, 'a'), "b"), NEAREST_FAR);
    const char *names[] = {"run", "report", "options"};
    EXPECT_STREQ(nearest_name("rnu", names, 3), "run");
    EXPECT_STREQ(nearest_name("reprot", names, 3), "report");
    EXPECT_EQ(nearest_name("xyzzy", names, 3), nullptr);
    EXPECT_EQ(nearest_name("", names, 0), nullptr);
    const char *others[] = {"top", "logs", "env", "--set", "--plugin"};
    for (const char *far : {"foo", "x", "lost", "demo", "--foo", "--see-it"})
        EXPECT_EQ(nearest_name(far, others, 5), nullptr) << far;
    EXPECT_STREQ(nearest_name("log", others, 5), "logs");
    EXPECT_STREQ(nearest_name("--plguin", others, 5), "--plugin");
}

} // namespace
