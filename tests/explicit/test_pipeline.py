"""Pipelines: stages on ranks beside the whole model on the whole batch; the order of passes is tested in tests/unit/parallel."""
import json
import os
import tempfile
import unittest

import jobs
import runner

# What ends stage 1 of three, in the middle of a batch: what stages 0 and 2 say, and stage 1, if it can say something. The others are marked long.
NEIGHBOUR = "rank 1, a neighbour in the pipeline, has ended|a neighbour in the pipeline has ended before it took"
FAILURES = {
    "dies": (NEIGHBOUR, None),
    "raises": (NEIGHBOUR, "ValueError: this stage does not work"),
    "goes on": (NEIGHBOUR, "ValueError: this stage does not work"),
    "shapes": (NEIGHBOUR, r"stage 1 gives float32\[2, 8\] for microbatch 1, and not float32\[1, 8\], which it gave for the first one: all microbatches must be alike"),
}
RARER_FAILURES = {
    "dies in backward": (NEIGHBOUR, None),
    "raises in backward": (NEIGHBOUR, "ValueError: this stage does not work"),
    "another shape": (NEIGHBOUR, r"stage 1 gives float32\[1, 8\] for microbatch 0, and not float32\[2, 8\], which tensor_shape says"),
    "another dtype": (NEIGHBOUR, r"stage 1 gives float64\[2, 8\] for microbatch 0, and not float32\[2, 8\], which tensor_shape says"),
    "ends before": ("a rank has ended or cannot be reached, and this one waits for it to begin a batch", "SystemExit: 3"),
}
# What every rank says where rank 1 differs, or all are wrong.
DIFFERENCES = {
    "microbatches": "ValueError: castor: num_microbatches of rank 0 is 4, and of rank 1 2: all ranks of a pipeline must have the same",
    "schedules": "the schedule of rank 0 is PipelineSchedule, and of rank 1 InterleavedPipelineSchedule",
    "chunks": "num_model_chunks of rank 0 is 1, and of rank 1 2",
    "shape": "tensor_shape of rank 0 is float32[3, 8], and of rank 1 float32[3, 4]",
    "no shape": "tensor_shape of rank 0 is float32[3, 8], and of rank 1 not given",
    "dtype": "tensor_shape of rank 0 is float32[3, 8], and of rank 1 float64[3, 8]",
    "evaluation": "forward_only of rank 0 is False, and of rank 1 True",
    "samples": "the batch of rank 0 is 12 samples, and of rank 1 24 samples",
    "indivisible": "ValueError: castor: a batch of 7 samples does not divide into 4 microbatches",
    "indivisible on one": "a batch of 7 samples does not divide into 4 microbatches",
    "ended": "StopIteration: ",
    "ended on one": "the batch of rank 0 is 12 samples, and of rank 1 at the end of the data",
    "nothing to train": "has no parameters, so that it has nothing to train",
    "none": "num_microbatches is 0: expected 1 or more",
    "stages": "the number of pipeline stages of rank 0 is 4, and of rank 1 2: all ranks of a job must have the same",
    "no stages": "the number of pipeline stages of rank 0 is 4, and of rank 1 1",
    "tensor": "the number of tensor-parallel ranks of rank 0 is 1, and of rank 1 2",
    "odd": "3 pipeline stages x 1 tensor-parallel ranks do not divide the job's 4 ranks",
    "product": "4 pipeline stages x 2 tensor-parallel ranks do not divide the job's 4 ranks",
    "negative": "-1 pipeline stages x 1 tensor-parallel ranks do not divide the job's 4 ranks",
}
# (ranks, stages, tensor-parallel ranks)
SHAPES = ((2, 2, 1), (4, 4, 1), (4, 2, 1), (4, 2, 2)) if runner.LENGTH == "all" else ((4, 2, 2), (4, 4, 1), (4, 2, 1))
PLUGINS = ("ddp", "zero1", "gemini") if runner.LENGTH == "all" else ("zero1",)  # more of them, for one shape


class Pipelines(unittest.TestCase):
    def each(self):
        for how in jobs.WAYS:
            for shape in SHAPES:
                ranks, stages, tensor = shape
                for rank, found in enumerate(jobs.once("pipeline_rank.py", ranks, how, str(stages), str(tensor))):
                    yield shape, rank, found

    def test_stages_beside_the_whole_model(self):
        for shape, rank, found in self.each():
            self.assertEqual(found["wrong"], [], f"{shape}, rank {rank}")
            self.assertGreater(found["compared"], 100)

    def test_a_stage_is_kept_once(self):
        """For its data-parallel ranks, in the node's store."""
        for ranks, stages, tensor in SHAPES:
            every = jobs.once("pipeline_rank.py", ranks, jobs.GEMINI, str(stages), str(tensor))
            self.assertEqual({one for found in every for one in found["stored"]}, {ranks > stages * tensor})
        for plugin in PLUGINS:
            every = jobs.once("pipeline_rank.py", 4, plugin, "2", "1")
            self.assertEqual([found["wrong"] for found in every], [[]] * 4, plugin)
            self.assertEqual({one for found in every for one in found["stored"]}, {True}, plugin)

    def test_models_and_tensor_parallelism(self):
        for (_, stages, tensor), rank, found in self.each():
            if (stages, tensor) == (2, 2):
                wrong, compared = found["models"]
                self.assertEqual(wrong, [], f"rank {rank}")
                self.assertGreater(compared, 300)

    def test_backward_in_two_passes(self):
        for _, _, found in self.each():
            self.assertEqual(found["split"], [])

    def test_zero_bubble(self):
        hooks = ["gradient", "accumulated"] * 4
        for (_, stages, _), rank, found in self.each():
            stage = found["groups"][3]
            for name, (passes, calls, as_usual, alike, gradients) in found["zero bubble"].items():
                with self.subTest(name=name, rank=rank):
                    still = name == "frozen" and stage == 1
                    self.assertEqual(calls, [] if still else hooks)
                    self.assertTrue(as_usual and alike, "1F1B gives other gradients")
                    self.assertEqual(gradients, 0 if still else 5)
                    self.assertEqual([passes.count(kind) for kind in "FBW"], [4, 4, 4])
                    # Stage 0 has no gradient to give: its whole backward is the second pass. Others make both at once where they must.
                    at_once = stage > 0 and name.startswith("own")
                    self.assertEqual(passes.count("whole"), 4 if stage == 0 or at_once else 0)
                    first = {(2, 0): "FFBWFBWFBWBW", (2, 1): "FBFBWFBWFBWW"}.get((stages, stage))
                    if first:
                        self.assertEqual("".join(kind for kind in passes if kind != "whole"), first)

    def test_groups(self):
        for (ranks, stages, tensor), rank, found in self.each():
            stage = rank // tensor % stages
            first = rank - stage * tensor
            self.assertEqual(found["groups"], [ranks // stages // tensor, stages, tensor, stage, [first + tensor * s for s in range(stages)]])

    def test_what_is_returned(self):
        for _, _, found in self.each():
            for name in ("forward only", "no loss", "no outputs"):
                self.assertEqual(found[name], [True, True], name)
            self.assertEqual(found["made by initialize"], ["PipelineSchedule", 3])

    def test_bad_input(self):
        for _, _, found in self.each():
            parts = ("expected 1 or more", "does not divide into 5 microbatches", "partition() divides an nn.Sequential", "2 pipeline stages of a chain of 1 modules", "do not divide the job's", "expected '1d'")
            for text, part in zip(found["bad"], parts, strict=True):
                self.assertIn(part, text)

    def test_bad_chunks(self):
        for _, _, found in self.each():
            self.assertIn("cannot accumulate gradients over batches", found["accumulating"])
            self.assertIn("num_model_chunks is 0", found["bad chunks"][0])
            self.assertIn("an nn.ModuleList of 2", found["bad chunks"][1])

    def test_balance(self):
        for _, _, found in self.each():
            self.assertEqual(found["balanced"], [[1, 5], [3, 3]])  # 8 and 8 bytes of 4; 3 and 3 layers

    def test_ranks_that_differ(self):
        for (_, stages, tensor), rank, found in self.each():
            for name, text in DIFFERENCES.items() if stages * tensor == 4 else ():
                with self.subTest(name=name, rank=rank):
                    said, soon = found["differing"][name]
                    self.assertIn(text, said)
                    self.assertEqual(said.count("\n"), 0)
                    self.assertTrue(soon)

    def fails(self, failures):
        script = os.path.join(jobs.FOLDER, "pipeline_failing_rank.py")
        for how, (others, own) in failures.items():
            with self.subTest(how=how), tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
                done = jobs.start([*runner.ranks(3)[1:], script, how], jobs.GEMINI, EXPLICIT_TEST_FOUND=folder)
                self.assertNotEqual(done.returncode, 0)
                for rank, text in enumerate((others, own, others)):
                    if text is None:
                        continue
                    with open(os.path.join(folder, f"found-{rank}.json")) as file:
                        found = json.load(file)
                    self.assertRegex(found["error"], text, f"rank {rank}")
                    self.assertEqual(found["error"].count("\n"), 0, found["error"])
                    self.assertLess(found["seconds"], 5, f"rank {rank}")
                    if how == "goes on":
                        self.assertIn("castor: a batch of this pipeline has failed (", found["then"])

    def test_a_stage_that_fails(self):
        self.fails(FAILURES)

    @runner.long
    def test_a_stage_that_fails_otherwise(self):
        self.fails(RARER_FAILURES)


if __name__ == "__main__":
    unittest.main()
