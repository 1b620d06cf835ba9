/* The driver of device/ over CUDA, each function by its effect, on simulated devices. Linked with interpose/hooks/cuda/driver.c alone:
 * the library does not export it. Prints `ok TEST` or `FAIL TEST: why`; arguments choose tests. */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/error.h"
#include "base/machine.h"
#include "hooks/cuda/capture.h"
#include "hooks/cuda/driver.h"
#include "shims/cuda/types.h"

#define MIB (1u << 20)

void *hooks_driver_symbol(const char *symbol);
static CUresult elsewhere(CUdeviceptr *on_device, void *address, unsigned flags) {
    *on_device = (uintptr_t)address + 4096 + flags;
    return CUDA_SUCCESS;
}
static CUresult nothing_set(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
    (void)address, (void)value, (void)count, (void)stream;
    return CUDA_SUCCESS;
}
/* BROKEN is of the test: what a driver does not do, though it says so. */
void *hooks_driver_symbol(const char *symbol) {
    const char *broken = getenv("BROKEN");
    if (broken && strcmp(broken, symbol) == 0)
        return strstr(symbol, "Memset") ? (void *)nothing_set : (void *)elsewhere;
    return dlsym(RTLD_DEFAULT, symbol);
}

/* The hooks count captures. */
static bool counted;
bool capture_runs(void) {
    return counted;
}

/* The real functions that tests call beside the driver. */
#define CALL(version, function, symbol, parameters) CUresult symbol parameters;
#include "interpose/hooks/cuda/driver_calls.def"
CUresult cuCtxCreate_v4(CUcontext *, void *, unsigned, CUdevice);
CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
int sim_fault_set(const char *failing, const char *slow);
int sim_hang_set(const char *text);

static const device_driver *d;
static size_t unit;
static char why[512];

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            snprintf(why, sizeof why, "line %d: %s (%s)", __LINE__, #condition, error_text());               \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)
#define WORKS(call)        CHECK((call) == CASTOR_OK)
#define GIVES(call, given) CHECK((call) == (given) && error_text()[0])

static sigjmp_buf fault;

static void on_fault(int signal) {
    (void)signal;
    siglongjmp(fault, 1);
}

static bool faults(uintptr_t address) {
    struct sigaction action = {.sa_handler = on_fault}, before;
    volatile bool faulted = true;
    sigaction(SIGSEGV, &action, &before);
    if (!sigsetjmp(fault, 1)) {
        (void)*(const volatile char *)address;
        faulted = false;
    }
    sigaction(SIGSEGV, &before, NULL);
    return faulted;
}

static uint64_t free_bytes(int device) {
    uint64_t available, total;
    d->room(d->context, device, &available, &total);
    return available;
}

static CUmemLocation_v1 location(uint64_t pages) {
    CUmemAllocationProp_v1 property = {0};
    cuMemGetAllocationPropertiesFromHandle(&property, pages);
    return property.location;
}

/* A home's life: pages of the device, their bytes to pages of the host under another address, and these at the first one. */
static bool memory(void) {
    uintptr_t home, alias;
    uint64_t pages, host, before = free_bytes(1), total;
    size_t bytes = 4 * unit;

    WORKS(d->reserve(d->context, 1, 8 * unit, 64 * MIB, &home));
    CHECK(home % (64 * MIB) == 0);
    WORKS(d->reserve(d->context, 1, 8 * unit, unit, &alias));
    CHECK(faults(home));
    WORKS(d->create(d->context, 1, DEVICE_TIER_DEVICE, bytes, &pages));
    CHECK(location(pages).type == CU_MEM_LOCATION_TYPE_DEVICE && location(pages).id == 1);
    CHECK(free_bytes(1) == before - bytes);
    WORKS(d->map(d->context, 1, home, bytes, pages));
    memset((void *)home, 5, bytes); /* the simulation lets the processor */
    WORKS(d->create(d->context, 1, DEVICE_TIER_HOST, bytes, &host));
    CHECK(location(host).type == CU_MEM_LOCATION_TYPE_HOST_NUMA && free_bytes(1) == before - bytes);
    WORKS(d->map(d->context, 1, alias, bytes, host));
    WORKS(d->copy(d->context, 1, alias, home, bytes));
    CHECK(((char *)alias)[0] == 5 && ((char *)alias)[bytes - 1] == 5);
    GIVES(d->map(d->context, 1, home, bytes, host), CASTOR_ERR_SYSTEM); /* something is mapped there */
    WORKS(d->unmap(d->context, home, bytes));
    CHECK(faults(home));
    d->release(d->context, pages);
    CHECK(free_bytes(1) == before);
    WORKS(d->map(d->context, 1, home, bytes, host)); /* at two addresses */
    WORKS(d->unmap(d->context, alias, bytes));
    d->release(d->context, host); /* mapped pages stay */
    CHECK(((char *)home)[bytes - 1] == 5);
    WORKS(d->unmap(d->context, home, bytes));
    GIVES(d->unmap(d->context, home, bytes), CASTOR_ERR_SYSTEM);
    WORKS(d->unreserve(d->context, home, 8 * unit));
    WORKS(d->unreserve(d->context, alias, 8 * unit));
    GIVES(d->unreserve(d->context, alias, 8 * unit), CASTOR_ERR_SYSTEM);
    d->room(d->context, 1, &before, &total);
    CHECK(total == 512 * MIB && before <= total);
    return true;
}

static bool limits(void) {
    uint64_t pages[2], before = free_bytes(0);
    uintptr_t address;

    GIVES(d->create(d->context, 0, DEVICE_TIER_DEVICE, 1024 * MIB, &pages[0]), CASTOR_ERR_MEMORY);
    CHECK(strstr(error_text(), "1.0 GiB") && strstr(error_text(), "device 0"));
    WORKS(d->create(d->context, 0, DEVICE_TIER_HOST, 96 * MIB, &pages[0]));
    GIVES(d->create(d->context, 0, DEVICE_TIER_HOST, 64 * MIB, &pages[1]),
          CASTOR_ERR_MEMORY); /* SIM_HOST_MEMORY */
    CHECK(strstr(error_text(), "host memory"));
    d->release(d->context, pages[0]);
    CHECK(free_bytes(0) == before);
    WORKS(d->reserve(d->context, 0, unit, unit, &address));
    WORKS(d->create(d->context, 0, DEVICE_TIER_DEVICE, unit, &pages[0]));
    sim_fault_set("cuMemSetAccess:1:999", "");
    GIVES(d->map(d->context, 0, address, unit, pages[0]), CASTOR_ERR_SYSTEM);
    sim_fault_set("", "");
    WORKS(d->map(d->context, 0, address, unit, pages[0])); /* nothing had stayed */
    WORKS(d->unmap(d->context, address, unit));
    d->release(d->context, pages[0]);
    WORKS(d->unreserve(d->context, address, unit));
    GIVES(d->create(d->context, 2, DEVICE_TIER_DEVICE, unit, &pages[0]), CASTOR_ERR_SYSTEM);
    CHECK(d->granularity(d->context, 2) == 0 && error_text()[0]);
    CHECK(d->granularity(d->context, -1) == 0 && d->granularity(d->context, 64) == 0);
    return true;
}

/* A thread keeps the context that it has, also none. */
static bool contexts(void) {
    CUcontext none, own, now;
    uint64_t pages, event, stream, available, total;

    CHECK(cuCtxGetCurrent(&none) == 0 && none == NULL);
    for (int round = 0; round < 2; round++) {
        if (round == 1)
            CHECK(cuCtxCreate_v4(&own, NULL, 0, 1) == 0);
        else
            own = NULL;
        WORKS(d->create(d->context, 0, DEVICE_TIER_DEVICE, unit, &pages));
        WORKS(d->stream_make(d->context, 0, &stream));
        WORKS(d->event_make(d->context, 0, &event));
        WORKS(d->event_record(d->context, 0, event, stream));
        WORKS(d->event_wait(d->context, 0, 0, event));
        CHECK(!d->stream_captures(d->context, 0, stream));
        d->room(d->context, 0, &available, &total);
        WORKS(d->drain(d->context, 0));
        CHECK(d->event_done(d->context, event));
        d->event_end(d->context, event);
        d->stream_end(d->context, stream);
        d->release(d->context, pages);
        CHECK(cuCtxGetCurrent(&now) == 0 && now == own);
    }
    CHECK(cuCtxPopCurrent_v2(&now) == 0 && now == own);
    return true;
}

static bool streams(void) {
    uint64_t first, second, done, never, begin_ns = d->now_ns(d->context);
    CUdeviceptr block;
    CUcontext context;

    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent_v2(context) == 0);
    CHECK(cuMemAlloc_v2(&block, 3 * MIB) == 0);
    WORKS(d->stream_make(d->context, 0, &first));
    WORKS(d->stream_make(d->context, 0, &second));
    WORKS(d->event_make(d->context, 0, &done));
    WORKS(d->event_make(d->context, 0, &never));
    CHECK(first != second && first && d->event_done(d->context, never));
    memset((void *)block, 1, MIB);
    memset((void *)(block + MIB), 2, 2 * MIB);
    sim_fault_set("", "copy:100000");
    WORKS(d->copy_enqueue(d->context, 0, block + MIB, block, MIB, first));
    WORKS(d->event_record(d->context, 0, done, first));
    CHECK(!d->event_done(d->context, done));
    WORKS(d->event_wait(d->context, 0, second, done));
    WORKS(d->copy_enqueue(d->context, 0, block + 2 * MIB, block + MIB, MIB, second));
    CHECK(!d->event_done(d->context, done)); /* the host did not wait */
    WORKS(d->drain(d->context, 0));
    CHECK(d->event_done(d->context, done));
    CHECK(((char *)block)[3 * MIB - 1] == 1); /* the second copy saw the first one's bytes */
    uint64_t now_ns = d->now_ns(d->context);
    CHECK(now_ns >= begin_ns + 200000000);
    sim_fault_set("", "");
    /* The caller of copy waits, and for nothing else. */
    sim_hang_set("copy:1:0");
    WORKS(d->copy_enqueue(d->context, 0, block, block + MIB, MIB, first));
    usleep(50000);
    memset((void *)(block + 2 * MIB), 9, MIB);
    WORKS(d->copy(d->context, 0, block + MIB, block + 2 * MIB, MIB));
    CHECK(((char *)block)[MIB] == 9);
    sim_hang_set("");
    WORKS(d->drain(d->context, 0));
    d->event_end(d->context, done);
    d->event_end(d->context, never);
    d->stream_end(d->context, first);
    d->stream_end(d->context, second);
    CHECK(cuCtxPopCurrent_v2(&context) == 0);
    return true;
}

/* A stream waits for a number that the host writes, and writes one after what it was given before. */
static bool values(void) {
    uint64_t stream, block;
    uintptr_t address;

    CHECK(d->host_is_reached(d->context, 0));
    WORKS(d->stream_make(d->context, 0, &stream));
    WORKS(d->host_make(d->context, 0, unit, &address, &block));
    volatile uint64_t *waited = (volatile uint64_t *)address, *written = waited + 1;
    *waited = *written = 0;
    WORKS(d->value_wait(d->context, 0, (uintptr_t)waited, 7, stream));
    WORKS(d->copy_enqueue(d->context, 0, address + 64, address + 128, 64, stream));
    WORKS(d->value_write(d->context, 0, (uintptr_t)written, UINT64_C(1) << 40, stream));
    *waited = 6;
    usleep(20000);
    CHECK(*written == 0);
    *waited = UINT64_C(1) << 33; /* that or more */
    WORKS(d->drain(d->context, 0));
    CHECK(*written == UINT64_C(1) << 40);
    d->stream_end(d->context, stream);
    WORKS(d->host_end(d->context, 0, block));
    return true;
}

/* Compiled for waits of 3 s (CUDA_DRAIN_NS). */
static bool drains(void) {
    uint64_t stream, event;
    CUdeviceptr block;
    CUcontext context;

    CHECK(cuDevicePrimaryCtxRetain(&context, 1) == 0 && cuCtxPushCurrent_v2(context) == 0);
    CHECK(cuMemAlloc_v2(&block, MIB) == 0 && cuCtxPopCurrent_v2(&context) == 0);
    WORKS(d->stream_make(d->context, 1, &stream));
    WORKS(d->event_make(d->context, 1, &event));
    sim_hang_set("copy:1:1");
    WORKS(d->copy_enqueue(d->context, 1, block, block + MIB / 2, MIB / 2, stream));
    WORKS(d->event_record(d->context, 1, event, stream));
    WORKS(d->drain(d->context, 0)); /* another device does not matter */
    GIVES(d->drain(d->context, 1), CASTOR_ERR_TIMEOUT);
    CHECK(strstr(error_text(), "device 1 did not come to rest"));
    CHECK(!d->event_done(d->context, event));
    sim_hang_set("");
    WORKS(d->drain(d->context, 1));
    CHECK(d->event_done(d->context, event));
    return true;
}

/* None of the driver's calls breaks a capture of its thread, in the mode that forbids most. */
static bool captures(void) {
    uint64_t stream, other, event, pages;
    uintptr_t address;
    CUgraph graph = NULL;

    WORKS(d->stream_make(d->context, 0, &stream));
    WORKS(d->stream_make(d->context, 0, &other));
    WORKS(d->event_make(d->context, 0, &event));
    CHECK(cuStreamBeginCapture_v2((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0);
    CHECK(d->stream_captures(d->context, 0, stream) && !d->stream_captures(d->context, 0, other));
    counted = true;
    CHECK(d->captures_run(d->context));
    counted = false;
    CHECK(!d->captures_run(d->context));
    WORKS(d->event_record(d->context, 0, event, other));
    CHECK(d->event_done(d->context, event));
    WORKS(d->reserve(d->context, 0, 2 * unit, unit, &address));
    WORKS(d->create(d->context, 0, DEVICE_TIER_HOST, 2 * unit, &pages));
    WORKS(d->map(d->context, 0, address, 2 * unit, pages));
    WORKS(d->copy(d->context, 0, address, address + unit, unit));
    WORKS(d->copy_enqueue(d->context, 0, address, address + unit, unit, other));
    WORKS(d->drain(d->context, 0));
    WORKS(d->unmap(d->context, address, 2 * unit));
    d->release(d->context, pages);
    WORKS(d->unreserve(d->context, address, 2 * unit));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0 && mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0);
    CHECK(cuStreamEndCapture((CUstream)stream, &graph) == 0 && graph);
    CHECK(!d->stream_captures(d->context, 0, stream));
    return true;
}

static void *churn(void *context) {
    uint64_t pages;
    uintptr_t address;
    for (int i = 0; i < 50; i++) {
        int device = i % 2;
        bool good = d->reserve(d->context, device, unit, unit, &address) == CASTOR_OK &&
                    d->create(d->context, device, i % 3 ? DEVICE_TIER_DEVICE : DEVICE_TIER_HOST, unit,
                              &pages) == CASTOR_OK &&
                    d->map(d->context, device, address, unit, pages) == CASTOR_OK &&
                    d->copy(d->context, device, address, address + unit / 2, unit / 2) == CASTOR_OK &&
                    d->drain(d->context, device) == CASTOR_OK &&
                    d->unmap(d->context, address, unit) == CASTOR_OK &&
                    d->unreserve(d->context, address, unit) == CASTOR_OK;
        if (!good) {
            snprintf(why, sizeof why, "%s", error_text());
            return context;
        }
        d->release(d->context, pages);
    }
    return NULL;
}

static bool threads(void) {
    pthread_t started[4];
    void *failed = NULL, *one;
    for (int i = 0; i < 4; i++)
        pthread_create(&started[i], NULL, churn, why);
    for (int i = 0; i < 4; i++) {
        pthread_join(started[i], &one);
        failed = one ? one : failed;
    }
    return failed == NULL;
}

static bool host(void) {
    uint64_t available = machine_memory_available(""), room = d->host_room(d->context);
    CHECK(room > 0 && room < available + (UINT64_C(256) << 20));
    CHECK(room >= available / 2 || available < (UINT64_C(1) << 30));
    return true;
}

/* Memory of the host at an address of the driver's. */
static bool allocated(void) {
    uintptr_t made[2], device;
    uint64_t blocks[2], pages;
    GIVES(d->create(d->context, 0, DEVICE_TIER_HOST, unit, &pages), CASTOR_ERR_UNSUPPORTED);
    for (int i = 0; i < 2; i++) {
        WORKS(d->host_make(d->context, 0, 3 * unit, &made[i], &blocks[i]));
        CHECK(made[i] % unit == 0);
        memset((void *)made[i], 3 + i, 3 * unit);
    }
    WORKS(d->reserve(d->context, 0, 3 * unit, unit, &device));
    WORKS(d->create(d->context, 0, DEVICE_TIER_DEVICE, 3 * unit, &pages));
    WORKS(d->map(d->context, 0, device, 3 * unit, pages));
    WORKS(d->copy(d->context, 0, device, made[0], 3 * unit));
    WORKS(d->copy_enqueue(d->context, 0, made[1], device, 3 * unit, 0));
    WORKS(d->drain(d->context, 0));
    CHECK(((char *)made[1])[0] == 3 && ((char *)made[1])[3 * unit - 1] == 3);
    WORKS(d->unmap(d->context, device, 3 * unit));
    d->release(d->context, pages);
    for (int i = 0; i < 2; i++) {
        WORKS(d->host_end(d->context, 0, blocks[i]));
        CHECK(faults(made[i]));
        GIVES(d->host_end(d->context, 0, blocks[i]), CASTOR_ERR_SYSTEM);
    }
    GIVES(d->host_make(d->context, 0, 256 * MIB, &made[0], &blocks[0]), CASTOR_ERR_MEMORY);
    CHECK(strstr(error_text(), "cuMemHostAlloc of 256.0 MiB"));
    return true;
}

/* Which host memory the driver takes: the environment says what fails. */
static bool place(void) {
    uint64_t pages;
    if (d->granularity(d->context, 0) == 0) {
        printf("none: %s\n", error_text());
        return true;
    }
    unit = d->granularity(d->context, 0);
    if (!d->maps_host(d->context, 0)) {
        printf("allocated: %s\n", error_text());
        return allocated();
    }
    WORKS(d->create(d->context, 0, DEVICE_TIER_HOST, unit, &pages));
    printf("type %d node %d\n", (int)location(pages).type, location(pages).id);
    return true;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        bool (*run)(void);
    } tests[] = {{"memory", memory}, {"limits", limits}, {"contexts", contexts}, {"streams", streams},
                 {"values", values}, {"drains", drains}, {"captures", captures}, {"threads", threads},
                 {"host", host},     {"place", place}};
    d = cuda_driver();
    for (int a = 1; a < argc; a++)
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
            if (strcmp(tests[i].name, argv[a]) != 0)
                continue;
            if (strcmp(argv[a], "place") != 0 && !(unit = d->granularity(d->context, 0)))
                return fprintf(stderr, "%s\n", error_text()), 1;
            if (tests[i].run())
                printf("ok %s\n", argv[a]);
            else
                printf("FAIL %s: %s\n", argv[a], why);
        }
    return 0;
}
