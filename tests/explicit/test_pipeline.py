"""Pipelines: stages on ranks beside the whole model on the whole batch; the order of passes is tested in tests/unit/parallel."""
import os
import time
import unittest

import jobs
import runner

FAILURES = {
    "microbatches": ("rank 0 has 2 microbatches and stage 1 has 4: pass the same num_microbatches", "neighbour in the pipeline"),
    "dies": (r"rank 1, a neighbour in the pipeline, has ended or cannot be reached, and stage 0 waits for its gradient|a neighbour in the pipeline has ended",),
    "shapes": (r"stage 0 gives float32\[2, 8\] for microbatch 1, and not float32\[1, 8\], which it gave for the first one: all microbatches must be alike",),
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

    def test_a_pipeline_that_cannot_go_on(self):
        script = os.path.join(jobs.FOLDER, "pipeline_failing_rank.py")
        for how, parts in FAILURES.items():
            with self.subTest(how=how):
                began = time.monotonic()
                done = jobs.start([*runner.ranks(2)[1:], script, how], jobs.GEMINI)
                self.assertNotEqual(done.returncode, 0)
                for part in parts:
                    self.assertRegex(done.stderr, part)
                self.assertLess(time.monotonic() - began, 60)  # waits without an end would take minutes


if __name__ == "__main__":
    unittest.main()
