/* The types of NCCL 2 that the wrappers pass on, declared for machines without its header. The rules of
 * shims/cuda/types.h hold here. */
#ifndef CASTOR_SHIMS_NCCL_TYPES_H
#define CASTOR_SHIMS_NCCL_TYPES_H

#include "shims/cuda/types.h"

typedef enum ncclResult { ncclSuccess = 0, ncclSystemError = 2, ncclInProgress = 7 } ncclResult_t;
typedef enum ncclRedOp { ncclSum = 0 } ncclRedOp_t;
typedef enum ncclScalarResidence { ncclScalarDevice = 0 } ncclScalarResidence_t;
typedef enum ncclDataType {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclConfig ncclConfig_t;
typedef struct ncclSimInfo ncclSimInfo_t;

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

#endif
