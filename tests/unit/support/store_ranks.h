// Ranks: processes of one test, made with fork, each of which opens the same store with its own rank.
//
// A rank's body uses EXPECT_ and ASSERT_ as any test does; a failure there ends its process with a status that fails the
// test. Ranks tell each other things over flags in shared memory, outside the store. Everything is bounded: a rank that
// does not end is killed by its own alarm, and one whose test process died by the kernel.
#ifndef CASTOR_TESTS_UNIT_SUPPORT_STORE_RANKS_H
#define CASTOR_TESTS_UNIT_SUPPORT_STORE_RANKS_H

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "store_inside.h"
extern "C" {
#include "arena/arena.h"
#include "base/error.h"
#include "job/options.h"
}

namespace store_test {

constexpr size_t kPage = 4096;
constexpr size_t kMiB = 1 << 20;
constexpr int kRanksMax = 4;

// Outside the store, shared by the test process and its ranks.
struct Board {
    std::atomic<uint32_t> flag[64];
    char text[kRanksMax][2048]; // written by its rank before a flag
    double number[kRanksMax];
};

inline Board *board_make() {
    void *memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) Board();
}

inline double now_seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Returns once the flag is at least `value`; the process's alarm bounds the wait.
inline void flag_await(Board *board, int flag, uint32_t value = 1) {
    while (board->flag[flag].load() < value)
        usleep(500);
}
inline void flag_raise(Board *board, int flag) {
    board->flag[flag].fetch_add(1);
}

// Without the sanitizers' checks at exit: memory of the test process counts as leaked here.
[[noreturn]] inline void process_end(int status) {
    fflush(nullptr);
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

inline int process_verdict() {
    return testing::Test::HasFailure() ? 1 : inside_race_reported() ? 66 : 0;
}

struct Rank {
    int rank, world;
    castor_store *store;
    Board *board;
    std::string token;

    void barrier(const char *what = "a barrier of the test") {
        ASSERT_EQ(castor_barrier(store, what), CASTOR_OK) << error_text();
    }
};

struct Job {
    explicit Job(int world) : world(world), board(board_make()) {
        static int count;
        token = "test " + std::to_string(getpid()) + " " + std::to_string(count++);
    }
    ~Job() { munmap(board, sizeof *board); }
    Job(const Job &) = delete;

    int world;
    Board *board;
    std::string token;
    std::vector<std::string> options; // NAME=VALUE
    double timeout_seconds = 20;      // CASTOR_TIMEOUT
    unsigned alarm_seconds = 60;      // no rank lives longer
    bool open = true;                 // the store is open when the body begins
    bool zombies = false;             // ranks that died stay zombies until the others have ended
    std::set<int> killed;             // ranks that must end by SIGKILL
    std::vector<pid_t> pids;

    using Body = std::function<void(Rank &)>;

    void start(const Body &body) {
        fflush(nullptr);
        for (int rank = 0; rank < world; rank++) {
            pid_t parent = getpid(), pid = fork();
            ASSERT_GE(pid, 0);
            if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (getppid() != parent)
                    process_end(1);
                alarm(alarm_seconds);
                rank_main(rank, body);
                process_end(process_verdict());
            }
            pids.push_back(pid);
        }
    }

    // Waits for all ranks; fails the test for each that did not end as it should.
    void finish() {
        std::vector<int> status(pids.size(), -1);
        double until = now_seconds() + alarm_seconds + 10;
        for (size_t left = pids.size(); left;) {
            ASSERT_LT(now_seconds(), until) << "a rank outlived its alarm";
            usleep(2000);
            for (size_t rank = 0; rank < pids.size(); rank++) {
                if (status[rank] != -1 || (zombies && killed.count(int(rank)) && left > killed.size()))
                    continue;
                if (waitpid(pids[rank], &status[rank], WNOHANG) == pids[rank])
                    left--;
                else
                    status[rank] = -1;
            }
        }
        for (size_t rank = 0; rank < pids.size(); rank++) {
            if (killed.count(int(rank))) {
                EXPECT_TRUE(WIFSIGNALED(status[rank]) && WTERMSIG(status[rank]) == SIGKILL)
                    << "rank " << rank << " was to be killed";
                continue;
            }
            if (WIFSIGNALED(status[rank]))
                ADD_FAILURE() << "rank " << rank << " ended by signal " << WTERMSIG(status[rank])
                              << (WTERMSIG(status[rank]) == SIGALRM ? ": it hung" : "");
            else
                EXPECT_EQ(WEXITSTATUS(status[rank]), 0) << "rank " << rank << " failed: see above";
        }
        pids.clear();
    }

    void run(const Body &body) {
        start(body);
        if (!testing::Test::HasFatalFailure())
            finish();
    }

  private:
    void rank_main(int rank, const Body &body) {
        Rank r{rank, world, nullptr, board, token};
        std::vector<std::string> entries = options;
        entries.push_back("CASTOR_JOB=" + token);
        entries.push_back("CASTOR_DEBUG=1");
        char text[64];
        snprintf(text, sizeof text, "CASTOR_TIMEOUT=%.3f", timeout_seconds);
        entries.push_back(text);
        std::vector<char *> block;
        for (std::string &entry : entries)
            block.push_back(entry.data());
        block.push_back(nullptr);
        char message[512];
        ASSERT_EQ(options_load(block.data(), message, sizeof message), CASTOR_OK) << message;
        ASSERT_EQ(arena_start(4 * kMiB), CASTOR_OK);
        if (open) {
            ASSERT_EQ(castor_store_open("group", nullptr, rank, world, world, &r.store), CASTOR_OK)
                << error_text();
        }
        body(r);
    }
};

// A parameter in a block of the arena, as PyTorch's would be.
template <typename T = float> struct Param {
    T *data = nullptr;
    size_t numel = 0;
    castor_tensor *tensor = nullptr;
    castor_tensor_info info = {};

    T &operator[](size_t i) { return data[i]; }
    void look() { castor_tensor_get(tensor, &info); }
    bool mine(const Rank &r) const { return info.owner == r.rank; }
    T *alias() const { return static_cast<T *>(info.param_alias); }
    T *sum() const { return static_cast<T *>(info.sum); }
};

template <typename T> constexpr int32_t dtype_of() {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    return sizeof(T) == 4 ? 0 : 1;
}

template <typename T = float> Param<T> param_make(size_t numel, T first = 0) {
    Param<T> p;
    p.numel = numel;
    p.data = static_cast<T *>(arena_alloc(numel * sizeof(T)));
    EXPECT_NE(p.data, nullptr);
    for (size_t i = 0; i < numel; i++)
        p.data[i] = first + T(i % 1000);
    return p;
}

template <typename T> int params_register_status(const Rank &r, std::vector<Param<T>> &params) {
    std::vector<castor_description> d;
    for (const Param<T> &p : params)
        d.push_back({p.data, p.numel, dtype_of<T>(), 1, 0});
    std::vector<castor_tensor *> out(params.size() + 1);
    int status = castor_register(r.store, d.data(), uint32_t(d.size()), out.data());
    for (size_t i = 0; i < params.size() && status == CASTOR_OK; i++) {
        params[i].tensor = out[i];
        params[i].look();
    }
    return status;
}

template <typename T> void params_register(const Rank &r, std::vector<Param<T>> &params) {
    ASSERT_EQ(params_register_status(r, params), CASTOR_OK) << error_text();
}

// Calls with arrays, for one.

inline castor_status gradient_add(castor_tensor *t, const void *source, double scale, int flags,
                                  uint64_t *ticket, castor_window *window = nullptr) {
    castor_gradient gradient = {t, source, window, bool(flags & ADD_KEEP), 0};
    castor_status status = castor_status(inside_gradient_begin(t, flags));
    if (status == CASTOR_OK)
        status = castor_gradients_add(&gradient, 1, scale);
    *ticket = gradient.ticket;
    return status;
}

inline castor_status window_carry(castor_tensor *t, castor_window *w) {
    castor_gradient gradient = {t, nullptr, w, 0, 0};
    const uint8_t wanted = 1;
    castor_gradients_carry(&t, 1, &wanted);
    return castor_gradients_let_go(&gradient, 1);
}

inline castor_status window_take(castor_tensor *t, castor_window **out, void **address) {
    *out = nullptr;
    return castor_windows_show(&t, 1, out, address);
}

inline castor_status window_refresh(castor_window *w) {
    castor_tensor *none = nullptr;
    void *address;
    return castor_windows_show(&none, 1, &w, &address);
}

inline uint64_t window_edited(castor_window *w) {
    uint64_t bytes;
    castor_windows_edited(&w, 1, &bytes);
    return bytes;
}

// One sum over all ranks, of `scale` * source[i] each.
template <typename T> void sum_run(const Rank &r, Param<T> &p, const T *source, double scale = 1) {
    uint64_t ticket;
    uint8_t used;
    ASSERT_EQ(castor_windows_detach(p.tensor), CASTOR_OK);
    ASSERT_EQ(gradient_add(p.tensor, source, scale, source != nullptr, &ticket), CASTOR_OK);
    ASSERT_EQ(castor_gradients_finish(r.store, &p.tensor, 1, &used), CASTOR_OK) << error_text();
}

// One step of one parameter: the owner writes what `write` does to the alias.
template <typename T>
void step_run(const Rank &r, Param<T> &p, const std::function<void(T *)> &write, uint8_t *changed = nullptr) {
    uint8_t published;
    double value = 1;
    ASSERT_EQ(castor_step_begin(r.store, &value, nullptr, 1, nullptr, 0, nullptr), CASTOR_OK) << error_text();
    if (p.mine(r)) {
        castor_publish_push(&p.tensor, 1);
        write(p.alias());
        castor_publish_mark(&p.tensor, 1);
    }
    ASSERT_EQ(castor_publish_end(r.store, &p.tensor, 1, &published), CASTOR_OK) << error_text();
    if (changed)
        *changed = published;
}

} // namespace store_test
#endif
