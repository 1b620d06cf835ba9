/* What the wrappers of NCCL share. Private to hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_NCCL_H
#define CASTOR_HOOKS_CUDA_NCCL_H

#include "hooks/table/hooks.h"
#include "shims/nccl/types.h"

/* 0: a type of unknown size. */
uint64_t nccl_bytes(size_t count, ncclDataType_t datatype);

/* The name of a collective in reports; NULL: the row is no collective. */
const char *nccl_operation(hook_id id);

#endif
