/* The calls: each becomes a task. Also custom reductions, memory and registration. */
#include "nccl_sim.h"
#include "half.h"

static ncclResult_t add(enum task_kind kind, const void *send, void *receive, size_t count,
                        ncclDataType_t type, int op, int root, ncclComm_t comm, cudaStream_t stream) {
    struct task task = {.kind = kind,
                        .comm = comm,
                        .stream = stream,
                        .send = send,
                        .receive = receive,
                        .count = count,
                        .type = type,
                        .op = op,
                        .root = root};

    if (!comm)
        return nccl_error(ncclInvalidArgument, "no communicator");
    if (!type_bytes(type))
        return nccl_error(ncclInvalidArgument, "%d is no data type", (int)type);
    if (root < 0 || root >= comm->ranks)
        return nccl_error(ncclInvalidArgument, "root or peer %d of %d ranks", root, comm->ranks);
    if (op < 0 || op >= ncclNumOps + CUSTOM_OPS || (op >= ncclNumOps && !comm->ops[op - ncclNumOps].used))
        return nccl_error(ncclInvalidArgument, "%d is no reduction", op);
    if (op >= ncclNumOps)
        task.custom = comm->ops[op - ncclNumOps];
    if (sim_stream_resolve(&task.stream)) /* stream 0 is that of the device which is current at the call */
        return nccl_error(ncclUnhandledCudaError, "the stream does not exist");
    if (atomic_load(&comm->abort))
        return nccl_error(ncclInvalidUsage, "the communicator was aborted or destroyed");
    return group_add(&task);
}

BOTH(AllReduce, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                 ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_ALL_REDUCE, sendbuff, recvbuff, count, datatype, (int)op, 0, comm, stream);
}

BOTH(Reduce, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
              int root, ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_REDUCE, sendbuff, recvbuff, count, datatype, (int)op, root, comm, stream);
}

BOTH(Broadcast, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                 ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_BROADCAST, sendbuff, recvbuff, count, datatype, 0, root, comm, stream);
}

BOTH(Bcast,
     (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_BROADCAST, buff, buff, count, datatype, 0, root, comm, stream);
}

BOTH(AllGather, (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                 ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_ALL_GATHER, sendbuff, recvbuff, sendcount, datatype, 0, 0, comm, stream);
}

BOTH(ReduceScatter, (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_REDUCE_SCATTER, sendbuff, recvbuff, recvcount, datatype, (int)op, 0, comm, stream);
}

BOTH(AlltoAll, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                cudaStream_t stream)) {
    ENTER();
    return add(TASK_ALL_TO_ALL, sendbuff, recvbuff, count, datatype, 0, 0, comm, stream);
}

BOTH(Gather, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
              ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_GATHER, sendbuff, recvbuff, count, datatype, 0, root, comm, stream);
}

BOTH(Scatter, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
               ncclComm_t comm, cudaStream_t stream)) {
    ENTER();
    return add(TASK_SCATTER, sendbuff, recvbuff, count, datatype, 0, root, comm, stream);
}

BOTH(Send, (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
            cudaStream_t stream)) {
    ENTER();
    return add(TASK_SEND, sendbuff, NULL, count, datatype, 0, peer, comm, stream);
}

BOTH(Recv, (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
            cudaStream_t stream)) {
    ENTER();
    return add(TASK_RECEIVE, NULL, recvbuff, count, datatype, 0, peer, comm, stream);
}

/* ---- custom reductions: a factor before the sum ---- */

double scalar_load(const void *address, ncclDataType_t type) {
    switch (type) {
    case ncclFloat16:
        return from_fp16(*(const uint16_t *)address);
    case ncclBfloat16:
        return from_bf16(*(const uint16_t *)address);
    case ncclFloat32:
        return *(const float *)address;
    case ncclFloat64:
        return *(const double *)address;
    case ncclInt8:
        return *(const int8_t *)address;
    case ncclUint8:
        return *(const uint8_t *)address;
    case ncclInt32:
        return *(const int32_t *)address;
    case ncclUint32:
        return *(const uint32_t *)address;
    case ncclInt64:
        return (double)*(const int64_t *)address;
    default:
        return (double)*(const uint64_t *)address;
    }
}

BOTH(RedOpCreatePreMulSum, (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype,
                            ncclScalarResidence_t residence, ncclComm_t comm)) {
    ENTER();
    for (int i = 0; i < CUSTOM_OPS; i++) {
        struct custom_op *custom = &comm->ops[i];
        if (custom->used)
            continue;
        *custom =
            (struct custom_op){.used = true, .on_device = residence == ncclScalarDevice, .type = datatype};
        if (custom->on_device)
            custom->address = scalar;
        else
            custom->scalar = scalar_load(scalar, datatype);
        *op = (ncclRedOp_t)(ncclNumOps + i);
        return ncclSuccess;
    }
    return nccl_error(ncclInvalidUsage, "more than %d custom reductions", CUSTOM_OPS);
}

BOTH(RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm)) {
    ENTER();
    if ((int)op < ncclNumOps || (int)op >= ncclNumOps + CUSTOM_OPS)
        return nccl_error(ncclInvalidArgument, "%d is no custom reduction", (int)op);
    comm->ops[(int)op - ncclNumOps].used = false;
    return ncclSuccess;
}

/* ---- memory and registration ---- */

BOTH(MemAlloc, (void **ptr, size_t size)) {
    ENTER();
    return sim_memory_allocate(sim_device(), size, (CUdeviceptr *)ptr)
               ? nccl_error(ncclUnhandledCudaError, "out of memory")
               : ncclSuccess;
}

BOTH(MemFree, (void *ptr)) {
    ENTER();
    return sim_memory_free((CUdeviceptr)ptr) ? nccl_error(ncclUnhandledCudaError, "not from ncclMemAlloc")
                                             : ncclSuccess;
}

/* Registration makes real transfers faster; here it is remembered by nobody. */
BOTH(CommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle)) {
    (void)comm;
    ENTER();
    if (!sim_memory_valid(buff, size))
        return nccl_error(ncclInvalidArgument, "the buffer is not mapped");
    *handle = buff;
    return ncclSuccess;
}

BOTH(CommDeregister, (const ncclComm_t comm, void *handle)) {
    (void)comm, (void)handle;
    ENTER();
    return ncclSuccess;
}

BOTH(CommWindowRegister, (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)) {
    (void)comm, (void)buff, (void)size, (void)winFlags;
    *win = NULL;
    return nccl_error(ncclInvalidUsage, "windows are not simulated");
}

BOTH(CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win)) {
    (void)comm, (void)win;
    return nccl_error(ncclInvalidUsage, "windows are not simulated");
}

BOTH(CommShrink, (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                  ncclConfig_t *config, int shrinkFlags)) {
    (void)comm, (void)excludeRanksList, (void)excludeRanksCount, (void)config, (void)shrinkFlags;
    *newcomm = NULL;
    return nccl_error(ncclInvalidUsage, "shrinking a communicator is not simulated");
}

/* Device communicators are for kernels, which do nothing here. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *device);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *device);

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *device) {
    (void)comm, (void)requirements, (void)device;
    return nccl_error(ncclInvalidUsage, "device communicators are not simulated");
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *device) {
    (void)comm, (void)device;
    return nccl_error(ncclInvalidUsage, "device communicators are not simulated");
}
