"""The table of the suite: every script and case, and how equal it must be to plain PyTorch.

Scripts that end in `_ddp.py` are started by torchrun; the others are one process, which Castor starts `--nproc` times.
At N = 2 a DDP script must be bitwise equal: Castor and gloo scale by 1/N and then add two numbers. At N = 4 gloo's order
of summation differs from Castor's (rank order), and a single-process script adds its whole batch in one order that no
split has; there the kind of the row gives the tolerance (expect.py). The rows are in rows_ddp.py, rows_single.py,
rows_loader.py and rows_placed.py.
"""

import os
import sys
from dataclasses import dataclass, field

import rows_ddp
import rows_loader
import rows_divided
import rows_placed
import rows_single
from declared import SCRIPTS, cases_in, path_of  # noqa: F401 - others take path_of from here
from expect import ANY, EXACT, Expect

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from start_ranks import ENGINES  # noqa: E402, F401 - others take them from here

HELPERS = ("accelerate_parts.py", "rearranged.py", "model.py", "parts.py", "record.py", "steps.py", "text.py", "trainer_parts.py")  # what the scripts import of each other

TABLE = {**rows_placed.placed({**rows_ddp.TABLE, **rows_loader.split_by_loaders(rows_single.TABLE)}), **rows_divided.TABLE}


@dataclass(frozen=True)
class Row:
    script: str
    title: str  # the case's name, and after a colon or instead of it a variant's
    expect: Expect = field(compare=False)

    @property
    def case(self):
        """The name that the script knows; empty where it has no cases."""
        name = self.title.partition(":")[0]
        return name if name in cases_in(self.script) else ""

    @property
    def distributed(self):
        return self.script.endswith("_ddp.py")

    @property
    def stages(self):
        """Who runs the script, one after the other in the same folder, and with which arguments."""
        return self.expect.stages or (("castor", ()),)

    @property
    def name(self):
        return f"{self.script} {self.title}" if self.title else self.script

    def ranks(self, ranks):
        """With how many it runs, where so many are asked for."""
        return 1 if self.expect.one_rank else ranks

    def shown_by(self, plugin, first="gemini"):
        """False: it has a plugin of its own, and was shown with the first; or under the plugin none there is nothing of it to see, but arguments of Castor's runs
        or what Castor says."""
        return plugin in (first, "plain") if self.expect.plugin else plugin != "none" or not (self.expect.under or self.expect.says)

    @property
    def alone(self):
        """Rows that need a process of their own: whole scripts, and cases that Castor may end or leave to PyTorch."""
        e = self.expect
        return bool(not self.case or e.refused or e.says_not or e.aside or e.stages or e.arguments)

    @property
    def sort(self):
        """What the row shows beside that a script is the same; empty: nothing."""
        e = self.expect
        sorts = {"refused": e.refused, "aside": e.aside, "stages": e.stages, "arguments": e.arguments, "says_not": e.says_not,
                 "placed": set(rows_placed.ON_DISK) <= set(e.options), "loader": rows_loader.OPTION in e.options, "options": e.options}
        return next((name for name, given in sorts.items() if given), "")

    def tolerance(self, ranks, plugin):
        if not self.expect.repeatable:
            return ANY
        if plugin in ("none", "plain") or self.expect.one_rank or (self.distributed and ranks == 2 and self.expect.exact_at_2 and plugin != "hybrid"):
            return EXACT
        return self.expect.tolerance


def rows():
    return [Row(script, case, expect) for script, cases in TABLE.items() for case, expect in cases.items()]


def disagreements():
    """Scripts and cases without a row, and rows without a case."""
    found = []
    for script in sorted(name for name in os.listdir(SCRIPTS) if name.endswith(".py") and name not in HELPERS):
        if script not in TABLE:
            found.append(f"{script} has no row in rows.py")
            continue
        declared = set(cases_in(script)) - {""}
        listed = {title.partition(":")[0] for title in TABLE[script]}
        if declared:
            found += [f"{script}: the case {case} has no row" for case in sorted(declared - listed)]
            found += [f"{script}: the row {case} has no case" for case in sorted(listed - declared - {""})]
    found += [f"{script} does not exist" for script in TABLE if not os.path.exists(os.path.join(SCRIPTS, script))]
    return found
