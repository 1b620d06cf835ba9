"""Writes docs/semantics.md from the results of a full run."""

import os

import rows as table
from expect import ADAPTIVE, ANY, HALF, SGD

RANKS = (2, 4)

HEAD = """# Unmodified scripts under Castor

Made by `tests/semantics/run.py --full --markdown docs/semantics.md`; do not edit.

Every script of `tests/scripts` runs twice: with plain PyTorch (DDP scripts under torchrun, single-process scripts in one
process) and under `castor run --plugin P` with N ranks, for each plugin P. The comparison covers what each rank sees at each step:
printed text, losses, gradients, parameters, optimizer states, buffers, and the files that the script wrote, with names,
sizes and contents. *bitwise* means that every byte is equal. Otherwise the cell gives the largest difference of a
tensor's element, relative to the tensor's largest element; the tolerance of the row bounds it:

"""

BY_SCRIPT = """
## Scripts and plugins

How many of a script's rows gave the results of the tables below. The other rows were not run (`-`: none was run), or **FAILED**.

"""

SOURCES = """
The commit of the code that the rows were run with (`+`: with changes that were committed later):

| plugin | N | rows | Castor's code |
| --- | --: | --: | --- |
"""

BY_ROW = """
A cell holds for {engines}, which are presets of one engine, or only for the plugins that it names; the others were not run. `-`: none
was run.
"""


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


def overview(by_key):
    columns = [(plugin, ranks) for plugin in table.ENGINES for ranks in RANKS] + [("none", RANKS[0])]
    lines = ["| script | " + " | ".join(f"{plugin}, N = {ranks}" for plugin, ranks in columns) + " |"]
    lines.append("| --- |" + " --: |" * len(columns))
    every = table.rows()
    for script in table.TABLE:
        cells = []
        for plugin, ranks in columns:
            rows = [row for row in every if row.script == script and row.shown_by(plugin)]
            found = [result for row in rows if (result := result_of(by_key, row, plugin, ranks))]
            good = sum(result["passed"] for result in found)
            bad = f", **{len(found) - good} FAILED**" if good < len(found) else ""
            cells.append(f"{good} of {len(rows)}{bad}" if found else "-")
        lines.append(f"| {script} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def sources(results):
    """Which commits' code the runs are of."""
    found = {}
    for r in results:
        key = r["plugin"], r["ranks"]
        found.setdefault(key, {}).setdefault(r.get("commit") or "unknown", []).append(r)
    text = SOURCES
    for (plugin, ranks), commits in sorted(found.items()):
        for commit, runs in sorted(commits.items()):
            text += f"| {plugin} | {ranks} | {len(runs)} | {commit} |\n"
    return text


def write(path, results, root):
    """root: the folder of this project, which messages of Castor's may name, and a table must not."""
    by_key = {(r["script"], r["case"], r["plugin"], r["ranks"]): r for r in results}
    text = HEAD + tolerances() + "\n" + BY_SCRIPT + overview(by_key) + sources(results)
    text += BY_ROW.format(engines=" and ".join([", ".join(table.ENGINES[:-1]), table.ENGINES[-1]]))
    for distributed, title in ((True, "DDP scripts, started by torchrun"), (False, "Single-process scripts, `--nproc N`")):
        text += f"\n## {title}\n\n| script | what it does | N = 2 | N = 4 | tolerance | note |\n| --- | --- | --- | --- | --- | --- |\n"
        for row in table.rows():
            if row.distributed != distributed:
                continue
            what = table.cases_in(row.script).get(row.case, "") or row.title.replace("_", " ")
            cells = [cell(by_key, row, ranks) for ranks in RANKS]
            note = row.expect.reason or (f"left to PyTorch: {row.expect.aside}" if row.expect.aside else "")
            text += f"| {row.name} | {what} | {cells[0]} | {cells[1]} | {row.expect.tolerance.name} | {note} |\n"
    untouched = [r for r in results if r["plugin"] == "none"]
    if untouched:
        good = sum(r["passed"] for r in untouched)
        text += f"\nWith the plugin `none`, {good} of {len(untouched)} rows are bitwise equal to plain PyTorch.\n"
    with open(path, "w") as file:
        file.write(text.replace(os.path.join(root, ""), ""))
