"""The version of PyTorch, looked at while it is imported: stand-ins for its package, with an extension module."""
import os
import subprocess
import sys
import sysconfig

from command import LIBRARY, CommandTest

# An extension module without Python's headers: the layout of PyModuleDef is part of the stable ABI.
MODULE = """
extern void *PyModule_Create2(void *, int);
static struct {
    long count;
    void *type, *init;
    long index;
    void *copy;
    const char *name, *doc;
    long size;
    void *rest[5];
} definition = {.count = 1, .name = "_C", .size = -1};
void *PyInit__C(void) { return PyModule_Create2(&definition, 3); }
"""
PACKAGE = """
from torch.version import __version__
import torch._C
print("imported", __version__, flush=True)
"""
IMPORT = "import torch; print('trained', flush=True)"
PASSED_ON = ["imported {}", "trained"]

# What PyTorch calls when an optimizer is made: c10::LogAPIUsage(const std::string &), without the agent having attached.
TRAINING = """
import ctypes, os, sys, torch
name = b"python.optimizer"
text = (ctypes.c_void_p * 4)(ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p), len(name))
def optimizer():
    ctypes.CDLL(None)["_ZN3c1011LogAPIUsageERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"](text)
    for _ in range(1000): pass
"""


class Torch(CommandTest):
    def torch(self, version, package="torch"):
        """A package of that version on PYTHONPATH; `version` is the text of version.py, or what it says."""
        folder = self.path(package)
        os.makedirs(folder, exist_ok=True)
        source = self.script("module.c", MODULE, 0o644)
        module = os.path.join(folder, "_C" + sysconfig.get_config_var("EXT_SUFFIX"))
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", module, source], check=True)
        text = version if "\n" in version else f"from typing import Optional\n\n__version__ = '{version}'\ndebug = False\n"
        self.script(f"{package}/version.py", text, 0o644)
        self.script(f"{package}/__init__.py", PACKAGE.replace("torch", package), 0o644)

    def run_it(self, *options, text=IMPORT, **env):
        env.setdefault("PYTHONPATH", self.folder)
        return self.castor("run", *options, "--", sys.executable, "-c", text, env=env)

    def test_one_that_is_too_old_is_refused_in_one_line(self):
        for version, ranks in (("2.4.1+cu121", 1), ("2.4.1+cu121", 3), ("2.9.1", 2), ("1.13.1", 2), ("2.9.0a0+git12ab", 2)):
            with self.subTest(version=version, ranks=ranks):
                self.torch(version)
                status, out, err = self.run_it("--plugin", "gemini", "--nproc", str(ranks), "--log-dir", "logs")
                self.assertEqual((status, out), (1, ""), err)
                lines = [line for line in err if "held the trace of an earlier run" not in line]
                self.assertEqual(len(lines), 1, err)
                self.assertIn(f"torch {version} is too old for plugin gemini", lines[0])
                self.assertIn("pip install 'torch>=2.10'", lines[0])
                self.assertTrue(lines[0].endswith("--plugin none" + " and without --nproc" * (ranks > 1)), lines[0])

    def test_the_program_ends_as_by_sys_exit(self):
        self.torch("2.4.1")
        text = f"import atexit; atexit.register(print, 'cleaned up'); {IMPORT}"
        status, out, err = self.run_it("--plugin", "gemini", text=text)
        self.assertEqual((status, out, len(err)), (1, "cleaned up\n", 1), err)
        caught = "try:\n    import torch\nexcept ImportError:\n    print('no torch')\n"
        self.assertEqual(self.run_it("--plugin", "gemini", text=caught)[:2], (1, ""))

    def test_a_later_run_in_the_same_directory_is_not_refused(self):
        for version, expected in (("2.9.1", 1), ("2.10.0", 0)):
            self.torch(version)
            status, _, err = self.run_it("--plugin", "gemini", "--log-dir", "logs")
            self.assertEqual(status, expected, err)
        self.assertFalse(os.path.exists(self.path("logs/refused")))

    def test_others_are_imported(self):
        for version in ("2.10.0", "2.11.0+cu130", "2.15.0.dev20261101", "2.100.0", "10.0.0", "nightly"):
            with self.subTest(version=version):
                self.torch(version)
                status, out, err = self.run_it("--plugin", "gemini")
                self.assertEqual((status, out.splitlines()), (0, [line.format(version) for line in PASSED_ON]), err)

    def test_a_version_that_cannot_be_read_is_imported(self):
        for text in ("# nothing\nversion = 1\n", "__version__ = '2.4.1\n", "__version__ =\n'2.4.1'\n"):
            self.torch(text)
            self.script("torch/__init__.py", "import torch._C\n", 0o644)
            status, out, err = self.run_it("--plugin", "gemini")
            self.assertEqual((status, out), (0, "trained\n"), err)

    def test_modules_of_that_name_in_other_packages(self):
        self.torch("0.1.0", package="torchother")
        status, out, err = self.run_it("--plugin", "gemini", text="import torchother")
        self.assertEqual((status, out), (0, "imported 0.1.0\n"), err)

    def refused_training(self, *options, text=TRAINING + "optimizer(); print('trained')", python=(), why, **env):
        self.torch("2.11.0")
        self.script("train.py", f"import sys; sys.path.insert(0, {self.folder!r})\n{text}", 0o644)
        command = ["sh", "-c", 'PYTHONPATH=/nowhere "$@"; true', "sh"] if python == "other path" else []
        flags = python if isinstance(python, tuple) else ()
        status, out, err = self.castor("run", *options, "--", *command, "sh", "-c", '"$@"', "sh", sys.executable, *flags, "train.py", env=env)
        self.assertEqual((status, len(err)), (1, 1), err)
        self.assertIn("plugin gemini cannot be applied: PyTorch has not loaded Castor's agent", err[0])
        self.assertIn(why, err[0])
        self.assertIn("CASTOR_ON_ERROR=passthrough", err[0])
        self.assertNotIn("trained", out)

    def test_training_that_the_agent_has_not_reached_is_refused(self):
        gemini = ("--plugin", "gemini", "--nproc", "2")
        self.refused_training(*gemini, python=("-E",), why="start the script without -E")
        self.refused_training("--plugin", "gemini", python=("-I",), why="start the script without -I")
        self.refused_training(*gemini, python="other path", why=f"keep the folder {os.path.dirname(LIBRARY)}/castor in it")
        off = "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'"
        self.refused_training(*gemini, text=f"{off}\n{TRAINING}\noptimizer(); print('trained')", why="TORCH_DEVICE_BACKEND_AUTOLOAD=0")

    def test_a_script_that_catches_the_refusal_is_ended(self):
        text = TRAINING + "import time\ntry:\n    optimizer()\nexcept BaseException: time.sleep(60)\nprint('trained')"
        self.refused_training("--plugin", "gemini", text=text, why="castor")

    def test_what_does_not_train_needs_no_agent(self):
        self.torch("2.11.0")
        self.assertEqual(self.run_it("--plugin", "gemini", text=IMPORT)[0], 0)
        for options in (("--plugin", "none"), ("--plugin", "gemini", "--set", "CASTOR_ON_ERROR=passthrough")):
            status, out, _ = self.run_it(*options, text=TRAINING + "optimizer(); print('trained')")
            self.assertEqual((status, out.splitlines()[-1]), (0, "trained"))

    def test_where_the_plugin_is_not_needed(self):
        self.torch("2.4.1")
        for options in (("--plugin", "none"), ("--plugin", "gemini", "--set", "CASTOR_ON_ERROR=passthrough")):
            status, out, err = self.run_it(*options)
            self.assertEqual((status, out.splitlines()), (0, [line.format("2.4.1") for line in PASSED_ON]), err)

    def python_without_torch(self, folder):
        """An interpreter with the folders of a virtual environment."""
        for name in (f"{folder}/bin", f"{folder}/lib/python3.11/site-packages"):
            os.makedirs(self.path(name))
        os.symlink(sys.executable, self.path(f"{folder}/bin/python"))
        self.script(f"{folder}/pyvenv.cfg", f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n", 0o644)
        return self.path(f"{folder}/bin/python")

    def test_no_torch_at_all(self):
        python, path = self.python_without_torch("empty"), {"PATH": "/nowhere"}
        status, _, err = self.castor("run", "--plugin", "gemini", "--", python, "-S", "-c", IMPORT, env=path)
        self.assertEqual(status, 1)
        self.assertIn("ModuleNotFoundError: No module named 'torch'", err)
        said = [line for line in err if "needs torch 2.10 or later: pip install torch" in line]
        self.assertEqual(len(said), 1, err)

    def test_another_python_has_torch(self):
        python, path = self.python_without_torch("empty"), {"PATH": "/nowhere"}
        other = self.python_without_torch(".venv")
        os.makedirs(self.path(".venv/lib/python3.11/site-packages/torch"))
        self.script(".venv/lib/python3.11/site-packages/torch/version.py", "", 0o644)
        status, _, err = self.castor("run", "--", python, "-S", "-c", IMPORT, env=path)
        self.assertEqual(status, 1)
        self.assertIn(f"castor: {python} has no torch, and .venv/bin/python has it: castor run -- .venv/bin/python ...", err)
        status, _, err = self.castor("run", "--", "python", "-c", IMPORT, env=path)
        self.assertEqual((status, len(err)), (127, 1), err)
        self.assertIn(".venv/bin/python has torch: castor run -- .venv/bin/python ...", err[0])
        os.remove(other)
        status, _, err = self.castor("run", "--", "python", "-c", IMPORT, env={"PATH": self.path("only")})
        self.assertEqual((status, err), (127, ["castor: python: command not found in PATH"]))
        os.makedirs(self.path("only"))
        os.symlink(sys.executable, self.path("only/python3"))
        status, _, err = self.castor("run", "--", "python", "-c", IMPORT, env={"PATH": self.path("only")})
        self.assertEqual((status, len(err)), (127, 1), err)
        self.assertIn("python3 is there: castor run -- python3 ...", err[0])

    def test_a_failure_of_another_kind_is_left_to_the_command(self):
        for command in ((sys.executable, "missing.py"), (sys.executable, "-c", "raise SystemExit(3)"), ("false",)):
            _, _, err = self.castor("run", "--plugin", "gemini", "--", *command)
            self.assertFalse([line for line in err if "recorded" in line or "has no torch" in line], err)
