"""Colossal-AI's examples, run as they stand in its documents (seeds/), under CASTOR_COMPAT=1 without a GPU."""
import unittest

import jobs
import runner

LONG = runner.LENGTH == "all"


def found(script, ranks):
    return jobs.once(f"seeds/{script}.py", ranks, jobs.NONE, CASTOR_COMPAT="1")


class Alone(unittest.TestCase):
    def setUp(self):
        (self.found,) = found("alone", 1)

    def test_trainer_utilities_without_a_process_group(self):
        # 10000 batches of [0, 1], [2, 3], [4, 5]: the last is the first of its round.
        self.assertEqual(self.found["loop"], [10000, [0, 1], [0, 1], "cpu", 0])
        self.assertEqual(self.found["loss"], [3.0, True, 3.0, [3.0]])
        # 1 - step / 1000 * 0.9 after the warm-up of 50 steps
        self.assertEqual(self.found["temperatures"], [1.0, 1.0, 0.9541, 0.1009, 0.1])

    def test_merge_and_convert(self):
        self.assertEqual(self.found["merged"], [[[1, [0, 1]]], [[1, [0]], [-1, [1]]], [[1, [1]]], [[2, [0]], [0, [1]]]])

    def test_accumulation_steps_at_4_and_8_of_10(self):
        self.assertEqual(self.found["accumulation"], [
            [4, 8], [4, 8], 8, 8, True, [0.025],
            ["GradAccumOptimizer", "GradAccumDataloader", "GradAccumGradientHandler", "GradAccumLrSchedulerByStep"], 2, 8, True])

    def test_schedules(self):
        self.assertEqual(self.found["schedule"], [[2, 1], True, [None, None, None], "cpu", True, True])


class Tensors(unittest.TestCase):
    def look(self, ranks):
        for found_there in found("ranks", ranks):
            self.assertEqual(found_there["replicated"], [True, [2, 3], True, 1, ranks])
            self.assertEqual(found_there["sharded"], [[4, 3], True])
            self.assertEqual(found_there["divided"], [[4 // ranks, 3], [4, 3], [4, 3], list(range(ranks))])
            self.assertEqual(found_there["named"], [[[4, 4]], ["part.weight", "part.bias"]])
            self.assertEqual(found_there["hooks"], [
                "outer pre_forward 1", "outer post_forward 1", "inner pre_forward 1", "inner post_forward 1",
                "inner pre_backward 1", "inner post_backward 1", "outer pre_backward 1", "outer post_backward 1"])
            self.assertEqual(found_there["hooked gradient"], [8.0] * 4)
            # gather: 1 + 1 * (2 - 1) / 2 * 8 elements + 0.1; shard: 0
            self.assertEqual(found_there["cost"], [{"forward": 5.1, "backward": 0, "total": 5.1}, "torch.Size([2, 4])"])
            if ranks > 1:
                self.assertEqual(found_there["pipeline"], [True, True, True])

    @runner.long  # test_tensor.py and test_pipeline.py have these classes
    def test_two_ranks(self):
        self.look(2)

    @runner.long
    def test_one_rank(self):
        self.look(1)

    @runner.long
    def test_four_ranks(self):
        self.look(4)


class Boosters(unittest.TestCase):
    def setUp(self):
        runner.need_packages("torchvision", "transformers")

    def look_at_gpt(self, ranks):
        for seen in found("gpt", ranks):
            losses, beside = seen["losses"]
            self.assertEqual(len(losses), 6)
            for ours, plain in zip(losses, beside):
                self.assertAlmostEqual(ours, plain, delta=5e-3)  # 11 bits of a loss of about 4
            self.assertLess(losses[-1], losses[0] - 0.01)
            self.assertEqual(*seen["rates"])
            self.assertLess(seen["state"], 2e-3)  # two steps of Adam, whose direction of a small gradient 16 bits may turn

    def test_the_first_on_two_ranks(self):
        self.look_at_gpt(2)

    @runner.long
    def test_the_first_on_one_rank(self):
        self.look_at_gpt(1)

    def look_at_resnet(self, ranks):
        for seen in found("resnet", ranks):
            self.assertEqual(seen["bits"], [True, True, "ResNet"])
            self.assertAlmostEqual(seen["loss"][0], seen["loss"][1], places=6)
            self.assertAlmostEqual(seen["loss"][2], 1e-4)
            self.assertLess(seen["beside"], 1e-6)
            self.assertTrue(seen["changed"])
            count, *rest, largest = seen["files"]
            self.assertEqual(rest, [True, True])
            self.assertGreaterEqual(count, 4)
            self.assertLessEqual(largest, 10 << 20 if count > 5 else 11 << 20)

    @runner.long  # on one rank
    def test_the_second_on_two_ranks(self):
        self.look_at_resnet(2)

    def test_the_second_on_one_rank(self):
        self.look_at_resnet(1)

    @runner.long  # HybridParallelPlugin's own tests
    def test_execute_pipeline(self):
        for rank, seen in enumerate(found("pipeline", 2)):
            losses, beside = seen["losses"]
            self.assertEqual(seen["returned"], [rank == 1, [[rank == 1, False]] * 4])
            self.assertEqual(len(losses), 4 * rank)
            for ours, plain in zip(losses, beside):
                self.assertAlmostEqual(ours, plain, delta=1e-4)
            if rank == 1:
                self.assertLess(losses[-1], losses[0] - 0.1)
                logits, loss = seen["evaluated"]
                self.assertLess(logits, 1e-3)
                self.assertLess(loss, 1e-4)
            else:
                self.assertEqual(seen["evaluated"], [False, False])


if __name__ == "__main__":
    unittest.main()
