"""The optimizers by the names that train.py takes."""
import functools
import os
import sys

import torch
from torch import optim

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "shims"))  # for plain PyTorch
from castor.nn import optimizer as castors  # noqa: E402

OPTIMIZERS = {
    "sgd": functools.partial(optim.SGD, lr=0.05),
    "momentum": functools.partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "nesterov": functools.partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "sgd-fused": functools.partial(optim.SGD, lr=0.05, momentum=0.9, fused=True),
    "adam": functools.partial(optim.Adam, lr=1e-3),
    "amsgrad": functools.partial(optim.Adam, lr=1e-3, amsgrad=True),
    "adamw": functools.partial(optim.AdamW, lr=1e-3),
    "adamw-fused": functools.partial(optim.AdamW, lr=1e-3, fused=True),
    "adamw-single": functools.partial(optim.AdamW, lr=1e-3, foreach=False),
    "adamw-capturable": functools.partial(optim.AdamW, lr=1e-3, capturable=True),
    "adamw-tensor": lambda parameters, **options: optim.AdamW(parameters, **{"lr": torch.tensor(1e-3, device="cuda"), "fused": True, **options}),
    "adagrad": functools.partial(optim.Adagrad, lr=1e-2),
    "rmsprop": functools.partial(optim.RMSprop, lr=1e-3, momentum=0.9, centered=True),
    "adafactor": functools.partial(optim.Adafactor, lr=1e-2),
    "nadam": functools.partial(optim.NAdam, lr=1e-3),
    "lbfgs": functools.partial(optim.LBFGS, lr=0.1, max_iter=3, history_size=4),
    "muon": functools.partial(optim.Muon, lr=1e-2),
    "castor-hybrid": functools.partial(castors.HybridAdam, lr=1e-3, weight_decay=1e-2, bias_correction=False),
    "castor-came": functools.partial(castors.CAME, lr=1e-3),
}
OF_CASTOR = tuple(name for name in OPTIMIZERS if name.startswith("castor-"))  # castor.nn's
CLOSURE = ("lbfgs",)  # its step needs one
MATRICES = ("muon",)  # it takes nothing else
GENERAL = tuple(name for name in OPTIMIZERS if name not in CLOSURE + MATRICES + OF_CASTOR)
