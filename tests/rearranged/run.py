"""Runs tests/scripts/rearranged.py, which rearranges storages at random, plain and under Castor; all it sees must be equal. Then
edited.py, which edits what it trains between the micro-steps of CASTOR_ACCUMULATE: it ends as plain PyTorch with whole batches, or Castor refuses it.

    tests/rearranged/run.py [--castor build/bin/castor] [--seeds 5] [--first 1] [--only NAME] [--setup NAME]

--seeds   so many runs in each setup, of seeds from --first on; what fails is printed with its seed, and
          `rearranged.py --out DIR SEED` runs that one alone
--setup   only setups whose name contains it

A run that ends with one line of Castor's counts as passed; seeds that plain PyTorch does not survive are left out. The last line is `N passed, N failed`.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.append(os.path.join(ROOT, "tests"))
import plain_jobs  # noqa: E402
import runner  # noqa: E402

SCRIPT = os.path.join(ROOT, "tests", "scripts", "rearranged.py")
LIMIT_SECONDS = 300

# name: (ranks of a DDP script, 0: a script of one process; options of `castor run`)
SETUPS = {
    "one process under a budget": (0, ["--plugin", "gemini", "--set", "CASTOR_MEMORY_BUDGET=100M"]),
    "one process, parameters and states on disk": (0, [
        "--plugin", "gemini", "--set", "CASTOR_CHUNK_SIZE=64K", "--set", "CASTOR_PLACEMENT=static", "--set",
        "CASTOR_SHARD_PARAM_FRAC=1", "--set", "CASTOR_OFFLOAD_PARAM_FRAC=1", "--set", "CASTOR_OFFLOAD_OPTIM_FRAC=1"]),
    "two ranks of a script of one process": (0, ["--plugin", "zero1", "--nproc", "2", "--set", "CASTOR_BATCH=loader"]),
    "DDP, ddp": (2, ["--plugin", "ddp"]),
    "DDP, zero1": (2, ["--plugin", "zero1"]),
    "DDP, zero2": (2, ["--plugin", "zero2"]),
    "DDP, gemini, lazy initialization": (2, ["--plugin", "gemini", "--set", "CASTOR_LAZY_INIT=1"]),
    "DDP, gemini under a budget": (2, ["--plugin", "gemini", "--set", "CASTOR_MEMORY_BUDGET=100M"]),
}

EDITED = os.path.join(ROOT, "tests", "rearranged", "edited.py")
PARTS = 3  # of a batch
START = "at the start of a batch"  # where no edit may be refused
EDITS_A_SEED = 8  # edited.py's runs are short: so many for each seed
EDITED_SETUPS = {
    "edits, one process": (0, ["--plugin", "gemini"]),
    "edits, one process under a budget": (0, ["--plugin", "gemini", "--set", "CASTOR_MEMORY_BUDGET=8M"]),
    "edits, DDP, ddp": (2, ["--plugin", "ddp"]),
    "edits, DDP, gemini": (2, ["--plugin", "gemini"]),
}


def differs(plain, castor):
    """Why what edited.py ended with under Castor is wrong; None: it is equal but for rounding, or Castor refused what it may refuse."""
    if castor is None or plain["edits"] != castor["edits"]:
        return "no result" if castor is None else "other edits"
    if "raised" in plain:
        return None if "raised" in castor else f"plain PyTorch raises {plain['raised']}"
    if "raised" in castor:
        may = any(moment != START for _, moment, _ in plain["edits"])
        return None if may and "castor: " in castor["raised"] else castor["raised"]
    if plain["final"].keys() != castor["final"].keys():
        return f"other values: {sorted(plain['final'].keys() ^ castor['final'].keys())}"
    for name, expected in plain["final"].items():
        most = max(1.0, *map(abs, expected)) if expected else 1.0
        if not all(abs(a - b) <= 1e-9 * most for a, b in zip(expected, castor["final"][name], strict=True)):
            return f"{name} differs"
    return None


class Suite:
    def __init__(self, arguments):
        self.arguments, self.passed, self.failed = arguments, 0, 0
        self.seeds = range(arguments.first, arguments.first + arguments.seeds)
        self.plain = {}
        self.work = tempfile.mkdtemp(prefix="castor-rearranged-")
        self.jobs = plain_jobs.PlainJobs()

    def start(self, under, ranks, script, *arguments):
        """Runs it by plain PyTorch, where `under` is empty; returns what was printed."""
        words = [*["--ddp"] * bool(ranks), *arguments]
        if not under:
            folder = tempfile.mkdtemp(dir=self.work)
            self.jobs.status(self.jobs.start(script, words, ranks, folder, LIMIT_SECONDS, {}))
            return "".join(open(os.path.join(folder, name), errors="replace").read() for name in ("stdout.txt", "stderr.txt"))
        environment = dict(os.environ, OMP_NUM_THREADS="1", CASTOR_TIMEOUT="30")
        try:
            return subprocess.run([*under, *runner.ranks(ranks), script, *words], env=environment, cwd=self.work, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS).stdout
        except subprocess.TimeoutExpired as expired:
            return f"{(expired.stdout or b'').decode(errors='replace')}\nran into {LIMIT_SECONDS} seconds"

    def run_all(self, name, under, ranks):
        """Starts the script anew after a seed that ended it. Returns (seen by rank, what was printed) by seed."""
        out = os.path.join(self.work, name)
        os.makedirs(out)
        found, left = {}, list(self.seeds)
        while left:
            printed = self.start(under, ranks, SCRIPT, "--out", out, *map(str, left))
            reached = [seed for seed in left if any(self.seen(out, seed, rank) is not None for rank in range(max(ranks, 1)))]
            began = reached + [seed for seed in left if seed not in reached][:1]
            for seed in began:
                found[seed] = [self.seen(out, seed, rank) for rank in range(max(ranks, 1))], printed
            left = [seed for seed in left if seed not in began]
        return found

    @staticmethod
    def seen(out, seed, rank):
        try:
            with open(os.path.join(out, f"{seed}.{rank}.json")) as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def compare(self, setup, seed, plain, castor, printed):
        why = next(filter(None, (self.difference(rank, *pair, printed) for rank, pair in enumerate(zip(plain, castor)))), None)
        if why is None:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {setup}, seed {seed}: {why}", flush=True)

    @staticmethod
    def difference(rank, plain, castor, printed):
        if castor is None:
            return f"rank {rank} saw nothing:\n    " + "\n    ".join(printed.splitlines()[-12:])
        for expected, got in zip(plain, castor):
            if got[0] == "raised" and "castor: " in got[1] and "\n" not in got[1].rpartition("castor: ")[2]:
                print(f"    refused: {got[1]}", flush=True)
                return None
            if expected[0] == got[0] == "raised":
                return None
            if expected != got:
                return f"rank {rank}: {got[0]}: {str(got[1])[:300]} instead of {expected[0]}: {str(expected[1])[:300]}"
        return None if len(plain) == len(castor) else f"rank {rank} saw {len(castor)} things instead of {len(plain)}"

    def run_edited(self, name, under, ranks, *arguments):
        """What edited.py ended with, by seed and rank."""
        out = os.path.join(self.work, name)
        os.makedirs(out)
        seeds = range(EDITS_A_SEED * self.seeds.start, EDITS_A_SEED * self.seeds.stop)
        printed = self.start(under, ranks, EDITED, "--out", out, *arguments, *map(str, seeds))
        return {seed: [self.seen(out, seed, rank) for rank in range(max(ranks, 1))] for seed in seeds}, printed

    def go_edited(self):
        plain = {}
        for name, (ranks, options) in EDITED_SETUPS.items():
            if self.arguments.setup not in name:
                continue
            if ranks not in plain:
                plain[ranks], printed = self.run_edited(f"plain edits {ranks}", [], ranks)
            under = [self.arguments.castor, "run", "--log-dir", os.path.join(self.work, "logs"), "--set", f"CASTOR_ACCUMULATE={PARTS}", *options, "--"]
            found, printed = self.run_edited(name, under, ranks, "--parts", str(PARTS))
            wrong = {seed: next(filter(None, map(differs, plain[ranks][seed], found[seed])), None) for seed in found}
            for seed, why in wrong.items():
                if why:
                    print(f"FAILED {name}, seed {seed}: {why}: {plain[ranks][seed][0]['edits']}\n{printed[-2000:]}", flush=True)
            refused = sum(seen[0] is not None and "raised" in seen[0] for seen in found.values())
            equal = sum(why is None for why in wrong.values())
            self.passed, self.failed = self.passed + equal, self.failed + len(wrong) - equal
            if not 0 < refused < len(wrong):
                self.failed += 1
                print(f"FAILED {name}: {refused} of {len(wrong)} runs were refused: the seeds show nothing", flush=True)
            print(f"{name}: {equal} of {len(wrong)} equal or refused ({refused})", flush=True)

    def go(self):
        try:
            for name, (ranks, options) in SETUPS.items():
                if self.arguments.setup not in name:
                    continue
                if ranks not in self.plain:
                    self.plain[ranks] = self.run_all(f"plain-{ranks}", [], ranks)
                under = [self.arguments.castor, "run", "--log-dir", os.path.join(self.work, "logs"), *options, "--"]
                found = self.run_all(name, under, ranks)
                before = self.failed
                for seed in self.seeds:
                    if None in self.plain[ranks][seed][0]:  # PyTorch itself ends the script on some rank
                        continue
                    self.compare(name, seed, self.plain[ranks][seed][0], *found[seed])
                print(f"{name}: {len(self.seeds) - (self.failed - before)} of {len(self.seeds)} equal or refused", flush=True)
            self.go_edited()
        finally:
            shutil.rmtree(self.work, ignore_errors=True)
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--castor", default=os.path.join(ROOT, "build", "bin", "castor"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--setup", default="")
    arguments = parser.parse_args()
    with runner.served(arguments.castor, "gemini"):
        sys.exit(Suite(arguments).go())


if __name__ == "__main__":
    main()
