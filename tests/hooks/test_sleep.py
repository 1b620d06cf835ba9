"""The library asleep: no output, no files, no change in programs that have nothing to do with PyTorch; and awake
without an agent, it says so."""
import ctypes.util
import os
import shutil
import subprocess
import sys
import unittest

import cuda_rows
from preload import LIBRARY, PreloadTest

THREADS = r"""
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *argument) {
    for (int i = 0; i < 20000; i++) {
        void *block;
        if (posix_memalign(&block, 64, 5000 + i % 5000)) abort();
        memset(block, i, 5000);
        if (malloc_usable_size(block) < 5000) abort();
        block = realloc(block, 10000);
        free(block);
    }
    return argument;
}
int main(void) {
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

    def test_compiler_and_a_threaded_forking_program(self):
        source, program = self.folder + "/threads.c", self.folder + "/threads"
        with open(source, "w") as file:
            file.write(THREADS)
        self.quiet(os.environ.get("CC", "cc"), "-O1", "-pthread", "-o", program, source)
        self.quiet(program, expected="good\n")

    @unittest.skipUnless(shutil.which("valgrind"), "valgrind is not installed")
    def test_valgrind(self):
        # valgrind preloads its own library and replaces malloc: the library must stand between.
        self.quiet("valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--trace-children=yes", "true", expected="")

    @unittest.skipUnless(shutil.which("gdb"), "gdb is not installed")
    def test_gdb(self):
        # The library is in the debugger and in what it debugs.
        out, errors = self.run_program("gdb", "-q", "-nx", "-batch", "-ex", "run", "-ex", "info sharedlibrary", "--args", "true")
        self.assertIn("exited normally", out)
        self.assertNotIn("castor:", out + errors)
        self.assertEqual(os.listdir(self.log_dir), [], "files were left")

    def test_beside_other_allocators(self):
        source, program = self.folder + "/threads.c", self.folder + "/threads"
        with open(source, "w") as file:
            file.write(THREADS)
        self.quiet(os.environ.get("CC", "cc"), "-O1", "-pthread", "-o", program, source)
        text = "import json, ctypes, subprocess; print(subprocess.check_output(['echo', 'f'], text=True).strip())"
        for name in ("jemalloc", "mimalloc"):
            other = ctypes.util.find_library(name)
            if not other:
                continue  # optional: setup does not install them
            for preload in ((LIBRARY, other), (other, LIBRARY)):
                with self.subTest(preload=preload):
                    self.quiet(program, expected="good\n", preload=preload)
                    self.quiet("bash", "-c", "echo a | cat; echo $(echo b)", expected="a\nb\n", preload=preload)
                    self.quiet(sys.executable, "-c", text, expected="f\n", preload=preload)

    def test_needs_nothing_but_libc(self):
        listing = subprocess.run(["readelf", "-dW", LIBRARY], capture_output=True, text=True, check=True).stdout
        needed = [line.split("[")[1].split("]")[0] for line in listing.splitlines() if "(NEEDED)" in line]
        loader = [name for name in needed if name.startswith("ld-linux")]  # a part of libc
        self.assertEqual(set(needed) - set(loader), {"libc.so.6"})

    def test_exports_hooks_and_castor_functions_only(self):
        listing = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        libc = {"posix_memalign", "free", "realloc", "malloc_usable_size", "dlsym", "dlvsym", "dlopen"}
        cuda = {row.symbol for row in cuda_rows.rows(("CUDA_LOOKUP",) + cuda_rows.LAYERS)}
        names = {line.split()[-1] for line in listing.splitlines()}
        self.assertEqual(cuda - names, set())
        process_groups = ("_ZN4c10d16ProcessGroupGloo", "_ZN4c10d16ProcessGroupNCCL", "_ZN4c10d7BackendC2")
        others = {n for n in names if not n.startswith(("castor_",) + process_groups)} - libc - cuda
        self.assertEqual(others, set())


class AwakeTest(PreloadTest):
    def test_attached_run_says_nothing(self):
        out, errors = self.python("import torch; print(torch.ones(3).sum().item())")
        self.assertEqual((out, errors), ("3.0\n", ""))
        self.assertNotIn("passthrough", os.listdir(self.log_dir))

    def test_agent_not_reached(self):
        _, errors = self.python("import torch; torch.ones(5000)", agent=False)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("the agent was not reached", errors)
        with open(os.path.join(self.log_dir, "passthrough")) as file:
            self.assertIn("the agent was not reached", file.read())

    def test_bad_option_is_said_once(self):
        _, errors = self.python("import torch", CASTOR_PLUGIN="gemni")
        self.assertEqual(errors.count("did you mean gemini?"), 1, errors)


if __name__ == "__main__":
    unittest.main()
