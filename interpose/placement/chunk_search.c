#include "chunk_search.h"

#include <stdbool.h>
#include "arena/pages.h"
#include "base/error.h"

/* Of a job that does not name the size: elements. */
#define DEFAULT_MINIMUM  (UINT64_C(32) << 20)
#define DEFAULT_RANGE    (UINT64_C(32) << 20)
#define DEFAULT_INTERVAL 1024

#define NUMEL_MAX (UINT64_MAX >> 1)
#define SIZES_MAX (UINT64_C(1) << 32) /* more of them take hours */

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Up to a multiple of `unit`; false: beyond what numbers of elements may be. */
static bool round_up(uint64_t numel, uint64_t unit, uint64_t *out) {
    uint64_t units = numel / unit + (numel % unit != 0);
    return !__builtin_mul_overflow(units, unit, out) && *out <= NUMEL_MAX;
}

static bool list_total(const chunk_search_list *g, uint64_t *total) {
    *total = 0;
    for (uint64_t i = 0; i < g->count; i++)
        if (__builtin_add_overflow(*total, g->numel[i], total) || *total > NUMEL_MAX)
            return false;
    return true;
}

/* Tensors that are farther above the mean than 3 standard deviations do not decide. */
typedef struct outliers {
    bool aside;
    long double mean, far_squared;
} outliers;

static bool decides(const outliers *o, uint64_t numel) {
    long double above = (long double)numel - o->mean;
    return !o->aside || above <= 0 || above * above <= o->far_squared;
}

static outliers outliers_of(const chunk_search_list *lists, uint32_t count) {
    long double sum = 0, squares = 0;
    uint64_t tensors = 0;
    for (uint32_t g = 0; g < count; g++) {
        if (lists[g].keep_gathered)
            continue;
        tensors += lists[g].count;
        for (uint64_t i = 0; i < lists[g].count; i++)
            sum += (long double)lists[g].numel[i];
    }
    if (tensors == 0)
        return (outliers){0};
    long double mean = sum / (long double)tensors;
    for (uint32_t g = 0; g < count; g++) {
        if (lists[g].keep_gathered)
            continue;
        for (uint64_t i = 0; i < lists[g].count; i++) {
            long double off = (long double)lists[g].numel[i] - mean;
            squares += off * off;
        }
    }
    return (outliers){true, mean, 9 * (squares / (long double)tensors)};
}

static uint64_t waste_of(const chunk_search_list *g, const outliers *o, uint64_t chunk) {
    uint64_t waste = 0, left = 0;
    for (uint64_t i = 0; i < g->count; i++) {
        uint64_t numel = g->numel[i];
        if (!decides(o, numel))
            continue;
        if (numel > left) {
            waste += left;
            left = chunk;
        }
        left -= numel;
    }
    return waste + left;
}

static uint64_t largest_of(const chunk_search_list *g, const outliers *o) {
    uint64_t largest = 0;
    for (uint64_t i = 0; i < g->count; i++)
        if (g->numel[i] > largest && decides(o, g->numel[i]))
            largest = g->numel[i];
    return largest;
}

/* The size with least waste, the first of such. */
static castor_status scan(const chunk_search_list *lists, uint32_t count, const chunk_search_range *range,
                          const outliers *o, uint64_t *best, uint64_t *least) {
    uint64_t largest = range->minimum, begin, end, most, chunks = count;
    for (uint32_t g = 0; g < count; g++) {
        chunks += lists[g].count;
        uint64_t own = lists[g].keep_gathered ? 0 : largest_of(&lists[g], o);
        largest = own > largest ? own : largest;
    }
    /* No waste is more than that of as many chunks as there are tensors. */
    if (!round_up(largest, range->interval, &begin) || __builtin_add_overflow(begin, range->numel, &end) ||
        __builtin_mul_overflow(end, chunks, &most))
        return error_set(CASTOR_ERR_ARGUMENT, "the search ends beyond the largest size of a chunk");
    if (range->numel / range->interval >= SIZES_MAX)
        return error_set(CASTOR_ERR_ARGUMENT,
                         "a search of %llu chunk sizes: raise its interval or lower its range",
                         (unsigned long long)(range->numel / range->interval));
    *best = begin;
    *least = UINT64_MAX;
    for (uint64_t chunk = begin; chunk <= end; chunk += range->interval) {
        uint64_t waste = 0;
        for (uint32_t g = 0; g < count; g++)
            waste += lists[g].keep_gathered ? 0 : waste_of(&lists[g], o, chunk);
        if (waste < *least) {
            *least = waste;
            *best = chunk;
        }
        if (range->interval > end - chunk)
            break;
    }
    return CASTOR_OK;
}

castor_status chunk_search(chunk_search_list *lists, uint32_t count, const chunk_search_range *range,
                           chunk_search_result *out) {
    uint64_t multiple = 1, chunk = 0;
    bool searched = false;
    *out = (chunk_search_result){0};
    if (range->interval == 0)
        return error_set(CASTOR_ERR_ARGUMENT, "the interval of a chunk search must be at least 1");
    for (uint32_t g = 0; g < count; g++) {
        chunk_search_list *list = &lists[g];
        uint64_t total;
        if (list->degree == 0)
            return error_set(CASTOR_ERR_ARGUMENT, "a data-parallel degree must be at least 1");
        uint64_t factor = list->degree / greatest_common_divisor(multiple, list->degree);
        if (!list_total(list, &total) || __builtin_mul_overflow(multiple, factor, &multiple) ||
            multiple > NUMEL_MAX || __builtin_add_overflow(out->numel, total, &out->numel) ||
            out->numel > NUMEL_MAX)
            return error_set(CASTOR_ERR_ARGUMENT, "too many elements for a chunk search");
        list->keep_gathered = total < range->minimum;
        list->chunk_numel = total;
        searched |= !list->keep_gathered;
    }
    if (!searched)
        return CASTOR_OK;
    outliers o = range->filter ? outliers_of(lists, count) : (outliers){0};
    castor_status status = scan(lists, count, range, &o, &chunk, &out->wasted);
    if (status != CASTOR_OK)
        return status;
    if (!round_up(chunk, multiple, &chunk))
        return error_set(CASTOR_ERR_ARGUMENT, "the chunk size is beyond the largest one");
    for (uint32_t g = 0; g < count; g++)
        if (!lists[g].keep_gathered)
            lists[g].chunk_numel = chunk;
    return CASTOR_OK;
}

castor_status chunk_search_set(chunk_table *t, const uint64_t *numel, uint64_t count, uint64_t degree,
                               uint64_t element_bytes, uint64_t most_bytes) {
    chunk_search_list list = {.numel = numel, .count = count, .degree = degree};
    chunk_search_result found;
    castor_status status = chunk_search(
        &list, 1, &(chunk_search_range){DEFAULT_RANGE, DEFAULT_INTERVAL, DEFAULT_MINIMUM, true}, &found);
    if (status || found.numel == 0)
        return status;
    uint64_t bytes = 0;
    if (list.keep_gathered) /* each parameter begins on a page of its own */
        for (uint64_t i = 0; i < count; i++)
            bytes += pages_round(numel[i] * element_bytes);
    else
        bytes = pages_round(list.chunk_numel * element_bytes);
    t->searched_bytes = bytes;
    t->chunk_bytes = bytes < most_bytes ? bytes : pages_round(most_bytes);
    t->wasted_bytes = found.wasted * element_bytes;
    return CASTOR_OK;
}
