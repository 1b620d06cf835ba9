// The arena against a plain model: random blocks, adoption and forks, with the invariants checked after each
// step.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

extern "C" {
#include "arena/arena.h"
}

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kRetain = 4 * kMiB;
const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

size_t whole_pages(size_t size) {
    return std::max(kPage, (size + kPage - 1) / kPage * kPage);
}

// Without the sanitizers' checks at exit: the parent's threads are not in the child, and count as leaked
// there.
[[noreturn]] void child_exit(int status) {
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

// Writes a block's identity into each of its pages.
void block_fill(void *block, size_t size, uint64_t seed) {
    for (size_t at = 0; at < whole_pages(size); at += kPage)
        *reinterpret_cast<uint64_t *>(static_cast<char *>(block) + at) = seed + at;
}

bool block_holds(const void *block, size_t size, uint64_t seed) {
    for (size_t at = 0; at < whole_pages(size); at += kPage)
        if (*reinterpret_cast<const uint64_t *>(static_cast<const char *>(block) + at) != seed + at)
            return false;
    return true;
}

// Maps a file over a block, as the node store does; the block keeps what it holds.
void block_map_file(void *block, size_t size, uint64_t seed) {
    size_t bytes = whole_pages(size);
    int file = memfd_create("arena-test", MFD_CLOEXEC);
    ASSERT_GE(file, 0);
    ASSERT_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
    ASSERT_EQ(mmap(block, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), block);
    close(file);
    block_fill(block, size, seed);
}

void block_map_anonymous(void *block, size_t size) {
    ASSERT_EQ(mmap(block, whole_pages(size), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0),
              block);
}

size_t resident_bytes(const void *begin, size_t size) {
    std::vector<unsigned char> pages(size / kPage);
    if (mincore(const_cast<void *>(begin), size, pages.data()) != 0)
        return 0;
    return kPage *
           static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1; }));
}

class ArenaTest : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        static bool once = pthread_atfork(arena_fork_prepare, arena_fork_parent, arena_fork_child) == 0;
        ASSERT_TRUE(once);
        ASSERT_EQ(arena_start(kRetain), CASTOR_OK);
    }
    void SetUp() override { arena_get_stats(&before); }
    void TearDown() override {
        EXPECT_TRUE(arena_check());
        arena_stats after = stats();
        EXPECT_EQ(after.blocks, before.blocks) << "the test lost a block";
        EXPECT_EQ(after.adopted_bytes, before.adopted_bytes);
    }
    static arena_stats stats() {
        arena_stats now;
        arena_get_stats(&now);
        return now;
    }
    arena_stats before;
};

struct ModelBlock {
    size_t size;
    uint64_t seed;
    bool adopted;
};

// A file whose owner lends it in pieces to the arena, and writes to those that are not lent.
class Owner {
  public:
    static constexpr size_t kFileBytes = 64 * kMiB;

    Owner() {
        file_ = memfd_create("arena-test", MFD_CLOEXEC);
        EXPECT_EQ(ftruncate(file_, kFileBytes), 0);
        map_ = static_cast<char *>(mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
    }
    ~Owner() {
        for (auto &[offset, piece] : pieces_)
            if (piece->loan.id)
                arena_loan_end(piece->loan.id);
        munmap(map_, kFileBytes);
        close(file_);
    }

    void add(std::vector<size_t> sizes) {
        std::vector<arena_loan> loans;
        for (size_t bytes : sizes) {
            auto piece = std::make_unique<Piece>();
            piece->loan = {file_, end_, bytes, is_idle, piece.get(), 0};
            loans.push_back(piece->loan);
            pieces_[end_] = std::move(piece);
            end_ += bytes;
        }
        ASSERT_LE(end_, kFileBytes);
        ASSERT_EQ(arena_loans_add(loans.data(), static_cast<uint32_t>(loans.size())), CASTOR_OK);
        for (auto &loan : loans) {
            pieces_[loan.offset]->loan = loan;
            write(*pieces_[loan.offset], loan.id);
        }
    }
    void offer(size_t nth) {
        Piece &piece = at(nth);
        piece.idle = false;
        if (!piece.loan.id || piece.offered)
            return;
        ASSERT_TRUE(holds(piece));
        piece.offered = true;
        arena_loan_offer(piece.loan.id);
    }
    void become_idle(size_t nth) { at(nth).idle = true; }
    void recall(size_t nth, uint64_t seed) {
        Piece &piece = at(nth);
        if (!piece.loan.id)
            return;
        ASSERT_EQ(arena_loan_recall(piece.loan.id), CASTOR_OK);
        piece.offered = false;
        write(piece, seed);
    }
    void end(size_t nth) {
        Piece &piece = at(nth);
        if (piece.loan.id)
            arena_loan_end(piece.loan.id);
        piece.loan.id = 0;
        write(piece, 5);
    }
    void write_all(uint64_t seed) { block_fill(map_, kFileBytes, seed); }
    void write_again() {
        for (auto &[offset, piece] : pieces_)
            if (!piece->offered)
                write(*piece, piece->seed);
    }
    bool keeps_what_is_not_lent() const {
        return std::all_of(pieces_.begin(), pieces_.end(),
                           [&](auto &entry) { return entry.second->offered || holds(*entry.second); });
    }
    size_t count() const { return pieces_.size(); }
    size_t room() const { return kFileBytes - end_; }

  private:
    struct Piece {
        arena_loan loan;
        uint64_t seed = 0;
        std::atomic<bool> idle{false};
        bool offered = false;
    };
    static bool is_idle(void *piece) { return static_cast<Piece *>(piece)->idle; }
    Piece &at(size_t nth) { return *std::next(pieces_.begin(), static_cast<long>(nth))->second; }
    void write(Piece &piece, uint64_t seed) {
        piece.seed = seed;
        block_fill(map_ + piece.loan.offset, piece.loan.bytes, seed);
    }
    bool holds(const Piece &piece) const {
        return block_holds(map_ + piece.loan.offset, piece.loan.bytes, piece.seed);
    }

    int file_;
    char *map_;
    size_t end_ = 0;
    std::map<size_t, std::unique_ptr<Piece>> pieces_;
};

struct FreedCall {
    std::vector<void *> blocks;
};

void on_free(void *context, void *block) {
    static_cast<FreedCall *>(context)->blocks.push_back(block);
}

class Model {
  public:
    explicit Model(unsigned seed) : random_(seed) {
        arena_get_stats(&base_);
        lend_more();
    }

    void step() {
        unsigned kind = pick(100);
        if (pick(3) == 0)
            lend();
        if (blocks_.empty() || (kind < 50 && live_ < 96 * kMiB))
            alloc();
        else if (kind < 88)
            free_one(any());
        else if (kind < 94)
            adopt(any());
        else if (kind < 99)
            release(any());
        else
            fork_and_use();
        check();
    }

    void finish() {
        while (!blocks_.empty()) {
            free_one(blocks_.begin());
            check();
        }
    }

    Owner owner;

  private:
    void lend_more() {
        std::vector<size_t> sizes;
        for (size_t total = 0; sizes.size() < 8; total += sizes.back())
            sizes.push_back(kPage * (1 + pick(256)));
        if (owner.room() > 12 * kMiB)
            owner.add(sizes);
    }
    void lend() {
        size_t kind = pick(100), piece = pick(owner.count());
        if (kind < 2)
            lend_more();
        else if (kind < 3)
            owner.end(piece);
        else if (kind < 10)
            owner.recall(piece, random_());
        else if (kind < 20)
            for (size_t i = owner.count(); i-- > 0;)
                owner.recall(i, random_());
        else if (kind < 60)
            for (size_t i = 0; i < owner.count(); i++)
                owner.offer(i);
        else
            for (size_t i = 0; i < owner.count(); i++)
                owner.become_idle(i);
        ASSERT_TRUE(owner.keeps_what_is_not_lent());
    }

    using Blocks = std::map<char *, ModelBlock>;

    size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
    Blocks::iterator any() { return std::next(blocks_.begin(), static_cast<long>(pick(blocks_.size()))); }

    void alloc() {
        size_t size = pick(size_t{1} << (1 + pick(23)));
        auto *block = static_cast<char *>(arena_alloc(size));
        ASSERT_NE(block, nullptr);
        ASSERT_TRUE(arena_owns(block));
        ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % kPage, 0u);
        ASSERT_EQ(arena_block_size(block), whole_pages(size));
        auto after = blocks_.lower_bound(block);
        if (after != blocks_.end()) {
            ASSERT_LE(block + whole_pages(size), after->first);
        }
        if (after != blocks_.begin()) {
            auto previous = std::prev(after);
            ASSERT_LE(previous->first + whole_pages(previous->second.size), block);
        }
        uint64_t seed = random_();
        block_fill(block, size, seed);
        blocks_[block] = {size, seed, false};
        live_ += whole_pages(size);
    }

    void free_one(Blocks::iterator at) {
        auto [block, model] = *at;
        ASSERT_TRUE(block_holds(block, model.size, model.seed));
        freed_.blocks.clear();
        arena_free(block);
        ASSERT_EQ(freed_.blocks.size(), model.adopted ? 1u : 0u);
        if (model.adopted) {
            ASSERT_EQ(freed_.blocks[0], block);
            adopted_ -= whole_pages(model.size);
        }
        ASSERT_EQ(arena_block_size(block), 0u);
        live_ -= whole_pages(model.size);
        blocks_.erase(at);
    }

    void adopt(Blocks::iterator at) {
        auto &[block, model] = *at;
        ASSERT_EQ(arena_adopt(block, on_free, &freed_), model.adopted ? CASTOR_ERR_ARGUMENT : CASTOR_OK);
        if (model.adopted)
            return;
        model.adopted = true;
        adopted_ += whole_pages(model.size);
        block_map_file(block, model.size, model.seed);
    }

    void release(Blocks::iterator at) {
        auto &[block, model] = *at;
        if (!model.adopted)
            return;
        block_map_anonymous(block, model.size);
        block_fill(block, model.size, model.seed);
        arena_release(block);
        model.adopted = false;
        adopted_ -= whole_pages(model.size);
    }

    // The child sees every block, and uses and frees its own copies; the parent's stay.
    void fork_and_use() {
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            bool good = arena_check();
            owner.write_all(7); // as other processes do
            for (auto &[block, model] : blocks_)
                good = good && block_holds(block, model.size, model.seed);
            void *own = arena_alloc(3 * kPage);
            good = good && own;
            if (own)
                block_fill(own, 3 * kPage, 1);
            for (auto &[block, model] : blocks_)
                if (!model.adopted)
                    arena_free(block);
            good = good && own && block_holds(own, 3 * kPage, 1) && arena_check();
            child_exit(good ? 0 : 1);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        owner.write_again(); // the child has written to the file
        ASSERT_EQ(status, 0);
    }

    void check() {
        arena_stats now;
        arena_get_stats(&now);
        ASSERT_TRUE(arena_check());
        ASSERT_EQ(now.blocks - base_.blocks, blocks_.size());
        ASSERT_EQ(now.live_bytes - base_.live_bytes, live_);
        ASSERT_EQ(now.adopted_bytes - base_.adopted_bytes, adopted_);
    }

    std::mt19937_64 random_;
    arena_stats base_;
    Blocks blocks_;
    FreedCall freed_;
    uint64_t live_ = 0, adopted_ = 0;
};

class ArenaPropertyTest : public ArenaTest, public testing::WithParamInterface<unsigned> {};

TEST_P(ArenaPropertyTest, RandomUseMatchesTheModel) {
    Model model(GetParam());
    for (unsigned i = 0; i < 1500 && !HasFatalFailure(); i++) {
        SCOPED_TRACE(testing::Message() << "seed " << GetParam() << ", step " << i);
        model.step();
    }
    EXPECT_TRUE(model.owner.keeps_what_is_not_lent());
    EXPECT_GT(stats().loan_peak_bytes, 0u) << "no block was made on a loan";
    EXPECT_GT(stats().moved_bytes, 0u) << "no block was moved from a loan";
    if (!HasFatalFailure())
        model.finish();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ArenaPropertyTest, testing::Values(1u, 2u, 3u, 20251121u));

TEST_F(ArenaTest, SizesAtTheEdges) {
    EXPECT_EQ(arena_alloc(size_t{1} << 50), nullptr);
    EXPECT_EQ(arena_alloc(SIZE_MAX), nullptr);
    EXPECT_EQ(arena_alloc(arena_region.size + 1), nullptr);
    void *nothing = arena_alloc(0), *page = arena_alloc(kPage), *more = arena_alloc(kPage + 1);
    EXPECT_EQ(arena_block_size(nothing), kPage);
    EXPECT_EQ(arena_block_size(page), kPage);
    EXPECT_EQ(arena_block_size(more), 2 * kPage);
    for (void *block : {nothing, page, more})
        arena_free(block);
    arena_free(nullptr);
}

TEST_F(ArenaTest, WhatIsNoBlockIsReportedAndLeftAlone) {
    auto *block = static_cast<char *>(arena_alloc(4 * kPage));
    testing::internal::CaptureStderr();
    arena_free(block + kPage);
    arena_free(block + 8);
    std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
    EXPECT_EQ(arena_block_size(block), 4 * kPage);
    EXPECT_EQ(arena_block_size(block + kPage), 0u);
    EXPECT_EQ(arena_adopt(block + kPage, on_free, nullptr), CASTOR_ERR_ARGUMENT);
    int on_stack = 0;
    EXPECT_FALSE(arena_owns(&on_stack));
    EXPECT_FALSE(arena_owns(nullptr));
    EXPECT_EQ(arena_adopt(&on_stack, on_free, nullptr), CASTOR_ERR_ARGUMENT);
    arena_free(block);
}

// One training step: activations are made one after another and freed in the reverse order, while gradients
// of other sizes are made and kept until the end.
void training_step(std::mt19937 &random) {
    std::vector<void *> activations, gradients;
    auto make = [&](size_t pages) {
        void *block = arena_alloc(pages * kPage);
        block_fill(block, pages * kPage, 7);
        return block;
    };
    for (int i = 0; i < 40; i++)
        activations.push_back(make(64 + random() % 64));
    while (!activations.empty()) {
        arena_free(activations.back());
        activations.pop_back();
        gradients.push_back(make(16 + random() % 32));
    }
    for (void *gradient : gradients)
        arena_free(gradient);
}

TEST_F(ArenaTest, StepsReuseWhatTheyFreed) {
    std::mt19937 random(5);
    for (int i = 0; i < 4; i++)
        training_step(random);
    arena_stats warm = stats();
    for (int i = 0; i < 10; i++)
        training_step(random);
    arena_stats now = stats();
    EXPECT_GT(now.reuses - warm.reuses, (now.allocations - warm.allocations) * 95 / 100);
}

TEST_F(ArenaTest, ASinglePeakIsForgottenAndItsPagesAreGivenBack) {
    std::mt19937 random(6);
    void *high = arena_alloc(256 * kMiB);
    block_fill(high, 256 * kMiB, 9);
    arena_free(high);
    EXPECT_GE(stats().dirty_bytes, 250 * kMiB);
    for (int i = 0; i < 800; i++)
        training_step(random);
    EXPECT_LT(stats().dirty_bytes, 64 * kMiB);
    EXPECT_LT(resident_bytes(high, 256 * kMiB), 64 * kMiB);
}

TEST_F(ArenaTest, FreedPagesStayUpToALimitWhateverThePeakWas) {
    arena_free(arena_alloc(64 * kMiB));
    EXPECT_GT(stats().dirty_bytes, 2 * kMiB);
    arena_retain_most(2 * kMiB);
    EXPECT_LE(stats().dirty_bytes, 2 * kMiB);
    arena_free(arena_alloc(64 * kMiB));
    EXPECT_LE(stats().dirty_bytes, 2 * kMiB);
    EXPECT_TRUE(arena_check());
    arena_retain_most(UINT64_MAX);
}

TEST_F(ArenaTest, RoomThatIsLentIsNotKept) {
    void *block = arena_alloc(64 * kMiB);
    block_fill(block, 64 * kMiB, 9);
    arena_free(block);
    arena_stats now = stats();
    EXPECT_GE(now.dirty_bytes, 64 * kMiB);
    // All but 8 MiB of what could be kept.
    uint64_t room = kRetain + now.anonymous_peak_bytes - (now.live_bytes - now.adopted_bytes);
    arena_yield(static_cast<int64_t>(room - 8 * kMiB));
    EXPECT_LE(stats().dirty_bytes, 8 * kMiB);
    EXPECT_LE(resident_bytes(block, 64 * kMiB), 8 * kMiB);
    block = arena_alloc(32 * kMiB);
    block_fill(block, 32 * kMiB, 10);
    arena_free(block);
    EXPECT_LE(stats().dirty_bytes, 8 * kMiB) << "what is freed later is not kept either";
    EXPECT_TRUE(arena_check());
    arena_yield(-static_cast<int64_t>(2 * room)); // more than was lent
    EXPECT_EQ(stats().yielded_bytes, 0u);
    block = arena_alloc(64 * kMiB);
    block_fill(block, 64 * kMiB, 11);
    arena_free(block);
    EXPECT_GE(stats().dirty_bytes, 64 * kMiB);
}

// A step of training with loans: activations stay until the backward, which recalls a loan for each of the last ones. Returns the most
// anonymous memory that there was.
uint64_t step_with_loans(Owner &owner, uint64_t seed) {
    std::vector<void *> activations;
    arena_peak_take();
    for (size_t i = 0; i < owner.count(); i++) {
        owner.offer(i);
        owner.become_idle(i);
    }
    for (int i = 0; i < 64; i++) {
        activations.push_back(arena_alloc(kMiB));
        block_fill(activations.back(), kMiB, static_cast<uint64_t>(i));
    }
    for (int i = 64; i-- > 0;) {
        EXPECT_TRUE(block_holds(activations.back(), kMiB, static_cast<uint64_t>(i)));
        arena_free(activations.back());
        activations.pop_back();
        if (i % 2 == 0 && owner.count())
            owner.recall(static_cast<size_t>(i / 2), seed);
    }
    return arena_peak_take();
}

TEST_F(ArenaTest, StepsNeedLessMemoryByWhatIsLent) {
    for (int i = 0; i < 8; i++)
        arena_free(arena_alloc(256 * kMiB)); // what other tests left is forgotten
    Owner owner;
    uint64_t without = 0, with = 0;
    for (int i = 0; i < 20; i++)
        without = step_with_loans(owner, 1);
    owner.add(std::vector<size_t>(32, kMiB));
    for (int i = 0; i < 20; i++)
        with = step_with_loans(owner, 2);
    arena_stats before = stats();
    with = std::max(with, step_with_loans(owner, 3));
    EXPECT_LE(with + 24 * kMiB, without);
    EXPECT_LE(stats().moved_bytes - before.moved_bytes, kMiB);
    EXPECT_LE(stats().purges - before.purges, 1u);
}

// A thread goes on writing to a block while it is moved: nothing that it wrote is lost, and the owner's bytes are its own.
TEST_F(ArenaTest, ABlockIsMovedWhileOthersWriteToIt) {
    Owner owner;
    owner.add({kMiB, kMiB, kMiB, kMiB});
    uint64_t moved = stats().moved_bytes;
    for (uint64_t round = 0; round < 40; round++) {
        for (size_t i = 0; i < owner.count(); i++) {
            owner.offer(i);
            owner.become_idle(i);
        }
        std::vector<void *> fill;
        while (stats().dirty_bytes && fill.size() < 4096)
            fill.push_back(arena_alloc(kPage));
        auto *block = static_cast<std::atomic<uint64_t> *>(arena_alloc(3 * kMiB));
        std::atomic<bool> stop{false};
        std::atomic<uint64_t> passes{0};
        bool lost = false;
        std::thread writer([&] {
            constexpr size_t kStride = 4096 / sizeof(uint64_t);
            for (size_t at = 0; at < 3 * kMiB / 8; at += kStride)
                block[at] = 0;
            for (uint64_t value = 1; !stop || passes < 3; value++, passes++)
                for (size_t at = 0; at < 3 * kMiB / 8; at += kStride)
                    lost = block[at].exchange(value) != value - 1 || lost;
        });
        while (passes < 1)
            std::this_thread::yield();
        for (size_t i = owner.count(); i-- > 0;)
            owner.recall(i, round);
        stop = true;
        writer.join();
        ASSERT_FALSE(lost) << "round " << round;
        ASSERT_TRUE(owner.keeps_what_is_not_lent()) << "round " << round;
        arena_free(block);
        for (void *page : fill)
            arena_free(page);
    }
    EXPECT_GT(stats().moved_bytes, moved);
}

TEST_F(ArenaTest, PeaksForgetWhatIsAdopted) {
    void *parameter = arena_alloc(8 * kMiB), *copy = arena_alloc(4 * kMiB);
    arena_free(copy);
    FreedCall freed;
    ASSERT_EQ(arena_adopt(parameter, on_free, &freed), CASTOR_OK);
    void *activation = arena_alloc(3 * kMiB);
    arena_free(activation);
    activation = arena_alloc(kMiB);
    arena_peaks peaks = arena_peaks_take();
    EXPECT_EQ(peaks.own_bytes, 3 * kMiB);
    EXPECT_EQ(peaks.anonymous_bytes, 3 * kMiB);
    EXPECT_GE(peaks.start_bytes, 12 * kMiB); // the process's: of other tests, too
    EXPECT_EQ(arena_peaks_take().own_bytes, kMiB);
    arena_free(activation);
    arena_free(parameter);
}

TEST_F(ArenaTest, AFreedAdoptedBlockIsAnonymousMemoryAgain) {
    void *block = arena_alloc(kMiB);
    FreedCall freed;
    ASSERT_EQ(arena_adopt(block, on_free, &freed), CASTOR_OK);
    block_map_file(block, kMiB, 3);
    arena_free(block);
    EXPECT_EQ(freed.blocks, std::vector<void *>{block});
    EXPECT_EQ(resident_bytes(block, kMiB), 0u) << "the file is still mapped there";
    EXPECT_TRUE(block_holds(block, 0, 0)) << "fresh anonymous memory is zero";
}

TEST_F(ArenaTest, ThreadsAndForksShareIt) {
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (unsigned t = 0; t < 4; t++)
        threads.emplace_back([t, &wrong] {
            std::mt19937 random(t);
            std::vector<std::pair<void *, size_t>> blocks;
            for (int i = 0; i < 4000; i++) {
                if (blocks.size() < 20 && random() % 2) {
                    size_t size = 1 + random() % (200 * kPage);
                    void *block = arena_alloc(size);
                    if (!block) {
                        wrong[t]++;
                        continue;
                    }
                    block_fill(block, size, t);
                    blocks.emplace_back(block, size);
                } else if (!blocks.empty()) {
                    size_t at = random() % blocks.size();
                    wrong[t] += !block_holds(blocks[at].first, blocks[at].second, t);
                    arena_free(blocks[at].first);
                    blocks.erase(blocks.begin() + static_cast<long>(at));
                }
            }
            for (auto &[block, size] : blocks)
                arena_free(block);
        });
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            void *block = arena_alloc(kMiB);
            bool good = block && arena_check();
            arena_free(block);
            child_exit(good && arena_check() ? 0 : 1);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

} // namespace
