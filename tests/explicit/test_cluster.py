"""castor.cluster and castor.accelerator, on four ranks in a grid of 2 x 2."""
import unittest

import jobs


class Cluster(unittest.TestCase):
    def check(self, name, *values):
        """One value for all ranks, or one each."""
        for how in jobs.WAYS:
            self.assertEqual([found[name] for found in jobs.once("cluster_rank.py", 4, how)], list(values) * (4 // len(values)), how)

    def test_a_grid_of_ranks(self):
        self.check("grid", *([[2, 2], [2, 2], 2, [rank // 2, rank % 2], rank // 2, rank] for rank in range(4)))
        # Rows [0, 1] and [2, 3], columns [0, 2] and [1, 3]; the sums of the rows' ranks
        self.check("groups", [[0, 1], [0, 2], 1.0, True, True], [[0, 1], [1, 3], 1.0, True, True], [[2, 3], [0, 2], 5.0, True, True], [[2, 3], [1, 3], 5.0, True, True])
        self.check("chosen", [[0, 1, 2, 3], [0]], [[0, 1, 2, 3], None], [[0, 1, 2, 3], [2]], [[0, 1, 2, 3], None])
        self.check("coordinates", [[1, 2], 5, 5, 3, [[0, 0], [0, 2]], [[0, 5, 4], [0, 6, 4], [1, 5, 4], [1, 6, 4]]])

    def test_bad_input(self):
        for found in jobs.once("cluster_rank.py", 4, jobs.WAYS[0]):
            for text, part in zip([*found["before launch"], *found["bad"]], ("call castor.launch", "call castor.launch", "has not the job's 4 ranks", "coordinate", "rank 6 is not in", "expected 'raise'"), strict=True):
                self.assertIn(part, text)

    def test_the_coordinator(self):
        self.check("ranks", *([True, rank, 4, rank == 0, rank % 2 == 0, rank == 3, True] for rank in range(4)))
        self.check("printed", ["master", "node", "row"], [], ["row"], [])
        self.check("on the master only", 1, None, None, None)
        self.check("rank 1 goes first", True)

    def test_the_accelerator(self):
        self.check("accelerator", ["cpu", "gloo", True, "cpu", 1, True, "", "torch.bfloat16", True])


if __name__ == "__main__":
    unittest.main()
