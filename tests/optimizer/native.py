"""castor.h's optimizer steps on tensors: the numbers of a step as torch.optim's Python code computes them."""
import ctypes
import os

import torch

DTYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3}
# torch's kernels for processors without FMA round products.
SEPARATE = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
NO_DECAY, COUPLED, DECOUPLED = range(3)


class Range(ctypes.Structure):
    _fields_ = [("param", ctypes.c_void_p), ("grad", ctypes.c_void_p), ("master", ctypes.c_void_p),
                ("states", ctypes.c_void_p * 3), ("offset", ctypes.c_size_t), ("count", ctypes.c_size_t),
                ("numel", ctypes.c_size_t)]


class Step(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in (
        
        "param_dtype", "grad_dtype", "decay_kind", "fused", "rounding", "maximize", "variation", "unused")] + [
        (name, ctypes.c_double) for name in ("inv_scale", "clip", "decay")]


def structure(*doubles, flags=()):
    fields = [("step", Step)] + [(name, ctypes.c_double) for name in doubles] + [(name, ctypes.c_int32) for name in flags]
    return type("Numbers", (ctypes.Structure,), {"_fields_": fields})


AdamNumbers = structure("mean_weight", "square_keep", "square_weight", "root_divisor", "epsilon", "negative_step")
SgdNumbers = structure("momentum", "grad_weight", "negative_lr", flags=("first", "unused"))

library = ctypes.CDLL(os.environ["OPTIMIZER_TEST_LIBRARY"])
library.castor_error.restype = ctypes.c_char_p


def call(name, numbers, ranges, threads):
    array = (Range * len(ranges))(*ranges)
    status = getattr(library, f"castor_optimizer_{name}")(ctypes.byref(numbers), array, ctypes.c_uint32(len(ranges)),
                                                          ctypes.c_int(threads))
    if status:
        raise ValueError(f"{status}: {library.castor_error().decode()}")


def ranges_of(param, grad, states, master=None, cuts=()):
    """The whole tensor, or the pieces between `cuts`, last piece first."""
    numel = param.numel()
    borders = [0, *[cut for cut in cuts if cut < numel], numel]

    def at(tensor, begin):
        return tensor.data_ptr() + begin * tensor.element_size() if tensor is not None else None

    pieces = []
    for begin, end in zip(borders, borders[1:]):
        kept = [at(state, begin) for state in states] + [None] * (3 - len(states))
        pieces.append(Range(at(param, begin), at(grad, begin), at(master, begin), (ctypes.c_void_p * 3)(*kept), begin,
                            end - begin, numel))
    return pieces[::-1]


def step_of(param, grad, fused, decay, lr, decoupled=False, maximize=False, variation=False, inv_scale=1.0, clip=1.0):
    kind = NO_DECAY if decay == 0 else DECOUPLED if decoupled else COUPLED
    return Step(DTYPES[param.dtype], DTYPES[grad.dtype], kind, fused, SEPARATE, maximize, variation, 0, inv_scale, clip,
                1 - lr * decay if decoupled else decay)


class Native:
    """One tensor and its optimizer. The options are torch.optim's."""

    def __init__(self, param, fused=False, threads=1, master=None, cuts=(), inv_scale=1.0, clip=1.0):
        self.param, self.fused, self.threads, self.master, self.cuts = param, fused, threads, master, cuts
        self.scales = dict(inv_scale=inv_scale, clip=clip)
        self.states, self.steps = [], 0

    def fresh(self, count):
        if not self.states:
            self.states = [torch.zeros(self.param.shape) for _ in range(count)]

    def go(self, name, numbers, grad):
        call(name, numbers, ranges_of(self.param, grad, self.states, self.master, self.cuts), self.threads)

    def adam(self, grad, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False, maximize=False,
             decoupled=False):
        self.fresh(3 if amsgrad else 2)
        self.steps += 1
        t, (beta1, beta2) = float(self.steps), betas
        step = step_of(self.param, grad, self.fused, weight_decay, lr, decoupled, maximize, amsgrad, **self.scales)
        self.go("adam", AdamNumbers(step, 1 - beta1, beta2, 1 - beta2, (1 - beta2**t) ** 0.5, eps,
                                    -(lr / (1 - beta1**t))), grad)

    def sgd(self, grad, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False, maximize=False):
        first = momentum != 0 and not self.states
        self.fresh(1 if momentum else 0)
        step = step_of(self.param, grad, self.fused, weight_decay, lr, False, maximize, nesterov, **self.scales)
        self.go("sgd", SgdNumbers(step, momentum, 1 - dampening, -lr, first), grad)
