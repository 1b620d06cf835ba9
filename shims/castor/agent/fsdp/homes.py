"""A wrapped model: where its parameters lie, and what PyTorch's fully_shard has of each.

The script's parameters stay the script's own objects, whole, over the node's memory; fully_shard's sharded parameters are this
rank's rows of the same memory. A module shows the script's parameter except while fully_shard has put the gathered one in its place."""
import copy
import math
import weakref

import torch
import torch.distributed as dist
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from .. import core
from ..common import tensors
from ..nodes import grouping
from . import memory

LANES = 64  # elements: a multiple of the vectors of all kernels
_homes = weakref.WeakValueDictionary()  # id(parameter): Home
models = weakref.WeakSet()


def home_of(p):
    home = _homes.get(id(p))
    return home if home is not None and home.p is p else None


class Home:
    """A parameter of a wrapped model.

    region   its values; padded, so that each rank of fully_shard has as many rows
    rows     the number of rows that fully_shard gives this rank; None: the parameter is not sharded
    part     elements [first, end) are stepped and written by this rank. Parts end at whole vectors, so that each element is computed as
             in a step of the whole
    sharded  fully_shard's FSDPParam; None: not sharded
    averaged  its gradients are: it required them when the model was wrapped, as DistributedDataParallel has it
    touched  autograd gave the script's parameter itself a gradient in the running backward
    version  of the parameter when it was gathered last
    shown    (p.grad, its version) as the last synchronized backward left it; None: p.grad is this rank's own
    """

    __slots__ = ("p", "name", "model", "shape", "dtype", "stride", "rows", "part", "padded", "region", "sharded", "averaged", "touched", "had_grad", "shown", "hooked", "version",
                 "watch", "__weakref__")

    def __init__(self, p, name, model, number, is_sharded):
        rank, world = model.group.rank, model.world
        self.p, self.name, self.model, self.shape, self.dtype = p, name, model, p.shape, p.dtype
        self.region = self.sharded = self.shown = self.watch = None
        self.stride, self.averaged, self.version = p.stride(), p.requires_grad, None
        self.touched = self.had_grad = self.hooked = False
        place, most = (rank + number) % world, -(-p.numel() // (world * LANES)) * LANES
        self.part = tuple(min(at * most, p.numel()) for at in (place, place + 1))
        self.rows, self.padded = None, p.numel()
        if is_sharded:
            most = -(-p.shape[0] // world)
            self.rows = min((rank + 1) * most, p.shape[0]) - min(rank * most, p.shape[0])
            self.padded = world * most * math.prod(p.shape[1:])

    def place(self, region):
        """The parameter's values move to the region."""
        self.region = region
        if self.model.group.rank == 0:
            region.whole().copy_(self.p.data)

    def show(self, edited):
        """The parameter shows what all ranks share. `edited`: the script has written to it."""
        if edited:
            self.region.refresh()
        if not self.region.shows(self.p.data):
            if self.p.data.shape != self.shape or self.p.dtype is not self.dtype:
                self.check()
            self.p.data.copy_(self.region.whole())  # the script has given it memory of its own

    def check(self):
        """Error: the script has given the parameter another shape or type."""
        if self.p.shape != self.shape or self.p.dtype is not self.dtype or self.p.device.type != "cpu":
            raise core.Error(f"castor: fsdp: the parameter {self.name} was wrapped as {self.dtype} of shape {tuple(self.shape)} on the CPU and is now "
                             f"{self.p.dtype} of shape {tuple(self.p.shape)} on {self.p.device}: change models before they are wrapped")

    def mine(self, whole):
        """This rank's part of a tensor of the parameter's shape, flat; a copy, if the tensor has other strides."""
        return self.flat(whole)[self.part[0]:self.part[1]]

    def flat(self, whole):
        """The elements in the order of the parameter's memory."""
        if whole.stride() != self.stride:
            whole = torch.empty_strided(self.shape, self.stride, dtype=whole.dtype).copy_(whole)
        return whole.as_strided((whole.numel(),), (1,))

    def publish(self):
        """Between two barriers: what this rank writes for all gets the values that this rank's script sees."""
        self.check()
        self.mine(self.region.whole()).copy_(self.mine(self.p.data))


class _Gather:
    """fully_shard's all-gather: copies from what this rank's script sees, which is there without the other ranks."""

    def __init__(self, homes):
        self.homes = homes

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        world, first = group.size(), 0
        out = output_tensor.view(world, -1)
        for home in self.homes:
            home.check()
            if home.sharded.sharded_param.requires_grad != home.p.requires_grad:
                home.sharded.sharded_param.requires_grad_(home.p.requires_grad)
            if home.version != home.p._version:  # graphs of the old values are stale, which autograd tells by the gathered parameter
                home.version = home.p._version
                if hasattr(home.sharded, "_unsharded_param"):
                    torch.autograd.graph.increment_version(home.sharded._unsharded_param)
            part = home.padded // world
            flat = home.p.data.reshape(-1)
            full, rest = divmod(flat.numel(), part) if part else (0, 0)
            out[:full, first:first + part].copy_(flat[:full * part].view(full, part))
            if rest:
                out[full, first:first + rest].copy_(flat[full * part:])
            first += part


def _register(home, fsdp_param):
    """In place of fsdp_param._setattr_on_modules and to_unsharded: where it would show its sharded parameter, the module shows the
    script's."""
    home.sharded = fsdp_param
    info, stock_unshard = fsdp_param._module_info, fsdp_param.to_unsharded
    slots = [(info.module._parameters, info.param_name), *zip((m._parameters for m in info.shared_modules), info.shared_param_names)]

    def set_on_modules(param):
        ours = fsdp_param.sharded_param, getattr(fsdp_param, "_unsharded_param", None), home.p
        for parameters, name in slots:  # not where the script has put another tensor (functional_call)
            if any(parameters.get(name) is one for one in ours):
                home.model.gathered |= param is not fsdp_param.sharded_param and torch.is_grad_enabled()
                parameters[name] = home.p if param is fsdp_param.sharded_param else param

    def to_unsharded():
        stock_unshard()
        if len(home.p._post_accumulate_grad_hooks or ()) > 1:
            raise core.Error(f"castor: fsdp: {home.name} has a hook of register_post_accumulate_grad_hook(), which would run before the gradients of "
                             "the ranks are averaged: use it without the plugin, or another plugin")
        if home.p._backward_hooks and not home.hooked:
            fsdp_param._unsharded_param.register_hook(lambda grad: _run_hooks(home.p, grad))
            home.hooked = True

    fsdp_param._setattr_on_modules, fsdp_param.to_unsharded = set_on_modules, to_unsharded
    fsdp_param._post_load_hook_handle.remove()
    part = home.padded // home.model.world
    rank = home.model.group.rank
    fsdp_param._sharded_param_data = home.region.shared[rank * part:(rank + 1) * part]
    local = fsdp_param._sharded_param_data.view(fsdp_param.padded_sharded_param_size)[:home.rows]
    fsdp_param.sharded_param._local_tensor = local
    set_on_modules(fsdp_param.sharded_param)


def _run_hooks(p, grad):
    for hook in list((p._backward_hooks or {}).values()):
        grad = hook(grad) if (result := hook(grad)) is None else result
    return grad


class Model:
    """A module to which fully_shard is applied. On every rank of the process group together."""

    def __init__(self, module, process_group, ignored, blocks, policy=None):
        self.group = grouping.group_of(process_group)
        self.world = self.group.world
        if self.group.across is not None:
            raise core.Error("castor: the plugin fsdp needs all ranks of a process group on one node: use gemini, or zero2, on several nodes")
        self.policy = policy or MixedPrecisionPolicy()
        self.generations = []  # of the gradients: a list of regions, one of each home
        self.expecting = False  # the last forward of the wrapper was one that synchronizes
        self.gathered = False  # a forward since the last backward and step has made a graph of gathered parameters
        for other in list(models):
            if set(map(id, other.modules())) & set(map(id, module.modules())):
                other.undo()  # the script wraps a module anew
        named = {name: p for name, p in module.named_parameters() if name not in ignored}
        kept = kept_whole(module, named, [*blocks, module])
        self.homes = [Home(p, name, self, number, name not in kept) for number, (name, p) in enumerate(named.items())]
        self.root = weakref.ref(module)
        self.refuse_overlaps()
        reached = {h for h in self.homes if tensors.is_reached(h.p)}  # what else reaches its memory goes on to see the parameter there
        where = memory.regions(self.group, [(h.p, h.dtype, h.padded) for h in self.homes], "the model's parameters")
        with torch.no_grad():
            for home, region in zip(self.homes, where):
                home.place(region)
            self.group.barrier("the model's parameters are placed")
            self._shard(module, process_group, blocks, {named[name] for name in kept} | {p for n, p in module.named_parameters() if n in ignored})
            for home in self.homes:
                if home not in reached:
                    home.p.data = home.region.view()
        for home in self.homes:
            _homes[id(home.p)] = home
            if home.p.requires_grad or not home.p.is_leaf:
                self._watch(home)
        models.add(self)

    def free_gathered(self):
        """Outside of forward and backward: no module keeps gathered parameters, whose values would be old after the next step. An
        exception in a forward, and reentrant checkpointing of a block, leave some."""
        for state in self.states:
            state._training_state = TrainingState.IDLE
            state._state_ctx.iter_forward_root = None
        for group in self.groups:
            group._training_state = TrainingState.IDLE
            group._to_sharded()

    def refuse_overlaps(self):
        """Error: two parameters have one memory, where each would have its own."""
        places = sorted((h.p.data_ptr(), h.name, h.p.data_ptr() + tensors.extent(h.p)) for h in self.homes
                        if h.p.numel() and not (h.region is not None and h.region.shows(h.p.data)))
        for (_, name, end), (first, other, _) in zip(places, places[1:]):
            if first < end:
                raise core.Error(f"castor: fsdp: the parameters {name} and {other} share memory without being one: assign the parameter "
                                 "itself to both modules, or use another plugin")

    def modules(self):
        return [] if self.root() is None else list(self.root().modules())

    @staticmethod
    def _watch(home):
        def touched(_):
            home.touched = True

        home.watch = home.p.register_post_accumulate_grad_hook(touched)

    def _shard(self, module, process_group, blocks, ignored):
        classes = {m: m.__class__ for m in (*blocks, module)}
        slots = {(id(m), name): p for m in module.modules() for name, p in m._parameters.items()}
        before = {m: set(vars(m)) for m in module.modules()}
        mesh = DeviceMesh.from_group(process_group, "cpu")
        for each in (*blocks, module):
            fully_shard(each, mesh=mesh, reshard_after_forward=True, mp_policy=self.policy, ignored_params=ignored)
        self.states = [fully_shard.state(m) for m in (*blocks, module)]
        by_parameter = {id(h.p): h for h in self.homes}
        self.groups = [s._fsdp_param_group for s in self.states if s._fsdp_param_group is not None]
        self._own_hooks = {}
        for each, state in zip((*blocks, module), self.states):
            each.__class__ = classes[each]  # the script sees its own class
            self._own_hooks[each] = state._pre_forward_hook_handle.id, state._post_forward_hook_handle.id
            vars(each)["__getstate__"] = _Stateless(each, *self._own_hooks[each])
        for group in self.groups:
            group._reset_sharded_params = True
            group._register_state_dict_hooks = lambda: None
            group.reduce_grads = False  # gradients are summed at the end of the backward (gradients.py)
            infos = [p._module_info for p in group.fsdp_params]
            homes = [by_parameter[id(slots[id(info.module), info.param_name])] for info in infos]
            for home, fsdp_param in zip(homes, group.fsdp_params):
                _register(home, fsdp_param)
            group._all_gather_comm = _Gather(homes)
        for m in module.modules():
            for name in set(vars(m)) - before[m] - {"__getstate__"}:
                del vars(m)[name]
        self.states[-1]._lazy_init()

    def undo(self):
        """The module is as it was before, with its parameters in memory of this rank's own."""
        for module, (pre, post) in self._own_hooks.items():
            module._forward_pre_hooks.pop(pre, None)
            module._forward_pre_hooks_with_kwargs.pop(pre, None)
            module._forward_hooks.pop(post, None)
            vars(module).pop("__getstate__", None)
            _module_state_mapping.pop(module, None)
        for home in self.homes:
            if home.watch is not None:
                home.watch.remove()
            _homes.pop(id(home.p), None)
            with torch.no_grad():
                home.p.data = home.p.data.clone()
                if home.p.grad is not None:
                    home.p.grad = home.p.grad.clone()
        models.discard(self)


class _Stateless:
    """`__getstate__` of a module whose copies and pickles are plain ones."""

    def __init__(self, module, pre, post):
        self.module, self.pre, self.post = weakref.ref(module), pre, post

    def __call__(self):
        module = self.module()
        own = getattr(type(module), "__getstate__", None)
        state = own(module) if own is not None and own is not getattr(object, "__getstate__", None) else vars(module)
        if not isinstance(state, dict):
            return state
        state = dict(state)
        state.pop("__getstate__", None)
        for name, hook in (("_forward_pre_hooks", self.pre), ("_forward_pre_hooks_with_kwargs", self.pre), ("_forward_hooks", self.post)):
            state[name] = copy.copy(state[name])
            state[name].pop(hook, None)
        return state


def find_blocks(module, chosen=None):
    """The modules that are sharded by themselves: those which `chosen` lists, a function of the module; None: the children of the longest
    ModuleList or Sequential whose children are of one class."""
    if chosen is not None:
        return separate(module, chosen(module))
    lists = [list(m.children()) for m in module.modules() if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential))]
    alike = [c for c in lists if len(c) > 1 and len({type(x) for x in c}) == 1 and all(any(True for _ in x.parameters()) for x in c)]
    return separate(module, list(dict.fromkeys(max(alike, key=len))) if alike else [])


def separate(module, blocks):
    """Those blocks that run by themselves, and share no parameter with the rest."""

    def uses(root):
        counts = {}
        for m in root.modules():
            for p in (p for p in m._parameters.values() if p is not None):
                counts[id(p)] = counts.get(id(p), 0) + 1
        return counts

    counts, containers = uses(module), (torch.nn.ModuleList, torch.nn.ModuleDict)
    return [b for b in blocks if not isinstance(b, containers) and all(counts[key] == number for key, number in uses(b).items())]


def kept_whole(module, named, groups):
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
