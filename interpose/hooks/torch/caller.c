#include "caller.h"
#include <link.h>
#include <string.h>
#include "shims/torch/device.h"

caller_range caller_c10;

/* Libraries that called and are not libc10, so that a process without torch that calls posix_memalign often
 * does not walk the list of libraries each time. Racing writers only cost another walk. */
static struct { uintptr_t begin, end; } others[8];
static unsigned others_next;

typedef struct library_query {
    uintptr_t address; /* 0: by name */
    uintptr_t begin, end;
    bool is_c10;
} library_query;

static bool is_c10_path(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return path && strcmp(slash ? slash + 1 : path, C10_LIBRARY) == 0;
}

static int library_visit(struct dl_phdr_info *info, size_t size, void *context) {
    library_query *query = context;
    (void)size;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (from < begin)
            begin = from;
        if (from + info->dlpi_phdr[i].p_memsz > end)
            end = from + info->dlpi_phdr[i].p_memsz;
    }
    bool is_c10 = is_c10_path(info->dlpi_name);
    if (query->address ? query->address < begin || query->address >= end : !is_c10)
        return 0;
    *query = (library_query){.address = query->address, .begin = begin, .end = end, .is_c10 = is_c10};
    return 1;
}

static void c10_set(const library_query *query) {
    caller_c10.base = query->begin;
    __atomic_store_n(&caller_c10.size, query->end - query->begin, __ATOMIC_RELEASE);
}

void caller_find_c10(void) {
    library_query query = {0};
    if (!caller_c10.size && dl_iterate_phdr(library_visit, &query))
        c10_set(&query);
}

bool caller_is_c10_slow(const void *return_address) {
    uintptr_t address = (uintptr_t)return_address;
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        if (address - others[i].begin < others[i].end - others[i].begin)
            return false;
    library_query query = {.address = address};
    if (!dl_iterate_phdr(library_visit, &query))
        return false;
    if (query.is_c10) {
        c10_set(&query);
        return true;
    }
    unsigned i = __atomic_fetch_add(&others_next, 1, __ATOMIC_RELAXED) % (sizeof others / sizeof *others);
    others[i].begin = query.begin;
    others[i].end = query.end;
    return false;
}
