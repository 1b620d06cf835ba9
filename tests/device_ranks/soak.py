"""Jobs of ranks on simulated devices with random plugins, budgets, precisions, habits, delays and failing calls in one rank: each prints what plain PyTorch does
(in 16 bits, the plugin ddp), or ends with an error; none hangs.

    soak.py [--for SECONDS] [--seed N] [--castor build/bin/castor]
    soak.py --each PLUGIN,... [--budget 3M] [--lazy] [--only NAME,...]     each function of the driver, the runtime, cuBLAS and NCCL that a rank calls fails in turn

A line for each job; the last line is `N jobs, N ended with an error, N failed`."""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(FOLDER))
import runner  # noqa: E402

LIMIT_S = 240
PLUGINS = "ddp", "zero1", "zero2", "gemini", "gemini", "fsdp"
BUDGETS = None, "1M", "3M", "12M"
HABITS = ("nothing", "momentum", "not_divisible", "written_in_place", "read_by_kernels", "averaged", "saved_and_loaded", "saved_by_rank_0", "other_data",
          "frozen_for_a_while", "wrapped_again_by_pickle", "in_a_stream_of_its_own", "under_autocast")
NOT_IN_16_BITS = {"not_divisible", "averaged", "wrapped_again_by_pickle", "under_autocast"}  # refused there, or not possible in PyTorch
# Function and code of its failure. Some are the script's own calls, and then PyTorch's error.
FAILS = (("cudaMalloc", 2), ("cuMemCreate", 2), ("cuMemCreate", 801), ("cuMemMap", 1), ("cuMemUnmap", 999), ("cuMemSetAccess", 801), ("cuMemAddressReserve", 2),
         ("cuMemExportToShareableHandle", 801), ("cuMemImportFromShareableHandle", 801), ("cuMemcpyAsync", 719), ("cuEventRecord", 999), ("cuEventCreate", 2),
         ("cuStreamCreate", 2), ("cuStreamWaitEvent", 999), ("cuCtxSynchronize", 719), ("cudaMemcpyAsync", 719), ("ncclAllReduce", 1), ("ncclReduce", 3),
         ("ncclBroadcast", 1), ("ncclBcast", 1))
CODES = {"nccl": 1, "cublas": 13, "cu": 999}  # of a failure, by the begin of the name: unhandled CUDA error, execution failed, unknown
NOT_OURS = "cublasLtMatmul",  # plain PyTorch 2.11 then adds to memory that it has not written
LATE = 0, 0, 3000, 20000  # microseconds, of pieces of steps on the host
DELAYS = "nccl:3000", "copy:500", "launch:30", "blas:300", "host:200,event:50"


def run(command, folder, seconds):
    """(status, None: it took too long; standard output, standard error)"""
    env = dict(runner.environment(), CUBLAS_WORKSPACE_CONFIG=":16:8", TORCH_NCCL_BLOCKING_WAIT="0")
    with subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as job:
        try:
            out, err = job.communicate(timeout=seconds)
            return job.returncode, out, err
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGTERM)
            time.sleep(5)
            os.killpg(job.pid, signal.SIGKILL)
            out, err = job.communicate()
            return None, out, err


class Soak:
    def __init__(self, castor, seed):
        self.castor, self.random, self.plain = castor, random.Random(seed), {}
        self.jobs = self.errors = self.failed = 0

    def ranks(self, count, *words):
        return [*runner.on_devices(4)[:-1], "--", *runner.ranks(count), *words]

    def expected(self, ranks, habits, precision):
        if (ranks, habits, precision) not in self.plain:
            if precision == "fp32":
                with tempfile.TemporaryDirectory(prefix="castor-soak-") as folder:
                    status, out, err = run(self.ranks(ranks, os.path.join(FOLDER, "kept_once.py"), habits), folder, LIMIT_S)
            else:
                status, out, err = self.job("ddp", None, ranks, habits, 0, "", "", precision)
            if status:
                sys.exit(f"what jobs are compared with ends with status {status}:\n{err[-2000:]}")
            self.plain[ranks, habits, precision] = sorted(out.splitlines())
        return self.plain[ranks, habits, precision]

    def one(self):
        pick = self.random
        plugin, budget, ranks = pick.choice(PLUGINS), pick.choice(BUDGETS), pick.choice((2, 2, 3, 4))
        precision = pick.choice(("fp32", "fp32", "bf16", "fp16"))
        habits = ",".join(pick.sample([habit for habit in HABITS if precision == "fp32" or habit not in NOT_IN_16_BITS], 2))
        name, code = pick.choice(FAILS)
        fail = f"{name}:{pick.choice((pick.randint(1, 5), pick.randint(1, 60), pick.randint(1, 400)))}:{code}" if pick.random() < 0.6 else ""
        delay, rank = pick.choice(DELAYS) if pick.random() < 0.4 else "", pick.randrange(ranks)
        self.judge(plugin, budget, ranks, habits, rank, fail, delay, precision, pick.random() < 0.3, pick.choice(LATE))

    def each(self, plugin, budget, habits, only, lazy):
        """Fails the first, the middle and the last call of each function that rank 1 of 2 calls."""
        _, _, err = self.job(plugin, budget, 2, habits, 1, "count", "", lazy=lazy)
        called = re.findall(r"^calls (\S+) (\d+)$", err, re.MULTILINE)
        if not called:
            sys.exit(f"nothing was counted:\n{err[-2000:]}")
        for name, count in called:
            if name.islower() or name in NOT_OURS or only and name not in only:  # lower: a kind of operation, which only takes time
                continue
            code = next(code for begin, code in CODES.items() if name.lstrip("_").startswith(begin))
            for number in sorted({1, (int(count) + 1) // 2, int(count)}):
                self.judge(plugin, budget, 2, habits, 1, f"{name}:{number}:{code}", "", lazy=lazy)

    def job(self, plugin, budget, ranks, habits, rank, fail, delay, precision="fp32", lazy=False, late=0):
        with tempfile.TemporaryDirectory(prefix="castor-soak-") as folder:
            sets = [*(["--set", f"CASTOR_DEVICE_BUDGET={budget}"] if budget else []), "--set", f"CASTOR_PRECISION={precision}",
                    "--set", f"CASTOR_LAZY_INIT={lazy:d}"]
            words = [os.path.join(FOLDER, "faulty.py"), str(rank), fail, delay, os.path.join(FOLDER, "kept_once.py"), habits]
            return run([self.castor, "run", "--plugin", plugin, "--log-dir", "log", *sets, "--set", "CASTOR_DEBUG=1", "--",
                        "env", f"CASTOR_UPDATE_DELAY={late}", *self.ranks(ranks, *words)], folder, LIMIT_S)

    def judge(self, plugin, budget, ranks, habits, rank, fail, delay, precision="fp32", lazy=False, late=0):
        expected, begin = self.expected(ranks, habits, precision), time.monotonic()
        status, out, err = self.job(plugin, budget, ranks, habits, rank, fail, delay, precision, lazy, late)
        self.jobs += 1
        wrong = self.wrong(status, sorted(out.splitlines()), err, expected, fail)
        self.errors += status not in (0, None)
        self.failed += wrong is not None
        what = (f"{plugin} on {ranks}, budget {budget}, {precision}{', lazy' * lazy}, {habits}; steps late by {late} us; "
                f"rank {rank}: fails {fail or 'nothing'}, delays {delay or 'nothing'}")
        print(f"{'FAILED' if wrong else 'ok' if status == 0 else 'error'} {time.monotonic() - begin:.0f} s: {what}{': ' + wrong if wrong else ''}", flush=True)
        if wrong:
            print("\n".join("    " + line for line in err.splitlines()[-25:]), flush=True)

    @staticmethod
    def wrong(status, lines, err, expected, fail):
        """None: it is as it must be."""
        if status is None:
            return "it hangs"
        if status == 0:
            return None if lines == expected else "other numbers than plain PyTorch's"
        if not fail:
            return f"status {status}, and nothing fails"
        return None if re.search(r"castor: |Error", err) else f"status {status}, and nobody says why"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--castor", default=os.path.join(os.path.dirname(os.path.dirname(FOLDER)), "build", "bin", "castor"))
    parser.add_argument("--each", metavar="PLUGIN,...")
    parser.add_argument("--budget")
    parser.add_argument("--lazy", action="store_true", help="with --each: under CASTOR_LAZY_INIT")
    parser.add_argument("--only", default="", metavar="NAME,...")
    args = parser.parse_args()
    soak, end = Soak(args.castor, args.seed), time.monotonic() + args.seconds
    for plugin in args.each.split(",") if args.each else ():
        soak.each(plugin, args.budget, "momentum", list(filter(None, args.only.split(","))), args.lazy)
    while not args.each and time.monotonic() < end:
        soak.one()
    print(f"{soak.jobs} jobs, {soak.errors} ended with an error, {soak.failed} failed")
    return soak.failed > 0


if __name__ == "__main__":
    sys.exit(main())
