/* What collectives and messages of NCCL write: their receive buffers. Between ncclGroupStart and ncclGroupEnd a call has enqueued nothing
 * yet; what it will write waits for the end of the outermost group.
 *
 * A communicator that does not block may enqueue after its call has returned (ncclInProgress), and nothing says when: such a call is
 * noted as it returns. */
#include "observe.h"
#include "nccl.h"
#include "writers.h"

#define NCCL_RANKS  0
#define WAITING_MAX 16

/* `address` 0: any, since there were more than fit. */
typedef struct receiver {
    uintptr_t address;
    size_t bytes;
    uint64_t stream;
} receiver;

HOOK_THREAD_LOCAL struct {
    uint32_t groups, count; /* open groups; receivers that wait for their end */
    receiver waiting[WAITING_MAX];
} own;

static void note(const receiver *r) {
    if (r->address)
        writers_note((const void *)r->address, r->bytes, r->stream);
    else
        writers_note_all(r->stream);
}

/* One receiver for each stream, of any address. */
static void waiting_merge(void) {
    uint32_t streams = 0;
    for (uint32_t i = 0; i < own.count; i++) {
        uint32_t known = 0;
        while (known < streams && own.waiting[known].stream != own.waiting[i].stream)
            known++;
        own.waiting[known] = (receiver){.stream = own.waiting[i].stream};
        streams += known == streams;
    }
    own.count = streams;
}

static void waiting_add(const receiver *r) {
    if (own.count == WAITING_MAX)
        waiting_merge();
    if (own.count == WAITING_MAX)
        note(r); /* so many streams: nothing better is known */
    else
        own.waiting[own.count++] = *r;
}

static size_t ranks_of(ncclComm_t communicator) {
    static void *found; /* atomic */
    ncclResult_t (*count)(ncclComm_t, int *) = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!count) {
        count = hooks_layer_symbol(HOOK_LAYER_NCCL, "ncclCommCount");
        __atomic_store_n(&found, (void *)count, __ATOMIC_RELAXED);
    }
    int ranks = 0;
    return count && count(communicator, &ranks) == ncclSuccess && ranks > 0 ? (size_t)ranks : 0;
}

static void received(const void *address, uint32_t parts, size_t count, ncclDataType_t datatype,
                     ncclComm_t communicator, cudaStream_t stream) {
    if (!devices_may_hold((uintptr_t)address) || count == 0)
        return;
    size_t each = nccl_bytes(count, datatype),
           bytes = each * (parts == NCCL_RANKS ? ranks_of(communicator) : parts);
    receiver r = {(uintptr_t)address, bytes ? bytes : WRITERS_OPEN, (uint64_t)stream};
    if (own.groups)
        waiting_add(&r);
    else
        note(&r);
}

#define FLAT(...)                        __VA_ARGS__
#define RECEIVED(...)                    RECEIVED_OF(__VA_ARGS__)
#define RECEIVED_OF(address, parts, ...) received(address, parts, __VA_ARGS__)
#define NCCL_COMMUNICATOR(...)
#define NCCL_CALL(...)
#define NCCL_COLLECTIVE(function, operation, parameters, arguments, payload, written, doc)                   \
    static ncclResult_t receive_##function parameters {                                                      \
        ncclResult_t(*real) parameters = hooks_real(HOOK_##function);                                        \
        ncclResult_t status = real arguments;                                                                \
        if (status == ncclSuccess || status == ncclInProgress)                                               \
            RECEIVED(FLAT written, FLAT payload);                                                            \
        return status;                                                                                       \
    }
#include "hooks/table/nccl.def"

static ncclResult_t receive_ncclGroupStart(void) {
    ncclResult_t (*real)(void) = hooks_real(HOOK_ncclGroupStart);
    ncclResult_t status = real();
    if (status == ncclSuccess)
        own.groups++;
    return status;
}

/* A group that fails may have enqueued some of its calls. */
static ncclResult_t receive_ncclGroupEnd(void) {
    ncclResult_t (*real)(void) = hooks_real(HOOK_ncclGroupEnd);
    ncclResult_t status = real();
    own.groups -= own.groups > 0;
    if (own.groups == 0) {
        for (uint32_t i = 0; i < own.count; i++)
            note(&own.waiting[i]);
        own.count = 0;
    }
    return status;
}

void receivers_install(void) {
#define NCCL_COMMUNICATOR(...)
#define NCCL_CALL(...)
#define NCCL_COLLECTIVE(function, ...) observe_target_replace(HOOK_##function, (void *)receive_##function);
#include "hooks/table/nccl.def"
    observe_target_replace(HOOK_ncclGroupStart, (void *)receive_ncclGroupStart);
    observe_target_replace(HOOK_ncclGroupEnd, (void *)receive_ncclGroupEnd);
}
