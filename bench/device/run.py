#!/usr/bin/env python3
"""What a step carries over a simulated device's link under CASTOR_DEVICE_BUDGET, beside the least possible; whether operands come in time;
and what Belady's choice would copy into slots and wait for.

    bench/device/run.py [--layers 16] [--hidden 256] [--shares 0.5,0.25,0.125] [--only WORD] [--check] [-o FILE] [--continue] [--seconds S]

The GPT of train.py on a simulated device with numbers (docs/rehearse.md). Figures are of a step, after the first WARM_UP ones. The simulation
counts the bytes of copies, sets excepted. What operators touch in homes on the host passes the link as well: train.py counts it for one step,
by the sizes of their tensors. Bytes do not depend on the machine's load. Waits do: they are times of the simulation's threads, beside
what least.py computes for the times between uses that were measured.
--check: status 1 if a figure misses its target. -o: written after each case; without it nothing is. --continue: the cases that FILE has are
not run again. --seconds: no case begins after so many; the status is 3 if some are left.
"""
import argparse
import dataclasses
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
    # Three times the parameters take about half of what Python takes for a step: as 64 Ki tokens of a GPT of 350 million parameters over 25 GB/s.
    "64 Ki tokens": {"link_bandwidth": "250M"},
}
TRAININGS = [("momentum", 1, "compute allows"), ("adamw", 1, "compute allows"), ("adamw", 2, "compute allows"), ("adamw", 1, "the link is slow"),
             ("adamw", 1, "64 Ki tokens")]
STEPS_WHERE = "host", "parts"  # CASTOR_DEVICE_STEP
PARAMETERS_MOST = 3  # bytes over the link in a step that the processors do, in parameters: two in, one out
HIDDEN = 1.1  # of the longer of compute and link a step may take
WAYS = {"in": "to_device", "out": "to_host"}
MOST = 1.05  # of the least bytes, to keep within
IN_TIME = 0.9  # of the uses, where compute allows
FROM_SLOTS = 0.99  # of the uses, where casts read them


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a script trains, beside plain float. A model of many matrices of more than 1 MiB, which PyTorch's allocator keeps apart from what is
    small."""
    options: tuple = ()  # of Castor
    words: tuple = ()  # of train.py
    bytes: int = 4  # of a parameter that products read
    layers: int = 24
    hidden: int = 544


KINDS = {"autocast": Kind(words=("--autocast",)), "bf16": Kind(options=("CASTOR_PRECISION=bf16",), bytes=2, layers=12, hidden=768),
         "activations": Kind(options=("CASTOR_ACTIVATIONS=offload", "CASTOR_ACTIVATIONS_LEAST=8K"))}


@dataclasses.dataclass(frozen=True)
class Case:
    optimizer: str
    micro_steps: int
    share: float
    pace: str
    evaluates: bool = False
    steps: str = STEPS_WHERE[0]
    kind: str = ""  # of KINDS; "": plain float

    @property
    def name(self):
        what = "evaluation" if self.evaluates else self.optimizer + (f", {self.micro_steps} micro-steps" if self.micro_steps > 1 else "")
        return f"{what}, {self.share:g}, {self.pace}" + (f", {self.kind}" if self.kind else "") + (", in parts" if self.steps == "parts" else "")


def parameters_of(layers, hidden):
    return layers * (12 * hidden**2 + 13 * hidden) + (2 * 256 + 32 + 2) * hidden


def train(args, wanted, layers, hidden, budget, options=(), words=()):
    """(what train.py says, what Castor's report says of the device)"""
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        environment = simulated.environment(base=clean_environment({"CUBLAS_WORKSPACE_CONFIG": ":4096:1"}), memory="8G", numbers=True, **PACES[wanted.pace])
        preload, path = environment.pop("LD_PRELOAD"), environment.get("PYTHONPATH")
        sets = [word for option in (f"CASTOR_DEVICE_BUDGET={budget}", f"CASTOR_DEVICE_STEP={wanted.steps}", *options) for word in ("--set", option)]
        command = [CASTOR, "run", "--plugin", "gemini", "--log-dir", folder, *sets, "--",
                   "sh", "-c", 'export LD_PRELOAD="$LD_PRELOAD:$0" PYTHONPATH="$1:$PYTHONPATH"; shift; exec "$@"', preload, path,
                   args.python, os.path.join(HERE, "train.py"), str(layers), str(hidden), wanted.optimizer, str(wanted.micro_steps), str(STEPS), *words]
        command += ["--evaluate"] if wanted.evaluates else []
        environment.pop("PYTHONPATH")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr}")
        report = subprocess.run([CASTOR, "report", "--format", "json", folder], capture_output=True, text=True, check=True)
        return json.loads(done.stdout), json.loads(report.stdout)["ranks"][0]["device"]


def of_step(counts, key):
    return (counts[-1][key] - counts[WARM_UP][key]) / (STEPS - WARM_UP)


def slots_of_step(said):
    return {key: of_step(said["slots"], key) for key in said["slots"][-1] if key != "region_bytes"}


def link_of_step(said):
    return {way: round(of_step(said["link"], n)) for n, way in enumerate(WAYS)}


def case_of_kind(args, wanted):
    """A step's figures of another kind than plain float."""
    kind = KINDS[wanted.kind]
    count = parameters_of(kind.layers, kind.hidden)
    model = count * 4 * (2 + STATES[wanted.optimizer])  # with masters as well: two more bytes, and two fewer for a gradient
    budget = int(model * wanted.share)
    said, told = train(args, wanted, kind.layers, kind.hidden, budget, kind.options, kind.words)
    slots, link = slots_of_step(said), link_of_step(said)
    units, uses = kind.bytes * count, slots["uses"] or 1  # all may be on the device
    after = range(WARM_UP, STEPS)
    gradients = sum(p["bytes"] for p in said["parameters"] if p["grad"])
    gone = sum(said["link_before_step"][k][1] - said["link"][k][1] for k in after) / len(after) - gradients
    come = link["in"] - slots["copied_bytes"] - (link["out"] - gradients - gone)  # what is lent to the processors comes back
    return {**dataclasses.asdict(wanted), "name": wanted.name, "layers": kind.layers, "hidden": kind.hidden, "date": time.strftime("%Y-%m-%d"),
            "load": os.getloadavg()[0], "model_bytes": model, "budget_bytes": budget, "region_bytes": said["slots"][-1]["region_bytes"],
            "host_steps": told["host_steps"], "link_bytes": link, "in_parameters": {way: round(size / units, 3) for way, size in link.items()},
            "from_slots": 1 - slots["home_reads"] / uses, "in_time": (slots["in_time"] + uses - slots["uses"]) / uses, "slots": slots,
            "activations": {"gone": round(gone), "come": round(come)} if wanted.kind == "activations" else None,
            "losses": said["losses"], "step_seconds": said["seconds"]}


def show_kind(row):
    """Prints a case of another kind; whether it misses a target."""
    misses = []
    if row["kind"] == "autocast":
        misses += [f"{row['from_slots']:.3f} of the reads came from slots"] if row["from_slots"] < FROM_SLOTS else []
    if row["in_time"] < IN_TIME:
        misses.append(f"{row['in_time']:.2f} of the operands came in time")
    moved = sum(row["in_parameters"].values())
    if row["kind"] == "bf16" and moved > MOST * PARAMETERS_MOST:
        misses.append(f"{moved:.2f} of the parameters passed the link")
    if row["activations"] and not 0 < row["activations"]["come"] <= row["activations"]["gone"]:
        misses.append("activations do not go and come once each, but for what is still on its way when it is needed")
    activations = row["activations"] and f"; activations {row['activations']['gone'] / 1e6:.1f} MB out, {row['activations']['come'] / 1e6:.1f} in"
    print(f"{row['name']:45} x parameters: in {row['in_parameters']['in']:.2f}, out {row['in_parameters']['out']:.2f}; {row['slots']['uses']:.0f} uses, "
          f"{row['from_slots']:.3f} from slots, {row['in_time']:.3f} in time{activations or ''}", *misses, sep="\n    MISSED " if misses else "", flush=True)
    return bool(misses)


def case(args, wanted):
    """A step's figures."""
    if wanted.kind:
        return case_of_kind(args, wanted)
    all_parameters = parameters_of(args.layers, args.hidden)
    model = all_parameters * 4 * (1 if wanted.evaluates else 2 + STATES[wanted.optimizer])
    budget = int(model * wanted.share)
    said, told = train(args, wanted, args.layers, args.hidden, budget)
    slots, link = slots_of_step(said), link_of_step(said)
    whole = {way: {"castor": told["link"][key]["bytes"], "simulation": said["link"][-1][n]} for n, (way, key) in enumerate(WAYS.items())}
    region = said["slots"][-1]["region_bytes"]
    at_least = least.step(said["parameters"], region, wanted.micro_steps, wanted.evaluates, wanted.steps == "host")
    on_host = {kind: sum(p["bytes"] for p in said["parameters"] if p[kind]) for kind in ("param", "grad")}
    on_host["states"] = sum(p["bytes"] * sum(p["states"]) for p in said["parameters"])
    after = range(WARM_UP, STEPS)

    # In units of the model's parameters: copies into slots, gradients, and the parts of the optimizer's step.
    gradients = sum(said["link_before_step"][k][1] - said["link"][k][1] for k in after) / len(after)
    by_use = {"operands_in": slots["copied_bytes"], "gradients_out": gradients,
              "parts_in": link["in"] - slots["copied_bytes"], "parts_out": link["out"] - gradients}
    in_parameters = {key: round(size / (4 * all_parameters), 3) for key, size in by_use.items()}
    bandwidth = PACES[wanted.pace]["link_bandwidth"]
    rate = int(bandwidth[:-1]) * {"G": 1 << 30, "M": 1 << 20}[bandwidth[-1]]
    of_steps = [least.waits(said["parameters"], region, said["moments"][k], rate) for k in after]
    waits = {f"{key}_seconds": sum(one[n] for one in of_steps) / len(of_steps) for n, key in enumerate(("castor", "belady", "compute"))}
    row = {**dataclasses.asdict(wanted), "name": wanted.name, "host_steps": told["host_steps"], "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0],
           "in_parameters": in_parameters, "waits": waits, "touched_bytes": said["touched"], "model_bytes": model,
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
    if row["steps"] == "host" and not row["evaluates"]:
        moved = sum(row["in_parameters"].values())
        if row["micro_steps"] == 1 and row["share"] <= 0.25 and moved > MOST * PARAMETERS_MOST:
            found.append(f"{moved:.2f} of the parameters passed the link")
        if not row["host_steps"]["parameters"]:
            found.append("the processors stepped nothing")
        if row["pace"] == "64 Ki tokens" and row["waits"]["castor_seconds"] > (HIDDEN - 1) * row["waits"]["compute_seconds"]:
            found.append(f"the device waited {row['waits']['castor_seconds'] / row['waits']['compute_seconds']:.2f} of its compute")
    uses, in_time = row["slots"]["uses"], row["slots"]["in_time"]
    if row["pace"] == "compute allows" and not row["evaluates"] and in_time < IN_TIME * uses:
        found.append(f"{in_time:.1f} of {uses:.0f} operands came in time")
    return found


def cases(args):
    for share in map(float, args.shares.split(",")):
        for where in STEPS_WHERE:
            for optimizer, micro_steps, pace in TRAININGS:
                yield Case(optimizer, micro_steps, share, pace, steps=where)
        yield Case("adamw", 1, share, "compute allows", evaluates=True)
        for kind in KINDS:
            yield Case("adamw", 1, share, "compute allows", kind=kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--shares", default="0.5,0.25,0.125", help="budgets, of the model data")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--python", default=os.environ.get("PYTHON", os.path.join(ROOT, ".venv", "bin", "python")))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("-o", "--output")
    parser.add_argument("--continue", action="store_true", dest="go_on")
    parser.add_argument("--seconds", type=float, default=0)
    args = parser.parse_args()
    if args.go_on and not args.output:
        parser.error("--continue needs -o FILE")
    why = simulated.left_out(whole=True) if args.python == sys.executable else None
    why = why or simulated.make(args.python)
    if why:
        print(f"left out: {why.splitlines()[-1]}\n0 passed, 0 failed")
        return
    rows, failed, left = [], 0, 0
    if args.go_on and os.path.exists(args.output):
        with open(args.output) as file:
            rows = kept(args, json.load(file))
    begin = time.monotonic()
    for wanted in cases(args):
        if args.only not in wanted.name or any(row["name"] == wanted.name for row in rows):
            continue
        if args.seconds and time.monotonic() - begin > args.seconds:
            left += 1
            continue
        rows.append(case(args, wanted))
        failed += show(rows[-1])
        if args.output:
            write(args, rows)
    if left:
        print(f"{left} cases are left: --continue")
    print(f"{len(rows) - failed} passed, {failed} failed")
    sys.exit(1 if args.check and (failed or not rows) else 3 if left else 0)


def show(row):
    """Prints a case; whether it misses a target."""
    if row["kind"]:
        return show_kind(row)
    misses = wrong(row)
    ratios = [row["link_bytes"][way] / row["least_bytes"][way] for way in WAYS if row["least_bytes"][way]]
    at, belady, waits = row["slots"], row["least_bytes"]["operands_in"], row["waits"]
    print(f"{row['name']:45} link x {' '.join(f'{ratio:.3f}' for ratio in ratios)}; slots {at['copied_bytes'] / 1e6:.1f} MB, Belady {belady / 1e6:.1f}; "
          f"{at['uses']:.0f} uses, {at['hits']:.1f} hits, {at['prefetched']:.1f} ahead, {at['in_time']:.1f} in time, {at['home_reads']:.1f} at home; "
          f"waits {waits['castor_seconds'] * 1e3:.0f} ms, Belady {waits['belady_seconds'] * 1e3:.0f}, compute {waits['compute_seconds'] * 1e3:.0f}; "
          f"x parameters: {', '.join(f'{key} {ratio:.2f}' for key, ratio in row['in_parameters'].items())}; "
          f"touched {sum(row['touched_bytes'].values()) / 1e6:.1f} MB",
          *misses, sep="\n    MISSED " if misses else "", flush=True)
    return bool(misses)


def header(args):
    return {"layers": args.layers, "hidden": args.hidden, "steps": STEPS, "warm_up": WARM_UP, "paces": PACES}


def kept(args, found):
    """The cases of an earlier run of the same kind."""
    same = all(found.get(key) == value for key, value in header(args).items())
    return found["cases"] if same else []


def write(args, rows):
    """The cases in their order."""
    order = [wanted.name for wanted in cases(args)]
    rows = sorted(rows, key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
    with open(args.output + ".part", "w") as out:
        json.dump({"bench": "device", "what": __doc__.split("\n\n")[0], "date": time.strftime("%Y-%m-%d"),
                   "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]},
                   **header(args), "cases": rows}, out, indent=1)
        out.write("\n")
    os.replace(args.output + ".part", args.output)


if __name__ == "__main__":
    main()
