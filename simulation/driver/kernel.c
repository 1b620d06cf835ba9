/* Streams, events and graphs in their single form; modules, libraries and kernels; entry points by name. */
#include "driver.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
    ENTER();
    return sim_stream_create(Flags, 0, phStream);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
    ENTER();
    return sim_stream_create(flags, priority, phStream);
}

CUresult cuStreamDestroy(CUstream hStream) {
    ENTER();
    return sim_stream_destroy(hStream);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER();
    *mode = (CUstreamCaptureMode)sim_capture_exchange_mode((int)*mode);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
    ENTER();
    return sim_event_create(Flags, phEvent);
}

CUresult cuEventDestroy(CUevent hEvent) {
    ENTER();
    return sim_event_destroy(hEvent);
}

CUresult cuEventQuery(CUevent hEvent) {
    ENTER();
    return sim_event_query(hEvent);
}

CUresult cuEventSynchronize(CUevent hEvent) {
    ENTER();
    return sim_event_synchronize(hEvent);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    ENTER();
    return sim_event_elapsed(pMilliseconds, hStart, hEnd);
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags) {
    ENTER();
    return flags ? CUDA_ERROR_INVALID_VALUE : sim_graph_create(phGraph);
}

CUresult cuGraphDestroy(CUgraph hGraph) {
    ENTER();
    return sim_graph_destroy(hGraph);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags) {
    (void)flags;
    ENTER();
    return sim_graph_instantiate(hGraph, phGraphExec);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
    ENTER();
    return sim_graph_exec_destroy(hGraphExec);
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes) {
    ENTER();
    return sim_graph_nodes(hGraph, nodes, numNodes);
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type) {
    ENTER();
    *type = hNode->type;
    return CUDA_SUCCESS;
}

/* ---- modules and libraries ---- */

/* The whole file with a zero behind it; the caller frees it. */
static char *read_file(const char *path) {
    FILE *file = fopen(path, "rbe");
    char *text = NULL;
    long bytes;

    if (file && !fseek(file, 0, SEEK_END) && (bytes = ftell(file)) >= 0 &&
        (text = calloc(1, (size_t)bytes + 1))) {
        rewind(file);
        if (fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
            free(text);
            text = NULL;
        }
    }
    if (file)
        fclose(file);
    return text;
}

static CUresult load_file(const char *path, CUmodule *module) {
    char *image = read_file(path);
    CUresult result = image ? sim_module_load(image, module) : CUDA_ERROR_FILE_NOT_FOUND;

    free(image);
    return result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER();
    return sim_module_load(image, module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                            CUjit_option *options, void **optionValues) {
    (void)numOptions, (void)options, (void)optionValues;
    ENTER();
    return sim_module_load(image, module);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
    ENTER();
    return sim_module_load(fatCubin, module);
}

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    ENTER();
    return load_file(fname, module);
}

CUresult cuModuleUnload(CUmodule hmod) {
    ENTER();
    return sim_module_unload(hmod);
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
    ENTER();
    *hfunc = sim_module_function(hmod, name);
    return *hfunc ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                           void **jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
    (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions;
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    ENTER();
    return sim_module_load(code, (CUmodule *)library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions) {
    (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions;
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    ENTER();
    return load_file(fileName, (CUmodule *)library);
}

CUresult cuLibraryUnload(CUlibrary library) {
    ENTER();
    return sim_module_unload((CUmodule)library);
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
    ENTER();
    *pKernel = (CUkernel)sim_module_function((CUmodule)library, name);
    return *pKernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib) {
    ENTER();
    *count = 0;
    for (CUfunction f = ((CUmodule)lib)->functions; f; f = f->next_in_module)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
    ENTER();
    *pMod = (CUmodule)library;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
    ENTER();
    *pFunc = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel) {
    ENTER();
    *pLib = (CUlibrary)((CUfunction)kernel)->module;
    return CUDA_SUCCESS;
}

/* ---- kernels ---- */

CUresult cuFuncGetName(const char **name, CUfunction hfunc) {
    ENTER();
    *name = hfunc->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc) {
    ENTER();
    *name = ((CUfunction)hfunc)->name;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc) {
    ENTER();
    *hmod = hfunc->module;
    return CUDA_SUCCESS;
}

static CUresult parameter(CUfunction function, size_t index, size_t *offset, size_t *size) {
    sim_function_layout(function);
    if (!function->laid_out)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (index >= function->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = function->parameters[index].offset;
    if (size)
        *size = function->parameters[index].size;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize) {
    ENTER();
    return parameter(func, paramIndex, paramOffset, paramSize);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize) {
    ENTER();
    return parameter((CUfunction)kernel, paramIndex, paramOffset, paramSize);
}

static CUresult attribute(int *pi, CUfunction_attribute attrib, CUfunction function) {
    switch ((int)attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *pi = 1024;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *pi = 32;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *pi = sim_config()->major * 10 + sim_config()->minor;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *pi = function->dynamic_shared_limit;
        break;
    default:
        *pi = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
    ENTER();
    return attribute(pi, attrib, hfunc);
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
    (void)dev;
    ENTER();
    return attribute(pi, attrib, (CUfunction)kernel);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    ENTER();
    if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        hfunc->dynamic_shared_limit = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
    (void)hfunc, (void)config;
    ENTER();
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
    (void)func, (void)dynamicSMemSize;
    ENTER();
    *numBlocks = blockSize > 0 && blockSize <= 1024 ? 2048 / blockSize : 0;
    return CUDA_SUCCESS;
}

/* ---- entry points ---- */

/* Our own table of symbols, and not dlsym, which somebody in front of it may answer with a wrapper of his. */
static void *own_symbol(const struct link_map *self, const char *name) {
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;

    for (const ElfW(Dyn) *entry = self->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_STRTAB)
            names = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_HASH) /* linked with --hash-style=sysv: the second word is the count */
            hash = (const void *)entry->d_un.d_ptr;
    }
    for (uint32_t i = 0; symbols && names && hash && i < hash[1]; i++) {
        if (symbols[i].st_shndx != SHN_UNDEF && strcmp(names + symbols[i].st_name, name) == 0)
            return (char *)self->l_addr + symbols[i].st_value;
    }
    return NULL;
}

/* The newest form that is defined here, since the headers that the simulation is built from are the wheel's; and
 * with the flag for it, the form whose stream 0 is the thread's own. */
static void *find(const struct link_map *self, const char *symbol, bool per_thread) {
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""}, *const forms[] = {"_ptsz", "_ptds", ""};
    char name[160];
    void *function;

    if (strcmp(symbol, "cuGraphInstantiate") == 0) /* the headers' name for it since CUDA 12 */
        symbol = "cuGraphInstantiateWithFlags";
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        for (size_t f = per_thread ? 0 : 2; f < 3; f++) {
            snprintf(name, sizeof name, "%s%s%s", symbol, suffixes[i], forms[f]);
            if ((function = own_symbol(self, name)))
                return function;
        }
    }
    return NULL;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *symbolStatus) {
    Dl_info self;
    void *map;

    (void)cudaVersion;
    ENTER_EARLY();
    *pfn = NULL;
    if (!symbol || strlen(symbol) > 128 || strncmp(symbol, "cu", 2) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (dladdr1((void *)own_symbol, &self, &map, RTLD_DL_LINKMAP))
        *pfn = find(map, symbol, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if (symbolStatus)
        *symbolStatus = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
