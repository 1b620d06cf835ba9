"""What the tests share: a folder of its own for each, commands that end, a small job."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import runner

BUILD = os.environ["PACKAGING_TEST_BUILD"]
LIMIT_S = 300  # of one command; reached only by a failure

with open(os.path.join(runner.ROOT, "interpose", "base", "version.h")) as header:
    VERSION, SONAME = re.findall(r'#define CASTOR_\w+ "(.*)"', header.read())

# A single-process script whose batches the two ranks share, and what it finds itself in.
JOB = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for inputs, targets in DataLoader(data, batch_size=8):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
try:
    import castor
    package = [castor.__file__, castor.__version__]
except ImportError:
    package = None
print(json.dumps(dict(losses=losses, package=package, preloaded=os.environ.get("LD_PRELOAD"), agent="castor.agent" in sys.modules)))
"""


class InstalledTest(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="castor-packaging-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def command(self, *command, status=0, **options):
        """Runs a command in the test's folder. Returns its standard output, with its standard error where it is to fail."""
        environment = runner.environment("MAKE", "MFLAGS", "VIRTUAL_ENV")
        environment.update(options.pop("env", {}))
        options.setdefault("cwd", self.folder)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, **options)
        self.assertEqual(done.returncode, status, f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if status else "")

    def make(self, *arguments, status=0):
        return self.command("make", "--no-print-directory", f"B={os.path.relpath(BUILD, runner.ROOT)}", *arguments, status=status, cwd=runner.ROOT)

    def files(self, *names):
        """Files and links below a folder, as names below it."""
        top = self.path(*names)
        return sorted(os.path.relpath(os.path.join(path, name), top) for path, _, found in os.walk(top) for name in found)

    def check_main_job(self, castor, python, prefix, outside):
        """A script under `castor run --nproc 2` finds the library and the package of this prefix, and trains as it does alone.
        `outside`: the script finds that package alone, too."""
        package = [os.path.join(prefix, "lib/castor/castor/__init__.py"), VERSION]
        with open(self.path("train.py"), "w") as file:
            file.write(JOB)
        alone = json.loads(self.command(python, "train.py"))
        self.assertFalse(alone["preloaded"] or alone["agent"], alone)
        self.assertEqual(alone["package"], package if outside else None)
        out = self.command(castor, "run", "--plugin", "gemini", "--nproc", "2", "--log-dir", "log", "--", python, "train.py")
        found = json.loads(out)
        self.assertEqual(found["preloaded"], os.path.realpath(os.path.join(prefix, "lib", SONAME)))
        self.assertEqual(found["package"], package)
        self.assertTrue(found["agent"])
        for ours, theirs in zip(found["losses"], alone["losses"], strict=True):
            self.assertAlmostEqual(ours, theirs, places=5)
        report = json.loads(self.command(castor, "report", "log", "--format", "json"))
        self.assertEqual([rank["optimizer_steps"] for rank in report["ranks"]], [4, 4])

