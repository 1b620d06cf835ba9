"""castor logs, and the newest run as the default of castor report."""
import os
import re
import shutil
import signal

from command import CommandTest
from fake_job import Process, sleeper


class Logs(CommandTest):
    def run_of(self, name, started, process=None, host=None, **about):
        """The directory of a run that ended, or of one whose `process` runs."""
        folder = self.path(f"castor-logs/{name}")
        os.makedirs(folder)
        job = Process(folder, 0, process, plugin="gemini")
        if host:
            job.counters.host = host
        job.write()
        with open(os.path.join(folder, "castor.about"), "w") as file:
            file.write(f"castor 0.1.0\nstarted {started}000000000\n" + "".join(f"{key} {value}\n" for key, value in about.items()))
        return folder

    def logs(self, *arguments, status=0):
        code, out, err = self.castor("logs", *arguments)
        self.assertEqual(code, status, err)
        return out.splitlines(), err

    def left(self):
        return sorted(os.listdir(self.path("castor-logs")))

    def test_lists_the_runs_newest_first(self):
        self.run_of("old", 1000, command="python a.py")
        self.run_of("new", 2000, command="python " + "\u00e4" * 100)
        os.makedirs(self.path("castor-logs/mine/rank0"))
        os.symlink("old", self.path("castor-logs/link"))
        self.script("castor-logs/file", "")
        lines, err = self.logs()
        self.assertEqual((lines[0].split(), err), (["run", "started", "size", "plugin", "outcome", "command"], []))
        self.assertRegex(lines[1], r"^new  1970-01-01 \d\d:33:20  \d+\.\d KiB  gemini  exited   python \u00e4{53}\.\.\.$")
        self.assertRegex(lines[2], r"^old .* gemini  exited   python a\.py$")
        self.assertRegex(lines[3], r"^2 runs, \d+\.\d KiB$")
        self.assertEqual(len(lines), 4)

    def test_keeps_the_newest_and_what_is_not_castors(self):
        for number in range(4):
            self.run_of(f"run{number}", 1000 + number)
        os.makedirs(self.path("castor-logs/mine"))
        self.script("castor-logs/mine/notes", "")
        self.script("castor-logs/run1/report.html", "mine")
        os.makedirs(self.path("castor-logs/run0/.files/a/b"))
        lines, _ = self.logs("--keep", "2")
        self.assertEqual([re.sub(r"\d+\.\d KiB", "N", line) for line in lines], [
            "castor-logs/run1: removed, N; the folder stays, for what castor did not write", "castor-logs/run0: removed, N", "2 runs removed, N"])
        self.assertEqual(self.left(), ["mine", "run1", "run2", "run3"])
        self.assertEqual(os.listdir(self.path("castor-logs/run1")), ["report.html"])
        self.assertEqual(self.logs("--keep", "2")[0], ["0 runs removed, 0 B"])
        self.assertEqual(len(self.logs("--keep=0")[0]), 3)
        self.assertEqual(self.left(), ["mine", "run1"])

    def test_never_removes_a_run_that_has_not_ended(self):
        self.run_of("ended", 1000)
        self.run_of("works", 1001, sleeper(self))
        self.run_of("elsewhere", 1002, sleeper(self), host=b"another")
        castor = self.start("run", "--log-dir", "castor-logs/held", "sleep", "60")
        self.wait_for_files("castor-logs/held/castor.about")
        self.assertEqual([line.split()[0] for line in self.logs()[0] if " running " in line], ["held", "works"])
        lines, _ = self.logs("--keep", "0")
        self.assertEqual(lines[-1][:13], "1 run removed")
        self.assertEqual([line for line in lines if "has not ended" in line],
                         [f"castor-logs/{name}: has not ended, kept" for name in ("held", "elsewhere", "works")])
        castor.send_signal(signal.SIGTERM)
        castor.wait()
        self.logs("--keep", "0")
        self.assertEqual(self.left(), ["elsewhere", "works"])

    def test_mistakes(self):
        self.assertEqual(self.logs(), ([], ["castor: there is no run in ./castor-logs"]))
        self.run_of("run", 1000)
        for arguments, text in ((["--keep", "-1"], "must be a number of runs"), (["--keep", "2x"], "must be a number of runs"), (["castor-logs", "b"], "takes one folder"),
                                ([""], "takes one folder"), (["absent"], "cannot be read: No such file"), (["castor-logs/run"], "is the log directory of one run")):
            out, err = self.logs(*arguments, status=2)
            self.assertEqual((out, len(err)), ([], 1), arguments)
            self.assertIn(text, err[0])
        self.assertEqual(self.left(), ["run"])


class Newest(CommandTest):
    def test_the_report_of_the_newest_run(self):
        code, out, err = self.castor("report")
        self.assertEqual((code, out, len(err)), (2, "", 1))
        self.assertIn("there is no run in ./castor-logs", err[0])
        for name in ("one", "two"):
            os.makedirs(self.path(f"castor-logs/{name}"))
            Process(self.path(f"castor-logs/{name}"), 0).write()
        os.makedirs(self.path("castor-logs/zzz"))  # no run
        os.utime(self.path("castor-logs/two"), (1, 1))
        code, out, err = self.castor("report")
        self.assertEqual((code, err), (0, ["castor: report: the newest run: castor-logs/one"]))
        self.assertIn("Castor report: one\n", out)
        self.assertIn("\n  options   not known\n  versions  Castor not known, PyTorch not known, Python not known\n  machine   not known\n", out)
        shutil.rmtree(self.path("castor-logs/one"))
        self.assertIn("castor-logs/two", self.castor("report", "--format", "json")[2][0])
