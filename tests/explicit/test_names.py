"""Names of Colossal-AI's scripts that lead to Castor's own division and lazy initialization, beside whole models in plain PyTorch."""
import unittest

import jobs


class Names(unittest.TestCase):
    def setUp(self):
        self.ranks = jobs.once("names_rank.py", 2, jobs.NONE, CASTOR_COMPAT="1")

    def check(self, name, *values):
        for found, value in zip(self.ranks, values * 2 if len(values) == 1 else values):
            self.assertEqual(found[name], value, name)

    def says(self, name, *parts):
        for found in self.ranks:
            for text, part in zip(found[name], parts, strict=True):
                self.assertIn(part, text)

    def test_shard_former_and_policies(self):
        for optimizer in ("SGD", "Adam"):
            for policy in ("found", "llama", "auto", "own"):
                self.check(f"{optimizer} {policy}", [True, True, 8, [12, 8]])
            for policy in ("auto", "own"):
                self.check(f"plugin {optimizer} {policy}", [True, 8, False, 2])
        self.check("own policy", [["postprocess"], "object", False, 2])
        self.check("without", "Parameter")
        self.says("refused policies", "HybridParallelPlugin(pp_size=...)")

    def test_checkpointed_layers(self):
        # Runs of each of six layers: two of a checkpointed one, none of another stage's.
        first = [[2, 2, 2], [2, 2, 1], [2, 1, 1], [2, 2, 2], [1, 1, 1]]
        last = [[2, 2, 2], [1, 1, 1], [2, 1, 1], [2, 2, 2], [1, 1, 1]]
        self.check("stages", [[*one, 0, 0, 0] for one in first], [[0, 0, 0, *one] for one in last])
        for found in self.ranks:
            self.assertEqual(found["checkpointed"][:3], [3, 2, 2])
            for text, part in zip(found["checkpointed"][3:], ("expected one for each of 2 stages x 1", "part 0 of the pipeline has 3 layers", "from 0 to 1"), strict=True):
                self.assertIn(part, text)

    def test_log_probabilities(self):
        for kind in ("parts", "no size", "uneven", "whole"):
            self.check(f"log prob {kind}", [True, True, True])
        self.check("log prob not divided", True)
        self.check("log prob bf16", ["torch.float32", True])
        for mode in ("mean", "sum"):
            self.check(f"cross entropy {mode}", [True, True])
        self.check("dist_cross_entropy", True)
        self.says("refused losses", "expected parts that add up to it", "give vocab_size", "labels of shape (3, 4)", "expected 'mean' or 'sum'")

    def test_layers(self):
        self.check("linear column", [True, True, "Parameter", [8, 8], True, True])
        self.check("linear row", [True, True, "Parameter", [16, 4], True, True])
        self.check("column, row", [4, 8])
        self.check("embedding features", [True, True, [12, 4]])
        self.check("embedding entries", [True, True, [6, 8]])
        self.check("made anew", [[8, 8], True])
        self.says("refused layers", "each rank has whole sequences", "expected an nn.Linear", "does not divide by 2 ranks", "no parameter 'gather'", "expected True")

    def test_contexts(self):
        self.check("ColoInitContext", [True, "torch.float16", True])
        self.check("ZeroInitContext", [True, True, True])


if __name__ == "__main__":
    unittest.main()
