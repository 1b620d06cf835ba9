"""What the demo shows of its four runs, without training."""
import importlib.machinery
import importlib.util
import os
import sys
import unittest
from unittest import mock

import runner

MIB = 1 << 20


def loaded(steps=12):
    loader = importlib.machinery.SourceFileLoader("demo", os.path.join(runner.ROOT, "scripts", "demo"))
    demo = importlib.util.module_from_spec(importlib.util.spec_from_loader("demo", loader))
    with mock.patch.dict(os.environ, DEMO_STEPS=str(steps)), mock.patch.object(sys, "path", list(sys.path)):
        loader.exec_module(demo)
    return demo


class Demo(unittest.TestCase):
    def setUp(self):
        self.demo = loaded()
        self.losses = [5.5 - 0.2 * step for step in range(12)]
        memory = {"plain": 800, "castor nproc 2": 900, "ddp": 1600, "castor ddp": 800}
        self.results = {name: self.demo.Result(self.losses, [1000, 1300, 1100], mebibytes * MIB, 0.02) for name, mebibytes in memory.items()}

    def table(self, failures=()):
        lines, good = self.demo.table(self.results, dict(failures))
        self.assertLessEqual(max(map(len, lines)), 80, lines)
        return lines, good

    def with_losses(self, name, losses):
        self.results[name] = self.results[name]._replace(losses=losses)

    def test_all_four_side_by_side(self):
        lines, good = self.table()
        self.assertTrue(good)
        rows = [line.split() for line in lines[1:5]]
        self.assertEqual(rows[0], ["plain", "800", 8 * "#", "1.00", "0.50", "1100"])
        self.assertEqual(rows[1], ["castor", "nproc", "2", "900", 9 * "#", "1.12", "0.56", "1100", "as", "plain"])
        self.assertEqual(rows[2], ["ddp", "1600", 16 * "#", "2.00", "1.00", "1100"])
        self.assertEqual(rows[3], ["castor", "ddp", "800", 8 * "#", "1.00", "0.50", "1100", "as", "ddp"])
        self.assertNotIn("Other programs", "".join(lines))
        self.assertIn("castor ddp and ddp: equal in every digit", lines[-1])

    def test_losses_that_differ_are_said(self):
        """One step's are enough: nearly equal ones within what is allowed, then too far apart, then no number."""
        for loss, word, good in ((self.losses[7] + 5e-4, "as", True), (self.losses[7] + 2e-3, "NOT", False), (float("nan"), "NOT", False)):
            self.with_losses("castor nproc 2", self.losses[:7] + [loss] + self.losses[8:])
            lines, found = self.table()
            self.assertEqual((lines[2].split()[8], found), (word, good))
        self.with_losses("castor nproc 2", self.losses)
        self.with_losses("castor ddp", [loss + 5e-4 for loss in self.losses])
        lines, good = self.table()
        self.assertTrue(lines[4].endswith("NOT as ddp") and not good, lines)

    def test_a_run_that_failed(self):
        del self.results["ddp"]
        lines, good = self.table({"ddp": "exit status 1: " + 90 * "x"})
        self.assertFalse(good)
        self.assertEqual(lines[3], "ddp            failed (see above)")
        self.assertEqual(lines[4].split(), ["castor", "ddp", "800", 14 * "#", "1.00", "1100"])
        self.assertEqual(lines[-1].strip(), "castor ddp has nothing to be compared with")

    def test_neither_audited_steps_nor_those_in_which_memory_is_read_are_timed(self):
        steps = [(str(step), "3.0", time) for step, time in enumerate("2996 2678 2623 1000 1100 1200 1300 1400 1500 1600 9000 9000".split(), 1)]
        with mock.patch.multiple(self.demo, train=lambda *_: (steps, 900 * MIB, 0.1), bare_memory=lambda *_: 100 * MIB), mock.patch("builtins.print"):
            result = self.demo.run(self.demo.CONTENDERS[1], "python", "output", {})
        self.assertEqual(result, self.demo.Result([3.0] * 12, [1000, 1100, 1200, 1300, 1400, 1500, 1600], 800 * MIB, 0.1))
        self.assertEqual(self.demo.median(result.times), 1300)
        self.assertEqual(self.demo.median([1000, 1300]), 1150)

    def test_a_machine_that_is_busy_is_said(self):
        self.results["ddp"] = self.results["ddp"]._replace(foreign=0.5)
        self.assertIn("        Other programs took up to 50% of the machine: these times are uncertain", self.table()[0])

    def test_the_commands_are_those_that_are_shown(self):
        for contender in loaded(steps=40).CONTENDERS:
            command = contender.command("python")
            self.assertEqual(command[-2:], ["--steps", "40"])
            self.assertLessEqual(len(f"[1/4] {contender.shown_command()}"), 80)
