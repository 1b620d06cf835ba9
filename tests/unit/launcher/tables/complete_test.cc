#include <gtest/gtest.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
#include "job/options.h"
#include "launcher/common/command_line.h"
#include "launcher/tables/complete.h"
#include "launcher/tables/manual.h"
}

namespace {

using Words = std::vector<std::string>;

Words complete(const std::string &line) {
    char *text = nullptr;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    complete_write(line.c_str(), file);
    fclose(file);
    Words words;
    for (const char *at = text; *at;) {
        std::string whole(at, strcspn(at, "\n"));
        EXPECT_NE(whole.find('\t'), std::string::npos) << whole;
        words.push_back(whole.substr(0, whole.find('\t')));
        at += whole.size() + 1;
    }
    free(text);
    return words;
}

bool holds(const Words &words, const std::string &word) {
    return std::count(words.begin(), words.end(), word) == 1;
}

TEST(Complete, Commands) {
    Words all = complete("castor ");
    for (const subcommand_info &row : subcommand_table)
        EXPECT_EQ(holds(all, row.name), row.doc != nullptr) << row.name;
    EXPECT_EQ(complete("castor re"), Words({"rehearse", "report"}));
    EXPECT_EQ(complete("castor help ver"), Words({"version"}));
    EXPECT_EQ(complete("castor xyzzy "), Words());
    EXPECT_EQ(complete("castor"), Words());
    EXPECT_EQ(complete(""), Words());
}

TEST(Complete, OptionsOfCommands) {
    for (const argument_info &row : argument_table) {
        std::string name = subcommand_table[row.command].name;
        EXPECT_TRUE(holds(complete("castor " + name + " -"), row.name)) << name << " " << row.name;
    }
    EXPECT_EQ(complete("castor report --f"), Words({"--format"}));
    EXPECT_EQ(complete("castor report dir --f"), Words({"--format"}));
    EXPECT_EQ(complete("castor report "), Words()); // files
    EXPECT_EQ(complete("castor options "), Words({"--markdown", "--help"}));
}

TEST(Complete, Values) {
    EXPECT_EQ(complete("castor report --format "),
              Words({"text", "json", "perfetto", "html", "prometheus", "tensorboard"}));
    EXPECT_EQ(complete("castor report --format=p"), Words({"--format=perfetto", "--format=prometheus"}));
    EXPECT_EQ(complete("castor run --plugin ze"), Words({"zero1", "zero2"}));
    EXPECT_EQ(complete("castor run --log-dir "), Words());
    EXPECT_EQ(complete("castor run --log-dir=a --plugin=gem"), Words({"--plugin=gemini"}));
}

TEST(Complete, Settings) {
    for (const option_info &row : option_table)
        EXPECT_EQ(holds(complete("castor run --set "), row.env + std::string("=")), !row.internal) << row.env;
    EXPECT_EQ(complete("castor run --set CASTOR_DEB"), Words({"CASTOR_DEBUG="}));
    EXPECT_EQ(complete("castor run --set CASTOR_DEBUG="), Words({"CASTOR_DEBUG=0", "CASTOR_DEBUG=1"}));
    EXPECT_EQ(complete("castor run --set=CASTOR_LOSS=s"), Words({"--set=CASTOR_LOSS=sum"}));
    EXPECT_EQ(complete("castor run --set CASTOR_CHUNK_SIZE="),
              Words({"CASTOR_CHUNK_SIZE=auto"})); // and a range
    EXPECT_EQ(complete("castor run --set CASTOR_TIMEOUT="), Words());
}

TEST(Complete, TheCommandOfRunIsTheShells) {
    EXPECT_EQ(complete("castor run -- --pl"), Words());
    EXPECT_EQ(complete("castor run python --pl"), Words());
    EXPECT_EQ(complete("castor run --plugin gemini python --pl"), Words());
    EXPECT_EQ(complete("castor run --plugin python --pl"), Words({"--plugin"}));
    EXPECT_EQ(complete("castor doctor -- python3 -"), Words());
}

TEST(Complete, LongLinesEnd) {
    std::string line = "castor run";
    for (int i = 0; i < 1000; i++)
        line += " -x";
    EXPECT_EQ(complete(line + " "), Words());
    EXPECT_EQ(complete("castor " + std::string(5000, 'r')), Words());
}

TEST(Manual, HoldsEachCommandAndOption) {
    char *text = nullptr;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    manual_write(file);
    fclose(file);
    std::string page(text, size);
    free(text);
    auto escaped = [](std::string word) {
        for (size_t at = 0; (at = word.find('-', at)) != std::string::npos; at += 2)
            word.insert(at, "\\");
        return word;
    };
    for (const subcommand_info &row : subcommand_table)
        EXPECT_EQ(page.find(".SS castor " + std::string(row.name) + "\n") != std::string::npos,
                  row.doc != nullptr)
            << row.name;
    for (const argument_info &row : argument_table)
        EXPECT_NE(page.find(".TP\n\\fB" + escaped(row.name)), std::string::npos) << row.name;
    for (const option_info &row : option_table)
        EXPECT_EQ(page.find(".TP\n\\fB" + std::string(row.env) + "\\fR\n") != std::string::npos,
                  !row.internal)
            << row.env;
    for (size_t at = 0; (at = page.find("\n", at)) != std::string::npos;
         at++) /* no text is taken for a request */
        EXPECT_TRUE(page[at + 1] != '.' || std::string("TSPfn").find(page[at + 2]) != std::string::npos)
            << page.substr(at + 1, 40);
    EXPECT_EQ(page.find("`"), std::string::npos);
}

} // namespace
