"""Models on devices under TorchFSDPPlugin: PyTorch's fully_shard as it is, over NCCL. Parameters, gradients and states are DTensors, of
which each rank's device has a part; forward passes, and whatever shows whole tensors, are collectives."""
import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ...agent import engine_start
from ...interface import ModelWrapper, OptimizerWrapper
from ...shardformer._gradients import block

_BUCKET = 64 << 20  # bytes that one message has when values are sent


class FullyShardedModel(ModelWrapper):
    """Shards `module` in place, a block at a time: a device never holds more than its parts and one whole block. All ranks get rank 0's
    values.

    Args:
        blocks: modules that are gathered by themselves, inner ones first.
        in_nodes: sharded within each node, with a replica on each, if `group` is the job's.
        reshard: blocks are freed after forward.
        offload: parts, gradients and states are in host memory.
        ignored: parameters and buffers that stay each rank's own.

    moved: {id of a parameter before: (that parameter, the one that has taken its place)}."""

    def __init__(self, module, blocks, group, device, in_nodes=False, policy=None, reshard=True, offload=False, ignored=()):
        super().__init__(module)
        self._group, self._ignored, self._synchronizes, self._sends_buffers = group, set(ignored), True, True
        root = self._root
        named = {name: p for name, p in root.named_parameters() if p not in self._ignored}
        _compare(named, group)
        whole = {named[name] for name in _kept_whole(root, named, [*blocks, root])}
        before = [(m, name, p) for m in root.modules() for name, p in m._parameters.items() if p is not None and p not in self._ignored | whole]
        mesh, done = _mesh_of(group, in_nodes), set()
        for each in (*blocks, root):
            self._enter(each, device, done)
            fully_shard(each, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy or MixedPrecisionPolicy(),
                        offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
                        ignored_params=whole | {t for t in self._ignored if isinstance(t, torch.nn.Parameter)})
            done.update(each.modules())
            for m, name, p in before:
                if m._parameters[name] is not p:
                    p.data = p.data.new_empty(0)  # what still refers to it must not keep the whole tensor
        self.moved = {id(p): (p, m._parameters[name]) for m, name, p in before}
        for p in whole:
            needs = p.requires_grad
            p.requires_grad_().register_hook(_Averaged(self))
            p.requires_grad_(needs)

    @property
    def _root(self):
        return getattr(self.module, "_orig_mod", self.module)  # torch.compile's wrapper stays around it

    def _enter(self, module, device, done):
        """The tensors of `module` that are not sharded yet move to the device, with rank 0's values."""
        sent = {}
        for m in module.modules():
            for tensors in (m._parameters, m._buffers) if m not in done else ():
                for name, t in tensors.items():
                    if isinstance(t, torch.nn.Parameter):
                        t.data = t.data.to(device)
                    elif t is not None:
                        tensors[name] = t.to(device)
                    if t in self._ignored:
                        self._ignored.add(tensors[name])
                    elif t is not None:
                        sent[id(t)] = tensors[name].detach()
        if sent:
            dist._broadcast_coalesced(self._group, list(sent.values()), _BUCKET, 0)

    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():  # buffers are rank 0's, when DistributedDataParallel has it so
            buffers = [b for b in self._root.buffers() if b not in self._ignored]
            if buffers and self._sends_buffers:
                dist._broadcast_coalesced(self._group, buffers, _BUCKET, 0)
            self._sends_buffers = self._synchronizes
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        self._synchronizes = False
        self._root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._synchronizes = True
            self._root.set_requires_gradient_sync(True)


def _compare(named, group):
    """ValueError, on every rank: the ranks' models differ."""
    mine, every = {name: f"{p.dtype} of shape {tuple(p.shape)}" for name, p in named.items()}, [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    for rank, other in enumerate(every):
        for name in [*every[0], *other]:
            if other.get(name) != every[0].get(name):
                raise ValueError(f"castor: TorchFSDPPlugin: the ranks' models differ: the parameter {name} is {every[0].get(name, 'not there')} on rank 0 "
                                 f"and {other.get(name, 'not there')} on rank {rank} of the group: build the same model on all ranks")


def _mesh_of(group, in_nodes):
    local, world = int(os.environ.get("LOCAL_WORLD_SIZE", 0)), dist.get_world_size(group)
    if in_nodes and group is dist.group.WORLD and 1 < local < world and world % local == 0:
        return init_device_mesh("cuda", (world // local, local), mesh_dim_names=("replicas", "shards"))
    return DeviceMesh.from_group(group, "cuda")


class _Averaged:
    """A hook of a parameter that fully_shard does not take: its gradient is averaged over the ranks, with what no_sync() has left."""

    def __init__(self, model):
        self.model, self.left = model, None

    def __call__(self, grad):
        left, self.left = self.left, None
        total = grad if left is None else left + grad
        if not self.model._synchronizes:
            self.left = total
            return torch.zeros_like(grad)
        total = total / dist.get_world_size(self.model._group)
        dist.all_reduce(total, group=self.model._group)
        return total


class FullyShardedOptimizer(OptimizerWrapper):
    """Steps parts; norms are those of whole gradients. `moved`: a FullyShardedModel's."""

    def __init__(self, optim, moved):
        super().__init__(optim)
        self._moved = moved
        for group in self.unwrap().param_groups:
            self._enter(group)
        state = self.unwrap().state
        for old in [p for p in state if id(p) in moved]:
            new = moved[id(old)][1]
            state[new] = {name: _part(value, new) for name, value in state.pop(old).items()}

    def _enter(self, group):
        """Its parameters are those that the model has now. PyTorch's loops over many tensors take no DTensors beside others."""
        group["params"][:] = [self._moved.get(id(p), (p, p))[1] for p in group["params"]]
        if len({isinstance(p, DTensor) for p in group["params"]}) > 1:
            engine_start.tell("TorchFSDPPlugin: fully_shard takes no scalars, and no parameters of another type than the most of their block: they "
                          "are whole on each rank, and the optimizer steps one parameter at a time")
            group.update({name: False for name in ("foreach", "fused") if name in group})

    def _check_frozen(self):
        """The gradients of parameters that are unfrozen later are averaged, too."""

    def add_param_group(self, param_group):
        result = super().add_param_group(param_group)
        self._enter(self.unwrap().param_groups[-1])
        return result

    def _gradients(self):
        return [p.grad for p in self.parameters if p.grad is not None]

    def clip_grad_by_value(self, clip_value, *args, **kwargs):
        for part in map(block, self._gradients()):
            part.clamp_(-clip_value, clip_value)

    def _total_norm(self, norm_type):
        norms = []
        for is_divided in (True, False):
            some = [g for g in self._gradients() if isinstance(g, DTensor) is is_divided]
            if some:
                norm = torch.nn.utils.get_total_norm(some, norm_type)
                norms.append(norm.full_tensor() if is_divided else norm)
        if len(norms) < 2:
            return norms[0] if norms else torch.zeros(())
        return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type)

    def _clip(self, max_norm, norm_type, error_if_nonfinite, *args, **kwargs):
        norm = self._total_norm(norm_type)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(f"castor: the norm of the gradients is {norm.item()}, so that they cannot be clipped")
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for part in map(block, self._gradients()):
            part.mul_(scale.to(part.device))
        return norm

    def get_grad_norm(self, norm_type=2.0, **kwargs):
        if self._norm is None and self._gradients():
            return float(self._total_norm(norm_type))
        return super().get_grad_norm(norm_type, **kwargs)


def _part(value, parameter):
    """Of a state of the parameter's shape, what this rank has."""
    if not isinstance(value, torch.Tensor) or not value.dim() or value.shape != parameter.shape:
        return value
    return distribute_tensor(value.to(parameter.device_mesh.device_type), parameter.device_mesh, parameter.placements, src_data_rank=None).to(parameter.device)


def find_blocks(module, chosen=None):
    """The modules that are sharded by themselves: those which `chosen` lists, a function of the module; None: the children of the longest
    ModuleList or Sequential whose children are of one class."""
    if chosen is not None:
        return _separate(module, chosen(module))
    lists = [list(m.children()) for m in module.modules() if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential))]
    alike = [c for c in lists if len(c) > 1 and len({type(x) for x in c}) == 1 and all(any(True for _ in x.parameters()) for x in c)]
    return _separate(module, list(dict.fromkeys(max(alike, key=len))) if alike else [])


def _separate(module, blocks):
    """Those blocks that run by themselves, and share no parameter with the rest."""

    def uses(root):
        counts = {}
        for m in root.modules():
            for p in (p for p in m._parameters.values() if p is not None):
                counts[id(p)] = counts.get(id(p), 0) + 1
        return counts

    counts, containers = uses(module), (torch.nn.ModuleList, torch.nn.ModuleDict)
    return [b for b in blocks if not isinstance(b, containers) and all(counts[key] == number for key, number in uses(b).items())]


def _kept_whole(module, named, groups):
    """Names of parameters that fully_shard does not take: scalars, and those of another type than the most of their group."""
    kept = {name for name, p in named.items() if p.ndim == 0 or not p.is_contiguous()}
    names, seen = {id(p): name for name, p in named.items()}, set()
    for block in groups:
        own = [names[id(p)] for p in block.parameters() if id(p) in names and id(p) not in seen and names[id(p)] not in kept]
        seen |= {id(named[name]) for name in own}
        types = {}
        for name in own:
            types[named[name].dtype] = types.get(named[name].dtype, 0) + named[name].numel()
        most = max(types, key=types.get) if types else None
        kept |= {name for name in own if named[name].dtype is not most}
    return kept
