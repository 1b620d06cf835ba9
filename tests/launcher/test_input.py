"""Bad input: one line that says what to do, a status, and nothing started or written."""
import fcntl
import os
import shutil
import sys

from command import BINARY, LIBRARY, SONAME, CommandTest


class BadInput(CommandTest):
    def refused(self, arguments, status, *parts, env={}, **options):
        before = sorted(os.listdir(self.folder))
        code, out, err = self.castor(*arguments, env=env, **options)
        self.assertEqual((code, out), (status, ""), err)
        self.assertEqual(len(err), 1, err)
        self.assertTrue(err[0].startswith("castor: "), err)
        for part in parts:
            self.assertIn(part, err[0])
        self.assertEqual(sorted(os.listdir(self.folder)), before, "something was written")

    def run_refused(self, options, status, *parts, env={}, command=("touch", "started")):
        self.refused(["run", *options, "--", *command], status, *parts, env=env)

    def test_unknown_plugin(self):
        self.run_refused(["--plugin", "gemni"], 2, "gemni", "did you mean gemini?", "none, ddp, zero1, zero2, gemini")
        self.run_refused(["--plugin=quux"], 2, "quux", "allowed: none, ddp, zero1, zero2, gemini")
        self.run_refused([], 2, "environment", "gemini", env={"CASTOR_PLUGIN": "Gemini"})

    def test_accumulation_without_an_engine(self):
        self.run_refused(["--set", "CASTOR_ACCUMULATE=4"], 2, "CASTOR_ACCUMULATE=4", "plugin none", "--plugin ddp")

    def test_copies_that_would_train_apart(self):
        for options, env in ((["--nproc", "2"], {}), (["--nproc", "2", "--plugin", "none"], {"CASTOR_PLUGIN": "ddp"}),
                             (["--nproc", "2"], {"CASTOR_PLUGIN": "none"})):
            self.run_refused(options, 2, "--nproc 2", "plugin none", "--plugin gemini", "torchrun --nproc-per-node 2", env=env)
        self.assertEqual(self.castor("run", "--nproc", "1", "true")[0], 0)

    def test_bad_values(self):
        self.run_refused(["--set", "CASTOR_CHUNK_SIZE=12Q"], 2, "CASTOR_CHUNK_SIZE=12Q", "64K to 16G")
        self.run_refused(["--set", "CASTOR_TIMEOUT=0"], 2, "CASTOR_TIMEOUT=0", "0.1 to 86400")
        self.run_refused(["--set", "CASTOR_ARENA=yes"], 2, "CASTOR_ARENA=yes", "1 (on) or 0 (off)")
        self.run_refused([], 2, "environment", "CASTOR_CHUNK_SIZE=1", env={"CASTOR_CHUNK_SIZE": "1"})

    def test_a_setting_replaces_a_bad_value_of_the_environment(self):
        status, _, err = self.castor("run", "--plugin", "none", "--", "true", env={"CASTOR_PLUGIN": "gemni"})
        self.assertEqual(status, 0, err)

    def test_unknown_names(self):
        self.run_refused(["--set", "CASTOR_PLUGN=gemini"], 2, "CASTOR_PLUGN", "did you mean CASTOR_PLUGIN?")
        self.run_refused([], 2, "CASTOR_CHUNKSIZE", "did you mean CASTOR_CHUNK_SIZE?", env={"CASTOR_CHUNKSIZE": "1M"})
        self.run_refused(["--set", "PATH=/x"], 2, "PATH", "castor options")
        self.run_refused(["--set", "CASTOR_RANK=1"], 2, "CASTOR_RANK", "castor run")
        self.run_refused(["--set", "CASTOR_DEBUG"], 2, "NAME=VALUE")

    def test_options_of_run(self):
        self.run_refused(["--nprocs", "2"], 2, "--nprocs", "did you mean --nproc?")
        self.run_refused(["--xyzzy"], 2, "--xyzzy", "castor run --help")
        self.run_refused(["--all-output=yes"], 2, "--all-output", "no value")
        self.run_refused(["--plugin"], 2, "--plugin", "missing")
        self.run_refused(["--log-dir", ""], 2, "--log-dir")

    def test_numbers_of_ranks(self):
        for value in ("0", "abc", "-1", "2.5", "", "99999999999999999999", "2x", " 2", "65537"):
            self.run_refused(["--nproc", value], 2, "--nproc", "from 1 to")

    def test_devices_of_a_rehearsal(self):
        for value in ("0", "abc", "-1", "2.5", "17"):
            self.refused(["rehearse", "--devices", value, "--", "touch", "started"], 2, f"--devices {value}", "from 1 to 16")
        for value in ("0", "much", "1.5G", "1K", "2T"):
            self.refused(["rehearse", "--memory", value, "--", "touch", "started"], 2, f"--memory: CASTOR_REHEARSE_MEMORY={value}", "from 1M to 1T")
        self.refused(["rehearse", "--devices", "2"], 2, "castor rehearse [OPTION]... -- COMMAND")
        self.refused(["rehearse", "--device", "2", "--", "touch", "started"], 2, "--device: unknown option; did you mean --devices?")
        self.run_refused(["--set", "CASTOR_REHEARSE_DEVICES=2"], 2, "CASTOR_REHEARSE_DEVICES is set by `castor run` itself")

    def test_what_keeps_the_agent_away(self):
        gemini, off = ["--plugin", "gemini"], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        first = self.script("first", "#!/usr/bin/env -S python3 -E\n")
        for what, command, env in (
            ("TORCH_DEVICE_BACKEND_AUTOLOAD=0", ["touch", "started"], off),
            ("TORCH_DEVICE_BACKEND_AUTOLOAD=0", ["env", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", "touch", "started"], {}),
            ("-E of python3", ["python3", "-E", "x.py"], {}),
            ("-I of python3", ["env", "A=b", "nice", "python3", "-uI", "-m", "x"], {}),
            ("-I of python3", ["mpirun", "-n", "2", "python3", "-I", "x.py"], {}),
            (f"-E of python3 in the first line of {first}", [first], {}),
            ("-i of env", ["env", "-i", "touch", "started"], {}),
            ("-u PYTHONPATH", ["env", "-u", "PYTHONPATH", "touch", "started"], {}),
            ("PYTHONPATH=/x of env (set it in front of castor run)", ["env", "PYTHONPATH=/x", "touch", "started"], {}),
        ):
            if shutil.which(command[0]):
                self.run_refused(gemini, 2, "plugin gemini cannot be applied", what, "leave it out", command=command, env=env)
        for options, command, env in (
            (["--plugin", "none"], ["true"], off),
            ([*gemini, "--set", "CASTOR_ON_ERROR=passthrough"], ["true"], off),
            (gemini, ["env", "-u", "TORCH_DEVICE_BACKEND_AUTOLOAD", "true"], off),
            (gemini, ["env", "TORCH_DEVICE_BACKEND_AUTOLOAD=1", "true"], off),
            (gemini, ["python3", "-c", "pass", "-E"], {}),
        ):
            status, _, err = self.castor("run", *options, "--", *command, env=env)
            self.assertEqual(status, 0, err)

    def test_missing_command(self):
        for arguments in (["run"], ["run", "--"], ["run", "--plugin", "gemini"], ["run", "--", ""]):
            self.refused(arguments, 2, "command is missing", "castor run")

    def test_subcommands(self):
        self.refused([], 2, "castor run", "castor help")
        self.refused(["rnu"], 2, "rnu", "did you mean castor run?")
        self.assertNotIn("did you mean", self.castor("foo")[2][0])
        self.refused(["optoins"], 2, "did you mean castor options?")
        self.refused(["xyzzy"], 2, "castor help")
        self.refused(["options", "--markdwon"], 2, "did you mean --markdown?", "castor options --help")
        self.refused(["hooks", "memory"], 2, "memory", "castor hooks --help")
        self.refused(["version", "2"], 2, "takes none")
        self.refused(["help", "rnu"], 2, "did you mean castor run?")

    def test_command_not_found(self):
        self.run_refused([], 127, "no-such-command", "PATH", command=["no-such-command"])
        self.run_refused([], 127, "./no-such-command", command=["./no-such-command"])
        self.run_refused([], 127, "python", command=["./no-such-script.py"])

    def test_command_that_cannot_be_executed(self):
        os.mkdir(self.path("bin"))
        self.script("bin/plain-file", "echo\n", 0o644)
        self.script("train.py", "print()\n", 0o644)
        path = self.path("bin") + ":" + os.environ["PATH"]
        self.run_refused([], 126, "directory", command=["./bin"])
        self.run_refused([], 126, "not executable", command=["./bin/plain-file"])
        self.refused(["run", "plain-file"], 126, "not executable", env={"PATH": path})
        self.run_refused([], 126, "castor run -- python ./train.py", command=["./train.py"])
        self.run_refused([], 127, "castor run -- python train.py", command=["train.py"])

    def test_interpreter_that_does_not_exist(self):
        self.script("orphan", "#!/no/such/interpreter\n")
        self.run_refused([], 127, "./orphan", "interpreter", command=["./orphan"])
        self.run_refused(["--nproc", "2", "--plugin", "gemini"], 127, "./orphan", "interpreter", command=["./orphan"])
        self.run_refused(["--log-dir", "a/b/c"], 127, "./orphan", command=["./orphan"])

    def test_unwritable_log_directories(self):
        self.script("file", "")
        self.run_refused(["--log-dir", "file"], 1, "file", "--log-dir")
        self.run_refused(["--log-dir", "file/below"], 1, "file/below", "--log-dir")
        self.run_refused(["--log-dir", "/proc/castor"], 1, "/proc/castor", "--log-dir")
        self.run_refused(["--log-dir", "/sys"], 1, "/sys", "--log-dir")
        self.run_refused(["--log-dir", "x" * 4096], 2, "CASTOR_LOG_DIR", "too long")
        self.run_refused([], 1, "/proc/castor", env={"CASTOR_LOG_DIR": "/proc/castor"})

    def test_unwritable_default_log_directory(self):
        self.script("castor-logs", "a file\n")
        self.run_refused([], 1, "castor-logs", "--log-dir")

    def test_log_directory_in_use(self):
        os.mkdir(self.path("logs"))
        held = os.open(self.path("logs"), os.O_RDONLY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        self.run_refused(["--log-dir", "logs"], 1, "logs", "in use", "--log-dir")

    def test_other_launchers(self):
        for command, fix in (
            (["torchrun", "train.py"], "--nproc-per-node 2"),
            (["/venv/bin/torchrun", "train.py"], "--nproc-per-node 2"),
            (["python", "-m", "torch.distributed.run", "train.py"], "--nproc-per-node 2"),
            (["python3.12", "-um", "torch.distributed.launch", "train.py"], "--nproc-per-node 2"),
            (["python", "-X", "dev", "-mtorch.distributed.run"], "--nproc-per-node 2"),
            (["env", "A=b", "torchrun", "train.py"], "--nproc-per-node 2"),
            (["accelerate", "launch", "train.py"], "--num_processes 2"),
            (["deepspeed", "train.py"], "--num_gpus 2"),
            (["mpirun", "python", "train.py"], "-n 2"),
            (["srun", "python", "train.py"], "--ntasks 2"),
        ):
            self.run_refused(["--nproc", "2"], 2, "starts its own ranks", fix, "leave --nproc out", command=command)

    def test_a_script_on_standard_input(self):
        for command in (["python"], [sys.executable, "-"], ["env", "A=b", "python3", "-u"]):
            self.run_refused(["--nproc", "2", "--plugin", "gemini"], 2, "--nproc 2", "standard input", "into a file", "-- python FILE.py",
                             command=command)
        self.assertEqual(self.castor("run", "--plugin", "gemini", sys.executable, "-", input="print('ran')")[:2], (0, "ran\n"))

    def test_notebooks(self):
        for command, name in ((["jupyter", "lab"], "jupyter"), (["/venv/bin/jupyter-lab"], "jupyter-lab"),
                              (["python", "-m", "ipykernel_launcher", "-f", "file"], "ipykernel_launcher"), (["python", "-mipykernel"], "ipykernel")):
            self.run_refused(["--plugin", "gemini", "--nproc", "2"], 2, f"--nproc 2: {name} is one session", "leave --nproc out", command=command)

    def test_parts_that_are_missing(self):
        for name in ("bin", "lib"):
            os.mkdir(self.path(name))
        binary = shutil.copy(BINARY, self.path("bin/castor"))
        self.refused(["run", "true"], 1, "libcastor.so", "make", binary=binary)
        shutil.copy(LIBRARY, self.path("lib/" + SONAME))
        self.refused(["run", "true"], 1, "lib/castor", "make install", binary=binary)


class Subcommands(CommandTest):
    def test_help(self):
        for arguments in (["help"], ["--help"], ["-h"]):
            status, out, err = self.castor(*arguments)
            self.assertEqual((status, err), (0, []))
            self.assertIn("castor run", out)
        status, out, _ = self.castor("run", "--help")
        self.assertEqual(status, 0)
        self.assertEqual(self.castor("help", "run"), (0, out, []))
        for option in ("--plugin", "--nproc", "--set", "--log-dir", "--all-output"):
            self.assertIn(option, out)

    def test_version(self):
        for arguments in (["version"], ["--version"]):
            status, out, err = self.castor(*arguments)
            self.assertEqual((status, err), (0, []))
            self.assertRegex(out, r"^castor \d+\.\d+\.\d+\n$")

    def test_options_say_where_their_values_come_from(self):
        status, out, err = self.castor("options", env={"CASTOR_CHUNK_SIZE": "65536"})
        self.assertEqual((status, err), (0, []))
        self.assertIn("CASTOR_CHUNK_SIZE=64K  (from the environment; ", out)
        self.assertIn("CASTOR_PLUGIN=none  (default; none, ddp, zero1, zero2, gemini, hybrid, fsdp)", out)
        self.assertNotIn("CASTOR_JOB", out)

    def test_options_with_a_bad_environment(self):
        status, out, err = self.castor("options", env={"CASTOR_TIMEOUT": "never"})
        self.assertEqual(status, 2)
        self.assertIn("CASTOR_TIMEOUT=300", out)
        self.assertIn("CASTOR_TIMEOUT=never", err[0])

    def test_tables_as_markdown(self):
        for table in ("options", "hooks"):
            status, out, err = self.castor(table, "--markdown")
            self.assertEqual((status, err), (0, []))
            rows = out.splitlines()
            self.assertGreater(len(rows), 3)
            for row in rows:
                self.assertEqual(row.count("|"), 5, row)

    def test_a_full_disk_is_noticed(self):
        with open("/dev/full", "w") as full:
            status, _, err = self.castor("options", stdout=full)
        self.assertEqual(status, 1)
        self.assertIn("standard output", err[0])
