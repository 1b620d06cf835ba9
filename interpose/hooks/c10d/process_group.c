#include "process_group.h"
#include <stdbool.h>
#include "base/hash.h"
#include "trace/live.h"
#include "trace/trace.h"

#define GROUPS_MAX 256u

/* In order of first use; an ended one keeps its number, which is not given again. */
static const void *numbers[GROUPS_MAX];
static char group_ended;

/* What is known of the groups that exist. A slot is claimed by its address; the rest follows before the one who makes the
 * group hands it to anybody. */
typedef struct known_group {
    const void *group;
    uint64_t identity;
    int32_t rank;
    uint32_t size;
    uint32_t divisions[PROCESS_GROUP_DIVISION_COUNT];
} known_group;

static known_group made[GROUPS_MAX];

static known_group *made_find(const void *group) {
    for (uint32_t i = 0; i < GROUPS_MAX; i++)
        if (__atomic_load_n(&made[i].group, __ATOMIC_ACQUIRE) == group)
            return &made[i];
    return NULL;
}

static known_group *made_claim(const void *group) {
    for (uint32_t i = 0; i < GROUPS_MAX; i++) {
        const void *none = NULL;
        if (__atomic_compare_exchange_n(&made[i].group, &none, group, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return &made[i];
    }
    return NULL;
}

void process_group_made(const void *group, uint64_t identity, int rank, int size) {
    if (!group)
        return;
    known_group *slot = made_find(group);
    if (!slot)
        slot = made_claim(group);
    if (!slot)
        return;
    slot->identity = identity;
    slot->rank = rank;
    slot->size = size > 0 ? (uint32_t)size : 0;
    for (int how = 0; how < PROCESS_GROUP_DIVISION_COUNT; how++)
        slot->divisions[how] = 0;
}

uint64_t process_group_divide(const void *group, process_group_division how, uint64_t choice) {
    known_group *slot = made_find(group);
    if (!slot || !slot->identity)
        return 0;
    uint64_t division = (uint64_t)how << 32 | slot->divisions[how]++;
    return hash_bytes(hash_bytes(slot->identity, &division, sizeof division), &choice, sizeof choice);
}

/* Groups beyond the table share its last number, whose identity nobody can tell. */
static void tell(uint32_t number, const void *group) {
    known_group *slot = number < GROUPS_MAX - 1 ? made_find(group) : NULL;
    if (!slot)
        return;
    uint64_t now_ns = trace_now_ns();
    trace_record_write(TRACE_PROCESS_GROUP, 0, now_ns, now_ns, 0, number, slot->identity,
                       (uint64_t)slot->size << 32 | (uint32_t)slot->rank);
}

uint32_t process_group_number(const void *group) {
    for (uint32_t i = 0; i < GROUPS_MAX; i++) {
        const void *seen = __atomic_load_n(&numbers[i], __ATOMIC_RELAXED);
        if (!seen && __atomic_compare_exchange_n(&numbers[i], &seen, group, false, __ATOMIC_RELAXED,
                                                 __ATOMIC_RELAXED)) {
            tell(i, group);
            return i;
        }
        if (seen == group)
            return i;
    }
    return GROUPS_MAX - 1;
}

void process_group_end(const void *group) {
    for (uint32_t i = 0; i < GROUPS_MAX && __atomic_load_n(&numbers[i], __ATOMIC_RELAXED); i++)
        if (__atomic_load_n(&numbers[i], __ATOMIC_RELAXED) == group)
            __atomic_store_n(&numbers[i], &group_ended, __ATOMIC_RELAXED);
    known_group *slot = group ? made_find(group) : NULL;
    if (slot)
        __atomic_store_n(&slot->group, NULL, __ATOMIC_RELEASE);
    live_process_group_ended(group);
}
