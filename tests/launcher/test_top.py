"""castor top: on log directories that the test writes, on a pipe and on a terminal."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading

from command import BINARY, LIMIT_S, CommandTest, wait_for
from fake_job import COLLECTIVE, RECEIVE, RECEIVED, SENT, STORE, Process, sleeper


class Top(CommandTest):
    def job(self, ranks, running=True, folder="log"):
        os.makedirs(self.path(folder), exist_ok=True)
        return [Process(self.path(folder), rank, sleeper(self) if running else None) for rank in range(ranks)]

    def top(self, *arguments, status=0):
        done, out, err = self.castor("top", *arguments)
        err = "\n".join(err)
        self.assertEqual(done, status, f"{out}\n{err}")
        self.assertNotIn("\033", out + err)
        return out, err

    def test_an_ended_job(self):
        for rank, process in enumerate(self.job(2, running=False)):
            process.steps(1234)
            process.gauge("param", 3 << 20)
            process.gauge("optim", 6 << 20)
            process.gauge("wait_ns", 5 * 10**9)
            process.collective(3, b"allreduce", 40, 40 << 20, 20 * 10**6)
            process.write()
        out, err = self.top("log")
        self.assertEqual(err, "")
        self.assertIn("log: ended, ran 10.00 s, 2 ranks, plugin none\ntrain.py\n", out)
        row = re.search(r"^0 +\d+ +finished +1,234 +123\.4 +3\.0 MiB +- +6\.0 MiB +(- +){4}50%$", out, re.MULTILINE)
        self.assertTrue(row, out)
        self.assertRegex(out, r"allreduce +80 +- +1\.0 MiB +2\.0 GiB/s")
        self.assertTrue(out.endswith("the job has ended; castor report shows all of it\n"), out)

    def test_memory_by_tier(self):
        processes = self.job(2, running=False)
        for process in processes:
            for name, bytes in (("param", 6), ("grad", 2), ("optim", 8), ("other", 1)):
                process.gauge(name, bytes << 20)
            process.write()
        self.assertNotIn("memory of all ranks", self.top("log")[0])
        for process in processes:
            for name, bytes in (("device_param", 4), ("device_grad", 2), ("device_other", 7), ("disk_param", 1), ("disk_optim", 8)):
                process.gauge(name, bytes << 20)
            process.write()
        out, _ = self.top("log")
        self.assertRegex(out, r"\nmemory of all ranks +param +grad +optim +other\n"
                              r"device +8\.0 MiB +4\.0 MiB +- +14\.0 MiB\n"
                              r"host +2\.0 MiB +- +- +2\.0 MiB\n"
                              r"disk +2\.0 MiB +- +16\.0 MiB +-\n")

    def test_homes_slots_and_the_link(self):
        processes = self.job(2)
        for process in processes:
            process.gauge("device_param", 4 << 20)
            process.write()
        self.assertNotIn("slots", self.top("log", "--once", "--interval", "0.1")[0])
        for process in processes:
            for name, value in (("device_slots", 3 << 20), ("device_budget", 1 << 30), ("flips_to_host", 6), ("flipped_to_host", 12 << 20), ("rescues", 1),
                                ("slot_uses", 10), ("slot_hits", 9), ("slot_in_time", 6), ("slot_home_reads", 1), ("link_to_device", 5 << 20),
                                ("overflow", 4 << 20), ("overflow_segments", 1)):
                process.gauge(name, value)
            process.write()
        out, _ = self.top("log", "--once", "--interval", "0.1")
        self.assertRegex(out, r"memory of all ranks +param +grad +optim +slots +other\ndevice +8\.0 MiB +- +- +6\.0 MiB +-\n")
        self.assertIn("homes: at most 2.0 GiB on the device; 12 moved to the host, 24.0 MiB, since 2 allocations had no room\n", out)
        self.assertIn("slots: 6.0 MiB; 90% of 20 uses read a copy (0% prefetched, 67% in time), 2 the home; 0 copies, 0 B\n", out)
        self.assertIn("link: 10.0 MiB to the device; 0 B to the host\n", out)
        self.assertIn("overflow: 8.0 MiB of the host's memory under the device's addresses, in 2 allocations; 8.0 MiB at most\n", out)

    def lines(self, running):
        """Those that it writes, until the limit."""
        limit = threading.Timer(LIMIT_S, running.kill)
        limit.start()
        self.addCleanup(limit.cancel)
        yield from iter(running.stdout.readline, "")
        raise AssertionError("it has ended")

    def test_the_link_now(self):
        process = self.job(1)[0]
        process.gauge("link_to_device", 1)
        process.write()
        running = self.start("top", "log", "--interval", "0.3")
        lines = self.lines(running)
        while not next(lines).startswith("link: 1 B to the device; 0 B"):
            pass
        process.gauge("link_to_device", 1 + 30 * 10**6)
        process.write()
        text = ""
        while "now" not in text:
            text = next(lines)
        rate = float(re.match(r"link: 28\.6 MiB to the device, now (\d+\.\d+) MB/s; 0 B to the host\n$", text)[1])
        self.assertTrue(10 < rate < 101, text)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(timeout=LIMIT_S), 128 + signal.SIGTERM)

    def test_rates_come_from_two_looks(self):
        process = self.job(1)[0]
        process.steps(100)
        process.collective(3, b"allreduce", 10, 10 << 20, 10**9)
        process.write()
        running = self.start("top", "log", "--interval", "0.3")
        lines = self.lines(running)
        self.assertRegex("".join(next(lines) for _ in range(6)), r"\n0 .* 100 +(9|1\d)\.\d+ ")
        process.steps(200)
        process.collective(3, b"allreduce", 20, 30 << 20, 10**9 + 10**8)
        process.write()
        text = ""
        while "200 " not in text:
            text = next(lines)
        rate = float(text.split()[4])
        self.assertTrue(50 < rate < 500, text)  # 100 steps in a look of 0.3 s, or of more on a busy machine
        while "allreduce" not in text:
            text = next(lines)
        self.assertRegex(text, r"allreduce +20 +\d+\.\d +2\.0 MiB +200\.0 MiB/s")
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(timeout=LIMIT_S), 128 + signal.SIGTERM)

    def test_it_ends_with_the_job(self):
        process = self.job(1)[0]
        process.steps(7)
        process.write()
        running = self.start("top", "log", "--interval", "0.1")
        self.assertIn("running for", running.stdout.readline())
        process.counters.exit_state = 1
        process.write()
        out, err = running.communicate(timeout=LIMIT_S)
        self.assertEqual((running.returncode, err), (0, ""))
        self.assertIn("log: ended", out)
        self.assertIn("the job has ended", out.splitlines()[-1])

    def test_who_waits_for_whom(self):
        first, second, third = self.job(3)
        for rank, process in enumerate((first, second, third)):
            process.group(0, b"0", rank, range(3), 5 if process is not third else 4)
            process.group(1, b"pair", rank, (0, 1), 9)
        first.wait(0, COLLECTIVE, b"allreduce", 4, group=0, ordinal=5)
        second.wait(0, COLLECTIVE, b"allreduce", 3, group=0, ordinal=5)
        second.wait(1, COLLECTIVE, b"allgather", 2, group=1, ordinal=9)  # under way on both
        first.wait(1, COLLECTIVE, b"allgather", 2, group=1, ordinal=9)
        third.wait(0, STORE, b"the end of backward", 8, missing_pid=first.live.pid)
        for process in (first, second, third):
            process.write()
        out, _ = self.top("log", "--once", "--interval", "0.1")
        waiting = out.partition("waiting\n")[2].splitlines()
        self.assertRegex(waiting[0], r"^  rank 2: 8\.\d+ s in the end of backward for rank 0$")
        self.assertRegex(waiting[1], r"^  ranks 0 and 1: 4\.\d+ s in allreduce 5 of process group 0 \(3 ranks\) for rank 2$")
        self.assertRegex(waiting[2], r"^  ranks 0 and 1: 2\.\d+ s in allgather 9 of process group pair \(2 ranks\)$")

    def waiting(self, *processes):
        for process in processes:
            process.write()
        out, _ = self.top("log", "--once", "--interval", "0.1")
        return out.partition("waiting\n")[2].split("\n\n")[0].splitlines()

    def test_collectives_that_are_enqueued(self):
        first, second, third = processes = self.job(3)
        for rank, (process, entered) in enumerate(zip(processes, (5, 6, 4))):
            process.group(0, b"0", rank, range(3), entered)
            process.enqueued(0, (b"broadcast", b"allreduce", b"allgather")[rank], 9 - rank)
        self.assertRegex(self.waiting(*processes)[0], r"^  ranks 0 and 1: 9\.\d+ s in broadcast 5 of process group 0 \(3 ranks\) for rank 2$")
        # Who is ahead goes on: nobody waits.
        second.enqueued(0, b"allreduce", -3600)
        self.assertEqual(self.waiting(*processes), [])
        second.enqueued(0, b"allreduce", 7)
        self.assertEqual(len(self.waiting(*processes)), 1)
        second.group(1, b"1", 0, (1,), 1)  # or goes on elsewhere
        second.enqueued(1, b"allreduce", -3600)
        self.assertEqual(self.waiting(*processes), [])
        second.enqueued(1, b"allreduce", 7)
        self.assertEqual(len(self.waiting(*processes)), 1)
        third.group(0, b"0", 2, range(3), 6)
        first.group(0, b"0", 0, range(3), 6)
        self.assertEqual(self.waiting(*processes), [])

    def test_devices_that_are_waited_for(self):
        first, second, third = processes = self.job(3)
        for rank, process in enumerate(processes):
            process.group(0, b"0", rank, range(3), 5)
            process.enqueued(0, b"allreduce", 9)
        self.assertEqual(self.waiting(*processes), [])
        for rank, process in enumerate((first, second)):
            process.device(rank, b"cudaStreamSynchronize", 8 - rank)
        self.assertRegex(self.waiting(*processes)[0], r"^  ranks 0 and 1: 8\.\d+ s in cudaStreamSynchronize$")
        third.device(2, b"cudaStreamSynchronize", 0, progress=5)  # the device of the third one goes on, or did
        self.assertRegex(self.waiting(*processes)[0], r"^  ranks 0 and 1: 5\.\d+ s in cudaStreamSynchronize$")
        third.device(2, b"cudaStreamSynchronize", 0, progress=0)
        self.assertEqual(self.waiting(*processes), [])
        third.device(2, b"cudaStreamSynchronize", 0, progress=5)
        third.live.groups[0].name = b"1"  # of another group: it says nothing about the others
        self.assertRegex(self.waiting(*processes)[0], r"^  ranks 0 and 1: 8\.\d+ s in cudaStreamSynchronize$")
        third.group(0, b"0", 2, range(3), 4)  # it is behind: the devices of the others wait for it
        self.assertRegex(self.waiting(*processes)[0], r"^  ranks 0 and 1: 9\.\d+ s in allreduce 5 .* for rank 2$")
        self.assertEqual(len(self.waiting(*processes)), 1)
        third.enqueued(0, b"allreduce", -3600)  # and goes on
        self.assertEqual(self.waiting(*processes), [])

    def test_messages_that_are_enqueued(self):
        first, second = processes = self.job(2)
        for rank, process in enumerate(processes):
            process.group(0, b"0", rank, range(2), 3)
            process.enqueued(0, b"allreduce", 4)
        first.channel(0, SENT, 1, 7)
        second.channel(3, RECEIVED, 0, 7)
        self.assertEqual(self.waiting(*processes), [])
        second.channel(3, RECEIVED, 0, 8)
        self.assertRegex(self.waiting(*processes)[0], r"^  rank 1: 4\.\d+ s in recv from rank 0 8 of process group 0 \(2 ranks\) for rank 0$")
        first.channel(0, SENT, 1, 9)
        self.assertRegex(self.waiting(*processes)[0], r"^  rank 0: 4\.\d+ s in send to rank 1 9 of process group 0 \(2 ranks\) for rank 1$")

    def test_a_message_that_was_not_sent(self):
        first, second = processes = self.job(2)
        for rank, process in enumerate(processes):
            process.group(0, b"0", 1 - rank, range(2), 3)  # in the group, rank 0 is 1
        first.wait(0, RECEIVE, b"recv", 4, group=0, ordinal=8, peer=0, tag=5)
        second.channel(0, SENT, 1, 8, tag=6)
        second.channel(1, SENT, 1, 7, tag=5)
        self.assertRegex(self.waiting(*processes)[0], r"^  rank 0: 4\.\d+ s in recv 8 of process group 0 \(2 ranks\) for rank 1$")
        second.channel(1, SENT, 1, 8, tag=5)  # it is on its way
        self.assertRegex(self.waiting(*processes)[0], r"^  rank 0: 4\.\d+ s in recv 8 of process group 0 \(2 ranks\)$")
        second.channel(1, SENT, 0, 8, tag=5)  # not counted for this channel, and that says nothing
        second.live.channels_lost = 1
        self.assertRegex(self.waiting(*processes)[0], r"\(2 ranks\)$")

    def test_a_process_that_was_killed(self):
        process = sleeper(self)
        os.mkdir(self.path("log"))
        Process(self.path("log"), 0, process).write()
        process.kill()
        process.wait()
        out, _ = self.top("log")
        self.assertRegex(out, r"\n0 +\d+ +died ")

    def test_the_newest_run_is_the_default(self):
        for name in ("one", "two"):
            self.job(1, running=False, folder=f"castor-logs/{name}")[0].write()
        os.utime(self.path("castor-logs/two"), (1, 1))
        self.assertIn("castor-logs/one: ended", self.top()[0])
        os.utime(self.path("castor-logs/one"), (0, 0))
        self.assertIn("castor-logs/two: ended", self.top()[0])

    def test_nothing_to_show(self):
        os.mkdir(self.path("empty"))
        for arguments, status, text in (
            ((), 1, "there is no run in ./castor-logs"),
            (("nowhere",), 1, "nowhere cannot be read: No such file or directory"),
            (("empty",), 1, "empty holds no trace"),
            (("--interval", "0", "empty"), 2, "must be seconds from 0.1 to 3600"),
            (("--interval",), 2, "a value is missing: --interval SECONDS"),
            (("--twice",), 2, "unknown option"),
            (("empty", "empty"), 2, "one directory"),
            (("",), 2, "the directory's name is empty"),
        ):
            out, err = self.top(*arguments, status=status)
            self.assertEqual((out, len(err.splitlines())), ("", 1), arguments)
            self.assertIn(text, err)

    def test_files_that_are_no_trace(self):
        process = self.job(1, running=False)[0]
        process.write()
        whole = os.path.join(process.folder, process.name)
        with open(self.path("log/foreign.counters"), "w") as file:
            file.write("not a trace" * 30000)
        os.mkfifo(self.path("log/pipe.counters"))
        os.symlink("/dev/zero", self.path("log/zero.live"))
        os.truncate(whole + ".live", 100)
        out, _ = self.top("log")
        self.assertIn("1 rank, ", out)
        self.assertIn("1 file cannot be read: foreign.counters is not a counter file of castor", out)
        os.truncate(whole + ".counters", 5000)
        out, err = self.top("log", status=1)
        self.assertIn("log holds no trace that can be read", err)

    def test_files_that_shrink_while_they_are_read(self):
        process = self.job(1)[0]
        process.steps(7)
        process.write()
        whole = [os.path.join(process.folder, process.name + suffix) for suffix in (".counters", ".live")]
        running = self.start("top", "log", "--interval", "0.1")
        for i in range(12):
            os.truncate(whole[i % 2], 4096 * (i % 5))
            expected = "no process of the job has used PyTorch yet" if i % 2 == 0 else "running for"
            self.assertTrue(any(expected in line for line in running.stdout), running.poll())
            process.write()
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(timeout=LIMIT_S), 128 + signal.SIGTERM)

    def test_figures_that_no_counter_can_have(self):
        process = self.job(1)[0]
        process.collective(3, b"allreduce", 1, 2**64 - 1, 1)
        process.write()
        out, _ = self.top("log", "--once", "--interval", "0.1")
        self.assertRegex(out, r"allreduce +1 +0\.0 ")
        process.counters.exit_state = 1
        process.write()
        out, _ = self.top("log")
        self.assertRegex(out, r"allreduce .* 16\.0 EiB +16\.0 EiB/s")

    def test_control_characters_do_not_reach_the_terminal(self):
        first, second = self.job(2)
        for rank, process in enumerate((first, second)):
            process.counters.command = b"train\033[2J.py"
            process.counters.plugin = b"\033]0;x\007"
            process.collective(3, b"all\033[31mreduce", 1, 1, 1)
            process.group(0, b"\033[5m", rank, (0, 1), 1 - rank)
        first.wait(0, COLLECTIVE, b"all\nreduce\033", 3, group=0, ordinal=1)
        first.write()
        second.write()
        out, _ = self.top("log", "--once", "--interval", "0.1")  # looks for escape
        self.assertIn("train?[2J.py", out)
        self.assertIn("in all?reduce? 1 of process group ?[5m (2 ranks) for rank 1", out)

    # ---- on a terminal ----

    def open_terminal(self, *arguments, size=(24, 100), term="xterm"):
        self.terminal, other = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(other)

        def take_terminal():
            os.setsid()
            fcntl.ioctl(other, termios.TIOCSCTTY, 0)

        process = self.start("top", *arguments, stdin=other, stdout=other, stderr=other, env={"TERM": term},
                             preexec_fn=take_terminal)
        self.other = other  # keeps the terminal, and shows how it is set
        self.addCleanup(os.close, self.terminal)
        self.addCleanup(os.close, other)
        self.screen = ""
        return process

    def resize(self, rows, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_screen(self):
        while select.select([self.terminal], [], [], 0)[0]:
            self.screen += os.read(self.terminal, 65536).decode()
        return self.screen

    def shown(self, text):
        wait_for(lambda: text in self.read_screen(), text)

    def check_given_back(self, process, status):
        wait_for(lambda: self.read_screen() is not None and process.poll() is not None, "castor top to end")
        self.assertEqual(process.returncode, status)
        self.read_screen()
        self.assertEqual(termios.tcgetattr(self.other), self.before)
        self.assertEqual(self.screen.count("\033[?1049h"), self.screen.count("\033[?1049l"))
        self.assertEqual(self.screen.count("\033[?25l"), self.screen.count("\033[?25h"))
        self.assertGreaterEqual(self.screen.rindex("\033[?1049l"), self.screen.rindex("\033[?1049h"))

    def test_q_and_ctrl_c_and_sigterm(self):
        self.job(1)[0].write()
        for key, status in (("q", 0), ("\x03", 0), (None, 128 + signal.SIGTERM)):
            process = self.open_terminal("log", "--interval", "0.1")
            self.shown("q quits")
            self.assertFalse(termios.tcgetattr(self.other)[3] & (termios.ICANON | termios.ECHO))
            if key:
                os.write(self.terminal, key.encode())
            else:
                process.send_signal(signal.SIGTERM)
            self.check_given_back(process, status)

    def test_the_last_state_stays(self):
        process = self.job(1)[0]
        process.write()
        top = self.open_terminal("log", "--interval", "0.1")
        self.shown("running for")
        process.counters.exit_state = 1
        process.steps(99)
        process.write()
        self.check_given_back(top, 0)
        last = self.screen[self.screen.rindex("\033[?1049l"):]
        self.assertIn("log: ended", last)
        self.assertIn("the job has ended", last)

    def test_windows_of_any_size(self):
        for process in self.job(2):
            process.write()
        process = self.open_terminal("log", "--interval", "0.1", size=(24, 100))
        self.shown("PSS")
        for rows, columns in ((24, 40), (3, 20), (1, 1), (50, 200)):
            self.resize(rows, columns)
            process.send_signal(signal.SIGWINCH)
            self.read_screen()
            self.screen = ""
            frames = wait_for(lambda: (lambda f: f[1:-1] if len(f) > 3 else None)(self.read_screen().split("\033[H")), "frames")
            for frame in frames[1:]:
                lines = [re.sub(r"\033\[[0-9?]*[A-Za-z]|\r", "", line) for line in frame.split("\n")]
                self.assertLessEqual(len(lines), rows)
                self.assertLessEqual(max(map(len, lines)), columns)
        os.write(self.terminal, b"q")
        wait_for(lambda: self.read_screen() is not None and process.poll() is not None, "the end")

    def test_a_dumb_terminal_gets_lines(self):
        self.job(1)[0].write()
        for term in ("dumb", ""):
            process = self.open_terminal("log", "--interval", "0.1", term=term)
            self.shown("running for")
            os.write(self.terminal, b"q\n")
            wait_for(lambda: self.read_screen() is not None and process.poll() is not None, "the end")
            self.assertEqual(process.returncode, 0)
            self.assertNotIn("\033", self.screen)
            self.assertEqual(termios.tcgetattr(self.other), self.before)

    def test_ctrl_z(self):
        self.job(1)[0].write()
        process = self.open_terminal("log", "--interval", "0.1")
        self.shown("q quits")
        # The leader of a session is an orphaned group, which the terminal's Ctrl-Z does not stop: it goes on at once.
        os.write(self.terminal, b"\x1a")
        wait_for(lambda: self.read_screen().count("\033[?1049h") == 2, "the screen to be taken again")
        self.assertFalse(termios.tcgetattr(self.other)[3] & termios.ICANON)
        os.write(self.terminal, b"q")
        self.check_given_back(process, 0)
