#include "updates.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"

#define PIECE_ELEMENTS   65536 /* of one thread at a time: 0.1 ms, and it fits into no cache that others use */
#define LOOK_NS          20000 /* how often a thread looks whether the device has come to a batch */
#define TRIED_NS         UINT64_C(2000000000)
#define SETTLE_NS        UINT64_C(60000000000)
#define THREADS_MAX      256
#define COUNTER_DISTANCE 16 /* in numbers: each has cache lines of its own */
#define COUNTERS_BYTES   (sizeof(uint64_t) * 2 * COUNTER_DISTANCE)

typedef struct update {
    update_step step;
    kernel_range range;
    uint64_t ready;     /* it may begin when `reached` has this value */
    uint64_t first;     /* the number of the first one of its batch */
    size_t begun, over; /* elements */
} update;

struct updates {
    pthread_mutex_t
        adding; /* the outer one: the driver may wait for a stream that waits for the threads, so they need nothing of it */
    pthread_mutex_t lock;
    pthread_cond_t work, progress; /* something was added; something is over */
    device_driver driver;
    homes *homes;
    int device;
    int threads;             /* 0: none yet */
    uint32_t delay_us;       /* atomic */
    bool polled;             /* a thread looks at `reached` */
    bool stopped;            /* the process ends: nothing begins any more */
    uint32_t running, alive; /* threads */
    uint64_t *numbers;       /* by unit of homes: the last update that touches its home. Atomic */
    uint64_t added,
        taken; /* the numbers of the last update added; of the last one with no element left to begin */
    uint64_t batches;
    volatile uint64_t *reached, *done; /* counters: of batches, that streams write; of updates */
    double (*late)[2];                 /* by number, as the ring; streams write them */
    update *ring;                      /* by number, modulo UPDATES_MAX */
    updates_statistics statistics;
    uint64_t block; /* the counters' */
    updates *next;
};

uint32_t updates_open;
static updates *all; /* what ends with the process */
static pid_t all_of; /* the process that has them */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static void *map(size_t bytes) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static update *update_at(updates *u, uint64_t number) {
    return &u->ring[number % UPDATES_MAX];
}

static uint64_t done_of(const updates *u) {
    return __atomic_load_n(u->done, __ATOMIC_ACQUIRE);
}

static size_t param_bytes(const update_step *step) {
    return kernel_dtype_bytes((kernel_dtype)step->numbers.common.param_dtype);
}

static size_t grad_bytes(const update_step *step) {
    return kernel_dtype_bytes((kernel_dtype)step->numbers.common.grad_dtype);
}

static uint64_t now(const updates *u) {
    return u->driver.now_ns(u->driver.context);
}

/* ---- the processors ---- */

/* The bounds of pieces are whole cache lines, and change no result (kernels/optimizer.h). */
static kernel_range piece_of(const update *one, size_t begin, size_t count) {
    kernel_range some = one->range;
    some.param = (char *)some.param + begin * param_bytes(&one->step);
    some.grad = (const char *)some.grad + begin * grad_bytes(&one->step);
    if (some.master)
        some.master += begin;
    for (int i = 0; i < KERNEL_OPTIMIZER_STATES; i++)
        if (some.states[i])
            some.states[i] += begin;
    some.offset += begin;
    some.count = count;
    return some;
}

/* The numbers of a step whose count the device has, as PyTorch's function for the CPU has them. */
static void count_adam(kernel_adam *adam, const update_step *step, double count) {
    adam->root_divisor = __builtin_sqrt(1 - step->power(step->beta2, count));
    adam->negative_step = -(step->lr / (1 - step->power(step->beta1, count)));
}

static void run(const update_step *step, const double late[2], const kernel_range *range) {
    kernel_host host = {.threads = 1, .roots = step->has_roots ? &step->roots : NULL};
    if (range->master)
        kernel_settle((kernel_dtype)step->numbers.common.param_dtype, range->master, range->param,
                      range->count);
    kernel_adam adam = step->numbers.adam;
    if (step->late == UPDATE_LATE)
        adam.root_divisor = late[0], adam.negative_step = late[1];
    else if (step->late == UPDATE_COUNTED)
        count_adam(&adam, step, late[0]);
    switch (step->kind) {
    case UPDATE_ADAM:
        kernel_adam_step(&adam, range, 1, &host);
        break;
    case UPDATE_SGD:
    case UPDATE_SUM:
        kernel_sgd_step(&step->numbers.sgd, range, 1, &host);
        break;
    }
}

/* Whether a piece of the next update may begin. */
static bool can_begin(const updates *u, const update *next) {
    return next->first - 1 <= *u->done && *u->reached >= next->ready;
}

/* The updates that are over and follow each other are counted. */
static void count_over(updates *u) {
    uint64_t number = *u->done, before = number;
    while (number < u->added && update_at(u, number + 1)->over == update_at(u, number + 1)->range.count)
        number++;
    if (number == before)
        return;
    __atomic_store_n(u->done, number, __ATOMIC_RELEASE);
    __atomic_sub_fetch(&updates_open, (uint32_t)(number - before), __ATOMIC_RELEASE);
    pthread_cond_broadcast(&u->progress);
    pthread_cond_broadcast(&u->work); /* a batch may wait for the one before */
}

/* Locked. One of those who wait looks at the counter of batches, which nobody tells of. */
static void wait_for_work(updates *u) {
    bool waits = u->taken < u->added && update_at(u, u->taken + 1)->first - 1 <= *u->done;
    if (!waits || u->polled) {
        pthread_cond_wait(&u->work, &u->lock);
        return;
    }
    u->polled = true;
    pthread_mutex_unlock(&u->lock);
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    pthread_mutex_lock(&u->lock);
    u->polled = false;
    if (can_begin(u, update_at(u, u->taken + 1)))
        pthread_cond_broadcast(&u->work);
}

static void be_late(const updates *u) {
    uint64_t most = __atomic_load_n(&u->delay_us, __ATOMIC_RELAXED);
    if (__builtin_expect(most != 0, 0))
        nanosleep(&(struct timespec){.tv_nsec = (long)(now(u) * 0x9E3779B97F4A7C15u % (1000 * most))}, NULL);
}

static void *worker(void *u_) {
    updates *u = u_;
    pthread_mutex_lock(&u->lock);
    while (!u->stopped) {
        update *next = update_at(u, u->taken + 1);
        if (u->taken == u->added || !can_begin(u, next)) {
            wait_for_work(u);
            continue;
        }
        const double *of_next = u->late[(u->taken + 1) % UPDATES_MAX];
        size_t begin = next->begun, left = next->range.count - begin;
        size_t count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
        next->begun += count;
        u->taken += next->begun == next->range.count;
        u->running++;
        pthread_mutex_unlock(&u->lock);

        be_late(u);
        kernel_range piece = piece_of(next, begin, count);
        run(&next->step, of_next, &piece);

        pthread_mutex_lock(&u->lock);
        u->running--;
        next->over += count;
        u->statistics.elements += next->step.kind == UPDATE_SUM ? 0 : count;
        count_over(u);
        if (u->stopped)
            pthread_cond_broadcast(&u->progress);
    }
    u->alive--;
    pthread_cond_broadcast(&u->progress);
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

static castor_status threads_start(updates *u, int threads) {
    int wanted = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads, failed = 0;
    while (u->threads < wanted && !(failed = thread_start(worker, u)))
        u->threads++, u->alive++;
    return u->threads ? CASTOR_OK
                      : error_set(CASTOR_ERR_SYSTEM, "there is no thread for steps on the host: %s",
                                  strerror(failed));
}

/* What is left is for nobody to see; streams that wait for it must not keep the driver from ending. */
static void stop(updates *u) {
    pthread_mutex_lock(&u->lock);
    u->stopped = true;
    pthread_cond_broadcast(&u->work);
    while (u->running)
        pthread_cond_wait(&u->progress, &u->lock);
    __atomic_sub_fetch(&updates_open, (uint32_t)(u->added - *u->done), __ATOMIC_RELEASE);
    __atomic_store_n(u->done, u->added, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&u->progress);
    pthread_mutex_unlock(&u->lock);
}

static void stop_all(void) {
    if (getpid() != all_of)
        return; /* a child's copy, whose locks nobody may give back */
    pthread_mutex_lock(&all_lock);
    for (updates *u = all; u; u = u->next)
        stop(u);
    pthread_mutex_unlock(&all_lock);
}

static void remember(updates *u) {
    static bool known; /* guarded by the lock */
    pthread_mutex_lock(&all_lock);
    u->next = all;
    all = u;
    if (!known)
        atexit(stop_all);
    known = true;
    all_of = getpid();
    pthread_mutex_unlock(&all_lock);
}

static void forget(const updates *u) {
    pthread_mutex_lock(&all_lock);
    updates **at = &all;
    while (*at && *at != u)
        at = &(*at)->next;
    if (*at)
        *at = u->next;
    pthread_mutex_unlock(&all_lock);
}

/* ---- the device ---- */

/* A stream writes one counter after it has waited for the other. */
static castor_status counters_try(updates *u) {
    uint64_t stream, begin = now(u);
    const device_driver *d = &u->driver;
    castor_status status = d->stream_make(d->context, u->device, &stream);
    if (status)
        return status;
    status = d->value_wait(d->context, u->device, (uintptr_t)u->done, 1, stream);
    if (!status)
        status = d->value_write(d->context, u->device, (uintptr_t)u->reached, 1, stream);
    __atomic_store_n(u->done, 1, __ATOMIC_RELEASE);
    while (!status && *u->reached != 1) {
        if (now(u) - begin > TRIED_NS)
            status = error_set(CASTOR_ERR_UNSUPPORTED, "device %d does not write a number that the host sees",
                               u->device);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    d->stream_end(d->context, stream);
    *u->reached = 0;
    __atomic_store_n(u->done, 0, __ATOMIC_RELEASE);
    return status;
}

static size_t block_bytes(const device_driver *driver, int device) {
    size_t unit = driver->granularity(driver->context, device);
    return (COUNTERS_BYTES + UPDATES_MAX * sizeof(double[2]) + unit - 1) / unit * unit;
}

castor_status updates_create(updates **out, homes *h, const device_driver *driver, int device) {
    uintptr_t counters = 0;
    if (!homes_are_fixed(h) && !driver->host_is_reached(driver->context, device))
        return error_set(CASTOR_ERR_UNSUPPORTED,
                         "the processors do not reach what device %d maps of the host", device);
    updates *u = map(sizeof *u);
    if (!u)
        return error_set(CASTOR_ERR_MEMORY, "there is no memory for steps on the host");
    u->driver = *driver;
    u->device = device;
    u->homes = h;
    pthread_mutex_init(&u->adding, NULL);
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->work, NULL);
    pthread_cond_init(&u->progress, NULL);
    u->numbers = map(homes_units(h) * sizeof *u->numbers);
    u->ring = map(UPDATES_MAX * sizeof *u->ring);
    castor_status status = CASTOR_OK;
    if (!u->numbers || !u->ring)
        status = error_set(CASTOR_ERR_MEMORY, "there is no memory for steps on the host");
    if (!status)
        status =
            driver->host_make(driver->context, device, block_bytes(driver, device), &counters, &u->block);
    if (!status) {
        u->done = (volatile uint64_t *)counters;
        u->reached = u->done + COUNTER_DISTANCE;
        u->late = (double(*)[2])(counters + COUNTERS_BYTES);
        *u->done = *u->reached = 0;
        status = counters_try(u);
    }
    if (status) {
        updates_destroy(u);
        return status;
    }
    remember(u);
    *out = u;
    return CASTOR_OK;
}

void updates_destroy(updates *u) {
    forget(u);
    if (u->done) {
        stop(u);
        pthread_mutex_lock(&u->lock);
        while (u->alive)
            pthread_cond_wait(&u->progress, &u->lock);
        pthread_mutex_unlock(&u->lock);
        u->driver.host_end(u->driver.context, u->device, u->block);
    }
    if (u->numbers)
        munmap(u->numbers, homes_units(u->homes) * sizeof *u->numbers);
    if (u->ring)
        munmap(u->ring, UPDATES_MAX * sizeof *u->ring);
    munmap(u, sizeof *u);
}

/* Locked. Until as many numbers are free. */
static castor_status room_wait(updates *u, uint32_t count) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(SETTLE_NS / 1000000000u);
    while (u->added + count - *u->done > UPDATES_MAX)
        if (pthread_cond_timedwait(&u->progress, &u->lock, &until))
            return error_set(CASTOR_ERR_TIMEOUT, "device %d: %llu steps on the host are not over within %d s",
                             u->device, (unsigned long long)(u->added - *u->done),
                             (int)(SETTLE_NS / 1000000000u));
    return CASTOR_OK;
}

/* Every home of a range has the number from now on. */
static void number_set(updates *u, uintptr_t address, size_t bytes, uint64_t number) {
    home found;
    for (uintptr_t at = address; at < address + bytes; at = found.address + found.bytes) {
        if (!home_find(u->homes, at, &found))
            return;
        uint32_t first = homes_unit(u->homes, found.address);
        uint32_t last = homes_unit(u->homes, found.address + found.bytes - 1);
        for (uint32_t unit = first; unit <= last; unit++)
            __atomic_store_n(&u->numbers[unit], number, __ATOMIC_RELAXED);
    }
}

/* What the updates that come are to know, from the device. */
static castor_status late_copy(updates *u, uintptr_t late, uint32_t count, uint64_t stream) {
    const device_driver *d = &u->driver;
    castor_status status = CASTOR_OK;
    for (uint32_t at = 0, some; at < count && !status; at += some) {
        uint64_t place = (u->added + 1 + at) % UPDATES_MAX;
        some = count - at < UPDATES_MAX - place ? count - at : (uint32_t)(UPDATES_MAX - place);
        status = d->copy_enqueue(d->context, u->device, (uintptr_t)u->late[place],
                                 late + at * sizeof *u->late, some * sizeof *u->late, stream);
    }
    return status;
}

static void update_add(updates *u, const update_step *step, const kernel_range *range, uint64_t first) {
    update *one = update_at(u, ++u->added);
    *one = (update){.step = *step, .range = *range, .ready = u->batches, .first = first};
    size_t bytes = range->count * sizeof(float);
    number_set(u, (uintptr_t)range->param, range->count * param_bytes(step), u->added);
    number_set(u, (uintptr_t)range->grad, range->count * grad_bytes(step), u->added);
    if (range->master)
        number_set(u, (uintptr_t)range->master, bytes, u->added);
    for (int i = 0; i < KERNEL_OPTIMIZER_STATES; i++)
        if (range->states[i])
            number_set(u, (uintptr_t)range->states[i], bytes, u->added);
}

/* Enqueues what the next batch waits for. */
static castor_status batch_announce(updates *u, uintptr_t late, uint32_t count, uint64_t stream) {
    const device_driver *d = &u->driver;
    castor_status status = CASTOR_OK;
    if (u->batches) /* another stream may be to write the number before */
        status = d->value_wait(d->context, u->device, (uintptr_t)u->reached, u->batches, stream);
    if (!status && late)
        status = late_copy(u, late, count, stream);
    return status ? status
                  : d->value_write(d->context, u->device, (uintptr_t)u->reached, u->batches + 1, stream);
}

/* Locked. */
static void batch_add(updates *u, const update_step *step, const kernel_range *ranges, uint32_t count) {
    uint64_t first = u->added + 1;
    u->batches++;
    __atomic_add_fetch(&updates_open, count, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < count; i++)
        update_add(u, step, &ranges[i], first);
    u->statistics.updates += step->kind == UPDATE_SUM ? 0 : count;
    count_over(u); /* those of no element */
    pthread_cond_broadcast(&u->work);
}

castor_status updates_add(updates *u, const update_step *step, const kernel_range *ranges, uint32_t count,
                          uintptr_t late, int threads, uint64_t stream) {
    castor_status status = CASTOR_OK;
    pthread_mutex_lock(&u->adding);
    for (uint32_t at = 0, some; at < count && !status; at += some) {
        some = count - at < UPDATES_MAX / 2 ? count - at : UPDATES_MAX / 2;
        pthread_mutex_lock(&u->lock);
        status = u->threads ? CASTOR_OK : threads_start(u, threads);
        if (!status)
            status = room_wait(u, some);
        pthread_mutex_unlock(&u->lock);
        if (!status)
            status = batch_announce(u, late ? late + at * sizeof *u->late : 0, some, stream);
        if (status)
            break;
        pthread_mutex_lock(&u->lock);
        batch_add(u, step, ranges + at, some);
        pthread_mutex_unlock(&u->lock);
    }
    pthread_mutex_unlock(&u->adding);
    return status;
}

static void wait_for(updates *u, uint64_t number, int device, uint64_t stream) {
    const device_driver *d = &u->driver;
    if (number <= done_of(u) ||
        (d->captures_run(d->context) && d->stream_captures(d->context, device, stream)))
        return;
    __atomic_add_fetch(&u->statistics.waits, 1, __ATOMIC_RELAXED);
    if (d->value_wait(d->context, device, (uintptr_t)u->done, number, stream) && updates_settle(u))
        LOG_E("device %d: %s: what follows may read parameters before their step", u->device, error_text());
}

void updates_wait(updates *u, uintptr_t address, size_t bytes, int device, uint64_t stream) {
    uint64_t last = 0;
    uint32_t first = homes_unit(u->homes, address);
    if (first == HOMES_NO_UNIT)
        return;
    uint32_t end = bytes > 1 ? homes_unit(u->homes, address + bytes - 1) : first;
    for (uint32_t unit = first; unit <= end && unit < homes_units(u->homes); unit++) {
        uint64_t number = __atomic_load_n(&u->numbers[unit], __ATOMIC_RELAXED);
        last = number > last ? number : last;
    }
    wait_for(u, last, device, stream);
}

void updates_wait_all(updates *u, int device, uint64_t stream) {
    wait_for(u, __atomic_load_n(&u->added, __ATOMIC_ACQUIRE), device, stream);
}

castor_status updates_settle(updates *u) {
    pthread_mutex_lock(&u->lock);
    castor_status status = room_wait(u, UPDATES_MAX);
    pthread_mutex_unlock(&u->lock);
    return status;
}

void updates_delay_set(updates *u, uint32_t microseconds) {
    __atomic_store_n(&u->delay_us, microseconds, __ATOMIC_RELAXED);
}

void updates_statistics_get(updates *u, updates_statistics *out) {
    *out = (updates_statistics){0};
    if (!u)
        return;
    pthread_mutex_lock(&u->lock);
    *out = u->statistics;
    pthread_mutex_unlock(&u->lock);
}
