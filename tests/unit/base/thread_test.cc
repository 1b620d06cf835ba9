// Memory of each thread.
#include <gtest/gtest.h>
#include <pthread.h>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <sys/mman.h>

extern "C" {
#include "base/error.h"
#include "base/thread.h"
}

namespace {

TEST(ThreadRoom, EachThreadHasItsOwn) {
    char *own = static_cast<char *>(thread_room(THREAD_ROOM_OPTION));
    memset(own, 'x', THREAD_ROOM_BYTES);
    EXPECT_EQ(thread_room(THREAD_ROOM_OPTION), own);
    error_set(CASTOR_ERR_ARGUMENT, "of %s", "this one");
    std::thread([&] {
        char *other = static_cast<char *>(thread_room(THREAD_ROOM_OPTION));
        EXPECT_NE(other, own);
        EXPECT_EQ(std::string(other, THREAD_ROOM_BYTES), std::string(THREAD_ROOM_BYTES, '\0'));
        EXPECT_STREQ(error_text(), "");
        error_set(CASTOR_ERR_ARGUMENT, "of the other");
    }).join();
    EXPECT_STREQ(error_text(), "of this one");
    EXPECT_EQ(own[THREAD_ROOM_BYTES - 1], 'x');
}

TEST(ThreadRoom, PurposesDoNotOverlap) {
    uintptr_t at[THREAD_ROOMS];
    for (int id = 0; id < THREAD_ROOMS; id++)
        at[id] = reinterpret_cast<uintptr_t>(thread_room(static_cast<thread_room_id>(id)));
    for (int a = 0; a < THREAD_ROOMS; a++)
        for (int b = 0; b < a; b++)
            EXPECT_GE(at[a] > at[b] ? at[a] - at[b] : at[b] - at[a], THREAD_ROOM_BYTES);
}

TEST(ThreadRoom, EndsWithTheThread) {
    void *room = nullptr;
    std::thread([&] { room = thread_room(THREAD_ROOM_ERROR); }).join();
    unsigned char resident;
    EXPECT_EQ(mincore(room, 4096, &resident), -1);
    EXPECT_EQ(errno, ENOMEM);
}

} // namespace
