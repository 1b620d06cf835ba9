/* dlsym, dlvsym and dlopen.
 *
 * The real functions look at their return address: RTLD_NEXT and RTLD_DEFAULT mean something else for each
 * caller, and so does a library's name for each RUNPATH. The definitions below therefore decide first, and then
 * jump, with the stack as it was: to the real function, which sees the true caller, or, where a wrapper may be
 * the answer, to a function of this file. Unversioned as they are, they answer to all versions of the symbols. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include "base/thread.h"
#include "files/overlay.h"
#include "wrapper.h"
#include "anycall.h"
#include "lookup.h"
#include "objects.h"
#include "torch_import.h"

/* Where JUMP keeps the first argument. */
#if defined(__x86_64__)
#define SAVED_FIRST 2
#else
#define SAVED_FIRST 0
#endif

typedef void *dlvsym_function(void *handle, const char *name, const char *version);

/* What a look-up answers with in place of `found`. Through the global scope it finds the wrapper itself, also
 * where there is no real function: then the answer is what it would be without this library. */
static void *answer(hook_id id, const char *name, void *found) {
    if (id == HOOK_COUNT)
        return anycall_answer(name, found);
    if (found == lookup_wrapper(id) && !hooks_find(id))
        return loader_symbol(RTLD_NEXT, hook_table[id].symbol); /* NULL, and dlerror says so */
    return lookup_wrap(id, found);
}

static void *dlsym_wrapped(void *handle, const char *name) {
    return answer(lookup_symbol(name), name, loader_symbol(handle, name));
}

static void *dlvsym_wrapped(void *handle, const char *name, const char *version) {
    return answer(lookup_symbol(name), name,
                  ((dlvsym_function *)loader_real_of(HOOK_DLVSYM))(handle, name, version));
}

/* RTLD_NEXT is never answered with a wrapper: who asks stands in a chain of interposers that the wrapper calls. */
static bool may_be_wrapped(void *handle, const char *name) {
    anycall_refresh();
    if (handle == RTLD_NEXT || !name)
        return false;
    if (anycall_names(name))
        return handle != RTLD_DEFAULT || loader_symbol(handle, name);
    hook_id id = lookup_symbol(name);
    return id < HOOK_COUNT && (handle != RTLD_DEFAULT || !hooks_find(id));
}

static void *dlsym_refused(void *handle, const char *name) {
    (void)handle;
    (void)name;
    return torch_import_refused();
}

__attribute__((used)) static void *dlsym_target(void *handle, const char *name) {
    if (torch_import_is_refused(handle, name))
        return (void *)dlsym_refused;
    return may_be_wrapped(handle, name) ? (void *)dlsym_wrapped : loader_real_of(HOOK_DLSYM);
}

__attribute__((used)) static void *dlvsym_target(void *handle, const char *name) {
    return may_be_wrapped(handle, name) ? (void *)dlvsym_wrapped : loader_real_of(HOOK_DLVSYM);
}

/* A path without $ORIGIN and the like does not depend on the caller. */
static void *dlopen_refreshing(const char *file, int mode) {
    void *handle = ((loader_dlopen *)loader_real_of(HOOK_DLOPEN))(file, mode);
    LOADER_NO_JUMP(handle);
    anycall_refresh();
    return handle;
}

/* The dynamic linker opens files by system calls of its own: a library that this process has written has another name there.
 * `saved`: the arguments as the real function gets them. */
__attribute__((used)) static void *dlopen_target(const char *file, int mode, void *unused,
                                                 const char **saved) {
    _Static_assert(FILES_PATH_MAX <= THREAD_ROOM_BYTES, "a path is longer");
    (void)mode;
    (void)unused;
    anycall_refresh();
    if (__builtin_expect(files_now == FILES_PRIVATE, 0) && file && strchr(file, '/')) {
        char *place = thread_room(THREAD_ROOM_PLACE);
        if (files_use(AT_FDCWD, file, FILES_EXECUTE, place) == 0)
            saved[SAVED_FIRST] = place;
    }
    if (file && anycall_is_used() && strchr(file, '/') && !strchr(file, '$'))
        return (void *)dlopen_refreshing;
    return loader_real_of(HOOK_DLOPEN);
}

/* NAME: asks NAME_target for an address, with the arguments as they came and the place where they are kept, and jumps there
 * with them. */
#if defined(__x86_64__)
#define JUMP(name)                                                                                           \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n.p2align 4\n" #name ":\n"                  \
            ".cfi_startproc\nendbr64\n"                                                                      \
            "push %rdi\n.cfi_adjust_cfa_offset 8\n"                                                          \
            "push %rsi\n.cfi_adjust_cfa_offset 8\n"                                                          \
            "push %rdx\n.cfi_adjust_cfa_offset 8\n"                                                          \
            "mov %rsp, %rcx\n"                                                                               \
            "call " #name "_target\n"                                                                        \
            "pop %rdx\n.cfi_adjust_cfa_offset -8\n"                                                          \
            "pop %rsi\n.cfi_adjust_cfa_offset -8\n"                                                          \
            "pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                                          \
            "jmp *%rax\n.cfi_endproc\n.size " #name ", .-" #name "\n")
#elif defined(__aarch64__)
#define JUMP(name)                                                                                           \
    __asm__(".text\n.globl " #name "\n.type " #name ", %function\n.p2align 2\n" #name ":\n"                  \
            ".cfi_startproc\nhint #34\n"                                                                     \
            "stp x0, x1, [sp, #-32]!\n.cfi_adjust_cfa_offset 32\n"                                           \
            "stp x2, x30, [sp, #16]\n.cfi_rel_offset x30, 24\n"                                              \
            "mov x3, sp\n"                                                                                   \
            "bl " #name "_target\n"                                                                          \
            "mov x16, x0\n"                                                                                  \
            "ldp x2, x30, [sp, #16]\n"                                                                       \
            "ldp x0, x1, [sp], #32\n.cfi_adjust_cfa_offset -32\n.cfi_restore x30\n"                          \
            "br x16\n.cfi_endproc\n.size " #name ", .-" #name "\n")
#else
#error "loader.c: write the jump for this processor"
#endif
JUMP(dlsym);
JUMP(dlvsym);
JUMP(dlopen);
