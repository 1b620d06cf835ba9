/* Events: marks in streams. An event that was never recorded counts as complete, as in CUDA. An event for several
 * processes keeps its state in a memfd, at which waits look every 50 microseconds. */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EVENT_MAGIC 0x45564e54u

struct event_arguments {
    CUevent event;
    uint64_t generation;
    bool legacy; /* of a wait: the legacy stream waits */
};

static atomic_ullong
    waited_ns[SIM_DEVICES_MAX]; /* by legacy streams, for events of other streams and for values */

static void event_drop(CUevent event) {
    if (atomic_fetch_sub(&event->references, 1) == 1) {
        free(event->tips);
        if (event->shared) {
            munmap(event->shared, SIM_PAGE);
            close(event->fd);
        }
        event->magic = 0;
        free(event);
    }
}

static bool usable(CUevent event) {
    return event && event->magic == EVENT_MAGIC;
}

/* The state, with the event's lock held. */
static uint64_t recorded(CUevent event) {
    return event->shared ? atomic_load(&event->shared->recorded) : event->recorded;
}

static uint64_t completed(CUevent event) {
    return event->shared ? atomic_load(&event->shared->completed) : event->completed;
}

static uint64_t next_generation(CUevent event) {
    return event->shared ? atomic_fetch_add(&event->shared->recorded, 1) + 1 : ++event->recorded;
}

static void complete(CUevent event, uint64_t generation) {
    if (event->shared)
        atomic_store(&event->shared->completed, generation);
    else
        event->completed = generation;
}

static void await(CUevent event, uint64_t generation) {
    const struct timespec pause = {0, 50000};

    pthread_mutex_lock(&event->wait.lock);
    while (completed(event) < generation) {
        if (!event->shared) {
            pthread_cond_wait(&event->wait.changed, &event->wait.lock);
            continue;
        }
        pthread_mutex_unlock(&event->wait.lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&event->wait.lock);
    }
    pthread_mutex_unlock(&event->wait.lock);
}

static bool map_page(CUevent event, int fd) {
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, SIM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (page == MAP_FAILED) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    event->shared = page;
    event->fd = fd;
    return true;
}

CUresult sim_event_create(unsigned flags, CUevent *made) {
    CUcontext ctx;
    CUresult result = sim_ctx_current(&ctx, true);
    CUevent event;

    if (result)
        return result;
    if (!(event = calloc(1, sizeof *event)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->magic = EVENT_MAGIC;
    event->flags = flags;
    event->references = 1;
    event->ctx = ctx;
    pthread_mutex_init(&event->wait.lock, NULL);
    pthread_cond_init(&event->wait.changed, NULL);
    if (flags & CU_EVENT_INTERPROCESS) {
        int fd = flags & CU_EVENT_DISABLE_TIMING ? memfd_create("sim-event", MFD_CLOEXEC) : -1;
        if (fd < 0 || ftruncate(fd, SIM_PAGE) || !map_page(event, fd)) {
            event_drop(event);
            return CUDA_ERROR_INVALID_VALUE; /* also with timing, as in CUDA */
        }
    }
    *made = event;
    return CUDA_SUCCESS;
}

struct event_handle {
    uint32_t magic;
    int32_t pid, fd;
};

CUresult sim_event_export(CUevent event, void *handle64) {
    struct event_handle handle = {EVENT_MAGIC, getpid(), -1};

    if (!usable(event) || !event->shared)
        return CUDA_ERROR_INVALID_HANDLE;
    handle.fd = event->fd;
    memset(handle64, 0, 64);
    memcpy(handle64, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

CUresult sim_event_open(const void *handle64, CUevent *event) {
    struct event_handle handle;
    char path[64];

    memcpy(&handle, handle64, sizeof handle);
    if (handle.magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_event_create(CU_EVENT_DISABLE_TIMING, event);
    if (result)
        return result;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle.pid, (int)handle.fd);
    if (map_page(*event, open(path, O_RDWR | O_CLOEXEC)))
        return CUDA_SUCCESS;
    event_drop(*event);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_event_destroy(CUevent event) {
    if (!usable(event))
        return CUDA_ERROR_INVALID_HANDLE;
    event_drop(event);
    return CUDA_SUCCESS;
}

static CUresult run_record(void *arguments) {
    struct event_arguments *record = arguments;
    CUevent event = record->event;

    pthread_mutex_lock(&event->wait.lock);
    if (record->generation > completed(event)) {
        complete(event, record->generation);
        event->time_ns = sim_now_ns();
    }
    pthread_cond_broadcast(&event->wait.changed);
    pthread_mutex_unlock(&event->wait.lock);
    event_drop(event);
    return CUDA_SUCCESS;
}

void sim_waited_add(int device, int64_t ns) {
    atomic_fetch_add(&waited_ns[device], (unsigned long long)ns);
}

static CUresult run_wait(void *arguments) {
    struct event_arguments *wait = arguments;
    CUevent event = wait->event;

    int64_t begin_ns = sim_now_ns();
    await(event, wait->generation);
    if (wait->legacy)
        sim_waited_add(event->ctx->device, sim_now_ns() - begin_ns);
    event_drop(event);
    return CUDA_SUCCESS;
}

unsigned long long sim_waited_ns(int device) {
    return device < 0 || device >= SIM_DEVICES_MAX ? 0 : atomic_load(&waited_ns[device]);
}

/* In a graph the event is recorded anew each time the graph runs. */
static CUresult run_record_external(void *arguments) {
    struct event_arguments record = *(struct event_arguments *)arguments;

    pthread_mutex_lock(&record.event->wait.lock);
    record.generation = next_generation(record.event);
    pthread_mutex_unlock(&record.event->wait.lock);
    atomic_fetch_add(&record.event->references, 1);
    return run_record(&record);
}

CUresult sim_event_record(CUevent event, CUstream stream, unsigned flags) {
    struct event_arguments record = {event, 0, false};
    CUresult result = sim_stream_resolve(&stream);

    if (result || !usable(event))
        return result ? result : CUDA_ERROR_INVALID_HANDLE;
    if (event->ctx != stream->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_capture_takes(stream)) {
        if (flags & CU_EVENT_RECORD_EXTERNAL)
            return sim_stream_submit(stream, SIM_EVENT, run_record_external, &record, sizeof record);
        return sim_capture_record(stream, event);
    }
    pthread_mutex_lock(&event->wait.lock);
    record.generation = next_generation(event);
    event->capture = NULL;
    pthread_mutex_unlock(&event->wait.lock);
    atomic_fetch_add(&event->references, 1);
    result = sim_stream_submit(stream, SIM_EVENT, run_record, &record, sizeof record);
    if (result)
        run_record(&record);
    return result;
}

CUresult sim_stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
    struct event_arguments wait = {event, 0, false};
    CUresult result = sim_stream_resolve(&stream);

    (void)flags;
    if (result || !usable(event))
        return result ? result : CUDA_ERROR_INVALID_HANDLE;
    if (sim_capture_wait(stream, event, &result))
        return result;
    pthread_mutex_lock(&event->wait.lock);
    wait.generation = recorded(event);
    wait.legacy = stream == stream->ctx->legacy;
    bool over = completed(event) >= recorded(event);
    pthread_mutex_unlock(&event->wait.lock);
    if (over)
        return CUDA_SUCCESS;
    atomic_fetch_add(&event->references, 1);
    result = sim_stream_submit(stream, SIM_WAIT, run_wait, &wait, sizeof wait);
    if (result)
        event_drop(event);
    return result;
}

CUresult sim_event_query(CUevent event) {
    if (!usable(event))
        return CUDA_ERROR_INVALID_HANDLE;
    int sticky = atomic_load(&event->ctx->sticky);
    if (sticky)
        return (CUresult)sticky;
    pthread_mutex_lock(&event->wait.lock);
    bool over = completed(event) >= recorded(event);
    bool capturing = event->capture != NULL;
    pthread_mutex_unlock(&event->wait.lock);
    if (capturing)
        return CUDA_ERROR_CAPTURED_EVENT;
    return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sim_event_synchronize(CUevent event) {
    CUresult result = sim_event_query(event);

    if (result != CUDA_ERROR_NOT_READY)
        return result;
    pthread_mutex_lock(&event->wait.lock);
    uint64_t wanted = recorded(event);
    pthread_mutex_unlock(&event->wait.lock);
    await(event, wanted);
    return (CUresult)atomic_load(&event->ctx->sticky);
}

CUresult sim_event_elapsed(float *milliseconds, CUevent start, CUevent end) {
    if (!usable(start) || !usable(end) || !start->recorded || !end->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = sim_event_query(start);
    if (!result)
        result = sim_event_query(end);
    if (!result)
        *milliseconds = (float)((double)(end->time_ns - start->time_ns) / 1e6);
    return result;
}
