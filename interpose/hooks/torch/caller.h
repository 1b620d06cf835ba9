/* Finds whose code called a wrapper, by the return address. Private to hooks/. */
#ifndef CASTOR_HOOKS_TORCH_CALLER_H
#define CASTOR_HOOKS_TORCH_CALLER_H

#include <stdbool.h>
#include <stdint.h>

/* The address range of libc10.so; empty until it is known. */
typedef struct caller_range {
    uintptr_t base, size;
} caller_range;
extern caller_range caller_c10;

bool caller_is_c10_slow(const void *return_address);
void caller_find_c10(void); /* looks for libc10.so among all loaded libraries */

static inline bool caller_is_c10(const void *return_address) {
    if (caller_c10.size)
        return (uintptr_t)return_address - caller_c10.base < caller_c10.size;
    return caller_is_c10_slow(return_address);
}

#endif
