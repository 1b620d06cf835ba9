"""The functions of PyTorch that Castor replaces: all are in one table, can be taken back, and are refused where they are others."""
import json
import os
import unittest

import jobs

# The agent starts later than it does by itself: after the script has changed PyTorch.
CHANGED = """
import torch
torch.optim.Optimizer.zero_grad = lambda self, everything=False: None
import castor.agent
castor.agent.attach()
from castor.agent import patching
print(torch.nn.Module.zero_grad.__code__.co_filename.startswith(castor.agent.core.PACKAGE_FOLDER), len(patching._done))
"""
WRONG = ("castor: torch.optim.Optimizer.zero_grad of torch {} is not the function that Castor replaces: its parameters are (self, everything), "
         "and (self, set_to_none) are expected")


class Patching(unittest.TestCase):
    def undone(self, how, **options):
        done = jobs.start([os.path.join(jobs.FOLDER, "undone.py")], how, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((found["left"], found["after"], found["wrong"]), ([], [], []))
        return found

    def test_all_is_taken_back(self):
        plain = self.undone(jobs.ALONE)
        self.assertEqual(plain["before"], [])
        observed = self.undone(jobs.NONE)
        self.assertIn("Optimizer.profile_hook_step", observed["before"])
        for how, there in (
            ({}, {"Adam.step", "torch.nn.utils.clip_grad_norm_"}),
            ({"nproc": 2, "CASTOR_PRECISION": "fp16", "CASTOR_ACCUMULATE": "2", "CASTOR_LAZY_INIT": "1"},
             {"torch.save", "torch.serialization.save", "DataLoader.__iter__", "Tensor.requires_grad_", "Adagrad.__init__", "LRScheduler.step",
              "torch.nn.functional.mse_loss", "Module.__setstate__"}),
        ):
            found = self.undone(jobs.GEMINI, **how)
            self.assertLessEqual(there, {*found["before"]})
            self.assertEqual(found["trained"], plain["trained"])

    def test_another_function_is_refused(self):
        done = jobs.start(["-c", CHANGED], jobs.GEMINI, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        said = [line for line in done.stderr.splitlines() if "zero_grad" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertRegex(said[0], WRONG.replace("(", r"\(").replace(")", r"\)").replace(".", r"\.").format("[^ ]*"))

    def test_what_steps_aside_does_so_whole(self):
        done = jobs.start(["-c", CHANGED], jobs.GEMINI, TORCH_DEVICE_BACKEND_AUTOLOAD="0", CASTOR_ON_ERROR="passthrough")
        self.assertEqual((done.returncode, done.stdout), (0, "False 0\n"), done.stderr)
        self.assertIn("(self, set_to_none) are expected", done.stderr)

    def test_the_list(self):
        done = jobs.start(["-m", "castor.agent"], jobs.GEMINI)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], r"^torch \d")
        self.assertGreater(len(lines), 80)
        for line in lines[1:]:
            self.assertRegex(line, r"^[\w.]+: as expected\. [A-Z].*\w$")


if __name__ == "__main__":
    unittest.main()
