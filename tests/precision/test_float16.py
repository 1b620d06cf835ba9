"""The loss scale of CASTOR_PRECISION=fp16: nothing that a script sees has it."""
import os
import tempfile

import jobs
import runner
import torch
from beside import PrecisionTest
from reference import Reference


class ScaleTest(PrecisionTest):
    def run_both(self, habit, steps=4, **options):
        job = jobs.start("--model", "mlp", "--optimizer", "sgd", "--steps", steps, "--habit", habit, precision="fp16", **options)
        self.assertEqual(job.status, 0, job.said)
        torch.set_num_threads(1)
        plain = Reference("mlp", "sgd", torch.float16, 2, habit=habit)
        for step in range(steps):
            plain.step(step)
        for rank, told in enumerate(job.told):
            self.assertEqual(told["losses"], plain.losses[rank])
            self.same_state(told, plain, f"rank {rank}")
        return job, plain

    def test_overflow_on_one_rank(self):
        """The step is left out on all of them, and the loss scale becomes smaller, with one line that says so."""
        job, plain = self.run_both("overflow")
        self.assertGreaterEqual(plain.skipped, 1)
        self.assertEqual(job.said.count("a gradient overflowed"), plain.skipped)
        self.assertIn(f"the loss scale is {plain.scale:g}", job.said)

    def test_gradients_have_no_scale(self):
        """Those of parameters, and of tensors that are none of Castor's."""
        job, plain = self.run_both("foreign")
        for rank, told in enumerate(job.told):
            for mine, (_, wide) in zip(told["grads"], plain.trained):
                self.equal(mine, wide.grad, "a gradient")
            for mine, theirs in zip(told["outside"], plain.outside[rank]):
                self.equal(mine, theirs, "the gradient of an input")

    @runner.long
    def test_parameters_in_the_loss(self):
        self.run_both("penalty")

    @runner.long
    def test_resumed(self):
        """The scale goes on from where it was: the first step is not left out once more."""
        with tempfile.TemporaryDirectory(prefix="castor-precision-") as folder:
            kept = os.path.join(folder, "kept")
            arguments = ("--model", "mlp", "--optimizer", "adamw")
            first = jobs.start(*arguments, "--steps", 2, "--habit", "overflow", precision="fp16")
            self.assertEqual(first.status, 0, first.said)
            torch.save({"model": first.told[0]["model"], "optimizer": first.told[0]["optimizer"]}, kept)
            second = jobs.start(*arguments, "--steps", 2, "--first", 2, "--load", kept, precision="fp16")
        self.assertEqual(second.status, 0, second.said)
        plain = Reference("mlp", "adamw", torch.float16, 2, habit="overflow")
        for step in range(4):
            plain.step(step)
        for rank, told in enumerate(second.told):
            self.assertEqual(told["losses"], plain.losses[rank][2:])
            self.same_state(told, plain, f"rank {rank}")
        self.assertEqual(second.told[0]["optimizer"]["castor_loss_scale"]["scale"], plain.scale)
