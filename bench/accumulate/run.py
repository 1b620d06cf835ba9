#!/usr/bin/env python3
"""Gradient accumulation: CASTOR_ACCUMULATE on a script that knows nothing of it, beside DDP's no_sync() and beside no
accumulation. The GPT, its training and the way of measuring are those of ../gpt_cpu (../README.md).

Times are of a micro-step, the mean over whole steps; memory is the peak in the last step, above bare imports of torch.
The losses of the two that accumulate must agree.
"""

import os
import shlex
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "gpt_cpu"))

import run as gpt_cpu  # noqa: E402
import summary  # noqa: E402
from contenders import RETURNED, TRAIN_DDP, Contender, castor_malloc_settings, jobs  # noqa: E402

TOLERANCE = 1e-4  # of losses; fused AdamW turns another order of sums into differences of that size


def contenders(k):
    return [
        Contender("ddp", "DDP, `no_sync()`", os.path.join(HERE, "train_ddp.py"), ["--accumulate", str(k)]),
        Contender("castor", f"gemini, `CASTOR_ACCUMULATE={k}`", TRAIN_DDP, plugin="gemini", options=[f"CASTOR_ACCUMULATE={k}"]),
        Contender("castor_1", "gemini", TRAIN_DDP, plugin="gemini"),
    ]


def micro_step_seconds(case, run):
    return statistics.mean(summary.timed_steps(case, run))


def loss_difference(one, other):
    pairs = zip((x for rank in one["losses"] for x in rank), (x for rank in other["losses"] for x in rank))
    return max(abs(a - b) for a, b in pairs)


def parse_arguments():
    parser = jobs.parser(__doc__, "accumulate", 3, 900)
    parser.add_argument("--size", default="60M", choices=sorted(gpt_cpu.PARAMETERS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=8, help="micro-steps of a step")
    parser.add_argument("--steps", type=int, default=2, help="timed steps a round; one before warms up, one after is for memory")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and micro-step")
    args = parser.parse_args()
    args.warmup_steps = args.memory_steps = args.accumulate
    args.timed_steps, args.deepspeed_python = args.steps * args.accumulate, None
    return args


def measure(args):
    settings = dict(default={}, returned=castor_malloc_settings() or RETURNED)
    case = dict(size=args.size, ranks=args.ranks, accumulate=args.accumulate, rounds=args.rounds, batch=args.batch,
                warmup_steps=args.warmup_steps, timed_steps=args.timed_steps, memory_steps=args.memory_steps, bare=[], runs=[])
    for turn in range(args.rounds):
        with gpt_cpu.Folder(None, "bare") as folder:
            case["bare"].append(jobs.bare_import_memory(args.python, args.ranks, True, folder))
        for contender in contenders(args.accumulate):
            # Both let large blocks go back, so that memory is what the programs need.
            malloc = "castor" if contender.plugin else "returned"
            with gpt_cpu.Folder(None, contender.name) as folder:
                result = gpt_cpu.Run(args, args.size, args.ranks, contender, malloc, settings, folder)()
            if result["status"] != "ok":
                sys.exit(f"run.py: {contender.label}: {result['error']}")
            case["runs"].append(dict(contender=contender.name, malloc=malloc, round=turn, **result))
            print(f"round {turn + 1}: {contender.label}: {1000 * micro_step_seconds(case, case['runs'][-1]):.0f} ms a micro-step, "
                  f"peak {summary.peak_bytes(case, case['runs'][-1]) / summary.MIB:.0f} MiB", file=sys.stderr, flush=True)
    return case


def figures(case):
    """By contender: medians, and medians of ratios within a round."""
    def of(name, turn):
        return next(run for run in case["runs"] if run["contender"] == name and run["round"] == turn)

    turns, rows = range(case["rounds"]), {}
    for contender in contenders(case["accumulate"]):
        own = [of(contender.name, turn) for turn in turns]
        rows[contender.name] = dict(
            label=contender.label,
            micro_step_ms=round(1000 * statistics.median(micro_step_seconds(case, run) for run in own)),
            peak_mib=round(statistics.median(summary.peak_bytes(case, run) for run in own) / summary.MIB),
            time_to_ddp=round(statistics.median(
                micro_step_seconds(case, run) / micro_step_seconds(case, of("ddp", turn)) for turn, run in zip(turns, own)), 3),
            memory_to_no_accumulation=round(statistics.median(
                summary.peak_bytes(case, run) / summary.peak_bytes(case, of("castor_1", turn)) for turn, run in zip(turns, own)), 3),
        )
    rows["castor"]["loss_difference"] = max(loss_difference(of("castor", turn), of("ddp", turn)) for turn in turns)
    return rows


def main():
    args = parse_arguments()
    jobs.prepare_driver()
    case = measure(args)
    rows = figures(case)
    results = dict(bench="accumulate", date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                   command=shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), machine=gpt_cpu.describe_machine(),
                   versions=gpt_cpu.describe_versions(args), figures=rows, case=case)
    jobs.write(results, args.output, separators=(",", ":"))
    print("| | ms a micro-step | x DDP | peak, MiB | x no accumulation |\n| --- | --- | --- | --- | --- |")
    for row in rows.values():
        print(f"| {row['label']} | {row['micro_step_ms']} | {row['time_to_ddp']:.2f} | {row['peak_mib']} | "
              f"{row['memory_to_no_accumulation']:.2f} |")
    difference = rows["castor"]["loss_difference"]
    print(f"\nLosses of the two that accumulate differ by at most {difference:.1e}.")
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
