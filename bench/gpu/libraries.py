"""One library at work under the trace, in PyTorch: kernels that ran beside launches that the trace has of them.

    libraries.py PART RESULT.json      PART: elementwise, cublas, cudnn, nccl, step

The kernels are counted by CUPTI (torch.profiler), or on simulated devices by the simulation; the launches by the counters
of this process, which live in a mapped file. `step` only times a training step that is bound by its launches.
"""
import ctypes
import json
import os
import re
import statistics
import sys
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "hooks"))
import trace_files  # noqa: E402

CALLS = 20
SIMULATED = "SIM_DEVICES" in os.environ
LAUNCH = re.compile(r"_*(cuda|cu)Launch(Cooperative)?Kernel")


def counters():
    for process in trace_files.read_counters(os.environ["CASTOR_LOG_DIR"]):
        if process.pid == os.getpid() and not process.forked:
            return process
    sys.exit("this process has no counters")


def counts(process):
    return {name: counter.count for name, counter in process.calls.items()}


def simulated_kernels():
    count = ctypes.CDLL(None).sim_launch_count
    count.restype = ctypes.c_uint64
    return count()


def kernels_of(work):
    """Runs `work` and returns how many kernels the device has run for it."""
    if SIMULATED:
        before = simulated_kernels()
        work()
        torch.cuda.synchronize()
        return simulated_kernels() - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    of_device = (event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in of_device)


def repeated(function):
    def work():
        for _ in range(CALLS):
            function()

    return work


def elementwise():
    values = torch.ones(1 << 16, device="cuda")
    return repeated(lambda: values.mul_(1.0))


def cublas():
    left, right = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    out = torch.empty(256, 256, device="cuda")
    return repeated(lambda: torch.mm(left, right, out=out))


def cudnn():
    image, weight = torch.randn(8, 16, 32, 32, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda")
    return repeated(lambda: torch.nn.functional.conv2d(image, weight, padding=1))


def nccl():
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
    values = torch.ones(1 << 16, device="cuda")
    return repeated(lambda: dist.all_reduce(values, op=dist.ReduceOp.SUM))


def step():
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    data = torch.randn(16, 64, device="cuda")

    def one():
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
        torch.cuda.synchronize()

    return one


def timed(one):
    for _ in range(5):
        one()
    times = []
    for _ in range(30):
        begin = time.perf_counter()
        one()
        times.append((time.perf_counter() - begin) * 1000)
    return {"step_ms": round(statistics.median(times), 4)}


def counted(work):
    work()  # what a library does once
    torch.cuda.synchronize()
    before = counts(counters())
    kernels = kernels_of(work)
    after = counts(counters())
    calls = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    launches = sum(count for name, count in calls.items() if LAUNCH.match(name))
    return {"work_calls": CALLS, "kernels": kernels, "launches_in_the_trace": launches, "calls": calls}


def main():
    part, path = sys.argv[1:]
    work = globals()[part]()
    result = timed(work) if part == "step" else counted(work)
    with open(path, "w") as file:
        json.dump(result, file)


main()
