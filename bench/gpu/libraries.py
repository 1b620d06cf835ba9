"""One library at work under the trace, in PyTorch: kernels that ran beside launches that the trace has of them.

    libraries.py PART RESULT.json      PART: elementwise, cublas, cublaslt, batched, cudnn, attention, optimizer, training, nccl, step

The kernels are counted by CUPTI (torch.profiler), or on simulated devices by the simulation; the launches by the counters
of this process, which live in a mapped file. `step` only times a training step that is bound by its launches.
"""
import collections
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
    """Runs `work` and returns how many kernels the device has run for it, by name."""
    if SIMULATED:
        before = simulated_kernels()
        work()
        torch.cuda.synchronize()
        return {"a simulated kernel": simulated_kernels() - before}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    of_device = (event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return collections.Counter(event.name[:120] for event in of_device if not event.name.startswith(("Memcpy", "Memset")))


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


def cublaslt():
    """Linear layers with a bias, which PyTorch gives to cuBLASLt, in 16 bits, forward and backward."""
    layer = torch.nn.Linear(256, 256, device="cuda", dtype=torch.bfloat16)
    data = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return repeated(lambda: layer(data).backward(data.detach()))


def batched():
    left, right = torch.randn(8, 128, 128, device="cuda"), torch.randn(8, 128, 128, device="cuda")
    out = torch.empty(8, 128, 128, device="cuda")
    return repeated(lambda: torch.bmm(left, right, out=out))


def cudnn():
    image = torch.randn(8, 16, 32, 32, device="cuda", requires_grad=True)
    layer = torch.nn.Conv2d(16, 16, 3, padding=1, device="cuda")
    return repeated(lambda: layer(image).sum().backward())


def attention():
    """Scaled dot products by the implementation that PyTorch chooses: its own flash kernels, or cuDNN's."""
    size, dtype = (2, 4, 128, 64), torch.bfloat16
    query, key, value = (torch.randn(*size, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    return repeated(lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward())


def optimizer():
    parameters = [torch.nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(8)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    fused, foreach = torch.optim.AdamW(parameters, fused=True), torch.optim.AdamW(parameters, foreach=True)

    def one():
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        fused.step()
        foreach.step()

    return repeated(one)


def training():
    """Whole steps of a GPT: every library that training uses, on PyTorch's threads."""
    sys.path.insert(0, os.path.join(HERE, "..", "gpt_cpu"))
    from model import GPT, SIZES, batches

    torch.manual_seed(0)
    model = GPT(**SIZES["tiny"]).cuda()
    steps = torch.optim.AdamW(model.parameters(), fused=True)
    inputs, targets = (tensor.cuda() for tensor in next(batches("tiny", 4, 0)))

    def one():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()

    return repeated(one)


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
    if not SIMULATED:
        kernels_of(work)  # what the profiler does once
    before = counts(counters())
    names = kernels_of(work)
    after = counts(counters())
    calls = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    launches = sum(count for name, count in calls.items() if LAUNCH.match(name))
    return {"work_calls": CALLS, "kernels": sum(names.values()), "launches_in_the_trace": launches, "calls": calls,
            "kernel_names": dict(names)}


def main():
    part, path = sys.argv[1:]
    work = globals()[part]()
    result = timed(work) if part == "step" else counted(work)
    with open(path, "w") as file:
        json.dump(result, file)


main()
