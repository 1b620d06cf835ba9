/* Holds give the bytes of their moment, whoever writes to the memory and in whatever way. */
#include "fixture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <atomic>
#include <random>
#include <thread>

using namespace checkpoint;

namespace {

const size_t kBytes = 5 << 20;

struct Memory {
    explicit Memory(int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1, size_t size = kBytes)
        : bytes(size) {
        data = (char *)mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    }
    ~Memory() { munmap(data, bytes); }
    char *data;
    size_t bytes;
};

std::string bytes_held(hold *h, size_t bytes, size_t piece = 1234567, bool *good = nullptr) {
    std::string out(bytes, 1);
    bool all = true;
    for (size_t at = 0; at < bytes && all; at += piece)
        all = hold_read(h, &out[at], std::min(piece, bytes - at));
    if (good)
        *good = all;
    else
        EXPECT_TRUE(all);
    hold_drop(h);
    return out;
}

hold *take(const void *data, size_t bytes) {
    hold_maps *maps = hold_maps_read();
    hold *h = hold_take(maps, data, bytes);
    hold_maps_free(maps);
    return h;
}

bool guards() {
    Memory memory;
    hold_statistics before, after;
    hold_statistics_get(&before);
    hold_drop(take(memory.data, kBytes));
    hold_statistics_get(&after);
    return after.guarded_bytes > before.guarded_bytes;
}

/* A kernel that cannot guard copies at once; the numbers that follow are then not to be had. */
#define NEEDS_GUARDS()                                                                                       \
    if (!guards())                                                                                           \
    GTEST_SKIP() << "this kernel lets no process guard its memory (userfaultfd)"

TEST(Hold, WritesComeAfterTheCopy) {
    for (size_t offset : {0u, 1u, 4095u, 4096u, 123457u})
        for (int large = 0; large < 2; large++) {
            Memory memory;
            madvise(memory.data, kBytes, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
            std::string expected = bytes_of(1, (int)offset, kBytes);
            memcpy(memory.data, expected.data(), kBytes);
            size_t bytes = kBytes - offset - 77;
            hold *h = take(memory.data + offset, bytes);
            memset(memory.data, 9, kBytes);
            EXPECT_TRUE(bytes_held(h, bytes) == expected.substr(offset, bytes)) << offset;
            EXPECT_EQ(memory.data[kBytes - 1], 9);
        }
    EXPECT_EQ(held_count, 0);
}

TEST(Hold, PagesThatNobodyHasTouched) {
    Memory memory;
    hold *h = take(memory.data, kBytes);
    memset(memory.data, 9, kBytes);
    EXPECT_TRUE(bytes_held(h, kBytes) == std::string(kBytes, 0));
}

TEST(Hold, SystemCallsWait) {
    Memory memory;
    hold *h = take(memory.data, kBytes);
    int fd = open("/proc/self/exe", O_RDONLY);
    ssize_t got = read(fd, memory.data + 4100, kBytes - 5000);
    close(fd);
    ASSERT_GT(got, 100000);
    EXPECT_TRUE(bytes_held(h, kBytes) == std::string(kBytes, 0));
    EXPECT_EQ(memcmp(memory.data + 4100, "\177ELF", 4), 0);
}

TEST(Hold, ThreadsThatWriteAtRandom) {
    Memory memory;
    for (int round = 0; round < 5; round++) {
        std::string expected = bytes_of(round, 1, kBytes);
        memcpy(memory.data, expected.data(), kBytes);
        hold *h = take(memory.data, kBytes);
        std::atomic<bool> ended{false};
        std::vector<std::thread> writers;
        for (int number = 0; number < 3; number++)
            writers.emplace_back([&, number] {
                std::minstd_rand random((unsigned)(round * 10 + number));
                while (!ended)
                    __atomic_fetch_add(&memory.data[random() % kBytes], 1, __ATOMIC_RELAXED);
            });
        EXPECT_TRUE(bytes_held(h, kBytes, 100000) == expected);
        ended = true;
        for (std::thread &writer : writers)
            writer.join();
    }
}

TEST(Hold, TwoOfTheSameMemory) {
    Memory memory;
    hold *first = take(memory.data, kBytes);
    memset(memory.data, 1, kBytes / 2);
    std::string second_bytes(memory.data, kBytes);
    hold *second = take(memory.data, kBytes), *part = take(memory.data + 5000, kBytes / 2);
    memset(memory.data, 2, kBytes);
    EXPECT_TRUE(bytes_held(second, kBytes) == second_bytes);
    EXPECT_TRUE(bytes_held(part, kBytes / 2) == second_bytes.substr(5000, kBytes / 2));
    EXPECT_TRUE(bytes_held(first, kBytes) == std::string(kBytes, 0));
    EXPECT_EQ(held_count, 0);
}

TEST(Hold, WhatIsNotGuardedIsCopiedAtOnce) {
    int fd = memfd_create("other", 0);
    ASSERT_EQ(ftruncate(fd, (off_t)kBytes), 0);
    Memory shared(MAP_SHARED, fd), view(MAP_PRIVATE, fd), small;
    hold *of_shared = take(shared.data, kBytes), *of_view = take(view.data, kBytes),
         *of_small = take(small.data, 200000);
    EXPECT_EQ(held_count, 0);
    memset(shared.data, 1, kBytes); /* shows in the view as well */
    memset(small.data, 1, 200000);
    EXPECT_TRUE(bytes_held(of_shared, kBytes) == std::string(kBytes, 0));
    EXPECT_TRUE(bytes_held(of_view, kBytes) == std::string(kBytes, 0));
    EXPECT_TRUE(bytes_held(of_small, 200000) == std::string(200000, 0));
    close(fd);
}

TEST(Hold, TheStoreIsCopiedBeforeABarrier) {
    NEEDS_GUARDS();
    int fd = memfd_create("castor-param", 0);
    ASSERT_EQ(ftruncate(fd, (off_t)kBytes), 0);
    Memory alias(MAP_SHARED, fd), view(MAP_PRIVATE, fd), own;
    memset(alias.data, 1, kBytes);
    view.data[5000] = 7; /* this process's own page */
    std::string expected(view.data, kBytes);
    hold *h = take(view.data, kBytes), *other = take(own.data, kBytes);
    EXPECT_EQ(held_count, 2);
    memset(view.data + (1 << 20), 3, 100);
    held_before_barrier();
    EXPECT_EQ(held_count, 1) << "only the store's is copied";
    memset(alias.data, 2, kBytes);
    EXPECT_TRUE(bytes_held(h, kBytes) == expected);
    EXPECT_TRUE(bytes_held(other, kBytes) == std::string(kBytes, 0));
    close(fd);
}

TEST(Hold, MemoryThatIsReplaced) {
    NEEDS_GUARDS();
    for (int announced = 0; announced < 2; announced++) {
        Memory memory;
        memset(memory.data, 5, kBytes);
        hold *h = take(memory.data, kBytes);
        if (announced)
            held_before_replacing(memory.data, kBytes);
        ASSERT_EQ(
            mmap(memory.data, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            memory.data);
        bool good;
        std::string out = bytes_held(h, kBytes, kBytes, &good);
        EXPECT_EQ(good, announced) << "other bytes must not pass for the old ones";
        if (announced) {
            EXPECT_TRUE(out == std::string(kBytes, 5));
        }
    }
    EXPECT_EQ(held_count, 0);
}

TEST(Hold, MemoryIsGivenBack) {
    NEEDS_GUARDS();
    uint64_t now, most;
    Memory memory;
    hold *h = take(memory.data, kBytes);
    memset(memory.data, 1, kBytes);
    saved_grains_bytes(&now, &most);
    EXPECT_GE(now, kBytes);
    bytes_held(h, kBytes);
    h = take(memory.data, kBytes);
    memset(memory.data, 1, kBytes);
    hold_drop(h); /* that nobody has read */
    saved_grains_bytes(&now, &most);
    EXPECT_EQ(now, 0u);
    EXPECT_GE(most, kBytes);
}

TEST(Hold, ForkedChildrenHoldNothing) {
    Memory memory;
    hold *h = take(memory.data, kBytes);
    pid_t child = fork();
    if (child == 0) {
        hold_fork_child();
        memset(memory.data, 3, kBytes);
        hold *own = take(memory.data, kBytes);
        memset(memory.data, 4, kBytes);
        std::string out(kBytes, 0);
        _exit(hold_read(own, &out[0], kBytes) && out == std::string(kBytes, 3) ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    memset(memory.data, 1, kBytes);
    EXPECT_TRUE(bytes_held(h, kBytes) == std::string(kBytes, 0));
}

} // namespace
