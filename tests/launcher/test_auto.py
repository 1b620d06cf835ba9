"""CASTOR_NPROC=auto: the ranks of another launcher split a single-process script as those of `--nproc` do."""
import json
import os
import re
import subprocess
import sys

import runner
from command import BINARY, CommandTest

# What it prints, and the files that it makes, are those of one process. With the word `restarts` rank 1 fails once, after its second step.
SCRIPT = """
import os, sys
print(sorted(name for name in os.environ if name.endswith(("RANK", "WORLD_SIZE", "PROCID")) and not name.startswith("CASTOR")), os.path.exists("private"))
import torch

steps, failed = 0, os.path.join(os.environ.get("CASTOR_LOG_DIR", "."), "failed")  # no rank's own file
fails = sys.argv[1:] == ["restarts"] and os.environ["CASTOR_RANK"] == "1" and not os.path.exists(failed)
for kind, options in ((torch.optim.SGD, dict(lr=0.1, momentum=0.9)), (torch.optim.Adam, dict(lr=0.01))):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4))
    optimizer = kind(model.parameters(), **options)
    data = torch.utils.data.TensorDataset(torch.randn(30, 16), torch.randint(0, 4, (30,)))
    for inputs, wanted in [*torch.utils.data.DataLoader(data, batch_size=10, shuffle=True), (torch.randn(7, 16), torch.randint(0, 4, (7,)))]:
        loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
        with open("losses.txt", "a") as file:
            print(loss.item().hex(), file=file)
        steps += 1
        if fails and steps == 2:
            for name in ("private", failed):
                open(name, "w").close()
            raise ValueError("once")
    torch.save(model.state_dict(), kind.__name__ + ".pt")
"""
FILES = ("losses.txt", "SGD.pt", "Adam.pt")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SECONDS = 200
known = []


class Auto(CommandTest):
    def job(self, name, command, *words, of_ranks=({},), **variables):
        """(what it prints, what it says, the bytes of its files) in a folder of its own. `of_ranks`: variables of each process that is started."""
        os.mkdir(self.path(name))
        with open(self.path(f"{name}/script.py"), "w") as file:
            file.write(SCRIPT)
        common = self.environment({"OMP_NUM_THREADS": "1", "CASTOR_TIMEOUT": "60", **variables})
        processes = [subprocess.Popen([*command, "script.py", *words], cwd=self.path(name), env=common | own, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE) for own in of_ranks]
        self.started += processes
        told = [process.communicate(timeout=SECONDS) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * len(processes), told)
        contents = []
        for file in FILES:
            with open(self.path(f"{name}/{file}"), "rb") as opened:
                contents.append(opened.read())
        out, err = ("".join(parts) for parts in zip(*told))
        return out, err, contents

    def by_nproc(self):
        """The same by `castor run --nproc`: once for all tests."""
        if not known:
            out, _, files = self.job("nproc", [BINARY, "run", "--plugin", "gemini", "--nproc", "2", "--", sys.executable])
            self.assertEqual(out.splitlines()[0], "[] False")
            known.extend([out, files])
        return known

    def printed(self):
        """The variables of `castor env`."""
        status, out, err = self.castor("env", "--plugin", "gemini", "--set", "CASTOR_NPROC=auto", "--log-dir", "logs", "--format", "json")
        self.assertEqual((status, err), (0, []))
        return json.loads(out)

    def check_logs(self, folder, other_output):
        """One report of both ranks; the other one's output is in its file, and of the files that it kept for itself nothing is left."""
        self.assertEqual([path for path, _, _ in os.walk(self.path(os.path.dirname(folder))) if ".files" in path], [])
        self.assertEqual(self.text(f"{folder}/rank1.out"), other_output)
        status, out, err = self.castor("report", folder)
        self.assertEqual((status, err), (0, []))
        self.assertEqual(re.findall(r"^  (\d) +\d+ +4 \(8\) .* finished$", out, re.MULTILINE), ["0", "1"])

    def test_torchrun(self):
        out, files = self.by_nproc()
        plain, _, _ = self.job("plain", [sys.executable])
        for ours, theirs in zip(out.splitlines()[1:], plain.splitlines()[1:], strict=True):
            self.assertAlmostEqual(float(ours), float(theirs), delta=2e-6)
        found = self.job("run", [BINARY, "run", "--plugin", "gemini", "--nproc", "auto", "--log-dir", "logs", "--", sys.executable, *TORCHRUN])
        self.assertEqual(found, (out, "castor: report: castor report logs\n", files))
        self.check_logs("run/logs", out)

    @runner.long
    def test_restarts_in_an_environment_of_castor_env(self):
        """The ranks of the second attempt meet, and the other one has none of the files that it kept in the first."""
        variables = self.printed()
        out, err, files = self.job("restarted", [sys.executable, *TORCHRUN, "--max-restarts", "1"], "restarts", **variables)
        first, second = out.splitlines(keepends=True)[:-9], out.splitlines(keepends=True)[-9:]
        self.assertEqual((first, second[0]), (second[:len(first)], "[] False\n"))
        self.assertIn("[rank1]: ValueError: once", err.splitlines())
        directory, = os.listdir(self.path("logs"))
        self.check_logs(f"logs/{directory}", "".join(second))

    def slurm(self, job):
        return [{"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "here",
                 "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0"} for rank in "10"]

    def test_srun_in_an_environment_of_castor_env(self):
        """Each rank comes alone. A process that is no Python is none."""
        out, files = self.by_nproc()
        found = self.job("srun", ["sh", "-c", 'sh -c "exit 0"; exec "$0" "$@"', sys.executable], of_ranks=self.slurm("7"), **self.printed())
        self.assertEqual(found, (out, "", files))
        directory, = os.listdir(self.path("logs"))
        self.check_logs(f"logs/{directory}", out)

    @runner.long
    def test_mpirun_with_a_castor_run_each(self):
        out, files = self.by_nproc()
        of_ranks = [{"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                     "PMIX_NAMESPACE": f"here-{os.getpid()}@1"} for rank in "10"]
        found = self.job("mpirun", [BINARY, "run", "--plugin", "gemini", "--nproc", "auto", "--log-dir", "logs", "--", sys.executable], of_ranks=of_ranks)
        self.assertEqual(found[::2], (out, files))
        self.assertEqual(sorted(found[1].splitlines()), [f"castor: report: castor report logs/rank{rank}" for rank in (0, 1)])
        self.assertEqual(self.text("mpirun/logs/rank1/rank1.out"), out)
        self.assertEqual(sorted(os.listdir(self.path("mpirun/logs"))), ["rank0", "rank1"])

    def test_scripts_with_ranks_of_their_own(self):
        """One line says what to do. Rank 0 of two is enough to be refused."""
        run = ["run", "--plugin", "gemini", "--nproc", "auto", "--"]
        torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        for text, where, line in (
                ("import torch; torch.distributed.init_process_group('gloo')", self.slurm("7")[1],
                 "the script makes a process group of its own, and CASTOR_NPROC=auto is for scripts of one process: leave CASTOR_NPROC=auto out"),
                ("import os, torch; print(os.environ['LOCAL_RANK'])", self.slurm("8")[1],
                 "the script looks up LOCAL_RANK, which CASTOR_NPROC=auto hides, for scripts of one process: leave CASTOR_NPROC=auto out"),
                ("import torch; print('not reached')", torchrun,
                 "CASTOR_NPROC=auto: nothing tells the ranks of torchrun from those of another job: start the launcher itself by castor run: castor run --plugin "
                 "gemini --nproc auto -- COMMAND (CASTOR_ON_ERROR=passthrough trains without the plugin)")):
            with self.subTest(line=line):
                process = self.start(*run, *self.python(text), env=where)
                out, err = process.communicate(timeout=SECONDS)
                self.assertEqual((process.returncode, out), (1, ""))
                self.assertEqual([said for said in err.splitlines() if said.startswith("castor: ") and "report" not in said], ["castor: " + line])
