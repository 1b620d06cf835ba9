"""Libraries that stand for libcudart, libcuda, libnccl, libcublas, libcublasLt and libcudnn, and a program that calls each function of them: made from
the tables. A function writes down that it was called and with what, and returns what it is told to."""
import os
import re

import cuda_rows
from cuda_rows import ROOT

PARTS = {"CUDA_RUNTIME": "libcudart.so.13", "CUDA_DRIVER": "libcuda.so.1", "NCCL": "libnccl.so.2", "CUBLAS": "libcublas.so.13", "CUBLASLT": "libcublasLt.so.13",
         "CUDNN": "libcudnn.so.9"}
RESULTS = (0, 77)  # what the real functions return, first and second time

HEADER = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "shims/cuda/blas.h"
#include "shims/cuda/dnn.h"
#include "shims/nccl/types.h"
struct seen { int id, calls, result; size_t used; unsigned char bytes[1024]; };
extern struct seen seen;
"""

PUT = """
static void put(const void *value, size_t size) {
    memcpy(seen.bytes + seen.used, value, size);
    seen.used += size;
}
"""


def prototype(row):
    return f"{row.result} {row.symbol}({', '.join(row.parameters) or 'void'})"


def library(layer):
    """The source of one of the libraries."""
    text = HEADER + PUT
    rows = [row for row in cuda_rows.rows() if row.layer == layer]
    for number, row in enumerate(rows):
        puts = "".join(f"put(&{name}, sizeof {name}); " for name in row.arguments)
        text += f"{prototype(row)} {{ seen.id = {number}; seen.calls++; {puts}return ({row.result})seen.result; }}\n"
    if layer == "CUDA_RUNTIME":
        text += "cudaError_t cudaRuntimeGetVersion(int *version) { *version = 12080; return cudaSuccess; }\n"
    if layer == "CUDA_DRIVER":
        text += DRIVER_LOOKUP.replace("ROWS", "".join(
            f'{{"{abi.name}", {abi.version}, {int(abi.per_thread)}, (void *){abi.symbol}}},\n' for abi in cuda_rows.abis()
        ))
    return text


# As the driver does it: the newest ABI that is not newer than what is asked for, the variant per thread if there is one.
DRIVER_LOOKUP = """
CUresult cuInit(unsigned flags) { (void)flags; return 0; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
CUresult cuGetProcAddress_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
CUresult cuGetProcAddress(const char *, void **, int, cuuint64_t);
CUresult cuGetExportTable(const void **table, const CUuuid *id) { (void)id; *table = "table"; return 0; }
static const struct { const char *name; int version, per_thread; void *function; } abis[] = { ROWS
    {"cuDriverGetVersion", 2020, 0, (void *)cuDriverGetVersion},
    {"cuGetProcAddress", 11030, 0, (void *)cuGetProcAddress}, {"cuGetProcAddress", 12000, 0, (void *)cuGetProcAddress_v2},
    {"cuGetExportTable", 3000, 0, (void *)cuGetExportTable} };
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *found) {
    int best = -1;
    for (int per_thread = flags & 2 ? 1 : 0; per_thread >= 0 && best < 0; per_thread--)
        for (size_t i = 0; i < sizeof abis / sizeof *abis; i++)
            if (!strcmp(abis[i].name, name) && abis[i].per_thread == per_thread && abis[i].version <= version &&
                (best < 0 || abis[i].version > abis[best].version))
                best = (int)i;
    *function = best < 0 ? NULL : abis[best].function;
    if (found) *found = best < 0;
    return best < 0 ? 500 : 0;
}
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
"""

CALLER = """
struct seen seen;
static const unsigned char datatype_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* by ncclDataType_t */
static int device_now;
static unsigned char memory[24][4096], expected[1024];
static size_t expected_used;
static void expect(const void *value, size_t size) {
    memcpy(expected + expected_used, value, size);
    expected_used += size;
}
static unsigned pattern = 1;
static void fill(void *at, size_t size) {
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)at)[i] = (unsigned char)((pattern = pattern * 1103515245 + 12345) >> 16);
}
static unsigned long long set_device(int device) { return (unsigned)(device_now = device); }
#define observe_set_device set_device
#define communicator_end(communicator) (communicator)
static void *fetch(int part, const char *name, const char *base, int version, int per_thread);
static void show(const char *symbol, int id, int result, unsigned long long bytes, unsigned long long stream, unsigned long long object) {
    const char *wrong = "good";
    if (seen.calls != 1) wrong = "not called once";
    else if (seen.id != id) wrong = "another function was called";
    else if (seen.used != expected_used || memcmp(seen.bytes, expected, expected_used)) wrong = "arguments changed";
    else if (result != seen.result) wrong = "result changed";
    printf("%s %s|%d|%llu|%llu|%llu|%d\\n", symbol, wrong, result, bytes, stream, object, device_now);
}
"""

# Parameters that count what another one points to, which the wrappers read as well.
COUNTS = ("nId", "ndev", "excludeRanksCount")

FETCH = {
    "linked": "",
    # As cuBLAS does: dlopen, then dlsym for each function.
    "dlsym": """
static void *fetch(int part, const char *name, const char *base, int version, int per_thread) {
    static void *libraries[6];
    static const char *const names[] = {NAMES};
    (void)base; (void)version; (void)per_thread;
    if (!libraries[part]) libraries[part] = dlopen(names[part], RTLD_NOW | RTLD_LOCAL);
    void *found = dlsym(libraries[part], name);
    if (!found) printf("%s not found\\n", name), exit(1);
    return found;
}
""",
    # As the static runtime does: only cuGetProcAddress itself is asked for by dlsym.
    "cuGetProcAddress": """
static void *fetch(int part, const char *name, const char *base, int version, int per_thread) {
    static CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    void *found = NULL, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    (void)part;
    if (!get) {
        CUresult (*first)(const char *, void **, int, cuuint64_t) = dlsym(library, "cuGetProcAddress");
        if (first("cuGetProcAddress", (void **)&get, 12000, 0) || !get) puts("no cuGetProcAddress"), exit(1);
    }
    if (get(base, &found, version, per_thread ? 2 : 1, NULL) || !found) printf("%s not found\\n", name), exit(1);
    return found;
}
""",
}


def caller(how, layers):
    """The source of a program that calls every function of the layers, linked or fetched."""
    text = HEADER + CALLER + FETCH[how].replace("NAMES", ", ".join(f'"{name}"' for name in PARTS.values()))
    abis = {abi.symbol: abi for abi in cuda_rows.abis()}
    calls = []
    for layer in PARTS:
        rows = [row for row in cuda_rows.rows() if row.layer == layer]
        for number, row in enumerate(rows):
            if layer not in layers:
                continue
            text += f"{prototype(row)};\nstatic void call_{row.id}(int answer) {{\n"
            text += "    expected_used = 0; memset(&seen, 0, sizeof seen); seen.result = answer;\n"
            for at, (parameter, name) in enumerate(zip(row.parameters, row.arguments)):
                kind = re.sub(rf"\b{name}$", "", parameter).strip()
                if kind.endswith("*"):
                    text += f"    {kind} {name} = (void *)memory[{at}]; fill(memory[{at}], sizeof memory[{at}]);\n"
                else:
                    text += f"    {re.sub('^const ', '', kind)} {name}; fill((void *)&{name}, sizeof {name});\n"
                    if kind == "ncclDataType_t":
                        text += f"    {name} = (ncclDataType_t)((unsigned){name} % ncclNumTypes);\n"
                    if name in COUNTS:
                        text += f"    {name} = 1;\n"
                text += f"    expect(&{name}, sizeof {name});\n"
            abi = abis.get(row.symbol)
            if how == "linked":
                function = row.symbol
            else:
                part = list(PARTS).index(layer)
                base = f'"{abi.name}", {abi.version}, {int(abi.per_thread)}' if abi else '"", 0, 0'
                function = f'((__typeof__(&{row.symbol}))fetch({part}, "{row.symbol}", {base}))'
            text += f"    {row.result} got = {function}({', '.join(row.arguments)});\n"
            facts = [f"(unsigned long long)({fact})" for fact in row.facts[:3]] if row.payload == "FACTS" else ["0"] * 3
            if row.payload == "COUNT":
                count, datatype, communicator, stream = row.facts
                facts = [f"{count} * (size_t)datatype_bytes[{datatype}]", f"(unsigned long long){stream}", f"(unsigned long long){communicator}"]
            text += f'    if (answer == 0) show("{row.symbol}", {number}, (int)got, {", ".join(facts)});\n'
            text += f'    else show("{row.symbol}", {number}, (int)got, 0, 0, 0);\n}}\n'
            calls += [f"    call_{row.id}({result});\n" for result in RESULTS]
    return text + "int main(void) {\n" + "".join(calls) + "    return 0;\n}\n"


def build(test, how, layers):
    """Compiles the libraries and the program into the test's folder; returns the program's path."""
    compiler = os.environ.get("CC", "cc")
    flags = ["-std=gnu11", "-O1", "-w", "-I", ROOT]
    libraries = []
    for layer, name in PARTS.items():
        source, path = os.path.join(test.folder, name + ".c"), os.path.join(test.folder, name)
        if not os.path.exists(path):
            with open(source, "w") as file:
                file.write(library(layer))
            test.run_program(compiler, *flags, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", path, source, preload=())
        libraries.append(path)
    source, program = os.path.join(test.folder, how + ".c"), os.path.join(test.folder, how)
    with open(source, "w") as file:
        file.write(caller(how, layers))
    link = libraries if how == "linked" else []
    test.run_program(compiler, *flags, "-rdynamic", "-o", program, source, *link, "-ldl", f"-Wl,-rpath,{test.folder}", "-Wl,--disable-new-dtags", preload=())
    return program
