"""Whether parameters are still alike on all ranks, as owners' steps have left them.

A script may give one rank other values, which go on there by themselves under DistributedDataParallel. What may have changed since
the last step is found by what PyTorch counts and what the script has got hold of; of that the ranks compare digests when they begin the next one."""
import contextlib
import functools

import torch

from .. import patching
from ..common import tensors
from . import pages

PIECE = 1 << 20  # words of a digest at a time
MANY = 1 << 16

_taken = set()  # addresses of storages of which somebody has got a tensor whose changes are not counted, since the step that saw them last
_forgotten = 0  # how often these were too many to remember


def _taking(_):
    stock = torch._C.TensorBase.data

    def get(self):
        if self.is_cuda:
            with contextlib.suppress(RuntimeError, ValueError):  # of what has no memory: lazy modules, tensors of the compiler
                _take(self.untyped_storage().data_ptr())
        return stock.__get__(self)

    return property(get, stock.__set__, stock.__delete__)


def _take(address):
    global _forgotten
    if len(_taken) >= MANY:
        _taken.clear()
        _forgotten += 1
    _taken.add(address)


def _state(p):
    return p.data_ptr(), p._version, _forgotten


def see(p, entry):
    """Its values are alike on all ranks now."""
    entry.values = _state(p)
    _taken.discard(p.untyped_storage().data_ptr())


def may_differ(p, entry):
    """Whether the script may have changed it since it was seen."""
    return entry.values != _state(p) or p.untyped_storage().data_ptr() in _taken or tensors.storage_users(p) > 1


@functools.cache
def _weights():
    """Odd numbers, by which words are multiplied. On the host: a device has them while it computes."""
    return torch.randint(-1 << 62, 1 << 62, (PIECE,), generator=torch.Generator("cpu").manual_seed(PIECE), device="cpu").mul_(2).add_(1)


@torch.no_grad()
def digest(p, weights=None):
    """A number that depends on each bit of a parameter and on its place, below 2^53. weights: of the device."""
    weights = _weights().to(p.device) if weights is None else weights
    flat = p.detach().as_strided((p.numel(),), (1,)) if tensors.is_dense(p) else p.detach().reshape(-1)
    bytes_ = flat.view(torch.uint8)
    words = bytes_[:bytes_.numel() // 4 * 4].view(torch.int32) if bytes_.data_ptr() % 4 == 0 else bytes_
    found = torch.zeros((), dtype=torch.int64, device=p.device)
    for piece in (*words.split(PIECE), bytes_[bytes_.numel() // 4 * 4:]):
        found.mul_(6364136223846793005).add_((piece.to(torch.int64) * weights[:piece.numel()]).sum())
    return found


def digests(some):
    """Of parameters, as numbers that a double holds."""
    if not some:
        return []
    weights = _weights().to(some[0].device)
    return [float(value & (1 << 53) - 1) for value in torch.stack([digest(p, weights) for p in pages.readable(some)]).tolist()]


def have_all(group, some):
    """Whether the parameters have the same values on all ranks, which call it together."""
    every = group.control.gather([*digests(some), *(float(p.numel()) for p in some)], "whether parameters are alike")
    return all(said == every[0] for said in every)


_installed = False


def install():
    """When the first parameters have owners."""
    global _installed
    if not _installed:
        _installed = True
        patching.replace("torch.Tensor.data", _taking)
