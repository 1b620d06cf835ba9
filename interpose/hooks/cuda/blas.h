/* Products of cuBLAS and cuBLASLt: matrices that a call only reads, and whose home is on the host, are read from a slot (device/slots.h);
 * what it writes is noted (writers.h). Private to hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_BLAS_H
#define CASTOR_HOOKS_CUDA_BLAS_H

#include "base/status.h"

/* From now on, for the rows of cublas.def. More than one call is one. */
castor_status blas_install(void);

#endif
