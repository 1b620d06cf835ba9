#include "accumulate.h"
#include "base/error.h"

static castor_status size_check(int64_t size) {
    if (size >= 1)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT,
                     "accumulate_size is %ld: expected the number of micro-batches of a step, 1 or more",
                     (long)size);
}

castor_status accumulate_begin(accumulation *a, int64_t size) {
    castor_status status = size_check(size);
    if (status == CASTOR_OK)
        *a = (accumulation){.size = size};
    return status;
}

bool accumulate_count(accumulation *a) {
    a->count++;
    return accumulate_at_boundary(a);
}

bool accumulate_at_boundary(const accumulation *a) {
    return a->count >= a->size;
}

bool accumulate_next_at_boundary(const accumulation *a) {
    return a->count + 1 >= a->size;
}

bool accumulate_is_empty(const accumulation *a) {
    return a->count == 0;
}

bool accumulate_take_step(accumulation *a) {
    if (!accumulate_at_boundary(a))
        return false;
    a->count = 0;
    return true;
}

bool accumulate_every(accumulation *a) {
    accumulate_count(a);
    return accumulate_take_step(a);
}

castor_status accumulate_length(int64_t count, int64_t size, int64_t *length, int64_t *steps) {
    castor_status status = size_check(size);
    if (status)
        return status;
    if (count < 0)
        return error_set(CASTOR_ERR_ARGUMENT, "a loader of %ld batches: expected 0 or more", (long)count);
    *steps = count / size;
    *length = *steps * size;
    return CASTOR_OK;
}
