/* The chunk manager's backend: tier 0 is the region, tier 1 are the homes.
 *
 * A move is over when it is begun. It says nothing of how long the copy takes: the host is ahead of the device, so its clock does not
 * tell when a copy must begin, and one begins as soon as there is room (prefetch.h). Only what is needed later gives room for it, and
 * not while what is used before that will give it better (chunk_room.c). So hardly more is copied than must be where each step goes forward
 * and back again, as training does, or in the same order. An evaluation without optimizer steps has no sequence that begins again: all of
 * it is copied each time. */
#include <sys/mman.h>
#include "core/error.h"
#include "slots_inside.h"

/* So many operands of one step; a longer one is not recorded, and its copies are not made ahead. */
#define USES_MAX      65536
#define USES_SLACK    4
#define MOVES_AT_ONCE 8

void *slots_map(size_t bytes) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void slots_unmap(void *memory, size_t bytes) {
    if (memory)
        munmap(memory, bytes);
}

static uint64_t now_ns(void *context) {
    slots *s = context;
    return s->driver.now_ns(s->driver.context);
}

static uint64_t capacity_bytes(void *context, uint32_t tier) {
    const slots *s = context;
    return tier == 0 ? s->region_bytes : UINT64_MAX;
}

static uint64_t non_model_bytes(void *context) {
    (void)context;
    return 0;
}

/* A copy that must not be made fails after it has begun: the manager then leaves the storage alone until the step is over, and what
 * comes after it is not held up. */
static castor_status room_take(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    slots *s = context;
    (void)bytes;
    if (tier != 0 || !slots_copy_may(s, chunk))
        return CASTOR_OK;
    castor_status status = slots_range_take(s, chunk);
    if (status == CASTOR_ERR_MEMORY)
        s->wanted = chunk;
    return status;
}

static void room_give(void *context, uint32_t chunk, uint32_t tier, uint64_t bytes) {
    slots *s = context;
    (void)bytes;
    if (tier == 0 && s->storages[chunk].entry != SLOTS_NONE)
        slots_range_leave(s, chunk);
}

static castor_status move_start(void *context, const chunk_move *move, uint64_t *handle) {
    slots *s = context;
    *handle = move->chunk;
    return move->to == 0 && s->storages[move->chunk].entry != SLOTS_NONE ? slots_copy(s, move->chunk)
                                                                         : CASTOR_OK;
}

static castor_status move_poll(void *context, uint64_t handle, chunk_move_end *end, uint64_t *finished_ns) {
    const slots *s = context;
    if (s->storages[handle].entry == SLOTS_NONE)
        return error_set(CASTOR_ERR_UNSUPPORTED, "storage %u can only be read in its home", (unsigned)handle);
    *end = MOVE_DONE;
    *finished_ns = 0;
    return CASTOR_OK;
}

static castor_status move_wait(void *context, uint64_t handle, uint64_t timeout_ns, chunk_move_end *end,
                               uint64_t *finished_ns) {
    (void)timeout_ns;
    return move_poll(context, handle, end, finished_ns);
}

static void *allocate(void *context, size_t bytes) {
    (void)context;
    return slots_map(bytes);
}

static void deallocate(void *context, void *memory, size_t bytes) {
    (void)context;
    slots_unmap(memory, bytes);
}

castor_status slots_manager_make(slots *s) {
    chunk_backend backend = {.context = s,
                             .tiers = 2,
                             .tier_names = {"slots", "homes"},
                             .now_ns = now_ns,
                             .capacity_bytes = capacity_bytes,
                             .non_model_bytes = non_model_bytes,
                             .room_take = room_take,
                             .room_give = room_give,
                             .move_start = move_start,
                             .move_poll = move_poll,
                             .move_wait = move_wait,
                             .allocate = allocate,
                             .deallocate = deallocate};
    /* The region is the chunks' alone. */
    chunk_manager_settings settings = chunk_manager_defaults(PLACEMENT_AUTO);
    settings.placement.warmup_non_model_data_ratio = 0;
    settings.placement.steady_cap_ratio = 1;
    settings.moments = (moments_settings){USES_MAX, USES_MAX, USES_SLACK};
    settings.moves_at_a_time = MOVES_AT_ONCE;
    return chunk_manager_create(&s->manager, &backend, &settings);
}
