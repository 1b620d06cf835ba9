"""The library asleep: no output, no files, no change in programs that have nothing to do with PyTorch; and awake
without an agent, it says so."""
import os
import re
import stat
import subprocess
import sys
import unittest

import cuda_rows
import runner
from preload import FOLDER, LIBRARY, PreloadTest


THREADS = r"""
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int rounds;
static void *work(void *argument) {
    for (int i = 0; i < rounds; i++) {
        void *block;
        if (posix_memalign(&block, 64, 5000 + i % 5000)) abort();
        memset(block, i, 5000);
        if (malloc_usable_size(block) < 5000) abort();
        block = realloc(block, 10000);
        free(block);
    }
    return argument;
}
int main(int argc, char **argv) {
    rounds = argc > 1 ? atoi(argv[1]) : 20000;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (!child) { work(0); _exit(3); }
        int status;
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) != 3) abort();
        if (i == 10) break;
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    puts("good");
}
"""

# A program whose own functions are the allocator, of all libraries that it loads, too.
ALLOCATOR = r"""
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
static char pool[1 << 26] __attribute__((aligned(4096)));
static size_t used;
static size_t *header_of(void *block) { return (size_t *)block - 2; }
static void *take(size_t alignment, size_t size) {
    size_t old = __atomic_load_n(&used, __ATOMIC_RELAXED), at;
    do {
        at = (old + 16 + alignment - 1) & ~(alignment - 1);
        if (at + size > sizeof pool) { errno = ENOMEM; return NULL; }
    } while (!__atomic_compare_exchange_n(&used, &old, at + size, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    *header_of(pool + at) = size;
    return pool + at;
}
static void check(void *block) {
    if ((char *)block < pool || (char *)block >= pool + sizeof pool) _exit(9);  /* somebody else's */
}
void *malloc(size_t size) { return take(16, size); }
void *calloc(size_t count, size_t size) { return take(16, count * size); }
void free(void *block) { if (block) check(block); }
void *realloc(void *block, size_t size) {
    void *other = take(16, size);
    if (block && other) { check(block); memcpy(other, block, *header_of(block) < size ? *header_of(block) : size); }
    return other;
}
int posix_memalign(void **out, size_t alignment, size_t size) { return (*out = take(alignment < 16 ? 16 : alignment, size)) ? 0 : ENOMEM; }
size_t malloc_usable_size(void *block) { check(block); return *header_of(block); }
"""


class SleepTest(PreloadTest):
    def quiet(self, *command, expected=None, **environment):
        out, errors = self.run_program(*command, **environment)
        self.assertEqual(errors, "")
        if expected is not None:
            self.assertEqual(out, expected)
        self.assertEqual(os.listdir(self.log_dir), [], "files were left")

    def test_shell(self):
        self.quiet("bash", "-c", "echo a | cat; (exit 0); echo $(echo b)", expected="a\nb\n")

    def test_python_without_torch(self):
        self.quiet(sys.executable, "-c", "print(1)", expected="1\n")

    def test_python_with_subprocesses_and_threads(self):
        text = (
            "import subprocess, threading, multiprocessing as m\n"
            "t = [threading.Thread(target=lambda: [bytearray(i * 999) for i in range(200)]) for _ in range(4)]\n"
            "[x.start() for x in t]\n"
            "print(subprocess.check_output(['echo', 'c'], text=True).strip())\n"
            "p = m.get_context('fork').Process(target=print, args=('d',), kwargs=dict(flush=True)); p.start(); p.join()\n"
            "[x.join() for x in t]\n"
        )
        self.quiet(sys.executable, "-W", "ignore", "-c", text, expected="c\nd\n")

    def test_bad_options_are_not_repeated_by_every_shell(self):
        self.quiet("bash", "-c", "echo e", expected="e\n", CASTOR_PLUGIN="nonsense", CASTOR_NO_SUCH="1")

    def compiled(self, name, *texts, options=()):
        """Compiles a program, under the library."""
        sources = []
        for number, text in enumerate(texts):
            sources.append(f"{self.folder}/{name}{number}.c")
            with open(sources[-1], "w") as file:
                file.write(text)
        program = f"{self.folder}/{name}"
        self.quiet(os.environ.get("CC", "cc"), "-O1", "-fno-builtin", "-pthread", *options, "-o", program, *sources)
        return program

    def test_compiler_and_a_threaded_forking_program(self):
        self.quiet(self.compiled("threads", THREADS), expected="good\n")

    def test_a_program_with_a_sanitizer(self):
        """Whose own dlsym and dl_iterate_phdr stand behind the library's, and are empty until it has found libc's."""
        tried = 0
        for sanitizer in ("thread", "undefined"):
            program, option = f"{self.folder}/{sanitizer}", f"-fsanitize={sanitizer}"
            probe = [os.environ.get("CC", "cc"), option, "-x", "c", "-", "-o", program]
            able = subprocess.run(probe, input="int main(void) { return 0; }", text=True, capture_output=True, check=False).returncode == 0
            if able and subprocess.run([program], capture_output=True, check=False).returncode == 0:
                self.quiet(self.compiled(f"{sanitizer}d", THREADS.replace("i < 50", "i < 0"), options=[option]), "200", expected="good\n")
                tried += 1
        if not tried:
            self.skipTest("no sanitizer works here")

    def test_a_program_with_an_allocator_of_its_own(self):
        self.quiet(self.compiled("own", THREADS, ALLOCATOR), "200", expected="good\n")

    def test_make_and_a_pipeline_of_shells(self):
        with open(self.folder + "/Makefile", "w") as file:
            file.write("one two:\n\t@sh -c 'for i in 1 2 3; do echo $@ $$i; done' | sort | tail -n 1\n")
        self.quiet("make", "-s", "-j2", "one", expected="one 3\n")

    def test_valgrind(self):
        # valgrind preloads its own library and replaces malloc: the library must stand between.
        valgrind = (runner.program("valgrind"), "-q", "--error-exitcode=9", "--trace-children=yes")
        self.quiet(*valgrind, "--leak-check=full", "true", expected="")
        # A child has no threads that could free what they hold when it is forked.
        self.quiet(*valgrind, "--leak-check=no", self.compiled("threads", THREADS), "20", expected="good\n")

    def test_gdb(self):
        # The library is in the debugger and in what it debugs.
        for command in (("true",), (self.compiled("threads", THREADS), "20")):
            out, errors = self.run_program(runner.program("gdb"), "-q", "-nx", "-batch", "-ex", "run", "-ex", "info sharedlibrary", "--args", *command)
            self.assertIn("exited normally", out)
            self.assertNotIn("castor:", out + errors)
            self.assertEqual(os.listdir(self.log_dir), [], "files were left")

    def test_without_a_trace_there_are_counters(self):
        text = "import torch; torch.ones(2000000).sum()"
        for trace in (0, 1):
            with self.subTest(trace=trace):
                self.python(text, CASTOR_TRACE=trace)
                self.assertGreater(self.counters()[-1].calls["posix_memalign"].count, 0)
                self.assertEqual(bool(self.records()), bool(trace))

    def beside(self, other):
        text = "import json, ctypes, subprocess; print(subprocess.check_output(['echo', 'f'], text=True).strip())"
        program = self.compiled("threads", THREADS)
        for preload in ((LIBRARY, other), (other, LIBRARY)):
            with self.subTest(preload=preload):
                self.quiet(program, expected="good\n", preload=preload)
                self.quiet("bash", "-c", "echo a | cat; echo $(echo b)", expected="a\nb\n", preload=preload)
                self.quiet(sys.executable, "-c", text, expected="f\n", preload=preload)

    def test_beside_jemalloc(self):
        self.beside(runner.library("jemalloc"))

    def test_beside_mimalloc(self):
        self.beside(runner.library("mimalloc"))

    def test_needs_nothing_but_libc(self):
        listing = subprocess.run(["readelf", "-dW", LIBRARY], capture_output=True, text=True, check=True).stdout
        needed = [line.split("[")[1].split("]")[0] for line in listing.splitlines() if "(NEEDED)" in line]
        loader = [name for name in needed if name.startswith("ld-linux")]  # a part of libc
        self.assertEqual(set(needed) - set(loader), {"libc.so.6"})

    def test_exports_hooks_and_castor_functions_only(self):
        listing = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        libc = {"posix_memalign", "free", "realloc", "malloc_usable_size", "dlsym", "dlvsym", "dlopen",
                "wait", "waitpid", "wait3", "wait4", "waitid", "_exit", "_Exit"}
        with open(os.path.join(os.path.dirname(os.path.dirname(FOLDER)), "interpose", "hooks", "files", "files.def")) as table:
            rows = re.findall(r"^FILE_CALL\(\w+, -1, (\w+),|FILE_REAL\((\w+)\)", table.read(), re.M)
        libc |= {symbol for row in rows for symbol in row}
        cuda = {row.symbol for row in cuda_rows.rows(("CUDA_LOOKUP",) + cuda_rows.LAYERS)}
        names = {line.split()[-1] for line in listing.splitlines()}
        self.assertEqual(cuda - names, set())
        process_groups = ("_ZN4c10d16ProcessGroupGloo", "_ZN4c10d16ProcessGroupNCCL", "_ZN4c10d5nccl216ProcessGroupNCCL", "_ZN4c10d7BackendC2")
        gloo = {f"_ZN4gloo{rest}" for rest in (
            "7ContextC2Eiii", "7ContextD2Ev", "9allreduceERKNS_16AllreduceOptionsE", "9broadcastERNS_16BroadcastOptionsE",
            "9allgatherERNS_16AllgatherOptionsE", "7barrierERNS_14BarrierOptionsE", "6reduceERNS_13ReduceOptionsE",
            "6gatherERNS_13GatherOptionsE", "7scatterERNS_14ScatterOptionsE", "8alltoallERNS_15AlltoallOptionsE")}
        works = {"_ZN4c10d4Work4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"}
        training = {"_ZN3c1011LogAPIUsageERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
                    "_ZN5torch8autograd6Engine30initialize_device_threads_poolEv"}
        devices = {"_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "_ZN2at11accelerator14getAcceleratorEb",
                   "_Z13THPDevice_NewRKN3c106DeviceE", "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
                   "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"}
        others = {n for n in names if not n.startswith(("castor_",) + process_groups)} - libc - cuda - gloo - works - devices - training
        self.assertEqual(others, set())


class AwakeTest(PreloadTest):
    def check_private(self):
        names = os.listdir(self.log_dir)
        self.assertTrue(names)
        for name in names:
            status = os.lstat(os.path.join(self.log_dir, name))
            self.assertTrue(stat.S_ISREG(status.st_mode), name)
            self.assertEqual(oct(stat.S_IMODE(status.st_mode)), "0o600", name)

    def test_attached_run_says_nothing(self):
        self.addCleanup(os.umask, os.umask(0))
        out, errors = self.python("import torch; print(torch.ones(3).sum().item())")
        self.assertEqual((out, errors), ("3.0\n", ""))
        self.assertNotIn("passthrough", os.listdir(self.log_dir))
        self.check_private()

    def beside(self, other):
        text = (
            "import torch; model = torch.nn.Linear(300, 300); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "for _ in range(5): model(torch.ones(50, 300)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
            "print('good')"
        )
        out, errors = self.python(text, preload=(LIBRARY, other))
        self.assertEqual((out, errors), ("good\n", ""))
        (process,) = self.counters()
        self.assertGreater(process.calls["posix_memalign"].count, 0)

    def test_beside_jemalloc(self):
        self.beside(runner.library("jemalloc"))

    def test_beside_mimalloc(self):
        self.beside(runner.library("mimalloc"))

    def test_agent_not_reached(self):
        self.addCleanup(os.umask, os.umask(0))
        _, errors = self.python("import torch; torch.ones(5000)", agent=False)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("the agent was not reached", errors)
        with open(os.path.join(self.log_dir, "passthrough")) as file:
            self.assertIn("the agent was not reached", file.read())
        self.check_private()

    def test_training_without_the_agent_is_refused(self):
        text = (
            "import threading, torch\n"
            "def refused(what):\n"
            "    try:\n"
            "        what()\n"
            "        print('went on')\n"
            "    except SystemExit as end:\n"
            "        print(end.code)\n"
            "w = torch.ones(5000, requires_grad=True)\n"
            "refused(lambda: w.sum().backward())\n"
            "refused(lambda: torch.optim.SGD([w], lr=1))\n"
            "refused(lambda: w.sum().backward())\n"
            "thread = threading.Thread(target=lambda: (w.sum().backward(), print('a thread went on')))\n"
            "refused(lambda: (thread.start(), thread.join()))\n"
        )
        out, errors = self.python(text, agent=False, CASTOR_PLUGIN="gemini")
        self.assertEqual(out, "1\n1\n1\n1\n", errors)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("plugin gemini cannot be applied", errors)
        self.assertIn("PYTHONPATH or sys.path was replaced", errors)
        self.assertEqual(os.listdir(self.log_dir).count("refused"), 1)
        self.check_private()

    def test_bad_option_is_said_once(self):
        _, errors = self.python("import torch", CASTOR_PLUGIN="gemni")
        self.assertEqual(errors.count("did you mean gemini?"), 1, errors)


if __name__ == "__main__":
    unittest.main()
