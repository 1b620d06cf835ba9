"""The simulated devices, tested: PyTorch's CUDA wheel and C programs on them.

    tests/sim/run.py [--build build] [NAME]...

Runs in a Python that has torch for CUDA 13.0, or says why it is left out; builds the simulation first. NAMEs select groups whose name contains one of them. Each
group is a program of its own that prints a line per test, `ok TEST` or `FAIL TEST: why`. The last line is
`N passed, N failed`.
"""
import argparse
import os
import subprocess
import sys

import groups
import simulated

SECONDS = 120


def run(group, build):
    """Runs one group; returns how many of its tests passed and failed."""
    print(f"-- {group.name}", flush=True)
    try:
        done = subprocess.run(group.command(build), env=group.environment(build), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS)
        output, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output, status = (late.stdout or b"").decode(errors="replace"), f"none: it ran for more than {SECONDS} seconds"
    lines = output.splitlines()
    passed = sum(line.startswith("ok ") for line in lines)
    failed = sum(line.startswith("FAIL ") for line in lines)
    wrong = group.judge(lines, status)
    if wrong:
        failed += 1
        print(f"FAIL {group.name}: {wrong}")
    if failed:
        print("\n".join("    " + line for line in lines), flush=True)
    else:
        print("\n".join("    " + line for line in lines if line.startswith(("ok ", "left out: "))), flush=True)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(simulated.ROOT, "build"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()

    why = simulated.left_out(whole=True)
    if why:
        print(f"left out: {why}\n0 passed, 0 failed")
        return
    why = simulated.make(sys.executable, args.build, ("all", "sim"))
    if why:
        sys.exit(f"{why}\nthe simulated devices cannot be built")
    os.makedirs(os.path.join(args.build, "test-logs"), exist_ok=True)
    passed = failed = 0
    for group in groups.all_groups():
        if not args.names or any(name in group.name for name in args.names):
            one, other = run(group, args.build)
            passed += one
            failed += other
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
