"""How functions of the driver are asked for: names, versions and kinds of default stream; what a runtime's call causes is
counted once; tables without names are counted as unseen."""
import os
import unittest

import runner
import standin
from preload import PreloadTest

PRELUDE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "shims/nccl/types.h"
struct seen { int id, calls, result; size_t used; unsigned char bytes[1024]; } seen;
typedef CUresult get_function(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
static get_function *get;
static void ask(const char *name, int version, int flags) {
    void *found = NULL;
    Dl_info info = {0};
    get(name, &found, version, flags, NULL);
    if (found) dladdr(found, &info);
    printf("%s %s\n", !found ? "none" : strrchr(info.dli_fname, '/') + 1, info.dli_sname ? info.dli_sname : "");
}
"""

# One name, several ABIs; functions that are in no table, or whose ABI is older than the tables'.
ASK = PRELUDE + r"""
int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    get = (get_function *)dlsym(driver, "cuGetProcAddress_v2");
    ask("cuMemcpyHtoD", 12080, 0);
    ask("cuMemcpyHtoD", 12080, 2);
    ask("cuMemAlloc", 12080, 2);
    ask("cuMemPrefetchAsync", 12000, 0);
    ask("cuMemPrefetchAsync", 12020, 0);
    ask("cuMemPrefetchAsync", 12020, 2);
    ask("cuCtxSynchronize", 13000, 0);
    ask("cuGetProcAddress", 11030, 0);
    ask("cuGetProcAddress", 12000, 0);
    ask("cuDriverGetVersion", 12000, 0);
    ask("cuMemAlloc", 99000, 0); /* as the symbol says, though the version is not known */
    ask("cuMemAlloc", 2000, 0);
    ask("cuMem", 12000, 0);
    const void *table;
    CUresult (*tables)(const void **, const CUuuid *) = dlsym(driver, "cuGetExportTable");
    tables(&table, NULL);
    printf("%s\n", (const char *)table);
    return 0;
}
"""
ANSWERS = """libcastor.so cuMemcpyHtoD_v2
libcastor.so cuMemcpyHtoD_v2_ptds
libcastor.so cuMemAlloc_v2
libcastor.so cuMemPrefetchAsync
libcastor.so cuMemPrefetchAsync_v2
libcastor.so cuMemPrefetchAsync_v2_ptsz
libcastor.so cuCtxSynchronize_v2
libcastor.so cuGetProcAddress
libcastor.so cuGetProcAddress_v2
libcuda.so.1 cuDriverGetVersion
libcastor.so cuMemAlloc_v2
none 
none 
table
"""

# A runtime that reaches the driver as the real one does; two of its calls, one of them failing.
RUNTIME = PRELUDE + r"""
extern void *driver;
static void *function(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
    get = (get_function *)dlsym(library, "cuGetProcAddress_v2");
    get(name, &found, 12080, 1, NULL);
    return found;
}
cudaError_t cudaMalloc(void **out, size_t size) {
    CUresult (*allocate)(CUdeviceptr *, size_t) = function("cuMemAlloc");
    return allocate((CUdeviceptr *)out, size);
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **) = function("cuLaunchKernel");
    return launch((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}
""".replace("extern void *driver;\n", "").replace("} seen;", "};\nextern struct seen seen;")
ONCE = PRELUDE + r"""
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
int main(void) {
    void *block = &block; /* the stand-in allocates nothing */
    CUdeviceptr address = 1;
    dim3 one = {1, 1, 1};
    printf("%d\n", cudaMalloc(&block, 100));
    seen.result = 3;
    printf("%d\n", cudaLaunchKernel(main, one, one, NULL, 0, NULL));
    seen.result = 0;
    CUresult (*allocate)(CUdeviceptr *, size_t) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    int status = allocate(&address, 200);
    printf("%d %d\n", status, seen.calls);
    return 0;
}
"""


class LookupTest(PreloadTest):
    def compile(self, name, text, *flags):
        source, path = os.path.join(self.folder, name + ".c"), os.path.join(self.folder, name)
        with open(source, "w") as file:
            file.write(text)
        self.run_program(
            os.environ.get("CC", "cc"), "-w", "-I", standin.ROOT, "-o", path, source, *flags, f"-Wl,-rpath,{self.folder},--disable-new-dtags", preload=()
        )
        return path

    def test_names_versions_and_streams(self):
        standin.build(self, "dlsym", ("CUDA_DRIVER",))
        program = self.compile("ask", ASK, "-rdynamic")
        self.assertEqual(self.run_program(program), (ANSWERS, ""))
        (process,) = self.counters()
        names = [line.split('"')[1] for line in open(os.path.join(standin.ROOT, "interpose", "trace", "gauge.def")) if line.startswith("GAUGE(")]
        self.assertEqual(process.file.gauges[names.index("export_tables")].last, 1)

    def test_what_a_runtime_calls_is_counted_once(self):
        standin.build(self, "dlsym", ("CUDA_DRIVER",))
        runtime = self.compile("libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12")
        program = self.compile("once", ONCE, "-rdynamic", runtime)
        self.assertEqual(self.run_program(program), ("0\n3\n0 3\n", ""))
        (process,) = self.counters()
        found = {name: (counter.count, counter.bytes) for name, counter in process.calls.items()}
        self.assertEqual(found, {"cudaMalloc": (1, 100), "cudaLaunchKernel": (1, 0), "cuMemAlloc_v2": (1, 200)})

    def test_awake_under_valgrind(self):
        standin.build(self, "dlsym", ("CUDA_DRIVER",))
        program = self.compile("ask", ASK, "-rdynamic")
        runtime = self.compile("libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12")
        once = self.compile("once", ONCE, "-rdynamic", runtime)
        for command, expected in ((program, ANSWERS), (once, "0\n3\n0 3\n")):
            done = self.run_program(runner.program("valgrind"), "-q", "--error-exitcode=9", command)
            self.assertEqual(done, (expected, ""))


if __name__ == "__main__":
    unittest.main()
