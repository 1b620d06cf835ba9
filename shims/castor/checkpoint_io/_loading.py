"""Reads a model's checkpoint. Everything that can be wrong with its files is found before the first tensor of the model is
written: their bytes by their checksums, then names, shapes and types. The files are mapped: a tensor's bytes are read when it
is copied, and their pages are returned soon after."""
import os
import re
from collections import OrderedDict

import torch

from . import _distributed, _files, _pages, _ranks, _safetensors, _saving, _torch_files
from ._files import CheckpointError
from ._info import IN_VERSIONS, NAME, Info
from .index_file import CheckpointIndexFile


class Checkpoint:
    """A model's checkpoint: `values`, {name: tensor, or other extra state}, shown from its files; `ties`, {name: name that is in
    values}; `info`; `versions`, as a state dict has them, or None; `mapped`: tensors whose storages are pages of the files."""

    def __init__(self, path):
        self.path, self.ties, self.versions, self.files, self.mapped = path, {}, None, [path], []
        self.values, metadata = (self._of_index() if _files.is_index(path) else self._of_file(path))
        self.ties.update((n, first) for n, first in metadata.items() if n not in self.values and isinstance(first, str) and first in self.values)
        if not _files.is_index(path) and self.versions is not None:
            metadata = {**metadata, NAME: self.versions.get(IN_VERSIONS)}
        self.info = Info.of(path, metadata.get(NAME))
        if self.info.sum and not _files.is_index(path):
            _check_sum(path, self.info.sum)

    def _of_index(self):
        index = CheckpointIndexFile.from_file(self.path)
        self.files = index.get_checkpoint_filenames()
        for file in self.files:
            _files.check_regular(file, f"{self.path} names it: copy the whole folder, or load another checkpoint")
        check_sums(self.path, index, self.files)
        named = {}
        for name, file in index.weight_map.items():
            named.setdefault(os.path.join(index.root_path, file), set()).add(name)
        values = {}
        for file in self.files:
            found, _ = self._of_file(file, is_checked=os.path.basename(file) in index_sums(self.path, index))
            if different := named[file] ^ found.keys():
                name = min(different)
                says = "expects" if name in named[file] else "does not expect"
                raise CheckpointError(f"castor: {self.path} {says} {name!r} in {file}: they are of different saves, or files were exchanged; load "
                                      "another checkpoint, or copy the folder again")
            values.update(found)
        return {name: values[name] for name in index.weight_map}, index.metadata

    def _of_file(self, path, is_checked=False):
        kind = _files.kind(path)
        if kind == _files.SAFETENSORS:
            metadata, values, pages = _safetensors.read(path)
            self.mapped.append(pages)
            return values, metadata
        state = _torch_files.read(path, kind, True, is_checked)
        if not isinstance(state, dict) or any(not isinstance(name, str) for name in state):
            raise CheckpointError(f"castor: {path} is no state dict of a model: it holds {shown(state)}")
        if kind == _files.ZIP:
            self.mapped += [t for t in state.values() if isinstance(t, torch.Tensor) and t.layout == torch.strided]
        versions = getattr(state, "_metadata", None)
        if versions is not None and (not isinstance(versions, dict) or any(not isinstance(v, dict) for v in versions.values())):
            raise CheckpointError(f"castor: {path} is damaged: the versions of its modules cannot be read")
        self.versions = versions if self.versions is None else self.versions
        return dict(state), {}


def shown(value):
    return f"a dict of {', '.join(map(repr, list(value)[:5]))}" if isinstance(value, dict) else f"an object of type {type(value).__name__}"


def index_sums(path, index):
    return Info.of(path, index.metadata.get(NAME)).checksums


def check_sums(path, index, files):
    """Compares the files with the checksums of their index, if it has some."""
    sums = index_sums(path, index)
    for file in files:
        expected = sums.get(os.path.basename(file))
        if expected is None and sums:
            raise CheckpointError(f"castor: {path} is damaged: it has a checksum of other files and none of {file}")
        if expected is not None and _sum(file) != expected:
            raise CheckpointError(f"castor: {file} is not the file that {path} was written with: its checksum is another one. It is damaged, or of "
                                  "another save; load another checkpoint, or copy the folder again")


def _check_sum(path, expected):
    """Compares a safetensors file with the checksum in its metadata."""
    from ._writer import summed

    header, _, begin = _safetensors.read_header(path)
    if _sum(path, begin, summed(header, expected)) != expected:
        raise CheckpointError(f"castor: {path} is damaged: its tensors have another checksum than its metadata say; load another checkpoint, or copy the "
                              "file again (if another program has changed it: without the entry 'castor' in its metadata)")


def _sum(path, *which):
    """Of the file that this process has under that name: under `--nproc` the core would find rank 0's."""
    from ._writer import checksum

    with open(path, "rb") as file:
        return checksum(f"/proc/self/fd/{file.fileno()}", *which)


# ---- into a model


def load_model(module, checkpoint, strict):
    _ranks.wait_for_save(checkpoint)
    path = _files.find(own_part(os.fspath(checkpoint), _files.MODEL), _files.MODEL)
    found = Checkpoint(path)
    target = module.state_dict()
    _check_part(found)
    values = _named(found, target)
    _fill_ties(found, values, target)
    _check(found, values, target, module, strict)
    state = OrderedDict((n, _placed(found, n, v, target.get(n))) for n, v in values.items())
    state._metadata = _versions(found, module)
    with _pages.returned(module, found.mapped):
        module.load_state_dict(state, strict=strict)


def own_part(checkpoint, names=()):
    """This rank's part, where every rank has saved its own (gather_dtensor=False); else `checkpoint`, also where its folder has a whole
    checkpoint of one of these names."""
    stem, suffix = ("", "") if os.path.isdir(checkpoint) else os.path.splitext(checkpoint)
    folder = os.path.dirname(checkpoint) or "." if stem else checkpoint
    if stem and os.path.lexists(checkpoint) or not os.path.isdir(folder):
        return checkpoint
    pattern = (re.escape(os.path.basename(stem)) + r"\." if stem else "") + r"rank-\d{5}-of-\d{5}" + re.escape(suffix)
    parts = [n for n in os.listdir(folder) if re.fullmatch(pattern, n)]
    if not parts or not stem and any(os.path.lexists(os.path.join(folder, n + e)) for n in names for e in ("", _files.INDEX)):
        return checkpoint
    own = _saving.part_of(checkpoint, False)
    if os.path.basename(own) not in parts:
        raise CheckpointError(f"castor: {checkpoint} has the parts of ranks of another job ({min(parts)}), and none of rank {_ranks.rank()} of "
                              f"{_ranks.world()}: load it with as many ranks, or save with gather_dtensor=True")
    return own


def _check_part(found):
    if found.info.part and found.info.part != [_ranks.rank(), _ranks.world()]:
        rank, world = found.info.part
        raise CheckpointError(f"castor: {found.path} is the part of rank {rank} of {world}, and this is rank {_ranks.rank()} of {_ranks.world()}: load it "
                              "there, or save with gather_dtensor=True")


def _named(found, target):
    """The values under the model's names: without the prefix that they were saved with, if the model does not have it itself; of
    other programs' files without one that all names have, such as DistributedDataParallel's."""
    prefix = found.info.prefix
    if not prefix and found.values and not target.keys() & (found.values.keys() | found.ties.keys()):
        ends = {n[:-len(first)] for first in list(target)[:1] for n in found.values if n.endswith(first)}
        prefix = next((p for p in ends if all(n.startswith(p) for n in found.values) and len(target.keys() & {n[len(p):] for n in found.values}) ==
                       len(found.values)), "")
    if not prefix or found.values and all(n in target for n in found.values):
        return dict(found.values)
    if other := [n for n in found.values if not n.startswith(prefix)]:
        raise CheckpointError(f"castor: {found.path} is damaged: {other[0]!r} does not begin with the prefix {prefix!r} that it was saved with")
    found.ties = {n.removeprefix(prefix): first.removeprefix(prefix) for n, first in found.ties.items()}
    if found.versions is not None:
        found.versions = {(n + ".").removeprefix(prefix)[:-1] if n != IN_VERSIONS else n: v for n, v in found.versions.items()}
    return {n[len(prefix):]: v for n, v in found.values.items()}


def _fill_ties(found, values, target):
    """Tied weights stand in a file once: the other names get the same values. They are known from the file, or from the model."""
    for name, first in found.ties.items():
        if name in target and first in values:
            values.setdefault(name, values[first])
    groups = {}
    for name, t in target.items():
        key = _saving.identity(t)
        if key is not None:
            groups.setdefault(key, []).append(name)
    for names in (g for g in groups.values() if len(g) > 1):
        there = [n for n in names if n in values]
        for name in names:
            if there:
                values.setdefault(name, values[there[0]])
        for name in there[1:]:
            first, other = values[there[0]], values[name]
            if first is not other and not (first.shape == other.shape and first.dtype == other.dtype and _same_bytes(first, other)):
                raise CheckpointError(f"castor: {found.path} has different values for {there[0]!r} and {name!r}, which are one tensor in this model: "
                                      "build the model without tying them")


def _same_bytes(a, b):
    return a.data_ptr() == b.data_ptr() or torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def _check(found, values, target, module, strict):
    wrong = []
    for name in (n for n in target if n in values):
        wrong += _difference(found, name, values[name], target[name])
    if any(isinstance(t, torch.Tensor) and t.is_meta for t in target.values()):
        raise CheckpointError("castor: the model is on the meta device and has no memory for values: call model.to_empty(device=...) first")
    missing = [n for n in target if n not in values]
    unexpected = [n for n in values if n not in target]
    if not wrong and not (_translates(module) and (missing or unexpected)):
        missing = [n for n in missing if not n.endswith("num_batches_tracked")]  # old files have none, which PyTorch knows
        if strict and (missing or unexpected) or values and target and len(unexpected) == len(values):
            wrong += [f"{label} in the file: {', '.join(map(repr, sorted(names)[:8]))}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"
                      for label, names in (("missing", missing), ("unexpected", unexpected)) if names]
    if wrong:
        more = f"\n    and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise CheckpointError(f"castor: {found.path} does not fit the model ({type(module).__name__}); nothing was loaded:\n    " +
                              "\n    ".join(wrong[:8]) + more)


def _difference(found, name, value, like):
    if not isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor):
        is_extra = name.rpartition(".")[2] == "_extra_state"
        return [] if is_extra or isinstance(value, torch.Tensor) == isinstance(like, torch.Tensor) else [f"{name}: {shown(value)} in the file"]
    layout = _distributed.layout(like)
    if found.info.part:
        if found.info.layouts.get(name) != layout:
            return [f"{name}: the part was saved of {found.info.layouts.get(name) or 'a whole tensor'}, and the model has {layout or 'a whole tensor'}: "
                    "divide the model as when it was saved, or save with gather_dtensor=True"]
        shape = tuple(_distributed.block(like).shape)
    else:
        shape = _distributed.whole_shape(like)
    if name.rpartition(".")[2] == "_extra_state":
        return []
    if tuple(value.shape) != shape:
        return [f"{name}: shape {tuple(value.shape)} in the file, {shape} in the model"]
    if not _fits(value.dtype, like.dtype):
        return [f"{name}: {value.dtype} in the file, {like.dtype} in the model"]
    return []


def _fits(saved, wanted):
    """Whether a value survives the conversion, but for rounding between types of floating point."""
    if saved == wanted or saved.is_floating_point and wanted.is_floating_point or saved.is_complex and wanted.is_complex:
        return True
    if torch.bool in (saved, wanted) or any(t.is_floating_point or t.is_complex for t in (saved, wanted)):
        return False
    try:
        return torch.iinfo(wanted).min <= torch.iinfo(saved).min and torch.iinfo(saved).max <= torch.iinfo(wanted).max
    except TypeError:  # quantized
        return False


def _translates(module):
    """Whether a module may take other names than its state dict has: PyTorch finds out then, while it loads."""
    return any(m._load_state_dict_pre_hooks or type(m).load_state_dict is not torch.nn.Module.load_state_dict or
               not type(m).__module__.startswith("torch.nn.modules.") and "_load_from_state_dict" in
               {n for kind in type(m).__mro__ if kind is not torch.nn.Module for n in vars(kind)} for m in module.modules())


def _placed(found, name, value, like):
    if not isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor) or not _distributed.is_distributed(like):
        return value
    return (_distributed.from_block if found.info.part else _distributed.from_whole)(like, value)


def _versions(found, module):
    """As load_state_dict reads them; a file of another program may have none."""
    if found.versions is not None:
        return OrderedDict(found.versions)
    if found.info.versions is None and not found.info.to_dict():
        return OrderedDict()
    versions = found.info.versions or {}
    return OrderedDict((n, {"version": versions.get(n, 1)}) for n, _ in module.named_modules(remove_duplicate=False))
