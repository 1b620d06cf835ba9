#include <gtest/gtest.h>
#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cfloat>
#include <climits>
#include <cmath>
#include <random>
#include <string>

extern "C" {
#include "base/log.h"
}

namespace {

template <typename... Arguments> std::string format(const char *text, Arguments... arguments) {
    char out[512];
    size_t length = log_format(out, sizeof out, text, arguments...);
    EXPECT_EQ(length, strlen(out));
    return out;
}

/* The same by printf, for the conversions that it has too. */
template <typename... Arguments> std::string printed(const char *text, Arguments... arguments) {
    char out[512];
    snprintf(out, sizeof out, text, arguments...);
    return out;
}

TEST(LogFormat, FormatsAsPrintfDoes) {
#define SAME(...) EXPECT_EQ(format(__VA_ARGS__), printed(__VA_ARGS__))
    SAME("plain");
    SAME("%s|%s", "one", "");
    SAME("%d %d %d", 0, INT_MIN, INT_MAX);
    SAME("%u %x", UINT_MAX, UINT_MAX);
    SAME("%ld %ld %lu %lx", LONG_MIN, LONG_MAX, ULONG_MAX, 255ul);
    SAME("%lld %llu %llx", LLONG_MIN, ULLONG_MAX, 0xabcdefull);
    SAME("%zu %zd", SIZE_MAX, ssize_t(-5));
    SAME("%p", reinterpret_cast<void *>(0xdeadbeef));
    SAME("%c%c", 'a', '%');
    SAME("100%%");
    SAME("%.2s|%.0s|%.9s|%.*s", "abc", "abc", "abc", 1, "xyz");
    SAME("%.0f %.1f %.3f %f", 2.0, 0.25 + 0.125, 3.14159, 1.5);
    SAME("%.3f %.2f", -1.9996, 0.999);
    SAME("%.9f", 0.000000001);
    SAME("%.1f", 123456789012345.5);
#undef SAME
}

TEST(LogFormat, RandomDoublesAsPrintf) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 2000; i++) {
        double value = std::ldexp(double(int64_t(random())), int(random() % 60) - 63 - 20);
        int decimals = int(random() % 7);
        char text[16];
        snprintf(text, sizeof text, "%%.%df", decimals);
        double ours = std::stod(format(text, value)), exact = std::stod(printed(text, value));
        /* Ties may be rounded the other way: one unit of the last digit shown. */
        EXPECT_NEAR(ours, exact, 1.01 * std::pow(10.0, -decimals) + std::abs(value) * 4 * DBL_EPSILON)
            << text << value;
    }
}

TEST(LogFormat, FewDigitsAsPrintf) {
    std::mt19937_64 random(11);
    auto same = [](double value) { EXPECT_EQ(format("%g", value), printed("%.9g", value)) << value; };
    for (double value : {0.0, 1.0, 0.1, -0.25, 1e-3, 1e-4, 1e-5, 2.5e-12, 123456789.0, 1234567891.0, 1e300,
                         9.9999999999, 999999999.9, 0.99999999999, 1e-300, DBL_MAX, -1e22})
        same(value);
    for (int i = 0; i < 2000; i++)
        same(double(int64_t(random() % 2000001) - 1000000) * std::pow(10.0, int(random() % 24) - 16));
    EXPECT_EQ(format("%g %g %g", NAN, INFINITY, -INFINITY), "nan inf -inf");
}

TEST(LogFormat, NumbersWithoutEnd) {
    EXPECT_EQ(format("%.1f %.1f %.1f", NAN, INFINITY, -INFINITY), "nan inf -inf");
    EXPECT_EQ(format("%.1f", 1e18), "100000000000000000.0e1");
    EXPECT_NEAR(std::stod(format("%.9f", 1.5e300)), 1.5e300, 1e290);
    EXPECT_NEAR(std::stod(format("%.3f", -1e308)), -1e308, 1e298);
}

TEST(LogFormat, BytesForPeople) {
    auto bytes = [](uint64_t value) { return format("%B", value); };
    EXPECT_EQ(bytes(0), "0 B");
    EXPECT_EQ(bytes(1023), "1023 B");
    EXPECT_EQ(bytes(1024), "1.0 KiB");
    EXPECT_EQ(bytes(3355443), "3.2 MiB");
    EXPECT_EQ(bytes((1 << 20) - 1), "1.0 MiB") << "not 1024.0 KiB";
    EXPECT_EQ(bytes(UINT64_C(5) << 40), "5.0 TiB");
    EXPECT_EQ(bytes(UINT64_MAX), "16.0 EiB");
    EXPECT_EQ(format("%s %B %d", "a", uint64_t(1) << 30, 7), "a 1.0 GiB 7");
}

TEST(LogFormat, SurvivesBadFormats) {
    const char *nothing = nullptr;
    EXPECT_EQ(format("%s", nothing), "(null)");
    EXPECT_EQ(format("%"), "%");
    EXPECT_EQ(format("a %y %d", 1), "a %y %d") << "the arguments after an unknown conversion are unknown";
    EXPECT_EQ(format("%l", 1), "%l");
    EXPECT_EQ(format("%.", 1), "%.");
    EXPECT_EQ(format("%.99999999999f", 1.0), "%.99999999999f");
}

TEST(LogFormat, CutsAtTheEndOfTheBuffer) {
    for (size_t size = 0; size <= 12; size++) {
        char out[16];
        memset(out, '#', sizeof out);
        size_t length = log_format(out, size, "%s-%d-%B", "abc", 1234, uint64_t(1));
        std::string whole = "abc-1234-1 B";
        if (size) {
            EXPECT_EQ(std::string(out), whole.substr(0, size - 1));
            EXPECT_EQ(length, std::min(whole.size(), size - 1));
        }
        EXPECT_EQ(out[size], '#');
    }
}

template <typename... Arguments> std::string message(size_t size, const char *text, Arguments... arguments) {
    std::string out(size + 1, '#');
    size_t length = log_message(&out[0], size, text, arguments...);
    EXPECT_EQ(out[size], '#');
    EXPECT_EQ(out[length], '\0');
    return out.substr(0, length);
}

TEST(LogMessage, EndsAfterAWord) {
    const char *text = "no such file: %s";
    EXPECT_EQ(message(26, text, "/data/of/a"), "no such file: /data/of/a");
    EXPECT_EQ(message(25, text, "/data/of/a"), "no such file: /data/of/a");
    EXPECT_EQ(message(24, text, "/data/of/a"), "no such file: ...");
    EXPECT_EQ(message(18, text, "/data/of/a"), "no such file: ...");
    EXPECT_EQ(message(17, text, "/data/of/a"), "no such file:...");
    EXPECT_EQ(message(16, text, "/data/of/a"), "no such ...");
    EXPECT_EQ(message(11, "%s", "/data/of/a"), "/data/of/a");
    EXPECT_EQ(message(10, "%s", "/data/of/a"), "/data/...");
    EXPECT_EQ(message(10, "%s", "/dat\xc3\xa4\xc3\xa4n/a"), "/dat\xc3\xa4...");
    EXPECT_EQ(message(9, "%s", "/dat\xc3\xa4\xc3\xa4n/a"), "/dat...");
    EXPECT_EQ(message(4, "%s", "/data"), "...");
    EXPECT_EQ(message(3, "%s", "/data"), "/d");
}

/* ---- lines ---- */

class LogLine : public testing::Test {
  protected:
    void TearDown() override {
        log_set_level(LOG_INFO);
        log_set_rank(-1);
    }
    template <typename... Arguments>
    std::string line(log_level level, const char *text, Arguments... arguments) {
        testing::internal::CaptureStderr();
        log_write(level, text, arguments...);
        return testing::internal::GetCapturedStderr();
    }
};

TEST_F(LogLine, HasAPrefixAndAnEnd) {
    EXPECT_EQ(line(LOG_ERROR, "%d of %d", 1, 2), "castor: 1 of 2\n");
    log_set_rank(3);
    EXPECT_EQ(line(LOG_INFO, "x"), "castor: rank 3: x\n");
    log_set_rank(-1);
    EXPECT_EQ(line(LOG_INFO, ""), "castor: \n");
}

TEST_F(LogLine, KeepsToTheLevel) {
    const log_level levels[] = {LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG};
    for (log_level set : levels) {
        log_set_level(set);
        for (log_level level : levels)
            EXPECT_EQ(line(level, "x").empty(), level > set);
    }
}

TEST_F(LogLine, IsSaidOnceInAJob) {
    char path[] = "/tmp/castor-said-XXXXXX";
    close(mkstemp(path));
    testing::internal::CaptureStderr();
    log_set_said(path, "a job");
    for (int rank = 0; rank < 3; rank++) {
        log_set_rank(rank);
        LOG_W("nothing is shared");
        LOG_E("rank %d is gone", rank);
        LOG_E("nothing is left");
    }
    EXPECT_FALSE(log_said("its own words"));
    EXPECT_TRUE(log_said("its own words"));
    log_set_level(LOG_DEBUG);
    LOG_D("again");
    LOG_D("again");
    log_set_said(path, "the next job");
    LOG_W("nothing is shared");
    log_set_said("", "");
    LOG_W("nothing is shared");
    EXPECT_EQ(
        testing::internal::GetCapturedStderr(),
        "castor: rank 0: nothing is shared\ncastor: rank 0: rank 0 is gone\ncastor: rank 0: nothing is left\n"
        "castor: rank 1: rank 1 is gone\ncastor: rank 2: rank 2 is gone\ncastor: rank 2: again\ncastor: rank "
        "2: again\n"
        "castor: rank 2: nothing is shared\ncastor: rank 2: nothing is shared\n");
    log_set_said(path, "a job");
    int elsewhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    log_set_file(elsewhere);
    EXPECT_FALSE(log_said("its own words")) << "another file";
    close(elsewhere);
    log_set_said("", "");
    unlink(path);
}

TEST_F(LogLine, IsOneLineWhateverItHolds) {
    EXPECT_EQ(line(LOG_INFO, "%s", "a\nb\tc\x1b[2J\x7f"), "castor: a?b?c?[2J?\n");
    EXPECT_EQ(line(LOG_INFO, "%s",
                   "Gr\xc3\xb6\xc3\x9f"
                   "e"),
              "castor: Gr\xc3\xb6\xc3\x9f"
              "e\n");
    std::string text = line(LOG_INFO, "%s", std::string(10000, 'x').c_str());
    EXPECT_EQ(text.size(), 4096u);
    EXPECT_EQ(text.back(), '\n');
}

TEST_F(LogLine, KeepsErrno) {
    int saved = dup(STDERR_FILENO);
    close(STDERR_FILENO);
    errno = EDOM;
    log_write(LOG_ERROR, "nobody hears this");
    int after = errno;
    dup2(saved, STDERR_FILENO);
    close(saved);
    EXPECT_EQ(after, EDOM);
}

} // namespace
