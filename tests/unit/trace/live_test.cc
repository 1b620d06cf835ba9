/* The live file: what a process says of its groups and waits, as the launcher reads it. */
#include <mutex>
#include "fixture.h"

extern "C" {
#include "launcher/common/live_read.h"
#include "launcher/job/reading.h"
#include "trace/live.h"
}

namespace {

class LiveTest : public TraceTest {
  protected:
    void SetUp() override {
        TraceTest::SetUp();
        trace_start(directory.c_str(), 0, -1);
    }

    std::unique_ptr<live_file> read_live() const {
        auto live = std::make_unique<live_file>();
        auto names = files(LIVE_SUFFIX);
        EXPECT_EQ(names.size(), 1u);
        int fd = names.empty() ? -1 : open(path(names[0]).c_str(), O_RDONLY | O_CLOEXEC);
        EXPECT_TRUE(live_read(fd, live.get()));
        close(fd);
        return live;
    }
    /* Those of a copy that a reader would see. */
    static size_t waits_in(const live_file &live) {
        size_t count = 0;
        for (const live_wait &wait : live.waits)
            count += wait.begin_ns != 0;
        return count;
    }
};

char backend[8];

TEST_F(LiveTest, NothingIsMadeBeforeItIsUsed) {
    live_wait_end(nullptr);
    live_process_group_ended(backend);
    live_stack_update();
    EXPECT_TRUE(files("").empty());
}

TEST_F(LiveTest, TheFileIsTheUsersAlone) {
    mode_t before = umask(0);
    run_child([&] {
        trace_start(directory.c_str(), 1 << 20, 0);
        live_wait_end(live_wait_begin(LIVE_STORE, "the end of backward", 1));
    });
    umask(before);
    auto names = files(LIVE_SUFFIX);
    ASSERT_EQ(names.size(), 1u);
    struct stat status;
    ASSERT_EQ(stat(path(names[0]).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777u, 0600u);
}

TEST_F(LiveTest, GroupsHaveTheNamesAndRanksThatWereAnnounced) {
    int32_t ranks[] = {1, 65, 1023, 5000, -1};
    live_process_group_announce("pair", ranks, 5);
    live_process_group_made(backend, 2, 5);
    live_process_group_made(backend + 1, 2, 5);
    live_process_group_announce("all", nullptr, 0);
    live_process_group_made(backend + 2, 3, 4);
    live_process_group_announce(nullptr, nullptr, 0);
    live_process_group_made(backend + 3, 3, 4); /* not a group of the script's: nobody said so */
    auto live = read_live();
    EXPECT_STREQ(live->groups[0].name, "pair");
    EXPECT_STREQ(live->groups[1].name, "pair backend 2");
    EXPECT_EQ(live->groups[0].rank, 2);
    EXPECT_EQ(live->groups[0].size, 5u);
    EXPECT_EQ(live->groups[0].members[0], 2u);
    EXPECT_EQ(live->groups[0].members[1], 2u);
    EXPECT_EQ(live->groups[0].members[15], UINT64_C(1) << 63);
    EXPECT_EQ(live->groups[2].members[0], 15u);
    EXPECT_EQ(live->groups[3].used, 0u);
    EXPECT_EQ(live->rank, 3); /* the rank in the group of all is the rank of the process */
    EXPECT_EQ(read_only_counters()->rank, 3);
}

TEST_F(LiveTest, CollectivesAreNumberedByGroup) {
    live_process_group_announce("all", nullptr, 0);
    live_process_group_made(backend, 0, 2);
    live_wait *first = live_collective_begin(backend, "allreduce", 64, 1000);
    live_wait *second = live_collective_begin(backend, "broadcast", 8, 2000);
    live_wait *other = live_collective_begin(backend + 1, "allreduce", 8, 3000); /* its making was not seen */
    auto live = read_live();
    EXPECT_EQ(waits_in(*live), 3u);
    EXPECT_EQ(live->groups[0].entered, 2u);
    EXPECT_EQ(live->waits[0].ordinal, 1u);
    EXPECT_EQ(live->waits[1].ordinal, 2u);
    EXPECT_STREQ(live->waits[1].what, "broadcast");
    EXPECT_EQ(live->waits[2].ordinal, 1u);
    EXPECT_STREQ(live->groups[live->waits[2].group].name, "");
    live_wait_end(first);
    live_wait_end(other);
    EXPECT_EQ(waits_in(*read_live()), 1u);
    live_process_group_ended(backend); /* with a work that never ran */
    EXPECT_EQ(waits_in(*read_live()), 0u);
    live_wait_end(second);
}

TEST_F(LiveTest, WhatIsEnqueuedIsRemembered) {
    live_communicator_made(backend, 0x1234, 1, 2);
    for (uint64_t i = 1; i <= LIVE_RECENT_MAX + 2; i++)
        live_wait_end(live_collective_enqueue(backend, i % 2 ? "allreduce" : "broadcast", 64, i * 1000));
    auto live = read_live();
    const live_process_group &group = live->groups[0];
    EXPECT_EQ(waits_in(*live), 0u);
    EXPECT_STREQ(group.name, "1234");
    EXPECT_EQ(group.enqueues, 1u);
    EXPECT_EQ(group.entered, LIVE_RECENT_MAX + 2);
    EXPECT_EQ(group.last_ns, (LIVE_RECENT_MAX + 2) * 1000);
    for (uint64_t ordinal = 3; ordinal <= LIVE_RECENT_MAX + 2; ordinal++) {
        const live_recent &recent = group.recent[ordinal % LIVE_RECENT_MAX];
        EXPECT_EQ(recent.ordinal, ordinal);
        EXPECT_EQ(recent.begin_ns, ordinal * 1000);
        EXPECT_STREQ(recent.what, ordinal % 2 ? "allreduce" : "broadcast");
    }
}

TEST_F(LiveTest, MessagesAreNumberedByChannel) {
    live_process_group_announce("all", nullptr, 0);
    live_process_group_made(backend, 0, 3);
    live_process_group_made(backend + 1, 0, 3);
    EXPECT_EQ(live_message_begin(backend, LIVE_SENT, 1, 0, false, 1000).ordinal, 1u);
    EXPECT_EQ(live_message_begin(backend, LIVE_SENT, 1, 0, false, 1000).ordinal, 2u);
    EXPECT_EQ(live_message_begin(backend, LIVE_SENT, 1, 9, false, 1000).ordinal, 1u);
    EXPECT_EQ(live_message_begin(backend, LIVE_SENT, 2, 0, false, 1000).ordinal, 1u);
    EXPECT_EQ(live_message_begin(backend + 1, LIVE_SENT, 1, 0, false, 1000).ordinal, 1u);
    EXPECT_EQ(live_message_begin(backend, LIVE_RECEIVED, 1, 0, false, 1000).ordinal, 1u);
    EXPECT_EQ(live_message_begin(backend, LIVE_RECEIVED, -1, 0, false, 1000).ordinal, 0u) << "from any rank";
    EXPECT_EQ(live_message_begin(backend + 2, LIVE_SENT, 1, 0, false, 1000).ordinal, 0u) << "no such group";
    live_message third = live_message_begin(backend, LIVE_RECEIVED, 1, 0, false, 1000);
    live_wait *wait = live_receive_begin(&third, "recv", 2000);
    auto live = read_live();
    EXPECT_EQ(live->waits[0].ordinal, 2u);
    EXPECT_EQ(live->waits[0].peer, 1);
    bool lost = false;
    EXPECT_EQ(job_messages_begun(live.get(), &live->groups[0], LIVE_SENT, 1, 0, &lost), 2u);
    EXPECT_EQ(job_messages_begun(live.get(), &live->groups[1], LIVE_SENT, 1, 0, &lost), 1u);
    live_wait_end(wait);
    live_process_group_ended(backend);
    live_process_group_made(backend, 0, 3); /* another group at this address */
    EXPECT_EQ(live_message_begin(backend, LIVE_SENT, 1, 0, false, 1000).ordinal, 1u);
    live_process_group_announce(nullptr, nullptr, 0);
}

TEST_F(LiveTest, MessagesBeyondThePlacesAreNotCounted) {
    live_process_group_announce("all", nullptr, 0);
    live_process_group_made(backend, 0, 2);
    live_process_group_announce(nullptr, nullptr, 0);
    for (unsigned tag = 0; tag < LIVE_CHANNELS_MAX; tag++)
        EXPECT_EQ(live_message_begin(backend, LIVE_SENT, 1, (int)tag, false, 1000).ordinal, 1u);
    EXPECT_EQ(read_live()->channels_lost, 0u);
    EXPECT_EQ(live_message_begin(backend, LIVE_SENT, 1, 1 << 20, false, 1000).ordinal, 0u);
    auto live = read_live();
    bool lost = false;
    EXPECT_EQ(job_messages_begun(live.get(), &live->groups[0], LIVE_SENT, 1, 1 << 20, &lost), 0u);
    EXPECT_TRUE(lost);
}

TEST_F(LiveTest, MoreWaitsThanPlacesAreNotSaid) {
    std::vector<live_wait *> waits;
    for (unsigned i = 0; i < LIVE_WAITS_MAX; i++)
        waits.push_back(live_wait_begin(LIVE_STORE, "a barrier", 1 + i));
    EXPECT_EQ(live_wait_begin(LIVE_STORE, "a barrier", 1), nullptr);
    live_wait_end(waits[7]);
    EXPECT_EQ(live_wait_begin(LIVE_STORE, "a barrier", 1), waits[7]);
    for (live_wait *wait : waits)
        live_wait_end(wait);
}

TEST_F(LiveTest, AChildHasAFileOfItsOwn) {
    live_wait_end(live_wait_begin(LIVE_STORE, "a barrier", 1));
    run_child([] {
        trace_fork_child();
        live_wait *wait = live_wait_begin(LIVE_STORE, "its own", 1);
        EXPECT_NE(wait, nullptr);
    });
    EXPECT_EQ(files(LIVE_SUFFIX).size(), 2u);
}

/* What the thread castor-stack was told: ThreadSanitizer does not see that the live file orders the two. */
std::mutex told_lock;
std::string told_path;

std::string told() {
    std::lock_guard<std::mutex> held(told_lock);
    return told_path;
}

void tell(const char *path) {
    std::lock_guard<std::mutex> held(told_lock);
    told_path = path;
}

TEST_F(LiveTest, AStackIsToldOnceWhenItIsWanted) {
    live_wait_end(live_wait_begin(LIVE_STORE, "a barrier", 1));
    EXPECT_EQ(read_live()->stack_able, 0u);
    live_stack_teller_set(tell);
    EXPECT_EQ(read_live()->stack_able, 1u);
    live_stack_update();
    std::string file = path(files(LIVE_SUFFIX)[0]);
    ASSERT_TRUE(live_ask_stack(file.c_str(), 1));
    EXPECT_NE(read_live()->stack_given, 1u);
    live_stack_update();
    live_stack_update();
    for (int i = 0; i < 3000 && read_live()->stack_given != 1; i++)
        usleep(10000);
    EXPECT_EQ(read_live()->stack_given, 1u);
    EXPECT_EQ(told(), file.substr(0, file.size() - strlen(LIVE_SUFFIX)) + LIVE_STACK_SUFFIX);
    tell("");
    live_stack_update(); /* nothing is wanted any more */
    usleep(20000);
    EXPECT_EQ(told(), "");
    live_stack_teller_set(nullptr);
    EXPECT_EQ(read_live()->stack_able, 0u);
}

TEST_F(LiveTest, FilesThatAreNone) {
    live_file none = {};
    EXPECT_FALSE(live_read(-1, &none));
    live_wait *wait = live_wait_begin(LIVE_STORE, "a\nbarrier", 1);
    std::string file = path(files(LIVE_SUFFIX)[0]);
    EXPECT_STREQ(read_live()->waits[0].what, "a?barrier");
    wait->kind = 99;
    wait->group = 1 << 20;
    auto live = read_live();
    EXPECT_EQ(live->waits[0].begin_ns, 0u);
    EXPECT_EQ(live->waits[0].group, LIVE_PROCESS_GROUP_UNKNOWN);
    live_wait_end(wait);
    ASSERT_EQ(truncate(file.c_str(), sizeof(live_file) - 1), 0);
    int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_FALSE(live_read(fd, &none));
    close(fd);
}

TEST(JobRanks, AreWrittenShortly) {
    job_process processes[7] = {};
    const int ranks[] = {0, 1, 2, 5, INT32_MAX - 1, INT32_MAX, -1}; /* damaged files tell any rank */
    for (int i = 0; i < 7; i++)
        processes[i].rank = ranks[i];
    processes[6].pid = 77;
    job_reading look = {};
    look.processes = processes;
    look.count = 7;
    const size_t indices[] = {0, 1, 2, 3, 4, 5, 6};
    char text[256];
    job_ranks_text(&look, indices, 7, text, sizeof text);
    EXPECT_STREQ(text, "0 to 2, 5, 2147483646, 2147483647 and process 77");
}

} // namespace
