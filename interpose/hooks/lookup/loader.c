/* dlsym, dlvsym and dlopen.
 *
 * The real functions look at their return address: RTLD_NEXT and RTLD_DEFAULT mean something else for each
 * caller, and so does a library's name for each RUNPATH. The definitions below therefore decide first, and then
 * jump, with the stack as it was: to the real function, which sees the true caller, or, where a wrapper may be
 * the answer, to a function of this file. Unversioned as they are, they answer to all versions of the symbols. */
#include "loader.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "files/overlay.h"
#include "job/options.h"
#include "job/torch_version.h"
#include "trace/refusal.h"
#include "anycall.h"
#include "lookup.h"
#include "objects.h"
#include "wrapper.h"

/* A PyTorch that is too old for the plugin is refused while it is imported: before a line of the script that needs it
 * has run, and before its libraries have been initialized.
 *
 * The agent comes too late for that, or not at all, since only PyTorch 2.5 and later call it at the end of their
 * import. But every one loads its extension module torch/_C...so, of which Python asks dlsym for the entry function.
 * The version stands in torch/version.py, beside the module. Python gets an entry function that raises SystemExit:
 * the import ends the program as sys.exit(1) would, with clean-up and without a traceback, and the library itself
 * ends nothing. */

#define MODULE_ENTRY   "PyInit__C"
#define MODULE_PREFIX  "/torch/_C."
#define VERSION_FILE   "/torch/version.py"
#define VERSION_SIZE   4096 /* it is some 300 bytes long */
#define MODULE_REFUSED 1    /* exit status */

typedef void *py_function_new(long value);
typedef void py_function_set(void *type, void *value);

/* Reads the version of the PyTorch that the module belongs to; false: it is another package's module. */
static bool version_of_module(const char *path, char *version, size_t version_size) {
    char file_path[4096], text[VERSION_SIZE];
    const char *slash = strrchr(path, '/');
    for (const char *before = slash; before && before > path;) { /* the last slash but one */
        if (*--before == '/') {
            slash = before;
            break;
        }
    }
    if (!slash || strncmp(slash, MODULE_PREFIX, sizeof MODULE_PREFIX - 1) != 0)
        return false;
    size_t folder = (size_t)(slash - path);
    if (folder + sizeof VERSION_FILE > sizeof file_path)
        return false;
    memcpy(file_path, path, folder);
    memcpy(file_path + folder, VERSION_FILE, sizeof VERSION_FILE);
    int file = open(file_path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    size_t used = 0;
    for (ssize_t got; used < sizeof text - 1 && (got = read(file, text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)got;
    close(file);
    text[used] = '\0';
    return torch_version_read(text, version, version_size);
}

/* Whether a look-up of `name` in `handle` is the import of a PyTorch that the plugin of this process refuses. The
 * first refusal is logged. */
static bool torch_import_is_refused(void *handle, const char *name) {
    struct link_map *module = NULL;
    char version[64];
    if (__builtin_expect(!name || !objects_text_equal(name, MODULE_ENTRY), 1))
        return false;
    if (options()->on_error != CASTOR_ON_ERROR_ABORT || handle == RTLD_NEXT || handle == RTLD_DEFAULT ||
        dlinfo(handle, RTLD_DI_LINKMAP, &module) != 0 || !module || !module->l_name ||
        !version_of_module(module->l_name, version, sizeof version) ||
        torch_version_check(version) == CASTOR_OK)
        return false;
    refusal_write(error_text());
    return true;
}

void torch_import_exit(void) {
    py_function_new *number = (py_function_new *)loader_symbol(RTLD_DEFAULT, "PyLong_FromLong");
    py_function_set *set = (py_function_set *)loader_symbol(RTLD_DEFAULT, "PyErr_SetObject");
    void **exit_type = loader_symbol(RTLD_DEFAULT, "PyExc_SystemExit");
    /* Without them Python says that the entry function failed without an exception: an import that fails too. */
    if (number && set && exit_type)
        set(*exit_type, number(MODULE_REFUSED));
}

static void *refused_entry(void) {
    torch_import_exit();
    return NULL;
}

/* The function that such a look-up returns in place of the module's entry function. */
static void *torch_import_refused(void) {
    return (void *)refused_entry;
}

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
