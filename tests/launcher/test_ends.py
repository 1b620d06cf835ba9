"""How ranks end: what the report and castor top say of it. First of log directories that the test writes, then of processes that
load the library and the agent's part for it, without PyTorch."""
import json
import os
import signal
import sys
import time

import control_groups
from command import CommandTest, wait_for
from fake_job import Process
from schema import errors

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FAILED = "failed: rank 1 raised ValueError: too long (train.py, line 12)"

# A rank, by the words of its command line: a process that records, as PyTorch would have it.
RANK = """import os, signal, sys, threading, time
from castor.agent import core
from castor.agent.process import ends

core.bind()
core.attach()
ends.install()
rank = max(core.options.rank, 0)
core.rank_set(rank)
core.event_step(core.now_ns(), core.now_ns(), 0, 0)

def fail(how):
    if how == "raises":
        raise ValueError("too long")
    if how == "hooked":
        sys.excepthook = lambda *args: print("the script's own hook", flush=True)
        raise ValueError("too long")
    if how == "hangs":
        threading.Thread(target=time.sleep, args=(20,)).start()
        raise ValueError("too long")
    if how == "caught":
        try:
            raise ValueError("too long")
        except ValueError:
            sys.exit(3)
    if how == "leaves":
        os._exit(4)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "grows":
        held = bytearray(512 << 20)
        held[::4096] = bytes(len(held[::4096]))
    if how == "waits":
        print("waits", flush=True)
        time.sleep(20)

fail(sys.argv[1 + rank])
"""


class EndsTest(CommandTest):
    def reports(self, folder):
        """Text, JSON and castor top of a log directory."""
        found = []
        for arguments in (["report", folder], ["report", folder, "--format", "json"], ["top", "--once", folder]):
            code, out, err = self.castor(*arguments)
            self.assertEqual((code, err), (0, []), out)
            found.append(out)
        text, told, top = found
        told = json.loads(told)
        with open(os.path.join(ROOT, "docs", "report.schema.json")) as file:
            self.assertEqual(errors(told, json.load(file)), [])
        return text, told, top


class Shown(EndsTest):
    """Of log directories that the test writes."""

    def job(self, *notes, **changes):
        os.makedirs(self.path("log"), exist_ok=True)
        for rank in range(2):
            process = Process(self.path("log"), rank)
            process.steps(3)
            process.counters.exit_realtime_ns = time.time_ns()
            if rank == 1:
                for name, value in changes.items():
                    target = process.counters.exception if name in ("type", "message", "place", "realtime_ns", "by_other") else process.counters
                    setattr(target, name, value)
            process.write()
        with open(self.path("log/ends"), "w") as file:
            for number, note in enumerate(notes):
                file.write(f"{time.time_ns() + number} {note}\n")
        return self.reports("log")

    def test_each_kind_of_end(self):
        pid = 2**22 + 101
        exception = {"type": b"ValueError", "message": b"too long", "place": b"train.py, line 12", "realtime_ns": time.time_ns(), "exit_status": 1}
        gone = {"exit_state": 0}
        for kind, outcome, word, notes, changes in (
            ("finished", "exited", "finished", [], {}),
            ("status", "failed: rank 1 exited with status 3", "status 3", [], {"exit_status": 3}),
            ("exception", FAILED, "ValueError", [], exception),
            ("signal", "failed: rank 1 was ended by SIGSEGV", "SIGSEGV", [f"{pid} signal 11"], gone),
            ("signal", "failed: rank 1 was ended by SIGKILL; who sent it is not known", "SIGKILL", [f"{pid} signal 9"], gone),
            ("memory", "killed for memory: rank 1 was killed for memory, by the limit of its control group", "killed for memory",
             [f"{pid} signal 9", "9 killed-cgroup 1"], gone),
            ("memory", "killed for memory: rank 1 was killed for memory, by the kernel", "killed for memory", [f"{pid} signal 9", "9 killed 1"], gone),
            ("interrupted", "interrupted", "interrupted", ["9 told 2"], {**exception, "type": b"KeyboardInterrupt", "realtime_ns": time.time_ns() + 10**10}),
            ("terminated", "terminated", "terminated", ["9 told 15", f"{pid} signal 15"], gone),
            ("unknown", "died", "died", [], gone),
        ):
            with self.subTest(outcome):
                text, told, top = self.job(*notes, **changes)
                self.assertIn(f"  outcome   {outcome}\n", text)
                self.assertRegex(text, rf"\n  1 +{pid} .* {word}\n")
                self.assertEqual((told["outcome"], told["ranks"][1]["end"]["kind"]), (outcome, kind))
                self.assertEqual(told["ranks"][0]["end"]["kind"], "finished")
                self.assertRegex(top, rf"\n1 +{pid} +{word} ")
                failed = kind != "finished"
                self.assertEqual(told["first_failure"], {"rank": 1, "pid": pid, "kind": kind} if failed else None)
                self.assertEqual(f"\n{outcome}\n" in top, failed, top)
                self.assertEqual("the first failure" in text, failed)

    def test_the_members_of_an_end(self):
        _, told, _ = self.job("9 killed-cgroup 1", f"{2**22 + 101} signal 9", exit_state=0)
        end = told["ranks"][1]["end"]
        self.assertEqual((end["signal"], end["status"], end["killed_by"], end["exception"]), ("SIGKILL", None, "control group", None))
        self.assertGreaterEqual(end["at_seconds"], 0)
        _, told, _ = self.job(exit_status=1, type=b"ValueError", message=b"a\x1b[31m\nb", place=b"", realtime_ns=time.time_ns())
        self.assertEqual(told["ranks"][1]["end"]["exception"], {"type": "ValueError", "message": "a?[31m?b", "place": None})

    def test_what_the_ranks_do_not_tell(self):
        _, told, _ = self.job(f"{2**22 + 101} signal 11", "9 job 0", "9 lost 0", "77 signal 9", "9 killed 1", exit_state=0)
        notes = "\n".join(told["notes"])
        for part in ("the command ended with status 0 although a rank failed", "castor itself was killed", "process 77, which is no rank"):
            self.assertIn(part, notes)


class Real(EndsTest):
    """Of processes."""

    def job(self, *ways, command=None, told=None, status=None):
        """Runs one rank, or two under --nproc, each of which fails in its way. `told`: a signal to castor, when the rank waits or is stuck."""
        self.script("train.py", RANK)
        ranks = ["--plugin", "ddp", "--nproc", "2", "--set", "CASTOR_FORK=off"] if len(ways) > 1 else []
        process = self.start("run", *ranks, "--log-dir", "log", "--", *(command or [sys.executable, "train.py", *ways]), env={"CASTOR_ON_ERROR": "passthrough"})
        if told:
            if ways == ("waits",):
                process.stdout.readline()
            else:
                time.sleep(1)
            process.send_signal(told)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, status, err)
        return (*self.reports("log"), out, err)

    def line(self, text):
        with open(self.path("train.py")) as file:
            return next(number for number, line in enumerate(file, 1) if text in line)

    def ends(self, told):
        return [(rank["end"]["kind"], rank["end"]["status"]) for rank in told["ranks"]]

    def test_nothing_is_left_where_all_ends_well(self):
        _, told, _, _, _ = self.job("ends", status=0)
        self.assertEqual((told["outcome"], told["first_failure"], os.path.exists(self.path("log/ends"))), ("exited", None, False))

    def test_an_exception(self):
        for way, last in (("raises", "ValueError: too long"), ("hooked", "")):
            with self.subTest(way):
                text, told, _, out, err = self.job(way, status=1)
                where = self.line("too long") + (2 + 1 if way == "hooked" else 0)
                self.assertEqual(told["outcome"], f"failed: rank 0 raised ValueError: too long (train.py, line {where})")
                self.assertEqual(out, "the script's own hook\n" if way == "hooked" else "")
                self.assertIn(last, err)
                self.assertNotIn("castor/agent", err)

    def test_an_exception_whose_process_does_not_end(self):
        """Its thread would run on: castor is told to end it."""
        _, told, _, _, _ = self.job("hangs", told=signal.SIGTERM, status=143)
        self.assertRegex(told["outcome"], r"^failed: rank 0 raised ValueError")

    def test_statuses(self):
        for way, status in (("caught", 3), ("leaves", 4)):
            with self.subTest(way):
                _, told, _, _, _ = self.job(way, status=status)
                self.assertEqual(self.ends(told), [("status", status)])
                self.assertEqual(told["outcome"], f"failed: rank 0 exited with status {status}")

    def test_a_signal_that_a_shell_saw(self):
        """The rank is no child of castor, and the shell hides how it ended."""
        _, told, _, _, _ = self.job("segv", command=["sh", "-c", f"{sys.executable} train.py segv; exit 0"], status=0)
        self.assertEqual(told["outcome"], "failed: rank 0 was ended by SIGSEGV")
        self.assertIn("the command ended with status 0 although a rank failed", told["notes"])

    def test_the_first_of_two_ranks(self):
        _, told, _, _, _ = self.job("waits", "raises", status=1)
        self.assertEqual([kind for kind, _ in self.ends(told)], ["other_rank", "exception"])
        self.assertEqual(told["ranks"][0]["end"]["by_rank"], 1)
        self.assertEqual(told["first_failure"]["rank"], 1)

    def test_interrupted_terminated_and_killed(self):
        for told_by, outcome, kind in ((signal.SIGINT, "interrupted", "interrupted"), (signal.SIGTERM, "terminated", "terminated")):
            with self.subTest(outcome):
                _, told, top, _, _ = self.job("waits", told=told_by, status=128 + told_by)
                self.assertEqual((told["outcome"], told["ranks"][0]["end"]["kind"]), (outcome, kind))
        _, told, _, _, err = self.job("killed", status=137)
        self.assertEqual(told["outcome"], "failed: rank 0 was ended by SIGKILL; who sent it is not known")
        self.assertIn("SIGKILL; the kernel has counted no kill for memory here", err)

    def test_killed_for_memory(self):
        """By the limit of a real control group, in which castor runs, too. tests/unit/launcher/run/kills_test.cc has the rest."""
        try:
            with control_groups.memory_limit(64 << 20) as folder:
                self.script("train.py", RANK)
                command = ["sh", "-c", f'echo $$ >"{folder}/cgroup.procs"; exec "$@"', "sh", os.environ["LAUNCHER_TEST_BINARY"], "run", "--log-dir", "log", "--",
                           sys.executable, "train.py", "grows"]
                process = self.start(*command[1:], binary=command[0])
                _, err = process.communicate(timeout=30)
        except control_groups.Unavailable as reason:
            self.skipTest(str(reason))
        self.assertEqual(process.returncode, 137, err)
        self.assertIn("the command was killed for memory, by the limit of its control group", err)
        _, told, _ = self.reports("log")
        self.assertEqual(told["outcome"], "killed for memory: rank 0 was killed for memory, by the limit of its control group")

    def test_castor_is_killed(self):
        self.script("train.py", RANK)
        process = self.start("run", "--log-dir", "log", "--", sys.executable, "train.py", "waits")
        wait_for(lambda: process.stdout.readline() == "waits\n", "the rank")
        process.kill()
        process.wait()
        wait_for(lambda: not self.marked(), "the ranks to end")
        _, told, _ = self.reports("log")
        self.assertEqual((told["outcome"], told["ranks"][0]["end"]["kind"]), ("died", "unknown"))
        self.assertIn("castor itself was killed, and its ranks were ended for that", told["notes"])
