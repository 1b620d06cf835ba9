"""The table against the symbols it names, and the worked example of docs/hooks.md."""
import os
import re
import shutil
import subprocess

from preload import FOLDER, PreloadTest

ROOT = os.path.dirname(os.path.dirname(FOLDER))
TABLES = [os.path.join(ROOT, "interpose", "hooks", "table", name) for name in ("gloo.def", "gloo_work.def", "gloo_data.def", "c10d_nccl.def", "c10d_nccl2.def", "c10d_nccl_end.def")]
ROW = re.compile(r'^HOOK\((GLOO|GLOO_WORK|GLOO_DATA|C10D_NCCL|C10D_NCCL_END), (?:OBSERVE|REPLACE), (\w+), (\w+), "([^"]+)",\s+"(\w+)",\s+\(([^)]*)\), \(([^)]*)\)', re.M)


def top_level(parameters):
    """The parameters of a demangled signature."""
    depth, found, current = 0, [], ""
    for character in parameters:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            found.append(current.strip())
            current = ""
        else:
            current += character
    return found + [current.strip()] if current.strip() else found


class TableTest(PreloadTest):
    def test_parameters_are_those_of_the_symbols(self):
        rows = [row for table in TABLES for row in ROW.findall(open(table).read())]
        self.assertGreaterEqual(len(rows), 80)
        symbols = "\n".join(row[4] for row in rows)
        demangled = subprocess.run(["c++filt"], input=symbols, capture_output=True, text=True, check=True).stdout
        for (layer, result, id, name, symbol, parameters, arguments), signature in zip(rows, demangled.splitlines()):
            with self.subTest(id=id):
                function, rest = signature.split("(", 1)
                self.assertEqual(function, name)
                real = top_level(rest.rsplit(")", 1)[0])
                names = [p.split()[-1].lstrip("*") for p in parameters.split(",")]
                self.assertEqual(names, [a.strip() for a in arguments.split(",")])
                hidden = (["slot"] if result == "hook_work" else []) + ([] if "execute" in name or re.fullmatch(r"gloo::\w+", name) else ["self"])
                self.assertEqual(len(names), len(hidden) + len(real), signature)
                for ours, theirs in zip(parameters.split(",")[len(hidden):], real):
                    self.assertEqual("*" in ours, "&" in theirs or "intrusive_ptr" in theirs, f"{ours} for {theirs}")

    def test_the_worked_example_compiles(self):
        text = open(os.path.join(ROOT, "docs", "hooks.md")).read()
        (example,) = re.findall(r"```c\n(.*?)```", text, re.S)
        for folder in ("interpose", "shims"):
            shutil.copytree(os.path.join(ROOT, folder), os.path.join(self.folder, folder))
        table = os.path.join(self.folder, "interpose", "hooks", "table", "gloo.def")
        with open(table, "a") as file:
            file.write(example)
        flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fexceptions"]
        for folder, name in (("gloo", "gloo"), ("table", "hook_table")):
            source = os.path.join(self.folder, "interpose", "hooks", folder, name + ".c")
            self.run_program(
                os.environ.get("CC", "cc"), *flags, "-I", self.folder, "-I", self.folder + "/interpose", "-c", source, "-o", name + ".o",
                preload=(),
            )
        symbols = subprocess.run(["nm", self.folder + "/gloo.o"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(symbols, r" T _ZN4c10d16ProcessGroupGloo13allreduce_sumE")
