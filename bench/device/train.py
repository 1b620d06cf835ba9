"""A plain GPT on one CUDA device, for run.py: train.py LAYERS HIDDEN OPTIMIZER MICRO_STEPS STEPS [--evaluate] [--autocast]

Beside training it prints, as JSON, what the simulation counted on the device's link and what Castor counted in slots at the end of each
step, when its matrices were used and how long the device had waited for events of other streams until then, and which of its model data lay
on the host. One more step counts what operators other than products of matrices touch in homes on the host. --evaluate: passes forward only, nothing is written. --autocast: in bfloat16.
"""
import argparse
import ctypes
import json
import time

import torch
import torch.utils._python_dispatch
from torch import nn
from torch.nn import functional as F

from castor.agent import core
from castor.agent.device import homes
from gpt import GPT, LENGTH, VOCABULARY

SLOTS = "region_bytes", "uses", "hits", "prefetched", "in_time", "home_reads", "copies", "copied_bytes", "stale"


def simulated(name, *arguments):
    function = getattr(ctypes.CDLL("libcastor-sim.so"), name)
    function.restype = ctypes.c_ulonglong
    return function(*arguments)


def link_bytes():
    torch.cuda.synchronize()
    return simulated("sim_link_bytes", 0, 0), simulated("sim_link_bytes", 0, 1)


def note_uses(model, steps):
    """Adds to the last of `steps` (parameter, seconds, seconds that the device had waited) for each use of a matrix by a product. The
    simulation with numbers computes when the host comes to it, so the times are the device's."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            def note(*_, name=name):
                steps[-1].append((f"{name}.weight", time.perf_counter(), simulated("sim_waited_ns", 0) / 1e9))

            module.register_forward_pre_hook(note)
            module.register_full_backward_pre_hook(note)


class Touched(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes of homes on the host that operators read and write there: all but copies, which the link counts, and matrices of products, which
    are operands. An embedding reads the rows that come out."""

    def __init__(self):
        super().__init__()
        self.bytes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view and name not in ("copy_", "detach", "resize_", "set_", "record_stream", "empty_like"):
            given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor) and t.is_cuda and t.numel()]
            if name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv"):
                given = [t for t in given if t.dim() == 1]
            size = sum(t.nbytes for t in {t.data_ptr(): t for t, there in zip(given, on_host(given)) if there}.values())
            if size and name == "embedding":
                size = result.nbytes
            if size:
                self.bytes[name] = self.bytes.get(name, 0) + size
        return result


def slots():
    found = homes.statistics(0)
    return {name: getattr(found, name) for name in SLOTS}


def on_host(tensors):
    """For each whether its home is there."""
    return [tier == core.HOME_HOST for tier in homes.tiers(tensors)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", type=int)
    parser.add_argument("hidden", type=int)
    parser.add_argument("optimizer", choices=("momentum", "adamw"))
    parser.add_argument("micro_steps", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(args.layers, args.hidden).to("cuda")
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.randint(0, VOCABULARY, (64, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    link, counted, losses, seconds, before, moments = [link_bytes()], [slots()], [], [], [], []
    note_uses(model, moments)

    def loss_of(number):
        ids = data[number % 32 * 2 :][:2].to("cuda")
        with torch.autocast("cuda", torch.bfloat16, args.autocast):
            logits = model(ids[:, :-1]).float()
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))

    def train(step):
        def moment(name):
            torch.cuda.synchronize()
            moments[-1].append((name, time.perf_counter(), simulated("sim_waited_ns", 0) / 1e9))

        moments.append([])
        moment("begin")
        optimizer.zero_grad()
        for micro in range(args.micro_steps):
            with torch.set_grad_enabled(not args.evaluate):
                loss = loss_of(step * args.micro_steps + micro)
            if not args.evaluate:
                (loss / args.micro_steps).backward()
        moment("end")
        before.append(link_bytes())
        if not args.evaluate:
            optimizer.step()
        return loss

    for step in range(args.steps):
        begin = time.perf_counter()
        loss = train(step)
        link.append(link_bytes())
        counted.append(slots())
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    with Touched() as touched:
        train(args.steps)
    rows = []
    named = list(model.named_parameters())
    states = [[s for s in optimizer.state[p].values() if isinstance(s, torch.Tensor) and s.dim()] for _, p in named]
    hosts = iter(on_host([t for (_, p), s in zip(named, states) for t in (p, *([p.grad] if p.grad is not None else []), *s)]))
    for (name, p), of in zip(named, states):
        row = {"name": name, "bytes": p.nbytes, "dimensions": p.dim(), "param": next(hosts)}
        row["grad"] = next(hosts) if p.grad is not None else False
        row["states"] = [next(hosts) for _ in of]
        rows.append(row)
    print(json.dumps({"link": link, "slots": counted, "losses": losses, "seconds": seconds, "parameters": rows,
                      "link_before_step": before, "moments": moments, "touched": touched.bytes}))


main()
