"""gloo's collectives through the node's memory: what unmodified ranks see, beside plain PyTorch.

    tests/collectives/run.py [--castor build/bin/castor] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import plain_jobs  # noqa: E402
import runner  # noqa: E402

LIMIT_S = 240  # of one job; reached only by a failure
FOREIGN = ("CASTOR_", "LD_PRELOAD", "PYTHONPATH", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "TORCH_", "GLOO_")
CASTOR = None
PLAIN = None  # what makes the plain runs, once there is one


class CollectivesTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="castor-collectives-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, case, world, plugin="gemini", mode="auto", nodes=(), **environment):
        """A job of rank.py under `castor run`; returns it and its folder."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        folder = tempfile.mkdtemp(dir=self.folder)
        command = [*runner.ranks(world), os.path.join(FOLDER, "rank.py"), case, folder, *map(str, nodes)]
        given = ["--plugin", plugin, "--set", f"CASTOR_NODE_COLLECTIVES={mode}", "--log-dir", os.path.join(folder, "log")]
        command = [CASTOR, "run", *given, "--", *command]
        with open(os.path.join(folder, "output"), "w") as output:
            job = subprocess.Popen(
                command, env=dict(clean, OMP_NUM_THREADS="1", **environment), cwd=folder, stdout=output, stderr=output
            )
        self.addCleanup(lambda: job.poll() is None and (job.terminate(), job.wait()))
        return job, folder

    def finish(self, job, folder, world, fails=False, missing=()):
        status = job.wait(timeout=LIMIT_S)
        with open(os.path.join(folder, "output")) as file:
            output = file.read()
        self.assertEqual(status != 0, fails, output)
        return self.told(folder, [rank for rank in range(world) if rank not in missing], output)

    def told(self, folder, ranks, output):
        try:
            return [json.load(open(os.path.join(folder, f"rank-{rank}.json"))) for rank in ranks]
        except FileNotFoundError:
            self.fail(output)

    def start_plain(self, case, world, **environment):
        """The same job with plain PyTorch: its number and its folder."""
        global PLAIN
        PLAIN = PLAIN or plain_jobs.PlainJobs()
        folder = tempfile.mkdtemp(dir=self.folder)
        return PLAIN.start(os.path.join(FOLDER, "rank.py"), [case, folder], world, folder, LIMIT_S, environment), folder

    def finish_plain(self, world, number, folder):
        PLAIN.finish(number)
        return self.told(folder, range(world), "")

    def run_job(self, case, world, **how):
        finish = {name: how.pop(name) for name in ("fails", "missing") if name in how}
        return self.finish(*self.start(case, world, **how), world, **finish)

    def compare(self, case, world, **how):
        """The same digests as plain PyTorch's."""
        environment = {name: value for name, value in how.items() if name.isupper()}
        plain, node = self.start_plain(case, world, **environment), self.start(case, world, **how)
        plain, node = self.finish_plain(world, *plain), self.finish(*node, world)
        for rank in range(world):
            self.assertGreater(len(plain[rank]["results"]), 0)
            self.assertEqual(plain[rank]["results"], node[rank]["results"], f"rank {rank}")
            self.assertGreater(node[rank]["calls"], 0)

    def test_values_on_two_ranks(self):
        self.compare("values", 2)

    @runner.long
    def test_values_on_three_ranks(self):
        self.compare("values", 3)

    def test_shapes_on_two_ranks(self):
        self.compare("shapes", 2)

    @runner.long
    def test_shapes_on_four_ranks(self):
        self.compare("shapes", 4)

    @runner.long
    def test_values_on_two_nodes(self):
        self.compare("values", 4, nodes=(0, 0, 1, 1))

    @runner.long
    def test_values_on_nodes_of_unequal_size(self):
        self.compare("values", 4, nodes=(0, 1, 0, 0))

    @runner.long
    def test_shapes_on_two_nodes(self):
        self.compare("shapes", 4, nodes=(0, 1, 1, 0))

    @runner.long
    def test_groups_on_two_nodes(self):
        self.compare("groups", 4, nodes=(0, 0, 1, 1))

    def test_sequences_on_two_nodes(self):
        self.run_job("sequence", 4, nodes=(0, 0, 1, 1))

    @runner.long
    def test_a_killed_rank_of_another_node(self):
        for found in self.run_job("killed", 4, fails=True, missing=(1,), nodes=(0, 0, 1, 1)):
            self.assertLess(found["results"]["seconds"], 60)

    @runner.long
    def test_groups(self):
        self.compare("groups", 4)

    def test_any_numbers(self):
        self.compare("numbers", 2)

    def test_sums_are_in_rank_order(self):
        self.run_job("order", 4)

    @runner.long
    def test_sequences_on_two_ranks(self):
        self.run_job("sequence", 2)

    @runner.long
    def test_sequences_on_four_ranks(self):
        self.run_job("sequence", 4)

    def test_ddp_on_two_ranks(self):
        self.compare("ddp", 2)

    def test_forks(self):
        self.compare("fork", 2)

    def test_a_rank_that_has_left(self):
        self.compare("left", 3)

    def test_wrapped_groups(self):
        self.compare("groups", 3, TORCH_DISTRIBUTED_DEBUG="DETAIL")

    def test_a_killed_rank(self):
        for found in self.run_job("killed", 3, fails=True, missing=(1,)):
            self.assertRegex(found["results"]["message"], r"rank 1 \(pid \d+\) died")
            self.assertLess(found["results"]["seconds"], 60)

    def test_a_rank_that_does_not_come(self):
        found = self.run_job("timeout", 3)
        for rank in (0, 2):
            self.assertRegex(found[rank]["results"]["message"], "Timed out: rank . waited for rank ")

    @runner.long
    def test_two_jobs_at_once(self):
        jobs = [self.start("groups", 3) for _ in range(2)]
        first, second = (self.finish(*job, 3) for job in jobs)
        self.assertEqual([rank["results"] for rank in first], [rank["results"] for rank in second])

    def test_ranks_of_different_nodes(self):
        self.run_job("other_node", 2)

    def test_a_rank_with_another_gloo(self):
        self.run_job("other_layout", 2)

    def test_a_rank_without_memory(self):
        self.run_job("no_memory", 2)

    @runner.long  # test_a_rank_that_does_not_come
    def test_a_rank_that_does_not_answer(self):
        self.run_job("absent", 2)

    def test_off(self):
        for how in ({"mode": "off"}, {"plugin": "none"}) if runner.LENGTH == "all" else ({"mode": "off"},):
            self.run_job("none", 2, **how)

    @runner.long  # failure looks at it as well
    def test_nothing_is_left(self):
        before = set(os.listdir("/dev/shm"))
        self.run_job("shapes", 2)
        self.run_job("killed", 2, fails=True, missing=(1,))
        left = {name for name in set(os.listdir("/dev/shm")) - before if "castor" in name}
        self.assertEqual(left, set())


def main():
    global CASTOR
    CASTOR, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    with runner.served(CASTOR, "gemini"):
        runner.run(unittest.defaultTestLoader.loadTestsFromTestCase(CollectivesTest), names, runner.by_name)


if __name__ == "__main__":
    main()
