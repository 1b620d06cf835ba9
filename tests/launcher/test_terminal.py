"""castor at a terminal: Ctrl-C reaches every rank once, Ctrl-Z and fg work, rank 0 can read."""
import fcntl
import os
import pty
import select
import signal
import termios
import time

import processes
from command import BINARY, LIMIT_S, CommandTest, ranks, wait_for

NOTE = """
import os, signal, sys, time
os.chdir(os.environ["CASTOR_LOG_DIR"])
rank = os.environ.get("CASTOR_RANK", "0")
def note(number, frame):
    with open("sig" + rank, "a") as file: file.write(signal.Signals(number).name + "\\n")
signal.signal(signal.SIGINT, note)
open("rank" + rank, "w").close()
if rank == "0" and "read" in sys.argv:
    open("line", "w").write(sys.stdin.readline())
while not os.path.exists("end"): time.sleep(0.01)
"""


def state(pid):
    return processes.fields(pid)[0]


class Terminal(CommandTest):
    def open_terminal(self, *command):
        """Starts `command` as the leader of a new session on a terminal of its own."""
        self.terminal, other = pty.openpty()

        def take_terminal():
            os.setsid()
            fcntl.ioctl(other, termios.TIOCSCTTY, 0)

        process = self.start(*command[1:], binary=command[0], stdin=other, stdout=other, stderr=other, preexec_fn=take_terminal)
        os.close(other)
        self.addCleanup(self.close_terminal)
        return process

    def close_terminal(self):
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def screen(self):
        text = b""
        while select.select([self.terminal], [], [], 0)[0]:
            try:
                text += os.read(self.terminal, 65536)
            except OSError:  # nobody has the terminal open any more
                break
        return text.decode(errors="replace")

    def end(self, process, status=0):
        open(self.path("logs/end"), "w").close()
        end = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < end:
            self.screen()  # a full terminal would hold castor up
            time.sleep(0.02)
        self.assertEqual(process.poll(), status)

    def test_ctrl_c_reaches_each_rank_once(self):
        for count in (1, 3):
            process = self.open_terminal(BINARY, "run", *ranks(count), *self.python(NOTE))
            self.wait_for_files(*[f"logs/rank{rank}" for rank in range(count)])
            for times in (1, 2):
                self.type("\x03")
                for rank in range(count):
                    wait_for(lambda: self.text(f"logs/sig{rank}") == "SIGINT\n" * times, f"SIGINT at rank {rank}")
            self.end(process)
            for rank in range(count):
                self.assertEqual(self.text(f"logs/sig{rank}"), "SIGINT\n" * 2)
                os.remove(self.path(f"logs/sig{rank}"))
                os.remove(self.path(f"logs/rank{rank}"))
            os.remove(self.path("logs/end"))

    def test_rank_0_reads_the_terminal(self):
        for count in (1, 2):
            process = self.open_terminal(BINARY, "run", *ranks(count), *self.python(NOTE), "read")
            self.wait_for_files("logs/rank0")
            self.type("hello\n")
            wait_for(lambda: self.text("logs/line") == "hello\n", "the line")
            self.end(process)
            for name in ("line", "end", "rank0"):
                os.remove(self.path("logs/" + name))

    def shell(self):
        """A shell with job control; castor runs as its job."""
        shell = self.open_terminal("bash", "--norc", "--noprofile", "-i")
        script = " ".join(self.python(NOTE))
        self.type(f"{BINARY} run {' '.join(ranks(2))} {script}; echo status-$?\n")
        self.wait_for_files("logs/rank0", "logs/rank1")
        self.castors = [pid for pid in self.marked() if os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(BINARY)]
        self.workers = [pid for pid in self.marked() if "python" in os.path.realpath(f"/proc/{pid}/exe")]
        self.assertEqual(len(self.workers), 2)
        return shell

    def test_ctrl_z_and_fg(self):
        shell = self.shell()
        self.type("\x1a")
        wait_for(lambda: [state(pid) for pid in self.workers] == ["T", "T"], "both ranks to stop")
        wait_for(lambda: "T" in [state(pid) for pid in self.castors], "castor to stop")
        self.type("fg\n")
        wait_for(lambda: "T" not in [state(pid) for pid in self.workers + self.castors], "everything to go on")
        self.type("\x03")
        wait_for(lambda: self.text("logs/sig0") and self.text("logs/sig1"), "SIGINT after fg")
        open(self.path("logs/end"), "w").close()
        wait_for(lambda: all(not os.path.exists(f"/proc/{pid}") for pid in self.workers), "the ranks to end")
        self.type("exit\n")
        self.end(shell)
        self.assertEqual((self.text("logs/sig0"), self.text("logs/sig1")), ("SIGINT\n", "SIGINT\n"))

    def test_ctrl_z_and_bg(self):
        shell = self.shell()
        self.type("\x1a")
        wait_for(lambda: [state(pid) for pid in self.workers] == ["T", "T"], "both ranks to stop")
        self.type("bg\n")
        wait_for(lambda: "T" not in [state(pid) for pid in self.workers + self.castors], "everything to go on")
        open(self.path("logs/end"), "w").close()
        wait_for(lambda: all(not os.path.exists(f"/proc/{pid}") for pid in self.workers + self.castors), "the end")
        self.type("exit\n")
        self.end(shell)

    def test_a_terminal_that_is_closed(self):
        process = self.open_terminal(BINARY, "run", *ranks(2), "sh", "-c", "touch $CASTOR_LOG_DIR/up$CASTOR_RANK; sleep 600")
        self.wait_for_files("logs/up0", "logs/up1")
        self.close_terminal()
        wait_for(lambda: not self.marked(), "everything to end")
        self.assertEqual(process.wait(timeout=30), 128 + signal.SIGHUP)
