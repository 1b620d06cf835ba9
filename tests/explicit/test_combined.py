"""Combinations of plugins, precisions and habits of scripts with a Booster, beside the same written out in plain PyTorch."""
import unittest

import jobs
import runner
from test_booster import Beside

# Words: combined_rank.py
FLOATS = ("sgd+micro", "adamw+micro+synced", "adamw+value", "sgd+norm", "adamw+middle+micro", "adamw+middle+alone", "sgd+alternate", "adamw+grows", "adamw+groups+clip", "sgd+later",
          "sgd+returns", "adamw+returns+micro", "sgd+by_grad", "sgd+pair", "adamw+pair", "adamw+lora+grows", "adamw+lazy+returns", "sgd+lora+middle+micro")
CLOSURES = ("sgd+closure", "adamw+closure")
CLIPS = ("sgd+maxnorm", "adamw+maxnorm+micro", "sgd+maxnorm+lora", "adamw+maxnorm+closure")  # by the plugin
FP16 = ("sgd+fp16+overflow", "adamw+fp16+overflow+clip", "sgd+fp16+value", "adamw+fp16+norm", "sgd+fp16+alternate", "adamw+fp16+grows", "adamw+fp16+groups",
        "sgd+fp16+returns", "adamw+fp16+middle+micro", "sgd+fp16+by_grad", "sgd+fp16+lora+overflow+micro", "adamw+fp16+lazy+overflow", "sgd+fp16+pair")
BF16 = ("adamw+bf16+value", "sgd+bf16+norm", "sgd+bf16+alternate", "adamw+bf16+grows", "adamw+bf16+groups", "adamw+bf16+returns", "adamw+bf16+middle+micro",
        "sgd+bf16+by_grad", "sgd+bf16+lora+micro", "adamw+bf16+lazy+groups", "sgd+bf16+pair")


class Combined(Beside):
    def plain(self, by, cases):
        return jobs.once("combined_rank.py", 2, jobs.ALONE, by, *cases)

    def same(self, plugin, cases):
        theirs, ours = self.plain("plain-autocast" if plugin == "ddp" else "plain", cases), jobs.job("combined_rank.py", 2, jobs.NONE, plugin, *cases)
        for rank in range(2):
            for case in theirs[rank]:
                self.assertEqual(ours[rank][case], theirs[rank][case], f"{plugin}, {case}, rank {rank}")

    def close(self, plugin, cases):
        theirs = self.plain("plain", cases)
        for rank, ours in enumerate(jobs.job("combined_rank.py", 2, jobs.NONE, plugin, *cases)):
            for case in theirs[rank]:
                self.near(ours[case], theirs[rank][case], case, f"{plugin}, {case}, rank {rank}")

    @runner.long
    def test_same_bits(self):
        self.same("ddp", FLOATS + CLOSURES)
        self.same("ddp", FP16 + BF16)
        self.same("fsdp", FLOATS + CLOSURES)
        for plugin in ("zero1", "zero2", "gemini"):
            self.same(plugin, FLOATS + CLOSURES + CLIPS)
            self.same(plugin, FP16 + BF16)

    @runner.long
    def test_close(self):
        self.close("hybrid-1", [case for case in FLOATS if "grows" not in case and "alone" not in case] + ["sgd+thaws", "adamw+maxnorm"])
        self.close("hybrid-1", ["adamw+fp16+thaws", "sgd+bf16+thaws", "adamw+fp16+overflow+clip", "sgd+fp16+micro", "adamw+bf16+returns"])

    @runner.long
    def test_replicas_of_hybrid(self):
        self.close("hybrid-replicas-1", ["adamw+middle+alone", "sgd+fp16+middle+alone", "sgd+bf16+micro+middle", "sgd+fp16+pair", "sgd+fp16+pair+overflow", "sgd+fp16+half", "sgd+fp16+batchnorm+norm"])

    @runner.long
    def test_unfrozen_after_it_was_boosted(self):
        for plugin, case in (("gemini", "sgd+thaws"), ("ddp", "adamw+thaws+fp16"), ("fsdp", "sgd+thaws")):
            with self.assertRaisesRegex(AssertionError, "frozen when the model was boosted, and whose gradients are not averaged over the ranks: boost the"):
                jobs.job("combined_rank.py", 2, jobs.NONE, plugin, case)


if __name__ == "__main__":
    unittest.main()
