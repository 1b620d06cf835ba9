/* A PyTorch that is too old for the plugin is refused while it is imported: before a line of the script that needs it
 * has run, and before its libraries have been initialized.
 *
 * The agent comes too late for that, or not at all, since only PyTorch 2.5 and later call it at the end of their
 * import. But every one loads its extension module torch/_C...so, of which Python asks dlsym for the entry function.
 * The version stands in torch/version.py, beside the module. Python gets an entry function that raises SystemExit:
 * the import ends the program as sys.exit(1) would, with clean-up and without a traceback, and the library itself
 * ends nothing. */
#include "torch_import.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "job/options.h"
#include "job/torch_version.h"
#include "trace/refusal.h"
#include "wrapper.h"
#include "objects.h"

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
    for (ssize_t part;
         used < sizeof text - 1 && (part = read(file, text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)part;
    close(file);
    text[used] = '\0';
    return torch_version_read(text, version, version_size);
}

bool torch_import_is_refused(void *handle, const char *name) {
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

void *torch_import_refused(void) {
    return (void *)refused_entry;
}
