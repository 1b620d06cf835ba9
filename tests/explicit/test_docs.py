"""The examples of the pages about the explicit API do what the pages say."""
import json
import os
import re
import unittest

import jobs

DOCS = os.path.join(os.path.dirname(os.path.dirname(jobs.FOLDER)), "docs")
OUTSIDE = ("explicit.md", "nn.md", "tensors.md", "pipelines.md", "checkpoints.md")  # need no castor run, but castor.lazy
PAGES = ("explicit.md", "nn.md", "tensors.md", "pipelines.md", "booster.md", "checkpoints.md", "hybrid.md")


# All examples in one process. What they print, by page and number.
RUN_ALL = """
import contextlib, io, json, sys
printed = []
for name, number, code in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(compile(code, f"{name}, example {number}", "exec"), {"__name__": "__main__"})
    printed.append([name, number, text.getvalue()])
print(json.dumps(printed))
"""


# The cells of a notebook, as IPython runs them, and what they print. An IFrame needs its file.
RUN_CELLS = """
import os, subprocess, sys, types
display = sys.modules["IPython.display"] = types.ModuleType("IPython.display")
display.IFrame = lambda file, width, height: open(file).close()
names = {"__name__": "__main__"}
for cell in sys.argv[1:]:
    if cell.startswith("%%writefile "):
        name, text = cell.removeprefix("%%writefile ").split("\\n", 1)
        with open(name, "w") as file:
            file.write(text)
        continue
    lines = [f"run({line[1:]!r})" if line.startswith("!") else line for line in cell.splitlines()]
    names["run"] = lambda command: print(end=subprocess.check_output(command.format(sys=sys), shell=True, text=True), flush=True)
    exec("\\n".join(lines), names)
print(sorted(os.listdir()))
"""


def examples_of(name):
    """[(code, output)] of a page."""
    with open(os.path.join(DOCS, name)) as file:
        return re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```\n", file.read(), re.S)


class Docs(unittest.TestCase):
    def test_examples_without_castor_run(self):
        examples = [(name, number, *example) for name in OUTSIDE for number, example in enumerate(examples_of(name)) if "castor.lazy" not in example[0]]
        # Options are castor run's; also bad ones say nothing to this process.
        environment = {"CASTOR_PLUGIN": "gemini", "CASTOR_TIMEOUT": "soon", "CASTOR_NOTHING": "1", "CASTOR_LOG_DIR": "log", "CASTOR_JOB": "1"}
        done = jobs.start(["-c", RUN_ALL, json.dumps([row[:3] for row in examples])], jobs.ALONE, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(json.loads(done.stdout), [[name, number, output] for name, number, _, output in examples])
        self.assertGreater(len(examples), len(OUTSIDE))

    def test_examples_print_what_stands_under_them(self):
        for name in PAGES:
            examples = examples_of(name)
            with open(os.path.join(DOCS, name)) as file:
                self.assertEqual(len(examples), file.read().count("```python"), f"{name}: an example without its output")
            self.assertGreater(len(examples), 0)
            for number, (code, output) in enumerate(examples):
                with self.subTest(page=name, number=number):
                    done = jobs.start(["-c", code], jobs.NONE if name in ("booster.md", "hybrid.md") else jobs.GEMINI)
                    self.assertEqual((done.returncode, done.stdout), (0, output), done.stderr)

    def test_notebook(self):
        with open(os.path.join(DOCS, "notebooks.md")) as file:
            page = file.read()
        cells = re.findall(r"```python\n(.*?)```\n", page, re.S)
        path = os.path.dirname(jobs.castor()) + os.pathsep + os.environ["PATH"]
        done = jobs.start(["-c", RUN_CELLS, *cells], jobs.ALONE, PATH=path)
        printed = "".join(re.findall(r"```text\n(.*?)```\n", page, re.S)) + "['castor-kernel', 'first-run', 'first-run.html', 'train.py']\n"
        self.assertEqual((done.returncode, done.stdout), (0, printed), done.stderr)


if __name__ == "__main__":
    unittest.main()
