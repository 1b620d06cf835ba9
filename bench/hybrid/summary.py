"""The Markdown table of a result of bench/hybrid/run.py."""

import statistics

WAYS = ("plain", "ddp", "layers", "castor layers", "castor layers ddp", "stages", "castor stages", "castor stages ddp")
TITLES = {"plain": "the script in one process", "ddp": "ranks with DistributedDataParallel, their rows each", "layers": "layers, by hand (`parallelize_module`)", "castor layers": "layers, `CASTOR_TP`",
          "castor layers ddp": "layers, `CASTOR_TP`, ranks with DistributedDataParallel", "castor stages ddp": "stages, `CASTOR_PP`, ranks with DistributedDataParallel",
          "stages": "stages, by hand (`torch.distributed.pipelining`)", "castor stages": "stages, `CASTOR_PP`"}


def ratio(results, way, key):
    """Median over rounds of a way's figure over that of the same division by hand; None: there is none."""
    if not way.startswith("castor "):
        return None
    by_hand = way.split()[1]
    return statistics.median(one[way][key] / one[by_hand][key] for one in results["rounds"])


def markdown(results):
    machine = results["machine"]
    lines = [f"{machine['cores']} cores, torch {results['versions']['torch']}, {results['ranks']} ranks over gloo, one thread each; medians of {len(results['rounds'])} rounds. "
             f"Load of the machine, this job's own included: {machine['load']:.0f}.", "",
             "| | step, ms | x by hand | processor ms of a rank | x by hand |", "| --- |" + " --: |" * 4]
    for way in WAYS:
        cells = []
        for key in ("seconds", "processor_seconds"):
            found = ratio(results, way, key)
            cells += [f"{1e3 * statistics.median(one[way][key] for one in results['rounds']):.0f}", "" if found is None else f"{found:.2f}"]
        lines.append(f"| {TITLES[way]} | {' | '.join(cells)} |")
    return "\n".join(lines)
