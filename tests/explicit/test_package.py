"""How the package is found, and what it needs."""
import os
import subprocess
import unittest

import jobs


class Package(unittest.TestCase):
    def test_importing_castor_imports_no_torch(self):
        version = subprocess.run([jobs.castor(), "version"], capture_output=True, text=True, check=True).stdout.split()[1]
        for how in (jobs.ALONE, jobs.NONE, jobs.GEMINI):
            done = jobs.start(["-c", "import castor, sys; print(castor.__version__, 'torch' in sys.modules, 'ctypes' in sys.modules)"], how, fresh=True)
            self.assertEqual(done.stdout, f"{version} False False\n", done.stderr)

    def test_unknown_names_are_attribute_errors(self):
        done = jobs.start(["-c", "import castor; print(hasattr(castor, 'nothing'), 'trainer' in dir(castor)); castor.nothing"], jobs.NONE)
        self.assertEqual(done.stdout, "False True\n")
        self.assertIn("AttributeError: module 'castor' has no attribute 'nothing'", done.stderr)

    def test_the_library_is_bound_from_its_table(self):
        done = jobs.start([os.path.join(jobs.FOLDER, "binding.py")], jobs.GEMINI, CASTOR_ACCUMULATE="4", CASTOR_TIMEOUT="2.5")
        self.assertEqual(done.stdout.splitlines(), [
            "True", "True True", "16 72 [None, None, None] 0.0", "4 3 3 9", "gemini 4 -1 2.5 False", "identities have 64 bits",
            "castor: core.py lays castor_wrong out in 16 bytes, libcastor.so in 12"], done.stderr)

    def test_errors_name_the_scripts_line(self):
        script = """import json, torch
from castor.agent.process import ends
try:
    json.loads("{")
except ValueError as error:
    print(ends.script_line(error.__traceback__))"""
        done = jobs.start(["-c", script], jobs.GEMINI, fresh=True)
        self.assertEqual(done.stdout, "<string>, line 4\n", done.stderr)

    def test_what_needs_castor_run(self):
        script = """import importlib
for name in ("lazy", "booster", "booster.plugin", "memory"):
    try:
        importlib.import_module(f"castor.{name}")
    except ImportError as error:
        print(error)
from castor import gemini
from castor.agent import core
for call in (lambda: gemini.use_chunk_configuration({1: {"chunk_size": 1 << 20}}, 4), core.attach):
    try:
        call()
    except (ImportError, core.Error) as error:
        print(error)
print(core.bind())"""
        done = jobs.start(["-c", script], jobs.ALONE)
        names = ("lazy", "booster", "booster", "memory_stats", "gemini.use_chunk_configuration")
        said = [f"castor: castor.{name} needs the library in front of PyTorch; start the command by `castor run ... -- python ...`" for name in names]
        said += ["castor: the library is not in front of PyTorch: start the command by castor run", "False"]
        self.assertEqual((done.stdout.splitlines(), done.stderr), (said, ""))

    def test_reading_a_report(self):
        script = """import os, sys
from castor import report
os.makedirs("-x")
for directory in ((), ("nothing",), ("-x",)):
    try:
        report.read(*directory)
    except RuntimeError as error:
        print(error)
print("torch" in sys.modules, "ctypes" in sys.modules)"""
        done = jobs.start(["-c", script], jobs.ALONE)
        *said, last = done.stdout.splitlines()
        self.assertEqual(last, "False False", done.stderr)
        self.assertEqual(len(said), 3)
        for line, part in zip(said, ("castor-logs", "nothing", "./-x")):
            self.assertRegex(line, f"^castor: .*{part}")


if __name__ == "__main__":
    unittest.main()
