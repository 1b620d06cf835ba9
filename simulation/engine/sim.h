/* The engine of the simulated devices: what the runtime, the driver, cuBLAS and NCCL stand on.
 *
 * device   a number below SIM_DEVICES, with a limit of memory and no processor: kernels of the wheel do nothing
 * context  CUctx_st; the primary one of a device is what the runtime uses
 * stream   CUstream_st: a queue of operations and, from the first one that takes time, a thread that runs them
 * op       a function with a copy of its arguments; what a stream runs, and what a node of a graph holds
 * block    a range of addresses that the simulation handed out or registered
 * zone     the addresses from which all device memory and reservations come; an address in the zone without a
 *          block is one that was freed, unmapped or never given
 *
 * What must hold: an address of a block stays until the block is freed, is never given twice while the zone lasts, and
 * faults afterwards. The ops of a stream run one after another, in the order of their submission. Locks are taken in
 * the order context, stream, event, memory; no lock is held while an op runs that can wait. Errors are CUresult; the runtime's
 * numbers are the same.
 */
#ifndef SIM_ENGINE_SIM_H
#define SIM_ENGINE_SIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#define SIM_API         __attribute__((visibility("default")))
#define SIM_DEVICES_MAX 16
#define SIM_PAGE        4096u
#define SIM_GRANULE     (2u << 20)
#define SIM_ZONE_START  0x200000000000ull
#define SIM_ZONE_END    0x500000000000ull /* programs and their heaps begin above */

/* ---- configuration, from the environment ---- */

struct sim_config {
    int devices; /* SIM_DEVICES, default 1, less those that CUDA_VISIBLE_DEVICES leaves out */
    int visible[SIM_DEVICES_MAX]; /* the number of each among all of them */
    size_t memory;                /* SIM_MEMORY, bytes per device, default 80G */
    size_t host_memory;           /* SIM_HOST_MEMORY, bytes that may be pinned, default 0: no limit */
    bool refuses_host_pages, refuses_host_alloc; /* SIM_REFUSES */
    bool
        blank; /* SIM_BLANK=1: nothing is written to a device, whose memory reads as zeros and takes none of the host's */
    double link_bandwidth; /* SIM_LINK_BANDWIDTH, bytes per second each way, default 0: no time */
    int major, minor;      /* SIM_COMPUTE, default 9.0 */
    bool
        check_faults; /* SIM_CHECK=fault: a launch with a dangling pointer ends its context, as on a device */
    bool verbose;     /* SIM_VERBOSE=1: a line for each call of the runtime that fails */
    bool log_launches; /* SIM_LAUNCHES=FILE: a line per launch */
};
const struct sim_config *sim_config(void) SIM_API;

/* SIM_FAIL=NAME:N:CODE[,...]: the N-th call of the function NAME returns CODE; N* means from the N-th on.
 * SIM_LATENCY=NAME:MICROSECONDS[,...]: a call of that name, or an op of that kind (launch, copy, set, host, blas,
 * nccl), takes so long. Returns what the call shall return; 0 goes on. */
extern atomic_bool sim_faults_active SIM_API;
int sim_fault_look(const char *function) SIM_API;
int sim_fault_set(const char *failures, const char *latencies) SIM_API;
/* A line for each function that was called since failures were set: its name, the calls, and how many of them were made to fail. Returns
 * the bytes of the text. NAME:0:0 makes none fail. */
size_t sim_fault_calls(char *text, size_t size) SIM_API;
/* SIM_HANG=KIND:NUMBER[:DEVICE][,...]: the op of that kind and number, counted on each device from here on, is never done, on
 * that device or on each. Setting others, or "", ends what hangs. */
int sim_hang_set(const char *hangs) SIM_API;
void sim_hang_look(const char *kind, int device);
static inline int sim_fault(const char *function) {
    return atomic_load_explicit(&sim_faults_active, memory_order_relaxed) ? sim_fault_look(function) : 0;
}
/* A function of a library begins with it: fails where SIM_FAIL says so. */
#define SIM_ENTER(type, function)                                                                            \
    do {                                                                                                     \
        int fault = sim_fault(function);                                                                     \
        if (fault)                                                                                           \
            return (type)fault;                                                                              \
    } while (0)

/* One line on standard error, `sim: ` before it. */
void sim_say(const char *format, ...) SIM_API __attribute__((format(printf, 1, 2)));

/* ---- devices and contexts ---- */

struct sim_wait {
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

struct CUctx_st {
    int device;
    bool primary;
    unsigned flags;
    unsigned peers;        /* bit d: access to device d's memory was enabled */
    atomic_int sticky;     /* the error that ended the context, or 0 */
    pthread_mutex_t order; /* held while ops are given places in streams */
    CUstream legacy;
    CUstream streams; /* by next_in_context; guarded by order */
    size_t limits[16];
    bool destroyed;
};

CUresult sim_ctx_primary(int device, CUcontext *ctx) SIM_API;
bool sim_ctx_primary_active(int device) SIM_API;
/* The driver is started by cuInit, and by nearly any call of the runtime. */
void sim_start(void) SIM_API;
bool sim_started(void) SIM_API;
/* The thread's context; with `make` the primary context of its device when it has none. */
CUresult sim_ctx_current(CUcontext *ctx, bool make) SIM_API;
CUresult sim_ctx_set(CUcontext ctx) SIM_API;
CUresult sim_ctx_push(CUcontext ctx) SIM_API;
CUresult sim_ctx_pop(CUcontext *ctx) SIM_API;
CUresult sim_ctx_create(int device, unsigned flags, CUcontext *ctx) SIM_API;
CUresult sim_ctx_destroy(CUcontext ctx) SIM_API;
CUresult sim_ctx_synchronize(CUcontext ctx) SIM_API;
/* Marks the context as ended by an error; every later call on it returns the error. */
void sim_ctx_fail(CUcontext ctx, CUresult error) SIM_API;
int sim_device(void) SIM_API; /* the thread's device */
CUresult sim_device_set(int device) SIM_API;
CUresult sim_device_attribute(int *value, int attribute, int device) SIM_API;
void sim_device_uuid(int device, void *uuid) SIM_API;
int sim_device_bus(int device) SIM_API; /* on PCI */
bool sim_forked(void) SIM_API;          /* CUDA does not survive a fork */

/* ---- memory ---- */

enum sim_kind { SIM_DEVICE_MEMORY, SIM_HOST_MEMORY, SIM_REGISTERED, SIM_MANAGED, SIM_MAPPED };

struct sim_allocation { /* physical memory: what cuMemCreate makes and a map refers to */
    atomic_int references;
    int fd;
    off_t offset;
    size_t size;
    CUmemAllocationProp prop;
    bool charged;
};

#define SIM_SHARED_HOST "sim-host-shared" /* a file with memory of the host that processes share */

struct sim_block {
    uintptr_t start;
    size_t size;   /* as asked for */
    size_t length; /* of the mapping, whole pages */
    enum sim_kind kind;
    int device;
    unsigned flags;
    unsigned access,
        writable; /* bit d: device d may read, and write; the highest: the processors. SIM_MAPPED only */
    uint64_t id;
    CUcontext ctx;
    struct sim_allocation *physical;
    CUmemoryPool pool;
    bool imported;
};

struct sim_pointer { /* what is known about an address */
    struct sim_block block;
    bool found;
};

CUresult sim_memory_allocate(int device, size_t bytes, CUdeviceptr *address) SIM_API;
CUresult sim_memory_free(CUdeviceptr address) SIM_API; /* waits for the context's work first */
CUresult sim_memory_free_now(CUdeviceptr address) SIM_API;
CUresult sim_memory_managed(size_t bytes, unsigned flags, CUdeviceptr *address) SIM_API;
CUresult sim_memory_info(int device, size_t *free_bytes, size_t *total_bytes) SIM_API;
size_t sim_memory_peak(int device) SIM_API; /* most bytes that were used at a time since the last call */
CUresult sim_host_allocate(size_t bytes, unsigned flags, void **address) SIM_API;
CUresult sim_host_free(void *address) SIM_API;
CUresult sim_host_register(void *address, size_t bytes, unsigned flags) SIM_API;
CUresult sim_host_unregister(void *address) SIM_API;
struct sim_pointer sim_memory_find(const void *address) SIM_API;
/* True when every byte of the range is accessible: in blocks, or outside the zone. */
bool sim_memory_valid(const void *address, size_t bytes) SIM_API;
/* True for an address that was handed out once, freed or not. The rest of the zone was never an address: a number there
 * is one by chance, as the nanoseconds of a machine that is up for 10 to 24 hours are. */
bool sim_memory_given(uintptr_t address);
static inline bool sim_in_zone(uintptr_t address) {
    return address >= SIM_ZONE_START && address < SIM_ZONE_END;
}

CUresult sim_vmm_create(size_t size, const CUmemAllocationProp *prop, struct sim_allocation **made) SIM_API;
CUresult sim_vmm_release(struct sim_allocation *physical) SIM_API;
CUresult sim_vmm_retain(struct sim_allocation **physical, const void *address) SIM_API;
CUresult sim_vmm_reserve(size_t size, size_t alignment, CUdeviceptr hint, CUdeviceptr *address) SIM_API;
CUresult sim_vmm_unreserve(CUdeviceptr address, size_t size) SIM_API;
CUresult sim_vmm_map(CUdeviceptr address, size_t size, size_t offset,
                     struct sim_allocation *physical) SIM_API;
CUresult sim_vmm_unmap(CUdeviceptr address, size_t size) SIM_API;
CUresult sim_vmm_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count) SIM_API;
CUresult sim_vmm_export(struct sim_allocation *physical, int *fd) SIM_API;
CUresult sim_vmm_import(int fd, struct sim_allocation **physical) SIM_API;
bool sim_vmm_known(const struct sim_allocation *physical) SIM_API;

/* Sharing with other processes of this machine. */
CUresult sim_ipc_export(CUdeviceptr address, void *handle64) SIM_API;
CUresult sim_ipc_open(const void *handle64, CUdeviceptr *address) SIM_API;
CUresult sim_ipc_close(CUdeviceptr address) SIM_API;

/* Used by vmm.c, memory.c and pool.c on each other; guarded by the memory lock, which the callers of these hold. */
struct sim_space { /* blocks ordered by address */
    struct sim_block **items;
    size_t count, capacity;
};
extern struct sim_space sim_blocks, sim_reservations;
extern pthread_rwlock_t sim_memory_lock;
struct sim_block *sim_space_find(const struct sim_space *space, uintptr_t address);
int sim_space_add(struct sim_space *space, struct sim_block *block);
void sim_space_remove(struct sim_space *space, struct sim_block *block);
uintptr_t sim_zone_take(size_t length, size_t alignment);
CUresult sim_physical_make(const CUmemAllocationProp *prop, size_t size, struct sim_allocation **made);
void sim_physical_drop(struct sim_allocation *physical);
bool sim_physical_charge(struct sim_allocation *physical);
uint64_t sim_next_id(void) SIM_API;

/* ---- streams ---- */

typedef CUresult sim_run(void *arguments);
enum sim_op_kind { /* SIM_LAUNCH does nothing, SIM_KERNEL has a body */
                   SIM_LAUNCH,
                   SIM_KERNEL,
                   SIM_COPY,
                   SIM_SET,
                   SIM_HOST,
                   SIM_BLAS,
                   SIM_NCCL,
                   SIM_EVENT,
                   SIM_WAIT,
                   SIM_FREE,
                   SIM_GRAPH
};

struct sim_op {
    struct sim_op *next;
    uint64_t sequence;
    sim_run *run;
    enum sim_op_kind kind;
    _Alignas(16) unsigned char arguments[];
};

struct CUstream_st {
    unsigned magic;
    CUcontext ctx;
    unsigned flags;
    int priority;
    uint64_t id;
    CUstream next_in_context;
    struct sim_wait wait; /* guards what follows */
    struct sim_op *head, *tail;
    uint64_t submitted, completed;
    bool thread_started, running, destroyed;
    int waiting;
    struct sim_capture *capture; /* guarded by the graph lock */
    CUgraphNode *tips;           /* the nodes that the next one depends on */
    size_t tip_count;
};

CUresult sim_stream_create(unsigned flags, int priority, CUstream *stream) SIM_API;
CUresult sim_stream_destroy(CUstream stream) SIM_API;
/* Handles 0 and CU_STREAM_LEGACY are the context's legacy stream, CU_STREAM_PER_THREAD the thread's own. */
CUresult sim_stream_resolve(CUstream *stream) SIM_API;
/* Gives the op, with a copy of the arguments, its place in the stream; or in the graph that the stream captures. */
CUresult sim_stream_submit(CUstream stream, enum sim_op_kind kind, sim_run *run, const void *arguments,
                           size_t size) SIM_API;
CUresult sim_stream_synchronize(CUstream stream) SIM_API;
CUresult sim_stream_query(CUstream stream) SIM_API;
/* Waits until the stream has completed that op. */
void sim_stream_await(CUstream stream, uint64_t sequence) SIM_API;
void sim_op_delay(enum sim_op_kind kind);
extern const char *const sim_op_names[];

struct sim_event_page { /* of an event that other processes see, in a memfd */
    atomic_ulong recorded, completed;
};

struct CUevent_st {
    unsigned magic;
    unsigned flags;
    atomic_int references;
    struct sim_wait wait; /* guards what follows */
    uint64_t recorded, completed;
    struct sim_event_page *shared; /* instead of the two, for an event of several processes */
    int fd;                        /* of that */
    int64_t time_ns;
    CUcontext ctx;
    struct sim_capture *capture; /* the capture it was last recorded in, if that is not over */
    CUgraphNode *tips;
    size_t tip_count;
};

CUresult sim_event_create(unsigned flags, CUevent *event) SIM_API;
CUresult sim_event_destroy(CUevent event) SIM_API;
CUresult sim_event_record(CUevent event, CUstream stream, unsigned flags) SIM_API;
CUresult sim_event_query(CUevent event) SIM_API;
CUresult sim_event_synchronize(CUevent event) SIM_API;
CUresult sim_event_export(CUevent event, void *handle64) SIM_API;
CUresult sim_event_open(const void *handle64, CUevent *event) SIM_API;
CUresult sim_event_elapsed(float *milliseconds, CUevent start, CUevent end) SIM_API;
CUresult sim_stream_wait_event(CUstream stream, CUevent event, unsigned flags) SIM_API;
/* That a device's legacy streams have waited for events of other streams, and for values. */
unsigned long long sim_waited_ns(int device) SIM_API;
void sim_waited_add(int device, int64_t ns) SIM_API;
int64_t sim_now_ns(void) SIM_API;

/* ---- the link between a device and the host ---- */

/* The device on whose memory an address lies; -1: it is of the host. */
int sim_device_at(const void *address);
/* Returns when the link has passed what a copy needs of it. */
void sim_link_copy(const void *target, const void *source, size_t bytes);
/* That have passed; direction 0: to the device, 1: to the host. */
unsigned long long sim_link_bytes(int device, int direction) SIM_API;

/* ---- copies ---- */

struct sim_copy { /* of `rows` pieces of `width` bytes */
    void *target;
    const void *source;
    size_t width, rows, target_pitch, source_pitch;
};
/* A copy takes its place in the stream. `wait`: returns when it is done. Pageable host memory is read before the call
 * returns, and written before it returns, as CUDA does. */
CUresult sim_copy_submit(CUstream stream, const struct sim_copy *copy, bool wait) SIM_API;
CUresult sim_set_submit(CUstream stream, void *target, size_t pitch, uint32_t value, unsigned element,
                        size_t width, size_t rows, bool wait) SIM_API;
CUresult sim_host_submit(CUstream stream, void (*function)(void *), void *data) SIM_API;

/* ---- pools of stream-ordered memory ---- */

CUresult sim_pool_default(int device, CUmemoryPool *pool) SIM_API;
CUresult sim_pool_current(int device, CUmemoryPool *pool) SIM_API;
CUresult sim_pool_set_current(int device, CUmemoryPool pool) SIM_API;
CUresult sim_pool_create(int device, CUmemoryPool *pool) SIM_API;
CUresult sim_pool_destroy(CUmemoryPool pool) SIM_API;
CUresult sim_pool_allocate(CUmemoryPool pool, size_t bytes, CUstream stream, CUdeviceptr *address) SIM_API;
CUresult sim_pool_free(CUdeviceptr address, CUstream stream) SIM_API;
CUresult sim_pool_trim(CUmemoryPool pool, size_t keep) SIM_API;
CUresult sim_pool_attribute(CUmemoryPool pool, int attribute, void *value, bool set) SIM_API;

/* ---- kernels and launches ---- */

struct sim_parameter {
    unsigned offset, size;
};

struct CUmod_st { /* what was registered or loaded together: a fat binary, a cubin, PTX */
    const void *image;
    pthread_mutex_t lock;
    bool parsed;
    bool unloaded;
    bool loaded; /* the image says which functions there are; else the program registers them */
    char *names; /* PTX: the text, for the kernels that it names */
    struct CUfunc_st *functions;
};

/* A kernel. CUfunction, CUkernel and the runtime's cudaKernel_t and cudaFunction_t are all this. */
struct CUfunc_st {
    unsigned magic;
    const char *name;
    const void *host; /* the address that a program launches by, or NULL */
    CUmodule module;
    bool laid_out; /* the parameters are known */
    unsigned parameter_count, parameter_bytes;
    struct sim_parameter *parameters;
    int dynamic_shared_limit;
    atomic_ulong launches;
    void (*body)(const unsigned *grid, const unsigned *block,
                 void **arguments); /* from SIM_KERNELS, or NULL */
    struct CUfunc_st *next_in_module, *next_by_host;
};

struct sim_launch { /* a recorded launch */
    uint64_t sequence;
    const char *name;
    unsigned grid[3], block[3], shared_bytes;
    uint64_t stream_id;
    int device;
    unsigned argument_bytes; /* 0: the layout is not known */
    unsigned pointers;       /* arguments that are addresses which were handed out */
    unsigned dangling;       /* of these: in no mapped block when the launch was made */
};

CUmodule sim_module_add(const void *image) SIM_API;
CUfunction sim_function_add(CUmodule module, const char *name, const void *host) SIM_API;
CUfunction sim_function_by_host(const void *host) SIM_API;
CUfunction sim_function_by_name(CUmodule module, const char *name) SIM_API;
void sim_function_layout(CUfunction function) SIM_API;
/* An image (fat binary, cubin, PTX) with the kernels that it names; it is read now and need not stay. */
CUresult sim_module_load(const void *image, CUmodule *module) SIM_API;
CUresult sim_module_unload(CUmodule module) SIM_API;
CUfunction sim_module_function(CUmodule module, const char *name) SIM_API;
/* `arguments` or `buffer` as in cuLaunchKernel. */
CUresult sim_launch(CUfunction function, const unsigned *grid, const unsigned *block, unsigned shared_bytes,
                    CUstream stream, void **arguments, const void *buffer, size_t buffer_bytes) SIM_API;
/* For tests, over ctypes: launches so far, the last ones of them, and how many dangling pointers were seen. */
uint64_t sim_launch_count(void) SIM_API;
int sim_launch_get(uint64_t sequence, struct sim_launch *launch) SIM_API;
uint64_t sim_launch_dangling(void) SIM_API;

/* Fills in the parameters of the module's functions from its image. */
void sim_fatbin_parse(CUmodule module);

/* ---- graphs ---- */

struct CUgraphNode_st {
    CUgraph graph;
    enum CUgraphNodeType_enum type;
    enum sim_op_kind kind;
    sim_run *run;
    void *arguments;
    size_t size;
    CUgraphNode *dependencies;
    size_t dependency_count;
};

struct CUgraph_st {
    unsigned magic;
    CUgraphNode *nodes;
    size_t count, capacity;
};

bool sim_capture_takes(CUstream stream) SIM_API;
CUresult sim_capture_add(CUstream stream, enum sim_op_kind kind, sim_run *run, const void *arguments,
                         size_t size) SIM_API;
/* What may not happen while a stream captures; such a call ends the capture. */
CUresult sim_capture_forbid(void) SIM_API;
/* What the legacy stream may not do while a blocking stream of its context captures. */
CUresult sim_capture_implicit(CUstream stream) SIM_API;
CUresult sim_capture_record(CUstream stream, CUevent event);
bool sim_capture_wait(CUstream stream, CUevent event, CUresult *result);
CUresult sim_capture_begin(CUstream stream, int mode) SIM_API;
CUresult sim_capture_end(CUstream stream, CUgraph *graph) SIM_API;
CUresult sim_capture_info(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                          const CUgraphNode **tips, size_t *count) SIM_API;
CUresult sim_capture_update(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags) SIM_API;
int sim_capture_exchange_mode(int mode) SIM_API;
CUresult sim_graph_create(CUgraph *graph) SIM_API;
CUresult sim_graph_destroy(CUgraph graph) SIM_API;
CUresult sim_graph_instantiate(CUgraph graph, CUgraphExec *exec) SIM_API;
CUresult sim_graph_exec_destroy(CUgraphExec exec) SIM_API;
CUresult sim_graph_launch(CUgraphExec exec, CUstream stream) SIM_API;
CUresult sim_graph_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count) SIM_API;
CUresult sim_node_dependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) SIM_API;
CUresult sim_graph_add(CUgraph graph, const CUgraphNode *dependencies, size_t count, int type,
                       enum sim_op_kind kind, sim_run *run, const void *arguments, size_t size,
                       CUgraphNode *node) SIM_API;

#endif
