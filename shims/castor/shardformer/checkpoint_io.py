"""Checkpoints of hybrid-parallel models: the files that any plugin writes and reads.

Rank 0 gathers the whole state dict, tensor by tensor, and writes it; all ranks call a save, unless rank 0 has all of it (replicas without
ZeRO). A load reads the files on every rank, each of which takes its part."""
import os
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..checkpoint_io import GeneralCheckpointIO, _distributed, _loading, _ranks
from ._gradients import block
from ._module import HybridParallelModule
from ._optimizer import HybridParallelOptimizer, followed

__all__ = ["HybridParallelCheckpointIO"]


class _Held(torch.nn.Module):
    """A state dict that GeneralCheckpointIO takes for a model's."""

    def __init__(self, state, versions=None, load=None):
        super().__init__()
        self._state, self._load = OrderedDict(state), load
        if versions is not None:
            self._state._metadata = versions

    def state_dict(self):
        return self._state

    def load_state_dict(self, state, strict=True):
        return self._load(state)


class _HeldOptimizer:
    """A state dict that GeneralCheckpointIO takes for an optimizer's."""

    def __init__(self, groups, state=None, load=None):
        self.param_groups, self._state, self._load = groups, state, load

    def state_dict(self):
        return self._state

    def load_state_dict(self, state):
        return self._load(state)


def _shown(shape, dtype):
    """A tensor of a shape that holds nothing."""
    return torch.zeros((), dtype=dtype).expand(shape)


class HybridParallelCheckpointIO(GeneralCheckpointIO):
    """Args: groups: the job's ParallelGroups."""

    def __init__(self, groups):
        super().__init__()
        self._groups = groups
        self._writes_of = groups.data_ranks[0] == dist.get_rank() and (groups.tensor_group is None or dist.get_rank(groups.tensor_group) == 0)

    # ---- values

    def _floats(self, model):
        """The state dict of what this rank has, with float values in the place of 16-bit ones; a collective of replicas with ZeRO. So nothing that
        was not trained is rounded in a checkpoint."""
        state, optimizer = model.module.state_dict(), model._optimizer
        for name, held in model.floats.items():
            if name in state:
                state[name] = followed(held, state[name])
        if optimizer is None or model._dtype is None:
            return state
        named = {}
        for name, p in model.module.named_parameters(remove_duplicate=False):
            named.setdefault(p, []).append(name)
        for p in optimizer._working:
            master = optimizer._masters.get(p)
            value = torch.empty_like(block(p.detach()), dtype=torch.float32) if master is None else optimizer.float_of(p)
            if optimizer._zero and value.dtype is torch.float32 and p.dtype is not torch.float32:
                dist.broadcast(value, self._groups.data_ranks[optimizer._owner[p]], group=self._groups.data_group)
            if isinstance(p, DTensor):
                value = DTensor.from_local(value, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
            for name in named.get(p, ()):
                if name in state:
                    state[name] = value
        return state

    def _stage_of(self, model, name):
        """The stage whose value counts: of what all have, the last one, whose forward reaches everything."""
        if model.staged is None:
            return 0
        staged = model.staged
        return staged.owner.get(name, staged.buffers_of.get(name, self._groups.stages - 1))

    def _to_first(self, value, source, shape, dtype):
        """On rank 0 the value of rank `source`; None elsewhere."""
        rank = dist.get_rank()
        if source != 0 and rank == source:
            dist.send(value.detach().to(dtype).contiguous(), 0)
        elif source != 0 and rank == 0:
            value = torch.empty(shape, dtype=dtype, device=self._device())
            dist.recv(value, source)
        return value.detach().to(dtype) if rank == 0 else None

    @staticmethod
    def _device():
        return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")

    @torch.no_grad()
    def gathered(self, model):
        """On rank 0 the whole state dict; a collective of all ranks."""
        layout, own, found, first = model.layout, self._floats(model), OrderedDict(), {}
        for name, said in layout["state"].items():
            stage = self._stage_of(model, name)
            source = self._groups.stage_ranks[stage]
            if name in layout["ties"]:
                if dist.get_rank() == 0:
                    found[name] = found[layout["ties"][name]]
                continue
            mine = stage == self._groups.stage
            value = _distributed.whole(own[name]) if mine and isinstance(own[name], torch.Tensor) else own.get(name)
            if not self._writes_of or not (mine or dist.get_rank() == 0):
                continue
            if said is None:  # extra state
                if source != 0:
                    held = [value]
                    if dist.get_rank() == 0:
                        dist.recv_object_list(held, source)
                    else:
                        dist.send_object_list(held, 0)
                    value = held[0]
            else:
                value = self._to_first(value, source, *said)
            if dist.get_rank() == 0:
                found[name] = value
        return found

    def _alone(self, optimizer):
        """Whether rank 0 has everything itself, so that it may save without the others."""
        return self._groups.stages == 1 and self._groups.tensor_group is None and (optimizer is None or not optimizer._zero)

    def _meet(self, what):
        _ranks.meet(list(range(dist.get_world_size())), what)

    @staticmethod
    def _is_of_parts(checkpoint):
        """Each rank has saved its own (gather_dtensor=False)."""
        return _loading.own_part(os.fspath(checkpoint)) != os.fspath(checkpoint)

    # ---- models

    def _to_save(self, model, gather_dtensor):
        if not isinstance(model, HybridParallelModule):
            return model
        if not gather_dtensor or self._alone(model._optimizer):
            state = self._floats(model)
            return _Held(state, getattr(state, "_metadata", None))
        self._meet("save_model()")
        return _Held(self.gathered(model), model.layout["versions"])

    def save_sharded_model(self, model, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_safetensors=False, use_async=False):
        super().save_sharded_model(self._to_save(model, gather_dtensor), checkpoint, gather_dtensor, prefix, size_per_shard, use_safetensors, use_async)

    def save_unsharded_model(self, model, checkpoint, gather_dtensor=True, use_safetensors=False, use_async=False, prefix=None):
        super().save_unsharded_model(self._to_save(model, gather_dtensor), checkpoint, gather_dtensor, use_safetensors, use_async, prefix)

    def load_sharded_model(self, model, index_file_path, strict=True):
        if not isinstance(model, HybridParallelModule):
            return super().load_sharded_model(model, index_file_path, strict)
        layout, own, whole = model.layout, model.module.state_dict(), OrderedDict()
        if self._is_of_parts(index_file_path):
            layout = {"state": dict.fromkeys(own), "versions": getattr(own, "_metadata", None), "ties": {}}
        for name, said in layout["state"].items():
            first = whole.get(layout["ties"].get(name))
            whole[name] = own[name] if name in own else first if first is not None else None if said is None else _shown(*said)
        held = _Held(whole, layout["versions"], lambda state: self._load(model, state))
        super().load_sharded_model(held, index_file_path, strict)

    load_unsharded_model = load_sharded_model

    @staticmethod
    @torch.no_grad()
    def _load(model, state):
        parameters = dict(model.module.named_parameters(remove_duplicate=False))
        masters = {} if model._optimizer is None else model._optimizer._masters
        for name, target in model.module.state_dict().items():
            if name not in state:
                continue
            if not isinstance(target, torch.Tensor):
                model.module.get_submodule(name.rpartition(".")[0]).set_extra_state(state[name])
                continue
            value = block(state[name])
            block(target).copy_(value)
            if name in model.floats:
                block(model.floats[name]).copy_(value)
            master = masters.get(parameters.get(name))
            if master is not None and block(master).dtype is not target.dtype:
                block(master.detach()).copy_(value)

    # ---- optimizers

    @torch.no_grad()
    def _own_states(self, optimizer):
        """[(the parameter's number, {its states, whole})] of what this rank is to give; a collective of tensor-parallel ranks."""
        found, number = [], -1
        for names in optimizer.layout["groups"]:
            for name in names:
                number += 1
                p = optimizer.named.get(name)
                master = None if p is None else optimizer._masters.get(p)
                state = None if master is None else optimizer.optim.state.get(master)
                if not state:
                    continue
                whole = {}
                for key, value in state.items():
                    divided = isinstance(p, DTensor) and isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.dim() and \
                        value.shape == block(p).shape
                    if divided:
                        value = DTensor.from_local(value, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
                    whole[key] = _distributed.whole(value) if isinstance(value, torch.Tensor) else value
                counts = optimizer._owner[p] == optimizer._replica and (self._groups.tensor_group is None or dist.get_rank(self._groups.tensor_group) == 0)
                if counts and not (id(p) in optimizer._common and self._groups.stage):
                    found.append((number, whole))
        return found

    @torch.no_grad()
    def _gathered_states(self, optimizer):
        """On rank 0 the whole optimizer's state dict; a collective of all ranks."""
        own, every = self._own_states(optimizer), [None] * dist.get_world_size()
        if self._alone(optimizer):
            return self._state_of(optimizer, dict(own))
        said = [(number, key, (tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else None, None if isinstance(v, torch.Tensor) else v)
                for number, whole in own for key, v in whole.items()]
        dist.all_gather_object(every, said)
        if dist.get_rank():
            for _, whole in own:
                for value in whole.values():
                    if isinstance(value, torch.Tensor):
                        dist.send(value.detach().to(self._device()).contiguous(), 0)
            return None
        state = dict(own)
        for source, of in enumerate(every[1:], 1):
            for number, key, tensor, value in of:
                if tensor is not None:
                    value = torch.empty(tensor[0], dtype=tensor[1], device=self._device())
                    dist.recv(value, source)
                state.setdefault(number, {})[key] = value
        return self._state_of(optimizer, state)

    def _state_of(self, optimizer, state):
        return {"state": {number: state[number] for number in sorted(state)}, "param_groups": self._groups_of(optimizer), **optimizer.scale_state()}

    @staticmethod
    def _groups_of(optimizer, parameters=None):
        """The groups of the whole optimizer, with numbers, or with `parameters` in their order."""
        made, number = [], 0
        for group, names in zip(optimizer.optim.param_groups, optimizer.layout["groups"]):
            of = range(number, number + len(names))
            number += len(names)
            made.append({**{name: value for name, value in group.items() if name != "params"},
                         "params": list(of) if parameters is None else [parameters[i] for i in of]})
        return made

    def _optimizer_to_save(self, optimizer, gather_dtensor):
        if not isinstance(optimizer, HybridParallelOptimizer) or not gather_dtensor:
            return optimizer
        if not self._alone(optimizer):
            self._meet("save_optimizer()")
        return _HeldOptimizer(self._groups_of(optimizer, self._shapes(optimizer)), self._gathered_states(optimizer))

    @staticmethod
    def _shapes(optimizer):
        return [_shown(*optimizer.layout["parameters"][name]) for names in optimizer.layout["groups"] for name in names]

    def save_sharded_optimizer(self, optimizer, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_async=False):
        super().save_sharded_optimizer(self._optimizer_to_save(optimizer, gather_dtensor), checkpoint, gather_dtensor, prefix, size_per_shard, use_async)

    def save_unsharded_optimizer(self, optimizer, checkpoint, gather_dtensor=True, use_async=False):
        super().save_unsharded_optimizer(self._optimizer_to_save(optimizer, gather_dtensor), checkpoint, gather_dtensor, use_async)

    def load_sharded_optimizer(self, optimizer, index_file_path, prefix=None):
        if isinstance(optimizer, HybridParallelOptimizer) and not self._is_of_parts(index_file_path):
            whole = optimizer
            optimizer = _HeldOptimizer(self._groups_of(whole, self._shapes(whole)), load=lambda state: self._load_states(whole, state))
        super().load_sharded_optimizer(optimizer, index_file_path, prefix)

    def load_unsharded_optimizer(self, optimizer, checkpoint):
        self.load_sharded_optimizer(optimizer, checkpoint)

    @staticmethod
    @torch.no_grad()
    def _load_states(optimizer, saved):
        ids = [i for group in saved["param_groups"] for i in group["params"]]
        names = [name for of in optimizer.layout["groups"] for name in of]
        local = optimizer.optim.state_dict()
        numbers = {}  # a master: its number in `local`
        for group, packed in zip(optimizer.optim.param_groups, local["param_groups"]):
            numbers.update(zip(group["params"], packed["params"]))
        local["state"] = {}
        for i, name in zip(ids, names):
            p = optimizer.named.get(name)
            master = None if p is None else optimizer._masters.get(p)
            if i not in saved["state"] or master is None:
                continue
            shape = optimizer.layout["parameters"][name][0]
            own = {}
            for key, value in saved["state"][i].items():
                if isinstance(value, torch.Tensor) and value.dim() and isinstance(p, DTensor) and tuple(value.shape) == shape:
                    value = _distributed.from_whole(p, value)
                    value = value if isinstance(master, DTensor) else block(value)
                own[key] = value.clone() if isinstance(value, torch.Tensor) else value
            local["state"][numbers[master]] = own
        for packed, group in zip(local["param_groups"], saved["param_groups"]):
            packed.update({name: value for name, value in group.items() if name not in ("params", "param_names")})
        optimizer.optim.load_state_dict(local)
        optimizer.load_scale(saved)
