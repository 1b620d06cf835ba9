"""CASTOR_PRECISION on a simulated device, most of whose model data is on the host: the bits of the CPU run, and what is refused there.
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


def train(folder, on, precision, *arguments):
    """Returns (status, what it printed, what was said)."""
    device = on == "cuda"
    under = [os.environ["PRECISION_TEST_CASTOR"], "run", "--plugin", "gemini", "--log-dir", os.path.join(folder, "logs"),
             "--set", f"CASTOR_PRECISION={precision}", *(["--set", BUDGET, "--set", "CASTOR_DEBUG=1"] if device else []), "--"]
    simulation = [sys.executable, os.path.join(simulated.FOLDER, "simulate"), "--memory", "1G", "--numbers", "--"] if device else []
    done = subprocess.run([*under, *simulation, sys.executable, os.path.join(FOLDER, "device.py"), "--on", on, *arguments], cwd=folder,
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


if __name__ == "__main__":
    unittest.main()
