#include "division.h"

local_batch local_batch_of(uint64_t count, int rank, int world) {
    local_batch p = {.first = count * (uint64_t)rank / (uint64_t)world,
                     .last = count * ((uint64_t)rank + 1) / (uint64_t)world};
    if (p.first == p.last)
        return (local_batch){.last = count > 0};
    p.weight = (double)(p.last - p.first) / (double)count;
    return p;
}

uint32_t parts_divide(const uint64_t *bytes, uint32_t count, uint64_t most, uint32_t *ends) {
    uint32_t parts = 0, first = 0;
    uint64_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (most && i > first && used + bytes[i] > most) {
            ends[parts++] = first = i;
            used = 0;
        }
        used += bytes[i];
    }
    ends[parts++] = count;
    return parts;
}

uint32_t parts_divide_by_place(const uint64_t *bytes, const int32_t *places, uint32_t count,
                               uint64_t (*most)(int place), uint32_t *ends) {
    uint32_t parts = 0;
    for (uint32_t first = 0, last = 0; first < count; first = last) {
        while (last < count && places[last] == places[first])
            last++;
        uint32_t more = parts_divide(bytes + first, last - first, most(places[first]), ends + parts);
        for (; more; more--)
            ends[parts++] += first;
    }
    return parts;
}
