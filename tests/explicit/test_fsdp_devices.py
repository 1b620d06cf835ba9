"""TorchFSDPPlugin over NCCL, on simulated devices with numbers."""
import unittest

import jobs
import runner

IS_LONG = runner.LENGTH == "all"
RANKS = (2, 4) if IS_LONG else (2,)
KINDS = ("adamw", "sgd", "fused", "hybrid_adam", "lamb", "fused_lamb", "lars") if IS_LONG else ("adamw", "sgd")
LIMIT = 1e-5  # norms of parts are added in another order, and so are four ranks' gradients


class FsdpDevices(unittest.TestCase):
    def each(self, look):
        jobs.simulated.need(whole=True)
        for ranks in RANKS:
            # Memory: what plain PyTorch's training of the model of memory() overflows.
            environment = jobs.devices(ranks, "176M")
            more = {"CASTOR_TIMEOUT": "4", "LOCAL_WORLD_SIZE": "2"}
            for rank, found in enumerate(jobs.once("fsdp_devices_rank.py", ranks, jobs.NONE, *KINDS, **{**environment, **more})):
                with self.subTest(ranks=ranks, rank=rank):
                    look(ranks, rank, found)

    def test_is_what_ddp_shows(self):
        def look(ranks, rank, found):
            for plugin, by_kind in found["differences"].items():
                for kind, difference in by_kind.items():
                    self.assertLess(difference, LIMIT, f"{plugin}, {kind}")

        self.each(look)

    def test_checkpoints(self):
        def look(ranks, rank, found):
            if ranks > 2:
                return
            self.assertEqual(found["wrong"], [])
            self.assertEqual(found["left"], [])
            if rank == 0:
                self.assertIn("all ranks must call it", found["alone"])
            self.assertLess(found["alone_seconds"], 10)

        self.each(look)

    def test_a_device_holds_parts(self):
        def look(ranks, rank, found):
            if ranks > 2:
                return
            self.assertIn("out of memory", found["plain"])
            parameters, held, most = found["memory"]
            self.assertLess(held, 0.51 * parameters)
            self.assertLess(most, 0.7 * 4 * parameters)

        self.each(look)

    def test_ignored_modules_are_each_ranks_own(self):
        def look(ranks, rank, found):
            if ranks == 2:
                self.assertEqual(found["ignored"], [[rank] * 4, [4 * (1 + rank)] * 4, True])

        self.each(look)

    def test_bad_models(self):
        def look(ranks, rank, found):
            if ranks > 2:
                return
            self.assertIn("boosted already", found["twice"])
            self.assertIn("cpu:gloo,cuda:nccl", found["without_gloo"])
            self.assertIn("the parameter weight is torch.float32 of shape (4, 4) on rank 0", found["differs"])

        self.each(look)


if __name__ == "__main__":
    unittest.main()
