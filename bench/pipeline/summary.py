"""The Markdown table of a result of bench/pipeline/run.py."""

import statistics


def ratio(times, of):
    """Median over rounds of the ratio of `castor`'s time to another's; of a round, medians of its steps."""
    return statistics.median(statistics.median(own) / statistics.median(other) for own, other in zip(times["castor"], times[of]))


def efficiency(times, name, stages):
    """What of the ranks' time is work: a step of the whole model by one process, over the ranks' time of a step."""
    return statistics.median(statistics.median(whole) / statistics.median(own) / stages for whole, own in zip(times["whole"], times[name]))


def limit(microbatches, stages, chunks):
    """M / (M + S - 1): the efficiency of passes that all take as long, without any cost between them. With chunks stages wait less."""
    return microbatches / (microbatches + (stages - 1) / chunks)


def step_ms(times, name):
    return 1e3 * statistics.median(seconds for steps in times[name] for seconds in steps)


def markdown(results):
    stages = results["stages"]
    lines = [results["conditions"], ""]
    lines += ["| schedule | microbatches | Castor, ms | torch, ms | x torch | efficiency | torch's | the limit |", "| --- |" + " --: |" * 7]
    for case in results["cases"]:
        times, microbatches, chunks = case["seconds"], case["microbatches"], case["chunks"]
        name = "1F1B" if chunks == 1 else f"interleaved, {chunks} chunks"
        bound = limit(microbatches, stages, chunks)
        lines.append(f"| {name} | {microbatches} | {step_ms(times, 'castor'):.0f} | {step_ms(times, 'torch'):.0f} | {ratio(times, 'torch'):.2f} | "
                     f"{efficiency(times, 'castor', stages):.2f} | {efficiency(times, 'torch', stages):.2f} | {bound:.2f} |")
    return "\n".join(lines)
