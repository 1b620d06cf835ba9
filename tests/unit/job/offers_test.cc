// Descriptors that processes of a job offer each other by name.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <string>
#include <vector>
#include "gtest/gtest.h"
extern "C" {
#include "base/error.h"
#include "job/offers.h"
#include "job/rendezvous.h"
}

namespace {

const char *const TOKEN = "0123456789abcdef0123456789abcdef";

std::string name_of(const char *what) {
    return std::string(what) + std::to_string(getpid());
}

int file_with(const std::string &text) {
    int fd = memfd_create("offers-test", MFD_CLOEXEC);
    EXPECT_EQ(write(fd, text.data(), text.size()), ssize_t(text.size()));
    return fd;
}

std::string text_of(int fd) {
    char text[64];
    ssize_t got = pread(fd, text, sizeof text, 0);
    close(fd);
    return std::string(text, got < 0 ? 0 : size_t(got));
}

std::string take(const std::string &name, double seconds = 5) {
    int fd = -1;
    return rendezvous_ask(TOKEN, name.c_str(), &fd, 1, seconds) ? text_of(fd) : "nothing";
}

bool give(offer *o, const std::string &text, uint32_t takers) {
    int fd = file_with(text);
    return offer_give(o, &fd, 1, takers) == CASTOR_OK;
}

TEST(Offers, GiveWhatTheFirstHasUntilItEnds) {
    uint32_t before = offers_open();
    std::vector<offer *> claimed;
    for (int i = 0; i < 40; i++) {
        std::string name = name_of("of ") + std::to_string(i);
        claimed.push_back(offer_claim(TOKEN, name.c_str()));
        ASSERT_NE(claimed[i], nullptr);
        EXPECT_EQ(offer_claim(TOKEN, name.c_str()), nullptr);
        ASSERT_TRUE(give(claimed[i], "text " + std::to_string(i), 8)) << error_text();
    }
    EXPECT_EQ(offers_open(), before + 80);
    for (int i = 40; i-- > 0;)
        for (int time = 0; time < i % 3; time++)
            EXPECT_EQ(take(name_of("of ") + std::to_string(i)), "text " + std::to_string(i));
    for (int i = 0; i < 40; i++)
        EXPECT_EQ(offer_end(claimed[i]), uint32_t(i % 3));
    EXPECT_EQ(take(name_of("of 0")), "nothing");
    EXPECT_EQ(offers_open(), before);
}

TEST(Offers, WhoAsksAfterTheEndDoesNotWait) {
    std::string name = name_of("ended ");
    offer *o = offer_claim(TOKEN, name.c_str());
    ASSERT_TRUE(give(o, "text", 8));
    EXPECT_EQ(take(name), "text");
    usleep(50000); // the thread polls the socket again
    EXPECT_EQ(offer_end(o), 1u);
    auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(take(name, 20), "nothing");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Offers, EndAfterTheLastTaker) {
    std::string name = name_of("two takers ");
    offer *o = offer_claim(TOKEN, name.c_str());
    ASSERT_TRUE(give(o, "for two", 2));
    EXPECT_EQ(take(name), "for two");
    EXPECT_EQ(take(name), "for two");
    EXPECT_EQ(take(name), "nothing");
    EXPECT_EQ(offer_end(o), 2u);
}

TEST(Offers, WhoAsksEarlyWaits) {
    std::string name = name_of("early ");
    offer *o = offer_claim(TOKEN, name.c_str());
    pid_t asking = fork();
    if (asking == 0)
        _exit(take(name) == "late" ? 0 : 1);
    usleep(50000);
    ASSERT_TRUE(give(o, "late", 1));
    int status;
    ASSERT_EQ(waitpid(asking, &status, 0), asking);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(offer_end(o), 1u);
    o = offer_claim(TOKEN, name.c_str());
    EXPECT_EQ(take(name, 0.05), "nothing"); // claimed, and nothing comes
    EXPECT_EQ(offer_end(o), 0u);
}

TEST(Offers, NobodyWithAnotherTokenGetsThem) {
    std::string name = name_of("secret ");
    offer *o = offer_claim(TOKEN, name.c_str());
    ASSERT_TRUE(give(o, "of the job", 1));
    int fd = -1;
    EXPECT_FALSE(rendezvous_ask("another job", name.c_str(), &fd, 1, 1));
    EXPECT_EQ(offer_end(o), 0u);
    std::vector<int> many(RENDEZVOUS_DESCRIPTORS + 1, -1);
    o = offer_claim(TOKEN, name.c_str());
    EXPECT_EQ(offer_give(o, many.data(), 0, 1), CASTOR_ERR_ARGUMENT);
    EXPECT_EQ(offer_give(o, many.data(), int(many.size()), 1), CASTOR_ERR_ARGUMENT);
    offer_end(o);
}

TEST(Offers, AForkedChildHasNone) {
    std::string name = name_of("of the parent ");
    offer *o = offer_claim(TOKEN, name.c_str());
    ASSERT_TRUE(give(o, "the parent's", 3));
    pid_t child = fork();
    if (child == 0) {
        bool ok = offers_open() == 0 && offer_end(o) == 0 && take(name) == "the parent's";
        offer *own = offer_claim(TOKEN, (name + "child").c_str());
        ok = ok && give(own, "the child's", 3) && take(name + "child") == "the child's";
        _exit(ok ? 0 : 1);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(offer_end(o), 1u);
}

} // namespace
