"""The Markdown table of a result of bench/pipeline/run.py."""

import statistics


def ratio(times, of):
    """Median over rounds of the ratio of `castor`'s time to another's; of a round, medians of its steps."""
    return statistics.median(statistics.median(own) / statistics.median(other) for own, other in zip(times["castor"], times[of]))


def efficiency(times, name, stages):
    """What of the ranks' time is work: a step of the whole model by one process, over the ranks' time of a step."""
    return statistics.median(statistics.median(whole) / statistics.median(own) / stages for whole, own in zip(times["whole"], times[name]))


def step_ms(times, name):
    return 1e3 * statistics.median(seconds for steps in times[name] for seconds in steps)


def markdown(results):
    stages = results["stages"]
    lines = [results["conditions"], ""]
    lines += ["| schedule | microbatches | Castor, ms | torch, ms | x torch | efficiency | torch's | M / (M + S - 1) |", "| --- |" + " --: |" * 7]
    for case in results["cases"]:
        times, microbatches, chunks = case["seconds"], case["microbatches"], case["chunks"]
        name = "1F1B" if chunks == 1 else f"interleaved, {chunks} chunks"
        bound = microbatches / (microbatches + (stages - 1) / chunks)
        bound = f"{bound:.2f}" if chunks == 1 else f"{bound:.2f} (with S - 1 over {chunks})"
        lines.append(f"| {name} | {microbatches} | {step_ms(times, 'castor'):.0f} | {step_ms(times, 'torch'):.0f} | {ratio(times, 'torch'):.2f} | "
                     f"{efficiency(times, 'castor', stages):.2f} | {efficiency(times, 'torch', stages):.2f} | {bound} |")
    return "\n".join(lines)
