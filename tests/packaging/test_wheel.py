"""make wheel, and a fresh environment with it."""
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile

import runner
from installed import LIMIT_S, SONAME, VERSION, InstalledTest


class Wheel(InstalledTest):
    def build(self, script):
        runner.need_packages("hatchling")
        self.command(script, sys.executable, self.path("dist"))
        (wheel,) = glob.glob(self.path("dist/*.whl"))
        return wheel

    def environment_with(self, wheel):
        """A fresh environment that sees the torch of this Python; returns its folder."""
        self.command(sys.executable, "-m", "venv", "venv")
        (packages,) = glob.glob(self.path("venv/lib/python3*/site-packages"))
        with open(os.path.join(packages, "torch.pth"), "w") as file:
            file.write(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)) + "\n")
        self.command("venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", wheel)
        return self.path("venv")

    def test_a_fresh_environment_runs_the_main_job(self):
        wheel = self.build(os.path.join(runner.ROOT, "scripts/wheel"))
        name = re.fullmatch(rf"castor-{re.escape(VERSION)}-py3-none-((?:many)?linux_\w+)\.whl", os.path.basename(wheel))
        self.assertTrue(name, wheel)
        venv = self.environment_with(wheel)
        self.check_platform(name[1], os.path.join(venv, "bin/castor"), os.path.join(venv, "lib", SONAME),
                            *glob.glob(os.path.join(venv, "lib/castor-simulation/*.so*")))
        self.check_main_job(os.path.join(venv, "bin/castor"), os.path.join(venv, "bin/python"), venv, outside=True)
        script = "import torch; print((torch.ones(3, device='cuda') * 2).sum().item())"
        out = self.command(os.path.join(venv, "bin/castor"), "rehearse", "--log-dir", "rehearsed", "--", os.path.join(venv, "bin/python"), "-c", script)
        self.assertEqual(out, "6.0\n")
        self.check_outside(os.path.join(venv, "bin/python"))
        active = os.path.join(venv, "bin") + ":" + os.environ["PATH"]
        self.assertEqual(self.command(runner.program("man"), "-w", "castor", env={"PATH": active, "MANPATH": ""}), os.path.join(venv, "share/man/man1/castor.1\n"))
        self.command("venv/bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "castor")
        left = [name for name in self.files("venv") if "castor" in name]
        self.assertEqual(left, [])

    def check_outside(self, python):
        """What works without castor run: reports, and what the library computes. PyTorch finds no entry point, and a folder of the
        script's own keeps its name."""
        script = """
import importlib.metadata, json, os, sys
import castor, castor.report
entry_points = [point.name for point in importlib.metadata.entry_points(group="torch.backends")]
steps = [rank["optimizer_steps"] for rank in castor.report.read("log")["ranks"]]
early = "torch" in sys.modules
import torch
from castor.gemini import search_chunk_configuration
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024 * n, bias=False) for n in (6, 5, 4)))
chunks = search_chunk_configuration(model, search_range_m=9, search_interval=1 << 20, min_chunk_size_m=1)
torch.save(model.state_dict(), "saved.pt")
print(json.dumps([entry_points, steps, early, chunks[1:], os.path.getsize("saved.pt") > 60 << 20]))
"""
        done = subprocess.run([python, "-c", script], env=runner.environment(), cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(json.loads(done.stdout), [[], [4, 4], False, [15728640, 0], True])
        os.makedirs(self.path("project/castor"))
        with open(self.path("project/castor/__init__.py"), "w") as file:
            file.write("mine = 1\n")
        self.assertEqual(self.command(python, "-c", "import castor; print(castor.mine)", cwd=self.path("project")), "1\n")

    def check_platform(self, platform, *binaries):
        """No older glibc than the wheel's name says has what the binaries ask for."""
        asked = self.command("objdump", "-T", *binaries)
        newest = max(map(int, re.findall(r"GLIBC_2\.(\d+)", asked)))
        machine = sysconfig.get_platform().removeprefix("linux-")
        self.assertEqual(platform, f"manylinux_2_{max(17, newest)}_{machine}")

    @runner.long
    def test_from_a_source_tree_in_which_nothing_is_built(self):
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=runner.ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        for name in filter(None, tracked):
            os.makedirs(os.path.dirname(self.path("tree", name)), exist_ok=True)
            with open(os.path.join(runner.ROOT, name), "rb") as file, open(self.path("tree", name), "wb") as copy:
                copy.write(file.read())
            os.chmod(self.path("tree", name), os.stat(os.path.join(runner.ROOT, name)).st_mode)
        wheel = self.build(self.path("tree/scripts/wheel"))
        names = zipfile.ZipFile(wheel).namelist()
        self.assertIn(f"castor-{VERSION}.data/data/lib/{SONAME}", names)
        self.assertIn(f"castor-{VERSION}.data/data/lib/castor/castor_agent-{VERSION}.dist-info/entry_points.txt", names)
        self.assertIn(f"castor-{VERSION}.data/data/lib/castor-simulation/numbers/simulated_numbers-1.dist-info/entry_points.txt", names)
        self.assertIn("castor.py", names)
        self.assertFalse([name for name in names if name.startswith(("shims", "castor/", "build")) or name.endswith((".h", ".pc", ".pyc"))])
