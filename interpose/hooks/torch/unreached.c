/* A process that trains, and that the agent has not reached, would train as plain PyTorch, and several such ranks apart from each
 * other. It is refused at the first optimizer or backward pass: the line is written, and Python raises SystemExit in that thread and
 * in its main thread. `castor run` ends the job where that does not (the script catches it).
 *
 * What keeps the agent away can be seen only in part (a variable, an option of Python, a path that was replaced), so the rule is what
 * happened: PyTorch trains here, and nobody has attached. An import is no sign, nor is a tensor: programs that ask for PyTorch's
 * version, and workers that load data, need no agent. Neither is anything in a process without Python.
 *
 * In a process that the agent has reached, the cost is a call. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/log.h"
#include "job/options.h"
#include "job/plugin.h"
#include "hooks/lookup/loader.h"
#include "hooks/lookup/wrapper.h"
#include "shims/torch/device.h"
#include "trace/refusal.h"

#define AUTOLOAD     "TORCH_DEVICE_BACKEND_AUTOLOAD"
#define MADE         "python.optimizer" /* torch.optim.Optimizer's event */
#define PACKAGE_NAME "/castor"          /* the folder beside the library that holds the agent */

typedef int py_later(int (*call)(void *context), void *context);
typedef void *py_find(const char *name);
typedef void *py_attribute(void *object, const char *name);
typedef long py_number(void *object);
typedef void *py_text(const char *text);
typedef int py_contains(void *sequence, void *item);
typedef void py_release(void *object);
typedef void py_clear(void);
typedef int py_lock(void);
typedef void py_unlock(int state);
typedef int py_asked(void);
typedef unsigned long py_thread(void);
typedef int py_raise(unsigned long thread, void *type);

#define PYTHON(type, name) ((type *)loader_symbol(RTLD_DEFAULT, name))

static bool flag_is_set(const char *name) {
    py_find *find = PYTHON(py_find, "PySys_GetObject");
    py_attribute *attribute = PYTHON(py_attribute, "PyObject_GetAttrString");
    py_number *number = PYTHON(py_number, "PyLong_AsLong");
    py_release *release = PYTHON(py_release, "Py_DecRef");
    void *flags = find && attribute && number && release ? find("flags") : NULL;
    void *flag = flags ? attribute(flags, name) : NULL;
    bool set = flag && number(flag) == 1;
    if (flag)
        release(flag);
    return set;
}

/* The folder of the agent's package; "": unknown. */
static void package_folder(char *out, size_t out_size) {
    Dl_info info;
    const char *slash = NULL;
    if (dladdr((void *)package_folder, &info) && info.dli_fname)
        slash = strrchr(info.dli_fname, '/');
    log_format(out, out_size, "%.*s%s", slash ? (int)(slash - info.dli_fname) : 0,
               slash ? info.dli_fname : "", slash ? PACKAGE_NAME : "");
}

static bool path_has(const char *folder) {
    py_find *find = PYTHON(py_find, "PySys_GetObject");
    py_text *text = PYTHON(py_text, "PyUnicode_DecodeFSDefault");
    py_contains *contains = PYTHON(py_contains, "PySequence_Contains");
    py_release *release = PYTHON(py_release, "Py_DecRef");
    void *path = find && text && contains && release ? find("path") : NULL;
    void *item = path ? text(folder) : NULL;
    bool has = !item || contains(path, item) == 1;
    if (item)
        release(item);
    return has;
}

/* Why PyTorch did not load the agent, and what to change. */
static void reason_write(char *out, size_t out_size) {
    char folder[1024];
    const char *autoload = NULL;
    py_clear *clear = PYTHON(py_clear, "PyErr_Clear");
    for (char **entry = environ; entry && *entry; entry++)
        if (strncmp(*entry, AUTOLOAD "=", sizeof AUTOLOAD) == 0)
            autoload = *entry + sizeof AUTOLOAD;
    package_folder(folder, sizeof folder);
    if (autoload && strcmp(autoload, "1") != 0)
        log_format(out, out_size, AUTOLOAD "=%.20s, set in the script or by what started it: leave it unset",
                   autoload);
    else if (flag_is_set("isolated"))
        log_format(out, out_size, "python -I ignores PYTHONPATH: start the script without -I");
    else if (flag_is_set("ignore_environment"))
        log_format(out, out_size, "python -E ignores PYTHONPATH: start the script without -E");
    else if (folder[0] && !path_has(folder))
        log_format(out, out_size, "PYTHONPATH or sys.path was replaced: keep the folder %s in it", folder);
    else
        log_format(out, out_size, "castor doctor -- python tells more");
    if (clear)
        clear(); /* the attribute or the text could not be made */
}

static void refuse(void) {
    static atomic_flag refused = ATOMIC_FLAG_INIT;
    char why[1200], reason[1536];
    if (atomic_flag_test_and_set(&refused))
        return;
    reason_write(why, sizeof why);
    log_format(reason, sizeof reason,
               "plugin %s cannot be applied: PyTorch has not loaded Castor's agent in this process (%s); "
               "CASTOR_ON_ERROR=passthrough trains without the plugin",
               plugin()->name, why);
    refusal_write(reason);
}

static atomic_bool raising;

/* In Python's main thread, between two instructions of the script. */
static int raise_exit(void *context) {
    (void)context;
    atomic_store(&raising, false);
    torch_import_exit();
    return -1;
}

/* SystemExit ends a thread silently. The main thread, which may wait for this one, gets its own. */
static void end_thread(void) {
    py_thread *self = PYTHON(py_thread, "PyThread_get_thread_ident");
    py_raise *raise = PYTHON(py_raise, "PyThreadState_SetAsyncExc");
    void **exit_type = loader_symbol(RTLD_DEFAULT, "PyExc_SystemExit");
    if (syscall(SYS_gettid) != getpid() && self && raise && exit_type)
        raise(self(), *exit_type);
}

/* A thread that makes an optimizer holds Python's lock; one that begins a backward pass has released it, and holds no lock of
 * PyTorch's. Both may take it here. */
static void training_begins(void) {
    if (__builtin_expect(!refusal_is_due(), 1))
        return;
    py_later *later = PYTHON(py_later, "Py_AddPendingCall");
    py_lock *lock = PYTHON(py_lock, "PyGILState_Ensure");
    py_unlock *unlock = PYTHON(py_unlock, "PyGILState_Release");
    py_asked *initialized = PYTHON(py_asked, "Py_IsInitialized");
    if (!later || !lock || !unlock || !initialized || !initialized())
        return;
    int state = lock();
    refuse();
    end_thread();
    unlock(state);
    if (!atomic_exchange(&raising, true) && later(raise_exit, NULL) != 0)
        atomic_store(&raising, false);
}

#define HOOK(layer, mode, result, id, name, symbol, parameters, arguments, payload, source, doc)             \
    HOOK_EXPORT result wrap_##id parameters __asm__(symbol);                                                 \
    typedef result real_##id parameters;
#include "hooks/table/torch_training.def"
#undef HOOK

void wrap_TORCH_USAGE(const std_string *event) {
    real_TORCH_USAGE *real = (real_TORCH_USAGE *)hooks_find(HOOK_TORCH_USAGE);
    if (event->size == sizeof MADE - 1 && memcmp(event->text, MADE, sizeof MADE - 1) == 0)
        training_begins();
    if (real)
        real(event);
}

void wrap_TORCH_BACKWARD(void *engine) {
    real_TORCH_BACKWARD *real = (real_TORCH_BACKWARD *)hooks_find(HOOK_TORCH_BACKWARD);
    training_begins();
    if (real)
        real(engine);
}
