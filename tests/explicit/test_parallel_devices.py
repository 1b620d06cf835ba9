"""Pipelines and divided tensors over NCCL, on simulated devices with numbers."""
import unittest

import jobs
import runner

RANKS = (2, 4) if runner.LENGTH == "all" else (4,)


class ParallelDevices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        jobs.simulated.need(whole=True)

    def test_beside_the_whole_model(self):
        for ranks in RANKS:
            for rank, found in enumerate(jobs.job("parallel_devices_rank.py", ranks, jobs.NONE, "2", **jobs.devices(ranks))):
                self.assertEqual((found["backend"], found["wrong"]), ("nccl", []), f"{ranks} ranks, rank {rank}")
                self.assertGreater(found["compared"], 50)


if __name__ == "__main__":
    unittest.main()
