/* REFUSED(name): a function that is not simulated but must exist for the loader; it says so. */
#ifndef SIM_BLAS_REFUSED_H
#define SIM_BLAS_REFUSED_H

#define CUBLAS_NOT_SUPPORTED                                                                                 \
    15 /* CUBLAS_STATUS_NOT_SUPPORTED; the headers would declare what follows otherwise */

#define REFUSED(name)                                                                                        \
    int name(void);                                                                                          \
    int name(void) {                                                                                         \
        return CUBLAS_NOT_SUPPORTED;                                                                         \
    }

#endif
