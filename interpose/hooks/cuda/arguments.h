/* The arguments of a launch: which words of them could be addresses.
 *
 * A kernel's parameters lie in one block, each at an offset and of a size that the driver tells. An address among them is a word of
 * eight bytes at a multiple of eight, whether it is a parameter itself or in a struct that is one. Packed structs with
 * addresses elsewhere are not known of any compiler of kernels. */
#ifndef CASTOR_HOOKS_CUDA_ARGUMENTS_H
#define CASTOR_HOOKS_CUDA_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ARGUMENTS_MAX     118    /* parameters; a kernel with more has an unknown layout */
#define ARGUMENTS_UNKNOWN 0xffff /* instead of their count */

/* Of each parameter, how many words it has in whole at multiples of eight (13 bits), and above these how many bytes it has in front of the
 * first one. Small, so that a cache line holds the layouts of most kernels. */
typedef struct arguments_layout {
    uint16_t count;
    uint16_t parameters[ARGUMENTS_MAX];
} arguments_layout;

/* Appends a parameter. False: it does not fit, and the layout is unknown from now on. */
static inline bool arguments_add(arguments_layout *layout, size_t offset, size_t bytes) {
    size_t before = (8 - offset % 8) % 8;
    size_t words = bytes < before ? 0 : (bytes - before) / 8;
    if (layout->count >= ARGUMENTS_MAX || words >= 1u << 13) {
        layout->count = ARGUMENTS_UNKNOWN;
        return false;
    }
    layout->parameters[layout->count++] = (uint16_t)(before << 13 | words);
    return true;
}

typedef void arguments_visit(uintptr_t word, void *context);

/* Calls `visit` for each word in [first, first + bytes). */
static inline void arguments_scan_words(const void *at, size_t words, uintptr_t first, uint64_t bytes,
                                        arguments_visit *visit, void *context) {
    const char *byte = (const char *)at;
    for (size_t i = 0; i < words; i++) {
        uintptr_t word;
        memcpy(&word, byte + 8 * i, sizeof word);
        if (__builtin_expect(word - first < bytes, 0))
            visit(word, context);
    }
}

/* The same for all parameters, as launches get them: one address for each. The layout is known. */
static inline void arguments_scan(const arguments_layout *layout, void *const *arguments, uintptr_t first,
                                  uint64_t bytes, arguments_visit *visit, void *context) {
    for (uint32_t i = 0; i < layout->count; i++) {
        uint32_t parameter = layout->parameters[i], words = parameter & 0x1fff;
        if (words > 0)
            arguments_scan_words((const char *)arguments[i] + (parameter >> 13), words, first, bytes, visit,
                                 context);
    }
}

/* The block itself, if a launch's `extra` gives one. False: it does not. */
static inline bool arguments_block(void *const *extra, const void **block, size_t *bytes) {
    *block = NULL;
    *bytes = 0;
    for (; extra && *extra; extra += 2) /* CU_LAUNCH_PARAM_END */
        if (*extra == (void *)1)        /* CU_LAUNCH_PARAM_BUFFER_POINTER */
            *block = extra[1];
        else if (*extra == (void *)2) /* CU_LAUNCH_PARAM_BUFFER_SIZE */
            *bytes = *(const size_t *)extra[1];
    return *block != NULL;
}

#endif
