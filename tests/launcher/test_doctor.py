"""castor doctor: with Pythons that are none, that lack PyTorch, and with one that only says what the test wants."""
import json
import resource
import sys

from command import CommandTest

GOOD = """python\t3.12.1\tcpython\t/usr/bin/python3
flags\t0\t0
library\t1
kernels\t1
autoload\t
package\t/opt/lib/castor/castor/__init__.py
importing
torch\t2.11.0+cu130\t13.0
agent\t1\t/opt/lib/castor/castor/agent/core.py
replaced\t110\t
gloo\t1
hook\tallocation\tfree\t1
hook\tallocation\trealloc\t1
hook\tgloo\tc10d::ProcessGroupGloo::allreduce\t1
hook\tgloo\tc10d::ProcessGroupGloo::barrier\t0
hook\tgloo\tc10d::ProcessGroupGloo::of_another_version\t-1
driver\t0\t13010
devices\t2
nccl\t2.28.9
end
"""

DEVICES = """device\t0\tSome GPU
level\t0\t4\t
memory\t0\t2097152\t85899345920\t17179869184
copies\t0\t67108864\t2684354\t5368709
device\t1\tOther GPU
level\t1\t1\tcuMemCreate of host memory, of 64.0 MiB on device 1: no (error 801)
memory\t1\t2097152\t85899345920\t17179869184
copies\t1\t67108864\t0\t0
end
"""


class Doctor(CommandTest):
    def doctor(self, *arguments, status=0, **options):
        done, out, err = self.castor("doctor", *arguments, **options)
        self.assertEqual(done, status, f"{out}\n{err}")
        return out

    def checks(self, *arguments, **options):
        answer = json.loads(self.doctor("--format", "json", *arguments, **options))
        self.assertEqual(answer["doctor_version"], 1)
        self.assertEqual(answer["works"], all(check["state"] != "fail" for check in answer["checks"]))
        return {check["name"]: (check["state"], check["value"], check["advice"]) for check in answer["checks"]}

    def fake_devices(self, facts, end=""):
        """A "Python" that says that all is well, and these facts when devices are probed."""
        for name, text in (("good", GOOD), ("devices", facts)):
            with open(self.path(name), "w") as file:
                file.write("".join(f"castor-doctor\t{line}\n" for line in text.splitlines()))
        return self.script("python", "#!/bin/sh\ncase $2 in\n"
                                     f"*device_probe*) cat {self.path('devices')}; {end or ':'} ;;\n*) cat {self.path('good')} ;;\nesac\n")

    def fake(self, facts, end=""):
        """A "Python" that says these facts."""
        lines = "".join(f"castor-doctor\t{line}\n" for line in facts.splitlines())
        with open(self.path("facts"), "w") as file:
            file.write("noise\n" + lines)
        return self.script("python", f"#!/bin/sh\ncat {self.path('facts')}\n{end}\n")

    def test_all_is_well(self):
        checks = self.checks("--", self.fake(GOOD))
        self.assertEqual(checks["Python"], ("ok", "3.12.1, /usr/bin/python3", ""))
        self.assertEqual(checks["torch"], ("ok", "2.11.0+cu130, built for CUDA 13.0", ""))
        self.assertEqual(checks["agent"][0], "ok")
        self.assertEqual(checks["driver"][:2], ("ok", "for CUDA 13.1"))
        self.assertEqual(checks["devices"][1], "2")
        self.assertEqual(checks["NCCL library"], ("ok", "2.28.9", ""))
        self.assertEqual(checks["allocation"], ("ok", "all 2", ""))
        self.assertEqual(checks["gloo"][:2], ("warn", "1 of 2; not c10d::ProcessGroupGloo::barrier"))
        for name in ("system", "glibc", "cores", "memory", "files in memory", "futex", "sockets"):
            self.assertIn(checks[name][0], ("ok", "warn"), name)

    def test_what_devices_can_do(self):
        checks = self.checks("--", self.fake_devices(DEVICES))
        self.assertEqual(checks["0: pages"], ("ok", "Some GPU: units of 2.0 MiB, 80.0 GiB of memory", ""))
        self.assertEqual(checks["0: host pages"], ("ok", "mapped at its addresses; at most 16.0 GiB now", ""))
        self.assertEqual(checks["0: flips"], ("ok", "model data moves to the host and back at one address", ""))
        self.assertEqual(checks["0: link"], ("ok", "25.00 GB/s to the device, 12.50 GB/s to the host (copies of 64.0 MiB)", ""))
        self.assertEqual(checks["1: pages"][0], "ok")
        self.assertEqual(checks["1: host pages"][:2], ("warn", "Other GPU: cuMemCreate of host memory, of 64.0 MiB on device 1: no (error 801)"))
        self.assertIn("CUDA 12.2 or later", checks["1: host pages"][2])
        self.assertNotIn("1: flips", checks)
        self.assertNotIn("1: link", checks)

    def test_a_device_where_nothing_works(self):
        checks = self.checks("--", self.fake_devices("device\t0\tOld GPU\nlevel\t0\t0\tdevice 0 cannot map memory\nend\n"))
        self.assertEqual(checks["0: pages"][:2], ("warn", "Old GPU: device 0 cannot map memory"))
        self.assertIn("stays where scripts have it", checks["0: pages"][2])

    def test_a_driver_that_maps_no_host_pages(self):
        why = "device 0 maps no memory of the host at its addresses: no (error 801)"
        checks = self.checks("--", self.fake_devices(DEVICES.replace("level\t0\t4\t", f"level\t0\t2\t{why}")))
        self.assertEqual(checks["0: host pages"][:2], ("warn", f"Some GPU: {why}"))
        self.assertIn("what is on the host stays there, and nothing is moved when memory runs out: give CASTOR_DEVICE_BUDGET", checks["0: host pages"][2])
        self.assertNotIn("0: flips", checks)
        self.assertEqual(checks["0: link"][0], "ok")

    def test_a_link_is_known_where_flips_fail(self):
        checks = self.checks("--", self.fake_devices(DEVICES.replace("level\t0\t4\t", "level\t0\t3\tno room")))
        self.assertEqual(checks["0: flips"][:2], ("warn", "Some GPU: no room"))
        self.assertEqual(checks["0: link"][0], "ok")

    def test_a_probe_of_devices_that_does_not_end_well(self):
        half = DEVICES[:DEVICES.index("device\t1")] + "device\t1\tOther GPU\n"
        checks = self.checks("--", self.fake_devices(half, "echo 'no such thing' >&2; kill -SEGV $$"))
        self.assertEqual(checks["0: link"][0], "ok")
        self.assertEqual(checks["1: pages"][:2], ("warn", "Other GPU: the probe ended by signal 11: no such thing"))
        checks = self.checks("--timeout", "0.3", "--", self.fake_devices("", "sleep 600"))
        self.assertEqual(checks["probe"][:2], ("warn", "no answer within 300.0 ms"))
        checks = self.checks("--", self.fake_devices("", "exit 3"))
        self.assertEqual(checks["probe"][:2], ("warn", "the probe ended with status 3"))

    def test_no_device(self):
        for facts in (GOOD.replace("devices\t2", "devices\t0"), GOOD.replace("devices\t2\n", "")):
            checks = self.checks("--", self.fake(facts + DEVICES))
            self.assertEqual(checks["devices"], ("note", "no CUDA device", ""))
            self.assertNotIn("0: pages", checks)

    def test_text(self):
        out = self.doctor("--", self.fake(GOOD))
        self.assertRegex(out, r"(?m)^Python and PyTorch\n  ok    Python +3\.12\.1, /usr/bin/python3$")
        self.assertRegex(out, r"\nCastor works here; \d+ things? above could be better\.\n$")
        starts = {line.index("3.12.1") for line in out.splitlines() if "3.12.1" in line}
        starts |= {line.index("libcastor") for line in out.splitlines() if "libcastor" in line}
        self.assertEqual(len(starts), 1)  # values stand under each other

    def test_a_library_without_cuda_kernels(self):
        self.assertEqual(self.checks("--", self.fake(GOOD))["CUDA kernels"], ("ok", "built in", ""))
        for devices, state in ((2, "warn"), (0, "note")):
            checks = self.checks("--", self.fake(GOOD.replace("kernels\t1", "kernels\t0").replace("devices\t2", f"devices\t{devices}")))
            self.assertEqual(checks["CUDA kernels"][:2], (state, "libcastor.so was built without nvcc and has none"))
            self.assertIn("make NVCC=/path/to/nvcc", checks["CUDA kernels"][2])
        self.assertNotIn("CUDA kernels", self.checks("--", self.fake(GOOD.replace("kernels\t1\n", ""))))

    def test_versions(self):
        for change, name, state, text in (
            (("torch\t2.11.0", "torch\t2.9.1"), "torch", "fail", "needs torch 2.10 or later"),
            (("torch\t2.11.0", "torch\t2.16.0"), "torch", "warn", "tested up to torch 2.15"),
            (("torch\t2.11.0", "torch\t2.15.0"), "torch", "ok", ""),
            (("3.12.1\tcpython", "3.9.2\tcpython"), "Python", "fail", "Python 3.10 or later"),
            (("3.12.1\tcpython", "3.11.1\tpypy"), "Python", "fail", "works with CPython"),
            (("library\t1", "library\t0"), "library", "fail", "LD_PRELOAD does not reach this Python"),
        ):
            checks = self.checks("--", self.fake(GOOD.replace(*change)), status=1 if state == "fail" else 0)
            self.assertEqual(checks[name][0], state, change)
            self.assertIn(text, checks[name][2])

    def test_functions_that_are_replaced(self):
        self.assertEqual(self.checks("--", self.fake(GOOD))["Python functions"], ("ok", "all 110", ""))
        state, value, advice = self.checks("--", self.fake(GOOD.replace("replaced\t110\t", "replaced\t110\ttorch.save, torch.Tensor.add_")))["Python functions"]
        self.assertEqual((state, value), ("warn", "110; not as expected: torch.save, torch.Tensor.add_"))
        self.assertIn("refuses to start", advice)

    def test_why_the_agent_is_not_reached(self):
        bad = GOOD.replace("agent\t1\t/opt/lib/castor/castor/agent/core.py", "agent\t0\t")
        for change, advice in (
            (("flags\t0\t0", "flags\t1\t1"), "ignores PYTHONPATH"),
            (("autoload\t", "autoload\t0"), "unset it"),
            (("package\t/opt/lib/castor/castor/__init__.py", "package\t"), "is not found"),
            (("package\t/opt/lib/castor/castor/__init__.py", "package\t/srv/castor.py"), "another module is called castor: /srv/castor.py"),
            (("x", "x"), "PyTorch did not call it"),
        ):
            checks = self.checks("--", self.fake(bad.replace(*change)), status=1)
            self.assertEqual(checks["agent"][0], "fail")
            self.assertIn(advice, checks["agent"][2])

    def test_without_torch(self):
        checks = self.checks("--", sys.executable, "-S", status=1)
        self.assertEqual(checks["Python"][0], "ok")
        self.assertEqual(checks["library"][0], "ok")  # the real library in a real interpreter
        self.assertEqual(checks["torch"][0], "fail")
        self.assertIn("install torch for this Python", checks["torch"][2])

    def test_no_python(self):
        for command, text in (
            (["no-such-python"], "no-such-python: there is no such command"),
            ([self.script("dies", "#!/bin/sh\nkill -SEGV $$\n")], "ended by signal 11"),
            ([self.script("refuses", "#!/bin/sh\necho no license >&2\nexit 3\n")], "ended with status 3: no license"),
            ([self.script("binary", "\x7fELF")], "126"),
        ):
            checks = self.checks("--", *command, status=1)
            self.assertEqual(checks["Python"][0], "fail")
            self.assertIn(text, checks["Python"][1])

    def test_one_that_stops_in_the_middle(self):
        half = GOOD[:GOOD.index("torch\t")]
        checks = self.checks("--", self.fake(half, "echo 'bus error' >&2; kill -BUS $$"), status=1)
        self.assertEqual(checks["import torch"][:2], ("fail", "ended by signal 7: bus error"))
        checks = self.checks("--timeout", "0.3", "--", self.fake(half, "sleep 600"), status=1)
        self.assertEqual(checks["import torch"][:2], ("fail", "no answer within 300.0 ms"))

    def test_the_default_is_python3_of_the_path(self):
        self.script("python3", f"#!/bin/sh\ncat {self.path('facts')}\n")
        self.fake(GOOD)
        checks = self.checks(env={"PATH": self.folder + ":/usr/bin:/bin"})
        self.assertEqual(checks["torch"][0], "ok")

    def test_limits(self):
        space = 64 << 30
        checks = self.checks("--", self.fake(GOOD), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (space, space)))
        self.assertEqual(checks["ulimit -v"][:2], ("warn", "64.0 GiB"))
        self.assertIn("ulimit -v unlimited", checks["ulimit -v"][2])

    def test_a_bad_option_in_the_environment(self):
        checks = self.checks("--", self.fake(GOOD), env={"CASTOR_CHUNK_SIZES": "1M"}, status=1)
        self.assertEqual(checks["options"][0], "fail")
        self.assertIn("CASTOR_CHUNK_SIZE", checks["options"][1])

    def test_what_it_says_is_safe_to_print(self):
        out = self.doctor("--", self.fake(GOOD.replace("2.28.9", "2\033[2J.9")))
        self.assertNotIn("\033", out)
        self.assertIn("2?[2J.9", out)

    def test_bad_arguments(self):
        for arguments, text in (
            (("--format", "xml"), "allowed: text, json"),
            (("--",), "a Python is missing"),
            (("--all",), "unknown option"),
            (("python3",), "castor doctor -- PYTHON"),
            (("--timeout", "soon"), "must be seconds"),
        ):
            status, out, err = self.castor("doctor", *arguments)
            self.assertEqual((status, out, len(err)), (2, "", 1))
            self.assertIn(text, err[0])
