"""Writes docs/semantics.md from the results of a full run."""

import rows as table

HEAD = """# Unmodified scripts under Castor

Made by `tests/semantics/run.py --full --markdown docs/semantics.md`; do not edit.

Every script of `tests/scripts` runs twice: with plain PyTorch (DDP scripts under torchrun; single-process scripts in one
process) and under `castor run --plugin gemini` with N ranks. What each rank sees at each step is compared: printed text,
losses, gradients, parameters, optimizer states, buffers, and the files that the script wrote, with names, sizes and
contents. *bitwise* means that every byte is equal. Otherwise the cell gives the largest difference of a tensor's element,
relative to the tensor's largest one, and the row's tolerance:

"""


def tolerances():
    lines = [
        "| tolerance | losses | gradients | parameters | optimizer states | why |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in (table.SGD, table.ADAPTIVE, table.HALF, table.ANY):
        floor = f", or {kind.floor:g} absolute" if kind.floor else ""
        figures = f"{kind.loss:g} | {kind.gradient:g} | {kind.parameter:g}{floor} | {kind.state:g}"
        lines.append(f"| {kind.name} | {figures} | {kind.reason} |")
    return "\n".join(lines)


def cell(result):
    if result is None:
        return ""
    if not result["passed"]:
        return "**FAILED**"
    if result["relative"] is None or result["bitwise"] or result["verdict"].startswith("differs"):
        return result["verdict"].replace("|", "\\|")
    return f"{result['relative']:.0e}"


def write(path, results):
    by_key = {(r["script"], r["case"], r["plugin"], r["ranks"]): r for r in results}
    text = HEAD + tolerances() + "\n"
    for distributed, title in ((True, "DDP scripts, started by torchrun"), (False, "Single-process scripts, `--nproc N`")):
        text += f"\n## {title}\n\n| script | what it does | N = 2 | N = 4 | tolerance | note |\n| --- | --- | --- | --- | --- | --- |\n"
        for row in table.rows():
            if row.distributed != distributed:
                continue
            what = table.cases_in(row.script).get(row.case, "") or row.title.replace("_", " ")
            cells = [cell(by_key.get((row.script, row.title, "gemini", ranks))) for ranks in (2, 4)]
            note = row.expect.reason or (f"left to PyTorch: {row.expect.aside}" if row.expect.aside else "")
            text += f"| {row.name} | {what} | {cells[0]} | {cells[1]} | {row.expect.tolerance.name} | {note} |\n"
    untouched = [r for r in results if r["plugin"] == "none"]
    if untouched:
        good = sum(r["passed"] for r in untouched)
        text += f"\nWith the plugin `none`, {good} of {len(untouched)} rows are bitwise equal to plain PyTorch.\n"
    with open(path, "w") as file:
        file.write(text)
