"""Writes docs/semantics.md, the counts of a full run, and the file with all of its rows."""

import collections
import os
import re

import rows as table
from expect import ADAPTIVE, ANY, HALF, SGD

RANKS = (2, 4)
OUTCOMES = ("equal", "order of sums", "refused", "left to PyTorch", "differs by design", "FAILED")

PAGE = """# Unmodified scripts under Castor

Made by `tests/semantics/run.py --full --markdown docs/semantics.md`; do not edit. Each row by itself, with its difference, its tolerance and the whole message, is in
`build/semantics/rows.md`, which every run with `--full` writes, that of `make test-all` too.

Every script of `tests/scripts` runs twice: with plain PyTorch (DDP scripts under torchrun, single-process scripts in one process) and under `castor run --plugin P` with 2
and with 4 ranks. A script has several rows: its cases, and the same cases with other options. The comparison covers what each rank sees at each step: printed text, losses,
gradients, parameters, optimizer states, buffers, and the files that the script wrote, with names, sizes and contents.

*Equal*: every byte is equal. *Order of sums*: sums in another order differ in their last bits, and the tolerance of the row bounds the difference
(`tests/semantics/expect.py`). *Refused*: Castor ends the job with one line of advice. *Left to PyTorch*: PyTorch's own reducer synchronizes the gradients; the results are
equal within the tolerance all the same. *Differs by design*: the row names the difference that must be there, or only the ranks are compared with each other. *Not run*: the
row is in the suite now and has not been run; one that has left it still counts.
`a / b`: so many rows with 2 and with 4 ranks. A row that stays one process counts in both. Under `none` nothing depends on the number.

"""

BY_SCRIPT = """
## Scripts

A number holds for each plugin that was run, or only for those that the cell names. *rows*: those in the suite now.

"""

REFUSALS = """
## Refusals

| what the message says before its advice (N: a number) | rows | scripts |
| --- | --: | --- |
"""

ON_DEVICES = """
## On devices

Made by `tests/semantics/run.py --devices --markdown docs/semantics.md`: the scripts with each rank on a simulated device of its own, over NCCL, beside plain PyTorch
there. So many rows, with 2 ranks; what a script has more cannot run on such devices in plain PyTorch, or is named in `tests/semantics/rows_devices.py`.

"""

ROWS = """# Rows of the semantics suite

*bitwise* means that every byte is equal. Otherwise the cell gives the largest difference of a tensor's element, relative to the tensor's
largest element; the tolerance of the row bounds it:

"""

BY_ROW = """
A cell holds for {engines}, which are presets of one engine, or only for the plugins that it names; the others were not run. `-`: none
was run.
"""


def outcome_of(row, plugin, passed, verdict, bitwise):
    """The column of the page that counts this run."""
    engine = plugin in table.ENGINES
    if not passed:
        return "FAILED"
    if engine and row.expect.refused:
        return "refused"
    if engine and row.expect.aside:
        return "left to PyTorch"
    if verdict.startswith(("differs", f"within {ANY.name}")):
        return "differs by design"
    return "equal" if bitwise else "order of sums"


def tolerances():
    lines = [
        "| tolerance | losses | gradients | parameters | optimizer states | why |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in (SGD, ADAPTIVE, HALF, ANY):
        floor = f", or {kind.floor:g} absolute" if kind.floor else ""
        figures = f"{kind.loss:g} | {kind.gradient:g} | {kind.parameter:g}{floor} | {kind.state:g}"
        lines.append(f"| {kind.name} | {figures} | {kind.reason} |")
    return "\n".join(lines)


def told(result, row):
    """What one run showed, in a few words."""
    if not result["passed"]:
        return "**FAILED**"
    if row.expect.tolerance is ANY and not row.expect.refused:
        return "ranks agree"  # how far they are from another run means nothing
    if result["relative"] is None or result["bitwise"] or result["verdict"].startswith("differs"):
        return result["verdict"].replace("|", "\\|")
    return f"{result['relative']:.0e}"


def result_of(by_key, row, plugin, ranks):
    """None: it was not run. A script that stays one process has one result, whatever the number of ranks."""
    return by_key.get((row.script, row.title, plugin, row.ranks(ranks)))


def cell(by_key, row, ranks):
    """What all plugins show, or each group of plugins that show the same."""
    plugins = {}
    for plugin in table.ENGINES:
        result = result_of(by_key, row, plugin, ranks)
        if result is not None:
            plugins.setdefault(told(result, row), []).append(plugin)
    if not plugins:
        return "-"
    if len(plugins) == 1 and len(next(iter(plugins.values()))) == len(table.ENGINES):
        return next(iter(plugins))
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in plugins.items())


def at(results, ranks):
    """The results with so many ranks, and of rows that stay one process."""
    return [r for r in results if r["ranks"] in (1, ranks)]


def pairs(counts):
    """The cells of a table, from counts with 2 and with 4 ranks."""
    texts = [" / ".join(map(str, pair)) for pair in counts]
    return " | ".join("" if text in ("0", "0 / 0") else text for text in texts)


def by_plugin(results):
    """One line for the plugins that show the same."""
    shown = {}
    for plugin in (*table.ENGINES, "none"):
        own = [r for r in results if r["plugin"] == plugin]
        numbers = RANKS if plugin in table.ENGINES else RANKS[:1]
        counts = [[sum(r["outcome"] == outcome for r in at(own, ranks)) for ranks in numbers] for outcome in OUTCOMES]
        expected = {(row.script, row.title, row.ranks(ranks)) for row in table.rows() for ranks in numbers if row.shown_by(plugin)}
        missing = expected - {(r["script"], r["case"], r["ranks"]) for r in own}
        counts.append([sum(number in (1, ranks) for _, _, number in missing) for ranks in numbers])
        shown.setdefault(pairs(counts), []).append(plugin)
    lines = ["| plugin | " + " | ".join([*OUTCOMES, "not run"]) + " |", "| --- |" + " --: |" * (1 + len(OUTCOMES))]
    lines += [f"| {', '.join(plugins)} | {cells} |" for cells, plugins in shown.items()]
    return "\n".join(lines) + "\n"


def count(results, outcome):
    """How many have this outcome, where all plugins that were run agree; else how many of which plugins."""
    plugins = {}
    for plugin in table.ENGINES:
        if found := [r for r in results if r["plugin"] == plugin]:
            plugins.setdefault(sum(r["outcome"] == outcome for r in found), []).append(plugin)
    if len(plugins) < 2:
        return str(next(iter(plugins), 0))
    return ", ".join(f"{number} ({', '.join(names)})" for number, names in plugins.items())


def by_script(results):
    lines = ["| script | rows | " + " | ".join(OUTCOMES) + " |", "| --- |" + " --: |" * (1 + len(OUTCOMES))]
    rows = collections.Counter(row.script for row in table.rows())
    for script in dict.fromkeys([*table.TABLE, *(r["script"] for r in results)]):
        own = [r for r in results if r["script"] == script]
        counts = [[count(at(own, ranks), outcome) for ranks in RANKS] for outcome in OUTCOMES]
        lines.append(f"| {script} | {rows[script]} | {pairs(counts)} |")
    return "\n".join(lines) + "\n"


def sort_of(message):
    """What a refusal says before its advice, the same for all numbers and plugins."""
    said = re.sub(r" \(here: [^)]*\)$", "", message.removeprefix("refused: "))
    said = re.split(r": |\. |; ", said)[0]
    return re.sub(r"(?<![\w.])\d[\d.]*(e[+-]?\d+)?", "N", said).replace("|", "\\|")


def refusals(results):
    rows = {}
    for r in results:
        if r["outcome"] == "refused":
            rows.setdefault(sort_of(r["verdict"]), set()).add((r["script"], r["case"]))
    lines = ""
    for said, found in sorted(rows.items(), key=lambda item: (-len(item[1]), item[0])):
        lines += f"| {said} | {len(found)} | {', '.join(sorted({script for script, _ in found}))} |\n"
    return lines


def sources(results):
    """Which commits' code the runs are of."""
    found = {}
    for r in results:
        found.setdefault(r.get("commit") or "unknown", collections.Counter())[r["plugin"]] += 1
    lines = [f"{commit}: {', '.join(f'{plugin} {runs}' for plugin, runs in sorted(plugins.items()))}" for commit, plugins in sorted(found.items())]
    return f"\nRuns, by the commit of Castor's code and its date (`+`: with changes that were committed later): {'; '.join(lines)}.\n"


def on_devices(results):
    """A line for each script, and for what shows the same there."""
    lines = ["| script | " + " | ".join(OUTCOMES) + " | under |", "| --- |" + " --: |" * len(OUTCOMES) + " --- |"]
    for script in dict.fromkeys(r["script"] for r in results):
        shown = {}
        for under in dict.fromkeys(r["under"] for r in results):
            own = [r for r in results if (r["script"], r["under"]) == (script, under)]
            if own:
                shown.setdefault(tuple(sum(r["outcome"] == outcome for r in own) for outcome in OUTCOMES), []).append(under)
        lines += [f"| {script} | {' | '.join(str(count or '') for count in counts)} | {', '.join(names)} |" for counts, names in shown.items()]
    return "\n".join(lines) + "\n"


def write_on_devices(path, results):
    """Writes that section alone, which is the page's last."""
    page = _read(path).partition(ON_DEVICES[:16])[0]
    with open(path, "w") as file:
        file.write(page + ON_DEVICES + on_devices(results) + sources(results))


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write_page(path, results):
    runs = {}
    for r in sorted(results, key=lambda r: not r["passed"]):  # a run that has failed once has failed
        runs[r["script"], r["case"], r["plugin"], r["ranks"]] = r
    results = list(runs.values())
    _, heading, rest = _read(path).partition(ON_DEVICES[:16])
    with open(path, "w") as file:
        file.write(PAGE + by_plugin(results) + sources(results) + BY_SCRIPT + by_script(results) + REFUSALS + refusals(results) + heading + rest)


def write_rows(path, results, root):
    """root: the folder of this project, which messages of Castor's may name, and a table must not."""
    by_key = {(r["script"], r["case"], r["plugin"], r["ranks"]): r for r in results}
    text = ROWS + tolerances() + "\n" + BY_ROW.format(engines=" and ".join([", ".join(table.ENGINES[:-1]), table.ENGINES[-1]]))
    for distributed, title in ((True, "DDP scripts, started by torchrun"), (False, "Single-process scripts, `--nproc N`")):
        text += f"\n## {title}\n\n| script | what it does | N = 2 | N = 4 | tolerance | note |\n| --- | --- | --- | --- | --- | --- |\n"
        for row in table.rows():
            if row.distributed != distributed:
                continue
            what = table.cases_in(row.script).get(row.case, "") or row.title.replace("_", " ")
            cells = [cell(by_key, row, ranks) for ranks in RANKS]
            note = "; ".join(filter(None, [row.expect.reason, row.expect.aside and f"left to PyTorch: {row.expect.aside}"]))
            text += f"| {row.name} | {what} | {cells[0]} | {cells[1]} | {row.expect.tolerance.name} | {note} |\n"
    with open(path, "w") as file:
        file.write(text.replace(os.path.join(root, ""), ""))
