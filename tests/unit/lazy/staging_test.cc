// The staging area: processes with blocks of equal and of different contents. What each sees is compared with a copy of its own, and
// what the staging area holds with what it must.
#include <fcntl.h>
#include <sys/stat.h>
#include <map>
#include <memory>
#include <random>
#include "tests/unit/support/store_ranks.h"
extern "C" {
#include "lazy/staging.h"
}

namespace {

using namespace store_test;

// A block of the arena, and what it must hold.
struct Block {
    char *memory;
    std::vector<char> expected;

    explicit Block(size_t bytes) : memory(static_cast<char *>(arena_alloc(bytes))), expected(bytes) {}
    ~Block() { arena_free(memory); }
    Block(const Block &) = delete;

    void fill(uint64_t seed) { fill(0, expected.size(), seed); }
    void fill(size_t from, size_t bytes, uint64_t seed) {
        std::mt19937_64 random(seed);
        for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
            uint64_t word = random();
            memcpy(&expected[from + at], &word, std::min(sizeof word, bytes - at));
        }
        memcpy(memory + from, &expected[from], bytes);
    }
    bool is_right() const { return memcmp(memory, expected.data(), expected.size()) == 0; }
};

uint64_t sweep(std::initializer_list<const Block *> blocks) {
    std::vector<void *> addresses;
    for (const Block *block : blocks)
        addresses.push_back(block->memory);
    return staging_sweep(addresses.data(), static_cast<uint32_t>(addresses.size()));
}

struct StagingJob : Job {
    int fds[2];

    explicit StagingJob(int world) : Job(world) {
        open = false;
        EXPECT_TRUE(staging_index_make(fds));
    }
    ~StagingJob() {
        close(fds[0]);
        close(fds[1]);
    }
    void join() {
        ASSERT_EQ(arena_start(kMiB), CASTOR_OK);
        ASSERT_EQ(staging_join(fds), CASTOR_OK);
    }
    uint64_t held() const {
        struct stat status;
        return fstat(fds[1], &status) == 0 ? uint64_t(status.st_blocks) * 512 : 0;
    }
    // All ranks have come to the point of this number.
    void meet(int point) {
        flag_raise(board, point);
        flag_await(board, point, static_cast<uint32_t>(world));
    }
};

TEST(Staging, EqualBlocksAreKeptOnce) {
    StagingJob job(3);
    job.run([&](Rank &r) {
        job.join();
        Block large(5 * kMiB + 3 * kPage), small(16 * kPage), own(kMiB);
        large.fill(1);
        small.fill(2);
        own.fill(10 + uint64_t(r.rank));
        job.meet(0);
        EXPECT_TRUE(staging_is_shared());
        EXPECT_EQ(sweep({&large, &small, &own}), 6 * kMiB + 19 * kPage);
        job.meet(1);
        EXPECT_EQ(job.held(), 8 * kMiB + 19 * kPage);
        EXPECT_TRUE(large.is_right() && small.is_right() && own.is_right());
        EXPECT_EQ(sweep({&large, &small, &own}), 0u) << "nothing was written since";
        job.meet(2);
        // One rank writes, then all the same.
        if (r.rank == 0)
            large.fill(kPage, 4 * kMiB, 77);
        job.meet(3);
        EXPECT_TRUE(large.is_right());
        sweep({&large});
        EXPECT_TRUE(large.is_right());
        job.meet(4);
        if (r.rank != 0)
            large.fill(kPage, 4 * kMiB, 77);
        sweep({&large});
        EXPECT_TRUE(large.is_right());
        job.meet(5);
        EXPECT_LE(job.held(), 8 * kMiB + 19 * kPage);
    });
}

TEST(Staging, MemoryGoesBackWithTheLastHolder) {
    StagingJob job(2);
    job.run([&](Rank &r) {
        job.join();
        auto block = std::make_unique<Block>(7 * kMiB);
        block->fill(3);
        job.meet(0);
        sweep({block.get()});
        job.meet(1);
        EXPECT_EQ(job.held(), 7 * kMiB);
        job.meet(2);
        if (r.rank == 0)
            block.reset();
        job.meet(3);
        EXPECT_EQ(job.held(), 7 * kMiB);
        EXPECT_TRUE(!block || block->is_right());
        job.meet(4);
        block.reset();
        job.meet(5);
        EXPECT_EQ(job.held(), 0u);
        Block again(7 * kMiB); // the same address: fresh memory
        again.fill(4);
        EXPECT_TRUE(again.is_right());
    });
}

TEST(Staging, ABlockIsTakenOutForAnotherMapping) {
    StagingJob job(2);
    job.run([&](Rank &) {
        job.join();
        Block block(3 * kMiB);
        block.fill(5);
        job.meet(0);
        sweep({&block});
        EXPECT_TRUE(staging_in_use());
        staging_block *taken = staging_take_out(block.memory);
        ASSERT_NE(taken, nullptr);
        EXPECT_FALSE(staging_in_use());
        EXPECT_EQ(staging_take_out(block.memory), nullptr);
        EXPECT_TRUE(block.is_right());
        ASSERT_NE(mmap(block.memory, 3 * kMiB, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                  MAP_FAILED);
        job.meet(1);
        EXPECT_EQ(job.held(), 3 * kMiB);
        job.meet(2);
        staging_leave(taken);
        job.meet(3);
        EXPECT_EQ(job.held(), 0u);
    });
}

TEST(Staging, AForkedChildKeepsWhatItSees) {
    StagingJob job(2);
    job.run([&](Rank &) {
        job.join();
        ASSERT_EQ(pthread_atfork(staging_fork_prepare, staging_fork_parent, staging_fork_child), 0);
        Block block(4 * kMiB);
        block.fill(6);
        job.meet(0);
        sweep({&block});
        job.meet(1);
        int told[2];
        ASSERT_EQ(pipe(told), 0);
        pid_t child = fork();
        if (child == 0) {
            char byte;
            bool good =
                read(told[0], &byte, 1) == 1 && block.is_right() && !staging_in_use() && sweep({&block}) == 0;
            memset(block.memory, 1, kMiB);
            process_end(good ? 0 : 1);
        }
        block.fill(7);
        sweep({&block});
        job.meet(2);
        ASSERT_EQ(write(told[1], "", 1), 1);
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        EXPECT_TRUE(block.is_right());
    });
}

TEST(Staging, OthersGoOnWhenAHolderIsKilled) {
    StagingJob job(2);
    job.killed = {1};
    job.run([&](Rank &r) {
        job.join();
        Block block(4 * kMiB);
        block.fill(8);
        job.meet(0);
        sweep({&block});
        job.meet(1);
        if (r.rank == 1)
            raise(SIGKILL);
        usleep(20000);
        EXPECT_TRUE(block.is_right());
        block.fill(9);
        EXPECT_EQ(sweep({&block}), 4 * kMiB);
        EXPECT_TRUE(block.is_right());
    });
}

// Random fills from few seeds, edits, sweeps and frees: no rank ever sees another's edit.
TEST(Staging, RandomUseShowsWhatWasWritten) {
    for (uint64_t seed = 1; seed <= 2; seed++) {
        StagingJob job(3);
        job.run([&](Rank &r) {
            job.join();
            std::mt19937_64 random(100 * seed + uint64_t(r.rank));
            std::map<int, std::unique_ptr<Block>> blocks;
            job.meet(0);
            for (int turn = 0; turn < 60; turn++) {
                auto &block = blocks[int(random() % 6)];
                if (!block) {
                    block = std::make_unique<Block>(kPage + random() % (3 * kMiB));
                    block->fill(random() % 5);
                }
                switch (random() % 4) {
                case 0:
                    block->fill(random() % 5);
                    break;
                case 1: {
                    size_t from = random() % block->expected.size();
                    block->fill(from, std::min<size_t>(block->expected.size() - from, random() % kMiB),
                                random() % 3);
                    break;
                }
                case 2:
                    sweep({block.get()});
                    break;
                default:
                    if (random() % 3 == 0)
                        block.reset();
                }
                for (const auto &each : blocks)
                    ASSERT_TRUE(!each.second || each.second->is_right())
                        << "seed " << seed << ", turn " << turn;
            }
            ASSERT_TRUE(arena_check());
            blocks.clear();
            job.meet(1);
            EXPECT_EQ(job.held(), 0u);
        });
    }
}

std::atomic<int> asked;

int schedule(int (*call)(void *), void *argument) {
    return call(argument);
}
int count_sweep(void *) {
    asked++;
    return 0;
}

TEST(StagingWatch, ProcessesOfAJobFindEachOtherAndAskForSweeps) {
    Job job(3);
    job.open = false;
    job.run([&](Rank &r) {
        ASSERT_EQ(arena_start(kMiB), CASTOR_OK);
        ASSERT_EQ(staging_watch_start(r.token.c_str(), 8 * kMiB, schedule, count_sweep), CASTOR_OK);
        while (!staging_is_shared())
            usleep(500);
        usleep(20000); // the thread has looked at what this process has
        EXPECT_EQ(asked, 0);
        Block block(32 * kMiB);
        block.fill(1);
        while (!asked)
            usleep(500);
        EXPECT_EQ(sweep({&block}), 32 * kMiB);
        EXPECT_EQ(asked, 1) << "a second one before the first was done";
        staging_watch_done(1);
        staging_watch_stop();
        block.fill(2);
        usleep(20000);
        EXPECT_EQ(asked, 1);
        ASSERT_EQ(staging_watch_start(r.token.c_str(), 8 * kMiB, schedule, count_sweep), CASTOR_OK);
        usleep(20000);
        Block other(32 * kMiB);
        other.fill(3);
        while (asked < 2)
            usleep(500);
        staging_watch_stop();
        flag_raise(r.board, 1);
        flag_await(r.board, 1, 3);
        staging_figures figures;
        staging_get_figures(&figures);
        EXPECT_EQ(figures.made_bytes, 32 * kMiB);
        EXPECT_EQ(figures.found_bytes, 64 * kMiB);
    });
}

} // namespace
