"""What the tests share: a job beside mixed precision written out."""
import unittest

import jobs
import torch
from reference import Reference

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class PrecisionTest(unittest.TestCase):
    maxDiff = None

    def equal(self, mine, theirs, what):
        self.assertEqual(mine.dtype, theirs.dtype, what)
        self.assertTrue(torch.equal(mine, theirs), f"{what}: differs by {(mine.double() - theirs.double()).abs().max()}")

    def check(self, model, optimizer, precision="bf16", ranks=2, steps=4, **options):
        job = jobs.start("--model", model, "--optimizer", optimizer, "--steps", steps, precision=precision, ranks=ranks, **options)
        self.assertEqual(job.status, 0, job.said)
        torch.set_num_threads(1)
        plain = Reference(model, optimizer, DTYPES[precision], ranks)
        for step in range(steps):
            plain.step(step)
        for rank, told in enumerate(job.told):
            self.assertIn("torch." + str(DTYPES[precision])[6:], told["types"])
            if options.get("single"):
                whole = [sum(parts) / ranks for parts in zip(*plain.losses)]
                self.assertTrue(torch.allclose(torch.tensor(told["losses"]), torch.tensor(whole), rtol=1e-6, atol=0), whole)
            else:
                self.assertEqual(told["losses"], plain.losses[rank])
            self.same_state(told, plain, f"rank {rank}")
        return job

    def same_state(self, told, plain, who):
        wanted = plain.wide.state_dict()
        self.assertEqual(list(told["model"]), list(wanted))
        for name, value in wanted.items():
            if "running" not in name and "num_batches" not in name:
                self.equal(told["model"][name], value, f"{who}: {name}")
        states = plain.optimizer.state_dict()["state"]
        self.assertEqual(list(told["optimizer"]["state"]), list(states))
        for index, state in states.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self.equal(told["optimizer"]["state"][index][key], value, f"{who}: {key} of {index}")
