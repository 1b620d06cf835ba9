"""castor.nn, castor.utils and castor.logging: figures worked out by hand, and training beside plain PyTorch, to the bit."""
import unittest

import jobs
import runner

ROOT_HALF = 0.5**0.5
NAMES = ("HybridAdam", "HybridAdam, L2", "HybridAdam, uncorrected", "CPUAdam", "FusedAdam", "FusedSGD", "FusedSGD, decay last", "Lamb", "FusedLAMB", "Lars",
         "CAME", "Adafactor")


class Nn(unittest.TestCase):
    def setUp(self):
        self.found = jobs.once("nn_rank.py", 1, jobs.ALONE)[0]

    def check(self, name, expected, places=9):
        found = self.found[name]
        self.assertEqual(len(found), len(expected), name)
        for one, value in zip(found, expected):
            if isinstance(value, (list, tuple)):
                self.assertEqual(len(one), len(value), name)
                for number, wanted in zip(one, value):
                    self.assertAlmostEqual(number, wanted, places, f"{name}: {found}")
            else:
                self.assertAlmostEqual(one, value, places, f"{name}: {found}")

    def test_linear_rates(self):
        self.check("linear 5, 2", [1 / 3, 2 / 3, 1, 2 / 3, 1 / 3, 0, 0, 0])
        self.check("linear 4", [1, 0.75, 0.5, 0.25, 0, 0, 0, 0])
        self.check("linear 3, 3", [0.25, 0.5, 0.75, 0, 0, 0, 0, 0])

    def test_cosine_rates(self):
        quarter = (1 + ROOT_HALF) / 2  # (1 + cos(pi / 4)) / 2
        self.check("cosine 4", [1, quarter, 0.5, 1 - quarter, 0, 1 - quarter, 0.5, quarter])
        self.check("cosine 6, 2", [0.5, 1, 1, (1 + quarter) / 2, 0.75, 1 - quarter / 2, 0.5, 1 - quarter / 2])
        self.check("cosine 2, 0", [1, 0.5, 0, 0.5, 1, 0.5, 0, 0.5])
        self.check("cosine 2, 2", [0.5, 1, 1, 0, 1, 0, 1, 0])
        self.check("flat 8", [1, 1, 1, 1, 1, quarter, 0.5, 1 - quarter])
        self.check("flat 10, 2", [0.5, 1, 1, 1, 1, 1, 1, quarter])
        self.check("wrapped", [1, 1, (1 + quarter) / 2, 0.75, 1 - quarter / 2, 0.5])
        rates, same_tensor = self.found["rates in tensors"]
        self.assertTrue(same_tensor)
        for rate, value in zip(rates, self.found["wrapped"]):
            self.assertAlmostEqual(rate, value, 6)

    def test_polynomial_rates(self):
        self.check("polynomial 4", [1, 0.65, 0.4, 0.25, 0.2, 0.2, 0.2, 0.2])  # 0.8 * (1 - t / 4)^2 + 0.2
        self.check("polynomial 6, 2", [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0])
        self.check("polynomial 2, 2", [0.5, 1, 1, 0, 0, 0, 0, 0])
        self.check("jumps", [[1, 1], [0.5, 4], [0.75, 3]])

    def test_rates_with_milestones(self):
        self.check("milestones", [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25])
        self.check("milestones, 2", [0.5, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25])
        self.check("milestones, at 2", [0.5, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25])
        self.check("milestones, 0", [0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25])

    def test_rates_of_torchs_schedulers(self):
        self.check("steps", [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125])
        self.check("exponential", [0.5**t for t in range(8)])
        self.check("multiplied", [0.5**t for t in range(8)])
        self.check("lambda", [1 / (t + 1) for t in range(8)])
        self.check("one cycle", [0.25, 1, 1 - 0.95 / 3, 1 - 1.9 / 3, 0.05])  # from a 4th; from step 1 to 4 down to a 5th of that

    def test_any_scheduler_after_a_warm_up(self):
        falls = [1 / (t + 2) for t in range(8)]
        self.check("warm-up, then lambda", [0.5, 1, *falls[:6]])
        self.check("flat, then lambda", [1, 1, *falls[:6]])
        self.check("warm-up, flat, then lambda", [0.5, 1, 1, *falls[:5]])

    def test_schedulers_resume(self):
        self.assertEqual(self.found["resumed otherwise"], [])

    def test_schedulers_refuse(self):
        texts = iter(self.found["scheduler errors"])
        for part in ("total_steps is 0", "warmup_steps is 4: expected a number from 0 to total_steps, 3", "warmup_steps is -1", "pct_start is 1.5", "end_lr is -0.1",
                     "milestones are missing", "a ReduceLROnPlateau", "delay_epochs is -1", "this one has none", "goes on with PolynomialLR"):
            self.assertIn(part, next(texts))

    def test_adam(self):
        # Without correction: 3 * 0.99 - 0.1 and 4 * 0.99 - 0.1; then m = 1.9 * 0.1 g, root v = root(1.99 * 0.01) g. Last: L2, betas of 0.
        second = 0.1 * 0.19 / (1.99 * 0.01) ** 0.5
        self.check("HybridAdam", [[2.87, 3.86], [2.87 * 0.99 - second, 3.86 * 0.99 - second], [2.9, 3.9]])

    def test_sgd(self):
        # g = 0.6 + 0.3, 0.6 + 0.291 with the halved momentum 0.45; decay last: 2.97 - 0.06, 2.91 * 0.99 - 0.09
        self.check("FusedSGD", [[2.7759, 3.7012], [2.7909, 3.7212]])

    def test_lamb(self):
        # Adam's update is (1, 1); with half of p (2.5, 3). The root of their squares against 5.
        both, decayed = 0.1 * 5 / 2**0.5, 0.1 * 5 / 15.25**0.5
        self.check("Lamb", [[3 - both, 4 - both], [3 - 2.5 * decayed, 4 - 3 * decayed], [2.9, 3.9], [2.9, 3.9]])
        # (1, 1) alike; not averaged twice that; with decay (4, 5), or (1, 1) of the changed gradient
        decayed = 0.1 * 5 / 41**0.5
        self.check("FusedLAMB", [[2.9, 3.9], [3 - both, 4 - both], [2.8, 3.8], [3 - 4 * decayed, 4 - 5 * decayed], [3 - both, 4 - both]])

    def test_lars(self):
        # 0.1 * 5 / (1 + 0.2 * 5) = 0.25 of (1.2, 1.6); then 0.45 / 1.9 of (0.6 + 1.14, 0.8 + 1.52)
        second = 0.45 / 1.9
        self.check("Lars", [[2.7, 3.6], [2.7 - second * 1.74, 3.6 - second * 2.32], [2.4, 3.2], [-0.6, -0.8], [-5, 5]])

    def test_adafactor(self):
        # The update is (1, 1), at 0.01 of root(12.5); at 1e-6; at 0.1 with half of it in the mean and p * 0.99
        scaled = 0.01 * 12.5**0.5
        self.check("Adafactor", [[3 - scaled, 4 - scaled], [3 - 1e-6, 4 - 1e-6], [2.92, 3.91]])
        # Squares 1, 4; 9, 16: rows (2.5, 12.5), of mean 7.5, columns (5, 10). The update's squares are g^2 * 7.5 / (row * column).
        self.check("Adafactor, factored", [[-0.01 * 0.6**0.5, -0.01 * 1.2**0.5], [-0.01 * 1.08**0.5, -0.01 * 0.96**0.5]])
        for difference, most in zip(self.found["Adafactor beside transformers'"], (0, 0, 1e-6, 0)):  # decays are a product here, a sum there
            self.assertLessEqual(difference, most)

    def test_came(self):
        self.check("CAME", [[3 * 0.99 - 0.01, 4 * 0.99 - 0.01], [2.995, 3.995]])
        self.check("CAME, factored", [[2.9, 4.1]])  # half of (1, -1), by the root of their squared deviations, 0.25

    def test_optimizers_keep_their_states(self):
        for name, (equal, _, loss) in self.found["kept"].items():
            self.assertEqual((name, equal, loss), (name, True, 5.0))
        adam = ["exp_avg", "exp_avg_sq", "step"]
        self.assertEqual([self.found["kept"][name][1] for name in ("HybridAdam", "Lamb", "CAME", "Adafactor")], [adam, adam, adam, adam[1:]])
        self.assertEqual(self.found["modes"], [True, False, False, True, True])
        self.assertEqual(self.found["zeroed"], [None, None, [0.0] * 3, [0.0] * 3, None, [0.0] * 3])

    def test_states_of_other_optimizers(self):
        # 1 * 0.95 - 0.1 * 1; 1 - 0.1 * (1 + 0.5)
        for name in ("HybridAdam", "Lamb"):
            self.check_loaded(name, 0.85)
        self.assertEqual(self.found["the object's mode stays"], [True, True])

    def check_loaded(self, name, expected):
        value, count = self.found["loaded"][name]
        self.assertAlmostEqual(value, expected, 6)
        self.assertEqual(count, 5)

    def test_optimizers_refuse(self):
        of_adam, *texts = self.found["optimizer errors"]
        for text, part in zip(of_adam, ("lr is -1.0", "lr is nan", "betas is (0.9, 1.0)", "betas is (0.9,)", "betas is 0.9", "eps is -1e-08", "weight_decay is -0.1",
                                        "nvme_offload_fraction is 1.5")):
            self.assertIn(f"castor: HybridAdam: {part}: expected ", text)
        for text, part in zip(texts, ("takes the model's parameters, once", "takes the model's parameters, once", "Lamb: betas is (0.9, 2.0)", "CAME: lr is None", "CAME: eps is",
                                      "exclude each other", "needs an lr", "eeta is 0.0", "no AMSGrad", "sparse gradients", "nvalid momentum")):
            self.assertIn(part, text)
        said, file = self.found["offload"]
        self.assertIn("start it with CASTOR_OFFLOAD_OPTIM_FRAC=0.5 CASTOR_OFFLOAD_DIR=/disk", said)
        self.assertEqual(file, "nn_numbers.py")

    def test_the_loss(self):
        both, one, same, text = self.found["GPTLMLoss"]
        self.assertAlmostEqual(one, 0.2876821, 6)  # ln(4 / 3)
        self.assertAlmostEqual(both, (0.2876821 + 0.1335314) / 2, 6)  # and ln(8 / 7)
        self.assertTrue(same)
        self.assertIn("need labels of shape (1, 3)", text)

    def test_utils(self):
        self.assertEqual(self.found["seeded"], [True, "cpu"])
        self.assertEqual(self.found["once"], [2, None])
        self.assertEqual(self.found["modules"], [["1.left", "own"], ["m.1.left", "m.own"], False, True])
        self.assertEqual(self.found["freed"][:2], [0, [8]])
        self.assertIn("of a part of a tensor", self.found["freed"][2])
        self.assertEqual((self.found["folder"], self.found["conditional"]), (True, [True, False]))
        norm, clipped, largest, text = self.found["clipped"]
        self.assertEqual((norm, largest), (5.0, clipped[1]))
        for value, wanted in zip(clipped, (1.5, 2.0, 0.0)):
            self.assertAlmostEqual(value, wanted, 5)
        self.assertIn("of a gradient of torch.bfloat16", text)
        self.assertEqual((self.found["timer"][:3], self.found["timers off"][:3]), ([True] * 3, [None, False, False]))

    def test_logging(self):
        said, same, twice, level = self.found["logged"]
        self.assertRegex(said, r"^colossalai - INFO - nn_numbers.py:\d+: 50% done\ncolossalai - ERROR - nn_numbers.py:\d+: said\n$")
        self.assertTrue(same)
        self.assertIn("get_dist_logger('colossalai')", twice)
        self.assertIn("'LOUD' is no level", level)
        self.assertEqual(self.found["silenced"], [10, 30, 20])

    # ---- optimizers under a plugin, and in one plain process that averages the gradients of all ranks

    def compare(self, ranks, plain):
        for found in ranks:
            self.compare_alone(found, plain)
            self.assertEqual({mode for _, mode in found["modes"]}, {"owner"})

    def compare_alone(self, found, plain):
        for name in (f"trained {name}" for name in NAMES):
            self.assertEqual(found[name], plain[name], name)
            stock = f"{name}, of torch"
            self.assertEqual(found[name], found.get(stock, found[name]), stock)
        self.assertEqual(found["there and back"], found["stayed"])
        self.assertEqual(found["there and back"], plain["there and back"])

    def test_two_ranks(self):
        ranks, plain = jobs.once("nn_rank.py", 2, jobs.GEMINI), jobs.once("nn_rank.py", 1, jobs.ALONE)[0]
        self.compare(ranks, plain)
        for found in ranks:
            self.assertEqual(found["by kernels"], [name for name in NAMES if "Adam" in name])
            self.assertEqual({name for name, _ in found["modes"]}, {name.partition(",")[0] for name in NAMES} | {"Adam", "AdamW", "SGD"})

    def job(self, ranks, how, *words, **settings):
        return jobs.job("nn_rank.py", ranks, how, *words, **settings)

    @runner.long
    def test_a_budget_of_memory(self):
        self.compare(self.job(2, jobs.GEMINI, "large", CASTOR_MEMORY_BUDGET=str(5 << 20), CASTOR_CHUNK_SIZE="64K"), self.job(1, jobs.ALONE, "large")[0])

    @runner.long
    def test_four_ranks_and_every_plugin(self):
        plain = self.job(1, jobs.ALONE, "alike")[0]
        for plugin, ranks in ((jobs.GEMINI, 4), ("zero1", 2), ("zero2", 2), ("ddp", 2)):
            with self.subTest(plugin=plugin):
                self.compare(self.job(ranks, plugin, "alike"), plain)

    def test_a_plugin_object_takes_up_classes_that_have_stepped(self):
        plain = jobs.once("nn_rank.py", 1, jobs.ALONE)[0]
        for found in self.job(2, jobs.NONE, "boosted", "few"):
            self.assertEqual([found[f"trained {name}"] for name in ("HybridAdam", "Lamb")], [plain[f"trained {name}"] for name in ("HybridAdam", "Lamb")])
            self.assertEqual(found["modes"], [["AdamW", "owner"], ["HybridAdam", "owner"], ["Lamb", "owner"]])
            self.assertEqual(found["by kernels"], ["HybridAdam"])

    @runner.long
    def test_two_backwards_for_a_step(self):
        self.compare(self.job(2, jobs.GEMINI, "twice"), self.job(2, jobs.NONE, "twice")[0])

    @runner.long
    def test_bfloat16_as_written_out(self):
        plain = self.job(1, jobs.ALONE, "alike", "masters")[0]
        self.compare(self.job(2, jobs.GEMINI, "alike", CASTOR_PRECISION="bf16"), plain)
        self.compare_alone(self.job(1, jobs.GEMINI, "alike", CASTOR_PRECISION="bf16")[0], plain)

    @runner.long
    def test_float16_alone_and_on_two_ranks(self):
        alone = self.job(1, jobs.GEMINI, "alike", "scaled", CASTOR_PRECISION="fp16")[0]
        self.compare(self.job(2, jobs.GEMINI, "alike", "scaled", CASTOR_PRECISION="fp16"), alone)

    def test_blocks_and_stages_have_one_norm(self):
        # 3, 4; twice 6, 8: the root of 225, halved. 3, 4, 12: of 169, halved.
        for rank, found in enumerate(jobs.once("nn_rank.py", 2, jobs.GEMINI)):
            half = [[0.0, 3.0], [4.0, 0.0]][rank]
            self.assertEqual(found["blocks"], [15.0, [[1.5, 2.0], half, half], 4.0])
            self.assertEqual(found["stages"], [13.0, 6.0, [[1.5, 2.0], [2.0, 6.0]][rank]])

    def test_the_logger_knows_its_rank(self):
        first, second = (found["log"] for found in jobs.once("nn_rank.py", 2, jobs.GEMINI))
        self.assertEqual(first, "")
        self.assertRegex(second, r"^castor - ERROR - rank 1 - nn_rank.py:\d+: kept\n$")


if __name__ == "__main__":
    unittest.main()
