"""castor.nn.optimizer, castor.utils and castor.logging on each rank, or (one rank) in plain PyTorch: see test_nn.py for what must be found."""
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import nn_optimizers
from castor import utils
from castor.logging import get_dist_logger
from found import end, found

warnings.simplefilter("error")
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
# How it trains, by words: nothing, for the short length; `large`: a model that does not fit a budget; `alike`: equal samples on all ranks;
# `masters`: as CASTOR_PRECISION=bf16 does, written out; `twice`: two backwards for a step; `scaled`: after
# steps that find the loss scale, which all models of a process share; `boosted`: by a Booster; `few`: two optimizers.
words = sys.argv[1:]
names = [name for name in nn_optimizers.SETTINGS if "few" not in words or name in ("HybridAdam", "Lamb")]


def of_one_rank(model, step):
    for turn in range(2 if "twice" in words else 1):
        number = 0 if "alike" in words else rank + 4 * turn
        model(nn_optimizers.samples(step, number), step % 2 == 0).backward()


def of_both(model, step):
    """Halves are exact: the bits of the mean over two ranks."""
    for turn in range(2 if "twice" in words else 1):
        for number in range(2):
            (model(nn_optimizers.samples(step, number + 4 * turn), step % 2 == 0) / 2).backward()


def seen_modes():
    """The modes of the steps from here on: [(optimizer's class, mode)]."""
    from castor.agent import core
    from castor.agent.optim import figures

    modes, stepped = [], figures.stepped

    def noted(optimizer, begin, mode):
        modes.append((type(optimizer).__name__, "owner" if mode == core.MODE_OWNER else mode))
        return stepped(optimizer, begin, mode)

    figures.stepped = noted
    return modes


def seen_kernels():
    from castor.agent import core

    counts, kernel = [0], core.optimizer_adam

    def counted(*arguments):
        counts[0] += 1
        return kernel(*arguments)

    core.optimizer_adam = counted
    return counts


by_kernels, kernels = [], [0]
if world > 1:
    dist.init_process_group("gloo")
if world > 1 and "boosted" not in words:
    modes, kernels = seen_modes(), seen_kernels()
backward = of_both if world == 1 and "alike" not in words else of_one_rank


def wrap(model):
    return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True) if world > 1 else model


def boosted():
    """Starts the engine by a plugin object, when each optimizer class has had an instance that stepped."""
    import castor.booster

    for make, _ in nn_optimizers.SETTINGS.values():
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        make([p]).step()
    booster = castor.booster.Booster(plugin=castor.booster.plugin.GeminiPlugin(precision="fp32"))
    return lambda model, optimizer: booster.boost(model, optimizer)[:2]


boost = None
if "boosted" in words:
    boost = boosted()
    modes, kernels = seen_modes(), seen_kernels()


def train(make, again=None):
    return nn_optimizers.train(make, backward, wrap, again=again, size=(256, 8) if "large" in words else (96, 0),
                                masters="masters" in words, boost=boost)


if "scaled" in words:
    train(nn_optimizers.SETTINGS["FusedSGD"][0])
for name in names:
    make, stock = nn_optimizers.SETTINGS[name]
    before = kernels[0]
    found(f"trained {name}", train(make))
    if kernels[0] > before:
        by_kernels.append(name)
    if stock is not None:
        found(f"trained {name}, of torch", train(stock))
hybrid, stock = nn_optimizers.SETTINGS["HybridAdam"]
if boost is None:
    found("there and back", train(hybrid, ((stock, 2), (hybrid, 2))))
    found("stayed", train(hybrid, ((hybrid, 2), (hybrid, 2))))
if world > 1:
    found("modes", sorted(set(modes)))
    found("by kernels", by_kernels)
if world > 1 and not words:
    import castor
    from castor import tensor
    from castor.engine import _parallel_groups
    from castor.engine.gradient_handler import TiedGradientHandler

    # ---- castor.utils.clip_grad_norm_fp32: blocks and stages are parts of one norm
    def gradients(*parameters):
        blocks = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad.as_subclass(torch.Tensor) for p in parameters]
        return [[round(value, 4) for value in block.tolist()] for block in blocks]

    # Both ranks have (3, 4); of each divided one they have the halves (0, 6) and (8, 0).
    half = torch.tensor([[0.0, 6.0], [8.0, 0.0]][rank])
    mesh = init_device_mesh("cpu", (world,))
    in_mesh = torch.nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
    in_mesh.grad = DTensor.from_local(half.clone(), mesh, [Shard(0)])
    spec = tensor.ColoTensorSpec(tensor.ProcessGroup(tp_degree=world), tensor.ShardSpec([0], [world]))
    in_group = tensor.ColoParameter(torch.zeros(2), spec=spec)
    (in_group * tensor.ColoTensor.from_torch_tensor(half.clone(), spec)).sum().backward()
    whole = torch.nn.Parameter(torch.zeros(2))
    whole.grad = torch.tensor([3.0, 4.0])
    three = [whole, in_mesh, in_group]
    found("blocks", [round(utils.clip_grad_norm_fp32(three, 7.5), 4), gradients(*three), round(utils.clip_grad_norm_fp32(three, 100.0, "inf"), 4)])

    # Stage 0 has (3, 0) and the shared (0, 4), stage 1 the shared one too, and 12.
    castor.launch_from_torch(config={"parallel": {"pipeline": world}}, verbose=False)
    shared = torch.nn.Linear(2, 1, bias=False)
    part = castor.pipeline.partition([torch.nn.Sequential(shared, torch.nn.Linear(1, 2, bias=False)), torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), shared)], world)[rank]
    TiedGradientHandler(part, _parallel_groups.groups())
    for p in part.parameters():
        p.grad = torch.tensor([[0.0, 4.0]]) if p is shared.weight else torch.tensor([[3.0], [0.0]]) if rank == 0 else torch.tensor([[12.0]])
    norm, largest = utils.clip_grad_norm_fp32(part.parameters(), 6.5), utils.clip_grad_norm_fp32(list(part.parameters()), 50.0, float("inf"))
    found("stages", [norm, round(largest, 4), sorted(round(p.grad.sum().item(), 4) for p in part.parameters())])

    logger = get_dist_logger()
    logger.info("said on all")
    logger.warning("said on one", ranks=[1])
    logger.debug("said on none")
    logger.log_to_file(os.path.join(os.environ["EXPLICIT_TEST_FOUND"], "said"), suffix="train")
    logger.error("kept", ranks=[1])
    path = os.path.join(os.environ["EXPLICIT_TEST_FOUND"], "said", f"rank_{rank}_train.log")
    with open(path) as file:
        found("log", file.read())
    utils.print_rank_0("printed once")
if world > 1:
    end()
elif not words:
    import nn_numbers  # noqa: F401 - what needs no other rank
