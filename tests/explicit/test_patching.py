"""The functions of PyTorch that Castor replaces: all are in one table, can be taken back, and are refused where they are others."""
import json
import os
import unittest

import jobs
import runner

# The agent starts later than it does by itself: after the script has changed PyTorch.
CHANGED = """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
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
        found = self.undone(jobs.GEMINI, nproc=2, CASTOR_PRECISION="fp16", CASTOR_ACCUMULATE="2", CASTOR_LAZY_INIT="1")
        self.assertLessEqual(
            {"torch.save", "torch.serialization.save", "DataLoader.__iter__", "Tensor.requires_grad_", "Adagrad.__init__", "LRScheduler.step",
             "torch.nn.functional.mse_loss", "Module.__setstate__"}, {*found["before"]})
        self.assertEqual(found["trained"], plain["trained"])

    @runner.long
    def test_what_there_is_in_one_process_is_taken_back(self):
        self.assertIn("Optimizer.profile_hook_step", self.undone(jobs.NONE)["before"])
        found = self.undone(jobs.GEMINI)
        self.assertLessEqual({"Adam.step", "torch.nn.utils.clip_grad_norm_"}, {*found["before"]})
        self.assertEqual(found["trained"], self.undone(jobs.ALONE)["trained"])

    def test_another_function_is_refused(self):
        done = jobs.start(["-c", CHANGED], jobs.GEMINI, fresh=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        said = [line for line in done.stderr.splitlines() if "zero_grad" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertRegex(said[0], WRONG.replace("(", r"\(").replace(")", r"\)").replace(".", r"\.").format("[^ ]*"))

    def test_what_steps_aside_does_so_whole(self):
        done = jobs.start(["-c", CHANGED], jobs.GEMINI, fresh=True, CASTOR_ON_ERROR="passthrough")
        self.assertEqual((done.returncode, done.stdout), (0, "False 0\n"), done.stderr)
        self.assertIn("(self, set_to_none) are expected", done.stderr)

    def test_the_compiler_is_not_imported(self):
        """By those who only tell it what not to compile: an optimizer and its step. It takes a second, and 66 MiB of each rank."""
        text = "import sys, torch; torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step(); print('torch._dynamo.eval_frame' in sys.modules)"
        for how, imported in ((jobs.NONE, "True\n"), (jobs.GEMINI, "False\n")):
            done = jobs.start(["-c", text], how, fresh=True)
            self.assertEqual(done.stdout, imported, done.stderr)

    def test_the_list(self):
        done = jobs.start(["-m", "castor.agent"], jobs.GEMINI)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], r"^torch \d")
        self.assertGreater(len(lines), 80)
        for line in lines[1:]:
            self.assertRegex(line, r"^[\w.]+: as expected\. [A-Z].*\w$")


if __name__ == "__main__":
    unittest.main()
