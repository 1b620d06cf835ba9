"""What the time of the script's thread goes to: a script that sleeps in each of its phases. Sleeps are lower bounds; what the machine
adds has no upper one. All together are the life of the process."""
import os
import re
import time
import unittest

import trace_files
from preload import FOLDER, PreloadTest

with open(os.path.join(FOLDER, os.pardir, os.pardir, "interpose", "trace", "phase.def")) as _file:
    PHASES = re.findall(r'^PHASE\(\w+, "(\w+)"', _file.read(), re.MULTILINE)
with open(os.path.join(FOLDER, os.pardir, os.pardir, "interpose", "trace", "gauge.def")) as _file:
    GAUGES = re.findall(r'^GAUGE\(\w+, "(\w+)"', _file.read(), re.MULTILINE)
SCRIPT = """
import atexit, time
atexit.register(time.sleep, 0.2)  # runs after what was registered later
import torch
from torch.utils.data import DataLoader, Dataset
import sleeps                            # import 0.3

class Samples(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((4,), index / 8)

class Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.04)
        return gradient * 2

class Slow:
    def __getstate__(self):
        time.sleep(0.15)
        return {}

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.register_step_pre_hook(lambda *args: time.sleep(0.06))
time.sleep(0.25)                         # start-up
for batch in DataLoader(Samples(), batch_size=2):
    time.sleep(0.05)                     # forward, 4 times
    Sleeping.apply(model(batch)).sum().backward()
    time.sleep(0.03)                     # rest
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    for batch in DataLoader(Samples(), batch_size=4):
        time.sleep(0.07)                 # evaluation, twice
        model(batch)
time.sleep(0.09)                         # rest
torch.save(Slow(), "slow.pt")
try:
    import no_such_module
except ImportError as error:
    import traceback
    print(len(traceback.extract_tb(error.__traceback__)), flush=True)  # the script's frame alone
"""
SLEEPS = {"import": 0.3, "start_up": 0.25, "data": 16 * 0.02, "forward": 4 * 0.05, "backward": 4 * 0.04, "optimizer": 4 * 0.06,
          "evaluation": 2 * 0.07, "saving": 0.15, "rest": 4 * 0.03 + 0.09, "exit": 0.2}


class PhasesTest(PreloadTest):
    def phases(self, **environment):
        with open(os.path.join(self.folder, "sleeps.py"), "w") as file:
            file.write("import time; time.sleep(0.3)")
        begin = time.monotonic()
        out, errors = self.python(SCRIPT, **environment)
        lasted = time.monotonic() - begin
        self.assertEqual((out, errors), ("1\n", ""))
        (process,) = self.counters()
        found = {name: process.file.counters[trace_files.PHASE_SLOT + number].ns / 1e9 for number, name in enumerate(PHASES)}
        self.assertEqual(PHASES[process.file.gauges[GAUGES.index("phase")].last], "exit")
        for name, seconds in SLEEPS.items():
            self.assertGreaterEqual(found[name], seconds, f"{name}: {found}")
        # From the start of the library to its end; the rest of the program's life is the linker's and the kernel's.
        began = process.file.gauges[GAUGES.index("phase_began")].last / 1e9 - sum(found.values())
        self.assertGreaterEqual(began, begin)
        self.assertLessEqual(sum(found.values()), lasted)
        self.assertLessEqual(began, process.file.start_monotonic_ns / 1e9)

    def test_a_script_that_is_observed(self):
        self.phases()

    def test_a_script_with_an_engine(self):
        self.phases(CASTOR_PLUGIN="gemini", CASTOR_ARENA=1, CASTOR_LOG_LEVEL="error")


if __name__ == "__main__":
    unittest.main()
