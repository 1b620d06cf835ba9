#!/usr/bin/env python3
"""castor plan beside what runs measure: memory, the time of a step, and which way is the fastest.

    bench/plan/run.py [--rounds 3] [--models NAME,...] [-o FILE]

In each round each way to train runs once, one after another: ranks, plugins, a budget of memory, two nodes, divided models. The plan is made from the first two-rank
run under gemini of the round whose steps took the median time, and from nothing else; of divided models it is made by arithmetic, and only memory is compared.
Figures are medians of rounds.

Where other programs take the cores, a step's time says how many they were, and ranks beyond the cores get more of them. So each
rank also counts the processor seconds of its steps, and these on the cores that the ranks have are compared with the planned time, as if the recorded step
had taken its processor seconds.
"""

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import typing

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import jobs

TRAIN = os.path.join(HERE, "train.py")
MODELS = {"3M": ("6x192x6x4096x128", 8), "7M": ("8x256x4x4096x128", 8), "27M": ("8x512x8x4096x128", 4)}  # and rows of a batch
HOSTS = os.path.join(jobs.ROOT, "tests", "hosts.py")


class Way(typing.NamedTuple):
    plugin: str
    ranks: int
    share: float = 0  # of the model data that a budget leaves in memory beside activations; 0: there is none
    nodes: int = 1  # network namespaces, each with its part of the cores
    tp: int = 1  # of a script of one process; by arithmetic, since a recorded step does not tell layers
    pp: int = 1

    def __str__(self):
        text = f"{self.plugin}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return text + (f", {self.share:g} in memory" if self.share else "") + (f", {self.nodes} nodes" if self.nodes > 1 else "") + \
            (f", tp {self.tp}" if self.tp > 1 else "") + (f", pp {self.pp}" if self.pp > 1 else "")

    @property
    def divides(self):
        return self.tp * self.pp > 1


RECORDED = Way("gemini", 2)
WAYS = [RECORDED, Way("gemini", 4), Way("zero2", 2), Way("none", 1), Way("none", 2), Way("gemini", 2, share=0.65), Way("zero1", 2, nodes=2),
        Way("gemini", 2, nodes=2), Way("hybrid", 2, tp=2), Way("hybrid", 2, pp=2)]
STEADY_RATIO = 0.9  # of a budget, that is used (CASTOR_STEADY_CAP_RATIO)
MEMORY, STEP, CHOICE = 0.05, 0.15, 0.05  # allowed differences
LIMITS = (("memory", "memory_off", MEMORY), ("step", "step_off", STEP), ("cores", "cores_off", STEP))


def plan(*arguments):
    command = [jobs.CASTOR, "plan", "--threads", "1", "--format", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def row_of(made, way):
    for row in made["plans"]:
        if (row["plugin"], row["tp"], row["pp"], row["dp"], bool(row["budget_bytes"])) == (way.plugin, way.tp, way.pp, way.ranks // way.tp // way.pp, bool(way.share)):
            return row
    raise RuntimeError(f"the plan has no row for {way}")


def plan_of(model, log, way):
    """The row of a way, planned from the recorded run."""
    if way.divides:
        shape, rows = MODELS[model]
        return row_of(plan("--model", shape, "--batch", str(rows * int(shape.split("x")[-1])), "--cores", str(os.cpu_count())), way)
    made = plan(log, "--nodes", str(way.nodes), "--cores", str(os.cpu_count() // way.nodes))
    if not way.share:
        return row_of(made, way)
    row = row_of(made, RECORDED)
    held = (row["model_bytes"] * way.share + row["activation_bytes"]) / STEADY_RATIO
    return row_of(plan(log, "--host", str(int(held + row["process_bytes"]))), way)


def run(args, model, way, budget, folder):
    """One run: the reports of its nodes, and what each rank has used."""
    shape, rows = MODELS[model]
    steps = args.steps * (3 if way.share else 1)  # what a budget leaves in memory is sampled ten times a second
    command = [jobs.CASTOR, "run", "--plugin", way.plugin, "--log-dir", os.path.join(folder, "log")]
    command += ["--set", f"CASTOR_MEMORY_BUDGET={budget}", "--"] if way.plugin != "none" else ["--"]
    if way.divides:  # the printed command
        printed = shlex.split(plan_of(model, None, way)["command"])
        command = [*command[:-1], *printed[printed.index("--plugin") + 2:printed.index("--")], "--", args.python]
    elif way.nodes > 1:
        command[5] += "{host}"
        command = [args.python, HOSTS, str(way.nodes), *command, args.python, "-m", "torch.distributed.run", "--nnodes", str(way.nodes), "--node-rank",
                   "{host}", "--nproc-per-node", str(way.ranks // way.nodes), "--master-addr", "{address}", "--master-port", "29533"]
    else:
        command += jobs.torchrun(args.python, way.ranks) if way.ranks > 1 else [args.python]
    command += [TRAIN, "--model", shape, "--rows", str(rows), "--steps", str(steps), "--output", folder]
    job = jobs.Job(command, os.path.join(folder, "output.txt"), jobs.clean_environment())
    try:
        if not job.finished(args.timeout) or job.process.returncode:
            raise RuntimeError(f"{model}, {way}: {jobs.last_error_line(job.output())}")
    finally:
        job.stop()
    reports, used = [], []
    for node in [""] if way.nodes == 1 else map(str, range(way.nodes)):
        told = [jobs.CASTOR, "report", os.path.join(folder, "log" + node), "--format", "json"]
        reports.append(json.loads(subprocess.run(told, capture_output=True, text=True, check=True).stdout))
    for rank in range(1 if way.divides else way.ranks):  # files of ranks of one process's script are rank 0's
        with open(os.path.join(folder, f"rank{rank}")) as file:
            used.append(json.load(file))
    return reports, used


def held_of(report):
    """Of a node under an engine: what its ranks had while each built the model, or while they train."""
    peaks, budgets = [rank["peak_bytes"] for rank in report["ranks"] if rank["steps"]], report["budgets"]["nodes"]
    if budgets and budgets[0]["budget_bytes"]:
        trains = budgets[0]["in_memory_peak_bytes"]
    else:
        trains = report["model_data"]["nodes"][0]["peak_bytes"] + sum(peak["blocks_beside"] for peak in peaks)
    return max(trains, sum(peak["blocks_start"] for peak in peaks))


def measured(way, reports, used):
    core_seconds = sum(rank["seconds"] for rank in used) / (1 if way.divides else min(way.ranks, os.cpu_count()))
    held = sum(rank["private_bytes"] for rank in used) if way.plugin == "none" else max(map(held_of, reports))
    ranks = [rank for report in reports for rank in report["ranks"] if rank["steps"]]
    seen = {"core_seconds": round(core_seconds, 4), "step_seconds": statistics.median(rank["step_seconds"] for rank in ranks),
            "held_bytes": held, "pss_bytes": sum(rank["pss_peak_bytes"] for rank in ranks), "load": round(os.getloadavg()[0], 1)}
    if len(reports) > 1:
        seen["sent_bytes"] = max(report["model_data"]["sent_bytes"] for report in reports) // ranks[0]["steps"]
    return seen


def off(planned, seen):
    return round(planned / seen - 1, 4)


def compare(model, ways, samples, plans):
    rows = []

    def median(way, key):
        return statistics.median(sample[key] for sample in samples[str(way)])

    def parts(way):
        """The parts of a planned step that come from the recorded one's times, and the others."""
        row = plans[str(way)]
        work = row["seconds"]["compute"] + row["seconds"]["optimizer"]
        return work, row["step_seconds"] - work

    work, others = parts(RECORDED)
    unit = (median(RECORDED, "core_seconds") - others) / work
    for way in ways:
        if way.divides:
            held, row = median(way, "held_bytes"), plans[str(way)]
            planned = row["bytes"]["host"] - row["process_bytes"]
            rows.append({"model": model, "way": str(way), "command": row["command"], "held_bytes": held, "planned_bytes": planned,
                         "memory_off": off(planned, held), "samples": samples[str(way)]})
            print(f"{model:4}{way!s:32} memory {held / 2**20:.1f}, planned {planned / 2**20:.1f} MiB ({rows[-1]['memory_off']:+.1%})", flush=True)
            continue
        seen, row = samples[str(way)], plans[str(way)]
        step, held, cores = median(way, "step_seconds"), median(way, "held_bytes"), median(way, "core_seconds")
        planned = row["bytes"]["host"] - row["process_bytes"]
        planned_cores = parts(way)[0] * unit + parts(way)[1]
        rows.append({"model": model, "way": str(way),
                     "step_seconds": step, "planned_step_seconds": row["step_seconds"],
                     "step_off": off(row["step_seconds"], step), "core_seconds": cores,
                     "planned_core_seconds": round(planned_cores, 4), "cores_off": off(planned_cores, cores),
                     "held_bytes": held, "planned_bytes": planned, "memory_off": off(planned, held),
                     **({"sent_bytes": median(way, "sent_bytes"), "planned_sent_bytes": row["sent_bytes"]["network"],
                         "sent_off": off(row["sent_bytes"]["network"], median(way, "sent_bytes"))} if way.nodes > 1 else {}),
                     "samples": seen})
        print(f"{model:4}{way!s:32} step {step:.3f}, planned {row['step_seconds']:.3f} ({rows[-1]['step_off']:+.0%}); processor {cores:.3f} "
              f"({rows[-1]['cores_off']:+.0%}); memory {held / 2**20:.1f}, planned {planned / 2**20:.1f} MiB ({rows[-1]['memory_off']:+.1%})", flush=True)
    return rows


def choice_of(ways, rows):
    """The fastest of the ways without a budget: the plan's first one, as it was measured, beside the best."""
    free = [row for way, row in zip(ways, rows) if not way.share and way.nodes == 1 and not way.divides]
    chosen = min(free, key=lambda row: row["planned_step_seconds"])
    best, fewest = (min(free, key=lambda row, key=key: row[key]) for key in ("step_seconds", "core_seconds"))
    return {"chosen": chosen["way"], "best": best["way"], "off": off(chosen["step_seconds"], best["step_seconds"]),
            "best_cores": fewest["way"], "cores_off": off(chosen["core_seconds"], fewest["core_seconds"])}


def sample(args, model, turn, way, budget):
    """What a run has shown; one that is in the folder is not made again."""
    inside = os.path.join(args.folder, f"{model}-{turn}-{way}")
    shown = os.path.join(inside, "shown.json")
    if not os.path.exists(shown):
        shutil.rmtree(inside, ignore_errors=True)
        os.makedirs(inside)
        seen = measured(way, *run(args, model, way, budget, inside))
        with open(shown, "w") as file:
            json.dump(seen, file)
        print(f"  round {turn + 1} {model} {way}: {seen}", flush=True)
    with open(shown) as file:
        return json.load(file), os.path.join(inside, "log")


def take_round(args, model, turn, samples, recorded):
    for way in WAYS:
        budget = plan_of(model, recorded[model][0][1], way)["budget_bytes"] if way.share else 0
        seen, log = sample(args, model, turn, way, budget)
        samples[model][str(way)].append(seen)
        if way == RECORDED:
            recorded[model].append((seen["step_seconds"], log))


def main():
    parser = jobs.parser(__doc__, "plan", 3, 300)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--folder", help="where the runs stay; those that are there already are not made again")
    args = parser.parse_args()
    jobs.prepare_driver()
    load = os.getloadavg()[0]
    models = args.models.split(",")
    samples = {model: {str(way): [] for way in WAYS} for model in models}
    recorded, rows, choices = {model: [] for model in models}, [], []
    with tempfile.TemporaryDirectory(prefix="castor-bench-", dir="/var/tmp") as folder:
        args.folder = args.folder or folder
        for turn in range(args.rounds):
            for model in models:
                take_round(args, model, turn, samples, recorded)
        for model in models:
            source = sorted(recorded[model])[len(recorded[model]) // 2][1]
            more = compare(model, WAYS, samples[model], {str(way): plan_of(model, source, way) for way in WAYS})
            rows += more
            choices.append({"model": model, **choice_of(WAYS, more)})
    result = {
        **jobs.head("plan", args.python, load), "models": {model: MODELS[model] for model in models},
        **{f"{what}_within": sum(abs(row[key]) <= most for row in rows if key in row) for what, key, most in LIMITS},
        "choice_within": sum(choice["off"] <= CHOICE for choice in choices), "configurations": len(rows),
        "missed": [f"{row['model']}, {row['way']}: {what} {row[key]:+.1%}" for row in rows for what, key, most in LIMITS if abs(row.get(key, 0)) > most],
        "choices": choices, "rows": rows,
    }
    jobs.write(result, args.output, indent=1)
    timed = sum("step_off" in row for row in rows)
    print(f"memory within {MEMORY:.0%}: {result['memory_within']} of {len(rows)}; step within {STEP:.0%}: {result['step_within']} of {timed} "
          f"(processor seconds: {result['cores_within']}); "
          f"first choice within {CHOICE:.0%}: {result['choice_within']} of {len(choices)} "
          f"(processor seconds: {sum(choice['cores_off'] <= CHOICE for choice in choices)})")


if __name__ == "__main__":
    main()
