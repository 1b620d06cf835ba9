"""dlsym, dlvsym and dlopen between a program and the real ones: all symbol versions, the caller's view of RTLD_NEXT and
RTLD_DEFAULT and of RUNPATH, exact names only."""
import os
import unittest

import standin
from preload import LIBRARY, PreloadTest

# Two versions of the symbols exist since glibc 2.34; a program may be bound to either.
VERSIONS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#ifdef OLD
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlvsym, dlvsym@GLIBC_2.2.5");
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
#endif
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = dlsym(cuda, "cuMemAlloc_v2"), *other = dlsym(cuda, "cuMemAlloc");
    Dl_info info = {0};
    dladdr(found, &info);
    puts(strrchr(info.dli_fname, '/') + 1);
    puts(other ? "cuMemAlloc?" : strstr(dlerror(), "undefined symbol: cuMemAlloc") ? "none" : "no error text");
    dladdr(dlsym(cuda, "cuDriverGetVersion"), &info); /* in no table */
    puts(strrchr(info.dli_fname, '/') + 1);
    void *math = dlopen("libm.so.6", RTLD_NOW);
    puts(dlvsym(math, "cos", "GLIBC_2.2.5") == dlsym(math, "cos") ? "same" : "other");
    puts(dlvsym(cuda, "cuMemAlloc_v2", "NO_SUCH") ? "found" : "none");
    puts(dlsym(RTLD_DEFAULT, "cudaMalloc") ? "found" : strstr(dlerror(), "cudaMalloc") ? "none" : "no error text");
    puts(dlsym(dlopen(NULL, RTLD_NOW), "ncclAllReduce") ? "found" : "none");
    return 0;
}
"""

# Each of two libraries asks for the next definition after its own; only the true caller makes the answer right.
NEXT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
int chain(void) {
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "chain");
    return NUMBER + (next ? 10 * next() : 0);
}
"""
NEXT_MAIN = """
#include <stdio.h>
int chain(void);
int main(void) { printf("%d\\n", chain()); return 0; }
"""

# A library that finds its neighbour by its own RUNPATH: dlopen must see who calls.
RUNPATH = r"""
#include <dlfcn.h>
void *open_neighbour(void) { return dlopen("libneighbour.so", RTLD_NOW); }
"""
RUNPATH_MAIN = """
#include <stdio.h>
void *open_neighbour(void);
int main(void) { puts(open_neighbour() ? "found" : "not found"); return 0; }
"""

# A tool before the real libraries, as profilers are: it passes on to RTLD_NEXT and must not get the wrapper again.
INTERPOSER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
static int calls;
int cudaMalloc(void **out, size_t size) {
    int (*next)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc");
    calls++;
    return calls > 3 ? 99 : next(out, size);
}
"""
INTERPOSED = r"""
#include <stdio.h>
#include "shims/nccl/types.h"
struct seen { int id, calls, result; size_t used; unsigned char bytes[1024]; } seen;
cudaError_t cudaMalloc(void **, size_t);
int main(void) { void *block = 0; int status = cudaMalloc(&block, 5); printf("%d %d\n", status, seen.calls); return 0; }
"""

# In front of libc's functions, and of no use before the real ones are found: as a sanitizer's runtime.
INTERCEPTORS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
static int (*compare)(const char *, const char *), (*compare_part)(const char *, const char *, size_t);
static int (*compare_bytes)(const void *, const void *, size_t);
static char *(*find_first)(const char *, int), *(*find_last)(const char *, int);
static size_t (*length)(const char *);
int strcmp(const char *one, const char *other) { return compare(one, other); }
int strncmp(const char *one, const char *other, size_t count) { return compare_part(one, other, count); }
int memcmp(const void *one, const void *other, size_t count) { return compare_bytes(one, other, count); }
char *strchr(const char *text, int character) { return find_first(text, character); }
char *strrchr(const char *text, int character) { return find_last(text, character); }
size_t strlen(const char *text) { return length(text); }
__attribute__((constructor)) static void find(void) {
    compare = dlsym(RTLD_NEXT, "strcmp");
    compare_part = dlsym(RTLD_NEXT, "strncmp");
    compare_bytes = dlsym(RTLD_NEXT, "memcmp");
    find_first = dlsym(RTLD_NEXT, "strchr");
    find_last = dlsym(RTLD_NEXT, "strrchr");
    length = dlsym(RTLD_NEXT, "strlen");
}
"""


class LoaderTest(PreloadTest):
    def build(self, name, text, *flags):
        source, path = os.path.join(self.folder, name + ".c"), os.path.join(self.folder, name)
        with open(source, "w") as file:
            file.write(text)
        self.run_program(os.environ.get("CC", "cc"), "-w", "-I", standin.ROOT, "-o", path, source, *flags, preload=())
        return path

    def test_both_versions_of_the_symbols(self):
        standin.build(self, "dlsym", ("CUDA_DRIVER",))
        for name, flags in (("new", ()), ("old", ("-DOLD",))):
            program = self.build(name, "struct { int x[300]; } seen;" + VERSIONS, *flags, "-rdynamic", f"-Wl,-rpath,{self.folder}", "-ldl")
            symbols, _ = self.run_program("readelf", "-W", "--dyn-syms", program, preload=())
            self.assertEqual(name == "old", "dlsym@GLIBC_2.2.5" in symbols, symbols)
            out, errors = self.run_program(program)
            self.assertEqual(errors, "")
            self.assertEqual(out.split(), ["libcastor.so", "none", "libcuda.so.1", "same", "none", "none", "none"])

    def test_next_is_what_follows_the_caller(self):
        for number in (1, 2, 3):
            self.build(f"libnext{number}.so", NEXT.replace("NUMBER", str(number)), "-shared", "-fPIC", "-O2")
        libraries = [os.path.join(self.folder, f"libnext{number}.so") for number in (1, 2, 3)]
        program = self.build("next", NEXT_MAIN, "-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{self.folder}")
        self.assertEqual(self.run_program(program), ("321\n", ""))

    def test_a_library_is_searched_for_as_its_caller_says(self):
        hidden = os.path.join(self.folder, "hidden")
        os.mkdir(hidden)
        self.build("hidden/libneighbour.so", "int neighbour;", "-shared", "-fPIC")
        library = self.build("libopener.so", RUNPATH, "-shared", "-fPIC", f"-Wl,-rpath,{hidden}", "-Wl,--enable-new-dtags")
        program = self.build("opener", RUNPATH_MAIN, library, f"-Wl,-rpath,{self.folder}", "-Wl,--enable-new-dtags")
        self.assertEqual(self.run_program(program), ("found\n", ""))

    def test_another_interposer(self):
        standin.build(self, "dlsym", ("CUDA_RUNTIME",))
        other = self.build("libother.so", INTERPOSER, "-shared", "-fPIC", "-O2")
        runtime = os.path.join(self.folder, "libcudart.so.13")
        program = self.build("interposed", INTERPOSED, runtime, "-rdynamic", f"-Wl,-rpath,{self.folder}")
        for order in ((LIBRARY, other), (other, LIBRARY)):
            for name in os.listdir(self.log_dir):
                os.remove(os.path.join(self.log_dir, name))
            self.assertEqual(self.run_program(program, preload=order), ("0 1\n", ""))
            (process,) = self.counters()
            self.assertEqual(process.calls["cudaMalloc"].count, 1)

    def test_interceptors_of_string_functions(self):
        other = self.build("libintercept.so", INTERCEPTORS, "-shared", "-fPIC", "-O2", "-fno-builtin")
        program = self.build("intercepted", 'int puts(const char *); int main(void) { puts("went on"); return 0; }')
        self.assertEqual(self.run_program(program, preload=(LIBRARY, other)), ("went on\n", ""))


if __name__ == "__main__":
    unittest.main()
