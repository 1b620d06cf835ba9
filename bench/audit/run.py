#!/usr/bin/env python3
"""What CASTOR_AUDIT costs: seconds of the steps that are tried or audited, seconds of the later ones, and memory of all processes at its peak;
and what the model's boundary costs beside batches that are split by their loader (CASTOR_BATCH=loader).

The same single-process script runs under `castor run --nproc N` without and with the audit, and with its batches split by the loader, in turns. Its
losses must be the same, but for rounding, since calls that are tried are computed whole. ../README.md has the ways of measuring.
"""

import json
import os
import platform
import shlex
import shutil
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402

AUDIT = 2  # the default
LOOKED_AT = 2 * AUDIT + 1  # steps: the first are tried, the next are audited, and one more, since the last audit ends when another begins
ROUNDING = 1e-5


def run(args, audit, batch="model"):
    folder = tempfile.mkdtemp(prefix="audit-")
    peak = 0

    def watch():
        nonlocal peak
        peak = max(peak, jobs.pss_of_job(job.pid))

    command = [args.castor, "run", "--plugin", "gemini", "--nproc", str(args.ranks), "--set", f"CASTOR_AUDIT={audit}",
               "--set", f"CASTOR_BATCH={batch}", "--log-dir", os.path.join(folder, "logs"), "--", args.python, os.path.join(HERE, "train.py"), folder,
               str(args.width), str(args.layers), str(args.steps)]
    job = jobs.Job(command, os.path.join(folder, "output.txt"), jobs.clean_environment())
    job.NAP_SECONDS = 0.02
    try:
        if not job.finished(args.timeout, watch) or job.process.returncode:
            sys.exit(f"run.py: {jobs.last_error_line(job.output())}")
        with open(os.path.join(folder, "told.json")) as file:
            told = json.load(file)
    finally:
        job.stop()
        shutil.rmtree(folder, ignore_errors=True)
    first, later = sum(told["seconds"][:LOOKED_AT]), statistics.median(told["seconds"][LOOKED_AT:])
    print(f"CASTOR_AUDIT={audit} CASTOR_BATCH={batch}: {told['parameters'] / 1e6:.0f} M parameters, first {LOOKED_AT} steps {first:.2f} s, later ones {later:.2f} s, "
          f"peak {peak / 2**20:.0f} MiB", file=sys.stderr, flush=True)
    return dict(audit=audit, batch=batch, parameters=told["parameters"], first_seconds=round(first, 3), later_seconds=round(later, 3), peak_bytes=peak,
                losses=told["losses"], foreign_cpu=round(job.foreign_cpu_fraction(), 3))


def main():
    parser = jobs.parser(__doc__, "audit", 3, 300)
    parser.add_argument("--castor", default=jobs.CASTOR)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()
    jobs.prepare_driver()
    runs = [run(args, *how) for _ in range(args.rounds) for how in ((0,), (AUDIT,), (0, "loader"))]
    losses = [found.pop("losses") for found in runs]
    unaudited, audited, of_loader = runs[::3], runs[1::3], runs[2::3]
    ratios = {
        name: round(statistics.median(b[name] / a[name] for a, b in zip(unaudited, audited)), 3)
        for name in ("first_seconds", "later_seconds", "peak_bytes")
    }
    ratios["boundary_of_loader"] = round(statistics.median(a["later_seconds"] / b["later_seconds"] for a, b in zip(unaudited, of_loader)), 3)
    results = dict(bench="audit", date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                   command=shlex.join(os.path.basename(word) if word.startswith(os.sep) else word for word in sys.argv),
                   machine=dict(cpus=os.cpu_count(), system=platform.platform()), versions=dict(torch=jobs.torch_version(args.python)),
                   ratios=ratios, runs=runs)
    jobs.write(results, args.output, indent=1)
    print(json.dumps(ratios))
    if any(abs(one - other) > ROUNDING * abs(one) for others in losses for one, other in zip(losses[0], others)):
        most = max(abs(one - other) / abs(one) for others in losses for one, other in zip(losses[0], others))
        print(f"run.py: the losses differ by {most:.1e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
