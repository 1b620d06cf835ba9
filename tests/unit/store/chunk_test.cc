// The layout of chunks, and pages of views; no other rank needed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstring>
#include <random>
#include <vector>

extern "C" {
#include "arena/pages.h"
#include "base/error.h"
#include "disk/queue.h"
#include "placement/chunk.h"
}

namespace {

constexpr uint64_t kChunk = 64 << 10, kPart = 1 << 24;

class StoreChunk : public testing::Test {
  protected:
    void SetUp() override {
        chunk_table_init(&table, kChunk, kPart);
        for (chunk_list &list : table.list) {
            list.fd = memfd_create("chunk-test", MFD_CLOEXEC);
            ASSERT_EQ(ftruncate(list.fd, off_t(kPart * 4)), 0);
        }
    }
    void TearDown() override {
        for (chunk_list &list : table.list) {
            for (uint32_t i = 0; i < list.count; i++)
                if (list.chunks[i].alias)
                    munmap(list.chunks[i].alias, list.chunks[i].bytes);
            close(list.fd);
        }
    }
    uint64_t place(chunk_kind kind, int owner, size_t bytes, size_t alignment) {
        uint64_t offset = ~0ull;
        EXPECT_EQ(chunk_allocate(&table, kind, owner, bytes, alignment, &offset), CASTOR_OK) << error_text();
        return offset;
    }
    uint64_t resident(chunk_kind kind) const {
        struct stat st;
        fstat(table.list[kind].fd, &st);
        return uint64_t(st.st_blocks) * 512;
    }
    chunk_table table;
};

/* Where the disk's read-ahead is larger, the kernel alone would bring what lies around. */
TEST(StoreChunks, OfUnitsComeOneUnitAtATime) {
    constexpr uint64_t kUnit = 2 << 20, kBytes = 32 << 20;
    chunk_table table;
    chunk_table_init(&table, 4 * kUnit, kBytes);
    table.unit_bytes = kUnit;
    int fd = table.list[CHUNK_PARAM].fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        GTEST_SKIP() << "/var/tmp has no files without names";
    std::vector<char> data(kBytes, 'x');
    ASSERT_EQ(pwrite(fd, data.data(), kBytes, 0), ssize_t(kBytes));
    ASSERT_EQ(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    auto resident = [&] {
        uint64_t found = ~0ull;
        EXPECT_EQ(disk_resident(fd, 0, kBytes, nullptr, &found), CASTOR_OK);
        return found;
    };
    if (resident() != 0)
        GTEST_SKIP() << "/var/tmp is in memory";
    uint64_t offset = 0;
    char *alias = nullptr, *view = nullptr;
    for (int i = 0; i < 2; i++) /* the second chunk lies amid the file */
        ASSERT_EQ(chunk_allocate(&table, CHUNK_PARAM, 0, 4 * kUnit, 4096, &offset), CASTOR_OK);
    ASSERT_EQ(chunk_alias(&table, CHUNK_PARAM, offset, 4 * kUnit, &alias), CASTOR_OK);
    EXPECT_EQ(alias[kUnit], 'x');
    EXPECT_LE(resident(), kUnit);
    alias[0] = 'y';
    EXPECT_LE(resident(), 2 * kUnit);
    ASSERT_EQ(pages_map_view(fd, offset, 4 * kUnit, nullptr, &view), CASTOR_OK);
    chunk_units_map(&table, view, 4 * kUnit);
    EXPECT_EQ(view[0], 'y');
    EXPECT_EQ(view[3 * kUnit + 5], 'x');
    EXPECT_LE(resident(), 3 * kUnit);
    munmap(view, 4 * kUnit);
    munmap(alias, 4 * kUnit);
    close(fd);
}

TEST_F(StoreChunk, FillsAChunkOfTheOwnerBeforeTheNext) {
    EXPECT_EQ(place(CHUNK_GRAD, 0, 100, 64), 0u);
    EXPECT_EQ(place(CHUNK_GRAD, 0, 100, 64), 128u);
    EXPECT_EQ(place(CHUNK_GRAD, 1, 100, 64), kChunk) << "another owner has chunks of its own";
    EXPECT_EQ(place(CHUNK_GRAD, 0, 4096, 4096), 4096u);
    EXPECT_EQ(place(CHUNK_GRAD, 0, kChunk - 8192, 4096), 8192u) << "to the last byte";
    EXPECT_EQ(place(CHUNK_GRAD, 0, 1, 64), 2 * kChunk);
    EXPECT_EQ(table.list[CHUNK_GRAD].count, 3u);
}

TEST_F(StoreChunk, LargeTensorsGetTheirOwnAndDoNotEndTheOneBeingFilled) {
    EXPECT_EQ(place(CHUNK_PARAM, 0, 4096, 4096), 0u);
    EXPECT_EQ(place(CHUNK_PARAM, 0, kChunk + 1, 4096), kChunk);
    EXPECT_EQ(table.list[CHUNK_PARAM].chunks[1].bytes, kChunk + 4096);
    EXPECT_EQ(place(CHUNK_PARAM, 0, 4096, 4096), 4096u);
    EXPECT_EQ(place(CHUNK_PARAM, 0, kChunk, 4096), 2 * kChunk + 4096)
        << "one of exactly a chunk's size begins one";
}

TEST_F(StoreChunk, StatesAreLaidOutByOwnerInPartsOfTheirOwn) {
    EXPECT_EQ(place(CHUNK_OPTIM, 2, 64, 64), 2 * kPart);
    EXPECT_EQ(place(CHUNK_OPTIM, 1, 64, 64), kPart);
    EXPECT_EQ(place(CHUNK_OPTIM, 2, 64, 64), 2 * kPart + 64);
}

TEST_F(StoreChunk, SaysWhenThePartIsFull) {
    for (uint64_t i = 0; i < kPart / kChunk; i++)
        place(CHUNK_OPTIM, 1, kChunk, 4096);
    uint64_t offset;
    EXPECT_EQ(chunk_allocate(&table, CHUNK_OPTIM, 1, 1, 64, &offset), CASTOR_ERR_MEMORY)
        << "it would run into the next owner's part";
    EXPECT_NE(strstr(error_text(), "optimizer state"), nullptr) << error_text();
}

TEST_F(StoreChunk, RandomPlacesAreAlignedAndApart) {
    std::mt19937 random(7);
    struct Range {
        uint64_t from, to;
    };
    std::vector<Range> ranges;
    for (int i = 0; i < 300; i++) {
        size_t alignment = random() % 2 ? 64 : 4096, bytes = 1 + random() % (random() % 20 ? 9000 : 150000);
        uint64_t from = place(CHUNK_PARAM, int(random() % 4), bytes, alignment);
        EXPECT_EQ(from % alignment, 0u);
        for (const Range &other : ranges)
            ASSERT_TRUE(from + bytes <= other.from || from >= other.to);
        ranges.push_back({from, from + bytes});
        char *alias;
        ASSERT_EQ(chunk_alias(&table, CHUNK_PARAM, from, bytes, &alias), CASTOR_OK);
        memset(alias, int(i), bytes);
    }
    for (size_t i = 0; i < ranges.size(); i++) {
        char found[2];
        ASSERT_EQ(pread(table.list[CHUNK_PARAM].fd, &found[0], 1, off_t(ranges[i].from)), 1);
        ASSERT_EQ(pread(table.list[CHUNK_PARAM].fd, &found[1], 1, off_t(ranges[i].to - 1)), 1);
        EXPECT_EQ(found[0], char(i));
        EXPECT_EQ(found[1], char(i));
    }
    char *alias;
    EXPECT_EQ(chunk_alias(&table, CHUNK_PARAM, kPart * 3, 1, &alias), CASTOR_ERR_ARGUMENT);
}

TEST_F(StoreChunk, PunchGivesBackWholePagesInside) {
    uint64_t offset = place(CHUNK_GRAD, 0, 5 * 4096, 64);
    char *alias;
    ASSERT_EQ(chunk_alias(&table, CHUNK_GRAD, offset, 5 * 4096, &alias), CASTOR_OK);
    memset(alias, 1, 5 * 4096);
    EXPECT_EQ(resident(CHUNK_GRAD), 5u * 4096);
    chunk_punch(&table, CHUNK_GRAD, offset + 100, 3 * 4096);
    EXPECT_EQ(resident(CHUNK_GRAD), 3u * 4096);
    EXPECT_EQ(alias[4095], 1);
    EXPECT_EQ(alias[4096], 0);
    EXPECT_EQ(alias[3 * 4096], 1) << "the last page was not wholly inside";
    chunk_punch(&table, CHUNK_GRAD, offset + 1, 100);
    EXPECT_EQ(alias[1], 1);
}

// ---- pages ----

class StorePages : public testing::Test {
  protected:
    static constexpr size_t kPages = 64, kBytes = kPages * PAGE_BYTES;
    void SetUp() override {
        fd = memfd_create("pages-test", MFD_CLOEXEC);
        ASSERT_EQ(ftruncate(fd, off_t(kBytes)), 0);
        ASSERT_EQ(pages_map_alias(fd, 0, kBytes, nullptr, &alias), CASTOR_OK);
        memset(alias, 7, kBytes);
        ASSERT_EQ(pages_map_view(fd, 0, kBytes, nullptr, &view), CASTOR_OK);
    }
    void TearDown() override {
        munmap(view, kBytes);
        munmap(alias, kBytes);
        close(fd);
    }
    int fd;
    char *view, *alias;
};

TEST_F(StorePages, FindsExactlyTheEditedPages) {
    std::mt19937 random(3);
    std::vector<bool> edited(kPages);
    EXPECT_EQ(pages_edited_bytes(view, kBytes), 0u);
    for (size_t page = 0; page < kPages; page++) {
        volatile char read = view[page * PAGE_BYTES]; // reading is no edit
        (void)read;
        if (random() % 3 == 0) {
            edited[page] = true;
            view[page * PAGE_BYTES + random() % PAGE_BYTES] = 9;
        }
    }
    std::vector<bool> found(kPages);
    size_t from = 0;
    for (page_run run; from < kBytes && pages_edited_next(view + from, kBytes - from, &run);) {
        for (char *at = run.start; at < run.start + run.bytes; at += PAGE_BYTES)
            found[size_t(at - view) / PAGE_BYTES] = true;
        from = size_t(run.start + run.bytes - view);
    }
    EXPECT_EQ(found, edited);
}

TEST_F(StorePages, CopyAndDropMoveEditsToTheStore) {
    view[3 * PAGE_BYTES] = 1;
    view[40 * PAGE_BYTES + 5] = 2;
    EXPECT_EQ(alias[3 * PAGE_BYTES], 7);
    EXPECT_EQ(pages_edited_copy(view, alias, kBytes), 2 * PAGE_BYTES);
    EXPECT_EQ(alias[3 * PAGE_BYTES], 1);
    EXPECT_EQ(alias[40 * PAGE_BYTES + 5], 2);
    EXPECT_EQ(pages_edited_drop(view, kBytes), CASTOR_OK);
    EXPECT_EQ(pages_edited_bytes(view, kBytes), 0u);
    alias[3 * PAGE_BYTES] = 4;
    EXPECT_EQ(view[3 * PAGE_BYTES], 4);
}

/* A script that calls mlockall: the kernel refuses to give up locked pages in the usual way. */
TEST_F(StorePages, LockedPagesShowTheStoreAgain) {
    view[3 * PAGE_BYTES] = 1;
    if (mlock(view, kBytes) != 0)
        GTEST_SKIP() << "no memory may be locked here";
    castor_status status = pages_edited_drop(view, kBytes);
    alias[3 * PAGE_BYTES] = 4;
    if (status == CASTOR_OK)
        EXPECT_EQ(view[3 * PAGE_BYTES], 4);
    else /* before Linux 5.18 */
        EXPECT_NE(std::string(error_text()).find("mlockall"), std::string::npos);
    munlock(view, kBytes);
}

TEST_F(StorePages, DropEqualKeepsWhatDiffers) {
    for (size_t page = 10; page < 20; page++)
        view[page * PAGE_BYTES] = page == 15 || page == 19 ? 1 : 7;
    EXPECT_EQ(pages_edited_drop_equal(view, alias, kBytes), CASTOR_OK);
    EXPECT_EQ(pages_edited_bytes(view, kBytes), 2 * PAGE_BYTES);
    EXPECT_EQ(view[15 * PAGE_BYTES], 1);
    EXPECT_EQ(view[19 * PAGE_BYTES], 1);
}

TEST_F(StorePages, PrivateCopiesNoLongerFollowTheStore) {
    view[PAGE_BYTES] = 1;
    ASSERT_EQ(pages_privatize(view, kBytes), CASTOR_OK);
    memset(alias, 2, kBytes);
    EXPECT_EQ(view[0], 7);
    EXPECT_EQ(view[PAGE_BYTES], 1);
    EXPECT_EQ(view[kBytes - 1], 7);
    EXPECT_EQ(pages_edited_bytes(view, kBytes), kBytes);
    ASSERT_EQ(pages_map_zero(view, kBytes), CASTOR_OK);
    EXPECT_EQ(view[0], 0);
}

} // namespace
