#include <gtest/gtest.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

extern "C" {
#include "job/options.h"
#include "launcher/common/command_line.h"
}

namespace {

using Words = std::vector<std::string>;

class CommandLine : public testing::Test {
  protected:
    std::string said, value;

    /* What `castor COMMAND WORD...` gives first; `value` and `said` are of that. */
    int first(subcommand_id command, Words words) {
        words.insert(words.begin(), subcommand_table[command].name);
        std::vector<char *> pointers;
        for (std::string &word : words)
            pointers.push_back(word.data());
        command_line line = {command, int(pointers.size()), pointers.data(), 1, nullptr};
        testing::internal::CaptureStderr();
        int id = command_line_next(&line);
        said = testing::internal::GetCapturedStderr();
        value = line.value ? line.value : "";
        EXPECT_EQ(id == COMMAND_LINE_WRONG, !said.empty()) << said;
        EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 1) << said;
        return id;
    }
};

TEST_F(CommandLine, ValuesFollowOptionsInBothWays) {
    EXPECT_EQ(first(SUBCOMMAND_report, {"--format", "json"}), ARGUMENT_report_format);
    EXPECT_EQ(value, "json");
    EXPECT_EQ(first(SUBCOMMAND_report, {"--format=html"}), ARGUMENT_report_format);
    EXPECT_EQ(value, "html");
    EXPECT_EQ(first(SUBCOMMAND_report, {"--output=a=b"}), ARGUMENT_report_output);
    EXPECT_EQ(value, "a=b");
    EXPECT_EQ(first(SUBCOMMAND_report, {"-o", "-"}), ARGUMENT_report_output);
    EXPECT_EQ(value, "-");
    EXPECT_EQ(first(SUBCOMMAND_run, {"--all-output"}), ARGUMENT_run_all_output);
}

TEST_F(CommandLine, WordsAndEnds) {
    EXPECT_EQ(first(SUBCOMMAND_report, {}), COMMAND_LINE_END);
    EXPECT_EQ(first(SUBCOMMAND_report, {"dir"}), COMMAND_LINE_WORD);
    EXPECT_EQ(value, "dir");
    EXPECT_EQ(first(SUBCOMMAND_report, {""}), COMMAND_LINE_WORD);
    EXPECT_EQ(first(SUBCOMMAND_run, {"--", "x"}), COMMAND_LINE_REST);
    EXPECT_EQ(first(SUBCOMMAND_report, {"--help"}), COMMAND_LINE_HELP);
    EXPECT_EQ(first(SUBCOMMAND_report, {"-h"}), COMMAND_LINE_HELP);
}

TEST_F(CommandLine, WhatIsWrongIsSaidOnce) {
    const struct {
        subcommand_id command;
        Words words;
        const char *says;
    } wrong[] = {
        {SUBCOMMAND_report, {"--fromat", "json"}, "--fromat: unknown option; did you mean --format?"},
        {SUBCOMMAND_report, {"--plugin", "gemini"}, "`castor report --help` lists all"},
        {SUBCOMMAND_report, {"--"}, "--: unknown option"},
        {SUBCOMMAND_report, {"-"}, "-: unknown option"},
        {SUBCOMMAND_report, {"--=x"}, "unknown option"},
        {SUBCOMMAND_report, {"-o=x"}, "-o=x: unknown option"},
        {SUBCOMMAND_report, {"--format"}, "a value is missing: --format FORMAT"},
        {SUBCOMMAND_run, {"--nproc", "--", "true"}, "a value is missing: --nproc N"},
        {SUBCOMMAND_run, {"--xyzzy"}, "put -- before a command that starts with a dash"},
        {SUBCOMMAND_top, {"--once=1"}, "takes no value"},
        {SUBCOMMAND_report,
         {"--format", "jsn"},
         "did you mean json? (allowed: text, json, perfetto, html, prometheus, tensorboard)"},
        {SUBCOMMAND_report, {"--format", "jso"}, "--format jso: unknown value"},
        {SUBCOMMAND_report, {"--format="}, "allowed: text, json"},
    };
    for (const auto &row : wrong) {
        EXPECT_EQ(first(row.command, row.words), COMMAND_LINE_WRONG) << row.words[0];
        EXPECT_NE(said.find(row.says), std::string::npos) << said;
        EXPECT_EQ(said.rfind(std::string("castor: ") + subcommand_table[row.command].name + ": ", 0), 0u)
            << said;
    }
}

TEST_F(CommandLine, NoOptionIsNamedTwice) {
    for (int command = 0; command < SUBCOMMAND_COUNT; command++) {
        std::set<std::string> names = {"--help", "-h"};
        for (const argument_info &row : argument_table)
            if (row.command == command) {
                EXPECT_TRUE(names.insert(row.name).second) << row.name;
                EXPECT_TRUE(!row.also[0] || names.insert(row.also).second) << row.also;
            }
    }
}

TEST_F(CommandLine, ChoicesFit) {
    char names[CHOICES_MAX][CHOICE_SIZE];
    auto whole = [&](const char *choices) {
        std::string again;
        for (int i = 0, count = choices_split(choices, names); i < count; i++)
            again += (i ? "|" : "") + std::string(names[i]);
        return again;
    };
    EXPECT_EQ(whole(""), "");
    for (const argument_info &row : argument_table)
        EXPECT_EQ(whole(row.allowed), row.allowed);
    for (const option_info &row : option_table)
        EXPECT_EQ(whole(row.allowed), row.allowed);
}

} // namespace
