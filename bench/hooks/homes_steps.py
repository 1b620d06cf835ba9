"""Steps of many launches by what their arguments point to, in turn, on a simulated device: prints what each took, and how many launches and
products it made, as JSON. Nothing in them depends on Castor's agent: no autograd, no optimizer.

The static placement puts all model data on the host. The last kind is a training step of a residual network, bound by its launches:
forward, backward, clipping and a fused AdamW, whose products copy the weights into slots again in each step; the one before it has the same
launches, without the products and what makes copies for them. The others are the worst that a launch can be, one after another: `x.add_(1)`, where x lies nowhere in homes, in
one that no product reads (a gradient's), in one where a parameter was never copied (a norm's), and in one where it was (a product's weight);
and one operation on many parameters in one launch. Without Castor there are no homes, and the launches are the same. While a step is
enqueued the device is held, so that its work is in nobody's way.
"""
import ctypes
import gc
import json
import os
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/sim"))
import inside  # noqa: E402

SIZE, INNER, BLOCKS, ROWS = 512, 640, 16, 1
aten = torch.ops.aten
steps = int(sys.argv[1])
clock = ctypes.CDLL(sys.argv[2])
clock_ns, clock_count = (ctypes.c_uint64.in_dll(clock, name) for name in ("launch_clock_ns", "launch_clock_count"))
core = None
if "homes" in sys.argv[3:]:
    from castor.agent import core
    from castor.agent.device import homes


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(SIZE), torch.nn.Linear(SIZE, INNER), torch.nn.Linear(INNER, SIZE)


torch.manual_seed(0)
model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS))).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for p in model.parameters():
    p.grad = torch.zeros_like(p)
optimizer.step()
model.requires_grad_(False)
params = list(model.parameters())
grads = [p.grad for p in params]
states = [optimizer.state[p] for p in params]
means, squares, counts = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
inputs, rates = torch.ones(ROWS, SIZE, device="cuda"), torch.ones((), device="cuda")
small = [p for p in params if p.dim() == 1]  # three of each block: as many as fit into one launch
plain = torch.ones(SIZE, device="cuda")
# PyTorch makes all of its streams with the first one, which Castor's optimizer steps use, and the simulation looks at each of them in a launch.
torch.cuda.Stream()


wide, narrow = torch.ones(ROWS, INNER, device="cuda"), torch.ones(ROWS, SIZE, device="cuda")
products = True  # whether the step makes them


def product(function, *operands, instead, **out):
    return function(*operands, **out) if products else instead


def forward(block, x, kept):
    h, mean, rstd = aten.native_layer_norm(x, (SIZE,), block.norm.weight, block.norm.bias, 1e-5)
    up = product(F.linear, h, block.up.weight, block.up.bias, instead=wide)
    act = F.gelu(up)
    mask = torch.ones_like(act).mul_(0.9)
    dropped = act.mul(mask).div_(0.9)
    kept.append((x, h, mean, rstd, up, mask, dropped))
    return product(F.linear, dropped, block.down.weight, block.down.bias, instead=narrow).add_(x)


def backward(block, g, kept):
    x, h, mean, rstd, up, mask, dropped = kept.pop()
    product(torch.mm, g.t(), dropped, instead=None, out=block.down.weight.grad)
    torch.sum(g, 0, out=block.down.bias.grad)
    inner = aten.gelu_backward(product(torch.mm, g, block.down.weight, instead=wide).mul_(mask).div_(0.9), up)
    product(torch.mm, inner.t(), h, instead=None, out=block.up.weight.grad)
    torch.sum(inner, 0, out=block.up.bias.grad)
    through, weight, bias = aten.native_layer_norm_backward(
        product(torch.mm, inner, block.up.weight, instead=narrow), x, (SIZE,), mean, rstd, block.norm.weight, block.norm.bias, (True, True, True)
    )
    block.norm.weight.grad.copy_(weight)
    block.norm.bias.grad.copy_(bias)
    return through.add_(g)


def training_step():
    x, kept = inputs, []
    for block in model:
        x = forward(block, x, kept)
    g = x.sub(1).mul_(2 / x.numel())
    for block in reversed(model):
        g = backward(block, g, kept)
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    torch._foreach_mul_(grads, (1 / (norm + 1e-6)).clamp_(max=1))
    torch._foreach_add_(counts, 1)
    torch._fused_adamw_(
        params, grads, means, squares, [], counts, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False
    )
    if core and products:
        core.device_step_end()


def launches_of_training_step():
    global products
    products = False
    training_step()
    products = True


def adding(x):
    def step():
        for _ in range(2000):
            x.add_(1)

    return step


def adding_each(several):
    def step():
        for _ in range(200):
            torch._foreach_add_(several, 1)

    return step


weight, matrices = model[0].up.weight, [p for p in params if p.dim() == 2]
KINDS = {
    "no home": adding(plain),
    "a gradient's home": adding(model[0].up.weight.grad[0]),
    "a parameter's home": adding(model[0].norm.weight),
    "a parameter's home, once in a slot": adding(weight[0]),
    "48 parameters in one launch": adding_each(small),
    "96 addresses, once in slots": adding_each([m[row] for m in matrices for row in range(3)]),
    "the launches of a training step": launches_of_training_step,
    "a training step": training_step,
}


def timed(step):
    """ns of the clock, of this thread's processor time, and in launches, in which the step is enqueued; the device begins after that."""
    gate = inside.Gate(torch.cuda.current_stream())
    clock_ns.value = clock_count.value = 0
    begin, begin_cpu = time.perf_counter_ns(), time.thread_time_ns()
    step()
    took = time.perf_counter_ns() - begin, time.thread_time_ns() - begin_cpu, clock_ns.value
    gate.open()
    torch.cuda.synchronize()
    return took


def counted(step):
    torch.cuda.synchronize()  # what was enqueued before is no part of it
    before = inside.engine.sim_launch_count()
    timed(step)
    return inside.engine.sim_launch_count() - before


training_step()
launches = {kind: counted(step) for kind, step in KINDS.items()}
launches["a training step"] += 6 * BLOCKS  # the products: the simulation counts its kernels alone
if core:
    tiers = homes.tiers([*params, *grads, *means, *squares])
    now = homes.statistics(0)
    if set(tiers) != {core.HOME_HOST} or now.copies == 0:
        sys.exit(f"the homes are not as they should be: {set(tiers)}, {now.copies} copies into slots")

gc.freeze()
gc.disable()
wall, cpu, inside_launches = ({kind: [] for kind in KINDS} for _ in range(3))
clocked = {}
for _ in range(steps):
    for kind, step in KINDS.items():
        for times, ns in zip((wall, cpu, inside_launches), timed(step)):
            times[kind].append(ns)
        clocked[kind] = clock_count.value
json.dump({"step_ns": wall, "step_cpu_ns": cpu, "in_launches_ns": inside_launches, "launches": launches, "clocked": clocked}, sys.stdout)
