"""castor.utils.gradient_accumulation: the figures are worked out by hand."""
import unittest

import jobs


class Alone(unittest.TestCase):
    def setUp(self):
        self.ways = {how: jobs.once("accumulate_alone.py", 1, how)[0] for how in jobs.WAYS}

    def check(self, name, value):
        for how, found in self.ways.items():
            self.assertEqual(found[name], value, how)

    def test_optimizer_counts_scales_and_steps_at_the_boundary(self):
        self.check("answers", [[None, None], [None, None], ["clip_grad_norm", "step"]] * 2)
        # Losses of 6, 18 and 30 are divided by 3; the gradient 5 is not.
        self.check("calls", [
            ["zero_grad"], ["backward", 2.0], ["backward_by_grad", 1.0, 5.0], ["backward", 6.0], ["clip_grad_norm", "model", 1.5], ["step"],
            ["zero_grad"], ["backward_by_grad", 1.0, 5.0], ["backward", 10.0], ["backward_by_grad", 1.0, 5.0], ["clip_grad_norm", "model", 1.5], ["step"],
        ])
        self.check("its attributes", ["recorded", True, "nothing"])

    def test_gradients_of_all_micro_batches_count(self):
        # Means (2, 0) and (0, 3), halved and added; then (3, 4) twice, of norm 5, which becomes 2.5.
        self.check("gradients", [[1.0, 0.0, None], [1.0, 1.5, 1.802776], [1.5, 2.0, None], [3.0, 4.0, 5.0]])
        self.check("weights", [[1.0, 1.0], [0.5, 0.25], [0.5, 0.25], [-0.25, -0.75]])
        self.check("no clipping", None)
        self.check("groups", [True, True, 0.5, True])

    def test_micro_batches_make_one_batch(self):
        self.check("as one batch, SGD", True)
        self.check("as one batch, AdamW", True)

    def test_loaders_that_are_not_pytorchs_are_drained(self):
        # length, items, pulled (100 more: its end was seen), how often it was begun
        self.check("drained", [[8, list(range(8)), 110, 1], [8, list(range(8)), 108, 1], [0, [], 0, 0], [0, [], 0, 0], [3, [0, 1, 2], 103, 1]])
        self.check("as it is drawn", [1, [[0, 1], [1, 2], [2, 3], [3, 105]], "", 7, 105])
        self.check("twice", [[0, 1, 2, 3], [0, 1, 2, 3], 3, "", 0, 1])

    def test_dataloaders_are_cut(self):
        self.check("DataLoader", [4, [[0, 1], [2, 3], [4, 5], [6, 7]], list(range(8)), 2, True])
        self.check("DataLoader, none", [[], []])
        for found in self.ways.values():
            self.assertIn("has no len()", found["no length"])

    def test_scheduler_acts_at_each_kth_call(self):
        self.check("rates", [8.0, 8.0, 4.0, 4.0, 4.0, 2.0, 2.0])
        self.check("scheduler's attributes", [2, [8.0], True, True, True])
        self.check("effective steps", [2, 2, 0, 7])
        self.check("a scheduler of the wrapper", [1.0])

    def test_handler_fires_at_each_kth_call(self):
        self.check("fired", [0, 1, 1, 2, 2])

    def test_accumulate_gradient(self):
        self.check("parts", ["GradAccumOptimizer", "GradAccumDataloader", "NoneType", "NoneType"])
        self.check("parts with all", ["GradAccumOptimizer", "GradAccumDataloader", ["GradAccumGradientHandler"], "GradAccumLrSchedulerByStep"])
        self.check("copies", [1, None, 2, 0, 1.0])

    def test_errors_say_what_is_expected(self):
        self.check("errors", [
            "castor: accumulate_size is 0: expected the number of micro-batches of a step, 1 or more",
            "castor: accumulate_size is -2: expected the number of micro-batches of a step, 1 or more",
            "castor: accumulate_size is 1.5: expected a whole number, 1 or more",
            "castor: 7 is no gradient handler: it has no method handle_gradient()",
        ])


class TwoRanks(unittest.TestCase):
    """Under DistributedDataParallel, with PyTorch's reducer and with Castor's."""

    def setUp(self):
        self.ways = {how: jobs.once("accumulate_rank.py", 2, how, how) for how in jobs.WAYS}

    def check(self, name, *values):
        """One value for both ranks, or one each."""
        for how, ranks in self.ways.items():
            self.assertEqual([found[name] for found in ranks], list(values) * (2 // len(values)), how)

    def test_communication_at_the_kth_only(self):
        # Micro-step i gives the mean of (3i, 0) and (0, 12r), divided by 3: (i / 2, 2r). Rank 0 has (i / 2, 0).
        # After 3: (3, 6r), averaged (3, 3); after 6: (4 + 5 + 6) / 2 = 7.5, and 3.
        self.check(
            "steps",
            [[0, [0.5, 0.0], True, None, [1.0, 1.0]], [0, [1.5, 0.0], True, None, [1.0, 1.0]], [1, [3.0, 3.0], True, None, [-2.0, -2.0]],
             [1, [2.0, 0.0], True, None, [-2.0, -2.0]], [1, [4.5, 0.0], True, None, [-2.0, -2.0]], [2, [7.5, 3.0], True, 5.0, [-9.5, -5.0]]],
            [[0, [0.5, 2.0], True, None, [1.0, 1.0]], [0, [1.5, 4.0], True, None, [1.0, 1.0]], [1, [3.0, 3.0], True, None, [-2.0, -2.0]],
             [1, [2.0, 2.0], True, None, [-2.0, -2.0]], [1, [4.5, 4.0], True, None, [-2.0, -2.0]], [2, [7.5, 3.0], True, 5.0, [-9.5, -5.0]]],
        )

    def test_other_forwards_in_between(self):
        self.check("with evaluation", [-3.0, 0.0])  # 2 on rank 0, 4 on rank 1
        self.check("forwards first", [1, [3.0, 2.0], None, [-3.0, -2.0]])

    def test_a_compiled_module(self):
        self.check("compiled", [2, [3.0, 2.0], [-6.0, -4.0]])

    def test_no_sync_keeps_its_meaning(self):
        self.check("no_sync", [0, [2.0, 0.0], True], [0, [4.0, 0.0], True])

    def test_what_only_an_earlier_micro_batch_used(self):
        # (8, 4) / 2 once, on one of two ranks
        self.check("used early", [[8.0, 4.0], [2.0, 1.0]])
        self.check("used early, stepped", [[-8.0, -4.0], [-2.0, -1.0]])
        self.check("a copy", [-8.0, -4.0])

    def test_two_optimizers_of_one_module(self):
        self.check("two optimizers", [[0, 1], [-3.0, 0.0]])

    def test_micro_batches_make_one_batch(self):
        self.check("as one batch", True)
        for ranks in self.ways.values():
            self.assertEqual(ranks[0]["sums"], ranks[1]["sums"])


SINGLE = """
import torch
import castor
from castor.trainer.utils import all_gather_tensors, all_reduce_mean, is_rank_0

model = torch.nn.Linear(2048, 1, bias=False)
model.weight.data.zero_()
inputs = torch.zeros(10, 2048)
inputs[:, 0], inputs[:, 1] = torch.arange(10.0), 4.0
loader = torch.utils.data.DataLoader(inputs, batch_size=2)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
engine, loader, _, scheduler = castor.initialize(model, optimizer, lambda output: output.mean(), loader, lr_scheduler=scheduler,
                                                 gradient_accumulation=2, clip_grad_norm=100.0, verbose=False)
for epoch in range(2):
    for batch in loader:
        engine.zero_grad()
        loss = engine.criterion(engine(batch))
        engine.backward(loss)
        engine.step()
        scheduler.step()
        print(loss.item(), model.weight[0, :2].tolist(), optimizer.param_groups[0]["lr"])
print(is_rank_0(), all_reduce_mean(loss).item() == loss.item(), len(all_gather_tensors([loss])))
"""


class SingleProcess(unittest.TestCase):
    """A script of one process, by itself and on two ranks, each of which gets half of every batch."""

    # Means (0.5, 4), (2.5, 4), (4.5, 4), (6.5, 4) of batches of two; the fifth is left out. Losses are of the weights before.
    EXPECTED = """\
0.0 [0.0, 0.0] 1.0
0.0 [-1.5, -4.0] 0.5
-22.75 [-1.5, -4.0] 0.5
-25.75 [-4.25, -6.0] 0.25
-26.125 [-4.25, -6.0] 0.25
-34.625 [-4.625, -7.0] 0.125
-48.8125 [-4.625, -7.0] 0.125
-58.0625 [-5.3125, -7.5] 0.0625
True True 1
"""

    def test_by_itself(self):
        done = jobs.start(["-c", SINGLE], jobs.NONE)
        self.assertEqual(done.stdout, self.EXPECTED, done.stderr)

    def test_on_two_ranks(self):
        done = jobs.start(["-c", SINGLE], jobs.GEMINI, nproc=2)
        self.assertEqual(done.stdout, self.EXPECTED, done.stderr)


if __name__ == "__main__":
    unittest.main()
