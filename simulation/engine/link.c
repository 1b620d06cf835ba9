/* The link between a device and the host: copies take their time on it, each way by itself.
 *
 * A device has one engine for each direction, which serves copies in the order in which they start. SIM_LINK_BANDWIDTH gives their
 * speed; without it copies take no time. The bytes are counted in any case. */
#include "sim.h"

#include <errno.h>
#include <time.h>

enum direction { TO_DEVICE, TO_HOST };

static struct engine {
    int64_t busy_until_ns; /* guarded by the lock */
    atomic_ullong bytes;
} engines[SIM_DEVICES_MAX][2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* nobody waits under it */

int sim_device_at(const void *address) {
    struct sim_pointer pointer = sim_memory_find(address);

    if (!pointer.found)
        return -1;
    if (pointer.block.kind == SIM_MAPPED)
        return pointer.block.device == CU_DEVICE_CPU ? -1 : pointer.block.device;
    return pointer.block.kind == SIM_DEVICE_MEMORY ? pointer.block.device : -1;
}

/* Returns when so many bytes have passed, behind those before them; or at once, where the link takes no time. */
static void pass(int device, enum direction direction, size_t bytes) {
    struct engine *engine = &engines[device][direction];
    double rate = sim_config()->link_bandwidth;

    atomic_fetch_add(&engine->bytes, bytes);
    if (rate <= 0)
        return;
    pthread_mutex_lock(&lock);
    int64_t now = sim_now_ns();
    int64_t end =
        (engine->busy_until_ns > now ? engine->busy_until_ns : now) + (int64_t)((double)bytes / rate * 1e9);
    engine->busy_until_ns = end;
    pthread_mutex_unlock(&lock);
    struct timespec until = {end / 1000000000, end % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

void sim_link_copy(const void *target, const void *source, size_t bytes) {
    int to = sim_device_at(target), from = sim_device_at(source);

    if (to == from)
        return; /* within a device, or within the host */
    if (from >= 0)
        pass(from, TO_HOST, bytes);
    if (to >= 0)
        pass(to, TO_DEVICE, bytes);
}

unsigned long long sim_link_bytes(int device, int direction) {
    return device < 0 || device >= SIM_DEVICES_MAX || (direction & ~1)
               ? 0
               : atomic_load(&engines[device][direction].bytes);
}
