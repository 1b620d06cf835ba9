#include "table.h"

#include <stdlib.h>

#define ENTRIES_FIRST 64u

void *table_room(void *entries, uint32_t *capacity, uint32_t count, size_t entry_bytes) {
    if (count < *capacity)
        return entries;
    if (*capacity > UINT32_MAX / 2)
        return NULL;
    uint32_t wanted = *capacity ? *capacity * 2 : ENTRIES_FIRST;
    void *grown = reallocarray(entries, wanted, entry_bytes);
    if (grown)
        *capacity = wanted;
    return grown;
}
