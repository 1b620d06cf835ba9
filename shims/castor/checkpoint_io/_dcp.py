"""Models to and from checkpoints of torch.distributed.checkpoint (DCP): a folder with `.metadata` and the ranks' parts."""
import contextlib
import os
import pickle
import warnings

import torch

from . import _files, _loading, _ranks, _saving
from ._files import CheckpointError

# What `.metadata` is made of. It is a pickle, and PyTorch's own reader lets it run code.
_ALLOWED = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta",
                 "_MEM_FORMAT_ENCODING")
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("torch.serialization", "_get_layout"), ("torch", "Size"), ("torch", "device"),
    ("collections", "OrderedDict"), ("pathlib", "PosixPath"), ("pathlib", "Path"), ("pathlib._local", "PosixPath"), ("builtins", "set"),
}


class _Metadata(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in _ALLOWED or module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def _metadata(folder):
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    path = os.path.join(folder, ".metadata")
    _files.check_regular(path, "a checkpoint of torch.distributed.checkpoint is a folder with this file")
    try:
        with open(path, "rb") as file:
            found = _Metadata(file).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError(f"a {type(found).__name__}")
        names = {info.relative_path for info in (found.storage_data or {}).values()}
    except Exception as error:  # noqa: BLE001 - a damaged pickle fails anywhere
        raise CheckpointError(f"castor: {path} is damaged or hostile, and nothing of it was loaded: {type(error).__name__}: {error}") from None
    for name in names:
        if not isinstance(name, str) or os.path.isabs(name) or ".." in name.split("/"):
            raise CheckpointError(f"castor: {path} names the file {name!r}: it may name files of its own folder only; not loaded")
        _files.check_regular(os.path.join(folder, name), f"{path} names it: copy the whole folder")
    if getattr(found, "storage_meta", None) is None:
        found.storage_meta = StorageMeta()
    return found


def _reader(folder):
    from torch.distributed.checkpoint import FileSystemReader

    if not os.path.lexists(os.path.join(folder, ".metadata")) and any(n.endswith(".safetensors") for n in os.listdir(folder)):
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        return HuggingFaceStorageReader(folder)

    class Reader(FileSystemReader):
        def read_metadata(self, *args, **kwargs):
            return _metadata(folder)

    return Reader(folder)


@contextlib.contextmanager
def _alone():
    """DCP warns that it is one process, which it is told by no_dist."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


class _Plan(_saving.Plan):
    """The tensors of a DCP checkpoint, read when they are written."""

    is_lazy = True

    def __init__(self, folder, prefix, use_safetensors):
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self.folder, self.reader, self.begin = folder, _reader(folder), prefix
        stored = self.reader.read_metadata().state_dict_metadata
        rows = {n[len(prefix):]: row for n, row in stored.items() if n.startswith(prefix)}
        begins = ", ".join(sorted({n.split(".")[0] for n in stored})[:8])
        if not rows:
            raise CheckpointError(f"castor: no name in {folder} begins with {prefix!r}: names begin with {begins}")
        if other := [n for n, row in rows.items() if not isinstance(row, TensorStorageMetadata)]:
            raise CheckpointError(f"castor: {folder} has more than a model: {prefix + other[0]!r} is no tensor. Give the model's prefix, such as "
                                  f"prefix='model.'; names begin with {begins}")
        self.prefix, self.use_safetensors, self.gathers, self.parted = "", use_safetensors, True, False
        self.state = {n: torch.empty(row.size, dtype=row.properties.dtype, device="meta") for n, row in rows.items()}
        self.versions, self.distributed, self.ties = {}, {}, {}
        self._check()

    def values(self, names):
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        state = {self.begin + n: torch.empty(self.state[n].shape, dtype=self.state[n].dtype) for n in names}
        try:
            # Without flattening nothing but tensors is read, and tensors are read with weights_only.
            with _alone():
                _load_state_dict(state, storage_reader=self.reader, planner=DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
        except Exception as error:  # noqa: BLE001
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise CheckpointError(f"castor: {self.folder} is damaged, or cannot be read: {why}") from error
        return {n[len(self.begin):]: t for n, t in state.items()}

    def torch_object(self, names):
        return self.values(names)


def to_dcp(checkpoint, folder, prefix=""):
    """Writes a model's checkpoint as one of DCP, for torch.distributed.checkpoint.load().

    Args:
        checkpoint: a file, an index or a folder, as load_model takes it. Tied weights are written under each name.
        folder: DCP's. `prefix`: before each name; "model." is what DCP makes of {"model": a state dict}.

    In a job of several ranks rank 0 alone writes, and may call this alone."""
    import torch.distributed.checkpoint as dcp

    if _ranks.rank():
        return
    found = _loading.Checkpoint(_files.find(checkpoint, _files.MODEL))
    values = {**found.values, **{n: found.values[first] for n, first in found.ties.items()}}
    other = found.info.prefix
    values = {prefix + n.removeprefix(other): v for n, v in values.items()}
    with _alone():
        dcp.save(values, storage_writer=dcp.FileSystemWriter(os.fspath(folder)), no_dist=True)


def from_dcp(folder, checkpoint, shard=True, prefix="", size_per_shard=1024, use_safetensors=True):
    """Writes the model in a checkpoint of DCP as one of Hugging Face's format, a shard at a time. Nothing in the folder can run code.

    Args:
        folder: DCP's, with `.metadata`; or of safetensors files, as DCP's HuggingFaceStorageWriter writes them.
        checkpoint, shard, size_per_shard, use_safetensors: as save_model takes them.
        prefix: of the model's names in the folder; it is taken off.

    In a job of several ranks rank 0 alone writes, and may call this alone."""
    if _ranks.rank():
        return
    plan = _Plan(os.fspath(folder), prefix, use_safetensors)
    _saving.write(plan, _saving.place(plan, os.fspath(checkpoint), shard), shard, _saving.limit(size_per_shard), False)
