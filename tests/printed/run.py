"""What single-process scripts print is the same, to the printed digits, with 1, 2 and 4 ranks and without Castor.

Sums in another order differ in the seventh digit. A number that lies on the border between two printed ones may therefore be
one less or one more in its last digit: one number in ten at most, and on one rank none.

    tests/printed/run.py [--castor build/bin/castor] [NAME]...

Needs torch and transformers (the interpreter that runs this has them). NAMEs select tests whose id contains one of them. The
last line is `N passed, N failed`.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402

LIMIT_S = 240  # of one job; reached only by a failure
RANKS = (1, 2, 4)
SHORT = (2,)  # in the short length, but for the first model
NUMBER = re.compile(r"\d+\.\d+")
CASTOR = None


class Case(unittest.TestCase):
    maxDiff = None

    def printed(self, *command):
        with tempfile.TemporaryDirectory(prefix="castor-printed-") as folder:
            done = subprocess.run(command, env=runner.environment(), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, done.stderr

    def compare(self, shown, plain, ranks):
        self.assertEqual(NUMBER.sub("#", shown), NUMBER.sub("#", plain), f"{ranks} ranks")
        pairs = [pair for pair in zip(NUMBER.findall(shown), NUMBER.findall(plain)) if pair[0] != pair[1]]
        for ours, theirs in pairs:
            digits = len(theirs.partition(".")[2])
            self.assertAlmostEqual(float(ours), float(theirs), delta=1.01 * 10**-digits, msg=f"{ranks} ranks")
        allowed = 0 if ranks == 1 else len(NUMBER.findall(plain)) // 10
        self.assertLessEqual(len(pairs), allowed, f"{ranks} ranks: {pairs}")


class PrintedTest(Case):
    def check(self, model, optimizer):
        script = [sys.executable, os.path.join(FOLDER, "train.py"), model, optimizer]
        plain, _ = self.printed(*script)
        self.assertGreater(len(plain.splitlines()), 8)
        for ranks in RANKS if runner.LENGTH == "all" or model == "mlp" else SHORT:
            shown, said = self.printed(CASTOR, "run", "--plugin", "gemini", "--nproc", str(ranks), "--", *script)
            self.compare(shown, plain, ranks)
            self.assertEqual("without the plugin" in said, ranks == 1, said)


class PartsTest(Case):
    def test_an_epoch_that_begins_in_evaluation_mode_is_split_once_it_trains(self):
        script = os.path.join(FOLDER, "parts.py")
        shown, _ = self.printed(CASTOR, "run", "--plugin", "gemini", "--nproc", "2", "--set", "CASTOR_BATCH=loader", "--", sys.executable, script)
        self.assertEqual(shown.splitlines(), [
            "trained on 4 4 4 4 looked at 8 8 8 8",
            "trained on 8 4 4 4 looked at 8 8 8 8",
            "trained on 8 8 4 4 looked at 8 8 8 8"])


class WarnedTest(Case):
    def test_warnings_name_the_lines_that_they_name_without_castor(self):
        script = [sys.executable, os.path.join(FOLDER, "warned.py")]
        plain, warned = self.printed(*script)
        self.assertGreater(warned.count("Warning: "), 3, warned)
        for ranks in RANKS[:2] if runner.LENGTH == "all" else SHORT:
            shown, said = self.printed(CASTOR, "run", "--plugin", "gemini", "--nproc", str(ranks), "--", *script)
            self.compare(shown, plain, ranks)
            own = [line for line in said.splitlines() if line.startswith("castor: ")]
            self.assertEqual([line for line in said.splitlines() if line not in own], warned.splitlines())
            # The report, and that one rank trains without the plugin, or that a hook of the script looks into the model.
            self.assertEqual(len(own), 2, own)


def _add(model, optimizer, mark):
    setattr(PrintedTest, f"test_{model}_{optimizer}", mark(lambda self: self.check(model, optimizer)))


for _model, _optimizer, _other in (("mlp", "adamw", "sgd"), ("convolution", "sgd", "adamw"), ("gpt", "adamw", "sgd"), ("trainer", "sgd", "adamw")):
    # semantics has what the others print
    _add(_model, _optimizer, runner.long if _model in ("gpt", "trainer") else lambda test: test)
    _add(_model, _other, runner.long)


def main():
    global CASTOR
    CASTOR, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    runner.run(unittest.TestSuite(load(test) for test in (PrintedTest, PartsTest, WarnedTest)), names, runner.by_name)


if __name__ == "__main__":
    main()
