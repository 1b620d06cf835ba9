"""castor.lazy: a model of 64 MiB, made on two ranks."""
import unittest

import jobs
import runner


class LazyInit(unittest.TestCase):
    def check(self, how):
        ranks = jobs.once("lazy_rank.py", 2, how)
        for found in ranks:
            self.assertEqual(found["a tensor's device"], "cpu")
            for name in ("the same module", "equal", "on meta", "equal when wrapped"):
                self.assertTrue(found[name], name)
        return ranks

    def test_values_are_those_without_it(self):
        for how in jobs.WAYS:
            self.check(how)

    @runner.long
    def test_training_is_that_without_a_plugin(self):
        trained = {found["trained"] for how in (jobs.NONE, jobs.GEMINI) for found in self.check(how)}
        self.assertEqual(len(trained), 1)

    @runner.long
    def test_no_rank_holds_the_model_for_itself(self):
        for found in self.check(jobs.GEMINI):
            self.assertLess(found["own MiB"], 40)  # CASTOR_LAZY_BYTES, and what is there anyway
        for found in self.check(jobs.NONE):
            self.assertGreater(found["own MiB"], 50)  # there is no memory of Castor's under the plugin `none`


if __name__ == "__main__":
    unittest.main()
