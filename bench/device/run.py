#!/usr/bin/env python3
"""What a step carries over a simulated device's link under CASTOR_DEVICE_BUDGET, beside the least possible; whether operands come in time;
and what Belady would copy into slots.

    bench/device/run.py [--layers 16] [--hidden 256] [--shares 0.5,0.25,0.125] [--only WORD] [--check] [-o FILE]

The GPT of train.py on a simulated device with numbers (tests/sim). Figures are of a step, after the first WARM_UP ones. The simulation counts the bytes of copies, sets excepted; what kernels read and write in homes on the host passes the
link as well and is counted by nobody. Bytes do not depend on the machine's load. --check: status 1 if a figure misses its target; without -o nothing
is written.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[1:1] = [os.path.dirname(HERE), os.path.join(ROOT, "tests", "sim")]

import least  # noqa: E402
import simulated  # noqa: E402
from jobs import CASTOR, clean_environment  # noqa: E402

STEPS, WARM_UP = 7, 3  # after two the sequence of uses is known
STATES = {"momentum": 1, "adamw": 2}
# What a matrix product takes beside the copy of a large operand, 1 MiB.
PACES = {
    "compute allows": {"link_bandwidth": "2G", "latency": "blas:1000"},
    "the link is slow": {"link_bandwidth": "50M"},
}
TRAININGS = [("momentum", 1, "compute allows"), ("adamw", 1, "compute allows"), ("adamw", 2, "compute allows"), ("adamw", 1, "the link is slow")]
WAYS = {"in": "to_device", "out": "to_host"}
MOST = 1.05  # of the least bytes, to keep within
IN_TIME = 0.9  # of the uses, where compute allows


def train(args, optimizer, micro_steps, budget, pace, evaluates):
    """(what train.py says, what Castor's report says of the device)"""
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        environment = simulated.environment(base=clean_environment({"CUBLAS_WORKSPACE_CONFIG": ":4096:1"}), memory="8G", numbers=True, **pace)
        preload, path = environment.pop("LD_PRELOAD"), environment.get("PYTHONPATH")
        command = [CASTOR, "run", "--plugin", "gemini", "--log-dir", folder, "--set", f"CASTOR_DEVICE_BUDGET={budget}", "--",
                   "sh", "-c", 'export LD_PRELOAD="$LD_PRELOAD:$0" PYTHONPATH="$1:$PYTHONPATH"; shift; exec "$@"', preload, path,
                   args.python, os.path.join(HERE, "train.py"), str(args.layers), str(args.hidden), optimizer, str(micro_steps), str(STEPS)]
        command += ["--evaluate"] if evaluates else []
        environment.pop("PYTHONPATH")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr}")
        report = subprocess.run([CASTOR, "report", "--format", "json", folder], capture_output=True, text=True, check=True)
        return json.loads(done.stdout), json.loads(report.stdout)["ranks"][0]["device"]


def case(args, optimizer, micro_steps, share, pace, evaluates=False):
    """A step's figures."""
    parameters = args.layers * (12 * args.hidden**2 + 13 * args.hidden) + (2 * 256 + 32 + 2) * args.hidden
    model = parameters * 4 * (1 if evaluates else 2 + STATES[optimizer])
    budget = int(model * share)
    said, told = train(args, optimizer, micro_steps, budget, PACES[pace], evaluates)

    def of_step(counts, key):
        return (counts[-1][key] - counts[WARM_UP][key]) / (STEPS - WARM_UP)

    slots = {key: of_step(said["slots"], key) for key in said["slots"][-1] if key != "region_bytes"}
    link = {way: round(of_step(said["link"], n)) for n, way in enumerate(WAYS)}
    whole = {way: {"castor": told["link"][key]["bytes"], "simulation": said["link"][-1][n]} for n, (way, key) in enumerate(WAYS.items())}
    region = said["slots"][-1]["region_bytes"]
    at_least = least.step(said["parameters"], region, micro_steps, evaluates)
    on_host = {kind: sum(p["bytes"] for p in said["parameters"] if p[kind]) for kind in ("param", "grad")}
    on_host["states"] = sum(p["bytes"] * sum(p["states"]) for p in said["parameters"])
    row = {"optimizer": optimizer, "micro_steps": micro_steps, "share": share, "pace": pace, "evaluates": evaluates, "model_bytes": model,
           "budget_bytes": budget, "region_bytes": region, "on_host_bytes": on_host, "link_bytes": link, "whole_run_bytes": whole,
           "least_bytes": at_least, "slots": slots, "losses": said["losses"], "step_seconds": said["seconds"]}
    assert at_least["uses"] == slots["uses"], f"{slots['uses']} uses in a step, and {at_least['uses']} are known of"
    return row


def wrong(row):
    """The targets that a case misses."""
    found = []
    for way in WAYS:
        if row["link_bytes"][way] > MOST * row["least_bytes"][way] and not row["evaluates"]:
            found.append(f"{way}: {row['link_bytes'][way]} bytes, and {row['least_bytes'][way]} at least")
    uses, in_time = row["slots"]["uses"], row["slots"]["in_time"]
    if row["pace"] == "compute allows" and not row["evaluates"] and in_time < IN_TIME * uses:
        found.append(f"{in_time:.1f} of {uses:.0f} operands came in time")
    return found


def cases(args):
    for share in map(float, args.shares.split(",")):
        for optimizer, micro_steps, pace in TRAININGS:
            yield optimizer, micro_steps, share, pace, False
        yield "adamw", 1, share, "compute allows", True


def name_of(optimizer, micro_steps, share, pace, evaluates):
    what = "evaluation" if evaluates else optimizer + (f", {micro_steps} micro-steps" if micro_steps > 1 else "")
    return f"{what}, {share:g}, {pace}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--shares", default="0.5,0.25,0.125", help="budgets, of the model data")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--python", default=os.environ.get("PYTHON", os.path.join(ROOT, ".venv", "bin", "python")))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    why = simulated.left_out(whole=True) if args.python == sys.executable else None
    why = why or simulated.make(args.python)
    if why:
        print(f"left out: {why.splitlines()[-1]}\n0 passed, 0 failed")
        return
    rows, failed = [], 0
    for wanted in cases(args):
        if args.only not in name_of(*wanted):
            continue
        row = case(args, *wanted)
        rows.append(row)
        misses = wrong(row)
        failed += bool(misses)
        ratios = [row["link_bytes"][way] / row["least_bytes"][way] for way in WAYS if row["least_bytes"][way]]
        at = row["slots"]
        belady = row["least_bytes"]["operands_in"]
        print(f"{name_of(*wanted):45} link x {' '.join(f'{ratio:.3f}' for ratio in ratios)}; slots {at['copied_bytes'] / 1e6:.1f} MB, Belady {belady / 1e6:.1f}; "
              f"{at['uses']:.0f} uses, {at['hits']:.1f} hits, {at['prefetched']:.1f} ahead, {at['in_time']:.1f} in time, {at['home_reads']:.1f} at home",
              *misses, sep="\n    MISSED " if misses else "", flush=True)
    if args.output:
        with open(args.output, "w") as out:
            json.dump({"bench": "device", "what": __doc__.split("\n\n")[0], "date": time.strftime("%Y-%m-%d"),
                       "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]},
                       "layers": args.layers, "hidden": args.hidden, "steps": STEPS, "warm_up": WARM_UP, "paces": PACES, "cases": rows}, out, indent=1)
            out.write("\n")
    print(f"{len(rows) - failed} passed, {failed} failed")
    sys.exit(1 if args.check and (failed or not rows) else 0)


if __name__ == "__main__":
    main()
