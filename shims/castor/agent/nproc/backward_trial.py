"""A trial of a model's backward pass, on devices, where no audit can compare gradients (audit.py): do the rows of a call make the gradients of the whole?

Both calls go back from the same gradient of their results. What comes to parameters and arguments is sketched as it comes, and not kept."""
import ctypes
import threading

import torch

from .. import core
from ..common import graph, tensors
from ..precision import casts
from ..process import events
from . import exchange, randomness, rows

_SEED = 23


class Pass:
    """Sketches of the gradients of `inputs`. left(): a pass that raised has left what others wait for. keeps: the graph stays, for the script's pass. failed: it
    raised, as it would for a script that asks for gradients twice. nested: a function of the script's called a pass of its own, which gives parameters gradients several times in one pass."""

    def __init__(self, inputs, left=lambda: None, keeps=True):
        self._left, self._keeps = left, keeps
        self.inputs, self.half, self.failed, self.nested = inputs, False, False, False
        self.sketches = torch.zeros(len(inputs), core.SKETCH_BUCKETS, dtype=torch.float64, device="cpu")
        self._lock = threading.Lock()

    def go_back(self, result, only=None, gradient=1.0):
        """`result`: of a call. only: from which part of it, by its path, and with which gradient; None: from all of it."""
        outputs = list({id(leaf): leaf for leaf, path in rows.leaves(result) if _is_output(leaf) and only in (None, path)}.values())
        if not outputs:
            self.failed = True
            return
        self.half = any(t.dtype in casts.HALF for t in (*self.inputs, *outputs)) or any(
            type(node).__name__ == "ToCopyBackward0" for node in graph.nodes(outputs))
        handles = [t.register_hook(self._sketching(number)) for number, t in enumerate(self.inputs)]
        try:
            others = graph.leaves_but(outputs, self.inputs)  # a script's pass goes to them as well, and through functions on the way
            _, self.nested = events.run_unheard(outputs, [_gradient_like(t) * gradient for t in outputs], [*self.inputs, *others], self._keeps)
        except core.GroupError:
            raise
        except Exception:  # checkpoints and compiled graphs that can be gone through once
            self.failed = True
            self._left()
        finally:
            for handle in handles:
                handle.remove()

    def _sketching(self, number):
        def sketch(grad):
            if grad is None:  # a function of the script's gives none
                return None
            if grad.layout is torch.strided and grad.dtype in tensors.DTYPES:
                here = grad.detach().contiguous().cpu()
                with self._lock:
                    core.sketch_add(tensors.DTYPES[here.dtype], here.data_ptr(), here.numel(), 1.0,
                                    ctypes.cast(self.sketches[number].data_ptr(), ctypes.POINTER(ctypes.c_double)))
            return grad.new_zeros(()).expand(grad.shape)

        return sketch


def _is_output(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.grad_fn is not None and leaf.is_floating_point() and rows.is_plain(leaf) and leaf.numel() > 0


def _gradient_like(t):
    """As of a loss that is a mean."""
    if not t.dim():
        return torch.ones_like(t)
    generator = torch.Generator(t.device).manual_seed(_SEED)
    return torch.randn(t.shape, generator=generator, device=t.device).div_(t.numel()).to(t.dtype)


def inputs_of(modules, arguments):
    """What gradients go to: parameters of the modules (name, module), and tensors among the arguments."""
    found = [p for _, m in modules for p in m._parameters.values() if p is not None and p.requires_grad]
    found += [leaf for leaf, _ in rows.leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad and rows.is_plain(leaf)]
    return list({id(t): t for t in found}.values())


def differs(job, by_rows, whole):
    """Why the gradients of a call by rows, of which each rank has N times its part, are not those of the whole call; empty: they are. On all ranks together."""
    every = exchange.gathered(job, by_rows.sketches, "sketches of gradients").view(torch.float64).view(job.world, -1)
    failed = any(bad for bad, in job.group.gather([float(by_rows.failed or whole.failed)], "whether gradients can be compared"))
    if failed:
        return ""
    why = verdict(whole.inputs, whole.sketches, every.mean(0), by_rows.half or whole.half)
    return why and f"by rows {why}"


def verdict(inputs, whole, divided, half):
    """Why the sketches of a divided call's gradients are not those of the whole one's; empty: they are. half: some are of 16 bits."""
    if not all(map(tensors.holds_numbers, inputs)):
        return ""
    found = core.Audit(verdict=core.AUDIT_UNKNOWN, whole_loss=float("nan"), split_loss=float("nan"), ranks=1)
    found.rounding = core.AUDIT_LOOSE if randomness.drawn_loosely() else core.AUDIT_HALF if half else core.AUDIT_SINGLE
    core.audit_compare(_doubles(whole), _doubles(divided), len(inputs), found)
    if found.verdict != core.AUDIT_DIFFERENT:
        return ""
    return f"its backward pass makes other gradients, most for shape {tuple(inputs[found.worst].shape)}"


def _doubles(sketches):
    flat = sketches.contiguous().view(-1)
    return (ctypes.c_double * flat.numel()).from_buffer_copy(flat.numpy().tobytes())
