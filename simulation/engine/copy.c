/* Copies, sets and host functions as operations of streams. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct copy_arguments {
    struct sim_copy copy;
    bool staged; /* the source is a buffer of ours */
};

struct set_arguments {
    void *target;
    size_t pitch, width, rows;
    uint32_t value;
    unsigned element;
};

struct host_arguments {
    void (*function)(void *);
    void *data;
};

static bool reachable(const void *address, size_t pitch, size_t width, size_t rows) {
    for (size_t row = 0; row < rows; row++) {
        if (!sim_memory_valid((const char *)address + row * pitch, width))
            return false;
        if (pitch == width) /* one piece: look at it once */
            return sim_memory_valid(address, width * rows);
    }
    return true;
}

/* No page of a device is touched that is never written (sim_config()->blank): it would take memory of the host. */
static bool is_blank(const void *address) {
    return sim_config()->blank && sim_device_at(address) >= 0;
}

/* From such a device, into memory of the host: pages that are zeros stay as they are, and ours are given back. */
static void write_zeros(char *target, size_t bytes) {
    bool ours = sim_in_zone((uintptr_t)target);

    while (bytes) {
        size_t piece = SIM_PAGE - (uintptr_t)target % SIM_PAGE;
        if (piece == SIM_PAGE && ours && bytes >= SIM_PAGE) {
            piece = bytes / SIM_PAGE * SIM_PAGE;
            if (madvise(target, piece, MADV_REMOVE))
                memset(target, 0, piece);
        } else {
            piece = piece < bytes ? piece : bytes;
            if (*target || memcmp(target, target + 1, piece - 1) != 0)
                memset(target, 0, piece);
        }
        target += piece;
        bytes -= piece;
    }
}

static CUresult run_copy(void *arguments) {
    const struct copy_arguments *op = arguments;
    const struct sim_copy *copy = &op->copy;

    if (!reachable(copy->target, copy->target_pitch, copy->width, copy->rows) ||
        (!op->staged && !reachable(copy->source, copy->source_pitch, copy->width, copy->rows)))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    sim_link_copy(copy->target, copy->source, copy->width * copy->rows);
    bool from_blank = is_blank(copy->source), nowhere = is_blank(copy->target);
    for (size_t row = 0; row < copy->rows && !nowhere; row++) {
        char *target = (char *)copy->target + row * copy->target_pitch;
        if (from_blank)
            write_zeros(target, copy->width);
        else
            memmove(target, (const char *)copy->source + row * copy->source_pitch, copy->width);
    }
    if (op->staged)
        free((void *)copy->source);
    return CUDA_SUCCESS;
}

static bool pageable(const void *address) {
    return !sim_in_zone((uintptr_t)address) && !sim_memory_find(address).found;
}

CUresult sim_copy_submit(CUstream stream, const struct sim_copy *copy, bool wait) {
    struct copy_arguments arguments = {*copy, false};
    struct sim_copy *op = &arguments.copy;
    CUresult result = sim_stream_resolve(&stream);

    if (result || !copy->width || !copy->rows)
        return result;
    if (!copy->target || !copy->source ||
        !reachable(copy->target, copy->target_pitch, copy->width, copy->rows) ||
        !reachable(copy->source, copy->source_pitch, copy->width, copy->rows))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_capture_takes(stream))
        return sim_stream_submit(stream, SIM_COPY, run_copy, &arguments, sizeof arguments);
    if (pageable(copy->target)) {
        wait = true;
    } else if (!wait && pageable(copy->source) && !is_blank(copy->target)) {
        char *staged = malloc(copy->width * copy->rows);
        if (!staged)
            return CUDA_ERROR_OUT_OF_MEMORY;
        for (size_t row = 0; row < copy->rows; row++)
            memcpy(staged + row * copy->width, (const char *)copy->source + row * copy->source_pitch,
                   copy->width);
        op->source = staged;
        op->source_pitch = copy->width;
        arguments.staged = true;
    }
    result = sim_stream_submit(stream, SIM_COPY, run_copy, &arguments, sizeof arguments);
    if (result && arguments.staged)
        free((void *)op->source);
    return result || !wait ? result : sim_stream_synchronize(stream);
}

static CUresult run_set(void *arguments) {
    const struct set_arguments *set = arguments;

    if (!reachable(set->target, set->pitch, set->width * set->element, set->rows))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (is_blank(set->target))
        return CUDA_SUCCESS;
    for (size_t row = 0; row < set->rows; row++) {
        char *at = (char *)set->target + row * set->pitch;
        if (set->element == 1) {
            memset(at, (int)set->value, set->width);
            continue;
        }
        for (size_t i = 0; i < set->width; i++)
            memcpy(at + i * set->element, &set->value, set->element); /* little-endian: the low bytes */
    }
    return CUDA_SUCCESS;
}

CUresult sim_set_submit(CUstream stream, void *target, size_t pitch, uint32_t value, unsigned element,
                        size_t width, size_t rows, bool wait) {
    struct set_arguments set = {target, pitch, width, rows, value, element};
    CUresult result = sim_stream_resolve(&stream);

    if (result || !width || !rows)
        return result;
    if (!target || !reachable(target, pitch, width * element, rows) || pageable(target))
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_stream_submit(stream, SIM_SET, run_set, &set, sizeof set);
    return result || !wait ? result : sim_stream_synchronize(stream);
}

static CUresult run_host(void *arguments) {
    const struct host_arguments *host = arguments;

    host->function(host->data);
    return CUDA_SUCCESS;
}

CUresult sim_host_submit(CUstream stream, void (*function)(void *), void *data) {
    struct host_arguments host = {function, data};

    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_stream_submit(stream, SIM_HOST, run_host, &host, sizeof host);
}
