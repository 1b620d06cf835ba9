"""The Markdown tables of a result of bench/checkpoint/run.py."""

import statistics

SAVED_AT = 3
BASE, PEER = "no save", "DCP, async_save"


def bandwidth(results, samples):
    return statistics.median(results["bytes"] / (1 << 20) / s["seconds"] for s in samples)


def peak(samples):
    return statistics.median(s["peak"] for s in samples) / (1 << 20)


def held_up(sample):
    """Seconds by which a save held training up: the call, and what the steps until it was on disk took above the median of the others."""
    steps, passed, last = sample["steps"], sample["call"], SAVED_AT
    while last < len(steps) and (last == SAVED_AT or passed < sample["done"]):
        passed += steps[last]
        last += 1
    usual = statistics.median(steps[1:SAVED_AT] + steps[last:])
    return sample["call"] + sum(steps[SAVED_AT:last]) - (last - SAVED_AT) * usual


def markdown(results):
    lines = [results["conditions"], ""]
    for kind, word in (("save", "saving"), ("load", "loading, not cached")):
        lines += [f"| {word} | MiB/s | x disk | most memory, MiB |", "| --- | --: | --: | --: |"]
        disk = results[kind]["disk, O_DIRECT"]
        for name, samples in results[kind].items():
            to_disk = statistics.median(d["seconds"] / s["seconds"] for s, d in zip(samples, disk))
            lines.append(f"| {name} | {bandwidth(results, samples):.0f} | {to_disk:.2f} | {peak(samples):.0f} |")
        lines.append("")
    lines += ["| asynchronous | call, ms | x DCP | training held up in all, ms | x DCP | next step, ms | on disk after, s | copied, MiB | most memory, MiB |",
              "| --- | --: | --: | --: | --: | --: | --: | --: | --: |"]
    peer, median = results["async"][PEER], statistics.median
    peers = median(map(held_up, peer))
    for name, samples in results["async"].items():
        ups = median(map(held_up, samples))
        cells = [1e3 * median(s["steps"][SAVED_AT] for s in samples), peak(samples)]
        if name == BASE:
            lines.append(f"| {name} | | | {1e3 * ups:.0f} | | {cells[0]:.0f} | | | {cells[1]:.0f} |")
            continue
        call, to_call = 1e3 * median(s["call"] for s in samples), median(s["call"] / p["call"] for s, p in zip(samples, peer))
        done, copied = median(s["done"] for s in samples), median(s["copied"] for s in samples) / (1 << 20)
        lines.append(f"| {name} | {call:.1f} | {to_call:.3f} | {1e3 * ups:.0f} | {ups / peers:.2f} | {cells[0]:.0f} | "
                     f"{done:.2f} | {copied:.0f} | {cells[1]:.0f} |")
    return "\n".join(lines)
