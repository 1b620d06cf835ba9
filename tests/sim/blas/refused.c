/* cuBLAS's functions that are not simulated but must exist for the loader: they say so. */
#include "sim.h"

#define CUBLAS_NOT_SUPPORTED                                                                                 \
    15 /* CUBLAS_STATUS_NOT_SUPPORTED; the headers would declare what follows otherwise */

#define REFUSED(name)                                                                                        \
    int name(void);                                                                                          \
    int name(void) {                                                                                         \
        return CUBLAS_NOT_SUPPORTED;                                                                         \
    }
#include "refused.def"
