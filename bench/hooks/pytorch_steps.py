"""Steps of 2000 launches each, on a simulated device: prints what each took, as JSON."""
import ctypes
import json
import sys
import time

import torch

LAUNCHES = 2000

launch_count = ctypes.CDLL("libcastor-sim.so").sim_launch_count
launch_count.restype = ctypes.c_uint64
steps = int(sys.argv[1])
x = torch.ones(64, device="cuda")


def step():
    for _ in range(LAUNCHES):
        x.add_(1)
    torch.cuda.synchronize()


for _ in range(3):
    step()
before, wall, cpu = launch_count(), [], []
for _ in range(steps):
    begin, begin_cpu = time.perf_counter_ns(), time.thread_time_ns()
    step()
    cpu.append(time.thread_time_ns() - begin_cpu)
    wall.append(time.perf_counter_ns() - begin)
launched = launch_count() - before
if launched != LAUNCHES * steps:
    sys.exit(f"{launched} launches in {steps} steps: {LAUNCHES} a step were meant")
print(json.dumps({"step_ns": wall, "step_cpu_ns": cpu}))
