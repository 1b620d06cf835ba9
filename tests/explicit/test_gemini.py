"""castor.gemini: the figures are worked out by hand (tests/unit/placement/chunk_search_test.cc has more of them)."""
import unittest

import jobs


class Search(unittest.TestCase):
    def check(self, name, one, two):
        """What one process finds, and each of two ranks: sizes are rounded up to the number of ranks."""
        for how in jobs.WAYS:
            self.assertEqual(jobs.once("gemini_rank.py", 1, how)[0][name], one, how)
            self.assertEqual([found[name] for found in jobs.once("gemini_rank.py", 2, how)], [two, two], how)

    def test_the_size_with_least_waste(self):
        self.check("least waste", [1, 6, False, 15, 3], [2, 6, False, 15, 3])
        self.check("end of the range", [3, 0], [3, 0])
        self.check("interval", [1, 16, False, 15, 1], [2, 16, False, 15, 1])

    def test_a_small_model_is_one_chunk(self):
        self.check("gathered", [1, 15, True, 15, 0], [2, 15, True, 15, 0])
        self.check("defaults", {"1": {"chunk_size": 1 << 20, "keep_gathered": True}}, {"2": {"chunk_size": 1 << 20, "keep_gathered": True}})

    def test_parameters_far_larger_than_others(self):
        self.check("large ones aside", [1, 10, False, 1190, 0], [2, 10, False, 1190, 0])
        self.check("large ones too", [1, 1000, False, 1190, 810], [2, 1000, False, 1190, 810])

    def test_what_ddp_ignores(self):
        self.check("ignored by DDP", [10, 2], [10, 2])  # 6, and 4 in another of 6

    def test_bad_input(self):
        found = jobs.once("gemini_rank.py", 1, jobs.WAYS[0])[0]
        for name, argument in (("range", "search_range_m"), ("interval", "search_interval"), ("minimum", "min_chunk_size_m")):
            self.assertIn(argument, found[f"bad {name}"])
        self.assertIn("the largest size of a chunk", found["too far"])
        self.assertIn("a search of 4294967296 chunk sizes: raise its interval or lower its range", found["too long"])


if __name__ == "__main__":
    unittest.main()
