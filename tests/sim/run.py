"""The simulated devices, tested: PyTorch's CUDA wheel and C programs on them.

    tests/sim/run.py [--build build] [NAME]...

Runs in a Python that has torch for CUDA 13.0, or says why it cannot; builds the simulation first. NAMEs select runs whose name contains one of them. Each
run is a program of its own that prints a line per test, `ok TEST` or `FAIL TEST: why`. The last line is
`N passed, N failed`.
"""
import argparse
import os
import subprocess
import sys
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import runner  # noqa: E402
import runs  # noqa: E402
import simulated  # noqa: E402


def run_one(run, build):
    """Does one run; returns how many of its tests passed and failed."""
    print(f"-- {run.name}", flush=True)
    try:
        done = subprocess.run(run.command(build), env=run.environment(build), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=run.seconds)
        output, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output, status = (late.stdout or b"").decode(errors="replace"), f"none: it ran for more than {run.seconds} seconds"
    lines = output.splitlines()
    passed = sum(line.startswith("ok ") for line in lines)
    failed = sum(line.startswith("FAIL ") for line in lines)
    wrong = run.judge(lines, status)
    if wrong:
        failed += 1
        print(f"FAIL {run.name}: {wrong}")
    if failed:
        print("\n".join("    " + line for line in lines), flush=True)
    else:
        print("\n".join("    " + line for line in lines if line.startswith(("ok ", "left out: "))), flush=True)
        runner.left_out.extend(line.removeprefix("left out: ") for line in lines if line.startswith("left out: "))
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(simulated.ROOT, "build"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()

    try:
        simulated.need(whole=True, build=args.build, targets=("all", "sim"))
    except unittest.SkipTest as why:
        runner.leave_out_all(why)
    except AssertionError as why:
        runner.cannot_run(why)
    os.makedirs(os.path.join(args.build, "test-logs"), exist_ok=True)
    passed = failed = 0
    for run in runs.all_runs():
        if not args.names or any(name in run.name for name in args.names):
            one, other = run_one(run, args.build)
            passed += one
            failed += other
    runner.leave(9 if runner.LENGTH == "short" else 0)
    runner.close(passed, failed)


if __name__ == "__main__":
    main()
