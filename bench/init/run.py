#!/usr/bin/env python3
"""Lazy initialization: what memory a node needs while a GPT is made on each of its ranks, and wrapped in DDP.

The same script runs plainly, under Castor, and with CASTOR_LAZY_INIT=1. Memory is that of all ranks (PSS) and what memory files
hold that nobody has mapped, sampled all the time, above what the same processes take before they make the model. Parameters and
random states must be the same, bit for bit. With --devices each rank then moves the model to a simulated device (docs/rehearse.md), whose budget leaves the parameters
on the host. ../README.md has the ways of measuring.
"""

import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402

SCRIPT = os.path.join(HERE, "construct_ddp.py")
SIZES = {"100M": (1024, 8, 1024), "1B": (2048, 20, 4096)}  # width, layers, vocabulary
MIB = 1 << 20
NAP_SECONDS = 0.01
CONTENDERS = {
    "plain": ("PyTorch", [], []),
    "gemini": ("gemini", [], ["--plugin", "gemini"]),
    "lazy": ("gemini, `CASTOR_LAZY_INIT=1`", [], ["--plugin", "gemini", "--set", "CASTOR_LAZY_INIT=1"]),
}


def memory_files(pids):
    """Bytes in memory of the memory files that these processes have open, once each."""
    found = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if os.readlink(path).startswith("/memfd:"):
                    status = os.stat(path)
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
        except OSError:
            continue
    return sum(found.values())


def node_bytes(pids):
    """PSS of all, and the pages of memory files that no process has mapped."""
    memory = jobs.memory_of_all(pids)
    if memory is None:
        return None
    return memory["pss"] - memory["shmem"] + max(memory["shmem"], memory_files(pids))


class Run:
    def __init__(self, args, contender, arguments):
        self.args, self.contender, self.arguments = args, contender, arguments
        self.folder = tempfile.mkdtemp(prefix="init-")
        self.samples = []  # (time, bytes)

    def told(self, stage):
        found = []
        for rank in range(self.args.ranks):
            try:
                with open(os.path.join(self.folder, f"{stage}{rank}")) as file:
                    found.append(json.load(file))
            except OSError:
                return None
        return found

    def say(self, name):
        open(os.path.join(self.folder, name), "w").close()

    def sample(self, pids, ended):
        while not ended.is_set():
            taken = node_bytes(pids)
            if taken is not None:
                self.samples.append((time.monotonic(), taken))
            time.sleep(NAP_SECONDS)

    def until(self, job, stage):
        deadline = time.monotonic() + self.args.timeout
        while (told := self.told(stage)) is None:
            if job.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.contender}: no rank reached `{stage}`: {jobs.last_error_line(job.output())}")
            time.sleep(0.05)
        return told

    def __call__(self):
        width, layers, vocabulary = SIZES[self.args.size]
        under = CONTENDERS[self.contender][2]
        on_devices = ["--devices"] if self.args.devices else []
        simulate = [self.args.python, os.path.join(ROOT, "tests", "sim", "simulate"), "--devices", str(self.args.ranks), "--numbers", "--"]
        command = simulate * bool(on_devices) + jobs.torchrun(self.args.python, self.args.ranks) + [
            SCRIPT, self.folder, "--width", str(width), "--layers", str(layers), "--vocabulary", str(self.args.vocabulary or vocabulary),
            *on_devices, *self.arguments]
        if under:
            budget = ["--set", "CASTOR_DEVICE_BUDGET=1M"] * bool(on_devices)
            command = [self.args.castor, "run", *under, *budget, "--log-dir", os.path.join(self.folder, "logs"), "--", *command]
        job = jobs.Job(command, os.path.join(self.folder, "output.txt"), jobs.clean_environment())
        ended = threading.Event()
        try:
            pids = [rank["pid"] for rank in self.until(job, "ready")]
            time.sleep(0.5)
            before = node_bytes(pids)
            sampler = threading.Thread(target=self.sample, args=(pids, ended))
            sampler.start()
            begin = time.monotonic()
            self.say("go")
            built = max(rank["time"] for rank in self.until(job, "built"))
            wrapped = max(rank["time"] for rank in self.until(job, "wrapped"))
            time.sleep(0.5)
            ended.set()
            sampler.join()
            kept = node_bytes(pids)
            self.say("end")
            digests = self.until(job, "digest")
        finally:
            ended.set()
            job.stop()
            shutil.rmtree(self.folder, ignore_errors=True)
        model = digests[0]["parameters"] * 4
        result = dict(
            contender=self.contender, arguments=self.arguments, parameters=digests[0]["parameters"], samples=len(self.samples),
            built_seconds=round(built - begin, 2), wrapped_seconds=round(wrapped - begin, 2),
            peak_built=round((max(b for t, b in self.samples if t <= built) - before) / model, 3),
            peak=round((max(b for _, b in self.samples) - before) / model, 3),
            kept=round((kept - before) / model, 3), before_bytes=before,
            digests=[rank["digest"] for rank in digests])
        print(f"{self.contender} {' '.join(self.arguments)}: {result['parameters'] / 1e6:.0f} M parameters, peak of making them "
              f"{result['peak_built']:.2f} x their bytes, and with wrapping {result['peak']:.2f}; {result['built_seconds']:.1f} s and "
              f"{result['wrapped_seconds']:.1f} s", file=sys.stderr, flush=True)
        return result


def parse_arguments():
    parser = jobs.parser(__doc__, "init", 1, 300, "a stage of a run")
    parser.add_argument("--castor", default=jobs.CASTOR)
    parser.add_argument("--size", default="1B", choices=sorted(SIZES))
    parser.add_argument("--vocabulary", type=int, default=0, help="tokens; 0: the size's own")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--contenders", default="plain,lazy", help="of " + ", ".join(CONTENDERS))
    parser.add_argument("--variants", default="constructors,apply",
                        help="of constructors, apply (all weights a second time), apart (ranks seed differently)")
    parser.add_argument("--devices", action="store_true", help="move the model to a simulated device of each rank")
    parser.add_argument("--wrap-plain", action="store_true", help="needs 16 bytes a parameter more")
    parser.add_argument("--limit", type=float, default=1.15, help="of `lazy`: the peak, in bytes of the parameters")
    return parser.parse_args()


def main():
    args = parse_arguments()
    jobs.prepare_driver()
    runs, wrong = [], []
    for turn in range(args.rounds):
        for variant in args.variants.split(","):
            arguments = [] if variant == "constructors" else ["--" + variant]
            first = None
            for contender in args.contenders.split(","):
                unwrapped = contender == "plain" and not args.wrap_plain
                run = Run(args, contender, arguments + ["--no-wrap"] * unwrapped)()
                runs.append(dict(round=turn, variant=variant, **run))
                digests = run.pop("digests")
                # Without the wrapper, ranks that seed apart have values of their own.
                if variant != "apart":
                    first = first or digests
                    if digests != first:
                        wrong.append(f"{contender}, {variant}: parameters or random states are not those of the first contender")
                if contender == "lazy" and variant != "apart" and run["peak"] > args.limit:
                    wrong.append(f"{contender}, {variant}: a peak of {run['peak']} is above {args.limit}")
    results = dict(bench="init", date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                   command=shlex.join(os.path.basename(word) if word.startswith(os.sep) else word for word in sys.argv),
                   machine=dict(cpus=os.cpu_count(), system=platform.platform()), versions=dict(torch=jobs.torch_version(args.python)), runs=runs)
    jobs.write(results, args.output, indent=1)
    for text in wrong:
        print("run.py: " + text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
