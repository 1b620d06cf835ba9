#!/usr/bin/env python3
"""`--plugin hybrid` beside the same division written by hand, with PyTorch's parallelize_module and torch.distributed.pipelining: the same model, batches and ranks.

    bench/hybrid/run.py [--rounds 5] [--steps 16] [-o FILE]

In each round each way trains once, one after another; losses must be the plain script's but for rounding. Ratios are of one round; on a machine that others use only
they count. Where programs take the cores away, ranks wait for each other, so the processor seconds of steps are there too."""

import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402
import summary  # noqa: E402

TRAIN = os.path.join(HERE, "train.py")
FIRST = 5  # steps before are not counted: calls that are tried and audited
AUDITED = {2**n - 1 for n in range(3, 12)}  # nor are these, which are as well
ROUNDING = 1e-4  # of losses, relative


def command_of(way, args, folder):
    by_castor = [jobs.CASTOR, "run", "--plugin", "hybrid", "--log-dir", os.path.join(folder, "log")]
    of = {"layers": [f"CASTOR_TP={args.ranks}"], "stages": [f"CASTOR_PP={args.ranks}", f"CASTOR_MICROBATCHES={args.microbatches}"]}
    if way == "plain":
        start, name = [args.python], "alone"
    elif way.startswith("castor "):
        _, kind, *ddp = way.split()
        start, name = [*by_castor, *(word for option in of[kind] for word in ("--set", option))], "ddp" if ddp else "alone"
        start += ["--", *jobs.torchrun(args.python, args.ranks)] if ddp else ["--nproc", str(args.ranks), "--", args.python]
    else:
        start, name = jobs.torchrun(args.python, args.ranks), way
    return [*start, TRAIN, name, os.path.join(folder, "figures"), str(args.steps), str(args.microbatches)]


def measured(way, args):
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        done = subprocess.run(command_of(way, args, folder), env=jobs.clean_environment(), capture_output=True, text=True, timeout=args.timeout, cwd=folder)
        if done.returncode:
            sys.exit(f"{way}: status {done.returncode}\n{done.stderr[-2000:]}")
        with open(os.path.join(folder, "figures")) as file:
            return json.load(file)


def main():
    parser = jobs.parser(__doc__, "hybrid", 5, 900)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=4)
    args = parser.parse_args()
    head = jobs.head("hybrid", args.python, os.getloadavg()[0])
    rounds = []
    for number in range(args.rounds):
        figures = {way: measured(way, args) for way in summary.WAYS}
        for way, each in figures.items():
            worst = max(abs(a - b) / abs(b) for a, b in zip(each["losses"], figures["plain"]["losses"], strict=True))
            if worst > ROUNDING:
                sys.exit(f"{way}: its losses differ from the plain script's by {worst:.1e}")
        counted = [step for step in range(FIRST, args.steps) if step not in AUDITED]
        rounds.append({way: {key: statistics.median(each[key][step] for step in counted) for key in ("seconds", "processor_seconds")} for way, each in figures.items()})
        print(f"round {number + 1}: " + ", ".join(f"{way} {each['seconds']:.2f} s" for way, each in rounds[-1].items()), flush=True)
    results = {**head, "ranks": args.ranks, "steps": args.steps, "microbatches": args.microbatches, "rounds": rounds}
    results["machine"]["load"] = max(results["machine"]["load"], os.getloadavg()[0])
    jobs.write(results, args.output, indent=1)
    print(summary.markdown(results))


main()
