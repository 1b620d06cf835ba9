#!/usr/bin/env python3
"""What each device has under `--plugin hybrid`, beside the division's bound: what one process has on one device, over the stages. On simulated devices
(docs/rehearse.md), with numbers.

    bench/hybrid/memory.py [--stages 2 4] [--microbatches 2 4 8] [-o FILE]

Counted is device memory after some steps: parameters, gradients, optimizer states and all else, with what PyTorch's allocator keeps in its segments; slots are not, which give
way to others. Then, of a model whose call returns the loss, what the first of two stages has in a step at most, with more microbatches (1F1B). The losses must be those of one
process."""

import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import jobs  # noqa: E402

WIDTH, TOKENS, STEPS = 1024, 16, 6  # trials are over by then, and the next one is not due
SAVING_WIDTH, SAVING_TOKENS = 256, 128  # of the model that returns the loss
ROUNDING = 1e-4  # of losses, relative
MIB = 1 << 20


def train():
    import torch
    import train as plain

    plain.WIDTH, plain.TOKENS = WIDTH, TOKENS
    torch.manual_seed(0)
    model = plain.Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print("parameters", sum(p.numel() for p in model.parameters()))
    for step in range(STEPS):
        tokens, targets = plain.batch(step)
        optimizer.zero_grad()
        loss = plain.loss_of(model(tokens.cuda()), targets.cuda())
        loss.backward()
        optimizer.step()
        print("loss", loss.item(), flush=True)


def train_saving():
    import torch
    import train as plain

    plain.WIDTH, plain.TOKENS, plain.ROWS = SAVING_WIDTH, SAVING_TOKENS, 16

    class Model(plain.Model):
        def forward(self, tokens, targets):
            return plain.loss_of(super().forward(tokens), targets)

    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        tokens, targets = (t.cuda() for t in plain.batch(step))
        torch.cuda.reset_peak_memory_stats()
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item(), flush=True)
    print("peak", torch.cuda.max_memory_allocated(), flush=True)


def job(stages, args, program, microbatches=0):
    """(what it prints, its report)"""
    split = ["--plugin", "hybrid", "--nproc", str(stages), "--set", f"CASTOR_PP={stages}", "--set", f"CASTOR_MICROBATCHES={microbatches}"]
    split = split if stages > 1 else ["--plugin", "gemini"]
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        log = os.path.join(folder, "log")
        command = [jobs.CASTOR, "rehearse", "--devices", str(stages), "--memory", "16G", "--log-dir", log, *split, "--", args.python, __file__, program]
        done = subprocess.run(command, env=jobs.clean_environment(), capture_output=True, text=True, timeout=args.timeout, cwd=folder)
        if done.returncode:
            sys.exit(f"{stages} stages: status {done.returncode}\n{done.stderr[-2000:]}")
        report = json.loads(subprocess.run([jobs.CASTOR, "report", log, "--format", "json"], capture_output=True, text=True, check=True).stdout)
    return re.findall(r"^(loss|parameters|peak) (.*)$", done.stdout, re.M), report


def measured(stages, args):
    """(losses, bytes of parameters, bytes of each device by what they hold)"""
    figures, report = job(stages, args, "--train")
    devices = [{kind: rank["tiers"]["device"][kind] for kind in ("param", "grad", "optim", "other")} for rank in report["ranks"] if rank["optimizer_steps"]]
    return [float(value) for name, value in figures if name == "loss"], 4 * int(figures[0][1]), devices


def compare(losses, expected, what):
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    if worst > ROUNDING:
        sys.exit(f"{what}: losses differ from one process's by {worst:.1e}")


def saved(args, stages=1, microbatches=0):
    """(losses, what the first device has in a step at most, calls in 1F1B)"""
    figures, report = job(stages, args, "--train-saving", microbatches)
    return [float(value) for name, value in figures if name == "loss"], int(figures[-1][1]), report["ranks"][0].get("calls_1f1b", 0)


def main():
    if sys.argv[1:] in (["--train"], ["--train-saving"]):
        (train if sys.argv[1] == "--train" else train_saving)()
        return
    parser = jobs.parser(__doc__, "hybrid_memory", 1, 900)
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--microbatches", type=int, nargs="*", default=[2, 4, 8])
    args = parser.parse_args()
    expected, size, (whole,) = measured(1, args)
    results = {**jobs.head("hybrid_memory", args.python, os.getloadavg()[0]), "parameter_bytes": size, "one_process": whole, "ways": []}
    for stages in args.stages:
        losses, _, devices = measured(stages, args)
        compare(losses, expected, f"{stages} stages")
        bound = sum(whole.values()) // stages
        results["ways"].append({"stages": stages, "bound_bytes": bound, "device_bytes": devices})
        print(f"{stages} stages: bound {bound / MIB:.0f} MiB, " + ", ".join(f"{sum(one.values()) / bound:.2f} x" for one in devices), flush=True)
    expected, alone, _ = saved(args)
    results["saving"] = {"one_process_peak_bytes": alone, "two_stages": []}
    for microbatches in args.microbatches:
        losses, peak, calls = saved(args, 2, microbatches)
        compare(losses, expected, f"{microbatches} microbatches")
        results["saving"]["two_stages"].append({"microbatches": microbatches, "peak_bytes": peak, "calls_1f1b": calls})
        print(f"{microbatches} microbatches ({calls} calls in 1F1B): {peak / MIB:.0f} MiB, one process {alone / MIB:.0f} MiB", flush=True)
    jobs.write(results, args.output, indent=1)


main()
