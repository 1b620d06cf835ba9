"""Pipelines and divided tensors over NCCL, on simulated devices with numbers."""
import os
import sys
import unittest

import jobs
import runner

sys.path.append(os.path.join(os.path.dirname(jobs.FOLDER), "sim"))
import simulated  # noqa: E402

RANKS = (2, 4) if runner.LENGTH == "all" else (4,)


class ParallelDevices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        why = simulated.left_out(whole=True)
        if why:
            raise unittest.SkipTest(why)
        why = simulated.make(sys.executable)
        if why:
            raise AssertionError(why)

    def test_beside_the_whole_model(self):
        for ranks in RANKS:
            environment = simulated.environment(devices=ranks, memory="1G", numbers=True, base=runner.environment())
            for rank, found in enumerate(jobs.job("parallel_devices_rank.py", ranks, jobs.NONE, "2", **environment)):
                self.assertEqual((found["backend"], found["wrong"]), ("nccl", []), f"{ranks} ranks, rank {rank}")
                self.assertGreater(found["compared"], 50)


if __name__ == "__main__":
    unittest.main()
