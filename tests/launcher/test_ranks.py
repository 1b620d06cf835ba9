"""Ranks: the first that fails decides, the others are ended, nothing is left running."""
import os
import resource
import shutil
import signal
import subprocess
import unittest

from command import BINARY, LIBRARY, SONAME, CommandTest, ranks, wait_for

# A rank that writes its process id to logs/rankR, does what its number says and otherwise waits.
RANK = """
import os, signal, subprocess, sys, time
os.chdir(os.environ["CASTOR_LOG_DIR"])
rank = os.environ.get("CASTOR_RANK", "0")
def ready():
    with open("rank" + rank + ".tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename("rank" + rank + ".tmp", "rank" + rank)
def others(count):
    while sum(os.path.exists("rank" + str(n)) for n in range(count)) < count:
        time.sleep(0.01)
{body}
time.sleep(600)
"""

# Each rank leaves a process behind; rank 0 one more, which made itself independent.
LEAVING = """
subprocess.Popen(["sleep", "600"])
if rank == "0":
    null = subprocess.DEVNULL
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=null, stderr=null)
    open("daemon", "w").write(str(daemon.pid))
sys.exit(0)
"""


class Ends(CommandTest):
    def rank(self, body):
        return self.python(RANK.replace("{body}", body))

    def ranks(self, count, body, *options):
        return self.castor("run", *ranks(count), *options, "--", *self.rank(body))

    def said(self, err, text):
        lines = [line for line in err if text in line]
        self.assertEqual(len(lines), 1, err)
        return lines[0]

    def test_all_end_well(self):
        status, _, err = self.ranks(3, "sys.exit(0)")
        self.assertEqual(status, 0, err)

    def test_a_rank_that_ends_early_ends_nobody(self):
        body = """
if rank == "1":
    ready(); sys.exit(0)
while not os.path.exists("rank1"): time.sleep(0.01)
open("finished" + rank, "w"); sys.exit(0)
"""
        status, _, err = self.ranks(3, body)
        self.assertEqual(status, 0, err)
        self.assertTrue(os.path.exists(self.path("logs/finished0")) and os.path.exists(self.path("logs/finished2")))

    def test_the_first_failure_decides(self):
        body = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
ready(); others(3)
if rank == "1": sys.exit(7)
"""
        status, _, err = self.ranks(3, body)
        self.assertEqual(status, 7, err)
        self.assertIn("rank 1 exited with status 7; ending the other ranks", self.said(err, "exited"))

    def test_a_rank_that_is_killed(self):
        status, _, err = self.ranks(3, "ready(); others(3)\nif rank == '2': os.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual(status, 137, err)
        self.assertIn("rank 2 was ended by signal 9 (SIGKILL", self.said(err, "was ended"))

    def test_ranks_that_ignore_sigterm(self):
        body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready(); others(2)
if rank == "1": sys.exit(5)
"""
        self.assertEqual(self.ranks(2, body)[0], 5)

    def test_a_rank_that_is_stopped(self):
        body = """
if rank == "1":
    ready(); os.kill(os.getpid(), signal.SIGSTOP)
else:
    while not os.path.exists("rank1"): time.sleep(0.01)
    time.sleep(0.2); sys.exit(6)
"""
        self.assertEqual(self.ranks(2, body)[0], 6)

    def test_where_the_output_of_a_failed_rank_is(self):
        _, _, err = self.ranks(2, "print('x', flush=True); ready(); others(2)\nif rank == '1': sys.exit(1)")
        self.assertIn(self.path("logs/rank1.out"), self.said(err, "its standard output"))

    def test_descendants_of_failed_ranks_are_ended(self):
        body = """
children = [subprocess.Popen(["sleep", "600"], start_new_session=apart) for apart in (False, True)]
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600; sleep 600"], start_new_session=True)
ready(); others(2)
if rank == "1": sys.exit(1)
"""
        self.assertEqual(self.ranks(2, body)[0], 1)

    def test_what_good_ranks_leave_behind(self):
        self.leaves = True  # the daemon, which made itself independent
        status, _, err = self.ranks(2, LEAVING)
        self.assertEqual(status, 0)
        self.assertIn("ended 2 processes that the ranks left running", self.said(err, "left running"))
        self.assertEqual(self.marked(), [int(self.text("logs/daemon"))])

    def test_what_good_ranks_leave_behind_in_a_container(self):
        # Entered from outside, as by `docker exec`: the session's leader is in another process namespace, and its
        # id reads as 0.
        # In a chroot the root is no mount whose propagation could be changed; that of /proc is made private by --mount-proc.
        apart = ["--pid", "--fork", "--mount-proc", "--propagation", "unchanged", *(["--user", "--map-root-user"] if os.getuid() else [])]
        tried = subprocess.run(["unshare", *apart, "true"], capture_output=True, text=True, timeout=60)
        if tried.returncode:
            self.skipTest(f"no process namespace can be made: {tried.stderr.strip()}")
        command = ("run", *ranks(2), "--", *self.rank(LEAVING))
        status, _, err = self.castor(*apart, BINARY, *command, binary="unshare")
        self.assertEqual(status, 0)
        self.assertIn("ended 2 processes that the ranks left running", self.said(err, "left running"))

    def test_what_a_single_command_leaves_behind_is_its_own_affair(self):
        self.leaves = True
        status, _, err = self.castor("run", "sh", "-c", "sleep 600 >/dev/null 2>&1 & exit 3")
        self.assertEqual(status, 3, err)
        self.assertEqual(len(self.marked()), 1)

    def test_what_a_killed_command_leaves_behind(self):
        body = """
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sleep", "600"])
os.kill(os.getpid(), signal.SIGKILL)
"""
        self.assertEqual(self.castor("run", *self.rank(body))[0], 137)

    @unittest.skipUnless(os.getuid() == 0, "takes the place of a user who may start few processes")
    def test_too_many_processes_start_none(self):
        for name in ("bin", "lib/castor/castor", "work"):
            os.makedirs(self.path(name))
        binary = shutil.copy(BINARY, self.path("bin/castor"))
        shutil.copy(LIBRARY, self.path("lib/" + SONAME))
        os.chmod(self.folder, 0o755)
        os.chmod(self.path("work"), 0o777)

        def become_limited():
            resource.setrlimit(resource.RLIMIT_NPROC, (10, 10))
            os.setuid(61234)

        options = {"binary": binary, "cwd": self.path("work"), "preexec_fn": become_limited}
        status, _, err = self.castor("run", "--plugin", "gemini", "--nproc", "50", "touch", "started", **options)
        self.assertEqual((status, len(err)), (1, 1), err)
        self.assertIn("nothing was started", err[0])
        self.assertEqual(os.listdir(self.path("work")), [])

    def test_too_many_files_start_none(self):
        # Files for the output of other ranks are opened one at a time, so many ranks need few of them.
        status, _, err = self.castor("-c", 'ulimit -n 20; exec "$0" run --plugin ddp --nproc 30 true', BINARY, binary="sh")
        self.assertEqual(status, 0, err)
        status, _, err = self.castor("-c", 'ulimit -n 6; exec "$0" run --plugin ddp --nproc 2 touch started', BINARY, binary="sh")
        self.assertNotEqual(status, 0)
        self.assertFalse(os.path.exists(self.path("started")), err)
        self.assertEqual(os.listdir(self.folder), ["castor-logs"], err)


class Signals(CommandTest):
    """Each handler appends a line to the file logs/sigR, so that a signal that comes twice shows."""

    COUNT = RANK.replace("{body}", """
def note(number, frame):
    with open("sig" + rank, "a") as file:
        file.write(signal.Signals(number).name + "\\n")
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), note)
ready()
while not os.path.exists("end"): time.sleep(0.01)
sys.exit(0)
""")

    def counting(self, count, **options):
        process = self.start("run", *ranks(count), "--", *self.python(self.COUNT), **options)
        self.wait_for_files(*[f"logs/rank{rank}" for rank in range(count)])
        return process

    def end(self, process):
        open(self.path("logs/end"), "w").close()
        self.assertEqual(process.wait(timeout=30), 0)

    def test_each_signal_arrives_once(self):
        for count in (1, 2):
            process = self.counting(count)
            expected = ""
            for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
                process.send_signal(getattr(signal, name))
                expected += name + "\n"
                for rank in range(count):
                    wait_for(lambda: self.text(f"logs/sig{rank}") == expected, f"{name} at rank {rank}")
            self.end(process)
            for rank in range(count):
                self.assertEqual(self.text(f"logs/sig{rank}"), expected)
                os.remove(self.path(f"logs/sig{rank}"))
                os.remove(self.path(f"logs/rank{rank}"))
            os.remove(self.path("logs/end"))

    def test_a_signal_to_the_whole_group_arrives_once(self):
        process = self.counting(2, start_new_session=True)  # as timeout(1) does at its end
        os.killpg(process.pid, signal.SIGTERM)
        wait_for(lambda: self.text("logs/sig0") and self.text("logs/sig1"), "SIGTERM")
        self.end(process)
        self.assertEqual((self.text("logs/sig0"), self.text("logs/sig1")), ("SIGTERM\n", "SIGTERM\n"))

    def test_status_after_a_signal(self):
        for count in (1, 3):
            process = self.start("run", *ranks(count), "sh", "-c", "touch $CASTOR_LOG_DIR/up$CASTOR_RANK; sleep 600")
            self.wait_for_files(*(["logs/up"] if count == 1 else [f"logs/up{rank}" for rank in range(count)]))
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)

    def test_a_command_may_take_its_time(self):
        body = "def end(*_):\n    time.sleep(0.3); open('saved', 'w'); sys.exit(0)\nsignal.signal(signal.SIGTERM, end); ready()"
        process = self.start("run", "--log-dir", "logs", *self.python(RANK.replace("{body}", body)))
        self.wait_for_files("logs/rank0")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 0)
        self.assertTrue(os.path.exists(self.path("logs/saved")))

    def test_a_told_rank_is_not_told_again(self):
        body = """
def note(number, frame):
    open("sig" + rank, "a").write("x")
    if rank == "0": sys.exit(1)
    time.sleep(1); sys.exit(0)
signal.signal(signal.SIGTERM, note)
ready()
"""
        process = self.start("run", *ranks(2), *self.python(RANK.replace("{body}", body)))
        self.wait_for_files("logs/rank0", "logs/rank1")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 1)
        self.assertEqual(self.text("logs/sig1"), "x")

    def test_castor_is_killed(self):
        body = """
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600; sleep 600"])
ready()
"""
        for count in (2, 1):
            process = self.start("run", *ranks(count), *self.python(RANK.replace("{body}", body)))
            self.wait_for_files(*[f"logs/rank{rank}" for rank in range(count)])
            process.kill()
            process.wait()
            wait_for(lambda: not self.marked(), "the end of all processes of a killed castor")
            for rank in range(count):
                os.remove(self.path(f"logs/rank{rank}"))

    def test_a_killed_castor_lets_launchers_clean_up(self):
        body = """
def end(*_):
    open("sig", "a").write("x"); sys.exit(0)
signal.signal(signal.SIGTERM, end); ready()
"""
        process = self.start("run", "--log-dir", "logs", *self.python(RANK.replace("{body}", body)))
        self.wait_for_files("logs/rank0")
        process.kill()
        wait_for(lambda: not self.marked(), "the end")
        self.assertEqual(self.text("logs/sig"), "x")

    def test_readers_do_not_wait_for_the_guard(self):
        process = self.start("run", "sh", "-c", "exec >&- 2>&-; touch up; sleep 600")
        self.wait_for_files("up")
        process.kill()
        self.assertEqual(process.communicate(timeout=30), ("", ""))
        wait_for(lambda: not self.marked(), "the end of the job")
