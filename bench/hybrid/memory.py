#!/usr/bin/env python3
"""What each device has under `--plugin hybrid`, beside the division's bound: what one process has on one device, over the stages. On simulated devices
(docs/rehearse.md), with numbers.

    bench/hybrid/memory.py [--stages 2 4] [-o FILE]

Counted is device memory after some steps: parameters, gradients, optimizer states and all else, with what PyTorch's allocator keeps in its segments; slots are not, which give
way to others. The losses must be those of one process."""

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


def measured(stages, args):
    """(losses, bytes of parameters, bytes of each device by what they hold)"""
    split = ["--plugin", "hybrid", "--nproc", str(stages), "--set", f"CASTOR_PP={stages}"] if stages > 1 else ["--plugin", "gemini"]
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        log = os.path.join(folder, "log")
        command = [jobs.CASTOR, "rehearse", "--devices", str(stages), "--memory", "16G", "--log-dir", log, *split, "--", args.python, __file__, "--train"]
        done = subprocess.run(command, env=jobs.clean_environment(), capture_output=True, text=True, timeout=args.timeout, cwd=folder)
        if done.returncode:
            sys.exit(f"{stages} stages: status {done.returncode}\n{done.stderr[-2000:]}")
        report = json.loads(subprocess.run([jobs.CASTOR, "report", log, "--format", "json"], capture_output=True, text=True, check=True).stdout)
    figures = re.findall(r"^(loss|parameters) (.*)$", done.stdout, re.M)
    devices = [{kind: rank["tiers"]["device"][kind] for kind in ("param", "grad", "optim", "other")} for rank in report["ranks"] if rank["optimizer_steps"]]
    return [float(value) for name, value in figures if name == "loss"], 4 * int(figures[0][1]), devices


def main():
    if sys.argv[1:] == ["--train"]:
        train()
        return
    parser = jobs.parser(__doc__, "hybrid_memory", 1, 900)
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 4])
    args = parser.parse_args()
    expected, size, (whole,) = measured(1, args)
    results = {**jobs.head("hybrid_memory", args.python, os.getloadavg()[0]), "parameter_bytes": size, "one_process": whole, "ways": []}
    for stages in args.stages:
        losses, _, devices = measured(stages, args)
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
        if worst > ROUNDING:
            sys.exit(f"{stages} stages: losses differ from one process's by {worst:.1e}")
        bound = sum(whole.values()) // stages
        results["ways"].append({"stages": stages, "bound_bytes": bound, "device_bytes": devices})
        print(f"{stages} stages: bound {bound / MIB:.0f} MiB, " + ", ".join(f"{sum(one.values()) / bound:.2f} x" for one in devices), flush=True)
    jobs.write(results, args.output, indent=1)


main()
