/* NCCL: the wrappers, made from the table. All of them observe. A collective's record is the call on the host;
 * its work runs in stream order afterwards. */
#include "base/hash.h"
#include "hooks/c10d/collective.h"
#include "hooks/c10d/process_group.h"
#include "observe.h"
#include "nccl.h"
#include "shims/nccl/types.h"
#include "trace/live.h"

/* By ncclDataType_t: bytes of an element, and its c10::ScalarType. */
static const struct {
    uint8_t bytes, scalar_type;
} datatypes[] = {
    [ncclInt8] = {1, 1},    [ncclUint8] = {1, 0},     [ncclInt32] = {4, 3},       [ncclUint32] = {4, 28},
    [ncclInt64] = {8, 4},   [ncclUint64] = {8, 29},   [ncclFloat16] = {2, 5},     [ncclFloat32] = {4, 6},
    [ncclFloat64] = {8, 7}, [ncclBfloat16] = {2, 15}, [ncclFloat8e4m3] = {1, 24}, [ncclFloat8e5m2] = {1, 23},
};

uint64_t nccl_bytes(size_t count, ncclDataType_t datatype) {
    bool known = (size_t)datatype < sizeof datatypes / sizeof *datatypes;
    return known ? count * datatypes[datatype].bytes : 0;
}

typedef struct nccl_payload {
    size_t count;
    ncclDataType_t datatype;
    ncclComm_t communicator;
    cudaStream_t stream;
} nccl_payload;

/* `peer`: of a message; -1: of a collective. */
static void collective_record(hook_id id, uint64_t begin_ns, ncclResult_t status, nccl_payload payload,
                              int peer) {
    bool known = (size_t)payload.datatype < sizeof datatypes / sizeof *datatypes;
    uint64_t bytes = nccl_bytes(payload.count, payload.datatype);
    observe_facts facts = {0};
    if (status == ncclSuccess) {
        facts = (observe_facts)OBSERVE_FACTS(bytes, payload.stream, payload.communicator);
        device_enqueued(hook_table[id].name, trace_now_ns(), bytes, (uint64_t)payload.stream);
    }
    if (status == ncclSuccess && !collective_is_inside()) {
        observe_tell(id, &facts);
        if (peer < 0)
            live_wait_end(live_collective_enqueue(payload.communicator, nccl_operation(id), bytes, begin_ns));
        else
            live_message_begin(payload.communicator, id == HOOK_ncclSend ? LIVE_SENT : LIVE_RECEIVED, peer, 0,
                               true, begin_ns);
        trace_record_write(TRACE_COLLECTIVE, id, begin_ns, trace_now_ns(), bytes,
                           (uint64_t)(unsigned)observe_thread.device << 32 |
                               (known ? datatypes[payload.datatype].scalar_type : PAYLOAD_NO_DTYPE),
                           process_group_number(payload.communicator), (uint64_t)payload.stream);
        return;
    }
    observe_record(id, begin_ns, (int)status, &facts);
}

static uint64_t communicator_end(ncclComm_t communicator) {
    process_group_end(communicator);
    return (uint64_t)communicator;
}

/* Unique ids hold addresses and a random number: their bytes are as good as a name, and the same on every rank. */
static void communicator_made(ncclComm_t communicator, const ncclUniqueId *ids, int id_count, int rank,
                              int size) {
    uint64_t identity = hash_bytes((uint64_t)size, ids, (size_t)id_count * sizeof *ids);
    process_group_made(communicator, identity, rank, size);
    live_communicator_made(communicator, identity, rank, size);
}

/* Communicators of one process among themselves: nobody else has them. */
static void communicators_made(const ncclComm_t *communicators, int count) {
    for (int i = 0; i < count; i++)
        process_group_made(communicators[i], 0, i, count);
}

/* `part` is NULL for a rank that belongs to none. */
static void communicator_divided(ncclComm_t whole, ncclComm_t made, process_group_division how,
                                 uint64_t choice) {
    uint64_t identity = process_group_divide(whole, how, choice);
    process_group_made(made, identity, -1, 0);
    live_communicator_made(made, identity, -1, 0);
}

/* The same in whatever order the ranks are listed. */
static uint64_t ranks_hash(const int *ranks, int count) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += hash_bytes(0, &ranks[i], sizeof ranks[i]);
    return sum;
}

#define NCCL_CALL(function, parameters, arguments, facts, doc)                                               \
    OBSERVED(OBSERVE_NCCL, OBSERVE_NCCL, ncclResult_t, ncclSystemError, function, #function, false,          \
             EFFECT_WRITES_NOTHING, EFFECT_READS_NOTHING, parameters, arguments, facts, 0)

/* The outermost call of NCCL that a thread makes: `done` follows it, and sees its status_ and begin_ns_. */
#define NCCL_OUTERMOST(function, parameters, arguments, done)                                                \
    ncclResult_t wrap_##function parameters;                                                                 \
    HOOK_EXPORT extern __typeof__(wrap_##function) export_##function __asm__(#function)                      \
        __attribute__((alias("wrap_" #function)));                                                           \
    ncclResult_t wrap_##function parameters {                                                                \
        ncclResult_t(*target_) parameters = observe_target_of(HOOK_##function);                              \
        if (!target_)                                                                                        \
            return ncclSystemError;                                                                          \
        unsigned inside_ = observe_thread.inside;                                                            \
        if (inside_ & OBSERVE_NCCL) {                                                                        \
            target_ = hooks_real(HOOK_##function);                                                           \
            return target_ arguments;                                                                        \
        }                                                                                                    \
        observe_thread.inside = inside_ | OBSERVE_NCCL;                                                      \
        uint64_t begin_ns_ = trace_now_ns();                                                                 \
        ncclResult_t status_ = target_ arguments;                                                            \
        observe_thread.inside = inside_;                                                                     \
        done;                                                                                                \
        return status_;                                                                                      \
    }

#define NCCL_COMMUNICATOR(function, parameters, arguments, facts, made, doc)                                 \
    NCCL_OUTERMOST(function, parameters, arguments, COMMUNICATOR_DONE(function, facts, made))
#define COMMUNICATOR_DONE(function, facts, made)                                                             \
    if (status_ == ncclSuccess || status_ == ncclInProgress)                                                 \
        made;                                                                                                \
    observe_facts observed_ = {0};                                                                           \
    if (status_ == ncclSuccess)                                                                              \
        observed_ = (observe_facts)OBSERVE_FACTS facts;                                                      \
    observe_record(HOOK_##function, begin_ns_, (int)status_, &observed_)

#define PAYLOAD(count, datatype, communicator, stream)                                                       \
    { count, datatype, communicator, stream }
#define NCCL_COLLECTIVE(function, operation, parameters, arguments, payload, received, doc)                  \
    NCCL_OUTERMOST(function, parameters, arguments, WORK_DONE(function, payload, -1))
#define NCCL_MESSAGE(function, operation, parameters, arguments, payload, received, doc)                     \
    NCCL_OUTERMOST(function, parameters, arguments, WORK_DONE(function, payload, peer))
#define WORK_DONE(function, payload, peer)                                                                   \
    collective_record(HOOK_##function, begin_ns_, status_, (nccl_payload)PAYLOAD payload, peer)
#include "hooks/table/nccl.def"

const char *nccl_operation(hook_id id) {
    switch (id) {
#define NCCL_COMMUNICATOR(...)
#define NCCL_CALL(...)
#define NCCL_COLLECTIVE(function, operation, ...)                                                            \
    case HOOK_##function:                                                                                    \
        return #operation;
#include "hooks/table/nccl.def"
    default:
        return NULL;
    }
}
