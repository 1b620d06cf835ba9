/* The probe: what a device and its driver can do of what the library relies on, and how long it takes.
 *
 * Vocabulary
 *   check    a function that runs in a process of its own, within a time limit, and reports fields and rows
 *   pages    physical memory of the device or of the host, a handle of cuMemCreate
 *   place    where pages are: the device, the host's NUMA node beside it (HOST_NUMA), or the host (HOST)
 *
 * What must hold: the process that starts the checks never touches the driver. A check frees nothing: its process ends. What a check has
 * reported so far is kept when it fails, hangs or crashes. */
#ifndef BENCH_GPU_PROBE_PROBE_H
#define BENCH_GPU_PROBE_PROBE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)

/* ---- what the user asked for ---- */

struct probe_settings {
    bool tiny;           /* sizes for simulated devices: the code runs, the figures mean nothing */
    const char *kernels; /* a fat binary of kernels.cu, or NULL */
    const char *cublas;  /* the library, or NULL */
    uint64_t host_bytes; /* that checks may take of the host's memory; 0: as much as seems free */
};
extern struct probe_settings settings;

/* ---- checks ---- */

/* False, or check_left_out: why was said. */
typedef bool check_function(void);
struct check {
    const char *name, *group;
    int limit_s;
    check_function *run;
};
extern const struct check checks_levels[], checks_maps[], checks_moves[], checks_products[], checks_costs[];

/* A call of the driver that must work; else the check fails and says so. */
#define DO(call)                                                                                             \
    do {                                                                                                     \
        CUresult given = (call);                                                                             \
        if (given != CUDA_SUCCESS)                                                                           \
            return check_failed("%s, line %d: %s: %s", __func__, __LINE__, #call, error_name(given));        \
    } while (0)
#define EXPECT(condition, ...)                                                                               \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return check_failed(__VA_ARGS__);                                                                \
    } while (0)
#define PASS(call)                                                                                           \
    do {                                                                                                     \
        if (!(call))                                                                                         \
            return false;                                                                                    \
    } while (0)

#define SAID_BYTES (1u << 20)
/* What a check has said, in a file of memory that outlives its process: lines `field<TAB>name<TAB>JSON`, `row<TAB>list<TAB>JSON`. */
extern struct said {
    atomic_size_t bytes;
    atomic_int left_out;
    char why[1024];
    char lines[SAID_BYTES];
} * said;

/* Both return false. */
bool check_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool check_left_out(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A field of the check's object; the value is JSON. */
void report(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_text(const char *name, const char *text);
/* An object, without its braces, of the check's list of that name. */
void report_row(const char *list, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- the driver ---- */

#define DRIVER_FUNCTIONS(F)                                                                                  \
    F(cuInit)                                                                                                \
    F(cuDriverGetVersion)                                                                                    \
    F(cuGetErrorName)                                                                                        \
    F(cuDeviceGetCount)                                                                                      \
    F(cuDeviceGet)                                                                                           \
    F(cuDeviceGetName)                                                                                       \
    F(cuDeviceTotalMem)                                                                                      \
    F(cuDeviceGetAttribute)                                                                                  \
    F(cuDeviceGetPCIBusId)                                                                                   \
    F(cuDevicePrimaryCtxRetain)                                                                              \
    F(cuCtxSetCurrent)                                                                                       \
    F(cuCtxSynchronize)                                                                                      \
    F(cuStreamCreate)                                                                                        \
    F(cuStreamSynchronize)                                                                                   \
    F(cuStreamWaitEvent)                                                                                     \
    F(cuEventCreate)                                                                                         \
    F(cuEventDestroy)                                                                                        \
    F(cuEventRecord)                                                                                         \
    F(cuEventQuery)                                                                                          \
    F(cuEventSynchronize)                                                                                    \
    F(cuEventElapsedTime)                                                                                    \
    F(cuMemGetInfo)                                                                                          \
    F(cuMemAlloc)                                                                                            \
    F(cuMemFree)                                                                                             \
    F(cuMemHostAlloc)                                                                                        \
    F(cuMemHostGetDevicePointer)                                                                             \
    F(cuMemHostRegister)                                                                                     \
    F(cuMemcpyHtoD)                                                                                          \
    F(cuMemcpyDtoH)                                                                                          \
    F(cuMemcpyHtoDAsync)                                                                                     \
    F(cuMemcpyDtoHAsync)                                                                                     \
    F(cuMemcpyDtoDAsync)                                                                                     \
    F(cuPointerGetAttribute)                                                                                 \
    F(cuMemcpyAsync)                                                                                         \
    F(cuMemsetD8)                                                                                            \
    F(cuMemGetAllocationGranularity)                                                                         \
    F(cuMemAddressReserve)                                                                                   \
    F(cuMemCreate)                                                                                           \
    F(cuMemRelease)                                                                                          \
    F(cuMemMap)                                                                                              \
    F(cuMemUnmap)                                                                                            \
    F(cuMemSetAccess)                                                                                        \
    F(cuMemExportToShareableHandle)                                                                          \
    F(cuMemImportFromShareableHandle)                                                                        \
    F(cuLibraryLoadData)                                                                                     \
    F(cuLibraryGetKernel)                                                                                    \
    F(cuKernelGetFunction)                                                                                   \
    F(cuLaunchKernel)

/* `cu.cuMemAlloc(...)`: the header's macros give the member the same version as the function. */
#define DRIVER_POINTER(name) __typeof__(name) *name;
extern struct driver { DRIVER_FUNCTIONS(DRIVER_POINTER) } cu;

const char *error_name(CUresult error);
/* Loads the driver, the first device and its primary context; loads the kernels, where there are any. */
bool device_open(void);
/* Left out where there are no kernels. */
bool need_kernels(void);
extern CUdevice device;
extern int host_node; /* the host's NUMA node beside the device; 0 where it has none */

/* ---- pages ---- */

enum place { PLACE_DEVICE, PLACE_HOST_NUMA, PLACE_HOST, PLACE_COUNT };
extern const char *const place_names[PLACE_COUNT];
CUmemAllocationProp place_prop(enum place place);
CUmemAccessDesc device_access(CUmemAccess_flags flags);
/* Whole units of the place. */
bool whole_units(enum place place, size_t *bytes);
bool pages_create(enum place place, size_t bytes, CUmemGenericAllocationHandle *pages);
/* At offset 0, readable and writable by the device. */
bool pages_map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle pages);
/* Reserves, creates, maps. */
bool place_make(enum place place, size_t bytes, CUdeviceptr *address);
/* The place of host pages that this driver takes: HOST_NUMA, else HOST. False, left out: neither. */
bool host_place(enum place *place);
/* Bytes that a check may pin of the host's memory: bounded by free memory and by the control group. */
uint64_t host_room(void);
uint64_t cgroup_bytes(const char *name); /* memory.max, memory.current; UINT64_MAX: none */
uint64_t available_bytes(void);

/* ---- kernels; see kernels.cu ---- */

enum kernel { KERNEL_FILL, KERNEL_WRONG, KERNEL_SUM, KERNEL_SPIN, KERNEL_SPIN_WRITE, KERNEL_COUNT };
/* Of the pseudorandom words of a seed. */
bool kernel_fill(CUdeviceptr to, size_t bytes, uint64_t seed, CUstream stream);
/* Of random numbers between 0.5 and 1, and below zero: as floats and as bfloat16. */
bool kernel_numbers(CUdeviceptr to, size_t bytes, uint64_t seed, CUstream stream);
/* How many words are not those; waits. */
bool kernel_wrong(CUdeviceptr from, size_t bytes, uint64_t seed, uint64_t *wrong);
bool kernel_sum(CUdeviceptr from, size_t bytes, CUstream stream);
/* Runs so long, on one processor. */
bool kernel_spin(uint64_t ns, CUstream stream);
/* The same, then writes a word. */
bool kernel_spin_write(uint64_t ns, CUdeviceptr to, CUstream stream);
uint64_t word_of(uint64_t seed, uint64_t index);

/* ---- time ---- */

double now_us(void);
/* Sorts. */
double median(double *values, size_t count);

#endif
