"""Several nodes: network namespaces as hosts (tests/hosts.py), each with its own `castor run` and torchrun.

    tests/nodes/run.py [--castor build/bin/castor] [NAME]...

Needs torch (the interpreter that runs this has it), iproute2 and the right to make network namespaces: without them it is
left out, and says so. NAMEs select tests whose id contains one of them. The last line is `N passed, N failed`.
"""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
sys.path.append(os.path.dirname(FOLDER))
import hosts  # noqa: E402
import plain_jobs  # noqa: E402
import runner  # noqa: E402
from gloo_words import without_gloo  # noqa: E402

LIMIT_S = 300  # of one job; reached only by a failure
NUMEL = 16 * 256 * 256  # of train.py's model
GRADIENT_BYTES = 4 * NUMEL
CASTOR = None
TORCHRUNS = re.compile(r"\[W|E\d{4} \S+ \d+ torch/distributed/elastic/agent/server/api\.py|Exception raised from recvBytes|frame #\d|$")
PLAIN = None  # what makes the plain runs, once there is one


class NodesTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="castor-nodes-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_job(self, command, status=0):
        """(what it printed, what it said on standard error)"""
        began = time.monotonic()
        done = subprocess.run(command, env=runner.environment("GLOO_", "SLURM_", "OMPI_"), cwd=self.folder, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=LIMIT_S)
        self.seconds = time.monotonic() - began
        errors = without_gloo(done.stderr)
        self.assertEqual(done.returncode != 0, status != 0, errors)
        return without_gloo(done.stdout), errors

    def on_hosts(self, *arguments, script="train.py", plugin="ddp", ranks=(2, 2), settings=(), status=0, restarts=0):
        """The script on as many hosts as `ranks` has entries. restarts: of its ranks, at most."""
        meeting = ["--node-rank", "{host}", "--master-addr", "{address}", "--master-port", "29400", "--monitor-interval", "5"]
        if restarts:
            meeting = ["--rdzv-backend", "c10d", "--rdzv-id", "1", "--rdzv-endpoint", "{address}:29400", "--rdzv-conf", "is_host=$FIRST", "--local-addr", "$HERE",
                       "--max-restarts", str(restarts)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "{hosts}", "--nproc-per-node", "$RANKS", *meeting,
                    os.path.join(FOLDER, script), *map(str, arguments)]
        castor = [CASTOR, "run", "--plugin", plugin, "--log-dir", "log{host}", *(["--nproc", "auto"] if script == "single.py" else [])]
        for setting in settings:
            castor += ["--set", setting]
        counts = " ".join(f"{host}) RANKS={count} HERE={hosts.address(host)} FIRST={int(host == 0)};;" for host, count in enumerate(ranks))
        shell = f"case {{host}} in {counts} esac; exec {' '.join([*castor, '--', *torchrun])}"
        return self.run_job([sys.executable, hosts.__file__, str(len(ranks)), "sh", "-c", shell], status)

    @staticmethod
    @functools.cache
    def plain(ranks):
        """What train.py prints with plain PyTorch on this machine."""
        global PLAIN
        PLAIN = PLAIN or plain_jobs.PlainJobs()
        with tempfile.TemporaryDirectory(prefix="castor-nodes-") as folder:
            PLAIN.finish(PLAIN.start(os.path.join(FOLDER, "train.py"), [], ranks, folder, LIMIT_S, {}))
            with open(os.path.join(folder, "stdout.txt")) as printed:
                return printed.read()

    def losses(self, printed):
        return [float(value) for value in re.findall(r"^loss (\S+)$", printed, re.MULTILINE)]

    def report(self, host):
        told = subprocess.run([CASTOR, "report", os.path.join(self.folder, f"log{host}"), "--format", "json"],
                              capture_output=True, text=True, check=True, timeout=LIMIT_S)
        return json.loads(told.stdout)

    def check_equal_losses(self, printed, ranks):
        ours, plain = self.losses(printed), self.losses(self.plain(ranks))
        self.assertEqual(len(ours), 6)
        for mine, theirs in zip(ours, plain):
            self.assertAlmostEqual(mine, theirs, delta=2e-5)

    def check_crossing(self, printed, expected):
        """What the report says, and what the network's counters do: they have TCP's headers and small messages as well."""
        measured = [int(count) for count in re.findall(r"^node (\d+)$", printed, re.MULTILINE)]
        self.assertEqual(len(measured), 2)
        for host in range(2):
            told = self.report(host)["model_data"]["sent_bytes"] / 6
            self.assertAlmostEqual(told, expected, delta=expected * 0.01)
        for count in measured:
            self.assertLess(count, expected * 1.1)
            self.assertGreater(count, expected * 0.95)

    def check_divided(self, ranks, calls):
        """So many calls of models on each rank: all of six, but for two of each model's, which are tried."""
        found = [rank["calls_by_rows"] for host in (0, 1) for rank in self.report(host)["ranks"] if rank["optimizer_steps"]]
        self.assertEqual(found, ranks * [calls])

    def bytes_per_parameter(self, host):
        return self.report(host)["model_data"]["bytes_per_param"]

    @runner.long
    def test_two_nodes_are_one_of_four_ranks(self):
        printed, _ = self.on_hosts()
        self.check_equal_losses(printed, 4)
        self.check_crossing(printed, GRADIENT_BYTES)  # 2 (1 - 1/2) of the gradients
        for host in range(2):
            self.assertAlmostEqual(self.bytes_per_parameter(host), 16, delta=0.16)

    @runner.long
    def test_optimizer_states_are_on_one_node_only(self):
        printed, _ = self.on_hosts(plugin="zero1")
        self.check_equal_losses(printed, 4)
        self.check_crossing(printed, 1.5 * GRADIENT_BYTES)  # and half of the parameters
        for host in range(2):
            self.assertAlmostEqual(self.bytes_per_parameter(host), 12, delta=0.12)

    def test_sums_are_on_one_node_only(self):
        printed, _ = self.on_hosts(plugin="zero2")
        self.check_equal_losses(printed, 4)
        self.check_crossing(printed, GRADIENT_BYTES)  # half of the gradients, half of the parameters
        for host in range(2):
            self.assertAlmostEqual(self.bytes_per_parameter(host), 4 + 12 / 2, delta=0.1)

    def test_parameters_are_on_one_node_only(self):
        """Two chunks for each rank are in use: here each is one parameter. All have rank 0's values, whatever each node has made."""
        printed, _ = self.on_hosts("--own-seeds", plugin="gemini", settings=["CASTOR_CHUNK_SIZE=256K", "CASTOR_LAZY_INIT=1"])
        self.check_equal_losses(printed, 4)
        for host in range(2):
            in_use = 4 * 256 * 1024 / NUMEL
            self.assertLess(self.bytes_per_parameter(host), 16 / 2 + in_use + 0.1)

    @runner.long
    def test_what_others_keep_is_there_to_the_end(self):
        printed, _ = self.on_hosts("--late", plugin="gemini", settings=["CASTOR_CHUNK_SIZE=256K"])
        seen = re.findall(r"^(?:early|late) (\S+)$", printed, re.MULTILINE)
        self.assertEqual(len(seen), 2, printed)
        self.assertEqual(seen[0], seen[1])

    @runner.long
    def test_shard_node_keeps_all_on_each(self):
        printed, _ = self.on_hosts(plugin="zero1", settings=["CASTOR_SHARD=node"])
        self.check_crossing(printed, GRADIENT_BYTES)
        self.assertAlmostEqual(self.bytes_per_parameter(0), 16, delta=0.16)

    def test_models_in_stages(self):
        """The sums of a node go to the other one behind each backward pass, in which stages wait for each other."""
        printed, _ = self.on_hosts(plugin="hybrid", settings=["CASTOR_PP=2", "CASTOR_CHUNK_SIZE=256K"])
        self.check_equal_losses(printed, 4)
        self.check_divided(ranks=4, calls=4)

    def test_nodes_of_unequal_size_and_two_models(self):
        """Of two models, of which the one that was wrapped last has its gradients first."""
        printed, _ = self.on_hosts("--halves", plugin="zero1", ranks=(2, 1))
        self.check_equal_losses(printed, 3)

    @runner.long
    def test_three_nodes_of_one_rank(self):
        printed, _ = self.on_hosts(plugin="zero1", ranks=(1, 1, 1))
        self.check_equal_losses(printed, 3)
        for host in range(3):
            self.assertAlmostEqual(self.bytes_per_parameter(host), 8 + 8 / 3, delta=1)  # 16 layers on 3 nodes

    def collectives(self, **how):
        """What each node sent for an all-reduce, and how many calls went through its memory."""
        printed, _ = self.on_hosts(script="collectives.py", **how)
        return [[int(count) for count in re.findall(f"^{what} (\\d+)$", printed, re.MULTILINE)] for what in ("node", "calls")]

    @runner.long
    def test_a_reduction_crosses_once_for_each_node(self):
        size = 4 << 20
        for ranks in ((2, 2), (1, 2, 2)):
            sent, calls = self.collectives(ranks=ranks, settings=["CASTOR_NODE_COLLECTIVES=auto"])
            self.assertEqual(len(sent), len(ranks))
            self.assertGreater(min(calls), 0)
            self.assertLess(max(sent), 2 * (1 - 1 / len(ranks)) * size * 1.1)
        sent, calls = self.collectives(settings=["CASTOR_NODE_COLLECTIVES=off"])
        self.assertEqual(max(calls), 0)
        self.assertGreater(max(sent), 1.4 * size, "gloo's ring of four ranks")

    @runner.long
    def test_nodes_that_disagree_say_so(self):
        for plugin in ("ddp", "zero1"):
            _, errors = self.on_hosts("--last-rate", "1.5e-3", plugin=plugin, ranks=(1, 1), status=1)
            self.assertRegex(errors, r"castor: the nodes disagree: .* learning rates .*\(here: train.py, line \d+\)", plugin)

    def test_ranks_that_srun_starts(self):
        """Each has a `castor run` of its own, and so a token of its own."""
        task = ("SLURM_PROCID=$((2 * {host} + $local)) SLURM_LOCALID=$local SLURM_NODEID={host} SLURM_STEP_NUM_TASKS=4 "
                "SLURM_STEP_TASKS_PER_NODE='2(x2)' SLURM_STEP_NODELIST={address},other SLURM_JOB_ID=17 "
                f"{CASTOR} run --plugin zero1 --log-dir log -- {sys.executable} {os.path.join(FOLDER, 'train.py')}")
        printed, _ = self.run_job([sys.executable, hosts.__file__, "2", "sh", "-c",
                                   f"local=1; {task} & first=$!; local=0; {task} && wait $first"])
        self.check_equal_losses(printed, 4)
        for rank in range(4):
            told = subprocess.run([CASTOR, "report", os.path.join(self.folder, "log", f"rank{rank}"), "--format", "json"],
                                  capture_output=True, text=True, check=True, timeout=LIMIT_S)
            self.assertEqual([r["rank"] for r in json.loads(told.stdout)["ranks"]], [rank])

    def test_a_rank_that_is_killed_ends_all_nodes(self):
        _, errors = self.on_hosts("--fail-at", 3, "--fail-rank", 3, status=1)
        self.assertRegex(errors, r"\[rank2\]: castor: rank 3 \(pid \d+\) died", "the rank beside it")
        self.assertRegex(errors, r"castor: rank 3, on another node, has ended .*\(here: train.py, line \d+\)", "its counterpart")
        self.assertLess(self.seconds, 150)

    @runner.long
    def test_torchrun_starts_the_ranks_again(self):
        """Each node does as soon as its own have ended: what the store still has is of those before."""
        for failing in (0, 1):
            printed, errors = self.on_hosts("--fail-at", 3, "--fail-rank", failing, plugin="gemini", ranks=(1, 1), settings=["CASTOR_TIMEOUT=60"], restarts=2)
            self.assertEqual(self.losses(printed)[-6:], self.losses(self.plain(2)), errors)

    @runner.long
    def test_torchrun_starts_the_ranks_of_a_single_process_again(self):
        expected, _ = self.on_one_host(CASTOR, "run", "--plugin", "gemini", "--nproc", "2", "--log-dir", "log", "--")
        for failing in (0, 1):
            printed, errors = self.on_hosts("--fail-rank", failing, script="single.py", plugin="gemini", ranks=(1, 1), settings=["CASTOR_TIMEOUT=60"], restarts=2)
            self.assertTrue(printed.endswith(expected), errors)
            self.made()

    # ---- single-process scripts, CASTOR_NPROC=auto

    def made(self):
        """The files of a job."""
        contents = {}
        for name in os.listdir(os.path.join(self.folder, "made")):
            with open(os.path.join(self.folder, "made", name), "rb") as file:
                contents[name] = file.read()
        shutil.rmtree(os.path.join(self.folder, "made"))
        self.assertEqual(contents.keys(), {"losses.txt", "SGD.pt", "AdamW.pt"})
        return contents

    @staticmethod
    def said(errors):
        """Without the lines of PyTorch's C++, which miss the names of these hosts, and of its launchers, whose exit barrier fails where the one with the store ends
        before the other has read it."""
        return [line for line in errors.splitlines() if not TORCHRUNS.match(line)]

    def on_one_host(self, *before, arguments=()):
        return self.run_job([*before, sys.executable, os.path.join(FOLDER, "single.py"), *arguments])[0], self.made()

    def check_about_equal(self, printed, expected):
        ours, theirs = ([float(word) for word in re.findall(r"[\d.e-]+(?=\s)", text)] for text in (printed, expected))
        self.assertEqual(len(ours), 14)
        for mine, other in zip(ours, theirs, strict=True):
            self.assertAlmostEqual(mine, other, delta=2e-5 * max(1, abs(other)))

    def test_a_single_process_on_two_nodes(self):
        """With a rank on each the sums have the order of two ranks on one node, and so all is equal to the bit."""
        expected = self.on_one_host(CASTOR, "run", "--plugin", "gemini", "--nproc", "2", "--log-dir", "log", "--")
        printed, errors = self.on_hosts(script="single.py", plugin="gemini", ranks=(1, 1))
        self.assertEqual((printed, self.made()), expected, errors)
        self.assertEqual(sorted(self.said(errors)), [f"castor: report: castor report log{host}" for host in (0, 1)])
        with open(os.path.join(self.folder, "log1", "rank1.out")) as file:
            self.assertEqual(file.read(), printed, "what the other rank prints")
        for host in (0, 1):
            ranks = [(rank["rank"], rank["optimizer_steps"]) for rank in self.report(host)["ranks"] if rank["optimizer_steps"]]
            self.assertEqual(ranks, [(host, 6)])
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".files")], [])

    def test_a_single_process_with_a_stage_on_each_node(self):
        expected, _ = self.on_one_host(arguments=["--layers"])
        printed, errors = self.on_hosts("--layers", script="single.py", plugin="hybrid", ranks=(1, 1), settings=["CASTOR_PP=2"])
        self.check_about_equal(printed, expected)
        self.assertEqual(sorted(self.said(errors)), [f"castor: report: castor report log{host}" for host in (0, 1)])
        self.check_divided(ranks=2, calls=2)

    @runner.long
    def test_a_single_process_on_nodes_of_unequal_size(self):
        expected, _ = self.on_one_host()
        for plugin in ("ddp", "zero1", "zero2"):
            printed, _ = self.on_hosts(script="single.py", plugin=plugin, ranks=(1, 2))
            self.check_about_equal(printed, expected)
            self.made()

    @runner.long
    def test_a_single_process_that_srun_starts(self):
        """In the environment of `castor env`: the ranks of both nodes have one log directory, which is on a file system of both."""
        expected, _ = self.on_one_host()
        told = subprocess.run([CASTOR, "env", "--plugin", "gemini", "--set", "CASTOR_NPROC=auto", "--log-dir", "logs"], cwd=self.folder,
                              env=runner.environment("SLURM_", "OMPI_"), capture_output=True, text=True, check=True)
        task = ("SLURM_PROCID=$((2 * {host} + $local)) SLURM_LOCALID=$local SLURM_NODEID={host} SLURM_STEP_NUM_TASKS=4 "
                "SLURM_STEP_TASKS_PER_NODE='2(x2)' SLURM_STEP_NODELIST={address},other SLURM_JOB_ID=17 SLURM_STEP_ID=0 "
                f"{sys.executable} {os.path.join(FOLDER, 'single.py')}")
        printed, errors = self.run_job([sys.executable, hosts.__file__, "2", "sh", "-c",
                                        f"{told.stdout} local=1; {task} & first=$!; local=0; {task} && wait $first"])
        self.check_about_equal(printed, expected)
        self.made()
        self.assertEqual(self.said(errors), [])
        directory, = os.listdir(os.path.join(self.folder, "logs"))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "logs", directory, ".files")))

    @runner.long
    def test_a_single_process_that_differs_between_nodes(self):
        printed, errors = self.on_hosts("--unseeded", script="single.py", plugin="gemini", ranks=(1, 1), settings=["CASTOR_AUDIT=0"], status=1)
        self.assertRegex(errors, r"castor: the parameters of rank 0 and of rank 1, on another node, differ after step 1: .*\(here: single.py, line \d+\)")
        self.assertEqual(printed, "")

    @runner.long
    def test_a_single_process_whose_other_node_is_killed(self):
        _, errors = self.on_hosts("--fail-rank", 1, script="single.py", plugin="gemini", ranks=(1, 1), settings=["CASTOR_TIMEOUT=60"], status=1)
        self.assertRegex(errors, r"castor: .*(rank 1, on another node,|a rank of another node, or of this one,) has ended or cannot be reached.*\(here: single.py, line \d+\)")
        self.assertLess(self.seconds, 150)


def main():
    global CASTOR
    CASTOR, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    runner.program("ip")
    why = hosts.available()
    if why:
        runner.leave_out_all(f"no network namespaces can be made and joined here: {why}")
    runner.run(unittest.defaultTestLoader.loadTestsFromTestCase(NodesTest), names, runner.by_name)


if __name__ == "__main__":
    main()
