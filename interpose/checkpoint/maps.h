/* What is mapped where in this process, as the kernel lists it (/proc/self/maps). */
#ifndef CASTOR_CHECKPOINT_MAPS_H
#define CASTOR_CHECKPOINT_MAPS_H

#include <stdint.h>
#include "hold.h"

typedef enum maps_kind {
    MAPS_OWN,   /* private memory: only this process's threads and system calls write to it */
    MAPS_STORE, /* private views of parameters and states in the store's files */
    MAPS_OTHER,
} maps_kind;

/* Of the whole range; MAPS_OTHER where it is not all of one kind. */
maps_kind maps_kind_of(const hold_maps *maps, uintptr_t begin, uintptr_t end);

#endif
