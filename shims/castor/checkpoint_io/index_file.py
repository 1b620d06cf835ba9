"""The index of a checkpoint in shards (Colossal-AI: colossalai.checkpoint_io.index_file): which file has which tensor, as
Hugging Face writes it. Castor's own data stand in the metadata, under "castor"."""
import json
import os
from pathlib import Path

from . import _files
from ._files import CheckpointError
from ._safetensors import once

__all__ = ["CheckpointIndexFile"]

_MOST = 256 << 20  # bytes; Hugging Face's own limit is 10 MB, which models of very many experts pass


class CheckpointIndexFile:
    """`metadata`, a dict; `weight_map`: {name of a tensor: name of a file in the index's folder}; `root_path`: that folder."""

    def __init__(self, root_path=None):
        self.root_path = root_path
        self.metadata, self.weight_map = {}, {}

    @staticmethod
    def from_file(index_path):
        index = CheckpointIndexFile()
        index.load(index_path)
        return index

    def load(self, json_path):
        """Reads an index. CheckpointError: it is damaged, or names files outside its folder."""
        path = os.fspath(json_path)
        if _files.check_regular(path) > _MOST:
            raise CheckpointError(f"castor: {path} is too large for an index: more than {_MOST} bytes")
        try:
            with open(path, encoding="utf-8") as file:
                read = json.load(file, object_pairs_hook=once)
            metadata, weight_map = read.get("metadata") or {}, read["weight_map"]
            if not isinstance(metadata, dict) or not isinstance(weight_map, dict):
                raise TypeError("weight_map and metadata are objects in an index")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"castor: {path} is no index of a checkpoint, or is damaged: {type(error).__name__}: {error}") from None
        groups = metadata.get("param_groups")
        for name in (*weight_map.values(), *([groups] if groups is not None else [])):
            check_name(path, name)
        self.metadata, self.weight_map, self.root_path = metadata, weight_map, Path(path).absolute().parent

    def text(self):
        return json.dumps({"metadata": self.metadata, "weight_map": self.weight_map}, indent=2) + "\n"

    def export(self, json_path):
        """Writes the index to a path."""
        from . import _jobs

        job = _jobs.job()
        job.add_text(os.fspath(json_path), self.text(), {})
        job.commit()

    def write_index_file(self, save_index_file):
        """Writes the index into its folder."""
        self.export(os.path.join(self._root(), save_index_file))

    def append_weight_map(self, param_name, shard_file):
        self.weight_map[param_name] = shard_file

    def append_meta_data(self, name, val):
        self.metadata[name] = val

    def get_all_param_names(self):
        return list(self.weight_map)

    def get_checkpoint_file(self, param_name):
        """The path of the file with that tensor."""
        return os.path.join(self._root(), self.weight_map[param_name])

    def get_checkpoint_filenames(self):
        """The paths of all shards, sorted."""
        return [os.path.join(self._root(), name) for name in sorted(set(self.weight_map.values()))]

    def get_param_group_filename(self):
        """The path of an optimizer's parameter groups; None: the index has none."""
        name = self.metadata.get("param_groups")
        return None if name is None else os.path.join(self._root(), name)

    def contains_dtensor(self):
        """Whether it is one rank's part of a checkpoint (gather_dtensor=False)."""
        castor = self.metadata.get("castor")
        return isinstance(castor, dict) and bool(castor.get("part"))

    def assert_no_dtensor_checkpoint(self):
        if self.contains_dtensor():
            raise CheckpointError(f"castor: the checkpoint in {self._root()} is one rank's part of distributed tensors")

    def _root(self):
        if self.root_path is None:
            raise ValueError("castor: this index has no folder: CheckpointIndexFile(root_path), or load() one")
        return self.root_path


def check_name(path, name):
    if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        raise CheckpointError(f"castor: {path} names the file {name!r}: an index names files of its own folder only; not loaded")
