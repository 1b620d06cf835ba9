"""Ranks on devices, simulated ones: what each keeps of the model's data, and that nobody can tell.

    tests/device_ranks/run.py [--castor build/bin/castor] [--gpu] [NAME]...

--gpu: on the devices of this machine. What scripts of tests/scripts see there is compared by tests/semantics/run.py --devices. NAMEs select tests
whose id contains one of them. The last line is `N passed, N failed`."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.dirname(FOLDER), os.path.join(os.path.dirname(FOLDER), "sim")]
import hosts  # noqa: E402
import runner  # noqa: E402
import simulated  # noqa: E402

LIMIT_S = 300  # of one job; reached only by a failure
CASTOR = None
GPU = "--gpu" in sys.argv
ALL = "nothing,one_rank_looks,halved_by_hand,looks_then_clips,clips_then_looks,written_before_a_slow_look,looks_between_collectives"
SHORT = "one_rank_looks,looks_then_clips,written_before_a_slow_look,looks_between_collectives"


def on_devices(count, *options):
    if GPU:
        import torch

        if count > torch.cuda.device_count():
            raise unittest.SkipTest(f"needs {count} devices")
        return ["env", f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(count)))}"]
    return [*runner.on_devices(count)[:-1], *options, "--"]


def job(plugin, ranks, program, *arguments, **more):
    """(lines, standard error) of a job's ranks; `plugin`: None for plain PyTorch."""
    return run(plugin, [*on_devices(ranks), *runner.ranks(ranks)], program, *arguments, **more)


def run(plugin, before, program, *arguments, settings=(), options=(), reported=None, late=0):
    """(lines, standard error), and what `reported` makes of the report. late: by so many microseconds steps on the host are, at most."""
    sets = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="castor-device-ranks-") as folder:
        under = [CASTOR, "run", "--plugin", plugin, "--log-dir", os.path.join(folder, "log"), *sets, *options, "--"] if plugin else []
        command = [*under, *([] if not late else ["env", f"CASTOR_UPDATE_DELAY={late}"]), *before, os.path.join(FOLDER, program), *arguments]
        env = dict(runner.environment(), CUBLAS_WORKSPACE_CONFIG=":16:8")
        done = subprocess.run(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        found = None
        if reported and not done.returncode:
            told = subprocess.run([CASTOR, "report", os.path.join(folder, "log"), "--format", "json"], capture_output=True, text=True, timeout=60, check=True)
            found = reported(json.loads(told.stdout))
    if done.returncode:
        raise AssertionError(f"{plugin} {' '.join(options)}: {program} ends with status {done.returncode}:\n{done.stderr[-3000:]}")
    return (done.stdout.splitlines(), done.stderr, *([] if found is None else [found]))


class Looks(unittest.TestCase):
    """What a script sees of gradients and states is what plain PyTorch shows it, whoever keeps them."""

    maxDiff = None
    plain = {}

    def compare(self, plugin, ranks, *arguments, settings=()):
        if (ranks, arguments) not in self.plain:
            self.plain[ranks, arguments] = sorted(job(None, ranks, "looks.py", *arguments)[0])
            self.assertGreater(len(self.plain[ranks, arguments]), 20)
        lines, errors = job(plugin, ranks, "looks.py", *arguments, settings=settings)
        self.assertEqual(sorted(lines), self.plain[ranks, arguments], errors)

    def test_zero2(self):
        self.compare("zero2", 2, SHORT)

    @runner.long
    def test_zero2_with_four_ranks(self):
        self.compare("zero2", 4, ALL)

    @runner.long
    def test_zero2_under_a_budget(self):
        self.compare("zero2", 2, ALL, settings=["CASTOR_DEVICE_BUDGET=3M"])

    @runner.long
    def test_over_gloo(self):
        self.compare("zero2", 2, SHORT, "gloo")

    @runner.long
    def test_where_tensors_are_made_on_the_device(self):
        for plugin in "zero2", "gemini":
            self.compare(plugin, 2, ALL, "nccl", "default", settings=["CASTOR_DEVICE_BUDGET=3M"])

    @runner.long
    def test_zero1(self):
        self.compare("zero1", 2, ALL)

    @runner.long
    def test_ddp(self):
        self.compare("ddp", 2, ALL)


class KeptOnce(unittest.TestCase):
    """Parameters on the host, which the node keeps once, are plain PyTorch's whatever the script does to them."""

    maxDiff = None
    ALL = ("nothing,momentum,not_divisible,written_in_place,read_by_kernels,averaged,saved_and_loaded,saved_by_rank_0,other_data,frozen_for_a_while,"
           "wrapped_again_by_pickle,in_a_stream_of_its_own,under_autocast")

    def compare(self, ranks, habits, budget, backend="nccl", late=0):
        plain, _ = job(None, ranks, "kept_once.py", habits, backend)
        lines, errors, steps = job("gemini", ranks, "kept_once.py", habits, backend, settings=[f"CASTOR_DEVICE_BUDGET={budget}", "CASTOR_DEBUG=1"],
                                   reported=lambda told: [rank["device"]["host_steps"]["parameters"] for rank in told["ranks"]], late=late)
        self.assertEqual(sorted(lines), sorted(plain), errors)
        found = [[int(size) for size in re.findall(f"rank {rank} has (\\d+) bytes of parameters on the host", errors)] for rank in range(ranks)]
        self.assertEqual([len(sizes) for sizes in found], ranks * [len(habits.split(","))])
        self.assertGreater(min(steps), 0)  # on the host
        return found

    def test_with_two_ranks(self):
        first, other = self.compare(2, "written_in_place,saved_and_loaded,wrapped_again_by_pickle", "12M")
        self.assertLess(sum(other), sum(first))

    @runner.long
    def test_with_four_ranks(self):
        first, *others = self.compare(4, self.ALL, "12M")
        for other in others:
            self.assertLess(min(other), min(first))

    @runner.long
    def test_ranks_that_have_begun_a_job_each(self):
        """As Ray's workers do, by the variables of `castor env`: their tokens differ."""
        habits = "nothing", "nccl"
        plain, _ = job(None, 2, "kept_once.py", *habits)
        told = subprocess.run([CASTOR, "env", "--plugin", "gemini", "--set", "CASTOR_DEVICE_BUDGET=12M", "--set", "CASTOR_TIMEOUT=30", "--format", "json"],
                              env=runner.environment(), capture_output=True, text=True, check=True)
        before = ["env", *(f"{name}={value}" for name, value in json.loads(told.stdout).items())]
        lines, errors = run(None, [*before, *on_devices(2), *runner.ranks(2)], "kept_once.py", *habits)
        self.assertEqual(sorted(lines), sorted(plain), errors)
        first, other = (int(re.search(f"rank {rank} has (\\d+) bytes of parameters on the host", errors)[1]) for rank in range(2))
        self.assertLess(other, first)

    def test_steps_that_are_late(self):
        self.compare(2, "nothing", "1M", "gloo", late=20000)

    @runner.long
    def test_where_all_is_on_the_host(self):
        self.compare(2, self.ALL, "1M")

    @runner.long
    def test_where_all_is_on_the_host_and_steps_are_late(self):
        for backend in "nccl", "gloo":
            self.compare(2, self.ALL, "1M", backend, late=3000)


class Arrivals(unittest.TestCase):
    """CASTOR_LAZY_INIT: large parameters that come to a device's host memory are shared as they come, and are plain PyTorch's."""

    maxDiff = None
    OPTIONS = "CASTOR_DEVICE_BUDGET=1M", "CASTOR_LAZY_INIT=1"
    ONCE = "alike", "late", "tied", "frozen", "made_again", "pinned"  # of these no rank has a copy for itself
    ALL = *ONCE, "doubled", "apart", "zeroed_on_one_rank", "loaded", "equal_layers", "of_one_rank_too"
    SHORT = "late", "zeroed_on_one_rank", "equal_layers"

    def check(self, errors, ranks, ways, nodes=1, rest=4 << 20):
        """rest: bytes of each rank beside the node's parameters, which are matrices in whole units of 2 MiB, and vectors."""
        for way in ways:
            found = [tuple(map(int, values)) for values in re.findall(f"rank \\d+: {way}: (\\d+) (\\d+) (\\d+) bytes of (\\d+) on the host", errors)]
            self.assertEqual(len(found), ranks, errors)
            if way in self.ONCE:
                for once in list(zip(*found))[:2]:  # its step may need a copy, for a while
                    self.assertLessEqual(sum(once), 1.2 * nodes * found[0][-1] + ranks * rest, f"{way}: {found}")

    def compare(self, ranks, ways):
        plain, _ = job(None, ranks, "arrivals.py", ",".join(ways))
        lines, errors = job("gemini", ranks, "arrivals.py", ",".join(ways), settings=self.OPTIONS)
        self.assertEqual(sorted(lines), sorted(plain), errors)
        self.check(errors, ranks, ways)

    def test_with_two_ranks(self):
        self.compare(2, self.SHORT)

    @runner.long
    def test_all_ways(self):
        self.compare(2, self.ALL)

    @runner.long
    def test_with_four_ranks(self):
        self.compare(4, (*self.ALL, "in_groups_of_two"))

    @runner.long
    def test_under_nproc(self):
        ways = [way for way in self.ALL if way not in ("apart", "zeroed_on_one_rank")]  # there is one rank, for the script
        plain, _ = run(None, [*on_devices(1), sys.executable], "arrivals.py", ",".join(ways))
        lines, errors = run("gemini", [*on_devices(2), sys.executable], "arrivals.py", ",".join(ways), settings=self.OPTIONS, options=["--nproc", "2"])
        about, expected = ([line for line in each if line.startswith("saw about")] for each in (lines, plain))  # sums of rows have another order
        self.assertEqual((len(about), about), (len(ways), expected), errors)


class Memory(unittest.TestCase):
    """Bytes of a device per parameter with Adam, fp32 unless said (docs/device-ranks.md)."""

    def check(self, plugin, ranks, expected, *settings):
        self.compare(job(plugin, ranks, "memory.py", settings=settings)[0], ranks, expected)

    def compare(self, lines, ranks, expected):
        found = [re.search(r"([\d.]+) bytes a parameter, ([\d.]+) when it is gone", line) for line in lines if "bytes a parameter" in line]
        self.assertEqual(len(found), ranks)
        for each in found:
            self.assertAlmostEqual(float(each[1]), expected, delta=0.05 * expected)
            self.assertLess(float(each[2]), 0.1)

    @runner.long
    def test_ddp(self):
        self.check("ddp", 2, 16)

    @runner.long
    def test_zero1_on_two(self):
        self.check("zero1", 2, 8 + 8 / 2)

    @runner.long
    def test_zero1_on_four(self):
        self.check("zero1", 4, 8 + 8 / 4)

    @runner.long
    def test_16_bits(self):
        for plugin, of_bf16, of_fp16 in ("ddp", 16, 18), ("zero1", 4 + 12 / 2, 6 + 12 / 2), ("zero2", 2 + 14 / 2, 2 + 16 / 2):
            self.check(plugin, 2, of_bf16, "CASTOR_PRECISION=bf16")
            self.check(plugin, 2, of_fp16, "CASTOR_PRECISION=fp16")

    def test_zero2_on_two(self):
        self.check("zero2", 2, 4 + 12 / 2)

    @runner.long  # the one above and OneProcess stand for it
    def test_zero2_under_nproc(self):
        options = "--nproc", "2", "--all-output"
        self.compare(run("zero2", [*on_devices(2), sys.executable], "memory.py", options=options)[0], 2, 4 + 12 / 2)

    @runner.long
    def test_zero2_on_four(self):
        self.check("zero2", 4, 4 + 12 / 4)

    def on_the_host(self, plugin, ranks):
        """Bytes a parameter of parameters, gradients and states on the host of all ranks together."""
        lines, errors = job(plugin, ranks, "memory.py", "256", "96", settings=["CASTOR_DEVICE_BUDGET=1M"])
        found = [[float(value) for value in re.findall(r"(?:parameters|gradients|optimizer_states) ([\d.]+)", line)] for line in lines if "on the host" in line]
        self.assertEqual(len(found), ranks, errors)
        return [sum(values) for values in zip(*found)]

    @runner.long
    def test_what_the_node_keeps_once(self):
        """With everything on the host. Beside it are, on each rank, what is no matrix, and the unused ends of segments of PyTorch's allocator: 2 MiB of
        parameters, and of buckets and states one segment of 20 MiB."""
        count = 96 * (256 * 256 + 256)
        for ranks in 2, 4:
            for plugin, parameters in ("zero2", 4 * ranks), ("gemini", 4):
                rest = [ranks * unused / count for unused in (2 << 20, 20 << 20, 20 << 20)]
                for bytes_, expected, unused in zip(self.on_the_host(plugin, ranks), (parameters, 4, 8), rest):
                    self.assertGreaterEqual(bytes_, 0.95 * expected)
                    self.assertLessEqual(bytes_, 1.05 * expected + unused)


class OneDevice(unittest.TestCase):
    """Ranks of a DDP script that share a device."""

    def test_they_share_its_budget(self):
        told = re.compile(r"rank (\d): (.*); (\d+) bytes on the device; a child ends with 0")
        losses = []
        for plugin, settings in (None, ()), ("gemini", ["CASTOR_DEVICE_BUDGET=32M"]):
            lines, errors = run(plugin, [*on_devices(1), *runner.ranks(2)], "sharing.py", settings=settings)
            found = [told.fullmatch(line) for line in sorted(lines)] if plugin else [re.match(r"rank (\d): (.*); 0 bytes", line) for line in sorted(lines)]
            self.assertTrue(len(found) == 2 and all(found), f"{lines}\n{errors}")
            losses.append([each[2] for each in found])
            if plugin:
                for each in found:  # of 16 MiB, what slots and parts leave: a half
                    self.assertTrue(2 << 20 <= int(each[3]) <= 8 << 20, lines)
        self.assertEqual(losses, [losses[0]] * 2)


class Passes(unittest.TestCase):
    """What passes read of parameters on the host comes ahead of its use."""

    def slots_of(self, way, plain, budget):
        """What the report says of them."""
        lines, errors, slots = run("gemini", [*on_devices(1), sys.executable], "passes.py", way, settings=[f"CASTOR_DEVICE_BUDGET={budget}"],
                                   reported=lambda report: report["ranks"][0]["device"]["slots"])
        self.assertEqual(lines, plain, errors)
        return slots

    def test_casts(self):
        plain, _ = run(None, [*on_devices(1), sys.executable], "passes.py", "cast")
        slots = self.slots_of("cast", plain, "8M")
        self.assertGreaterEqual(slots["uses"], 6 * 12, "autocast casts each weight once in a pass, and half are on the host")
        self.assertEqual(slots["home_reads"], 0, slots)
        self.assertGreaterEqual(slots["prefetched"], 0.5 * slots["uses"] * 5 / 6, slots)

    def test_that_no_step_follows(self):
        plain, _ = run(None, [*on_devices(1), sys.executable], "passes.py", "moved")
        for way in "moved", "made":
            slots = self.slots_of(way, plain, "4M")
            self.assertGreaterEqual(slots["uses"], 6 * 12, "of each pass a half at least is on the host")
            self.assertGreaterEqual(slots["prefetched"], 0.75 * slots["uses"] * 5 / 6, slots)


class SeveralNodes(unittest.TestCase):
    """Two hosts (tests/hosts.py) with two devices each."""

    maxDiff = None

    def setUp(self):
        if GPU or hosts.available():
            self.skipTest(f"no hosts can be made here: {hosts.available()}")

    def run_on_hosts(self, plugin, program, *arguments, settings=(), options=(), each=2):
        """(status, lines, standard error)"""
        sets = [word for setting in settings for word in ("--set", setting)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "{host}", "--nproc-per-node", str(each), "--master-addr",
                    "{address}", "--master-port", "29400", os.path.join(FOLDER, program), *arguments]
        command = [CASTOR, "run", "--plugin", plugin, "--log-dir", "log{host}", *sets, *options, "--", *on_devices(4), *torchrun]
        shell = f"case {{host}} in 0) SEES=0,1;; *) SEES=2,3;; esac; export CUDA_VISIBLE_DEVICES=$SEES; exec {' '.join(command)}"
        with tempfile.TemporaryDirectory(prefix="castor-device-ranks-") as folder:
            env = dict(runner.environment("GLOO_"), CUBLAS_WORKSPACE_CONFIG=":16:8")
            done = subprocess.run([sys.executable, hosts.__file__, "2", "sh", "-c", shell], env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=LIMIT_S)
        return done.returncode, done.stdout.splitlines(), done.stderr

    def compare(self, plugin, program, habits, *settings):
        plain, _ = job(None, 4, program, habits)
        status, lines, errors = self.run_on_hosts(plugin, program, habits, settings=settings)
        self.assertEqual((status, sorted(lines)), (0, sorted(plain)), errors)
        return errors

    @runner.long
    def test_parameters(self):
        self.compare("gemini", "kept_once.py", KeptOnce.ALL, "CASTOR_DEVICE_BUDGET=1M")
        self.compare("zero2", "kept_once.py", KeptOnce.ALL, "CASTOR_DEVICE_BUDGET=3M")

    @runner.long
    def test_each_node_keeps_parameters_once(self):
        ways = *Arrivals.ALL, "in_groups_of_two"
        errors = self.compare("gemini", "arrivals.py", ",".join(ways), *Arrivals.OPTIONS)
        Arrivals().check(errors, 4, ways, nodes=2)

    @runner.long
    def test_looks(self):
        for plugin in "zero1", "zero2":
            self.compare(plugin, "looks.py", ALL)

    def compare_one_process(self, plugin, program, each, *settings):
        """CASTOR_NPROC=auto: so many ranks on each host."""
        plain, _ = run(None, [*on_devices(1), sys.executable], "single.py", program)
        status, lines, errors = self.run_on_hosts(plugin, "single.py", program, settings=settings, options=["--nproc", "auto"], each=each)
        self.assertEqual((status, lines), (0, plain), errors)
        self.assertNotIn("computed whole", errors)

    def test_a_script_of_one_process(self):
        self.compare_one_process("zero2", "small", 1)

    @runner.long
    def test_scripts_of_one_process(self):
        self.compare_one_process("gemini", "small", 2, "CASTOR_DEVICE_BUDGET=64K")
        self.compare_one_process("hybrid", "large", 1, "CASTOR_PP=2")
        self.compare_one_process("hybrid", "large", 2, "CASTOR_PP=2")

    @runner.long
    def test_a_killed_rank(self):
        status, _, errors = self.run_on_hosts("zero2", "restarts.py", "3")
        self.assertNotEqual(status, 0)
        self.assertRegex(errors, r"\[rank[012]\]: castor: .*has ended or cannot be reached")


class Restarts(unittest.TestCase):

    @runner.long
    def test_the_next_attempt_goes_on(self):
        """TORCH_DISABLE_SHARE_RDZV_TCP_STORE: docs/failure.md."""
        python = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        plain, _ = run(None, [*on_devices(2), *python, "--standalone"], "restarts.py")
        again = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", *python, "--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        for settings in [], ["CASTOR_DEVICE_BUDGET=1M"]:
            lines, errors = run("gemini", [*on_devices(2), *again], "restarts.py", "1", settings=settings)
            self.assertEqual(sorted(lines), sorted(plain), errors)


class OneProcess(unittest.TestCase):
    """Scripts of one process under --nproc."""

    def compare(self, program, plugin, ranks, devices, *options):
        python = [sys.executable]
        plain, _ = run(None, [*on_devices(1), *python], "single.py", program)
        lines, errors = run(plugin, [*on_devices(devices, *options), *python], "single.py", program, options=["--nproc", str(ranks)])
        self.assertEqual(lines, plain, errors)
        return errors

    @runner.long
    def test_backward_passes_in_a_device_thread_are_no_micro_steps(self):
        plain, _ = run(None, [*on_devices(1), sys.executable], "single.py", "accumulated")
        for ranks in 1, 2:
            lines, errors = run("ddp", [*on_devices(2), sys.executable], "single.py", "accumulated", settings=["CASTOR_ACCUMULATE=2"],
                                options=["--nproc", str(ranks)])
            self.assertEqual(lines, plain, errors)

    @runner.long
    def test_a_conjugate_view_keeps_its_references(self):
        (line,), _ = run("ddp", [*on_devices(1), sys.executable], "single.py", "conjugate")
        before, after = line.split()[1:]
        self.assertEqual(before, after)

    def test_each_on_a_device_of_its_own(self):
        self.assertNotIn("computed whole", self.compare("small", "zero2", 2, 2))

    @runner.long
    def test_weights_of_a_seed_of_each_rank_are_rank_0s(self):
        for plugin in "ddp", "zero2":
            lines, errors = run(plugin, [*on_devices(2), sys.executable], "single.py", "seeded_apart", options=["--nproc", "2"])
            plain, _ = run(None, [*on_devices(1), sys.executable], "single.py", "seeded_apart", lines[0].removeprefix("seed "))
            self.assertEqual(lines, plain, errors)

    def test_a_backward_pass_that_rows_would_change(self):
        self.assertIn("by rows its backward pass makes other gradients", self.compare("normed", "ddp", 2, 2))

    def test_stages_have_their_own_parameters(self):
        """The devices have no room for the model's data, and in trials none for what the whole model saves."""
        plain, _ = run(None, [*on_devices(1), sys.executable], "single.py", "large")
        lines, errors, parameters = run("hybrid", [*on_devices(2, *(() if GPU else ("--memory", "150M"))), sys.executable], "single.py", "large",
                                        settings=["CASTOR_PP=2"], options=["--nproc", "2"],
                                        reported=lambda report: [rank["tiers"]["device"]["param"] for rank in report["ranks"]])
        self.assertEqual(lines, plain, errors)
        self.assertNotIn("computed whole", errors)
        for size in parameters:  # 24 MiB of 48, and what the segments of PyTorch's allocator leave
            self.assertLess(size, 48 << 20)

    @runner.long
    @unittest.skipIf(GPU, "a device of this machine has more memory")
    def test_stages_keep_what_few_microbatches_save(self):
        """1F1B: a stage's half of what the model saves is 144 MiB, of which it has a fourth at a time."""
        plain, _ = run(None, [*on_devices(1), sys.executable], "single.py", "deep")
        lines, errors, calls = run("hybrid", [*on_devices(2, "--memory", "176M"), sys.executable], "single.py", "deep",
                                   settings=["CASTOR_PP=2", "CASTOR_MICROBATCHES=8"], options=["--nproc", "2"],
                                   reported=lambda report: [rank["calls_1f1b"] for rank in report["ranks"]])
        self.assertEqual(lines, plain, errors)
        self.assertEqual(calls, [2, 2])

    @runner.long
    @unittest.skipIf(GPU, "a device of this machine has more memory")
    def test_stages_keep_what_few_microbatches_of_ranks_save(self):
        """The same of two ranks: a stage has the batches of both, 48 MiB, and would save 288 MiB of them."""
        plain, _ = job(None, 2, "single.py", "deep")
        lines, errors, calls = run("hybrid", [*on_devices(2, "--memory", "208M"), *runner.ranks(2)], "single.py", "deep",
                                   settings=["CASTOR_PP=2", "CASTOR_MICROBATCHES=8"],
                                   reported=lambda report: [rank["calls_1f1b"] for rank in report["ranks"]])
        self.assertEqual(sorted(lines), sorted(plain), errors)
        self.assertEqual(calls, [3, 3])

    @runner.long  # OneDevice stands for ranks that share one
    def test_more_ranks_than_devices(self):
        self.assertIn("3 ranks share 1 device", self.compare("small", "gemini", 3, 1))

    @runner.long
    @unittest.skipIf(GPU, "a device of this machine has more memory")
    def test_model_data_of_three_devices(self):
        self.assertIn("moved to host memory", self.compare("large", "gemini", 2, 2, "--memory", "64M"))


if __name__ == "__main__":
    if GPU:
        sys.argv.remove("--gpu")
    CASTOR, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    why = None if GPU else simulated.make(sys.executable)
    if why:
        runner.cannot_run(why)
    runner.run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]), names)
