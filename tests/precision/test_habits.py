"""What scripts do between steps, and what cannot be done."""
import json
import os
import tempfile

import jobs
import runner
import torch
from beside import PrecisionTest
from models import batch
from reference import Reference, narrow_from


class HabitsTest(PrecisionTest):
    def plain(self, model, optimizer, steps, after=None, **options):
        torch.set_num_threads(1)
        plain = Reference(model, optimizer, torch.bfloat16, 2, **options)
        for step in range(steps):
            plain.step(step)
            if after:
                after(plain)
        return plain

    def same(self, job, plain):
        self.assertEqual(job.status, 0, job.said)
        for rank, told in enumerate(job.told):
            self.assertEqual(told["losses"], plain.losses[rank])
            self.same_state(told, plain, f"rank {rank}")

    @staticmethod
    def clamp(plain):
        narrow, wide = plain.narrow.head.weight.data, plain.wide.head.weight.data
        held = narrow.clamp(-0.1, 0.1)
        wide.copy_(torch.where(held != narrow, held.float(), wide))
        narrow.copy_(held)

    def test_edited_parameters(self):
        """A weight that is edited in 16 bits is the master's value; one that is not keeps the master's."""
        job = jobs.start("--model", "mlp", "--optimizer", "adamw", "--habit", "edit")
        self.same(job, self.plain("mlp", "adamw", 4, self.clamp))

    @runner.long
    def test_edited_in_another_layout(self):
        plain = self.plain("mlp", "adamw", 4)
        self.clamp(plain)
        self.same(jobs.start("--model", "mlp", "--optimizer", "adamw", "--habit", "layout"), plain)

    def test_loss_inside(self):
        """A model that makes the loss itself makes the same one."""
        job = jobs.start("--model", "gpt", "--optimizer", "adamw", "--habit", "loss inside")
        self.same(job, self.plain("gpt", "adamw", 4))

    @runner.long
    def test_dataclass(self):
        job = jobs.start("--model", "mlp", "--optimizer", "adamw", "--habit", "dataclass")
        self.same(job, self.plain("mlp", "adamw", 4))

    def test_swapped_parameters(self):
        """Masters survive weights that are put away and come back."""
        job = jobs.start("--model", "mlp", "--optimizer", "adamw", "--habit", "swap")
        self.same(job, self.plain("mlp", "adamw", 4))

    def test_written_through_state_dict(self):
        def halve(plain):
            plain.wide.head.weight.data.mul_(0.5)
            plain.wide.head.bias.data.mul_(0.5)
            narrow_from(plain.narrow, plain.wide)

        job = jobs.start("--model", "mlp", "--optimizer", "adamw", "--habit", "write through")
        self.same(job, self.plain("mlp", "adamw", 4, halve))

    @runner.long
    def test_written_through_state_dict_before_a_method(self):
        """Where the model itself is not called, but what is inside."""

        def halve(plain):
            plain.wide.head.weight.data.mul_(0.5)
            plain.wide.head.bias.data.mul_(0.5)
            narrow_from(plain.narrow, plain.wide)

        torch.set_num_threads(1)
        plain = Reference("mlp", "adamw", torch.bfloat16, 1)
        for step in range(4):
            plain.step(step)
            halve(plain)
        self.same(jobs.start("--model", "mlp", "--optimizer", "adamw", "--method", single=True, ranks=1), plain)

    def check_buffers(self, **options):
        """Numbers stay float; of others that the model writes a warning tells; of those that it does not the float values are kept."""
        job = jobs.start("--model", "counting", "--optimizer", "sgd", **options)
        self.assertEqual(job.status, 0, job.said)
        mean = torch.zeros(32)
        for step in range(4):
            x, _ = batch("counting", step, 0)
            mean = mean * 0.999 + x.mean(0) * 0.001
        for told in job.told:
            self.assertEqual(told["model"]["seen"], 304)
            self.assertTrue(torch.equal(told["model"]["constant"], torch.full((3,), 0.1)))
        for name in ("mean", "anew"):
            found = job.told[0]["model"][name]
            self.assertEqual(found.dtype, torch.float32)
            self.assertLess((found - mean).abs().max() / mean.abs().max(), 2**-6)
            self.assertIn(f"the model writes its buffer '{name}'", job.said)
        self.assertNotIn("'constant'", job.said)

    def test_split_at_the_boundary(self):
        """A script of one process on two ranks: the same as on one but for the rounding of parts, and no call is computed whole."""
        for precision in ("bf16", "fp16"):
            alone, split = (jobs.start("--model", "mlp", "--optimizer", "sgd", "--clip", "0.5", "--steps", "8", "--parts", "2", precision=precision, single=True, ranks=ranks,
                                       batch="model") for ranks in (1, 2))
            self.assertEqual((alone.status, split.status), (0, 0), alone.said + split.said)
            self.assertNotIn("computed whole", split.said)
            one, two = (job.told[0] for job in (alone, split))
            for a, b in ((torch.tensor(one[name]), torch.tensor(two[name])) for name in ("losses", "norms")):
                self.assertLess(((a - b).abs() / a.abs()).max(), 2**-7)
            for name, value in one["model"].items():
                self.assertLess((value.float() - two["model"][name].float()).abs().max(), 2**-6 * value.float().abs().max(), (precision, name))

    def test_written_buffers(self):
        self.check_buffers(single=True, ranks=1)

    @runner.long
    def test_written_buffers_of_ranks(self):
        self.check_buffers(ranks=2)

    def test_early_state_dict_is_refused(self):
        self.refused("castor: .*another tensor with the same memory", "--model", "mlp", "--optimizer", "sgd", "--habit", "early state_dict")

    def near(self, job, plain, precision):
        """Gradients are rounded once more: by 2^-9 of them under bf16, which a step multiplies by the learning rate, by 2^-24 under
        fp16, which may round a master to the next 16-bit number."""
        self.assertEqual(job.status, 0, job.said)
        for name, value in plain.wide.state_dict().items():
            bound = dict(rtol=1e-6, atol=1e-5) if precision == "fp16" else dict(rtol=2e-3, atol=1e-4)
            error = (job.told[1]["model"][name] - value).abs().max()
            self.assertTrue(torch.allclose(job.told[1]["model"][name], value, **bound), f"{name}: {error}")

    def check_clipped(self, precision, dtype):
        job = jobs.start("--model", "mlp", "--optimizer", "sgd", "--clip", 0.5, precision=precision)
        plain = Reference("mlp", "sgd", dtype, 2, clip=0.5)
        for step in range(4):
            plain.step(step)
        self.near(job, plain, precision)
        norms = torch.tensor(job.told[0]["norms"]), torch.tensor(plain.norms)
        self.assertTrue((norms[1] > 0.5).all())
        self.assertTrue(torch.allclose(*norms, rtol=1e-5 if precision == "fp16" else 1e-3), norms)

    def test_clipped(self):
        self.check_clipped("bf16", torch.bfloat16)

    @runner.long
    def test_clipped_float16(self):
        self.check_clipped("fp16", torch.float16)

    def check_accumulated(self, precision, dtype):
        job = jobs.start("--model", "mlp", "--optimizer", "sgd", "--steps", 6, precision=precision, settings=("CASTOR_ACCUMULATE=3",))
        plain = Reference("mlp", "sgd", dtype, 2)
        plain.step(0, 1, 2)
        plain.step(3, 4, 5)
        self.near(job, plain, precision)

    @runner.long
    def test_accumulated(self):
        self.check_accumulated("bf16", torch.bfloat16)

    @runner.long
    def test_accumulated_float16(self):
        self.check_accumulated("fp16", torch.float16)

    def test_resumed(self):
        """Two steps, a checkpoint, two steps: as four. The checkpoint is one of float tensors."""
        for optimizer in ("adamw", "sgd") if runner.LENGTH == "all" else ("adamw",):
            first = jobs.start("--model", "mlp", "--optimizer", optimizer, "--steps", 2)
            self.assertEqual(first.status, 0, first.said)
            self.assertEqual({str(t.dtype) for t in first.told[1]["model"].values()}, {"torch.float32"})
            with tempfile.TemporaryDirectory(prefix="castor-precision-") as folder:
                kept = os.path.join(folder, "kept")
                torch.save({"model": first.told[0]["model"], "optimizer": first.told[0]["optimizer"]}, kept)
                second = jobs.start("--model", "mlp", "--optimizer", optimizer, "--steps", 2, "--first", 2, "--load", kept)
            plain = self.plain("mlp", optimizer, 4)
            plain.losses = [losses[2:] for losses in plain.losses]
            self.same(second, plain)

    def refused(self, pattern, *arguments, ranks=1, **options):
        job = jobs.start(*arguments, ranks=ranks, **options)
        self.assertNotEqual(job.status, 0)
        self.assertRegex(job.said, pattern)

    def test_pretrained_models_are_trained_again(self):
        """The configuration that transformers writes names the type of the weights, and the next run builds the model so."""
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "model")
            for _ in range(2):
                job = jobs.start("--pretrained", saved, single=True, ranks=1)
                self.assertEqual(job.status, 0, job.said)
                self.assertEqual(job.told[0]["dtype"], "torch.bfloat16")
                with open(os.path.join(saved, "config.json"), encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["dtype"], "float32")

    def test_gradients_of_gradients_are_refused(self):
        """In one process too, in words of the precision and before anything was stepped."""
        job = jobs.start("--model", "mlp", "--optimizer", "sgd", "--create-graph", single=True, ranks=1)
        self.assertEqual(job.status, 1, job.said)
        said = [line for line in job.said.splitlines() if "create_graph" in line and line.startswith("castor: ")]
        self.assertEqual(len(said), 1, job.said)
        self.assertIn("CASTOR_PRECISION=bf16 cannot be applied: backward(create_graph=True)", said[0])
        self.assertNotIn("budget", job.said)

    @runner.long
    def test_float_parameters_are_refused(self):
        self.refused("castor: .*has made a parameter or buffer float32", "--model", "mlp", "--optimizer", "sgd", "--habit", "float")

    @runner.long
    def test_closure_is_refused(self):
        self.refused("castor: .*LBFGS", "--model", "mlp", "--optimizer", "lbfgs")

    def test_autocast_is_refused(self):
        self.refused("castor: .*autocast", "--model", "mlp", "--optimizer", "sgd", "--habit", "autocast")

    @runner.long
    def test_autocast_around_a_method_is_refused(self):
        self.refused("castor: .*autocast", "--model", "mlp", "--optimizer", "sgd", "--method", "--autocast", single=True, ranks=1)

    def test_16_bits_already_is_refused(self):
        self.refused("castor: .*bfloat16 already", "--model", "mlp", "--optimizer", "sgd", "--habit", "narrow")

    def test_no_wrapper_is_refused(self):
        self.refused("castor: .*DistributedDataParallel", "--model", "mlp", "--optimizer", "sgd", "--habit", "bare")

    @runner.long
    def test_none_says_so(self):
        job = jobs.start("--model", "mlp", "--optimizer", "sgd", plugin="none")
        self.assertEqual(job.status, 0, job.said)
        self.assertIn("CASTOR_PRECISION has no effect under the plugin none", job.said)
