/* Fails the nth of a libc function's calls, where libcastor.so makes them and nowhere else: preloaded beside it, this replaces
 * the functions' addresses in the library's own table of imports.
 *
 *   FAIL_NTH_FOLDER   where the files `calls.RANK` and `ways.RANK` lie: what each rank has called, and what has failed (struct
 *                     call), and by which ways through the library (struct way)
 *   FAIL_NTH_RULES    FUNCTION[@WAY]:N:WHAT[:RANK], ... The Nth call (N+: this and all later ones) on the rank (none: on each),
 *                     of those that come this way, fails with the errno WHAT, a number, or moves half of its bytes (`short`).
 *
 * A way is a number for the library's own frames above a call, from the one that calls to the one that was entered from outside:
 * the same in each run of one build.
 *
 * What syscall(2) calls has a name of its own here (cachestat). Calls that wait, and clocks, are not replaced.
 * Processes without RANK in their environment are let alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>
#include "base/version.h"

#define RULES_MAX 8
#define WAYS_MAX  4096 /* a power of two */
#define SHORT     (-1)

/* Name; what a call that fails returns (ERROR: the errno); which argument counts bytes (-1: none). */
#define ERROR wanted
#define FUNCTIONS(X)                                                                                         \
    X(accept4, -1, -1)                                                                                       \
    X(bind, -1, -1)                                                                                          \
    X(calloc, 0, -1)                                                                                         \
    X(connect, -1, -1)                                                                                       \
    X(eventfd, -1, -1)                                                                                       \
    X(fallocate, -1, -1)                                                                                     \
    X(fcntl, -1, -1)                                                                                         \
    X(flock, -1, -1)                                                                                         \
    X(fstat, -1, -1)                                                                                         \
    X(ftruncate, -1, -1)                                                                                     \
    X(getcwd, 0, -1)                                                                                         \
    X(getrandom, -1, 1)                                                                                      \
    X(getsockname, -1, -1)                                                                                   \
    X(getsockopt, -1, -1)                                                                                    \
    X(ioctl, -1, -1)                                                                                         \
    X(listen, -1, -1)                                                                                        \
    X(madvise, -1, -1)                                                                                       \
    X(malloc, 0, -1)                                                                                         \
    X(memfd_create, -1, -1)                                                                                  \
    X(mincore, -1, -1)                                                                                       \
    X(mmap, -1, -1)                                                                                          \
    X(mprotect, -1, -1)                                                                                      \
    X(munmap, -1, -1)                                                                                        \
    X(open, -1, -1)                                                                                          \
    X(posix_fadvise, ERROR, -1)                                                                              \
    X(posix_fallocate, ERROR, -1)                                                                            \
    X(pread, -1, 2)                                                                                          \
    X(pthread_create, ERROR, -1)                                                                             \
    X(pwrite, -1, 2)                                                                                         \
    X(pwritev, -1, -1)                                                                                       \
    X(read, -1, 2)                                                                                           \
    X(realloc, 0, -1)                                                                                        \
    X(reallocarray, 0, -1)                                                                                   \
    X(recv, -1, 2)                                                                                           \
    X(recvmsg, -1, -1)                                                                                       \
    X(send, -1, 2)                                                                                           \
    X(sendfile, -1, 3)                                                                                       \
    X(sendmsg, -1, -1)                                                                                       \
    X(setsockopt, -1, -1)                                                                                    \
    X(socket, -1, -1)                                                                                        \
    X(stat, -1, -1)                                                                                          \
    X(sync_file_range, -1, -1)                                                                               \
    X(unlink, -1, -1)                                                                                        \
    X(write, -1, 2)
/* Name, number. */
#define SYSTEM_CALLS(X)                                                                                      \
    X(cachestat, 451)                                                                                        \
    X(userfaultfd, SYS_userfaultfd)

enum function {
#define ID(name, ...) FUNCTION_##name,
    FUNCTIONS(ID) SYSTEM_CALLS(ID) FUNCTION_COUNT
#undef ID
};

struct call {
    char name[24];
    _Atomic uint64_t count, failed,
        caller; /* caller: of the first that failed, as an address in the library's file */
};

struct way {
    _Atomic uint64_t name, count; /* name: zero where there is none yet */
    uint64_t function, caller;
};

static const char *const names[] = {
#define NAME(name, ...) #name,
    FUNCTIONS(NAME) SYSTEM_CALLS(NAME)
#undef NAME
};

struct rule {
    int function, what;
    uint64_t way, first, last; /* way: zero for each */
};

static struct call *calls;
static struct way *ways;
static struct rule rules[RULES_MAX];
static int rule_count;
static uintptr_t library, library_end;

struct frames {
    uint64_t name;
    bool inside;
};

static _Unwind_Reason_Code frame_add(struct _Unwind_Context *context, void *passed) {
    struct frames *frames = passed;
    uintptr_t at = _Unwind_GetIP(context);
    if (at < library || at >= library_end)
        return frames->inside ? _URC_END_OF_STACK : _URC_NO_REASON; /* this file's own frames come first */
    frames->inside = true;
    frames->name = (frames->name ^ (at - library)) * 0x100000001b3;
    return _URC_NO_REASON;
}

/* The way of this call; NULL: no room. */
static struct way *way_of(int function, void *caller) {
    struct frames frames = {.name = 0xcbf29ce484222325 ^ (uint64_t)function};
    _Unwind_Backtrace(frame_add, &frames);
    uint64_t name = frames.name ? frames.name : 1;
    for (size_t i = 0; i < WAYS_MAX; i++) {
        struct way *way = &ways[(name + i) % WAYS_MAX];
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&way->name, &there, name)) {
            way->function = (uint64_t)function;
            way->caller = (uintptr_t)caller - library;
            return way;
        }
        if (there == name)
            return way;
    }
    return NULL;
}

/* Whether this call fails, and how: 0, an errno, or SHORT. */
static int look(int function, void *caller) {
    struct way *way = way_of(function, caller);
    uint64_t of_way = way ? atomic_fetch_add(&way->count, 1) + 1 : 0;
    uint64_t of_all = atomic_fetch_add(&calls[function].count, 1) + 1;
    for (int i = 0; i < rule_count; i++) {
        const struct rule *rule = &rules[i];
        uint64_t number = rule->way ? of_way : of_all;
        if (rule->function != function || number < rule->first || number > rule->last)
            continue;
        if (rule->way && (!way || way->name != rule->way))
            continue;
        if (atomic_fetch_add(&calls[function].failed, 1) == 0)
            atomic_store(&calls[function].caller, (uintptr_t)caller - library);
        return rule->what;
    }
    return 0;
}

/* All of them take integers and pointers alone, and at most six, so that one type serves for all (so does it for those that
 * take any number of arguments). `next_` is what the library's table held. */
typedef long any_function(long, long, long, long, long, long);

#define REPLACE(name, returned, length)                                                                      \
    static any_function *next_##name;                                                                        \
    static long fail_##name(long a, long b, long c, long d, long e, long f) {                                \
        long arguments[] = {a, b, c, d, e, f};                                                               \
        int at = length, wanted = look(FUNCTION_##name, __builtin_return_address(0));                        \
        if (wanted > 0) {                                                                                    \
            errno = wanted;                                                                                  \
            return returned;                                                                                 \
        }                                                                                                    \
        if (wanted == SHORT && at >= 0)                                                                      \
            arguments[at] = (arguments[at] + 1) / 2;                                                         \
        return next_##name(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],             \
                           arguments[5]);                                                                    \
    }
FUNCTIONS(REPLACE)
#undef REPLACE

static long (*next_syscall)(long, long, long, long, long, long, long);

static long fail_syscall(long number, long a, long b, long c, long d, long e, long f) {
    int wanted = 0;
    switch (number) {
#define CASE(name, id)                                                                                       \
    case id:                                                                                                 \
        wanted = look(FUNCTION_##name, __builtin_return_address(0));                                         \
        break;
        SYSTEM_CALLS(CASE)
#undef CASE
    }
    if (wanted > 0) {
        errno = wanted;
        return -1;
    }
    return next_syscall(number, a, b, c, d, e, f);
}

/* ---- the library's table */

static void entry_replace(const char *name, uintptr_t *entry) {
    uintptr_t put = 0;
#define PUT(id, ...)                                                                                         \
    if (strcmp(name, #id) == 0) {                                                                            \
        next_##id = (any_function *)*entry;                                                                  \
        put = (uintptr_t)fail_##id;                                                                          \
    }
    FUNCTIONS(PUT)
#undef PUT
    if (strcmp(name, "syscall") == 0) {
        next_syscall = (long (*)(long, long, long, long, long, long, long)) * entry;
        put = (uintptr_t)fail_syscall;
    }
    uintptr_t page = (uintptr_t)entry & ~4095ul;
    if (put && mprotect((void *)page, 4096, PROT_READ | PROT_WRITE) == 0)
        *entry = put; /* what was read-only behind the loader stays writable */
}

/* The library is linked with -z now: its table is filled before any constructor runs. */
static void table_replace(const struct link_map *of) {
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const ElfW(Rela) * list[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    for (const ElfW(Dyn) *entry = of->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            strings = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELA)
            list[0] = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELASZ)
            bytes[0] = entry->d_un.d_val;
        if (entry->d_tag == DT_JMPREL)
            list[1] = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_PLTRELSZ)
            bytes[1] = entry->d_un.d_val;
    }
    for (int i = 0; symbols && strings && i < 2; i++)
        for (size_t at = 0; at < bytes[i] / sizeof **list; at++)
            if (ELF64_R_SYM(list[i][at].r_info))
                entry_replace(strings + symbols[ELF64_R_SYM(list[i][at].r_info)].st_name,
                              (uintptr_t *)(of->l_addr + list[i][at].r_offset));
}

static bool rule_read(const char *text, long rank) {
    char name[24], what[12];
    unsigned long number, way = 0;
    int used = 0;
    long only = rank;
    if (sscanf(text, "%23[a-z_0-9]@%lx:%lu%n", name, &way, &number, &used) != 3 &&
        sscanf(text, "%23[a-z_0-9]:%lu%n", name, &number, &used) != 2)
        return false;
    bool later = text[used] == '+';
    if (sscanf(text + used + later, ":%11[a-z0-9]:%ld", what, &only) < 1)
        return false;
    for (int function = 0; function < FUNCTION_COUNT; function++)
        if (strcmp(name, names[function]) == 0) {
            if (only == rank && rule_count < RULES_MAX)
                rules[rule_count++] = (struct rule){function, strcmp(what, "short") == 0 ? SHORT : atoi(what),
                                                    way, number, later ? UINT64_MAX : number};
            return true;
        }
    return false;
}

static int library_measure(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; info->dlpi_addr == library && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD)
            library_end = library + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    return 0;
}

static void *file_shared(const char *folder, const char *name, const char *rank, size_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, rank);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *mapped = file >= 0 && ftruncate(file, (off_t)bytes) == 0
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                       : MAP_FAILED;
    if (file >= 0)
        close(file);
    if (mapped != MAP_FAILED)
        return mapped;
    fprintf(stderr, "fail_nth: cannot write %s\n", path);
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    const char *rank = getenv("RANK"), *folder = getenv("FAIL_NTH_FOLDER"), *text = getenv("FAIL_NTH_RULES");
    struct link_map *of = dlopen(CASTOR_SONAME, RTLD_LAZY | RTLD_NOLOAD);
    if (!rank || !folder || !of)
        return;
    library = of->l_addr;
    dl_iterate_phdr(library_measure, NULL);
    calls = file_shared(folder, "calls", rank, FUNCTION_COUNT * sizeof *calls);
    ways = file_shared(folder, "ways", rank, WAYS_MAX * sizeof *ways);
    if (!calls || !ways)
        return;
    for (int i = 0; i < FUNCTION_COUNT; i++)
        strcpy(calls[i].name, names[i]);
    for (; text && *text; text += strcspn(text, ","), text += *text == ',')
        if (!rule_read(text, atol(rank)))
            fprintf(stderr, "fail_nth: not a rule: %s\n", text);
    table_replace(of);
}
