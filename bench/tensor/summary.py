"""The Markdown table of a result of bench/tensor/run.py."""

import statistics


def ratio(times):
    """Median over rounds of the ratio of Castor's time to DTensor's in the same round."""
    return statistics.median(own / other for own, other in zip(times["castor"], times["dtensor"]))


def markdown(results):
    sizes = sorted({size for by_size in results["cases"].values() for size in by_size}, key=int)
    lines = [results["conditions"], ""]
    lines += ["| | " + " | ".join(f"{size}: Castor, us | DTensor, us | x DTensor" for size in sizes) + " |", "| --- |" + " --: |" * (3 * len(sizes))]
    for name, by_size in results["cases"].items():
        cells = []
        for size in sizes:
            times = by_size[size]
            cells += [f"{1e6 * statistics.median(times[one]):.0f}" for one in ("castor", "dtensor")] + [f"{ratio(times):.2f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
