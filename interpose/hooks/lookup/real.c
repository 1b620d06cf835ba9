#include "objects.h"
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include "base/log.h"
#include "shims/torch/device.h"
#include "shims/torch/stable.h"
#include "wrapper.h"

#define VERSION_HIDDEN 0x8000 /* of DT_VERSYM: not the default version */

static bool name_matches(const char *path, const char *library) {
    const char *name = path;
    for (const char *at = path; at && *at; at++)
        if (*at == '/')
            name = at + 1;
    for (; name && *library; name++, library++)
        if (*name != *library)
            return false;
    return name && (*name == '\0' || *name == '.');
}

/* glibc has relocated the addresses in its dynamic sections, but not those of the kernel's vdso. */
static const void *table_at(const struct dl_phdr_info *info, Elf64_Addr address) {
    return (const void *)(address < info->dlpi_addr ? address + info->dlpi_addr : address);
}

bool objects_read(const struct dl_phdr_info *info, object_tables *out) {
    const Elf64_Dyn *dynamic = NULL;
    *out = (object_tables){.base = info->dlpi_addr, .begin = UINTPTR_MAX};
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *header = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC) {
            dynamic = (const Elf64_Dyn *)from;
        } else if (header->p_type == PT_GNU_RELRO) {
            out->relro_begin = from;
            out->relro_end = from + header->p_memsz;
        } else if (header->p_type == PT_LOAD) {
            out->begin = from < out->begin ? from : out->begin;
            out->end = from + header->p_memsz > out->end ? from + header->p_memsz : out->end;
        }
    }
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        const void *table = table_at(info, dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            out->symbols = table;
            break;
        case DT_STRTAB:
            out->strings = table;
            break;
        case DT_VERSYM:
            out->versions = table;
            break;
        case DT_GNU_HASH:
            out->gnu_hash = table;
            break;
        case DT_RELA:
            out->rela[0] = table;
            break;
        case DT_JMPREL:
            out->rela[1] = table;
            break;
        case DT_RELASZ:
            out->rela_count[0] = dynamic->d_un.d_val / sizeof(Elf64_Rela);
            break;
        case DT_PLTRELSZ:
            out->rela_count[1] = dynamic->d_un.d_val / sizeof(Elf64_Rela);
            break;
        default:
            break;
        }
    }
    return out->symbols && out->strings;
}

static uint32_t gnu_hash_of(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The address of a function that the object defines, its default version; NULL: none. */
static void *symbol_of(const object_tables *object, const char *name) {
    if (!object->gnu_hash)
        return NULL;
    /* Header, bloom filter, buckets, then one word per symbol: its hash, with the lowest bit at a bucket's end. */
    const uint32_t *header = object->gnu_hash;
    uint32_t buckets = header[0], first = header[1], bloom_words = header[2];
    const uint32_t *bucket = header + 4 + bloom_words * (sizeof(Elf64_Addr) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = gnu_hash_of(name);
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    for (; index >= first && index; index++) {
        uint32_t seen = chain[index - first];
        const Elf64_Sym *symbol = &object->symbols[index];
        bool hidden = object->versions && (object->versions[index] & VERSION_HIDDEN);
        if ((seen | 1) == (hash | 1) && !hidden && symbol->st_shndx != SHN_UNDEF &&
            ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
            objects_text_equal(object->strings + symbol->st_name, name))
            return (void *)(object->base + symbol->st_value);
        if (seen & 1)
            break;
    }
    return NULL;
}

typedef struct object_query {
    const char *library, *name; /* name: of the function; NULL: the path is asked for */
    char *path;
    size_t path_size;
    void *symbol;
} object_query;

static int object_visit(struct dl_phdr_info *info, size_t size, void *context) {
    object_query *query = context;
    (void)size;
    if (!name_matches(info->dlpi_name, query->library))
        return 0;
    if (!query->name) {
        size_t length = strlen(info->dlpi_name);
        if (length >= query->path_size)
            return 0;
        memcpy(query->path, info->dlpi_name, length + 1);
        return 1;
    }
    object_tables tables;
    query->symbol = objects_read(info, &tables) ? symbol_of(&tables, query->name) : NULL;
    return query->symbol != NULL;
}

/* ---- libc's own dl_iterate_phdr: a sanitizer's, which a plain call would reach, cannot be called before the sanitizer has looked
 * up libc's, and looks it up through this library */

typedef int iterate_function(int (*look)(struct dl_phdr_info *info, size_t size, void *context),
                             void *context);

/* The loader's list of objects, as the program's own dynamic section gives it to debuggers; NULL: it does not. */
static const struct link_map *first_object(void) {
    const Elf64_Phdr *headers = (const Elf64_Phdr *)getauxval(AT_PHDR);
    const Elf64_Dyn *dynamic = NULL;
    uintptr_t base = 0;
    for (unsigned long i = 0; headers && i < getauxval(AT_PHNUM); i++)
        if (headers[i].p_type == PT_PHDR)
            base = (uintptr_t)headers - headers[i].p_vaddr;
    for (unsigned long i = 0; headers && i < getauxval(AT_PHNUM); i++)
        if (headers[i].p_type == PT_DYNAMIC)
            dynamic = (const Elf64_Dyn *)(base + headers[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr)
            return ((const struct r_debug *)dynamic->d_un.d_ptr)->r_map;
    return NULL;
}

static iterate_function *iterate_find(void) {
    object_query query = {.library = "libc.so", .name = "dl_iterate_phdr"};
    for (const struct link_map *at = first_object(); at && !query.symbol; at = at->l_next) {
        const Elf64_Ehdr *header = (const Elf64_Ehdr *)at->l_addr;
        if (!name_matches(at->l_name, query.library))
            continue;
        struct dl_phdr_info info = {.dlpi_addr = at->l_addr,
                                    .dlpi_name = at->l_name,
                                    .dlpi_phdr = (const Elf64_Phdr *)(at->l_addr + header->e_phoff),
                                    .dlpi_phnum = header->e_phnum};
        object_visit(&info, sizeof info, &query);
    }
    return query.symbol ? (iterate_function *)query.symbol : dl_iterate_phdr;
}

static int iterate(int (*look)(struct dl_phdr_info *info, size_t size, void *context), void *context) {
    static iterate_function *found;
    iterate_function *real = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!real) {
        real = iterate_find();
        __atomic_store_n(&found, real, __ATOMIC_RELAXED);
    }
    return real(look, context);
}

/* The function of the first loaded library whose file name, from the last slash on, is `library` or begins with
 * `library` and a dot ("libcuda.so", "libcuda.so.1"). */
static void *objects_find_symbol(const char *library, const char *name) {
    object_query query = {.library = library, .name = name};
    iterate(object_visit, &query);
    return query.symbol;
}

/* Copies the path of such a library into `path`; false: none is loaded. */
static bool objects_find(const char *library, char *path, size_t path_size) {
    object_query query = {.library = library, .path = path, .path_size = path_size};
    return iterate(object_visit, &query) != 0;
}

typedef struct address_query {
    uintptr_t one, other;
    bool same;
} address_query;

static int address_visit(struct dl_phdr_info *info, size_t size, void *context) {
    address_query *query = context;
    object_tables tables;
    (void)size;
    objects_read(info, &tables);
    if (query->one - tables.begin >= tables.end - tables.begin)
        return 0;
    query->same = query->other - tables.begin < tables.end - tables.begin;
    return 1;
}

bool objects_same(const void *one, const void *other) {
    address_query query = {.one = (uintptr_t)one, .other = (uintptr_t)other};
    iterate(address_visit, &query);
    return query.same;
}

static int generation_visit(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    *(uint64_t *)context = info->dlpi_adds;
    return 1;
}

uint64_t objects_generation(void) {
    uint64_t generation = 0;
    iterate(generation_visit, &generation);
    return generation;
}

#define CUDA_RUNTIME_LIBRARY "libcudart.so"
#define CUDA_DRIVER_LIBRARY  "libcuda.so"
#define NCCL_LIBRARY         "libnccl.so"
#define CUBLAS_LIBRARY       "libcublas.so"
#define CUBLASLT_LIBRARY     "libcublasLt.so"
#define CUDNN_LIBRARY        "libcudnn.so"

void *hook_real[HOOK_COUNT];

HOOK_THREAD_LOCAL bool looking_up;

void *hooks_real(hook_id id) {
    return __atomic_load_n(&hook_real[id], __ATOMIC_RELAXED);
}

typedef void *dlsym_function(void *handle, const char *name);

/* libdl.so.2 defined them before glibc 2.34, and is an empty shell since. */
static void *loader_real(const char *name) {
    void *real = objects_find_symbol("libc.so", name);
    return real ? real : objects_find_symbol("libdl.so", name);
}

void *loader_real_of(hook_id id) {
    void *real = hooks_real(id);
    if (__builtin_expect(real != NULL, 1))
        return real;
    real = loader_real(hook_table[id].symbol);
    if (!real)
        LOG_E(
            "this libc has no %s: programs that look functions up cannot run with the library (is it glibc?)",
            hook_table[id].symbol);
    __atomic_store_n(&hook_real[id], real, __ATOMIC_RELAXED);
    return real;
}

void *loader_symbol(void *handle, const char *name) {
    void *found = ((dlsym_function *)loader_real_of(HOOK_DLSYM))(handle, name);
    LOADER_NO_JUMP(found);
    return found;
}

void *loader_open(const char *path) {
    void *handle = ((loader_dlopen *)loader_real_of(HOOK_DLOPEN))(path, RTLD_NOLOAD | RTLD_LAZY);
    LOADER_NO_JUMP(handle);
    return handle;
}

void *loader_load(const char *name) {
    void *handle = ((loader_dlopen *)loader_real_of(HOOK_DLOPEN))(name, RTLD_NOW | RTLD_LOCAL);
    LOADER_NO_JUMP(handle);
    return handle;
}

void loader_close(void *handle) {
    dlclose(handle);
}

void *loader_library(const char *library) {
    char path[4096];
    return objects_find(library, path, sizeof path) ? loader_open(path) : NULL;
}

void *hooks_next(hook_id id) {
    void *real = hooks_real(id);
    if (real || looking_up)
        return real;
    looking_up = true;
    real = loader_symbol(RTLD_NEXT, hook_table[id].symbol);
    looking_up = false;
    __atomic_store_n(&hook_real[id], real, __ATOMIC_RELAXED);
    return real;
}

/* The library that defines a row's function, and a function that it surely has; NULL: libc. */
typedef struct hook_source {
    const char *library, *sign;
} hook_source;

static hook_source source_of_layer(hook_layer layer) {
    static const hook_source sources[HOOK_LAYER_COUNT] = {
        [HOOK_LAYER_GLOO] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_GLOO_WORK] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_GLOO_DATA] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_C10D_NCCL] = {TORCH_CUDA_LIBRARY, NULL},
        [HOOK_LAYER_C10D_NCCL_END] = {TORCH_CUDA_LIBRARY, NULL},
        [HOOK_LAYER_CUDA_RUNTIME] = {CUDA_RUNTIME_LIBRARY, "cudaMalloc"},
        [HOOK_LAYER_CUDA_DRIVER] = {CUDA_DRIVER_LIBRARY, "cuInit"},
        [HOOK_LAYER_NCCL] = {NCCL_LIBRARY, "ncclAllReduce"},
        [HOOK_LAYER_CUBLAS] = {CUBLAS_LIBRARY, "cublasCreate_v2"},
        [HOOK_LAYER_CUBLASLT] = {CUBLASLT_LIBRARY, "cublasLtCreate"},
        [HOOK_LAYER_CUDNN] = {CUDNN_LIBRARY, "cudnnCreate"},
        [HOOK_LAYER_C10] = {C10_LIBRARY, NULL},
        [HOOK_LAYER_TORCH_CPU] = {TORCH_CPU_LIBRARY, NULL},
        [HOOK_LAYER_TORCH_PYTHON] = {TORCH_PYTHON_LIBRARY, NULL},
    };
    return sources[layer];
}

static hook_source source_of(hook_id id) {
    hook_layer layer = hook_table[id].layer;
    if (layer == HOOK_LAYER_CUDA_LOOKUP)
        layer =
            strncmp(hook_table[id].symbol, "cuda", 4) == 0 ? HOOK_LAYER_CUDA_RUNTIME : HOOK_LAYER_CUDA_DRIVER;
    return source_of_layer(layer);
}

/* A function of a library: what a call would reach without this library, if it is in the global scope; else, since
 * Python loads libraries RTLD_LOCAL, from its own handle. */
static void *library_symbol(hook_source source, const char *symbol) {
    void *real = source.sign ? loader_symbol(RTLD_NEXT, symbol) : NULL;
    if (real)
        return real;
    void *library = loader_library(source.library);
    return library ? loader_symbol(library, symbol) : NULL;
}

void *hooks_layer_symbol(hook_layer layer, const char *symbol) {
    return library_symbol(source_of_layer(layer), symbol);
}

void *hooks_runtime_symbol(const char *symbol) {
    return hooks_layer_symbol(HOOK_LAYER_CUDA_RUNTIME, symbol);
}

void *hooks_driver_symbol(const char *symbol) {
    return hooks_layer_symbol(HOOK_LAYER_CUDA_DRIVER, symbol);
}

void *hooks_find(hook_id id) {
    void *real = hooks_real(id), *known = NULL;
    if (real)
        return real;
    hook_layer layer = hook_table[id].layer;
    if (layer == HOOK_LAYER_ALLOCATION || layer == HOOK_LAYER_PROCESS)
        return hooks_next(id);
    if (layer == HOOK_LAYER_LOADER)
        return loader_real(hook_table[id].symbol);
    real = library_symbol(source_of(id), hook_table[id].symbol);
    /* A look-up by the program may have told another thread meanwhile: the first one stays. */
    if (real &&
        !__atomic_compare_exchange_n(&hook_real[id], &known, real, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        real = known;
    return real;
}

const char *hooks_library(hook_id id) {
    return source_of(id).library;
}

bool hooks_library_is_loaded(hook_id id) {
    hook_source source = source_of(id);
    return !source.library || (source.sign && loader_symbol(RTLD_NEXT, source.sign)) ||
           loader_library(source.library);
}
