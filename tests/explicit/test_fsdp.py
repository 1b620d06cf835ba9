"""TorchFSDPPlugin beside PyTorch's DistributedDataParallel, and what one rank does without the others."""
import unittest

import jobs
import runner

RANKS = (2, 4) if runner.LENGTH == "all" else (2,)
ALONE_S = 5  # that saving, evaluating and copying a small model on rank 0 may take


class Fsdp(unittest.TestCase):
    def each(self, look):
        for ranks in RANKS:
            for rank, found in enumerate(jobs.once("fsdp_rank.py", ranks, jobs.NONE)):
                with self.subTest(ranks=ranks, rank=rank):
                    look(ranks, rank, found)

    def test_is_what_ddp_shows(self):
        """Bitwise with two ranks; with four, gloo adds the gradients in another order."""

        def look(ranks, rank, found):
            for row, differences in found["differences"].items():
                for what, difference in differences.items():
                    self.assertEqual(difference, 0.0, f"{row}: {what}")

        self.each(look)

    def test_rank_0_alone(self):
        def look(ranks, rank, found):
            self.assertLess(found["alone_seconds"], ALONE_S)
            if rank == 0:
                self.assertEqual(len(set(found["alone_losses"])), 1, found["alone_losses"])

        self.each(look)

    def test_checkpoints_of_the_booster(self):
        def look(ranks, rank, found):
            self.assertEqual([found[f"{what}_{shard}"] for what in ("loaded", "states") for shard in (False, True)], [0.0] * 4)

        self.each(look)

    def test_bad_parameters(self):
        def look(ranks, rank, found):
            self.assertIn("use TorchDDPPlugin", found["no_shard"])
            self.assertIn("shards", found["unknown"])
            self.assertIn("'bf16'", found["precision"])
            self.assertIn("torch.float64", found["type"])

        self.each(look)

    def test_ignored_modules_are_each_ranks_own(self):
        self.each(lambda ranks, rank, found: self.assertEqual(found["ignored"], [[float(rank)] * 4, [2.0] * 4, True]))


if __name__ == "__main__":
    unittest.main()
