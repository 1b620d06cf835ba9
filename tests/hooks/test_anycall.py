"""CASTOR_TRACE_ALSO: functions known only at run time. Values pass through unchanged for every kind of argument; callers
bound early, late, after the start and by dlsym are seen; at the end the callers' entries are as they were."""
import os
import re
import sys
import unittest

import standin
import trace_files
from preload import PreloadTest

# One function of each kind; each mixes its arguments so that a lost or swapped one changes the result.
KINDS = {
    "integers": ("l(bBsSiIlL)", "long", "signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f, long g, unsigned long h",
                 "a + 3L * b + 5L * c + 7L * d + 11L * e + 13L * f + 17 * g + 19 * (long)h",
                 "-100, 200, -30000, 60000, -2000000000, 4000000000u, -5000000000L, 9000000000uL"),
    "small": ("b(sB)", "signed char", "short a, unsigned char b", "a + b", "-300, 211"),
    "floats": ("d(fdfdfdfdfdfd)", "double", "float a, double b, float c, double d, float e, double f, float g, double h, float i, double j, float k, double l",
               "a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + 12 * l",
               "1.5f, 2.25, 3.5f, 4.75, 5.5f, 6.125, 7.5f, 8.5, 9.5f, 10.0625, 11.5f, 12.5"),
    "single": ("f(fi)", "float", "float a, int b", "a * b", "2.5f, -3"),
    "pointers": ("p(ppi)", "char *", "char *a, char *b, int c", "c ? a + 1 : b", '"first", "second", 1'),
    "nothing": ("v()", "void", "void", "", ""),
    "in_registers": ("d({dd}{ff}{lf})", "double", "struct dd a, struct ff b, struct lf c", "a.x + 2 * a.y + 3 * b.x + 4 * b.y + 5 * c.x + 6 * c.y",
                     "(struct dd){1.5, 2.5}, (struct ff){3.5f, 4.5f}, (struct lf){-5, 6.5f}"),
    "in_memory": ("l({llllllll}i{sis})", "long", "struct large a, int b, struct padded c",
                  "a.x[0] + 2 * a.x[3] + 3 * a.x[7] + 5 * b + 7 * c.x + 11 * c.y + 13 * c.z",
                  "(struct large){{1, 2, 3, 4, 5, 6, 7, 8}}, 9, (struct padded){10, -11, 12}"),
    "nested": ("{i{ff}d}({i{ff}d}d)", "struct nested", "struct nested a, double b", "(struct nested){-a.x, {a.y.y, a.y.x}, a.z * b}",
               "(struct nested){3, {1.5f, 2.5f}, 3.5}, 2.0"),
    "pair": ("{lf}(lf)", "struct lf", "long a, float b", "(struct lf){2 * a, 2 * b}", "21, 1.25f"),
    "whole": ("{llllllll}(l)", "struct large", "long a", "(struct large){{a, 2 * a, 3 * a, 4 * a, 5 * a, 6 * a, 7 * a, 8 * a}}", "7"),
}
HEADER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
struct dd { double x, y; }; struct ff { float x, y; }; struct lf { long x; float y; };
struct large { long x[8]; }; struct padded { short x; int y; short z; };
struct nested { int x; struct ff y; double z; };
static void show(const void *value, size_t size) {
    for (size_t i = 0; i < size; i++) printf("%02x", ((const unsigned char *)value)[i]);
    puts("");
}
"""


def declarations():
    return "".join(f"{result} {name}({parameters});\n" for name, (_, result, parameters, _, _) in KINDS.items())


def definitions():
    text = 'static int calls; int called(void) { return calls; }\n'
    for name, (_, result, parameters, value, _) in KINDS.items():
        text += f"{result} {name}({parameters}) {{ calls++; errno = 42; {f'return {value};' if value else ''} }}\n"
    return text


def calls(prefix="", get=lambda name: name):
    """A function that calls each and shows what came back; a struct's padding is nobody's value and is not shown."""
    text = f"void {prefix}call_all(void) {{\n"
    for name, (_, result, _, _, arguments) in KINDS.items():
        if result == "void":
            text += f"    errno = 0; {get(name)}({arguments}); printf(\"%d\\n\", errno);\n"
            continue
        text += f"    {{ errno = 0; {result} got = {get(name)}({arguments}); printf(\"{name} %d \", errno);\n"
        if result == "char *":
            text += "      puts(got); }\n"
        elif result == "struct lf":
            text += "      show(&got.x, 8); show(&got.y, 4); }\n"
        elif result == "struct nested":
            text += "      show(&got.x, 12); show(&got.z, 8); }\n"
        else:
            text += "      show(&got, sizeof got); }\n"
    return text + "}\n"


# The process wakes with the first call of CUDA.
MAIN = """
int cudaSetDevice(int);
int called(void);
void plugin_call_all(void);
static const char *where(void *function) {
    Dl_info info;
    return dladdr(function, &info) && info.dli_fname && strstr(info.dli_fname, "libtraced.so") ? "real" : "closure";
}
int main(void) {
    cudaSetDevice(0);
    call_all();
    void *plugin = dlopen("libplugin.so", RTLD_NOW);
    ((void (*)(void))dlsym(plugin, "plugin_call_all"))();
    void *lazy = dlopen("liblazy.so", RTLD_LAZY);
    ((void (*)(void))dlsym(lazy, "lazy_call_all"))();
    library = dlopen("libtraced.so", RTLD_NOW);
    fetched_call_all();
    fprintf(stderr, "%d calls, %s\\n", called(), where((void *)integers));
    return 0;
}
"""
LAST = """
__attribute__((destructor)) static void last(void) {
    Dl_info info;
    int real = dladdr((void *)integers, &info) && info.dli_fname && strstr(info.dli_fname, "libtraced.so");
    fprintf(stderr, "at the end %s\\n", real ? "real" : "closure");
}
"""


# Functions that the linker chooses at run time (STT_GNU_IFUNC): each call of cos and exp, in every way in which one can be made.
INDIRECT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef double function(double);
static volatile double x = 0.5;
static function *volatile table[] = {cos};
int cudaSetDevice(int);
int main(int count, char **arguments) {
    if (count > 1) printf("%a\\n", cos(x)); /* bound before the start; not seen */
    cudaSetDevice(0);
    function *volatile pointer = cos;
    printf("%a %a %a %a\\n", cos(x), pointer(x), table[0](x), exp(x));
    double (*later)(void) = 0;
    void *now = dlopen("liblater-now.so", RTLD_NOW), *lazy = dlopen("liblater-lazy.so", RTLD_LAZY);
    printf("%a\\n", ((double (*)(void))dlsym(now, "later"))() + ((double (*)(void))dlsym(lazy, "later"))());
    printf("%a\\n", ((function *)dlsym(RTLD_DEFAULT, "cos"))(x) + ((function *)dlsym(dlopen("libm.so.6", RTLD_NOW), "cos"))(x));
    char *copy = malloc(64);
    memcpy(copy, "0123456789", count + 1);
    return copy[0] != '0';
}
"""
# Loaded after the start: one whose entries are bound at once, one whose entries are bound at the first call.
LATER = """
#include <math.h>
typedef double function(double);
static volatile double x = 0.25;
static function *volatile table[] = {cos};
double later(void) { return cos(x) + table[0](x) + exp(x); }
"""


class AnycallTest(PreloadTest):
    def compile(self, name, text, *flags):
        source, path = os.path.join(self.folder, name + ".c"), os.path.join(self.folder, name)
        with open(source, "w") as file:
            file.write(HEADER + text)
        self.run_program(os.environ.get("CC", "cc"), "-w", "-O1", "-o", path, source, *flags, f"-Wl,-rpath,{self.folder}", preload=())
        return path

    def programs(self):
        standin.build(self, "dlsym", ("CUDA_RUNTIME",))
        runtime = os.path.join(self.folder, "libcudart.so.13")
        shared = ("-shared", "-fPIC")
        traced = self.compile("libtraced.so", definitions(), *shared, "-Wl,-soname,libtraced.so")
        self.compile("liblast.so", declarations() + LAST, *shared, traced)
        self.compile("libplugin.so", declarations() + calls("plugin_"), *shared, traced, "-Wl,-z,now,-z,relro")
        self.compile("liblazy.so", declarations() + calls("lazy_"), *shared, traced, "-Wl,-z,lazy")
        fetched = calls("fetched_", lambda name: f'((__typeof__(&{name}))dlsym(library, "{name}"))')
        main = declarations() + "struct { int x[300]; } seen; static void *library;\n" + calls() + fetched + MAIN
        libraries = ("-Wl,--no-as-needed", traced, os.path.join(self.folder, "liblast.so"), runtime, "-rdynamic")
        return [
            self.compile("main-now", main, *libraries, "-Wl,-z,now,-z,relro"),
            self.compile("main-lazy", main, *libraries, "-Wl,-z,lazy,-z,relro"),
        ]

    def test_values_and_callers_of_all_kinds(self):
        also = ";".join(f"libtraced.so:{name}={kind[0]}" for name, kind in KINDS.items())
        for program in self.programs():
            with self.subTest(program=os.path.basename(program)):
                for name in os.listdir(self.log_dir):
                    os.remove(os.path.join(self.log_dir, name))
                plain, errors = self.run_program(program, preload=())
                self.assertEqual(errors, f"{4 * len(KINDS)} calls, real\nat the end real\n")
                traced, errors = self.run_program(program, CASTOR_TRACE_ALSO=also)
                self.assertEqual(errors, f"{4 * len(KINDS)} calls, closure\nat the end real\n")
                self.assertEqual(plain, traced)
                (process,) = self.counters()
                for name in KINDS:
                    self.assertEqual(process.calls["libtraced.so:" + name].count, 4, name)
                (record, *_) = [r for _, r in self.records() if process.names["call"].get(r.id) == "libtraced.so:small"]
                self.assertEqual((record.a, record.b, record.c), ((-300) % (1 << 64), 211, (-89) % (1 << 64)))

    def runtime(self):
        return self.compile("libcudart.so.13", "int cudaSetDevice(int device) { return 0; }\n", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13")

    def test_functions_that_the_linker_chooses_at_run_time(self):
        runtime = self.runtime()
        for binding in ("now", "lazy"):
            self.compile(f"liblater-{binding}.so", LATER, "-fno-builtin", "-shared", "-fPIC", f"-Wl,-z,{binding}", "-lm")
        kinds = {"pie-now": ("-fPIE", "-pie", "-Wl,-z,now"), "pie-lazy": ("-fPIE", "-pie", "-Wl,-z,lazy"), "no-plt": ("-fPIE", "-pie", "-fno-plt"),
                 "fixed-now": ("-fno-pie", "-no-pie", "-Wl,-z,now"), "fixed-lazy": ("-fno-pie", "-no-pie", "-Wl,-z,lazy")}
        for kind, flags in kinds.items():
            program = self.compile("indirect-" + kind, INDIRECT, "-fno-builtin", *flags, "-Wl,--no-as-needed", runtime, "-lm")
            for early in ((), ("early",)):
                with self.subTest(kind=kind, early=early):
                    for name in os.listdir(self.log_dir):
                        os.remove(os.path.join(self.log_dir, name))
                    plain, _ = self.run_program(program, *early, preload=())
                    traced, errors = self.run_program(program, *early, CASTOR_TRACE_ALSO="libm:cos=d(d);libm:exp=d(d);libc:memcpy=p(ppL)")
                    self.assertEqual((traced, errors), (plain, ""))
                    (process,) = self.counters()
                    counts = {name: process.calls[name].count for name in ("libm:cos", "libm:exp", "libc:memcpy")}
                    self.assertEqual(counts, {"libm:cos": 3 + 2 * 2 + 2, "libm:exp": 1 + 2, "libc:memcpy": 1})

    def test_one_that_nobody_can_call_through_an_entry_is_told(self):
        runtime = self.runtime()
        alone = self.compile("libalone.so", "__attribute__((visibility(\"protected\"))) int inner(int a) { return a + 1; }\n"
                             "int outer(int a) { return inner(a); }\n", "-shared", "-fPIC", "-Wl,-soname,libalone.so")
        program = self.compile("alone", "int cudaSetDevice(int); int outer(int); int main(void) { cudaSetDevice(0); return outer(1) != 2; }\n",
                               "-Wl,--no-as-needed", alone, runtime)
        self.run_program(program, CASTOR_TRACE_ALSO="libalone:outer=i(i);libalone:inner=i(i);libnone:f=v()")
        (process,) = self.counters()
        found = {name: process.file.counters[trace_files.ALSO_SLOT + number] for number, name in enumerate(("outer", "inner", "f"))}
        self.assertEqual({name: (row.count, row.bytes) for name, row in found.items()}, {"outer": (1, 3), "inner": (0, 3), "f": (0, 0)})

    def test_zlib_and_libm_in_python(self):
        text = "import torch, zlib, math; print(zlib.crc32(b'castor'), math.cos(0.25), math.cos(0.5))"
        plain, _ = self.python(text, preload=())
        traced, errors = self.python(text, CASTOR_TRACE_ALSO="libz.so.1:crc32_z=L(LpL); libm.so.6:cos=d(d);libz.so.1:crc32=L(LpI)")
        self.assertEqual((traced, errors), (plain, ""))
        (process,) = self.counters()
        self.assertEqual(process.calls["libm.so.6:cos"].count, 2)
        crc = [record for _, record in self.records() if process.names["call"].get(record.id, "").startswith("libz.so.1:crc32")]
        self.assertEqual(crc[-1].c, int(plain.split()[0]))

    def test_ctypes_finds_the_closure(self):
        text = "import torch, ctypes; m = ctypes.CDLL('libm.so.6'); m.cosh.restype = ctypes.c_double; m.cosh.argtypes = [ctypes.c_double]; print(m.cosh(1.0))"
        plain, _ = self.python(text, preload=())
        self.assertEqual(self.python(text, CASTOR_TRACE_ALSO="libm.so.6:cosh=d(d)"), (plain, ""))
        (process,) = self.counters()
        self.assertEqual(process.calls["libm.so.6:cosh"].count, 1)

    def test_a_bad_signature_is_one_error_that_shows_the_place(self):
        _, errors = self.python("import torch", CASTOR_TRACE_ALSO="libm.so.6:cos=d(x)", CASTOR_ON_ERROR="passthrough")
        self.assertEqual(errors.count("<-- here -->"), 1, errors)
        self.assertRegex(errors, re.escape("CASTOR_TRACE_ALSO: libm.so.6:cos=d( <-- here --> x): no type; types are v b B s S i I l L f d p and {...}"))

    def test_a_function_that_is_not_there(self):
        _, errors = self.python("import torch", CASTOR_TRACE_ALSO="libm.so.6:nosuch=d(d);libnosuch.so:f=v()")
        self.assertEqual(errors, "castor: CASTOR_TRACE_ALSO: libm.so.6 has no function nosuch; it is not recorded\n")


if __name__ == "__main__":
    unittest.main()
