/* Addresses of homes that devices keep in their memory. They stay until their home is freed, since storages that come later may lie there,
 * and nothing tells when the device's memory holds them no more. */
#include <string.h>
#include "slots_inside.h"

/* The first kept address that is not below this one. */
static uint32_t kept_after(const slots *s, uintptr_t address) {
    uint32_t low = 0, high = s->kept_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->kept[middle] >= address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool slots_keeps(const slots *s, uintptr_t address, size_t bytes) {
    uint32_t at = kept_after(s, address);
    return s->kept_any || (at < s->kept_count && s->kept[at] - address < bytes);
}

void slots_kept_forget(slots *s, uintptr_t address, size_t bytes) {
    uintptr_t to = bytes > UINTPTR_MAX - address ? UINTPTR_MAX : address + bytes;
    uint32_t from = kept_after(s, address), end = kept_after(s, to);
    if (from == end)
        return;
    memmove(&s->kept[from], &s->kept[end], (s->kept_count - end) * sizeof *s->kept);
    s->kept_count -= end - from;
}

static void home_only(slots *s, uint32_t number) {
    s->storages[number].home_only = true;
    slots_stale(s, number);
}

static void keep(slots *s, uintptr_t address) {
    if (!s->kept)
        s->kept = slots_map(SLOTS_KEPT * sizeof *s->kept);
    if (!s->kept || s->kept_count == SLOTS_KEPT) {
        s->kept_any = true;
        for (uint32_t i = 0; i < s->places_count; i++)
            home_only(s, s->places[i].number);
        return;
    }
    uint32_t at = kept_after(s, address);
    memmove(&s->kept[at + 1], &s->kept[at], (s->kept_count - at) * sizeof *s->kept);
    s->kept[at] = address;
    s->kept_count++;
}

void slots_kept(slots *s, uintptr_t address, bool sure) {
    pthread_mutex_lock(&s->lock);
    uint32_t number = slots_find(s, address);
    bool begins = number != SLOTS_NONE && s->storages[number].address == address;
    if ((sure || begins) && !slots_keeps(s, address, 1)) {
        keep(s, address);
        if (number != SLOTS_NONE)
            home_only(s, number);
    }
    pthread_mutex_unlock(&s->lock);
}
