"""Writes and reads an optimizer's checkpoint: its state dict, as PyTorch numbers the parameters."""
import os
from collections import OrderedDict

import torch

from ..agent import core
from . import _distributed, _files, _jobs, _loading, _ranks, _saving, _torch_files
from ._files import CheckpointError, INDEX, OPTIMIZER
from ._info import NAME, Info
from .index_file import CheckpointIndexFile, check_name

_NAME = OPTIMIZER[0]
# States of the size of their parameter, by the names of torch.optim.
_LIKE_PARAMETER = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum", "ax", "mu", "prev",
    "step_size", "master_param",
})
# Entries of groups that come and go with versions of PyTorch, and those of schedulers.
_ANY_GROUP = frozenset({
    "params", "param_names", "foreach", "fused", "capturable", "differentiable", "maximize", "decoupled_weight_decay", "amsgrad", "initial_lr",
    "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr", "bias_correction", "adamw_mode",
})


def _states(state):
    return (t for one in state.values() for t in _torch_files.tensors_in(one))


def _mapped(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: _mapped(v, change) for k, v in value.items()}
    return type(value)(_mapped(v, change) for v in value) if type(value) in (list, tuple) else value


def _ready(value, parted):
    def ready(t):
        if _distributed.is_distributed(t):
            t = _distributed.block(t) if parted else _distributed.whole(t)
        return _saving.alone(t.detach())

    return _mapped(value, ready)


def save_optimizer(optimizer, checkpoint, shard, gather_dtensor, prefix, size_per_shard, use_async):
    most, checkpoint = _saving.limit(size_per_shard), os.fspath(checkpoint)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    divided, parted, rank = any(map(_distributed.is_distributed, parameters)), not gather_dtensor and _ranks.world() > 1, _ranks.rank()
    if rank and not divided and not parted:
        _ranks.note(checkpoint)
        return
    saved = optimizer.state_dict()
    distributed = [t for t in _torch_files.tensors_in(saved["state"]) if _distributed.is_distributed(t)]
    if parted:
        info = Info(part=[rank, _ranks.world()], layouts={str(i): _distributed.layout(p) for i, p in enumerate(parameters) if _distributed.is_distributed(p)})
        part = _saving.make_part(checkpoint, shard)
        _write(saved, _place(part, shard), shard, prefix, most, use_async, info, True, os.path.isdir(part))
        return
    number, job, error = _ranks.note(checkpoint), None, None
    try:
        try:
            where = None if rank else _place(checkpoint, shard)
        except (OSError, ValueError, CheckpointError) as found:
            error = found
        if distributed:
            _ranks.meet(_distributed.ranks_of(distributed), "save_optimizer()", error)
        elif error is not None:
            raise error
        if rank:
            _ready(saved["state"], False)  # its collectives, in the order of rank 0's
        else:
            job = _write(saved, where, shard, prefix, most, use_async, Info(), False, os.path.isdir(checkpoint))
    finally:
        if not rank:
            _ranks.tell(checkpoint, number, job)


def _place(checkpoint, shard):
    return _files.folder(checkpoint) if shard else _files.target(checkpoint, OPTIMIZER)


def _write(saved, where, shard, prefix, most, use_async, info, parted, in_folder):
    job = _jobs.job(use_async)
    if not shard:
        if prefix:
            core.log(1, b"checkpoint: an optimizer's file has numbers and no names: prefix has no meaning in it")
        whole = {**saved, "state": _ready(saved["state"], parted)}
        if info.to_dict():
            whole[NAME] = info.to_dict()
        job.add_torch(where, whole)
        stale = _files.stale(os.path.dirname(where), _NAME, {_NAME}) if in_folder else []
    else:
        stale = _add_shards(job, saved, where, prefix, most, info, parted)
    for old in stale:
        job.remove(old)
    job.commit()
    return job


def _add_shards(job, saved, path, prefix, most, info, parted):
    state = saved["state"]
    sizes = {i: sum(map(_saving.nbytes, _torch_files.tensors_in(one))) for i, one in state.items()}
    shards = _saving.split(state, sizes.get, most)
    files, groups = _files.shard_names(path, _NAME, len(shards))
    index, info.prefix = CheckpointIndexFile(path), prefix or ""
    numbers = {file: job.add_torch(os.path.join(path, file), {i: _ready(state[i], parted) for i in ids}) for file, ids in zip(files, shards)}
    numbers[groups] = job.add_torch(os.path.join(path, groups), saved["param_groups"])
    rest = {k: v for k, v in saved.items() if k not in ("state", "param_groups")}  # of optimizers that have more, such as a loss scale
    if rest:
        info.rest = groups.replace("group", "rest")
        numbers[info.rest] = job.add_torch(os.path.join(path, info.rest), rest)
    for file, ids in zip(files, shards):
        for i in ids:
            index.append_weight_map(f"{info.prefix}{i}", file)
    index.append_meta_data("total_size", sum(sizes.values()))
    index.append_meta_data("param_groups", groups)
    _saving.finish_index(job, index, info, numbers, _NAME)
    return _files.stale(path, _NAME, {*numbers, _NAME + INDEX})


# ---- to read


def load_optimizer(optimizer, checkpoint, prefix):
    _ranks.wait_for_save(checkpoint)
    path = _files.find(_loading.own_part(os.fspath(checkpoint), OPTIMIZER), OPTIMIZER)
    saved, info = _of_index(path, prefix) if _files.is_index(path) else _of_file(path)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    _check(path, saved, info, optimizer, parameters)
    if any(map(_distributed.is_distributed, parameters)):
        ids = [i for group in saved["param_groups"] for i in group["params"]]
        for i, p in zip(ids, parameters):
            if i in saved["state"] and _distributed.is_distributed(p):
                saved["state"][i] = {k: _placed(k, v, p, info) for k, v in saved["state"][i].items()}
    optimizer.load_state_dict(saved)


def _placed(key, value, p, info):
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    if info.part:
        return _distributed.from_block(p, value)
    if tuple(value.shape) == _distributed.whole_shape(p):
        placed = _distributed.from_whole(p, value)
        return placed.clone() if placed.data_ptr() == value.data_ptr() else placed
    raise CheckpointError(f"castor: the state {key!r} has shape {tuple(value.shape)}, and its parameter, which is distributed, {_distributed.whole_shape(p)}")


def _read(path, is_checked):
    kind = _files.kind(path)
    if kind == _files.SAFETENSORS:
        raise CheckpointError(f"castor: {path} is a safetensors file and no optimizer's: give the optimizer's checkpoint")
    return _torch_files.read(path, kind, False, is_checked)


def _of_file(path):
    saved = _read(path, False)
    if not isinstance(saved, dict) or not {"state", "param_groups"} <= saved.keys():
        raise CheckpointError(f"castor: {path} is no state dict of an optimizer: it holds {_loading.shown(saved)}")
    _check_types(path, saved["state"], saved["param_groups"])
    return {k: v for k, v in saved.items() if k != NAME}, Info.of(path, saved.get(NAME))


def _of_index(path, prefix):
    index = CheckpointIndexFile.from_file(path)
    info = Info.of(path, index.metadata.get(NAME))
    groups = index.get_param_group_filename()
    if groups is None:
        raise CheckpointError(f"castor: {path} is no index of an optimizer's checkpoint: it names no param_groups")
    shards, others = index.get_checkpoint_filenames(), [groups]
    if info.rest:
        check_name(path, info.rest)
        others.append(os.path.join(index.root_path, info.rest))
    files = [*shards, *others]
    for file in files:
        _files.check_regular(file, f"{path} names it: copy the whole folder, or load another checkpoint")
    _loading.check_sums(path, index, files)
    before, named = info.prefix or prefix or "", {}
    for name, file in index.weight_map.items():
        if not name.startswith(before) or not name[len(before):].isdecimal():
            raise CheckpointError(f"castor: {path} numbers the optimizer's parameters, after {before!r}, and has {name!r}")
        named.setdefault(file, set()).add(int(name[len(before):]))
    state = OrderedDict()
    for file in shards:
        part = _read(file, bool(info.checksums))
        ids = named.get(os.path.basename(file), set())
        if not isinstance(part, dict) or part.keys() != ids:
            raise CheckpointError(f"castor: {file} has not the parameters that {path} says: they are of different saves; load another checkpoint")
        state.update(part)
    param_groups = _read(groups, bool(info.checksums))
    _check_types(path, state, param_groups)
    rest = _read(others[1], bool(info.checksums)) if info.rest else {}
    if not isinstance(rest, dict):
        raise CheckpointError(f"castor: {others[1]} is no part of an optimizer's checkpoint: it holds {_loading.shown(rest)}")
    return {**rest, "state": {i: state[i] for i in sorted(state)}, "param_groups": param_groups}, info


def _check_types(path, state, groups):
    if not isinstance(state, dict) or not isinstance(groups, list) or any(not isinstance(g, dict) or not isinstance(g.get("params"), list) for g in groups) or \
            any(type(i) is not int for g in groups for i in g["params"]):
        raise CheckpointError(f"castor: {path} is no state dict of an optimizer")


def _check(path, saved, info, optimizer, parameters):
    """What PyTorch would take without a word, or half-way find out."""
    wrong, groups, state = [], saved["param_groups"], saved["state"]
    if info.part and info.part != [_ranks.rank(), _ranks.world()]:
        wrong.append(f"it is the part of rank {info.part[0]} of {info.part[1]}, and this is rank {_ranks.rank()} of {_ranks.world()}")
    sizes = [[len(g["params"]) for g in of] for of in (groups, optimizer.param_groups)]
    if sizes[0] != sizes[1]:
        wrong.append(f"its groups have {sizes[0]} parameters, and the optimizer's {sizes[1]}")
        parameters = []
    for i, (theirs, ours) in enumerate(zip(groups, optimizer.param_groups)):
        only = [sorted(a.keys() - b.keys() - _ANY_GROUP) for a, b in ((theirs, ours), (ours, theirs))]
        if only[0] and only[1]:
            wrong.append(f"it is of another class of optimizer: group {i} has {', '.join(map(str, only[0]))}, and not {', '.join(map(str, only[1]))}")
        names = [g.get("param_names") for g in (theirs, ours)]
        if None not in names and names[0] != names[1]:
            wrong.append(f"group {i} has other parameters, or in another order: {_first_different(*names)}")
    ids = [i for g in groups for i in g["params"]]
    for i, p in zip(ids, parameters):
        layout = _distributed.layout(p)
        if info.part and info.layouts.get(str(i)) != layout:
            wrong.append(f"parameter {i} was saved as {info.layouts.get(str(i)) or 'a whole tensor'}, and is {layout or 'a whole tensor'}")
            continue
        shape = tuple(_distributed.block(p).shape) if info.part else _distributed.whole_shape(p)
        for key, value in (state.get(i) or {}).items():
            if key in _LIKE_PARAMETER and isinstance(value, torch.Tensor) and value.dim() and tuple(value.shape) != shape:
                wrong.append(f"the state {key!r} of parameter {i} has shape {tuple(value.shape)}, and the parameter {shape}")
    if wrong:
        raise CheckpointError(f"castor: {path} does not fit the optimizer ({type(optimizer).__name__}); nothing was loaded:\n    " + "\n    ".join(wrong[:8]))


def _first_different(theirs, ours):
    return next((f"{a!r} in the file, {b!r} in the optimizer" for a, b in zip(theirs, ours) if a != b), f"{len(theirs)} and {len(ours)} names")
