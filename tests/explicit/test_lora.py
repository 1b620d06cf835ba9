"""LoRA modules by peft, and weights that bitsandbytes has quantized, under a plugin object."""
import tempfile
import unittest

import jobs


class Lora(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            cls.ranks = jobs.job("lora_rank.py", 2, jobs.NONE, folder)

    def test_adapters_alone_are_trained_and_saved(self):
        for found in self.ranks:
            for precision in ("fp32", "bf16"):
                for name, value in {"only adapters are trained": True, "the rest is as it was": True, "states": 4, "saved": [["torch.float32"], 4],
                                    "peft reads it": True, "and so does the Booster": [True, 4]}.items():
                    self.assertEqual(found[f"{precision}: {name}"], value, name)
        for precision in ("fp32", "bf16"):
            self.assertTrue(self.ranks[0][f"{precision}: .bin"])

    def test_quantized_weights(self):
        for found in self.ranks:
            self.assertIn("set either load_in_8bit or load_in_4bit", found["bad"][0])
            self.assertIn("expected 'fp4' or 'nf4'", found["bad"][1])
            if "without bitsandbytes" in found:
                self.assertIn("castor: quantization needs the library bitsandbytes, which is not installed: pip install bitsandbytes",
                              found["without bitsandbytes"])
                continue
            for bits, kinds in {"4": 2, "8": 1}.items():
                close, modules, beside, states = found[f"{bits} bits"]
                self.assertLess(close, 0.2)
                self.assertGreater(close, 1e-6, "nothing was rounded")
                self.assertEqual((len(modules), states), (kinds, 4), modules)
                self.assertLess(beside, 1e-4, "the adapters are not those of one process with the whole batch")


if __name__ == "__main__":
    unittest.main()
