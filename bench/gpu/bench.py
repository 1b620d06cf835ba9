#!/usr/bin/env python3
"""Training on a device whose memory the model data may take only a part of, beside plain PyTorch and its peers.

    python bench/gpu/bench.py [--python PYTHON] [--nvcc NVCC] [--rounds 3] [--limit SECONDS] [--only WORD] [--output FILE]
    python bench/gpu/bench.py --simulated    tiny sizes on simulated devices: shows that the code works; no measurement

The most valuable checks come first; each has a time limit, and those for which no time is left are left out (`--only` runs
them apart). The result is written as JSON after each check. Without a GPU nothing runs, and the status is 2.
"""
import argparse
import json
import os
import sys
import time

from checks import CASTOR, HERE, LeftOut, add_arguments, begin, expect, median, run_bounded
from watch import Watch
import probe

OPTION = "CASTOR_DEVICE_BUDGET"
BYTES_PER_PARAMETER = 16
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
GIB = 1 << 30


def sizes(checks, size):
    return "tiny" if checks.args.simulated else size


def parameters_of(checks, size):
    """As gpt.py counts them; it needs torch, which this Python may lack."""
    text = f"import gpt; print(gpt.parameters_of({size!r}))"
    done = run_bounded([checks.args.python, "-c", text], 60, cwd=HERE)
    expect(done.returncode == 0, done.stderr.strip()[-300:])
    return int(done.stdout)


def need_budget():
    options = run_bounded([CASTOR, "options"], 20).stdout
    if OPTION not in options:
        raise LeftOut(f"this version has no {OPTION}")


def of_report(checks, logs):
    """What `castor report` says about memory and devices."""
    done = run_bounded([CASTOR, "report", logs, "--format", "json"], 30)
    if done.returncode:
        return {"error": (done.stderr.strip() or done.stdout.strip())[-200:]}
    report = json.loads(done.stdout)
    first = (report.get("ranks") or [{}])[0]
    return {**{key: value for key, value in report.items() if "device" in key or key == "chunks"},
            **{key: value for key, value in first.items() if "device" in key or key in ("peak_bytes", "optimizer_steps")}}


def train(checks, name, script, size, *flags, options=None, plugin=None, **extra):
    """The record of one training, with its peaks of memory. options: run under Castor, with these. A script that fails is a Finding."""
    path = checks.path(f"{name.replace(' ', '-').replace('/', '_')}.json")
    command = [checks.args.python, os.path.join(HERE, script), path, "--size", sizes(checks, size), *map(str, flags)]
    given = (["--plugin", plugin] if plugin else []) + [word for key, value in (options or {}).items() for word in ("--set", f"{key}={value}")]
    watch = Watch(nvml=not checks.args.simulated)
    _, logs = checks.run(command, os.path.basename(path)[:-5], castor=plugin is not None, options=given, watch=watch, numbers=True, **DETERMINISTIC, **extra)
    with open(path) as file:
        record = {"run": name, **json.load(file), **watch.figures()}
    if plugin:
        record["report"] = of_report(checks, logs)
    return record


def short(record):
    return {key: value for key, value in record.items() if key not in ("losses", "norms", "seconds", "device_bytes_after_steps", "report")}


def flags(checks, batch, accumulate, steps, warmup):
    if checks.args.simulated:
        batch, accumulate, steps, warmup = 2, min(accumulate, 2), 3, 1
    return "--batch", batch, "--accumulate", accumulate, "--steps", steps, "--warmup", warmup


# ---- the checks ----


def budgets(figures, checks):
    """Half, a quarter and an eighth of the model data on the device: the same losses, to the last bit."""
    how = flags(checks, 8, 1, 8, 3)
    plain = train(checks, "350M plain", "train_gpt.py", "350M", *how)
    again = train(checks, "350M plain again", "train_gpt.py", "350M", *how)
    figures["runs"] = [plain, again]
    figures["plain_step_s"] = plain["step_s"]
    expect((again["losses"], again["bits"]) == (plain["losses"], plain["bits"]), "plain PyTorch gives other losses each time: there is nothing to compare with")
    need_budget()
    whole = plain["parameters"] * BYTES_PER_PARAMETER
    wrong = []
    for parts in (2, 4, 8):
        budget = whole // parts
        try:
            record = train(checks, f"350M budget 1/{parts}", "train_gpt.py", "350M", *how, plugin="gemini", options={OPTION: budget})
        except Exception as error:  # the other budgets are findings of their own
            wrong.append(f"1/{parts}: {error}")
            continue
        record.update(budget_bytes=budget, equal=(record["losses"], record["bits"]) == (plain["losses"], plain["bits"]),
                      speed=round(plain["step_s"] / record["step_s"], 4))
        figures["runs"].append(record)
        figures[f"speed_at_1/{parts}"] = record["speed"]
        if not record["equal"]:
            wrong.append(f"1/{parts}: losses {record['losses'][:3]}… are not {plain['losses'][:3]}…" if record["losses"] != plain["losses"]
                         else f"1/{parts}: equal losses, but the parameters differ at the end")
    expect(not wrong, "; ".join(wrong))


def half_and_quarter(figures, checks):
    """1.3 billion parameters, 64 Ki tokens a step: tokens per second beside the unlimited run."""
    how = flags(checks, 4, 8, 5, 2)
    unlimited = train(checks, "1.3B unlimited", "train_gpt.py", "1.3B", *how)
    figures["runs"] = [unlimited]
    figures["unlimited_tokens_per_s"] = unlimited["tokens_per_s"]
    need_budget()
    wrong = []
    for name, parts in (("half", 2), ("quarter", 4)):
        budget = unlimited["parameters"] * BYTES_PER_PARAMETER // parts
        try:
            record = train(checks, f"1.3B budget {name}", "train_gpt.py", "1.3B", *how, plugin="gemini", options={OPTION: budget})
        except Exception as error:
            wrong.append(f"{name}: {error}")
            continue
        record.update(budget_bytes=budget, speed=round(record["tokens_per_s"] / unlimited["tokens_per_s"], 4),
                      equal=(record["losses"], record["bits"]) == (unlimited["losses"], unlimited["bits"]))
        figures["runs"].append(record)
        figures[f"{name}_speed"], figures[f"{name}_equal"] = record["speed"], record["equal"]
    expect(not wrong, "; ".join(wrong))


def activations(figures, checks):
    """What a forward pass saves on the host: the same losses, to the last bit; peaks of the device's memory, and tokens per second."""
    how = flags(checks, 16, 1, 6, 3)
    kept = train(checks, "350M activations kept", "train_gpt.py", "350M", *how)
    figures["runs"], wrong = [kept], []
    for way in "offload", "auto":
        record = train(checks, f"350M activations {way}", "train_gpt.py", "350M", *how, plugin="gemini", options={"CASTOR_ACTIVATIONS": way})
        record.update(equal=(record["losses"], record["bits"]) == (kept["losses"], kept["bits"]), speed=round(kept["step_s"] / record["step_s"], 4))
        figures["runs"].append(record)
        figures[f"{way}_speed"], figures[f"{way}_equal"] = record["speed"], record["equal"]
        if not record["equal"]:
            wrong.append(f"{way}: losses or parameters differ")
    expect(not wrong, "; ".join(wrong))


def larger_than_the_device(figures, checks):
    """7 billion parameters of 16 bytes: 106 GB of model data."""
    need_budget()
    count = parameters_of(checks, sizes(checks, "7B"))
    figures["model_bytes"] = count * BYTES_PER_PARAMETER
    budget = figures["model_bytes"] // 4 if checks.args.simulated else 40 * GIB
    record = train(checks, "7B", "train_gpt.py", "7B", *flags(checks, 1, 4, 2, 1), plugin="gemini", options={OPTION: budget})
    figures.update({**short(record), "budget_bytes": budget, "runs": [record]})


def plugin_none(figures, checks):
    """A script that fits: what the trace alone costs a step, in interleaved rounds."""
    how = flags(checks, 8, 1, 25, 5)
    samples = {"plain": [], "none": []}
    ends = checks.check_ends
    rounds = 0
    for number in range(1 if checks.args.simulated else checks.args.rounds):
        begun = time.monotonic()
        for name in samples:
            record = train(checks, f"350M {name}", "train_gpt.py", "350M", *how, plugin=None if name == "plain" else "none")
            samples[name].append(record["step_s"])
        rounds += 1
        figures["ratio"] = round(median([a / b for a, b in zip(samples["none"], samples["plain"])]), 4)
        figures["rounds"], figures["samples_s"] = rounds, samples
        if ends - time.monotonic() < time.monotonic() - begun:
            break
    expect(checks.args.simulated or figures["ratio"] < 1.01, f"a step takes {figures['ratio']} of a plain one's time, and 1.01 is allowed")


def fsdp2(figures, checks):
    record = train(checks, "1.3B FSDP2 with CPU offload", "train_fsdp2.py", "1.3B", *flags(checks, 4, 8, 3, 1),
                   *(["--fp32"] if checks.args.simulated else []))
    figures.update({**short(record), "runs": [record]})


def deepspeed(figures, checks):
    done = run_bounded([checks.args.python, "-c", "import importlib.util, sys; sys.exit(not importlib.util.find_spec('deepspeed'))"], 60)
    if done.returncode:
        raise LeftOut("DeepSpeed is not installed")
    record = train(checks, "1.3B ZeRO-Offload", "train_deepspeed.py", "1.3B", *flags(checks, 4, 8, 3, 1))
    figures.update({**short(record), "runs": [record]})


def adam(figures, checks):
    path = checks.path("adam.json")
    elements = 1 << 14 if checks.args.simulated else 1 << 28
    checks.run([checks.args.python, os.path.join(HERE, "adam_rate.py"), path, str(elements)], "adam", castor=False, numbers=True)
    with open(path) as file:
        figures.update(json.load(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, limit_s=520)
    args = parser.parse_args()
    checks = begin(args, "gpu-bench", "training with less memory on the device than the model data takes, beside plain PyTorch and its peers")
    checks.check("350M: budgets of 1/2, 1/4, 1/8", 120, budgets)
    checks.check("1.3B: half and quarter budget", 130, half_and_quarter)
    probe.run(checks, "timings", 150)
    checks.check("7B: larger than the device", 120, larger_than_the_device)
    checks.check("350M: activations on the host", 90, activations)
    checks.check("350M: plugin none", 110, plugin_none)
    checks.check("1.3B: FSDP2 with CPU offload", 70, fsdp2)
    checks.check("AdamW of torch", 30, adam)
    checks.check("1.3B: DeepSpeed ZeRO-Offload", 100, deepspeed)
    sys.exit(checks.close())


if __name__ == "__main__":
    main()
