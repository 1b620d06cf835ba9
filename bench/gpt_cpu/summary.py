"""What a result file of run.py says: medians, ratios to DDP within a round, and whether the losses agree."""

from math import inf, isnan
from statistics import median

from contenders import CONTENDERS

MIB = 1 << 20
MALLOC_LABELS = {"default": "glibc's default", "returned": "blocks returned", "castor": "`castor run`'s"}


def timed_steps(case, run):
    """Seconds of each timed step: from the first rank's view that is the slowest, since ranks wait for each other."""
    first = case["warmup_steps"]
    ranks = [steps[first:first + case["timed_steps"]] for steps in run["step_seconds"]]
    return [max(step) for step in zip(*ranks)]


def step_ms(case, run):
    return 1000 * median(timed_steps(case, run))


def bare_bytes(case, run):
    """What as many ranks hold together after a bare import of torch: under Castor where its plugins train, whose ranks share the import."""
    bare = case.get("bare_castor") if CONTENDERS[run["contender"]].plugin not in (None, "none") else None
    return (bare or case["bare"])[run["round"]]["pss"]


def peak_bytes(case, run):
    """The most that the ranks held together in a memory step, above as many bare imports of torch."""
    return max(memory["pss"] for _, memory in run["memory_samples"]) - bare_bytes(case, run)


def total_bytes(case, run):
    """The most that all processes of the job held together at any time, launchers included; 0 where it was not measured."""
    return run.get("job_peak_pss", 0)


def end_bytes(case, run):
    """What the ranks hold together between two steps, above as many bare imports of torch."""
    return median(run["end_of_step_pss"]) - bare_bytes(case, run)


def model_bytes_per_parameter(run):
    """Parameters, gradients and optimizer states of the node in steady state, per parameter, by `castor report`."""
    return run.get("report", {}).get("model_data", {}).get("bytes_per_param") or None


def find(case, contender, malloc, turn=None):
    return [run for run in case["runs"] if run["contender"] == contender and run["malloc"] == malloc
            and run["status"] == "ok" and (turn is None or run["round"] == turn)]


def loss_difference(case, run):
    """Largest difference from DDP's losses, over ranks and steps, infinite where one is not a number; None without DDP."""
    reference = find(case, "ddp", "default")
    if not reference:
        return None
    pairs = zip((loss for rank in run["losses"] for loss in rank), (loss for rank in reference[0]["losses"] for loss in rank))
    return max(inf if isnan(ours - theirs) else abs(ours - theirs) for ours, theirs in pairs)


def ratio(case, runs, measure):
    """Median over rounds of a figure divided by DDP's in the same round, with glibc's default settings."""
    ratios = []
    for run in runs:
        reference = find(case, "ddp", "default", run["round"])
        if reference and measure(case, reference[0]):
            ratios.append(measure(case, run) / measure(case, reference[0]))
    return median(ratios) if ratios else None


def losses_text(difference):
    if difference is None:
        return ""
    return "bit for bit" if difference == 0 else f"within {difference:.0e}"


def number(value, form):
    return "" if value is None else format(value, form)


def run_line(case, run):
    """One line about one run, for the terminal."""
    head = f"{case['size']} x{case['ranks']} round {run['round'] + 1} {run['contender']} ({run['malloc']}):"
    if run["status"] != "ok":
        return f"{head} {run['status']}: {run['error']}"
    return (f"{head} step {step_ms(case, run):.0f} ms, memory {total_bytes(case, run) / MIB:.0f} MiB at most, above import {peak_bytes(case, run) / MIB:.0f} MiB, "
            f"{end_bytes(case, run) / MIB:.0f} MiB between steps, losses {losses_text(loss_difference(case, run)) or 'not compared'}"
            f", last {run['losses'][0][-1]:.4f}; others used {100 * run['foreign_cpu']:.0f}% of the CPUs; {run['seconds']:.0f} s")


def row(case, contender, malloc, runs):
    label, setting = CONTENDERS[contender].label, MALLOC_LABELS[malloc]
    good = [run for run in runs if run["status"] == "ok"]
    failed = [run for run in runs if run["status"] in ("failed", "skipped")]
    if not good:
        return f"| {label} | {setting} | {failed[-1]['status']}: {failed[-1]['error']} | | | | | | | | | |"
    cells = [label, setting]
    for measure, scale in ((step_ms, 1), (total_bytes, MIB), (peak_bytes, MIB), (end_bytes, MIB)):
        if not measure(case, good[0]):
            cells += ["", ""]
            continue
        cells += [f"{median(measure(case, run) for run in good) / scale:.0f}", number(ratio(case, good, measure), ".2f")]
    model = [value for value in map(model_bytes_per_parameter, good) if value]
    cells.append(number(median(model) if model else None, ".1f"))
    losses = losses_text(max(loss_difference(case, run) for run in good) if find(case, "ddp", "default") else None)
    if failed:
        losses += f"; {len(failed)} of {len(good) + len(failed)} runs {failed[-1]['status']}: {failed[-1]['error']}"
    cells.append(losses)
    return "| " + " | ".join(cells) + " |"


def case_markdown(case):
    groups = {}
    for run in case["runs"]:
        groups.setdefault((run["contender"], run["malloc"]), []).append(run)
    good = [run for run in case["runs"] if run["status"] == "ok"]
    parameters = f"{good[0]['parameters'] / 1e6:.1f} million parameters, " if good else ""
    lines = [
        f"**{case['size']}, {case['ranks']} ranks** ({parameters}batch {case['batch']} per rank, {case['rounds']} rounds of "
        f"{case['timed_steps']} timed steps)", "",
        "| | malloc | step, ms | x DDP | peak memory in all, MiB | x DDP | above import, MiB | x DDP | between steps, MiB | x DDP | "
        "model data, bytes per parameter | losses |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --- |"]
    lines += [row(case, contender, malloc, runs) for (contender, malloc), runs in groups.items()]
    if good:
        lines += ["", f"Other programs used {100 * median(run['foreign_cpu'] for run in good):.0f}% of the CPUs "
                  f"({100 * max(run['foreign_cpu'] for run in good):.0f}% at most) during these runs."]
    return "\n".join(lines)


def markdown(results):
    machine, versions = results["machine"], results["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("python", "castor"))
    head = (f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / (1 << 30):.0f} GiB, Linux {machine['kernel']}; "
            f"{named}; Castor {versions['castor']}. Memory in all is the PSS of all processes of the job, launchers included, at any time from its start to its end; above import "
            "and between steps is that of the ranks, less as many bare imports of torch. "
            "Medians; ratios are medians of the ratios to DDP in the same round.")
    return "\n\n".join([head] + [case_markdown(case) for case in results["cases"]])


SYSTEMS = ("ddp", "castor", "zero", "fsdp2", "deepspeed2", "deepspeed3")  # contenders, one for each system


def brief_markdown(results):
    """One row for each system, of the first case: the step and the peaks of memory as ratios to DDP with glibc's defaults."""
    case = results["cases"][0]
    lines = ["| system | step | memory in all | above import | step, blocks returned | memory in all, blocks returned | above import, blocks returned | "
             "losses |", "| --- | --: | --: | --: | --: | --: | --: | --- |"]
    for name in SYSTEMS:
        runs = {malloc: find(case, name, malloc) for malloc in ("default", "returned", "castor")}
        plain = runs["default"] or runs["castor"]
        cells = [CONTENDERS[name].label]
        for group in (plain, runs["returned"]):
            cells += [number(ratio(case, group, measure), ".2f") for measure in (step_ms, total_bytes, peak_bytes)]
        cells.append(losses_text(max(loss_difference(case, run) for run in plain)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def complaints(results):
    """What makes a result unusable: losses that disagree, Castor or DDP failing."""
    found = []
    for case in results["cases"]:
        for run in case["runs"]:
            name = f"{case['size']} x{case['ranks']} round {run['round'] + 1} {run['contender']} ({run['malloc']})"
            contender = CONTENDERS[run["contender"]]
            if run["status"] == "failed" and (contender.plugin or run["contender"] == "ddp"):
                found.append(f"{name} failed: {run['error']}")
            elif run["status"] == "ok":
                difference = loss_difference(case, run)
                if difference is not None and not difference <= contender.tolerance:
                    found.append(f"{name}: losses differ from DDP's by {difference:.2e}, allowed {contender.tolerance:g}")
    return found
