"""Operands of products and writers of homes on simulated devices, each by its effect (operands.c)."""
import os
import re
import subprocess
import sys
import unittest

from cuda_rows import ROOT
from preload import FOLDER, LIBRARY, PreloadTest

sys.path.insert(0, os.path.join(ROOT, "tests", "sim"))
import simulated  # noqa: E402

HEADERS = [os.path.join(path, "nvidia", part, "include") for path in sys.path for part in ("cu13", "nccl", "cudnn")]
LIBRARIES = ("libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libnccl.so.2")


class OperandsTest(PreloadTest):
    @classmethod
    def setUpClass(cls):
        simulated.need()

    def compile(self, path, *sources):
        includes = [flag for folder in HEADERS if os.path.isdir(folder) for flag in ("-isystem", folder)]
        done = subprocess.run(
            [os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I.", "-Iinterpose",
             "-Itests/sim/programs", *includes, "-o", path, *sources],
            cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def program(self, name="operands", *more):
        path, libraries = os.path.join(self.folder, name), simulated.libraries()
        return self.compile(path, os.path.join(FOLDER, name + ".c"), *more, "-Wl,--no-as-needed", f"-L{libraries}", *(f"-l:{name}" for name in LIBRARIES),
                            f"-Wl,-rpath,{libraries}", "-ldl", "-lm")

    def names(self, name="operands"):
        """The names in a program's two tables."""
        with open(os.path.join(FOLDER, name + ".c")) as file:
            tables = re.findall(r"(?:writers|ways|tests)\[\] = \{(.*?)\n\};", file.read(), re.S)
        return re.findall(r'\{"(\w+)"', "".join(tables))

    def run_on(self, program, *names, **environment):
        bodies = os.path.join(simulated.BUILD, "bin", "sim", "libbodies.so")
        return self.run_program(program, *names, SIM_DEVICES=1, SIM_MEMORY="1G", SIM_KERNELS=bodies, **environment)

    def test_every_writer_and_product(self):
        names = self.names()
        self.assertGreater(len(names), 30)
        out, errors = self.run_on(self.program(), preload=(LIBRARY,), CASTOR_DEVICE_BUDGET=0)
        self.assertEqual((out.splitlines(), errors), ([f"ok {name}" for name in ["prepare", *names]], ""))
        calls = self.counters()[0].calls
        self.assertGreater(calls["cublasSgemm_v2"].count, 50)
        self.assertEqual(calls["cublasLtMatmul"].count, 4)

    def test_every_writer_of_homes_that_stay(self):
        """The driver maps no pages of the host."""
        names = self.names()
        out, errors = self.run_on(self.program(), preload=(LIBRARY,), CASTOR_DEVICE_BUDGET=0, SIM_REFUSES="host-pages")
        self.assertEqual(out.splitlines(), [f"ok {name}" for name in ["prepare", *names]])
        self.assertRegex(errors, r"^castor: device 0 maps no memory of the host at its addresses: [^\n]*\n$")

    def test_launches_whose_layout_is_unknown(self):
        """They count as writers of everything; the runtime's last error stays the script's."""
        program, names = self.program(), [name for name in self.names() if "launch" in name] + ["nothing_is_written", "errors_of_the_runtime"]
        for fail in ("cuKernelGetParamInfo:1*:801,cuFuncGetParamInfo:1*:801", "cudaGetKernel:1*:98,cuFuncGetParamInfo:1*:1"):
            with self.subTest(fail=fail):
                settings = {"CASTOR_DEVICE_BUDGET": 0, "SIM_FAIL": fail, "UNKNOWN_LAYOUTS": 1}
                out, errors = self.run_on(program, *names, preload=(LIBRARY,), **settings)
                self.assertEqual((out.splitlines(), errors), ([f"ok {name}" for name in ["prepare", *names]], ""))

    def test_addresses_in_the_memory_of_a_device(self):
        names = self.names("addresses")
        self.assertGreater(len(names), 10)
        out, errors = self.run_on(self.program("addresses"), preload=(LIBRARY,), CASTOR_DEVICE_BUDGET=0)
        self.assertEqual((out.splitlines(), errors), ([f"ok {name}" for name in ["prepare", *names]], ""))

    def test_cudnn(self):
        cudnn, names = os.path.join(self.folder, "libcudnn.so.9"), self.names("dnn")
        self.assertGreater(len(names), 10)
        self.compile(cudnn, "-shared", "-fPIC", "-Wl,-soname,libcudnn.so.9", "-Wno-deprecated-declarations", os.path.join(FOLDER, "fake_dnn.c"))
        program = self.program("dnn", "-Wno-deprecated-declarations", cudnn, f"-Wl,-rpath,{self.folder}")
        out, errors = self.run_on(program, preload=(LIBRARY,), CASTOR_DEVICE_BUDGET=0)
        self.assertEqual((out.splitlines(), errors), ([f"ok {name}" for name in ["prepare", *names]], ""))


if __name__ == "__main__":
    unittest.main()
