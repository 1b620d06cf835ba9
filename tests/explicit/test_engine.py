"""castor.launch, castor.initialize and castor.engine: the figures are worked out by hand."""
import unittest

import jobs


class Alone(unittest.TestCase):
    def setUp(self):
        self.ways = {how: jobs.once("engine_rank.py", 1, how, "schedule")[0] for how in jobs.WAYS}

    def check(self, name, value):
        for how, found in self.ways.items():
            self.assertEqual(found[name], value, how)

    def test_initialize_returns_what_it_was_given(self):
        self.check("initialize", [True] * 6)
        self.check("no loader to cut", None)

    def test_a_schedule_trains_a_batch(self):
        # (1, 2) . (1, 0) = 1 and (1, 2) . (3, 2) = 7, less 0 and 4; the mean input is (2, 1)
        self.check("step", [[1.0, 7.0], [0.0, 4.0], 2.0, True, [2.0, 1.0], None, [0.0, 1.5]])
        self.check("zeroed", True)
        # (0, 1.5): 0 and 3, less 0 and 4
        self.check("forward only", [False, False, -0.5, True])

    def test_what_a_schedule_returns(self):
        self.check("no outputs", [None, None, -0.5])
        self.check("no loss", [False, False, True])
        self.check("trained without the loss", [[False, False, True], [2.0, 1.0]])
        self.check("the end of the data", "")

    def test_a_loss_needs_a_criterion(self):
        for found in self.ways.values():
            text, output = found["no criterion"]
            self.assertIn("the engine has no criterion", text)
            self.assertEqual(output, [0.0, 3.0])

    def test_batches_of_other_kinds(self):
        # (1 + 2) - 1 - 0.5; ((1 + 4) - 1) * 10; (3 + 1) - 3
        self.check("kinds of batches", [1.5, 40.0, 1.0])
        self.check("a function for the batch", [[1.0] * 3, [1.0] * 3, 3])
        self.check("as loaded", ["str", "int"])
        for found in self.ways.values():
            self.assertIn("pass iter(dataloader)", found["no iterator"])
            self.assertEqual(found["abstract"][:2], [True, True])
            self.assertIn("3 is no schedule", found["abstract"][2])

    def test_handlers_clipping_and_steps(self):
        # (6, 8), halved: (3, 4) of norm 5, clipped to 2.5
        self.check("handled, then clipped", [[6.0, 8.0], [1.5, 2.0], [-1.5, -2.0]])
        self.check("clip_grad_norm", [None, 5.0, 5.0, 5.0, [1.5, 2.0]])

    def test_accumulation(self):
        # Batches 0 and 1: ((0, 4) + (2, 4)) / 2; 2 and 3: ((4, 4) + (6, 4)) / 2, at half the rate. The fifth is left out.
        self.check("accumulated", [[0.0, 0.0, 1.0], [-1.0, -4.0, 0.5], [-1.0, -4.0, 0.5], [-3.5, -6.0, 0.25]])

    def test_launching_says_what_is_missing(self):
        for found in self.ways.values():
            self.assertIn("found no RANK and no WORLD_SIZE and no MASTER_ADDR and no MASTER_PORT", found["not started by torchrun"])
            self.assertEqual(found["configurations"], "castor: the configuration has 'fp16': expected clip_grad_norm, gradient_accumulation, gradient_handler, parallel")


class TwoRanks(unittest.TestCase):
    def check(self, part, name, *values):
        """One value for both ranks, or one each."""
        for how in jobs.WAYS:
            ranks = jobs.once("engine_rank.py", 2, how, part)
            self.assertEqual([found[name] for found in ranks], list(values) * (2 // len(values)), how)

    def test_launch_from_torch(self):
        self.check("ddp", "ranks", [0, 2, "gloo", 1024], [1, 2, "gloo", 1024])
        self.check("ddp", "seeded", True)

    def test_initialize_wraps_in_ddp(self):
        # Batches (0, 8r) and (2, 8r), halved and added: (1, 8r); averaged (1, 4), from rank 0's (1, 0). The third is left out.
        self.check("ddp", "under DDP", ["DistributedDataParallel", 2, [[1.0, 0.0], [0.0, -4.0]]])
        self.check("ddp", "wrapped once", True)

    def test_the_data_parallel_handler(self):
        self.check("handler", "rank 0's", [[0.0, 0.0]] * 6)
        # common, half: (1, 2) and (2, 2); seldom: 4 on rank 1 alone; never and frozen: none. Order: common, seldom, never, half, frozen
        self.check("handler", "averaged", [[1.5, 2.0], [2.0, 2.0], None, [1.5, 2.0], None, True, ["torch.float32", "torch.bfloat16"], "Mixed"])
        self.check("handler", "stepped", [[-1.5, -2.0], [-2.0, -2.0], [0.0, 0.0], [-1.5, -2.0], [0.0, 0.0]])
        self.check("handler", "a group of one", [1.0, 1.0], [2.0, 2.0])


if __name__ == "__main__":
    unittest.main()
