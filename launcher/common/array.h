/* Arrays that grow by doubling. */
#ifndef CASTOR_LAUNCHER_COMMON_ARRAY_H
#define CASTOR_LAUNCHER_COMMON_ARRAY_H

#include <stdbool.h>
#include <stdlib.h>

/* Makes room for one item more than `count`. `array_pointer`: the address of the pointer to the first of `*capacity` items.
 * False, and nothing has changed: memory is out. */
static inline bool array_grow(void *array_pointer, size_t *capacity, size_t count, size_t item_bytes) {
    if (count < *capacity)
        return true;
    void **array = array_pointer;
    size_t wanted = *capacity == 0 ? 16 : *capacity * 2;
    void *larger = realloc(*array, wanted * item_bytes);
    if (larger == NULL)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

#endif
