// How ranks find each other: who is let in, and what the others hear of those who do not come.
#include <sys/socket.h>
#include <sys/un.h>
#include <cstddef>
#include <fstream>
#include <set>
#include "tests/unit/support/store_ranks.h"
extern "C" {
#include "job/meeting.h"
#include "job/rendezvous.h"
#include "base/siphash.h"
}

namespace {

using namespace store_test;

// The abstract socket where the ranks of a group meet.
std::string meeting_name(const std::string &token) {
    sockaddr_un address;
    socklen_t length = meeting_address(&address, token.c_str(), "group");
    return std::string(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
}

// As anyone can list them; there may be those of other jobs.
bool socket_listed(const std::string &name) {
    std::ifstream list("/proc/net/unix");
    for (std::string line; std::getline(list, line);)
        if (line.size() > name.size() && line.substr(line.size() - name.size() - 1) == "@" + name)
            return true;
    return false;
}

int socket_connect(const std::string &name) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, name.data(), name.size());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (connect(fd, reinterpret_cast<sockaddr *>(&address), length) == 0)
        return fd;
    close(fd);
    return -1;
}

TEST(Meeting, KeyedHashIsSipHash) {
    // The example of the paper's appendix: the key 00 01 ... 0f, the message 00 01 ... 0e.
    const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    unsigned char message[15];
    for (unsigned char i = 0; i < sizeof message; i++)
        message[i] = i;
    EXPECT_EQ(siphash(key, message, sizeof message), 0xa129ca6149be45e5u);
}

TEST(Meeting, EachHalfOfTheTokenCounts) {
    const std::string token = "0123456789abcdef0123456789abcdef";
    std::set<std::string> names = {meeting_name(token)};
    for (size_t i = 0; i < token.size(); i++) {
        std::string other = token;
        other[i] = 'x';
        EXPECT_TRUE(names.insert(meeting_name(other)).second) << i;
    }
    EXPECT_EQ(meeting_name(token), meeting_name(token));
}

TEST(StoreRendezvous, HandsTheDescriptorsToEveryRank) {
    Job job(4);
    job.open = false;
    job.run([](Rank &r) {
        for (int round = 0; round < 20; round++) {
            int fds[3] = {-1, -1, -1};
            if (r.rank == 0)
                for (int &fd : fds) {
                    fd = memfd_create("rendezvous-test", MFD_CLOEXEC);
                    ASSERT_EQ(write(fd, "hello", 5), 5);
                }
            if (round % 4 == r.rank)
                usleep(5000);
            ASSERT_EQ(rendezvous_share(r.token.c_str(), "group", r.rank, r.world, fds, 3, 20, nullptr),
                      CASTOR_OK)
                << error_text();
            for (int fd : fds) {
                char text[5];
                ASSERT_EQ(pread(fd, text, 5, 0), 5);
                EXPECT_EQ(memcmp(text, "hello", 5), 0);
                close(fd);
            }
        }
    });
}

TEST(StoreRendezvous, GroupsOfOneJobDoNotMeet) {
    Job job(4);
    job.open = false;
    job.run([](Rank &r) {
        int fd = -1;
        std::string group = r.rank < 2 ? "left" : "right";
        if (r.rank % 2 == 0) {
            fd = memfd_create("rendezvous-test", MFD_CLOEXEC);
            ASSERT_EQ(write(fd, group.data(), 4), 4);
        }
        ASSERT_EQ(rendezvous_share(r.token.c_str(), group.c_str(), r.rank % 2, 2, &fd, 1, 20, nullptr),
                  CASTOR_OK);
        char text[4];
        ASSERT_EQ(pread(fd, text, 4, 0), 4);
        EXPECT_EQ(memcmp(text, group.data(), 4), 0);
    });
}

TEST(StoreRendezvous, NamesTheRankThatDidNotCome) {
    Job job(3);
    job.open = false;
    job.run([](Rank &r) {
        if (r.rank == 2)
            return;
        int fd = r.rank ? -1 : memfd_create("rendezvous-test", MFD_CLOEXEC);
        int status = rendezvous_share(r.token.c_str(), "group", r.rank, 3, &fd, 1, 0.5, nullptr);
        if (r.rank == 1) { // it was let in, and the others are not its affair yet
            EXPECT_EQ(status, CASTOR_OK);
            return;
        }
        EXPECT_EQ(status, CASTOR_ERR_TIMEOUT);
        EXPECT_NE(strstr(error_text(), "1 of 3 ranks"), nullptr) << error_text();
        EXPECT_NE(strstr(error_text(), "rank 2"), nullptr) << error_text();
    });
}

TEST(StoreRendezvous, WithoutRankZeroThereIsAnErrorToo) {
    Job job(2);
    job.open = false;
    job.run([](Rank &r) {
        int fd = -1;
        if (r.rank == 1) {
            EXPECT_EQ(rendezvous_share(r.token.c_str(), "group", 1, 2, &fd, 1, 0.3, nullptr),
                      CASTOR_ERR_TIMEOUT);
            EXPECT_NE(strstr(error_text(), "CASTOR_TIMEOUT"), nullptr) << error_text();
        }
    });
}

TEST(StoreRendezvous, TheLauncherTellsWhoHasEnded) {
    std::string token = "ended " + std::to_string(getpid()), other = token + " not";
    EXPECT_FALSE(ended_told(token.c_str(), 1));
    pid_t launcher = fork();
    if (launcher == 0) {
        bool told = ended_tell(token.c_str(), 1);
        raise(SIGSTOP);
        _exit(told ? 0 : 1);
    }
    int status;
    ASSERT_EQ(waitpid(launcher, &status, WUNTRACED), launcher);
    ASSERT_TRUE(WIFSTOPPED(status));
    EXPECT_TRUE(ended_told(token.c_str(), 1));
    EXPECT_FALSE(ended_told(token.c_str(), 0));
    EXPECT_FALSE(ended_told(other.c_str(), 1));
    kill(launcher, SIGCONT);
    ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(ended_told(token.c_str(), 1)); // with the launcher its sockets are gone
}

// Strangers find the socket in the list: with a wrong token, a wrong rank, or nothing to say, they get nothing, and the
// ranks meet all the same.
TEST(StoreRendezvous, StrangersGetNothing) {
    Job job(2);
    job.open = false;
    const std::string name = meeting_name(job.token);
    job.run([&](Rank &r) {
        int fd = -1;
        if (r.rank == 0) {
            fd = memfd_create("rendezvous-test", MFD_CLOEXEC);
            EXPECT_EQ(rendezvous_share(r.token.c_str(), "group", 0, 2, &fd, 1, 20, nullptr), CASTOR_OK)
                << error_text();
            return;
        }
        while (!socket_listed(name))
            usleep(1000);
        struct {
            char token[64];
            int32_t rank;
        } hellos[4] = {{"not the token", 1}, {"", 7}, {"", 0}, {"", -1}};
        for (int i = 1; i < 4; i++)
            snprintf(hellos[i].token, sizeof hellos[i].token, "%s", r.token.c_str());
        int silent = socket_connect(name); // it must not hold the others up for long
        for (auto &hello : hellos) {
            int stranger = socket_connect(name);
            ASSERT_GE(stranger, 0);
            send(stranger, &hello, sizeof hello, MSG_NOSIGNAL);
            char byte, control[256];
            iovec data = {&byte, 1};
            msghdr message = {};
            message.msg_iov = &data;
            message.msg_iovlen = 1;
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            EXPECT_LE(recvmsg(stranger, &message, 0), 0) << "a stranger was answered";
            EXPECT_EQ(message.msg_controllen, 0u);
            close(stranger);
        }
        if (silent >= 0)
            close(silent);
        EXPECT_EQ(rendezvous_share(r.token.c_str(), "group", 1, 2, &fd, 1, 20, nullptr), CASTOR_OK)
            << error_text();
    });
    EXPECT_FALSE(socket_listed(name)) << "the socket goes when all have joined";
}

TEST(StoreOpen, RefusesRanksOutOfRange) {
    Job job(1);
    job.open = false;
    job.run([](Rank &r) {
        EXPECT_EQ(castor_store_open("group", nullptr, 3, 3, 3, &r.store), CASTOR_ERR_ARGUMENT);
        EXPECT_EQ(castor_store_open("group", nullptr, 0, 129, 129, &r.store), CASTOR_ERR_ARGUMENT);
        EXPECT_NE(strstr(error_text(), "at most 128"), nullptr) << error_text();
        EXPECT_EQ(castor_store_open("group", nullptr, 0, 1, 1, &r.store), CASTOR_OK)
            << "one rank needs nobody";
        EXPECT_EQ(castor_barrier(r.store, "alone"), CASTOR_OK);
    });
}

} // namespace
