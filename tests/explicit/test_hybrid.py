"""HybridParallelPlugin beside plain PyTorch: losses, gradients, norms and parameters of steps, and what goes on from checkpoints.

Models are in double precision, so that what is compared is what was computed and not how it was rounded (near 1e-9); where transformers computes
parts in float, near 1e-6; cases in float, near 1e-5 (hybrid_rank.py says why). 16 bits are beside float: a step is compared to a tenth."""
import json
import unittest

import jobs
import runner

ZERO1, ZERO2 = {"zero_stage": 1}, {"zero_stage": 2}
TENSOR, STAGES = {"tp": 2}, {"pp": 2}
INTERLEAVED = {"pp": 2, "pp_style": "interleaved", "num_model_chunks": 2, "num_microbatches": 4}
FLOAT = {"dtype": "float32"}

SHORT = {
    "sequential, sgd, tp": TENSOR, "awkward, sgd, tp": TENSOR, "perceptron, adamw, tp": {**TENSOR, "clip": 0.1, "layouts": [STAGES, ZERO1]},
    "perceptron, sgd, pp": {**STAGES, "accumulate": 2, "clip": 0.1, "layouts": [TENSOR], "shard": True},
    "perceptron, adamw, interleaved": INTERLEAVED, "perceptron, adamw, dp": {**ZERO2, "accumulate": 3, "clip": 0.1},
    "perceptron, sgd, fp16": {**FLOAT, **STAGES, "precision": "fp16", "initial_scale": 1024},
    "perceptron, sgd, bf16": {**FLOAT, **TENSOR, "precision": "bf16"},
}
TWO = {
    "tensor": {
        "llama, adamw": {"clip": 0.1}, "llama, sgd, checkpoints": {"checkpointing": True}, "gpt2, adamw": {"accumulate": 2}, "gpt2 of odd sizes, sgd": {}, "llama of one head, sgd": {}, "qwen3, sgd": {},
        "bert, adamw": {}, "bert masked, sgd": {}, "vit, sgd": {}, "t5, sgd": {}, "encoder, sgd": {}, "llama, sgd, float": FLOAT, "gpt2, sgd, lora": {"lora": True},
        "perceptron, hybridadam": FLOAT, "perceptron, lamb": FLOAT, "perceptron, lars": FLOAT,
        "llama, sgd, fp16": {**FLOAT, "precision": "fp16", "initial_scale": 1024, "layouts": [STAGES]},
    },
    "stages": {
        "sequential, sgd": {}, "llama, adamw": {"clip": 0.1}, "gpt2, adamw": {"accumulate": 2}, "qwen3, sgd": {"microbatch_size": 4, "num_microbatches": None},
        "bert, adamw, zbv": {"pp_style": "zbv"}, "bert masked, sgd": {}, "vit, sgd": {"num_layers_per_stage": [1, 1]}, "t5, sgd": {}, "encoder, sgd": {},
        "llama, sgd, float": FLOAT, "gpt2, adamw, lora": {"lora": True}, "bert, sgd, fp16": {**FLOAT, "precision": "fp16", "initial_scale": 1024, "pp_style": "zbv"},
    },
    "replicas": {
        "perceptron, adamw": {**ZERO1, "clip": 0.1}, "gpt2, sgd": {"accumulate": 3}, "bert, sgd": {**ZERO2, "clip": 0.1, "accumulate": 2},
        "llama, sgd, float": {**FLOAT, **ZERO1}, "bert, sgd, fp16": {**FLOAT, **ZERO1, "precision": "fp16", "initial_scale": 1024, "clip": 0.5},
        "perceptron, sgd, bf16": {**FLOAT, **ZERO1, "precision": "bf16", "layouts": [{**ZERO2, "precision": "fp16", "initial_scale": 1024}]},
    },
    "checkpoints": {
        "perceptron, adamw, tp": {**TENSOR, "layouts": [STAGES, TENSOR, ZERO1]}, "gpt2, sgd, tp": {**TENSOR, "layouts": [STAGES], "shard": True},
        "bert masked, adamw, tp parts": {**TENSOR, "layouts": [TENSOR], "parts": True}, "perceptron, adamw, pp": {**STAGES, "layouts": [STAGES, TENSOR, INTERLEAVED]},
        "gpt2, sgd, pp": {**STAGES, "layouts": [ZERO2], "shard": True}, "bert masked, adamw, pp parts": {**STAGES, "layouts": [STAGES], "parts": True},
    },
}
FOUR = {
    "tensor and stages": {
        "perceptron, adamw": {"tp": 2, "pp": 2, "clip": 0.1, "layouts": [{"tp": 4}, {"tp": 2}, {"pp": 2, "zero_stage": 1}]},
        "llama, sgd": {"tp": 2, "pp": 2, "clip": 0.1}, "gpt2, adamw": {"tp": 2, "pp": 2, "accumulate": 2}, "bert, adamw": {"tp": 2, "pp": 2, "pp_style": "zbv"},
        "perceptron, sgd, interleaved": {**INTERLEAVED, "tp": 2, "clip": 0.1}, "llama, sgd, float": {**FLOAT, "tp": 2, "pp": 2, "dp_outside": False},
    },
    "tensor and replicas": {
        "perceptron, adamw": {"tp": 2, **ZERO1, "clip": 0.1, "layouts": [{"tp": 2, "pp": 2}]}, "llama, sgd": {"tp": 2, **ZERO2, "clip": 0.1},
        "gpt2, adamw": {"tp": 2, "accumulate": 2}, "llama, sgd, float": {**FLOAT, "tp": 2, "dp_outside": False},
        "bert, sgd, bf16": {**FLOAT, "tp": 2, **ZERO1, "precision": "bf16"},
    },
    "stages and replicas": {
        "perceptron, adamw": {"pp": 2, **ZERO1, "clip": 0.1, "layouts": [{"tp": 2, "zero_stage": 2}]}, "llama, sgd": {"pp": 2, **ZERO2, "clip": 0.1},
        "gpt2, adamw": {"pp": 2, "accumulate": 2}, "llama, sgd, float": {**FLOAT, "pp": 2, "dp_outside": False},
        "bert, sgd, fp16": {**FLOAT, "pp": 2, **ZERO1, "precision": "fp16", "initial_scale": 1024},
    },
    "stages": {"perceptron, adamw": {"pp": 4, "clip": 0.1, "num_microbatches": 8}, "perceptron, sgd, zbv": {"pp": 4, "pp_style": "zbv", "num_microbatches": 4}},
}


class BesidePlain(unittest.TestCase):
    def equal(self, ranks, cases, environment=None, **added):
        cases = {name: {**added, **case} for name, case in cases.items()}
        for found in jobs.job("hybrid_rank.py", ranks, jobs.NONE, json.dumps(cases), **(environment or {})):
            self.assertEqual(found["wrong"], [])
            self.assertGreater(found["compared"], 20 * len(cases))

    def test_two_ranks(self):
        self.equal(2, SHORT)

    @runner.long
    def test_on_devices(self):
        """Over NCCL's functions; schedules with tags are gloo's."""
        jobs.simulated.need(whole=True)
        cases = {name: case for name, case in SHORT.items() if case is not INTERLEAVED and "precision" not in case}
        self.equal(2, cases, jobs.devices(2))

    @runner.long
    def test_tensor_parallel(self):
        self.equal(2, TWO["tensor"], **TENSOR)

    @runner.long
    def test_stages(self):
        self.equal(2, TWO["stages"], **STAGES)

    @runner.long
    def test_replicas(self):
        self.equal(2, TWO["replicas"])

    @runner.long
    def test_checkpoints(self):
        self.equal(2, TWO["checkpoints"])

    @runner.long
    def test_four_ranks(self):
        for name, cases in FOUR.items():
            with self.subTest(name=name):
                self.equal(4, cases)


class Use(unittest.TestCase):
    """What scripts see, and what is refused: on both ranks, in one line."""

    def found(self):
        return jobs.once("hybrid_use_rank.py", 2, jobs.NONE, "layouts", "refusals", "overflows", "policy", "kept")

    def test_layouts(self):
        for rank, found in enumerate(self.found()):
            self.assertEqual(found["tensor"], [rank, 2, 1, 1, True, True, False, [1, 1, 2]])
            self.assertEqual(found["stages"], [rank, 2, rank == 0, rank == 1, [1, 2, 1]])
            self.assertEqual(found["samples"], [[0, 1, 2, 3], [4, 5, 6, 7]])
            self.assertEqual(found["samples of replicas"], [[rank, rank + 2, rank + 4, rank + 6]])

    def test_a_rank_that_saves_alone(self):
        for rank, found in enumerate(jobs.once("hybrid_use_rank.py", 2, jobs.NONE, "saved_alone")):
            for name in ("tensor", "stages"):
                said, seconds = found[name]
                self.assertEqual(len(said), 2 * (rank == 0))
                for text, what in zip(said, ("save_model()", "save_optimizer()")):
                    self.assertIn(f"castor: {what} gathers distributed tensors, so that all ranks must call it, and rank 1 went on without it: call it", text)
                self.assertLess(seconds, 5)

    def test_what_is_refused(self):
        expected = {
            "called": "call booster.execute_pipeline(", "called inside": "call booster.execute_pipeline(", "copied": "copy it before boost()",
            "boosted twice": "boosted already", "not this plugin's": "give it what booster.boost() returned", "no data": "no data to load",
            "indivisible": "3 samples does not divide", "closure": "takes no closure", "too many parts": "8 parts of a pipeline", "no chain": "use pp_size=1",
            "layers": "2 numbers above 0 that add up to the chain's 4 layers", "foreign parameters": "not the model's", "different models": "the model of rank 0",
            "no pipeline": "pp_size=1", "different inputs": "the inputs of a tensor-parallel group's ranks differ", "different seeds": "random generator",
            "a weight used directly": "custom_policy={that layer's name: None", "hidden states": "output_hidden_states=True", "attentions": "output_attentions=True",
        }
        arguments = ("unexpected keyword argument 'tensor_size'", "missing 1 required", "does not divide the job's 2 ranks", "needs num_microbatches",
                     "precision='fp8'", "zero_stage=3", "sp_size=2", "pp_style='gpipe'", "max_norm of rank 0 is 0.0, and of rank 1 1.0")
        policies = ("expected a dict", "'diagonal' for layers.0", "divides layers, a ModuleList")
        for found in self.found():
            for name, text in expected.items():
                self.assertIn(text, found[name], name)
                self.assertNotIn("\n", found[name])
            for texts, given in ((arguments, found["arguments"]), (policies, found["policies"])):
                for text, said in zip(texts, given, strict=True):
                    self.assertIn(text, said)

    def test_a_policy(self):
        for found in self.found():
            self.assertEqual(found["divided"], [f"blocks.{i}.{name}" for i in range(4) for name in ("1.weight", "1.bias", "3.weight")])
            self.assertTrue(found["equal"])

    def test_what_is_not_trained_is_saved_as_it_was(self):
        for found in self.found():
            for name in ("tensor", "stages"):
                self.assertEqual(found[f"{name}, trains"], [[], [], 6, [], 0.5, True])
                self.assertEqual(found[f"{name}, evaluates"], [[], [], 0, [], 0.5, True])

    def test_the_loss_scale(self):
        one, other = self.found()
        self.assertEqual(one["scales"], other["scales"])
        for found in (one, other):
            steps = found["moved"].index(True)
            self.assertGreater(steps, 4)
            self.assertEqual(found["scales"][:steps], [2.0 ** (29 - i) for i in range(steps)])
            self.assertTrue(all(found["moved"][steps:]))
        self.assertIsNone(one["loss"])
        self.assertLess(other["loss"], 4)

    @runner.long
    def test_what_is_returned(self):
        one, other = jobs.job("hybrid_use_rank.py", 2, jobs.NONE, "returned")
        for name, loss, outputs in (("both", True, True), ("loss", True, False), ("outputs", False, True), ("neither", False, False)):
            self.assertEqual(one[f"{name}: kinds"], [["loss", "outputs"], None, None])
            self.assertEqual(other[f"{name}: kinds"], [["loss", "outputs"], [] if loss else None, "SequenceClassifierOutput" if outputs else None])
        self.assertEqual({name: value for name, value in other.items() if "equal" in name or "in outputs" in name},
                         dict.fromkeys(("both: loss is equal", "both: logits are equal", "both: loss in outputs", "loss: loss is equal",
                                        "outputs: logits are equal", "outputs: loss in outputs"), True))
        self.assertEqual([one["gradients"], other["gradients"]], [0, 0])

    def test_models_that_do_not_divide(self):
        kinds = [("skipping", "computes (add) with the output of a layer of an earlier pipeline stage"), ("twice", "calls layer 0 of its chain")]
        for kind, text in kinds if runner.LENGTH == "all" else kinds[:1]:
            with self.subTest(kind=kind), self.assertRaises(AssertionError) as raised:
                jobs.job("hybrid_use_rank.py", 2, jobs.NONE, kind)
            self.assertIn(text, str(raised.exception))
            self.assertEqual(str(raised.exception).count("HybridParallelPlugin(cpu_offload=True) has no meaning here: states stay"), 1)


if __name__ == "__main__":
    unittest.main()
