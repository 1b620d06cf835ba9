"""CASTOR_PRECISION on simulated devices, most of whose model data is on the host: the bits of the CPU run, and what is refused there.
Matrix products are in tests/device (cases/halves.py)."""
import os
import subprocess
import sys
import tempfile
import unittest

import runner
from jobs import FOLDER, LIMIT_S

sys.path.append(os.path.join(os.path.dirname(FOLDER), "sim"))
import simulated  # noqa: E402

BUDGET = "CASTOR_DEVICE_BUDGET=2M"
REFUSED = {  # what the line must say
    "late": "move the model before", "both": "takes one optimizer each", "inside": "an optimizer steps inside a backward pass",
    "autocast": "the script uses autocast", "captured": "while a CUDA graph is captured"}


def train(folder, on, precision, *arguments, plugin="gemini", ranks=0, nproc=0, settings=(BUDGET,)):
    """Returns (status, what it printed, what was said)."""
    device = on == "cuda"
    sets = [f"CASTOR_PRECISION={precision}", *((*settings, "CASTOR_DEBUG=1") if device else ())]
    under = [os.environ["PRECISION_TEST_CASTOR"], "run", "--plugin", plugin, "--log-dir", os.path.join(folder, "logs"),
             *(word for each in sets for word in ("--set", each)), *(["--nproc", str(nproc)] if nproc else []), "--"]
    simulation = [sys.executable, os.path.join(simulated.FOLDER, "simulate"), "--memory", "1G", "--devices", "2", "--numbers", "--"] if device else []
    python = runner.ranks(ranks) if ranks else [sys.executable]
    done = subprocess.run([*under, *simulation, *python, os.path.join(FOLDER, "device.py"), "--on", on, *arguments], cwd=folder,
                          env=runner.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


class DeviceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        simulated.need(whole=True)

    def check(self, precision):
        """A run, and one that goes on from the other one's checkpoint."""
        with tempfile.TemporaryDirectory(prefix="castor-precision-") as folder:
            kept = {on: os.path.join(folder, on) for on in ("cpu", "cuda")}
            for other in ({"cpu": None, "cuda": None}, {"cpu": kept["cuda"], "cuda": kept["cpu"]}):
                found = {on: train(folder, on, precision, *(["--load", other[on]] if other[on] else ["--save", kept[on]])) for on in kept}
                for status, _, said in found.values():
                    self.assertEqual(status, 0, said)
                self.assertEqual(found["cpu"][1], found["cuda"][1])
                self.assertRegex(found["cuda"][2], "had at most [1-9][0-9]* bytes of model data at a time on the host")
                self.assertEqual(found["cuda"][2].count("a gradient overflowed"), int(precision == "fp16" and not other["cpu"]))

    @runner.long
    def test_bfloat16(self):
        self.check("bf16")

    @runner.long
    def test_float16(self):
        self.check("fp16")

    @runner.long
    def test_refused(self):
        for habit, words in REFUSED.items():
            with self.subTest(habit), tempfile.TemporaryDirectory(prefix="castor-precision-") as folder:
                status, _, said = train(folder, "cuda", "fp16", "--habit", habit)
                self.assertNotEqual(status, 0)
                self.assertIn(words, said)


class RanksTest(unittest.TestCase):
    """Two ranks, each on a device of its own, beside two ranks on CPUs."""

    @classmethod
    def setUpClass(cls):
        simulated.need(whole=True)

    def check(self, precision, habit, plugins, **job):
        with tempfile.TemporaryDirectory(prefix="castor-precision-") as folder:
            status, expected, said = train(folder, "cpu", precision, "--habit", habit, **job)
            self.assertEqual(status, 0, said)
            for plugin in plugins:
                for settings in ((), (BUDGET,)) if runner.LENGTH == "all" else ((BUDGET,),):
                    with self.subTest(plugin, settings=settings):
                        status, out, said = train(folder, "cuda", precision, "--habit", habit, plugin=plugin, settings=settings, **job)
                        self.assertEqual(status, 0, said)
                        self.assertEqual(sorted(out.splitlines()), sorted(expected.splitlines()))
                        self.assertEqual(said.count("a gradient overflowed"), int(precision == "fp16"))

    def test_float16_under_gemini(self):
        self.check("fp16", "write through,held,one saves", ["gemini"], ranks=2)

    @runner.long
    def test_under_every_plugin(self):
        for precision in "bf16", "fp16":
            for habit in "", "edit,one saves", "write through,held,one saves", "swap,load", "frozen,not clipped":
                self.check(precision, habit, ["ddp", "zero1", "zero2", "gemini", "fsdp"], ranks=2)

    @runner.long
    def test_single_process_scripts(self):
        for precision in "bf16", "fp16":
            for habit in "", "edit,one saves", "swap,load":
                self.check(precision, habit, ["zero2", "gemini"], nproc=2)

    @runner.long
    def test_refused(self):
        for habit, words in (("one writes", "other values on some ranks"), ("apart", "not synchronized (no_sync)")):
            with self.subTest(habit), tempfile.TemporaryDirectory(prefix="castor-precision-") as folder:
                status, _, said = train(folder, "cuda", "bf16", "--habit", habit, plugin="zero2", ranks=2)
                self.assertNotEqual(status, 0)
                self.assertIn(words, said)


if __name__ == "__main__":
    unittest.main()
