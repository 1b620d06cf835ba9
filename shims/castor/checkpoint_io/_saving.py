"""Writes a model's checkpoint."""
import os
import secrets
from collections import OrderedDict

import torch

from ..agent import core
from . import _distributed, _files, _jobs, _ranks, _safetensors
from ._files import CheckpointError, INDEX
from ._info import IN_VERSIONS, NAME, Info
from .index_file import CheckpointIndexFile

_TYPE_NAMES = {dtype: name for name, dtype in _safetensors.TYPES.items()}


def limit(size_per_shard):
    """Bytes of `size_per_shard` MiB."""
    if isinstance(size_per_shard, bool) or not isinstance(size_per_shard, (int, float)) or not size_per_shard > 0:
        raise ValueError(f"castor: size_per_shard is a size in MiB above 0, and not {size_per_shard!r}")
    return max(1, int(size_per_shard * (1 << 20)))


def identity(t):
    """Tensors of equal identity are one tensor under two names (tied weights). None: it shares nothing that counts."""
    if not isinstance(t, torch.Tensor) or t.layout != torch.strided or t.is_meta or not t.numel():
        return None
    t = _distributed.block(t)
    return t.device, t.data_ptr(), t.dtype, tuple(t.shape), tuple(t.stride())


def ties(state):
    """{name: the first name of the same tensor}."""
    first, found = {}, {}
    for name, value in state.items():
        key = identity(value)
        if key is not None and first.setdefault(key, name) != name:
            found[name] = first[key]
    return found


def split(names, size_of, most):
    """Lists of names, in order, of at most that many bytes together, or of one tensor."""
    shards, filled = [[]], 0
    for name in names:
        size = size_of(name)
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def nbytes(value):
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


class Plan:
    """What one rank writes: names to tensors, gathered or in parts, when they are asked for."""

    is_lazy = False  # the tensors of `state` are there for their shapes alone

    def __init__(self, module, prefix, gather_dtensor, use_safetensors):
        self.prefix, self.use_safetensors = prefix or "", use_safetensors
        self.state = module.state_dict()
        self.versions = getattr(self.state, "_metadata", {})
        self.distributed = {n: t for n, t in self.state.items() if _distributed.is_distributed(t)}
        self.gathers = gather_dtensor and bool(self.distributed)
        self.parted = not gather_dtensor and _ranks.world() > 1
        self.ties = ties(self.state)
        self.gathered = 0  # lists of names of which values() was asked
        self._check()

    def _check(self):
        for name, value in self.state.items():
            if not self.is_lazy and isinstance(value, torch.Tensor) and value.is_meta:
                raise CheckpointError(f"castor: {name} is on the meta device and has no values to save")
            if not self.use_safetensors:
                continue
            if not isinstance(value, torch.Tensor):
                raise CheckpointError(f"castor: {name} is extra state of type {type(value).__name__}, and safetensors holds tensors only: "
                                      "save with use_safetensors=False")
            if value.dtype not in _TYPE_NAMES or value.layout != torch.strided or value.is_quantized:
                raise CheckpointError(f"castor: {name} is a {value.layout} tensor of {value.dtype}, which safetensors cannot hold: "
                                      "save with use_safetensors=False")

    def size(self, name):
        value = self.state[name]
        if not self.gathers or name not in self.distributed:
            return nbytes(_distributed.block(value) if _distributed.is_distributed(value) else value)
        count = value.element_size()
        for n in _distributed.whole_shape(value):
            count *= n
        return count

    def shards(self, most):
        names = [n for n in self.state if n not in self.ties]
        shards = split(names, self.size, most)
        if not self.use_safetensors:  # tied tensors stand together, so that they are tied in the file
            where = {name: shard for shard in shards for name in shard}
            for name, first in self.ties.items():
                where[first].append(name)
        return shards

    def values(self, names):
        """The shard's tensors under the names of the file."""
        made = OrderedDict()
        self.gathered += 1
        for name in names:
            first = self.ties.get(name)
            if first is not None:
                made[self.prefix + name] = made[self.prefix + first]
                continue
            value = self.state[name]
            if _distributed.is_distributed(value):
                value = _distributed.whole(value) if self.gathers else _distributed.block(value)
            if isinstance(value, torch.Tensor):
                value = alone(value.detach()) if not self.use_safetensors else value.detach()
            made[self.prefix + name] = value
        return made

    def torch_object(self, names):
        values = self.values(names)
        values._metadata = OrderedDict(((self.prefix + n + ".")[:-1] if n else self.prefix[:-1], v) for n, v in self.versions.items())
        values._metadata[IN_VERSIONS] = self.info(versions=False).to_dict()
        return values

    def info(self, versions=True):
        layouts = {n: _distributed.layout(t) for n, t in self.distributed.items()} if self.parted else None
        part = [_ranks.rank(), _ranks.world()] if self.parted else None
        other = {n: v["version"] for n, v in self.versions.items() if v.get("version", 1) != 1} if versions else None
        return Info(self.prefix, other, None, part, layouts)

    def tied_names(self):
        """As safetensors' own save_model and Hugging Face write them."""
        return {self.prefix + n: self.prefix + first for n, first in self.ties.items()} if self.use_safetensors else {}


def alone(value):
    """torch.save writes a tensor's whole storage: of a view of a larger one, a copy."""
    if value.layout == torch.strided and not value.is_quantized and value.untyped_storage().nbytes() != nbytes(value):
        return value.clone()
    return value


def save_model(module, checkpoint, shard, gather_dtensor, prefix, size_per_shard, use_safetensors, use_async):
    most, checkpoint = limit(size_per_shard), os.fspath(checkpoint)
    if prefix is not None and not isinstance(prefix, str):
        raise TypeError(f"castor: prefix is a text before each name, and not {prefix!r}")
    writes = _ranks.rank() == 0
    if not writes and not any(map(_distributed.is_distributed, (*module.parameters(), *module.buffers()))) and gather_dtensor:
        _ranks.note(checkpoint)
        return
    plan = Plan(module, prefix, gather_dtensor, use_safetensors)
    if plan.parted:
        write(plan, place(plan, make_part(checkpoint, shard), shard), shard, most, use_async)
        return
    number, job, error = _ranks.note(checkpoint), None, None
    try:
        try:
            where = place(plan, checkpoint, shard) if writes else None
        except (OSError, ValueError, CheckpointError) as found:
            error = found
        if plan.gathers:
            _ranks.meet(_distributed.ranks_of(plan.distributed.values()), "save_model()", error)
        elif error is not None:
            raise error
        if writes:
            job = _write_all(plan, where, shard, most, use_async)
        elif plan.gathers:
            _gather_rest(plan, shard, most)
    finally:
        if writes:
            _ranks.tell(checkpoint, number, job)


def _write_all(plan, where, shard, most, use_async):
    try:
        return write(plan, where, shard, most, use_async)
    except BaseException:
        if plan.gathers:
            _gather_rest(plan, shard, most)  # the other ranks are in these collectives, or wait in them
        raise


def _gather_rest(plan, shard, most):
    """The collectives of the values that this rank has not asked for."""
    for names in (plan.shards(most) if shard else [list(plan.state)])[plan.gathered:]:
        plan.values(names)


def place(plan, checkpoint, shard):
    """The folder of the shards, or the file."""
    plan.in_folder = os.path.isdir(checkpoint)
    return _files.folder(checkpoint) if shard else _files.target(checkpoint, _files.MODEL, plan.use_safetensors)


def part_of(checkpoint, shard):
    """Where this rank's part of a checkpoint is (gather_dtensor=False)."""
    own = f"rank-{_ranks.rank():05d}-of-{_ranks.world():05d}"
    if shard or os.path.isdir(checkpoint):
        return os.path.join(checkpoint, own)
    stem, suffix = os.path.splitext(checkpoint)
    return f"{stem}.{own}{suffix}"


def make_part(checkpoint, shard):
    """The same, with its folder."""
    path = part_of(checkpoint, shard)
    if shard or os.path.isdir(checkpoint):
        os.makedirs(path, exist_ok=True)
    return path


def write(plan, where, shard, most, use_async):
    """Returns the job, committed."""
    job = _jobs.job(use_async)
    if shard:
        _add_shards(job, plan, where, most, use_async)
    else:
        _add(job, plan, where, list(plan.state), is_alone=True)
        if plan.in_folder:
            _remove_stale(job, os.path.dirname(where), os.path.basename(where), {os.path.basename(where)})
    job.commit()
    return job


def _add(job, plan, path, names, is_alone):
    if not plan.use_safetensors:
        return job.add_torch(path, plan.torch_object(names))
    values = plan.values([n for n in names if n not in plan.ties])
    if not is_alone:
        return job.add_safetensors(path, values, {"format": "pt"})
    info = plan.info()
    info.sum = secrets.token_hex(8)
    return job.add_safetensors(path, values, {**plan.tied_names(), NAME: info.to_text(), "format": "pt"}, info.sum)


def _add_shards(job, plan, path, most, use_async):
    shards = plan.shards(most)
    name = _files.name_of(_files.MODEL, plan.use_safetensors)
    files, _ = _files.shard_names(path, name, len(shards))
    index = CheckpointIndexFile(path)
    if plan.gathers and not use_async:
        sums = _gathered(plan, path, files, shards)
    else:
        sums = {file: _add(job, plan, os.path.join(path, file), names, is_alone=False) for file, names in zip(files, shards)}
    for file, names in zip(files, shards):
        for one in names:
            index.append_weight_map(plan.prefix + one, file)
    index.append_meta_data("total_size", sum(plan.size(n) for n in plan.state if n not in plan.ties))
    for one, first in plan.tied_names().items():
        index.metadata.setdefault(one, first)
    finish_index(job, index, plan.info(versions=plan.use_safetensors), sums, name)
    _remove_stale(job, path, name, {*files, name + INDEX})


def _gathered(plan, path, files, shards):
    """Writes each shard when its tensors are gathered, so that no more than one is held. Nothing names the files yet: where one
    fails, they are removed. Returns their checksums."""
    from ._writer import Job, checksum

    sums = {}
    try:
        for file, names in zip(files, shards):
            job = Job()
            _add(job, plan, os.path.join(path, file), names, is_alone=False)
            job.commit()
            sums[file] = checksum(os.path.join(path, file))
    except BaseException:
        for file in sums:
            os.unlink(os.path.join(path, file))
        raise
    return sums


def finish_index(job, index, info, sums, name):
    """Adds the index with the checksums of its files: their text, or the number of a file of the same job. It is the last
    file to appear."""
    marks = {file: one if isinstance(one, str) else secrets.token_hex(8) for file, one in sums.items()}
    info.checksums = marks
    index.append_meta_data(NAME, info.to_dict())
    numbers = {marks[file]: one for file, one in sums.items() if not isinstance(one, str)}
    job.add_text(os.path.join(index.root_path, name + INDEX), index.text(), numbers)


def _remove_stale(job, path, name, kept):
    for old in _files.stale(path, name, kept):
        job.remove(old)
    others = [n for n in _files.MODEL if n != name for n in (n, n + INDEX) if os.path.lexists(os.path.join(path, n))]
    if others:
        core.log(1, f"checkpoint: {path} has {others[0]} of another save as well, which other programs may choose: remove it, or save "
                    "the formats into two folders".encode())
