#!/usr/bin/env python3
"""What ranks of one import save (CASTOR_FORK): seconds from `castor run` to the first step of every rank, and memory of all processes then.

A small script runs under `castor run` with ranks that are forked and with ranks that start one by one, in turns, once with --nproc and once by
torchrun. The losses must be the same. ../README.md has the ways of measuring.
"""

import os
import platform
import re
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

READ_SECONDS = 3  # that each rank stays after its steps


def run(args, kind, fork):
    folder = tempfile.mkdtemp(prefix="forking-")
    memory = []

    def watch():
        if len(re.findall(r"^(?:\[rank\d+\]: )?loss ", job.output(), re.M)) == args.ranks:
            memory.append(jobs.pss_of_job(job.pid))

    command = [jobs.CASTOR, "run", "--plugin", "gemini", "--set", f"CASTOR_FORK={fork}", "--log-dir", os.path.join(folder, "log")]
    script = [os.path.join(HERE, "train.py"), kind, str(READ_SECONDS)]
    if kind == "torchrun":
        command += ["--", *jobs.torchrun(args.python, args.ranks), *script]
    else:
        command += ["--nproc", str(args.ranks), "--all-output", "--", args.python, *script]
    job = jobs.Job(command, os.path.join(folder, "output.txt"), jobs.clean_environment())
    try:
        if not job.finished(args.timeout, watch) or job.process.returncode:
            sys.exit(f"run.py: {jobs.last_error_line(job.output())}")
        with open(os.path.join(folder, "log", "castor.about")) as file:
            about = file.read()
        output = job.output()
    finally:
        job.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if ("forked from" in about) != (fork == "auto"):
        sys.exit(f"run.py: with CASTOR_FORK={fork} the ranks of {kind} started in another way: {about}")
    first = [float(at) for at in re.findall(r"first step ([\d.]+)", output)]
    if len(first) != args.ranks or not memory:
        sys.exit(f"run.py: {len(first)} of {args.ranks} ranks told their first step, and memory was read {len(memory)} times")
    result = dict(kind=kind, fork=fork, first_step_seconds=round(max(first) - job.begin, 3), memory_bytes=max(memory),
                  losses=sorted(re.findall(r"loss (\S+)", output)), foreign_cpu=round(job.foreign_cpu_fraction(), 3))
    print(f"{kind} CASTOR_FORK={fork}: first step after {result['first_step_seconds']:.2f} s, memory {result['memory_bytes'] / 2**20:.0f} MiB",
          file=sys.stderr, flush=True)
    return result


def main():
    parser = jobs.parser(__doc__, "forking", 3, 300)
    parser.add_argument("--ranks", type=int, default=8)
    args = parser.parse_args()
    jobs.prepare_driver()
    load = os.getloadavg()[0]
    runs = [dict(run(args, kind, fork), round=turn) for turn in range(args.rounds) for kind in ("nproc", "torchrun") for fork in ("auto", "off")]
    for kind in ("nproc", "torchrun"):
        if len({tuple(one["losses"]) for one in runs if one["kind"] == kind}) != 1:
            sys.exit(f"run.py: the losses of {kind} differ")
    results = dict(bench="forking", command=shlex.join(["bench/forking/run.py", *(word if not os.path.isabs(word) else os.path.basename(word) for word in sys.argv[1:])]),
                   date=time.strftime("%Y-%m-%d"), ranks=args.ranks,
                   machine=dict(cores=os.cpu_count(), kernel=platform.release(), load=max(load, os.getloadavg()[0])),
                   versions=dict(torch=jobs.torch_version(args.python), python=platform.python_version(), libc=" ".join(platform.libc_ver())), runs=runs)
    jobs.write(results, args.output, separators=(",", ":"))
    for kind in ("nproc", "torchrun"):
        for name in ("first_step_seconds", "memory_bytes"):
            pairs = zip(*([one[name] for one in runs if one["kind"] == kind and one["fork"] == fork] for fork in ("auto", "off")))
            print(f"{kind}, {args.ranks} ranks: {name} {statistics.median(forked / alone for forked, alone in pairs):.2f} of ranks that start one by one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
