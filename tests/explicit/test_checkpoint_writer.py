"""The writer of checkpoints: CASTOR_CHECKPOINT, and what files hold while the script goes on."""
import unittest

import jobs
import runner


class Moment(unittest.TestCase):
    """A file holds what its tensors held when torch.save was called, byte for byte as PyTorch writes it."""

    def check(self, ranks, how):
        for rank, found in enumerate(jobs.once("checkpoint_writer_rank.py", ranks, how, CASTOR_CHECKPOINT="async")):
            self.assertEqual(found.pop("plugin"), how)
            self.assertEqual(len(found), 22)
            for name, right in found.items():
                self.assertTrue(right, f"rank {rank} of {ranks}, {how}: {name}")

    def test_two_ranks_of_gemini(self):
        self.check(2, jobs.GEMINI)

    @runner.long
    def test_one_process_of_gemini(self):
        self.check(1, jobs.GEMINI)

    def test_one_process_without_plugin(self):
        self.check(1, jobs.NONE)

    @runner.long
    def test_two_ranks_without_plugin(self):
        self.check(2, jobs.NONE)


if __name__ == "__main__":
    unittest.main()
