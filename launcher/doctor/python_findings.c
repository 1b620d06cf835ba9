#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "job/options.h"
#include "job/torch_version.h"
#include "hooks/table/hooks.h"
#include "launcher/common/text_table.h"
#include "doctor.h"

#define GROUP_PYTHON "Python and PyTorch"
#define GROUP_DEVICE DOCTOR_GROUP_DEVICES
#define GROUP_HOOKS  "Functions that are intercepted"

#define MISSING_SHOWN 4

typedef struct version {
    unsigned major, minor;
} version;

static const version python_min = {3, 10}, torch_min = {TORCH_MIN_MAJOR, TORCH_MIN_MINOR},
                     torch_max = {TORCH_TESTED_MAJOR, TORCH_TESTED_MINOR};

static version version_of(const char *text) {
    version v = {0, 0};
    sscanf(text, "%u.%u", &v.major, &v.minor);
    return v;
}

static bool is_before(version a, version b) {
    return a.major != b.major ? a.major < b.major : a.minor < b.minor;
}

static const char *field(const doctor_fact *fact, int index) {
    return fact != NULL ? fact->fields[index] : "";
}

static bool is_set(const doctor_fact *fact, int index) {
    return strcmp(field(fact, index), "1") == 0;
}

/* ---- options ---- */

static void check_options(doctor_checks *checks) {
    char message[512];
    if (options_load(environ, message, sizeof message) == CASTOR_OK)
        return;
    doctor_add(checks, GROUP_PYTHON, "options", DOCTOR_FAIL, "in the environment: %s", message);
    doctor_advise(checks, "castor run refuses it; `castor options` lists what there is");
}

/* ---- how far the program came ---- */

static void check_course(doctor_checks *checks, const doctor_probe *probe, const char *doing,
                         double limit_seconds) {
    char limit[TEXT_FIGURE_MAX];
    if (probe->timed_out)
        doctor_add(checks, GROUP_PYTHON, doing, DOCTOR_FAIL, "no answer within %s",
                   text_seconds(limit, limit_seconds));
    else if (WIFSIGNALED(probe->status))
        doctor_add(checks, GROUP_PYTHON, doing, DOCTOR_FAIL, "ended by signal %d%s%s",
                   WTERMSIG(probe->status), probe->error[0] ? ": " : "", probe->error);
    else
        doctor_add(checks, GROUP_PYTHON, doing, DOCTOR_FAIL, "ended with status %d%s%s",
                   WEXITSTATUS(probe->status), probe->error[0] ? ": " : "", probe->error);
    doctor_advise(checks, "try it without Castor: %s -c 'import torch'", probe->command);
}

static void check_interpreter(doctor_checks *checks, const doctor_fact *python) {
    version v = version_of(field(python, 1));
    bool cpython = strcmp(field(python, 2), "cpython") == 0, old = is_before(v, python_min);
    doctor_add(checks, GROUP_PYTHON, "Python", old || !cpython ? DOCTOR_FAIL : DOCTOR_OK, "%s, %s",
               field(python, 1), field(python, 3));
    if (!cpython)
        doctor_advise(checks, "Castor works with CPython");
    else if (old)
        doctor_advise(checks, "Castor needs Python 3.10 or later");
}

static void check_library(doctor_checks *checks, const doctor_probe *probe) {
    bool loaded = is_set(doctor_probe_fact(probe, "library", NULL), 1);
    doctor_add(checks, GROUP_PYTHON, "library", loaded ? DOCTOR_OK : DOCTOR_FAIL, "%s",
               loaded ? "libcastor.so is in the process" : "libcastor.so is not in the process");
    if (!loaded)
        doctor_advise(
            checks,
            "LD_PRELOAD does not reach this Python: a static or setuid binary, another libc (musl), or a "
            "wrapper that clears the environment");
}

static void check_torch(doctor_checks *checks, const doctor_probe *probe, const doctor_fact *torch) {
    const doctor_fact *error = doctor_probe_fact(probe, "torch-error", NULL);
    if (error != NULL) {
        doctor_add(checks, GROUP_PYTHON, "torch", DOCTOR_FAIL, "%s: %s", field(error, 1), field(error, 2));
        doctor_advise(checks,
                      strcmp(field(error, 1), "ModuleNotFoundError") == 0
                          ? "install torch for this Python, or name the right one: castor doctor -- PYTHON"
                          : "see whether it goes without Castor; if so, this is a bug of Castor's");
        return;
    }
    version v = version_of(field(torch, 1));
    bool old = is_before(v, torch_min), young = is_before(torch_max, v);
    doctor_add(checks, GROUP_PYTHON, "torch",
               old     ? DOCTOR_FAIL
               : young ? DOCTOR_WARN
                       : DOCTOR_OK,
               "%s%s%s", field(torch, 1), field(torch, 2)[0] ? ", built for CUDA " : ", built for the CPU",
               field(torch, 2));
    if (old)
        doctor_advise(checks, "Castor needs torch %u.%u or later; with an older one only --plugin none runs",
                      torch_min.major, torch_min.minor);
    else if (young)
        doctor_advise(checks, "Castor was tested up to torch %u.%u", torch_max.major, torch_max.minor);
}

static void check_agent(doctor_checks *checks, const doctor_probe *probe) {
    const doctor_fact *agent = doctor_probe_fact(probe, "agent", NULL);
    const doctor_fact *flags = doctor_probe_fact(probe, "flags", NULL);
    const doctor_fact *autoload = doctor_probe_fact(probe, "autoload", NULL);
    const doctor_fact *package = doctor_probe_fact(probe, "package", NULL);
    if (is_set(agent, 1)) {
        doctor_add(checks, GROUP_PYTHON, "agent", DOCTOR_OK, "reached at the end of `import torch`");
        return;
    }
    doctor_add(checks, GROUP_PYTHON, "agent", DOCTOR_FAIL, "not reached: the run would be plain PyTorch");
    if (is_set(flags, 1) || is_set(flags, 2))
        doctor_advise(checks, "this Python ignores PYTHONPATH (-I or -E)");
    else if (strcmp(field(autoload, 1), "0") == 0)
        doctor_advise(checks, "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from calling it: unset it");
    else if (field(package, 1)[0] == '\0')
        doctor_advise(checks, "the package `castor` is not found: something resets PYTHONPATH or sys.path");
    else if (field(agent, 2)[0] != '\0' || strstr(field(package, 1), "/castor/__init__.py") == NULL)
        doctor_advise(checks, "another module is called castor: %s", field(package, 1));
    else
        doctor_advise(checks, "the package is at %s, but PyTorch did not call it%s%s", field(package, 1),
                      probe->error[0] ? ": " : "", probe->error);
}

/* ---- devices ---- */

static bool has_devices(const doctor_fact *devices) {
    return devices != NULL && strtoul(field(devices, 1), NULL, 10) > 0;
}

static void check_kernels(doctor_checks *checks, const doctor_fact *kernels, bool needed) {
    if (kernels == NULL)
        return; /* the library is not in the process, which another line says */
    if (is_set(kernels, 1)) {
        doctor_add(checks, GROUP_DEVICE, "CUDA kernels", DOCTOR_OK, "built in");
        return;
    }
    doctor_add(checks, GROUP_DEVICE, "CUDA kernels", needed ? DOCTOR_WARN : DOCTOR_NOTE,
               "libcastor.so was built without nvcc and has none");
    doctor_advise(checks, "on devices PyTorch's own kernels compute optimizer steps, to the same numbers; "
                          "to have Castor's, build it with nvcc: make NVCC=/path/to/nvcc");
}

static void check_devices(doctor_checks *checks, const doctor_probe *probe, const doctor_fact *torch) {
    const doctor_fact *driver = doctor_probe_fact(probe, "driver", NULL);
    const doctor_fact *devices = doctor_probe_fact(probe, "devices", NULL);
    const doctor_fact *nccl = doctor_probe_fact(probe, "nccl", NULL);
    if (driver != NULL && strcmp(field(driver, 1), "0") == 0) {
        unsigned number = (unsigned)strtoul(field(driver, 2), NULL, 10);
        doctor_add(checks, GROUP_DEVICE, "driver", DOCTOR_OK, "for CUDA %u.%u", number / 1000,
                   number % 1000 / 10);
        if (field(torch, 2)[0] == '\0')
            doctor_advise(checks, "this torch is built for the CPU: a build for CUDA would use the devices");
    } else if (driver != NULL) {
        doctor_add(checks, GROUP_DEVICE, "driver", DOCTOR_WARN, "libcuda.so.1 answers with error %s",
                   field(driver, 1));
        doctor_advise(checks, "jobs run on the CPU; see whether nvidia-smi works");
    } else
        doctor_add(checks, GROUP_DEVICE, "driver", DOCTOR_NOTE,
                   "none (no libcuda.so.1): jobs run on the CPU");
    if (has_devices(devices))
        doctor_add(checks, GROUP_DEVICE, "devices", DOCTOR_NOTE, "%s", field(devices, 1));
    else
        doctor_add(checks, GROUP_DEVICE, "devices", DOCTOR_NOTE, "no CUDA device");
    if (nccl != NULL && field(nccl, 1)[0] != '\0')
        doctor_add(checks, GROUP_DEVICE, "NCCL library", DOCTOR_OK, "%s", field(nccl, 1));
    else if (nccl != NULL)
        doctor_add(checks, GROUP_DEVICE, "NCCL library", DOCTOR_NOTE, "not in this torch%s%s",
                   field(nccl, 2)[0] ? ": " : "", field(nccl, 2));
    check_kernels(checks, doctor_probe_fact(probe, "kernels", NULL), has_devices(devices));
    bool gloo = is_set(doctor_probe_fact(probe, "gloo", NULL), 1);
    doctor_add(checks, GROUP_DEVICE, "gloo backend", gloo ? DOCTOR_OK : DOCTOR_WARN, "%s",
               gloo ? "in this torch" : "not in this torch");
    if (!gloo)
        doctor_advise(checks, "several ranks on the CPU need it: a torch that is built with it");
}

/* ---- hooks ---- */

/* Whether a family belongs to devices, whose libraries a CPU build has not. */
static bool is_of_device(const char *layer) {
    return strstr(layer, "CUDA") != NULL || strstr(layer, "NCCL") != NULL || strstr(layer, "BLAS") != NULL;
}

static void check_family(doctor_checks *checks, const doctor_probe *probe, const char *layer) {
    size_t all = 0, found = 0, shown = 0, used = 0;
    char missing[512] = "";
    for (const doctor_fact *hook = NULL; (hook = doctor_probe_fact(probe, "hook", hook)) != NULL;) {
        if (strcmp(field(hook, 1), layer) != 0 || strcmp(field(hook, 3), "-1") == 0)
            continue; /* -1: a function of other versions */
        all++;
        if (is_set(hook, 3)) {
            found++;
        } else if (shown < MISSING_SHOWN) {
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", shown++ > 0 ? ", " : "",
                                     field(hook, 2));
            if (used >= sizeof missing)
                used = sizeof missing - 1;
        }
    }
    if (all == 0) {
        return; /* a table of another build than this castor's */
    } else if (found == all) {
        doctor_add(checks, GROUP_HOOKS, layer, DOCTOR_OK, "all %zu", all);
    } else if (found == 0) {
        bool device = is_of_device(layer);
        doctor_add(checks, GROUP_HOOKS, layer, device ? DOCTOR_NOTE : DOCTOR_WARN, "none of %zu", all);
        doctor_advise(checks, device ? "its library is not in the process until a device is used"
                                     : "this torch does not have them: such calls are not seen");
    } else {
        doctor_add(checks, GROUP_HOOKS, layer, is_of_device(layer) ? DOCTOR_NOTE : DOCTOR_WARN,
                   "%zu of %zu; not %s%s", found, all, missing, all - found > shown ? ", ..." : "");
        doctor_advise(checks,
                      "the versions of the libraries here do not have those, or they are not loaded yet");
    }
}

static void check_hooks(doctor_checks *checks, const doctor_probe *probe) {
    for (int layer = 0; layer < HOOK_LAYER_COUNT; layer++) {
        bool repeated = false;
        for (int before = 0; before < layer; before++)
            repeated |= strcmp(hook_layer_name[before], hook_layer_name[layer]) == 0;
        if (!repeated)
            check_family(checks, probe, hook_layer_name[layer]);
    }
}

/* What the agent replaces (shims/castor/agent/replaced.py). */
static void check_replaced(doctor_checks *checks, const doctor_fact *replaced) {
    bool all = field(replaced, 2)[0] == '\0';
    doctor_add(checks, GROUP_HOOKS, "Python functions", all ? DOCTOR_OK : DOCTOR_WARN, "%s%s%s%s",
               all ? "all " : "", field(replaced, 1), all ? "" : "; not as expected: ", field(replaced, 2));
    if (!all)
        doctor_advise(
            checks,
            "a plugin that needs one of them refuses to start: use a torch that Castor was tested with "
            "(castor run -- python -m castor.agent tells what is different)");
}

void doctor_python(doctor_checks *checks, char *const *command, double limit_seconds) {
    doctor_probe probe;
    check_options(checks);
    if (!doctor_probe_run(command, DOCTOR_PROGRAM_PYTHON, limit_seconds, &probe)) {
        doctor_add(checks, GROUP_PYTHON, "Python", DOCTOR_FAIL, "%s: %s", probe.command, probe.error);
        doctor_advise(checks, "name the interpreter of your scripts: castor doctor -- PYTHON");
        doctor_probe_free(&probe);
        return;
    }
    const doctor_fact *python = doctor_probe_fact(&probe, "python", NULL);
    const doctor_fact *torch = doctor_probe_fact(&probe, "torch", NULL);
    bool ended = doctor_probe_fact(&probe, "end", NULL) != NULL;
    if (python == NULL) {
        check_course(checks, &probe, "Python", limit_seconds);
        doctor_probe_free(&probe);
        return;
    }
    check_interpreter(checks, python);
    if (doctor_probe_fact(&probe, "library", NULL) != NULL)
        check_library(checks, &probe);
    if (torch != NULL || doctor_probe_fact(&probe, "torch-error", NULL) != NULL)
        check_torch(checks, &probe, torch);
    if (!ended)
        check_course(checks, &probe, torch != NULL ? "PyTorch, looked at" : "import torch", limit_seconds);
    if (torch != NULL && doctor_probe_fact(&probe, "agent", NULL) != NULL)
        check_agent(checks, &probe);
    if (ended && torch != NULL) {
        check_devices(checks, &probe, torch);
        if (has_devices(doctor_probe_fact(&probe, "devices", NULL)))
            doctor_devices(checks, command, limit_seconds);
        if (is_set(doctor_probe_fact(&probe, "library", NULL), 1))
            check_hooks(checks, &probe);
        if (doctor_probe_fact(&probe, "replaced", NULL) != NULL)
            check_replaced(checks, doctor_probe_fact(&probe, "replaced", NULL));
    }
    doctor_probe_free(&probe);
}
