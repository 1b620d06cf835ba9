"""Statuses, standard streams and the log directory of runs that work."""
import os
import re
import signal
import subprocess

from command import BINARY, CommandTest, ranks


class Status(CommandTest):
    def test_the_command_decides(self):
        for status in (0, 1, 3, 126, 127, 255):
            self.assertEqual(self.castor("run", "sh", "-c", f"exit {status}")[0], status)

    def test_signals(self):
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT):
            status, _, err = self.castor("run", "sh", "-c", f"kill -{int(number)} $$")
            self.assertEqual(status, 128 + number)
            self.assertIn(f"signal {int(number)} ({number.name}", err[0])

    def test_a_file_without_interpreter_line_runs_in_the_shell(self):
        self.script("plain", "echo from the shell; exit 5\n")
        self.assertEqual(self.castor("run", "./plain")[:2], (5, "from the shell\n"))

    def test_arguments_arrive(self):
        arguments = ["--", "a b", "", "*", "--plugin", "-x"]
        status, out, _ = self.castor("run", "--", "printf", "<%s>", *arguments)
        self.assertEqual((status, out), (0, "".join(f"<{word}>" for word in arguments)))

    def test_the_name_of_the_command_stays(self):
        self.assertEqual(self.castor("run", "sh", "-c", "echo $0")[1], "sh\n")

    def test_signal_settings_are_inherited_as_they_were(self):
        show = "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status"
        for trap in ("trap '' HUP USR1; ", ""):
            plain = self.castor("-c", f'{trap} exec sh -c "$1"', "sh", show, binary="sh")[1]
            under = self.castor("-c", f'{trap} exec "$0" run sh -c "$1"', BINARY, show, binary="sh")[1]
            self.assertIn("SigIgn", plain)
            self.assertEqual(under, plain)


class Streams(CommandTest):
    def test_castors_own_lines_are_on_standard_error(self):
        status, out, err = self.castor("run", "sh", "-c", "echo out; echo err >&2")
        self.assertEqual((status, out), (0, "out\n"))
        self.assertIn("err", err)
        for line in err:
            self.assertTrue(line == "err" or line.startswith("castor: "), line)

    def test_the_last_line_names_the_report(self):
        _, _, err = self.castor("run", "true")
        match = re.fullmatch(r"castor: report: castor report (castor-logs/\d{8}-\d{6}(-\d+)?)", err[-1])
        self.assertTrue(match, err)
        self.assertTrue(os.path.isdir(self.path(match[1])))
        _, _, err = self.castor("run", "--log-dir", "it's a log", "false")
        self.assertEqual(err[-1], "castor: report: castor report 'it'\\''s a log'")

    def test_log_level(self):
        self.assertEqual(self.castor("run", "true", env={"CASTOR_LOG_LEVEL": "error"})[2], [])

    def test_standard_input(self):
        self.assertEqual(self.castor("run", "cat", input="hello")[1], "hello")
        show = 'cat > "$CASTOR_LOG_DIR/input$CASTOR_RANK"'
        status, _, err = self.castor("run", *ranks(3), "sh", "-c", show, input="hello")
        self.assertEqual(status, 0, err)
        self.assertEqual([self.text(f"logs/input{rank}") for rank in range(3)], ["hello", "", ""])

    def test_output_of_rank_0_only(self):
        say = "echo out $CASTOR_RANK; echo err $CASTOR_RANK >&2"
        status, out, err = self.castor("run", *ranks(3), "sh", "-c", say)
        self.assertEqual((status, out), (0, "out 0\n"))
        self.assertEqual([line for line in err if line.startswith("err")], ["err 0"])
        for rank in (1, 2):
            self.assertEqual(self.text(f"logs/rank{rank}.out"), f"out {rank}\n")
            self.assertEqual(self.text(f"logs/rank{rank}.err"), f"err {rank}\n")
        self.assertFalse(os.path.exists(self.path("logs/rank0.out")))

    def test_the_errors_of_a_rank_that_fails(self):
        say = 'for i in $(seq 30); do printf "bar 1\\rbar $i\\n" >&2; done; test $CASTOR_RANK = 0 && exec sleep 5; exit $CASTOR_RANK'
        status, _, err = self.castor("run", *ranks(2), "sh", "-c", say)
        self.assertEqual(status, 1)
        self.assertEqual([line for line in err if line.startswith("[rank1]")], [f"[rank1]: bar {i}" for i in range(11, 31)])

    def test_output_of_all_ranks(self):
        say = "echo out $CASTOR_RANK; echo err $CASTOR_RANK >&2"
        status, out, err = self.castor("run", *ranks(3), "--all-output", "sh", "-c", say)
        self.assertEqual((status, sorted(out.splitlines())), (0, ["out 0", "out 1", "out 2"]))
        self.assertEqual(sorted(line for line in err if line.startswith("err")), ["err 0", "err 1", "err 2"])
        self.assertEqual(os.listdir(self.path("logs")), ["castor.about"])

    def test_closed_standard_error(self):
        self.assertEqual(self.castor("-c", 'exec "$0" run --plugin ddp --nproc 2 sh -c "exit 4" 2>&-', BINARY, binary="sh")[0], 4)

    def test_a_reader_that_goes_away(self):
        status, out, _ = self.castor("-c", '"$0" run sh -c "echo one; echo two >&2" 2>&1 | head -n 1', BINARY, binary="sh")
        self.assertEqual((status, out), (0, "one\n"))


class LogDirectory(CommandTest):
    def test_runs_of_the_same_second(self):
        names = set()
        for _ in range(3):
            names.add(self.castor("run", "true")[2][-1])
        self.assertEqual(len(names), 3)
        self.assertEqual(len(os.listdir(self.path("castor-logs"))), 3)

    def test_deep_directories_are_made(self):
        status, out, err = self.castor("run", "--log-dir", "a//b/c/", "sh", "-c", 'echo "$CASTOR_LOG_DIR"')
        self.assertEqual((status, out), (0, self.path("a/b/c") + "\n"), err)

    def test_from_the_environment(self):
        _, out, err = self.castor("run", "sh", "-c", 'echo "$CASTOR_LOG_DIR"', env={"CASTOR_LOG_DIR": "mine"})
        self.assertEqual(out, self.path("mine") + "\n")
        self.assertEqual(err[-1], "castor: report: castor report mine")

    def test_an_earlier_trace_is_replaced_and_nothing_else(self):
        os.mkdir(self.path("logs"))
        earlier = ["rank-0.pid-7.counters", "rank-0.pid-7.tid-7.segment-0.trace", "trace.budget", "passthrough", "castor.about", "rank12.out"]
        others = ["notes.txt", "my.counters", "rank.out", "rank-0.trace", "model.trace"]
        for name in earlier + others:
            self.script(f"logs/{name}", "")
        status, _, err = self.castor("run", "--log-dir", "logs", "true")
        self.assertEqual(status, 0)
        self.assertTrue(any("replaced" in line for line in err), err)
        self.assertEqual(sorted(os.listdir(self.path("logs"))), sorted([*others, "castor.about"]))

    def about(self, *arguments, **changes):
        status, _, err = self.castor("run", "--log-dir", "logs", *arguments, env=changes)
        self.assertEqual(status, 0, err)
        return [tuple(line.split(" ", 1)) for line in self.text("logs/castor.about").splitlines()]

    def test_what_is_known_of_the_run(self):
        lines = self.about("--set", "CASTOR_OFFLOAD_DIR=a\nb", "--set", "CASTOR_MEMORY_BUDGET=300M", "--set", "CASTOR_AUDIT=2", "echo", "two words",
                           CASTOR_TIMEOUT="7", SECRET_KEY="hidden", CASTOR_JOB="0123")
        self.assertEqual([line for line in lines if line[0].startswith("option")],
                         [("option-set", "CASTOR_MEMORY_BUDGET=300M"), ("option-set", "CASTOR_OFFLOAD_DIR=a?b"), ("option-environment", "CASTOR_TIMEOUT=7")])
        known = dict(lines)
        self.assertEqual(known["command"], "echo two words")
        self.assertEqual((known["host"], known["kernel"].split()[1].rstrip(",")), (os.uname().nodename, os.uname().release))
        self.assertEqual(int(known["cores"].split(",")[0]), len(os.sched_getaffinity(0)))
        self.assertGreater(int(known["memory"]), 1 << 20)
        self.assertNotIn("hidden", self.text("logs/castor.about"))
        self.assertEqual(os.stat(self.path("logs/castor.about")).st_mode & 0o777, 0o600)
        self.assertEqual([line for line in self.about("true") if line[0].startswith("option")], [])

    def test_a_limit_of_file_sizes_costs_what_is_known_and_no_more(self):
        status, out, _ = self.castor("-c", 'ulimit -f 1; exec "$0" run --log-dir logs --set "CASTOR_OFFLOAD_DIR=$(printf %02000d 1)" echo here', BINARY, binary="bash")
        self.assertEqual((status, out, os.listdir(self.path("logs"))), (0, "here\n", []))

    def test_a_refused_run_keeps_directories_that_were_there(self):
        os.makedirs(self.path("logs/kept"))
        self.script("orphan", "#!/no/such/interpreter\n")
        self.assertEqual(self.castor("run", "--log-dir", "logs/kept/new", "./orphan")[0], 127)
        self.assertEqual(os.listdir(self.path("logs/kept")), [])

    def test_a_limit_on_the_size_of_files(self):
        limited = 'ulimit -f "$1"; shift; "$@" 2>&1 | cat'  # what is written to a pipe has no limit
        status, out, _ = self.castor("-c", limited, "sh", "8", BINARY, "run", "true", binary="sh")
        self.assertNotIn("nothing was recorded", out)
        status, out, _ = self.castor("-c", limited, "sh", "0", BINARY, "run", "true", binary="sh")
        self.assertEqual(out.count("\n"), 1, out)
        self.assertIn("ulimit -f", out)

    def test_a_log_directory_without_room(self):
        os.makedirs(self.path("small"))
        apart = ["-m"] if os.getuid() == 0 else ["-rm"]
        mount = "mount -t tmpfs -o size=64k none small && mkdir small/log && "
        run = 'exec "$0" run --log-dir small/log echo here'
        if subprocess.run(["unshare", *apart, "sh", "-c", mount + "true"], cwd=self.path("."), capture_output=True, timeout=60).returncode:
            self.skipTest("no file system can be mounted in a namespace of one's own")
        status, out, err = self.castor(*apart, "sh", "-c", mount + run, BINARY, binary="unshare")
        self.assertEqual((status, out), (0, "here\n"))
        self.assertNotIn("nothing was recorded", " ".join(err))  # nothing could have been
        full = "{ cat /dev/zero >small/other; } 2>/dev/null; "
        status, out, err = self.castor(*apart, "sh", "-c", mount + full + run, BINARY, binary="unshare")
        self.assertEqual((status, out, err), (1, "", ["castor: the log directory small/log cannot be written: No space left on device; name another with --log-dir"]))

    def test_passthrough_is_said(self):
        note = 'echo "process 1: the agent was not reached" > "$CASTOR_LOG_DIR/passthrough"'
        status, _, err = self.castor("run", "--plugin", "gemini", "sh", "-c", note)
        self.assertEqual(status, 0)
        said = [line for line in err if "passthrough" in line]
        self.assertEqual(len(said), 1, err)
        self.assertIn("gemini", said[0])
        self.assertIn("the agent was not reached", said[0])

    def test_a_refusal_that_nobody_has_seen_is_said(self):
        """A process that a rank has started without the rank's descriptors can only leave a note."""
        unseen = 'echo "process 7: no: this cannot be split" > "$CASTOR_LOG_DIR/refused-unseen"; '
        for note, count in ((unseen, 1), (unseen + 'echo "process 8: said" > "$CASTOR_LOG_DIR/refused"; ', 0)):
            status, _, err = self.castor("run", "--plugin", "gemini", "--nproc", "2", "sh", "-c", note + "exit 1")
            self.assertEqual(status, 1)
            self.assertEqual(err.count("castor: no: this cannot be split"), count, err)

    def test_a_run_without_torch_is_said(self):
        self.assertTrue(any("no process of the command used PyTorch" in line for line in self.castor("run", "true")[2]))
