/* The runtime's functions that make no sense here, or that nobody has needed yet: they exist and say so. */
#include "sim.h"

#include <driver_types.h>

static int refuse(const char *function) {
    int fault = sim_fault(function);

    return fault ? fault : (int)cudaErrorNotSupported;
}

#define REFUSED(name)                                                                                        \
    int name(void);                                                                                          \
    int name(void) {                                                                                         \
        return refuse(#name);                                                                                \
    }
#include "refused.def"
