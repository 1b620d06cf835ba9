"""The Markdown table of a result of bench/collectives/run.py."""

import statistics


def size_text(size):
    size = int(size)
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return "-"


def ratio(times, of):
    """Median over rounds of the ratio to the node path's time in the same round."""
    return statistics.median(other / own for other, own in zip(times[of], times["node"]))


def markdown(results):
    lines = [results["conditions"]]
    for ranks, operations in results["ranks"].items():
        sizes = sorted({size for by_size in operations.values() for size in by_size}, key=int)
        shown = [size for size in sizes if int(size)]
        lines += ["", f"**{ranks} ranks**: times of gloo in units of the node path's (and of a copy of as many bytes, on all ranks at once)", ""]
        lines += ["| | " + " | ".join(size_text(size) for size in shown) + " |", "| --- |" + " --: |" * len(shown)]
        for name, by_size in operations.items():
            if "0" not in by_size:
                cells = [f"{ratio(by_size[size], 'gloo'):.1f} ({ratio(by_size[size], 'copy'):.2f})" for size in shown]
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines += ["", f"barrier: {ratio(operations['barrier']['0'], 'gloo'):.1f}"]
    return "\n".join(lines)
