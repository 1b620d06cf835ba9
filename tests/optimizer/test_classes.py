"""torch.optim's classes with Castor's kernels in the place of their loops (CASTOR_OPTIMIZER)."""
import json
import os
import subprocess
import sys
import unittest

import runner

FOLDER = os.path.dirname(os.path.abspath(__file__))


def run(script, *arguments, level="info"):
    library = os.environ["OPTIMIZER_TEST_LIBRARY"]
    environment = dict(os.environ, PYTHONPATH=os.path.join(os.path.dirname(library), "castor"), CASTOR_LOG_LEVEL=level)
    done = subprocess.run([sys.executable, os.path.join(FOLDER, script), *arguments], env=environment, text=True,
                          capture_output=True, timeout=300)
    if done.returncode:
        raise AssertionError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1]), [line for line in done.stderr.splitlines() if line.startswith("castor:")]


class Classes(unittest.TestCase):
    def check(self, found, **expected):
        self.assertGreater(found["rows"], 150)
        for name in ("differ", "native", "kernels"):
            self.assertEqual(found[name], expected.get(name, []), name)

    def test_auto_steps_bit_for_bit(self):
        found, said = run("classes.py", "auto")
        self.check(found)
        self.assertEqual(said, [])

    @runner.long  # float masters are stepped by hybrid
    def test_hybrid_steps_bit_for_bit_too(self):
        self.check(run("classes.py", "hybrid")[0])

    def test_native_leaves_all_to_pytorch(self):
        found, _ = run("classes.py", "native")
        self.assertEqual((found["differ"], found["kernels"]), ([], []))
        self.assertGreater(len(found["native"]), 2 * 140)

    def test_auto_keeps_loops_that_round_otherwise(self):
        found, said = run("classes.py", "auto", "other bits", level="debug")
        loops = [name for name in found["native"] if name.startswith("Adam") and "fused" not in name]
        self.assertEqual(found["native"], loops, "all others are stepped by kernels")
        self.assertGreater(len(loops), 90)
        said = [line for line in said if "stay" in line]
        self.assertEqual(len(said), 2, said)  # once for each function
        self.assertIn("torch.optim's own steps stay: a kernel gives other bits than _", said[0])

    def test_float_masters_of_16_bit_parameters(self):
        for choice in ("auto", "hybrid", "native") if runner.LENGTH == "all" else ("hybrid",):
            found, said = run("masters.py", choice)
            self.assertEqual((found["differ"], said), ([], []), choice)
            self.assertEqual(found["calls"] > 0, choice != "native", choice)
            self.assertGreater(found["rows"], 100)

    def test_16_bit_parameters_stay_within_the_bound(self):
        found, _ = run("narrow.py")
        self.assertEqual((found["beyond"], found["native"]), ([], []))
        self.assertGreater(found["rows"], 50)

    @runner.long  # test_auto_keeps_loops_that_round_otherwise
    def test_float_masters_where_loops_round_otherwise(self):
        found, _ = run("masters.py", "auto", "other bits")
        self.assertEqual(found["differ"], [])


if __name__ == "__main__":
    unittest.main()
