#!/usr/bin/env python3
"""Recorded moments replayed at other budgets and bandwidths: stalls and bytes moved of the chunk manager, beside plain LRU
without prefetch and Belady's optimum, and what a call of the manager costs.

    bench/policy/run.py [--recording FILE]... [--measure SIZE:SHARE]... [--steps 6] [--replay build/bin/replay-moments] [-o FILE]

The recordings of models from 10 B to 1 T parameters are made here, by arithmetic: they mimic the step of a GPT on one of
its ranks, as the notes in the result say. --recording replays what a manager has written (interpose/placement/moments.h) as well.
--measure, as 60M:0.25, trains that GPT under this share of its model data (measured.py; needs torch) and replays what its
first rank has recorded, at the same budget and this machine's disk beside what was measured, and at the others.
In a replay nothing is moved and nobody waits: time is the replay's (launcher/plan/replay.c), and only ns_per_call is measured, on this machine.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time

import measured

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

CHUNK_BYTES = 64 << 20
FLOPS = 2e14  # of a rank
STEP_BYTES_PER_SECOND = 40e9  # at which a rank's optimizer goes through parameters, gradients and states
TOKENS = 8192  # of a rank in a step
MODELS = {"10B": (48, 4096, 1), "100B": (80, 10240, 8), "1T": (128, 25600, 64)}  # layers, hidden size, ranks
BUDGETS = (0.25, 0.5, 0.75)  # of the model data, beside the peak of other data
DISKS = {"2 GB/s": (2e9, 2e9), "6 GB/s": (6e9, 4e9)}  # read, write
NOTES = (
    "Made recordings: per layer 12 h^2 parameters; a rank owns its share of each layer: 2 bytes of parameter, 4 of gradient, 12 of "
    "state for each; chunks of 64 MiB of one kind, filled in the order of layers. Forward, backward and gradient of a layer use its "
    "chunks, the optimizer goes through them chunk by chunk. 8192 tokens a rank, 2e14 operations a second, 40 GB/s in the optimizer; "
    "activations are checkpointed, their peak is at the end of forward. Figures are of a step of the rank."
)


def recording(path, layers, hidden, ranks):
    """Writes what the step of a GPT would be recorded as; returns the peak of non-model data."""
    owned = 12 * hidden * hidden // ranks
    kinds = {"parameter": 2, "gradient": 4, "state": 12}
    counts = {kind: -(-owned * layers * size // CHUNK_BYTES) for kind, size in kinds.items()}
    first, chunks = {}, []
    for kind, count in counts.items():
        first[kind] = len(chunks)
        chunks += [kind] * count

    def of_layer(kind, layer):
        size = owned * kinds[kind]
        begin, end = layer * size // CHUNK_BYTES, ((layer + 1) * size - 1) // CHUNK_BYTES
        return range(first[kind] + begin, first[kind] + end + 1)

    forward_ns = int(2 * 12 * hidden * hidden * TOKENS / FLOPS * 1e9)
    activation, workspace = 2 * TOKENS * hidden, 34 * TOKENS * hidden
    now, lines = 0, ["castor-moments 1\n"]
    lines += [f"chunk {index} {kind} {CHUNK_BYTES}\n" for index, kind in enumerate(chunks)]

    def moment(event, identity, non_model, takes, uses):
        nonlocal now
        lines.append(f"moment {event} {identity} {now} {non_model}\n")
        lines.extend(f"use {chunk} {mode}\n" for chunk, mode in uses)
        now += takes

    for layer in range(layers):
        uses = [(chunk, "r") for chunk in of_layer("parameter", layer)]
        moment("forward", layer, activation * (layer + 1) + workspace, forward_ns, uses)
    for layer in reversed(range(layers)):
        uses = [(chunk, "r") for chunk in of_layer("parameter", layer)]
        moment("backward", layer, activation * (layer + 1) + workspace, 3 * forward_ns, uses)  # forward again, and twice that
        uses = [(chunk, "w") for chunk in of_layer("gradient", layer)]
        moment("gradient", layer, activation * layer, forward_ns // 50, uses)
    per_state = CHUNK_BYTES // kinds["state"]
    for index in range(counts["state"]):
        begin, end = index * per_state, (index + 1) * per_state - 1
        uses = [(first["state"] + index, "w")]
        for kind, mode in (("parameter", "w"), ("gradient", "r")):
            numbers = range(begin * kinds[kind] // CHUNK_BYTES, min(end * kinds[kind] // CHUNK_BYTES + 1, counts[kind]))
            uses += [(first[kind] + number, mode) for number in numbers]
        moment("optimizer", index, 0, int(CHUNK_BYTES * 18 / 12 / STEP_BYTES_PER_SECOND * 1e9), uses)
    lines.append(f"end {now}\n")
    with open(path, "w") as out:
        out.writelines(lines)
    return len(chunks) * CHUNK_BYTES, activation * layers + workspace


def sizes_of(path):
    """Bytes of chunks and the peak of non-model data of a recording."""
    model = peak = 0
    with open(path) as lines:
        for line in lines:
            words = line.split()
            if words[0] == "chunk":
                model += int(words[3])
            elif words[0] == "moment":
                peak = max(peak, int(words[4]))
    return model, peak


def replay(args, path, model, peak, share, disk, bandwidth, budget=None):
    """One case. The budget leaves that share of the model data beside the peak, after the steady ratio of 0.9."""
    budget = budget or int((model * share + peak) / 0.9)
    read, write = bandwidth
    command = [args.replay, path, str(budget), str(int(read)), str(int(write)), str(args.steps), "half"]
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"share": share, "disk": disk, "budget_bytes": budget, **out}


def row(name, case):
    if case["status"]:
        return f"{name:10}{case['share']:6} {case['disk']:8} short of room"
    step = case["step_ns"]  # of the recording: without waits for moves
    times = [1 + case[who]["stall_ns"] / step for who in ("castor", "belady", "lru")]
    moved = [(case[who]["read_bytes"] + case[who]["written_bytes"]) / 1e9 for who in ("castor", "belady", "lru")]
    return (
        f"{name:10}{case['share']:6} {case['disk']:8}{step / 1e9:8.1f} s "
        + "".join(f"{value:8.2f}" for value in times)
        + "  "
        + "".join(f"{value:9.1f}" for value in moved)
        + f"{case['hit_rate']:8.3f}{1e9 / case['ns_per_call']:12.0f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", action="append", default=[], help="replay this one as well")
    parser.add_argument("--measure", action="append", default=[], metavar="SIZE:SHARE", help="train, and replay what was recorded")
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"), help="interpreter with torch")
    parser.add_argument("--folder", default="/var/tmp", help="CASTOR_OFFLOAD_DIR of what is trained")
    parser.add_argument("--replay", default=os.path.join(ROOT, "build", "bin", "replay-moments"))
    parser.add_argument("--steps", type=int, default=6, help="the first two are warm-up")
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "bench", "results", "policy.json"))
    args = parser.parse_args()
    cases = {}
    print("                              work      step time in works           GB moved")
    print("model    share  disk                castor  belady     lru     castor   belady      lru    hits     calls/s")
    with tempfile.TemporaryDirectory(prefix="castor-bench-") as folder:
        recordings = [(os.path.basename(path), path, *sizes_of(path)) for path in args.recording]
        for name, model in MODELS.items():
            path = os.path.join(folder, name)
            recordings.append((name, path, *recording(path, *model)))
        own = measured.disk_bandwidth(args.folder) if args.measure else None  # bytes a second, by way
        for number, wanted in enumerate(args.measure):
            size, share = wanted.split(":")
            inside = os.path.join(folder, str(number))
            os.mkdir(inside)
            path, budget, figures = measured.run(args.python, size, float(share), args.steps, args.folder, inside)
            model, peak = sizes_of(path)
            case = replay(args, path, model, peak, float(share), "this one", (own["read"], own["write"]), budget)
            cases[wanted] = [{**case, "measured": figures}]
            print(row(size, case), flush=True)
            print(f"  measured: {figures['step_ns'] / 1e9:.2f} s, waits {figures['stall_ns'] / 1e9:.2f} s, "
                  f"{figures['moved_bytes'] / 1e9:.2f} GB, hits {figures['hit_rate']:.3f}", flush=True)
            recordings.append((wanted, path, model, peak))
        for name, path, model, peak in recordings:
            cases.setdefault(name, [])
            for disk, bandwidth in DISKS.items():
                for share in BUDGETS:
                    cases[name].append(replay(args, path, model, peak, share, disk, bandwidth))
                    print(row(name, cases[name][-1]), flush=True)
    result = {
        "bench": "policy",
        "command": " ".join(["bench/policy/run.py", *(f"--measure {wanted}" for wanted in args.measure), f"--steps {args.steps}"]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]},
        "disk_bytes_per_second": own,
        "notes": NOTES,
        "cases": cases,
    }
    with open(args.output, "w") as out:
        json.dump(result, out, indent=1)
        out.write("\n")


main()
