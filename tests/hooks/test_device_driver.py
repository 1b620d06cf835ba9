"""interpose/hooks/cuda/driver.c on simulated devices: every function of device/driver.h, by its effect (device_driver.c)."""
import os
import subprocess
import sys
import unittest

from cuda_rows import ROOT
from preload import FOLDER, PreloadTest

sys.path.insert(0, os.path.join(ROOT, "tests", "sim"))
import simulated  # noqa: E402

SOURCES = ["tests/hooks/device_driver.c", "interpose/hooks/cuda/driver.c",
           *(f"interpose/base/{name}.c" for name in ("bounded", "error", "log", "machine", "thread"))]
TESTS = ("memory", "limits", "contexts", "streams", "values", "drains", "captures", "threads", "host")
NOT_SUPPORTED, NO_MEMORY = 801, 2


class DeviceDriverTest(PreloadTest):
    @classmethod
    def setUpClass(cls):
        simulated.need()

    def program(self):
        path = os.path.join(self.folder, "device_driver")
        libraries = simulated.libraries()
        done = subprocess.run(
            [os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-DCUDA_DRAIN_NS=3000000000",
             "-I.", "-Iinterpose", "-o", path, *SOURCES, f"-L{libraries}", "-l:libcuda.so.1", "-l:libcastor-sim.so",
             f"-Wl,-rpath,{libraries}", "-ldl"],
            cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def test_every_function(self):
        program = self.program()
        for test in TESTS:
            with self.subTest(test=test):
                out, errors = self.run_program(program, test, preload=(), SIM_DEVICES=2, SIM_MEMORY="512M", SIM_HOST_MEMORY="128M")
                self.assertEqual((out, errors), (f"ok {test}\n", ""))

    def test_host_pages_are_of_the_kind_that_the_driver_takes(self):
        program = self.program()
        for fail, place in (
            ("", "type 3 node 0\n"),
            (f"cuMemCreate:1:{NOT_SUPPORTED}", "type 3 node 0\n"),
            (f"cuMemCreate:1:{NOT_SUPPORTED},cuMemCreate:2:{NOT_SUPPORTED}", "type 2 node 0\n"),
            (f"cuMemSetAccess:1:{NOT_SUPPORTED}", "type 3 node 0\n"),  # for the device alone
        ):
            with self.subTest(fail=fail):
                out, errors = self.run_program(program, "place", preload=(), SIM_DEVICES=1, SIM_MEMORY="1G", SIM_FAIL=fail)
                self.assertEqual((out, errors), (place + "ok place\n", ""))
        out, _ = self.run_program(program, "place", preload=(), SIM_DEVICES=0, SIM_MEMORY="1G")
        self.assertRegex(out, r"^none: cuInit on device 0: .*\(error 100\)\n")

    def test_without_host_pages_the_driver_allocates(self):
        program = self.program()
        no_pages = r"device 0 maps no memory of the host at its addresses: .* \(error 801\)"
        for end, fails in (
            (rf"allocated: {no_pages}\nok place\n", {"SIM_REFUSES": "host-pages"}),
            (rf"allocated: {no_pages}\nok place\n", {"SIM_FAIL": ",".join(f"cuMemSetAccess:{call}:{NOT_SUPPORTED}" for call in range(1, 7))}),
            (rf"none: {no_pages}; cuMemHostAlloc of 2\.0 MiB on device 0: .* \(error 801\)\nok place\n", {"SIM_REFUSES": "host-pages,host-alloc"}),
            (rf"none: {no_pages}; cuMemHostGetDevicePointer on device 0: .* \(error 999\)\nok place\n",
             {"SIM_REFUSES": "host-pages", "SIM_FAIL": "cuMemHostGetDevicePointer_v2:1*:999"}),
            (rf"none: {no_pages}; device 0 has memory of the host at other addresses than the processors\nok place\n",
             {"SIM_REFUSES": "host-pages", "BROKEN": "cuMemHostGetDevicePointer_v2"}),
            # The device's writes do not arrive: nothing of the host is used.
            (rf"none: {no_pages}; a write to host memory on device 0: .* \(error 801\)\nok place\n", {"BROKEN": "cuMemsetD32Async"}),
        ):
            with self.subTest(fails=fails):
                out, errors = self.run_program(program, "place", preload=(), SIM_DEVICES=1, SIM_MEMORY="1G", SIM_HOST_MEMORY="128M", **fails)
                self.assertRegex(out, f"^{end}$")
                self.assertEqual(errors, "")


if __name__ == "__main__":
    unittest.main()
