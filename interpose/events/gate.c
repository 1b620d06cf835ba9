#include "gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"

#define RECORDS   128u
#define YIELDS_NS UINT64_C(200000)   /* so long a closer yields before it sleeps between its looks */
#define LOOK_NS   UINT64_C(50000)    /* that sleep */
#define GONE_NS   UINT64_C(10000000) /* and so often it looks whether the thread it waits for lives */
#define REST_NS   UINT64_C(1000000000)

#define OWN static __thread __attribute__((tls_model("initial-exec")))

/* What the closer sees of a thread. A thread takes a record at its first call and keeps it; the record of a thread that has
 * ended is found by its tid, so that nothing of the thread's own memory is read. Threads that find none share one, whose depth
 * says how many of them are inside. */
typedef struct __attribute__((aligned(64))) gate_record {
    uint32_t depth; /* calls that the thread is inside of; written by it alone */
    uint32_t tid;   /* 0: free */
} gate_record;

bool gate_armed;
static uint32_t closer_tid; /* of the thread that has closed the gate, or is about to; 0: it is open */
static gate_record records[RECORDS], shared;

OWN gate_record *own_record;
OWN uint32_t own_tid;
OWN uint32_t shared_depth; /* of a thread without a record of its own */
OWN uint32_t closer_depth; /* that this thread had when it closed the gate */

static uint32_t tid_now(void) {
    return (uint32_t)syscall(SYS_gettid);
}

static bool thread_is_gone(uint32_t tid) {
    return syscall(SYS_tgkill, getpid(), (int)tid, 0) != 0 && errno == ESRCH;
}

castor_status gate_arm(void) {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) != 0)
        return error_set(CASTOR_ERR_SYSTEM,
                         "the kernel does not let threads be ordered (membarrier): error %d", errno);
    __atomic_store_n(&gate_armed, true, __ATOMIC_RELEASE);
    return CASTOR_OK;
}

static bool record_take(gate_record *record, uint32_t holder) {
    if (!__atomic_compare_exchange_n(&record->tid, &holder, own_tid, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return false;
    __atomic_store_n(&record->depth, 0, __ATOMIC_RELEASE); /* of a thread that ended inside */
    own_record = record;
    return true;
}

/* First one of this tid, whose thread has ended, then a free one, then one of any thread that has ended. */
static gate_record *record_claim(void) {
    int saved_errno = errno;
    own_tid = tid_now();
    for (int round = 0; round < 3 && own_record == NULL; round++)
        for (uint32_t i = 0; i < RECORDS && own_record == NULL; i++) {
            uint32_t holder = __atomic_load_n(&records[i].tid, __ATOMIC_RELAXED);
            if (round == 0 ? holder == own_tid : round == 1 ? holder == 0 : thread_is_gone(holder))
                record_take(&records[i], holder);
        }
    if (own_record == NULL)
        own_record = &shared;
    errno = saved_errno;
    return own_record;
}

static void wake_all(void) {
    syscall(SYS_futex, &closer_tid, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

/* Until `closer` has opened the gate, or has ended without. */
static void wait_opened(uint32_t closer) {
    struct timespec rest = {.tv_sec = (time_t)(REST_NS / 1000000000u)};
    if (syscall(SYS_futex, &closer_tid, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, closer, &rest, NULL, 0) == 0 ||
        errno != ETIMEDOUT || !thread_is_gone(closer))
        return;
    if (__atomic_compare_exchange_n(&closer_tid, &closer, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        wake_all();
}

static void outside_wait(gate_record *own) {
    int saved_errno = errno;
    uint32_t closer;
    while ((closer = __atomic_load_n(&closer_tid, __ATOMIC_ACQUIRE)) != 0 && closer != own_tid) {
        __atomic_store_n(&own->depth, 0, __ATOMIC_RELEASE);
        wait_opened(closer);
        __atomic_store_n(&own->depth, 1, __ATOMIC_RELAXED);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
    }
    errno = saved_errno;
}

static void shared_enter(void) {
    if (shared_depth++ > 0)
        return;
    int saved_errno = errno;
    for (;;) {
        __atomic_add_fetch(&shared.depth, 1, __ATOMIC_SEQ_CST);
        uint32_t closer = __atomic_load_n(&closer_tid, __ATOMIC_SEQ_CST);
        if (closer == 0 || closer == own_tid)
            break;
        __atomic_sub_fetch(&shared.depth, 1, __ATOMIC_RELEASE);
        wait_opened(closer);
    }
    errno = saved_errno;
}

static void shared_leave(void) {
    if (shared_depth > 0 && --shared_depth == 0)
        __atomic_sub_fetch(&shared.depth, 1, __ATOMIC_RELEASE);
}

void gate_pass_in(void) {
    gate_record *own = own_record != NULL ? own_record : record_claim();
    if (__builtin_expect(own == &shared, 0)) {
        shared_enter();
        return;
    }
    uint32_t depth = own->depth;
    __atomic_store_n(&own->depth, depth + 1, __ATOMIC_RELAXED);
    /* The processor may read the closer before others see the depth: the closer's membarrier settles it. */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (depth == 0 && __builtin_expect(__atomic_load_n(&closer_tid, __ATOMIC_ACQUIRE) != 0, 0))
        outside_wait(own);
}

void gate_pass_out(void) {
    gate_record *own = own_record;
    if (__builtin_expect(own == &shared, 0))
        shared_leave();
    else if (own != NULL && own->depth > 0) /* else the call began before the gate was armed */
        __atomic_store_n(&own->depth, own->depth - 1, __ATOMIC_RELEASE);
}

/* The closer counts as outside from gate_close to gate_open, however deep it is. */
static void step_out(gate_record *own) {
    if (own == &shared) {
        closer_depth = shared_depth;
        shared_depth = 0;
        if (closer_depth > 0)
            __atomic_sub_fetch(&shared.depth, 1, __ATOMIC_RELEASE);
    } else {
        closer_depth = own->depth;
        __atomic_store_n(&own->depth, 0, __ATOMIC_RELEASE);
    }
}

static void step_in(gate_record *own) {
    if (own == &shared) {
        shared_depth = closer_depth;
        if (closer_depth > 0)
            __atomic_add_fetch(&shared.depth, 1, __ATOMIC_SEQ_CST);
    } else {
        __atomic_store_n(&own->depth, closer_depth, __ATOMIC_RELAXED);
    }
    closer_depth = 0;
}

/* False: the deadline has passed, and the thread is still inside. */
static bool wait_outside(gate_record *record, uint64_t deadline_ns) {
    uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC), looked_ns = begin_ns;
    while (__atomic_load_n(&record->depth, __ATOMIC_ACQUIRE) != 0) {
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        if (record != &shared && now_ns - looked_ns >= GONE_NS) {
            looked_ns = now_ns;
            uint32_t tid = __atomic_load_n(&record->tid, __ATOMIC_RELAXED);
            if (tid == 0 || thread_is_gone(tid)) { /* nobody who takes the record now gets in */
                __atomic_store_n(&record->depth, 0, __ATOMIC_RELAXED);
                return true;
            }
        }
        if (now_ns >= deadline_ns)
            return false;
        if (now_ns - begin_ns < YIELDS_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = (long)LOOK_NS}, NULL);
    }
    return true;
}

castor_status gate_close(uint64_t timeout_ns) {
    if (!__atomic_load_n(&gate_armed, __ATOMIC_RELAXED))
        return error_set(CASTOR_ERR_UNSUPPORTED, "calls of CUDA do not pass the gate in this process");
    int saved_errno = errno;
    gate_record *own = own_record != NULL ? own_record : record_claim();
    step_out(own);
    uint32_t other = 0;
    while (!__atomic_compare_exchange_n(&closer_tid, &other, own_tid, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
        wait_opened(other);
        other = 0;
    }
    /* From here on each thread either sees the closer, or its depth is seen below. */
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0);
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    uint64_t deadline_ns = timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : UINT64_MAX;
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i <= RECORDS && status == CASTOR_OK; i++) {
        gate_record *record = i < RECORDS ? &records[i] : &shared;
        if (!wait_outside(record, deadline_ns))
            status = error_set(CASTOR_ERR_TIMEOUT, "a call of CUDA by thread %u did not return within %.1f s",
                               __atomic_load_n(&record->tid, __ATOMIC_RELAXED), (double)timeout_ns * 1e-9);
    }
    if (status != CASTOR_OK)
        gate_open();
    errno = saved_errno;
    return status;
}

void gate_open(void) {
    if (__atomic_load_n(&closer_tid, __ATOMIC_RELAXED) != own_tid || own_tid == 0)
        return;
    int saved_errno = errno;
    step_in(own_record);
    __atomic_store_n(&closer_tid, 0, __ATOMIC_SEQ_CST);
    wake_all();
    errno = saved_errno;
}

void gate_reset(void) {
    if (!gate_armed)
        return;
    gate_record *own = own_record;
    bool closed_it = own != NULL && closer_tid == own_tid;
    shared = (gate_record){0};
    for (uint32_t i = 0; i < RECORDS; i++)
        if (&records[i] != own)
            records[i] = (gate_record){0};
    if (own != NULL) {
        own_tid = tid_now();
        if (own == &shared)
            shared.depth = shared_depth > 0;
        else
            own->tid = own_tid;
        if (closed_it)
            step_in(own);
    }
    closer_tid = 0;
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) != 0)
        gate_armed = false; /* nobody can close it here */
}
