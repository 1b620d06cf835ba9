"""Ranks of DDP scripts on simulated devices: what each keeps of the model's data, and that nobody can tell.

    tests/device_ranks/run.py [--castor build/bin/castor] [NAME]...

What scripts of tests/scripts see there is compared by tests/semantics/run.py --devices. NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.dirname(FOLDER), os.path.join(os.path.dirname(FOLDER), "sim")]
import runner  # noqa: E402
import simulated  # noqa: E402

LIMIT_S = 300  # of one job; reached only by a failure
CASTOR = None
ALL = "nothing,one_rank_looks,halved_by_hand,looks_then_clips,clips_then_looks,written_before_a_slow_look"
SHORT = "one_rank_looks,looks_then_clips,written_before_a_slow_look"


def job(plugin, ranks, program, *arguments, settings=()):
    """(lines, standard error) of a job's ranks; `plugin`: None for plain PyTorch."""
    sets = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="castor-device-ranks-") as folder:
        under = [CASTOR, "run", "--plugin", plugin, "--log-dir", os.path.join(folder, "log"), *sets, "--"] if plugin else []
        command = [*under, *runner.on_devices(ranks), *runner.ranks(ranks), os.path.join(FOLDER, program), *arguments]
        done = subprocess.run(command, env=runner.environment(), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise AssertionError(f"{plugin} with {ranks} ranks ends with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout.splitlines(), done.stderr


class Looks(unittest.TestCase):
    """What a script sees of gradients and states is what plain PyTorch shows it, whoever keeps them."""

    maxDiff = None
    plain = {}

    def compare(self, plugin, ranks, habits, settings=()):
        if (ranks, habits) not in self.plain:
            self.plain[ranks, habits] = sorted(job(None, ranks, "looks.py", habits)[0])
            self.assertGreater(len(self.plain[ranks, habits]), 20)
        lines, errors = job(plugin, ranks, "looks.py", habits, settings=settings)
        self.assertEqual(sorted(lines), self.plain[ranks, habits], errors)

    def test_zero2(self):
        self.compare("zero2", 2, SHORT)

    @runner.long
    def test_zero2_with_four_ranks(self):
        self.compare("zero2", 4, ALL)

    @runner.long
    def test_zero2_under_a_budget(self):
        self.compare("zero2", 2, ALL, ["CASTOR_DEVICE_BUDGET=3M"])

    @runner.long
    def test_zero1(self):
        self.compare("zero1", 2, ALL)

    @runner.long
    def test_ddp(self):
        self.compare("ddp", 2, ALL)


class Memory(unittest.TestCase):
    """Bytes of a device per parameter, fp32 with Adam (docs/device-ranks.md)."""

    def check(self, plugin, ranks, expected):
        found = [float(re.search(r"([\d.]+) bytes a parameter", line)[1]) for line in job(plugin, ranks, "memory.py")[0] if "bytes a parameter" in line]
        self.assertEqual(len(found), ranks)
        for each in found:
            self.assertAlmostEqual(each, expected, delta=0.05 * expected)

    @runner.long
    def test_ddp(self):
        self.check("ddp", 2, 16)

    @runner.long
    def test_zero1_on_two(self):
        self.check("zero1", 2, 8 + 8 / 2)

    @runner.long
    def test_zero1_on_four(self):
        self.check("zero1", 4, 8 + 8 / 4)

    @runner.long
    def test_zero2_on_two(self):
        self.check("zero2", 2, 4 + 12 / 2)

    def test_zero2_on_four(self):
        self.check("zero2", 4, 4 + 12 / 4)


if __name__ == "__main__":
    CASTOR, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    why = simulated.make(sys.executable)
    if why:
        runner.cannot_run(why)
    runner.run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]), names)
