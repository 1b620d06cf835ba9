"""castor.trainer.utils: the figures are worked out by hand."""
import unittest

import jobs


class Alone(unittest.TestCase):
    """What needs no other rank; the same in every way of running."""

    def setUp(self):
        self.ways = {how: jobs.once("utils_rank.py", 1, how)[0] for how in jobs.WAYS}

    def check(self, name, value):
        for how, found in self.ways.items():
            self.assertEqual(found[name], value, how)

    def test_annealing_jumps_after_the_warm_up(self):
        # Steps 0 to 10; 1 - step / 8 for steps 3 to 7, without the two of the warm-up.
        self.check("temperatures", [1.0, 1.0, 1.0, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0, 0.0])

    def test_annealing_tests_the_warm_up_first(self):
        self.check("warm-up first", [2.0] * 6 + [1.0] * 2)
        self.check("defaults", [100, 2000])

    def test_cycled_loader_counts_and_restarts(self):
        # item, count, how often the loader was begun: nothing before the first; 0 with the first item after a wrap
        self.check("cycled", [[None, 0, 0], [10, 1, 1], [20, 2, 1], [30, 3, 1], [10, 0, 2], [20, 1, 2], [30, 2, 2], [10, 0, 3], [20, 1, 3]])
        self.check("cycled, empty", 0)
        self.check("cycled, DataLoader", [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4], [0, 1]])

    def test_to_device_takes_any_pytree(self):
        self.check("moved", ["meta", "meta", "text", "Pair", "meta", None, 3, "cpu"])

    def test_without_a_process_group(self):
        self.check("unchanged", [True, True, [1.0, 2.0]])
        self.check("gathered alone", [[1.0, 1.0], 0.0])
        self.check("is rank 0, alone", True)


class TwoRanks(unittest.TestCase):
    def setUp(self):
        self.ways = {how: jobs.once("utils_rank.py", 2, how) for how in jobs.WAYS}

    def check(self, name, *values):
        """One value for both ranks, or one each."""
        for how, ranks in self.ways.items():
            self.assertEqual([found[name] for found in ranks], list(values) * (2 // len(values)), how)

    def test_rank_0(self):
        self.check("is rank 0", True, False)
        self.check("is rank 0, after", True)

    def test_all_reduce(self):
        self.check("sum", [True, [3.0, 10.0]])
        self.check("mean", [True, [1.5, 5.0]])
        self.check("strided", [0.0, 4.0])
        self.check("with a graph", [4.0, [0.5, 0.5], True])  # (0 + 8) / 2; (0 + 1) / 2

    def test_mean_of_integers_is_refused(self):
        for found in self.ways[jobs.GEMINI]:
            total, text = found["integers"]
            self.assertEqual(total, [1, 10])
            self.assertIn("all_reduce_mean of a tensor of torch.int64", text)

    def test_the_plugins_data_parallel_group(self):
        self.check("plugin's group", [1.0, 1.0, [0]], [2.0, 2.0, [1]])
        self.check("a plugin without a group", 3.0)

    def test_all_gather_takes_other_numbers_and_shapes(self):
        self.check("gathered", [
            [[5.0, 6.0], [2], "torch.float64", 16], [7, [], "torch.int64", 8],
            [[], [0, 2], "torch.float32", 0], [[[True]], [1, 1], "torch.bool", 1], [[[0.0, 1.0, 2.0, 3.0]], [1, 4], "torch.bfloat16", 8],
        ])
        self.check("gathered are copies", [5.0, 6.0])
        self.check("none to give", [[0.5, 0.5]])
        self.check("nobody gives", [])


if __name__ == "__main__":
    unittest.main()
