"""`castor env`: what it prints, and jobs of other launchers that have it in their environment."""
import json
import os
import re
import shlex
import subprocess
import sys

import runner
import start_ranks
from command import BINARY, CommandTest

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
AWKWARD = [" a b ", "it's", '"', "$HOME $(NAME) $$ ${x}", "`id`", "\\ \\n", "#not a comment", "é", "a=b", "- x: y", "!", "*", "", "'", "\\"]
OF_THE_JOB = {"CASTOR_JOB", "CASTOR_LOG_DIR"}
SHELLS_OWN = {"PWD", "OLDPWD", "_", "SHLVL"}

DDP = """
import os, sys
import torch
import torch.distributed as dist
from castor.agent import core
from castor.agent.common import store

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for batch in torch.randn(2, 2, 8, 64):
    model(batch[rank]).square().mean().backward()
    optimizer.step()
places = [None, None]
dist.all_gather_object(places, [os.environ["CASTOR_JOB"], core.options.log_dir, [group.world for group in store.groups()]])
if rank == 0:
    print(*(value for place in places for value in place), sep="\\n")
dist.destroy_process_group()
"""


def expanded(text):
    """What Kubernetes makes of the value of a variable, where no other variable is known: $$ is a dollar, $(NAME) stays."""
    return re.sub(r"\$\$|\$\(\w+\)", lambda found: "$" if found[0] == "$$" else found[0], text)


class Env(CommandTest):
    def printed(self, *options, env={}):
        status, out, err = self.castor("env", *options, env=env)
        self.assertEqual((status, err), (0, []))
        return out

    def by_shell(self, text, env={}):
        """The environment after a shell has read it."""
        process = subprocess.run(["sh", "-c", 'eval "$1"; exec "$2" -c "$3"', "sh", text, sys.executable, SHOW], env=self.environment(env),
                                 cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        seen = json.loads(process.stdout)
        return {name: value for name, value in seen.items() if name not in SHELLS_OWN}

    def by_file(self, text):
        """The environment of a program that gets the lines and nothing else, as by docker's --env-file."""
        with open(self.path("castor.env"), "w") as file:
            file.write(text)
        inside = f"python=$0; exec env -i \"$@\" \"$python\" -c '{SHOW}'"
        command = ["xargs", "-a", self.path("castor.env"), "-d", "\\n", "sh", "-c", inside, sys.executable]
        process = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        return json.loads(process.stdout)

    def of_pod(self, text):
        """The variables of a container in Kubernetes that has this list."""
        lines = text.splitlines()
        self.assertEqual([line[:8] for line in lines], ["- name: ", "  value:"] * (len(lines) // 2))
        return {name[8:]: expanded(json.loads(value[8:])) for name, value in zip(lines[::2], lines[1::2])}

    def run_seen(self, *options, env={}):
        status, out, err = self.castor("run", *options, "--", sys.executable, "-c", SHOW, env=env)
        self.assertEqual(status, 0, err)
        return json.loads(out)

    def test_it_is_what_castor_run_sets(self):
        for env in ({}, {"PYTHONPATH": "/a::/b", "LD_PRELOAD": "", "CASTOR_DEBUG": "1"}, {"PYTHONPATH": "/a:"}):
            options = ["--plugin", "gemini", "--set", "CASTOR_TIMEOUT=7", "--set", "CASTOR_COMPAT=1"]
            expected = {name: value for name, value in self.run_seen(*options, env=env).items() if name not in OF_THE_JOB | SHELLS_OWN}
            self.assertEqual(self.by_shell(self.printed(*options, env=env), env), expected, env)
        once = self.printed("--plugin", "gemini")
        self.assertEqual(self.printed(env=self.by_shell(once)), once, "an environment that has it already")

    def test_values_come_through_each_format(self):
        for value in AWKWARD:
            given = ["--plugin", "ddp", "--set", f"CASTOR_SEPARABLE={value}"]
            with self.subTest(value=value):
                told = json.loads(self.printed(*given, "--format", "json"))
                self.assertEqual(told["CASTOR_SEPARABLE"], value)
                self.assertEqual(told.keys(), {"LD_PRELOAD", "PYTHONPATH", "CASTOR_PLUGIN", "CASTOR_SEPARABLE"})
                seen = self.by_shell(self.printed(*given))
                self.assertEqual({name: seen[name] for name in told}, told)
                seen = self.by_file(self.printed(*given, "--format", "dotenv"))
                self.assertEqual({name: seen[name] for name in told}, told)
                self.assertEqual(self.of_pod(self.printed(*given, "--format=yaml")), told)

    def test_what_a_format_cannot_hold(self):
        broken = ["--set", "CASTOR_SEPARABLE=a\nb"]
        self.assertEqual(self.by_shell(self.printed(*broken))["CASTOR_SEPARABLE"], "a\nb")
        self.assertEqual(json.loads(self.printed(*broken, "--format", "json"))["CASTOR_SEPARABLE"], "a\nb")
        self.refused([*broken, "--format", "dotenv"], "CASTOR_SEPARABLE holds a line break, which dotenv cannot hold")
        for format in ("dotenv", "json", "yaml"):
            self.refused(["--format", format], f"CASTOR_SEPARABLE holds bytes that are not UTF-8, which {format} cannot hold",
                         env={"CASTOR_SEPARABLE": b"\xff"})

    def refused(self, options, text, env={}):
        status, out, err = self.castor("env", *options, env=env)
        self.assertEqual((status, out, len(err)), (2, "", 1), err)
        self.assertIn(text, err[0])

    def test_bad_input(self):
        self.refused(["python"], "no argument is taken")
        self.refused(["--plugin", "gemni"], "did you mean gemini?")
        self.refused(["--set", "CASTOR_RANK=1"], "is set by `castor run` itself")
        self.refused(["--format", "yml"], "did you mean yaml?")
        self.refused(["--log-dir", ""], "an empty name")
        self.refused(["--set", "CASTOR_ACCUMULATE=2"], "plugin none changes nothing")
        self.refused(["--set", "CASTOR_NPROC=auto"], "plugin none would leave copies that train apart")
        self.refused(["--plugin", "ddp", "--set", "CASTOR_NPROC=auto"], "name one by --log-dir")
        self.refused([], "in the environment: CASTOR_TIMEOUT=soon", env={"CASTOR_TIMEOUT": "soon"})
        self.refused([], "CASTOR_LOG_DIR=mine is the directory of one job", env={"CASTOR_LOG_DIR": "mine"})

    def test_the_job_around_it_is_left(self):
        status, out, err = self.castor("run", "--plugin", "ddp", "--nproc", "2", "--", BINARY, "env")
        self.assertEqual(status, 0, err)
        inside = {"CASTOR_JOB": "0" * 32, "CASTOR_LOG_DIR": "there", "CASTOR_RANK": "0", "CASTOR_WORLD_SIZE": "2"}
        seen = self.by_shell(out, inside)
        self.assertFalse(inside.keys() & seen.keys())
        self.assertEqual(seen["CASTOR_PLUGIN"], "ddp")

    def test_a_log_directory_is_absolute(self):
        self.assertEqual(json.loads(self.printed("--log-dir", "a b/c", "--format", "json"))["CASTOR_LOG_PARENT"], self.path("a b/c"))
        self.assertEqual(json.loads(self.printed("--log-dir", "/x", "--format", "json"))["CASTOR_LOG_PARENT"], "/x")

    # ---- jobs

    def test_torchrun_in_a_shell_that_has_read_it(self):
        text = self.printed("--plugin", "gemini", "--log-dir", "logs", "--set", "CASTOR_TIMEOUT=30")
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", self.script("ddp.py", DDP)]
        process = subprocess.run(["sh", "-c", 'eval "$1"; shift; exec "$@"', "sh", text, *launch], cwd=self.folder, capture_output=True, text=True,
                                 env=self.environment({"OMP_NUM_THREADS": "1"}), timeout=200)
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        directory, = os.listdir(self.path("logs"))
        directory = self.path(f"logs/{directory}")
        token, *rest = process.stdout.splitlines()
        self.assertRegex(token, "^[0-9a-f]{32}$")
        self.assertEqual(rest, [directory, "[2]", token, directory, "[2]"], "torchrun's process has begun the job of both ranks")
        self.check_report(directory, [0, 1])
        about = self.text(f"{directory}/castor.about")
        for line in ("castor \\d.*", "started \\d{18,}", "option-environment CASTOR_PLUGIN=gemini", "option-environment CASTOR_TIMEOUT=30", "torch .*"):
            self.assertEqual(len(re.findall(f"^{line}$", about, re.MULTILINE)), 1, line)

    def test_ranks_of_one_node_with_a_castor_run_each(self):
        """As by srun on one node: each has a token of its own, and they share a store."""
        script, told = self.script("ddp.py", DDP), []
        for rank in (1, 0):
            slurm = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_TASKS_PER_NODE": 2,
                     "SLURM_STEP_NODELIST": "here", "SLURM_JOB_ID": os.getpid()}
            env = {name: str(value) for name, value in slurm.items()} | {"OMP_NUM_THREADS": "1", "CASTOR_TIMEOUT": "30"}
            told.append(self.start("run", "--plugin", "zero1", "--log-dir", "log", "--", sys.executable, script, env=env))
        out, err = told[1].communicate(timeout=200)
        self.assertEqual([process.wait(200) for process in told], [0, 0], err)
        tokens, directories, worlds = out.splitlines()[::3], out.splitlines()[1::3], out.splitlines()[2::3]
        self.assertEqual(len(set(tokens)), 2)
        self.assertEqual(directories, [self.path("log/rank0"), self.path("log/rank1")])
        self.assertEqual(worlds, ["[2]", "[2]"])

    def test_a_library_that_is_not_passed_on(self):
        """Half of the environment is refused when the script trains; without PYTHONPATH the library refuses (test_torch.py)."""
        train = ("import torch; p = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([p], lr=0.5); p.sum().backward(); "
                 "print('before', flush=True); o.step(); print(p.tolist())")
        told = json.loads(self.printed("--plugin", "gemini", "--format", "json"))
        del told["LD_PRELOAD"]
        for settings, out, line in (({}, "before\n", "castor: plugin gemini cannot be applied: LD_PRELOAD has not brought libcastor.so .*"),
                                    ({"CASTOR_ON_ERROR": "passthrough"}, "before\n[0.5, 0.5]\n", "")):
            process = subprocess.run([sys.executable, "-c", train], env=self.environment(told | settings), capture_output=True, text=True, timeout=100)
            self.assertEqual((process.returncode, process.stdout), (1 if line else 0, out), process.stderr)
            self.assertRegex(process.stderr, f"^{line}\\n?$")

    @runner.long
    def test_pods_without_torchrun(self):
        """Each rank begins a job, as the process of a container that has the printed list and the operator's variables alone."""
        variables = self.of_pod(self.printed("--plugin", "zero2", "--log-dir", "logs", "--set", "CASTOR_TIMEOUT=30", "--format", "yaml"))
        variables |= dict([self.mark.split("=")], OMP_NUM_THREADS="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(start_ranks.free_port()))
        pods = [subprocess.Popen([sys.executable, self.script("ddp.py", DDP)], cwd=self.folder, env=variables | {"RANK": str(rank)}, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in (0, 1)]
        self.started += pods
        (out, err), other = [pod.communicate(timeout=200) for pod in pods]
        self.assertEqual(([pod.returncode for pod in pods], err, other), ([0, 0], "", ("", "")))
        told = out.splitlines()
        self.assertNotEqual(told[0], told[3], "tokens")
        self.assertEqual([told[2], told[5]], ["[2]", "[2]"])
        for rank, directory in enumerate((told[1], told[4])):
            self.assertEqual(os.path.dirname(directory), self.path("logs"))
            self.check_report(directory, [rank])

    @runner.long
    def test_torchrun_in_a_container(self):
        """The container's environment is the lines of the file, and nothing else."""
        with open(self.path("castor.env"), "w") as file:
            file.write(self.printed("--plugin", "gemini", "--log-dir", "logs", "--format", "dotenv"))
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", self.script("ddp.py", DDP)]
        inside = f"exec env -i {self.mark} OMP_NUM_THREADS=1 \"$@\" {shlex.join(launch)}"
        process = subprocess.run(["xargs", "-a", self.path("castor.env"), "-d", "\\n", "sh", "-c", inside, "sh"], cwd=self.folder, capture_output=True,
                                 text=True, timeout=200)
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        self.check_report(process.stdout.splitlines()[1], [0, 1])

    def check_report(self, directory, ranks):
        status, out, err = self.castor("report", directory, "--format", "json")
        self.assertEqual((status, err), (0, []))
        self.assertEqual([(rank["rank"], rank["optimizer_steps"]) for rank in json.loads(out)["ranks"]], [(rank, 2) for rank in ranks])
