"""The writer of checkpoints: CASTOR_CHECKPOINT, and what files hold while the script goes on."""
import os
import re
import tempfile
import unittest

import jobs
import runner
import torch


class Moment(unittest.TestCase):
    """A file holds what its tensors held when torch.save was called, byte for byte as PyTorch writes it."""

    def check(self, ranks, how):
        for rank, found in enumerate(jobs.once("checkpoint_writer_rank.py", ranks, how, CASTOR_CHECKPOINT="async")):
            self.assertEqual(found.pop("plugin"), how)
            self.assertEqual(len(found), 23)
            for name, right in found.items():
                self.assertTrue(right, f"rank {rank} of {ranks}, {how}: {name}")

    def test_two_ranks_of_gemini(self):
        self.check(2, jobs.GEMINI)

    @runner.long
    def test_one_process_of_gemini(self):
        self.check(1, jobs.GEMINI)

    @runner.long
    def test_one_process_without_plugin(self):
        self.check(1, jobs.NONE)

    @runner.long
    def test_two_ranks_without_plugin(self):
        self.check(2, jobs.NONE)


class Saving(unittest.TestCase):
    def check(self, how):
        found = jobs.once("checkpoint_saving.py", 1, jobs.NONE, CASTOR_CHECKPOINT=how)[0]
        self.assertEqual(len(found), 45 if how == "async" else 44)
        self.assertEqual([name for name, right in found.items() if not right], [])

    def test_in_the_background(self):
        self.check("async")

    @runner.long
    def test_before_it_returns(self):
        self.check("sync")


class Ends(unittest.TestCase):
    """The script ends while a save is in the background."""

    def check(self, status, *how, value=2):
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            done = jobs.start([os.path.join(jobs.FOLDER, "checkpoint_ends.py"), *how], jobs.NONE, cwd=folder, CASTOR_CHECKPOINT="async")
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertEqual(torch.load(os.path.join(folder, "end.pt")).unique().tolist(), [value])
            self.assertEqual([name for name in os.listdir(folder) if name.startswith(".castor")], [])
            return done.stderr

    @runner.long
    def test_it_is_written(self):
        self.assertNotIn("checkpoint", self.check(0))

    def test_an_exit(self):
        self.check(3, "exit")

    @runner.long
    def test_os_exit(self):
        self.check(4, "_exit")

    @runner.long
    def test_an_exception(self):
        self.assertIn("the script's own", self.check(1, "raise"))

    def test_a_save_that_failed(self):
        said = self.check(1, "full", value=1)
        self.assertEqual(len(re.findall("a checkpoint was not saved, .*end.pt", said)), 1, said)
        self.assertIn("File too large", said)

    @runner.long
    def test_a_save_that_failed_before_os_exit(self):
        self.assertIn("File too large", self.check(1, "full", "_exit", value=1))


if __name__ == "__main__":
    unittest.main()
