"""Jobs that are looked at while they run: the stall watch of castor run, and castor top, on real ranks.

    tests/live/run.py [--castor build/bin/castor] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402
from gloo_words import without_gloo  # noqa: E402

LIMIT_S = 120  # of one job; reached only by a failure
CASTOR = None


class LiveTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="castor-live-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, ranks, *arguments, limit=1, plugin="none", environment=None, starter=None):
        """A job of stall_rank.py under castor run; what it says on standard error collects in `self.errors`."""
        self.errors = os.path.join(self.folder, "errors")
        command = [
            CASTOR, "run", "--plugin", plugin, "--log-dir", "log", "--set", f"CASTOR_STALL_SECONDS={limit}", "--",
            *(starter or runner.ranks(ranks)), os.path.join(FOLDER, "stall_rank.py"), *map(str, arguments),
        ]
        with open(self.errors, "w") as errors:
            job = subprocess.Popen(command, env=environment or runner.environment(), cwd=self.folder, stdout=subprocess.PIPE, stderr=errors, text=True)

        def end():
            if job.poll() is None:
                job.send_signal(signal.SIGTERM)
                try:
                    job.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    job.kill()
            job.wait()
            job.stdout.close()

        self.addCleanup(end)
        return job

    def said(self):
        """The lines of castor itself."""
        with open(self.errors) as file:
            return [line[len("castor: "):].rstrip("\n") for line in file if line.startswith("castor: ")]

    def wait_until_said(self, pattern, job):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = [line for line in self.said() if re.search(pattern, line)]
            if found:
                return found[0]
            if job.poll() is not None:
                break
            time.sleep(0.1)
        self.fail(f"not said: {pattern}\n" + open(self.errors).read())

    def finish(self, job, status=0):
        out, _ = job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, status, open(self.errors).read())
        return without_gloo(out)

    def stalls(self, count):
        """What was said, and of it the stalls, so many."""
        text = "\n".join(self.said())
        found = re.findall(r"^no progress for [\d.]+ s (?:in|on) (.*)$", text, re.M)
        self.assertEqual(len(found), count, text)
        return text, found

    def test_a_rank_that_comes_late(self):
        job = self.start(3, "collective", 6)
        self.assertEqual(sorted(self.finish(job).split("\n")), ["", "done 0", "done 1", "done 2"])
        text, stalls = self.stalls(2)  # each once
        self.assertRegex(stalls[0], r"^allreduce, number 2 of process group \S+ \(3 ranks\): ranks 0 and 1 wait for rank 2$")
        self.assertRegex(stalls[1], r"^allreduce, number 1 of process group \S+ \(2 ranks\): rank 0 waits for rank 2$")
        self.assertEqual(text.count("rank 2 (process "), 2, text)
        for line in ("in <module>", "dawdle()", ", in dawdle", "time.sleep(seconds)"):
            self.assertEqual(text.count(line), 2, text)
        self.assertRegex(text, r"(?m)^solved after [\d.]+ s: allreduce, number 2 of process group \S+ \(3 ranks\)$")
        self.assertRegex(text, r"(?m)^solved after [\d.]+ s: allreduce, number 1 of process group \S+ \(2 ranks\)$")
        stacks = [name for name in os.listdir(os.path.join(self.folder, "log")) if name.endswith(".stack")]
        self.assertEqual(len(stacks), 1)
        with open(os.path.join(self.folder, "log", stacks[0])) as file:
            self.assertEqual(file.read().count("MainThread:\n"), 2)
            self.assertEqual(os.fstat(file.fileno()).st_mode & 0o7777, 0o600)

    def test_a_wait_in_the_node_store(self):
        job = self.start(2, "store", 6, plugin="gemini")
        self.finish(job)
        text = "\n".join(self.said())
        self.assertRegex(text, r"(?m)^no progress for [\d.]+ s in .*: rank 0 waits for rank 1$")
        self.assertIn("time.sleep(seconds)", text)
        self.assertRegex(text, r"(?m)^solved after ")

    def test_different_collectives(self):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        job = self.start(2, "different", 0, starter=torchrun)
        self.wait_until_said(r"allreduce, number 2 of .*: rank 0 waits for rank 1, in broadcast instead: all ranks must make", job)
        job.send_signal(signal.SIGTERM)
        self.finish(job, status=1)  # torchrun's own
        self.assertRegex("\n".join(self.said()), r"(?m)^the ranks ended without progress in allreduce, number 2 of ")

    def test_a_rank_that_holds_the_interpreter(self):
        job = self.start(2, "lock", 8)
        self.finish(job)
        text = "\n".join(self.said())
        self.assertRegex(text, r"(?m)^rank 1 \(process \d+\) runs, and does not tell its Python stack: it holds Python's interpreter")
        self.assertRegex(text, r"(?m)^solved after ")

    def test_a_rank_that_is_stopped(self):
        job = self.start(2, "stopped", 0)
        line = self.wait_until_said(r"^rank 1 \(process \d+\) is stopped by a signal", job)
        os.kill(int(re.search(r"process (\d+)", line)[1]), signal.SIGCONT)
        self.finish(job)
        self.assertRegex("\n".join(self.said()), r"(?m)^solved after ")

    def test_a_message_that_is_sent_late(self):
        job = self.start(2, "message", 6)
        self.finish(job)
        text, (stall,) = self.stalls(1)
        self.assertRegex(stall, r"^recv, number 3 of process group \S+ \(2 ranks\): rank 0 waits for rank 1$")
        self.assertEqual(text.count("in dawdle"), 1, text)
        self.assertRegex(text, r"(?m)^solved after [\d.]+ s: recv, number 3 of process group ")

    def simulated(self, devices):
        sys.path.insert(0, os.path.join(ROOT, "tests", "sim"))
        import simulated
        simulated.need()
        return simulated.environment(devices=devices, base=runner.environment())

    def test_collectives_that_are_enqueued(self):
        job = self.start(3, "nccl", 6, environment=self.simulated(3))
        self.finish(job)
        text, (stall,) = self.stalls(1)
        self.assertRegex(stall, r"^allreduce, number 2 of process group \S+ \(3 ranks\): ranks 0 and 1 have enqueued it and wait for rank 2$")
        self.assertEqual(text.count("in dawdle"), 1, text)
        self.assertRegex(text, r"(?m)^solved after [\d.]+ s: allreduce, number 2 of process group ")

    @runner.long
    def test_messages_that_are_enqueued(self):
        job = self.start(2, "nccl message", 6, environment=self.simulated(2))
        self.finish(job)
        text, (stall,) = self.stalls(1)
        self.assertRegex(stall, r"^recv.* number 1 of process group \S+ \(2 ranks\): rank 0 (has enqueued it and )?waits for rank 1$")

    def hung(self, how, ranks, seconds=6):
        """What is said of devices that hang."""
        self.finish(self.start(ranks, how, seconds, environment=self.simulated(ranks)))
        text, (stall,) = self.stalls(1)
        return text, stall

    def test_devices_that_hang(self):
        text, stall = self.hung("nccl hangs", 2)
        self.assertRegex(
            stall,
            r"^devices 0 and 1: ranks 0 and 1 wait in cudaDeviceSynchronize, at stall_rank.py, line \d+, and no rank is behind; "
            r"last enqueued: allreduce, number 3 of process group \S+ \(2 ranks\), 4000 bytes \(ncclAllReduce on the default stream\)$",
        )
        self.assertEqual(len(text.split("\n")), 4, text)
        self.assertRegex(text, r"(?m)^solved after [\d.]+ s: the wait for devices 0 and 1$")

    @runner.long
    def test_one_device_that_hangs(self):
        text, stall = self.hung("nccl and a kernel hangs", 2)
        self.assertRegex(stall, r"^devices 0 and 1: ranks 0 and 1 wait in cudaDeviceSynchronize, at .*, and no rank is behind; last enqueued: allreduce, number 2 ")
        self.assertRegex(text, r"(?m)^solved after ")

    def test_a_rank_that_waits_for_its_device(self):
        text, stall = self.hung("nccl and a rank waits for its device", 2)
        self.assertRegex(
            stall,
            r"^allreduce, number 2 of process group \S+ \(2 ranks\): rank 0 has enqueued it and waits for rank 1; "
            r"rank 1 waits for device 1 in cudaDeviceSynchronize, for [\d.]+ s$",
        )
        self.assertIn("torch.cuda.synchronize()", text)

    def test_a_device_that_is_asked_again_and_again(self):
        _, stall = self.hung("nccl and a rank polls", 1)
        self.assertRegex(
            stall, r"^device 0: rank 0 waits in cudaEventQuery, at stall_rank.py, line \d+; last enqueued: allreduce, number 1 .*, then a kernel on the default stream$"
        )

    @runner.long
    def test_slow_devices_are_no_stall(self):
        job = self.start(2, "nccl is slow", 1, limit=4, environment=self.simulated(2))
        self.finish(job)
        self.assertEqual([line for line in self.said() if "progress" in line or "solved" in line], [])

    def test_slow_ranks_are_no_stall(self):
        job = self.start(2, "slow", 1, limit=15)
        self.finish(job)
        self.assertEqual([line for line in self.said() if "progress" in line or "solved" in line], [])
        self.assertEqual([name for name in os.listdir(os.path.join(self.folder, "log")) if name.endswith(".stack")], [])

    @runner.long
    def test_it_can_be_off(self):
        job = self.start(2, "collective", 3, limit=0)
        self.finish(job)
        self.assertEqual([line for line in self.said() if "progress" in line or "solved" in line], [])

    def test_top(self):
        job = self.start(2, "collective", 10, limit=0)
        end, text = time.monotonic() + LIMIT_S, ""
        while "waiting" not in text and time.monotonic() < end and job.poll() is None:
            top = subprocess.run([CASTOR, "top", "log", "--once", "--interval", "0.2"], cwd=self.folder, capture_output=True, text=True)
            text = top.stdout
        self.assertRegex(text, r"(?m)^  rank 0: [\d.]+ m?s in allreduce 2 of process group \S+ \(2 ranks\) for rank 1$")
        self.assertRegex(text, r"(?m)^log: running for .*, 2 ranks, plugin none$")
        self.assertRegex(text, r"(?m)^allreduce +2 ")
        self.finish(job)
        top = subprocess.run([CASTOR, "top", "log"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((top.returncode, top.stderr), (0, ""))
        self.assertIn("the job has ended", top.stdout)

    def test_a_sandbox_without_memory_files(self):
        """It is named, and no limit is."""
        script = os.path.join(self.folder, "train.py")
        with open(script, "w") as file:
            file.write("import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n")
        command = [sys.executable, os.path.join(ROOT, "tests", "forbid.py"), "memfd_create", CASTOR, "run", "--plugin", "gemini", "--nproc", "2",
                   "--log-dir", "log", "--", sys.executable, script]
        job = subprocess.run(command, env=runner.environment(), cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual((job.returncode, job.stdout), (1, ""), job.stderr)
        self.assertIn("the sandbox or container (seccomp) forbids memfd_create, which Castor needs: allow it", job.stderr)
        self.assertNotIn("ulimit", job.stderr)

    def test_a_rank_of_torchrun_without_a_process_group(self):
        script = os.path.join(self.folder, "train.py")
        with open(script, "w") as file:
            file.write("import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
                       "for _ in range(2):\n    model(torch.randn(4, 8)).sum().backward()\n    optimizer.step()\n"
                       # In the same process: what ended the audit's fork is told whole, and a longer text ends after a word.
                       "from castor.agent.nproc import audit\nboard = audit._Board(1)\n"
                       "for words in (40, 400):\n    board.told = (0, audit.FAILED, 'no such file: ' + '/data/file ' * words)\n"
                       "    print(len(board.told[2]), board.told[2].split()[-2:])\n")
        rank = dict(runner.environment(), RANK="1", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")  # as torchrun starts it
        command = [CASTOR, "run", "--plugin", "gemini", "--log-dir", "log", "--", sys.executable, script]
        job = subprocess.run(command, env=rank, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual((job.returncode, job.stdout), (0, "453 ['/data/file', '/data/file']\n996 ['/data/file', '...']\n"), job.stderr)
        self.assertEqual(job.stderr.splitlines(), [
            "castor: this process trains without the plugin: the script makes no process group: each of its 2 processes trains a model of its "
            f"own. Set CASTOR_NPROC=auto, which splits the script over them, or leave torchrun out, castor run --plugin gemini --nproc 2 -- python {script}, "
            "or call init_process_group and wrap the model in DistributedDataParallel",
            "castor: report: castor report log",
        ])
        report = subprocess.run([CASTOR, "report", "log", "--format", "json"], cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual([rank["rank"] for rank in json.loads(report.stdout)["ranks"]], [1])

    def test_a_script_is_planned_from_its_own_steps(self):
        """It is ended after some of them, and the run that its plan names can be made from it."""
        script = os.path.join(self.folder, "train.py")
        with open(script, "w") as file:
            file.write("import torch\nmodel = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(4)))\n"
                       "optimizer = torch.optim.Adam(model.parameters())\n"
                       "for _ in range(10**9):\n    model(torch.randn(2048, 256)).square().mean().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
                       "    print('stepped', flush=True)\n")
        command = [CASTOR, "plan", "--batch", "2K", "--threads", "1", "--cores", "2", "--format", "json", "--", sys.executable, script]
        job = subprocess.run(command, env=runner.environment(), cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(job.returncode, 0, job.stderr)
        made = json.loads(job.stdout)
        model, alone = made["model"], next(plan for plan in made["plans"] if plan["dp"] == 1)
        self.assertEqual((model["parameters"], model["recorded_ranks"]), (4 * 256 * 256, 1))
        self.assertAlmostEqual(alone["step_seconds"], model["recorded_step_seconds"], delta=1e-6)
        self.assertAlmostEqual(alone["tokens_per_second"], 2048 / alone["step_seconds"], delta=1)
        # Of each of the four layers its input, the output, its square and the gradients of two: 2 MiB each. Samples may miss the highest moment.
        self.assertTrue(8 << 20 <= model["activation_bytes"] <= 20 << 20, model)
        self.assertEqual({plan["command"].partition(" -- ")[2] for plan in made["plans"]}, {f"{sys.executable} {script}"})
        self.assertEqual({plan["plugin"] for plan in made["plans"] if plan["dp"] == 2}, {"ddp", "zero1", "zero2", "gemini", "fsdp"})
        again = subprocess.run([*command[:-3], os.path.join("castor-logs", os.listdir(os.path.join(self.folder, "castor-logs"))[0])],
                               cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(json.loads(again.stdout)["plans"], made["plans"])

    def test_the_commands_of_plans_that_divide_a_model_run(self):
        """As they are printed, and with the losses of one process."""
        with open(os.path.join(self.folder, "train.py"), "w") as file:
            file.write(f"import sys\nsys.path.insert(0, {os.path.join(ROOT, 'tests', 'scripts')!r})\nimport torch\nfrom model import GPT\ntorch.manual_seed(0)\n"
                       "model = GPT(vocabulary=64, context=16, width=32, heads=4, layers=4)\noptimizer = torch.optim.AdamW(model.parameters())\n"
                       "for _ in range(3):\n    tokens = torch.randint(64, (4, 17))\n    loss = model(tokens[:, :-1], tokens[:, 1:])[1]\n"
                       "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n    print(f'{loss.item():.4f}')\n")
        environment = dict(runner.environment(), PATH=os.pathsep.join((os.path.dirname(CASTOR), os.path.dirname(sys.executable), os.environ["PATH"])))

        def out_of(*command):
            done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("computed whole", done.stderr)
            return done.stdout

        alone = out_of(sys.executable, "train.py")
        made = json.loads(out_of(CASTOR, "plan", "--model", "4x32x4x64x16", "--batch", "64", "--cores", "2", "--threads", "1", "--format", "json"))
        commands = {(plan["tp"], plan["pp"]): plan["command"] for plan in made["plans"] if plan["plugin"] == "hybrid" and plan["ranks_per_node"] == 2}
        self.assertEqual(set(commands), {(2, 1), (1, 2)})
        for command in commands.values():
            self.assertEqual(out_of("sh", "-c", command), alone, command)

    def doctor(self, *python, status=0, **environment):
        done = subprocess.run(
            [CASTOR, "doctor", "--format", "json", "--", sys.executable, *python], env=dict(runner.environment(), **environment),
            cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S * 2,
        )
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    def test_doctor(self):
        checks = self.doctor()
        for name in ("Python", "library", "torch", "agent", "gloo backend", "gloo", "allocation", "gloo work", "Python functions"):
            self.assertEqual(checks[name]["state"], "ok", checks[name])
        for name in ("gloo work", "Python functions"):
            self.assertRegex(checks[name]["value"], r"^all \d+$")
        checks = self.doctor(status=1, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertIn("unset it", checks["agent"]["advice"])
        checks = self.doctor("-E", status=1)
        self.assertIn("ignores PYTHONPATH", checks["agent"]["advice"])
        self.assertEqual(os.listdir(self.folder), [])


def main():
    global CASTOR
    CASTOR, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    runner.run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]), names)


if __name__ == "__main__":
    main()
