"""What a plugin's checkpoints can do (Colossal-AI: colossalai.checkpoint_io.checkpoint_io_base)."""
import os
from abc import ABC, abstractmethod

from . import _files, _ranks

__all__ = ["CheckpointIO"]


class CheckpointIO(ABC):
    """Saves and loads models, optimizers and schedulers, wrapped or not. A plugin with a format of its own implements the methods
    for one file (unsharded) and for shards."""

    # ---- models

    def save_model(self, model, checkpoint, shard=False, gather_dtensor=True, prefix=None, size_per_shard=1024, use_safetensors=False,
                   use_async=False):
        """Saves a model's state dict.

        Args:
            model: a torch.nn.Module, wrapped by a plugin or not.
            checkpoint: a path: of the file, or of a folder, which with `shard` is made. In a folder the files have Hugging Face's names.
            shard: write several files and an index.
            gather_dtensor: write whole tensors, for which all ranks must call this if the model has distributed tensors. False: each
                rank writes its own parts, which the same layout reads again.
            prefix: a text before each name; loading takes it off again.
            size_per_shard: in MiB; a tensor is never divided.
            use_safetensors: safetensors instead of torch.save's format.
            use_async: return at once and write in the background. What the files hold is the state of now.

        Rank 0 writes, and may do so alone. Ranks that call this too do not wait for it, but loading the same path does. Files appear
        whole, the index last."""
        if shard:
            self.save_sharded_model(model, checkpoint, gather_dtensor, prefix, size_per_shard, use_safetensors, use_async)
        else:
            self.save_unsharded_model(model, checkpoint, gather_dtensor, use_safetensors, use_async, prefix)

    def load_model(self, model, checkpoint, strict=True, low_cpu_mem_mode=True, num_threads=1):
        """Loads a model's checkpoint: a file, an index or a folder, of any program that writes such. Returns `model`. `low_cpu_mem_mode` and
        `num_threads` are accepted: a file's tensors are read one by one.

        CheckpointError: it is damaged, or does not fit: then the model is as it was. `strict`: the names must be equal."""
        if self._is_sharded(checkpoint, _files.MODEL):
            self.load_sharded_model(model, checkpoint, strict)
        else:
            self.load_unsharded_model(model, checkpoint, strict)
        return model

    # ---- optimizers

    def save_optimizer(self, optimizer, checkpoint, shard=False, gather_dtensor=True, prefix=None, size_per_shard=1024, use_async=False):
        """Saves an optimizer's state dict; the arguments are save_model's. Its parameters are numbered as PyTorch numbers them, so
        `prefix` stands before numbers, in the index of shards."""
        if shard:
            self.save_sharded_optimizer(optimizer, checkpoint, gather_dtensor, prefix, size_per_shard, use_async)
        else:
            self.save_unsharded_optimizer(optimizer, checkpoint, gather_dtensor, use_async)

    def load_optimizer(self, optimizer, checkpoint, prefix=None, low_cpu_mem_mode=True, num_threads=1, *, size_per_shard=1024):
        """Loads an optimizer's checkpoint. `prefix`: of an index that another program wrote. `size_per_shard` is accepted for scripts
        that give it; the files decide. The others, and CheckpointError: as load_model."""
        if self._is_sharded(checkpoint, _files.OPTIMIZER):
            self.load_sharded_optimizer(optimizer, checkpoint, prefix)
        else:
            self.load_unsharded_optimizer(optimizer, checkpoint)

    # ---- what a plugin implements

    @abstractmethod
    def load_sharded_model(self, model, index_file_path, strict):
        """`index_file_path`: of the index, or of its folder."""

    @abstractmethod
    def load_unsharded_model(self, model, checkpoint, strict):
        pass

    @abstractmethod
    def save_sharded_model(self, model, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_safetensors=False, use_async=False):
        pass

    @abstractmethod
    def save_unsharded_model(self, model, checkpoint, gather_dtensor, use_safetensors, use_async=False, prefix=None):
        pass

    @abstractmethod
    def load_sharded_optimizer(self, optimizer, index_file_path, prefix=None):
        pass

    @abstractmethod
    def load_unsharded_optimizer(self, optimizer, checkpoint):
        pass

    @abstractmethod
    def save_sharded_optimizer(self, optimizer, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_async=False):
        pass

    @abstractmethod
    def save_unsharded_optimizer(self, optimizer, checkpoint, gather_dtensor, use_async=False):
        pass

    # ---- schedulers

    @abstractmethod
    def save_lr_scheduler(self, lr_scheduler, checkpoint):
        pass

    @abstractmethod
    def load_lr_scheduler(self, lr_scheduler, checkpoint):
        pass

    def synchronize(self):
        """Waits for the saves in the background. Raises the error of one that failed."""
        _ranks.settle()

    _sync_io = synchronize
    _sync_d2h = synchronize  # a save that has returned has its data; what its caller waits for is no less than that

    @staticmethod
    def _is_sharded(checkpoint, names):
        path = os.fspath(checkpoint)
        return _files.is_index(path) or os.path.isdir(path) and any(os.path.lexists(os.path.join(path, n + _files.INDEX)) for n in names)
