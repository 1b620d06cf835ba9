"""The examples of docs/launchers.md that need packages of PyPI: Ray Train and a Jupyter kernel, as they stand on the page."""
import json
import os
import re
import shutil
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs", "launchers.md")
SECONDS = 300
STEPS = 8

# Starts the kernel that the folder castor-kernel describes, and runs cells in it.
KERNEL = f"""
import os
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

manager = KernelManager(kernel_name="castor-kernel", kernel_spec_manager=KernelSpecManager(kernel_dirs=[os.getcwd()]))
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout={SECONDS})

def show(message):
    if message["msg_type"] == "stream":
        print(message["content"]["text"], end="")

def run(cell):
    reply = client.execute_interactive(cell, timeout={SECONDS}, output_hook=show)
    assert reply["content"]["status"] == "ok", reply["content"]

run('import os, torch; print("CASTOR_JOB" in os.environ)')
run('''
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({STEPS}):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
''')
run('import castor.report; print(*(rank["optimizer_steps"] for rank in castor.report.read(os.environ["CASTOR_LOG_DIR"])["ranks"]))')
client.stop_channels()
manager.shutdown_kernel()
"""


class Example:
    def __init__(self, args, python, name):
        self.castor, self.python = args.castor, python
        self.folder = os.path.join(args.build, "foreign", name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        with open(PAGE) as file:
            self.codes = re.findall(r"```python\n(.*?)```\n", file.read(), re.S)

    def code(self, word):
        found, = (code for code in self.codes if word in code)
        return found

    def run(self, code, folder, castor):
        """What a program prints, with that command castor in its PATH."""
        os.makedirs(folder, exist_ok=True)
        path = os.path.dirname(castor) + os.pathsep + os.environ["PATH"]
        own = {"PATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "HOME": self.folder, "CASTOR_TIMEOUT": "60"}
        with tempfile.TemporaryDirectory(prefix="castor-", ignore_cleanup_errors=True) as temporary:  # Ray's sockets need a short path
            variables = {**os.environ, **own, "RAY_TMPDIR": temporary}
            done = subprocess.run([self.python, "-c", code], cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            raise AssertionError(f"status {done.returncode}: {done.stderr[-1500:]}")
        return done.stdout

    def reports(self, folder):
        told = [subprocess.run([self.castor, "report", os.path.join(folder, name), "--format", "json"], capture_output=True, text=True, check=True).stdout
                for name in os.listdir(folder)]
        return [rank for report in map(json.loads, told) for rank in report["ranks"]]


def ray_train(args, python):
    """Two workers: the loss of the same program without Castor, and both took their steps in one store."""
    example = Example(args, python, "ray")
    nothing = os.path.join(example.folder, "bin", "castor")
    os.makedirs(os.path.dirname(nothing))
    with open(nothing, "w") as file:
        file.write("#!/bin/sh\necho '{}'\n")
    os.chmod(nothing, 0o755)
    losses = []
    for name, castor in (("plain", nothing), ("castor", example.castor)):
        folder = os.path.join(example.folder, name)
        example.run(example.code("ray.init"), folder, castor)
        with open(os.path.join(folder, "losses.txt")) as file:
            losses.append(file.read())
    assert losses[0] == losses[1], f"losses {losses}"
    ranks = [rank for rank in example.reports(os.path.join(example.folder, "castor", "ray-logs")) if rank["optimizer_steps"]]
    assert sorted((rank["rank"], rank["optimizer_steps"]) for rank in ranks) == [(0, STEPS), (1, STEPS)], ranks
    assert min(rank["peak_bytes"]["param"] for rank in ranks) < 8192, "each rank has a copy of its own"
    return f"the plain run's loss, to the bit: {losses[0].strip()}"


def jupyter_kernel(args, python):
    """The kernel begins a job at its import of PyTorch."""
    example = Example(args, python, "kernel")
    example.run(example.code("kernel.json"), example.folder, example.castor)
    printed = example.run(KERNEL, example.folder, example.castor)
    assert printed == f"True\n{STEPS}\n", printed
    return "its report has the steps of its cells"


EXAMPLES = {"Ray Train": ray_train, "Jupyter kernel": jupyter_kernel}


def run(args, python):
    """Whether each example that args.names selects passed."""
    passed = []
    for name, example in EXAMPLES.items():
        if not any(word in name for word in args.names):
            continue
        try:
            text = example(args, python)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            text = f"{type(error).__name__}: {error}"
            passed.append(False)
        else:
            passed.append(True)
        print(f"{'ok    ' if passed[-1] else 'FAILED'} {name:24} docs/launchers.md      {text}", flush=True)
    return passed
