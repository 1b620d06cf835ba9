"""Where each rank stands under the plugin `hybrid`: replicas of the model share the rows of batches; the ranks of a replica are stages of the
model's chain of layers, and in each stage tensor-parallel ranks share layers (docs/hybrid.md).

All ranks have all parameters, which the node keeps once. What is divided is the work: a rank's gradient is N times its contribution, N ranks in all, and the
mean over the ranks is the whole gradient, whoever has made it."""
import torch

from .. import core
from ..device_ranks import own_group


def is_asked():
    """Whether models are to be divided."""
    return core.options.plugin == "hybrid" and (core.options.tp > 1 or core.options.pp > 1)


def say_unused():
    asked = [f"{name}={value}" for name, value in (("CASTOR_TP", core.options.tp), ("CASTOR_PP", core.options.pp)) if value > 1]
    if asked and core.options.plugin != "hybrid":
        core.log(1, f"{' and '.join(asked)} have no effect under --plugin {core.options.plugin}: models are divided by --plugin hybrid".encode())


def why_one_has_it(modules):
    """Why several ranks cannot have a model with these submodules (name, module) together; empty: they can."""
    if any(isinstance(m, torch.nn.modules.batchnorm._NormBase) and m.track_running_stats for _, m in modules):
        return "has a batch norm, whose statistics several ranks would count several times"
    if any(isinstance(m, torch.jit.ScriptModule) or m._compiled_call_impl is not None or hasattr(m, "_orig_mod") for _, m in modules):
        return "is compiled"
    return ""


class Layout:
    """rank = (replica * stages + stage) * tensor_size + place among tensor-parallel ranks.

    Error: the ranks do not divide so."""

    def __init__(self, rank, world, control):
        self.tensor_size, self.stages = (core.options.tp, core.options.pp) if core.options.plugin == "hybrid" else (1, 1)
        self.copies = self.tensor_size * self.stages  # ranks of a replica
        if world % self.copies:
            raise core.Error(f"castor: CASTOR_TP={self.tensor_size} x CASTOR_PP={self.stages} ranks have a model together, and there are {world}: start a "
                             f"multiple of {self.copies}")
        self.rank, self.replicas = rank, world // self.copies
        self.replica, within = divmod(rank, self.copies)
        self.stage, self.place = divmod(within, self.tensor_size)
        self._control = control
        self._groups = {}  # (whose, the type of devices whose tensors they send): PyTorch's

    def of_replicas(self, every):
        """Of a list with an item for each rank one for each replica: that of the first rank of its last stage."""
        return every[self.copies - self.tensor_size::self.copies]

    def ranks_of(self, stage):
        return [(replica * self.stages + stage) * self.tensor_size + place for replica in range(self.replicas) for place in range(self.tensor_size)]

    @property
    def is_last(self):
        return self.stage == self.stages - 1

    @property
    def may_go_back_early(self):
        """Whether backward passes of microbatches within a call, as soon as they can be (one_f_one_b.py), save memory."""
        return 1 < self.stages < core.options.microbatches

    def open_groups(self, members=False):
        """Those that a model's call uses: on all ranks together, since while it runs some of them wait for others. members: of all that have a model, too."""
        first = self.replica * self.copies
        for device in ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",):
            if members:
                self._open("members", device, range(first, first + self.copies))
            if self.tensor_size > 1:
                self._open("tensor", device, range(self.rank - self.place, self.rank - self.place + self.tensor_size))
            if self.stages > 1:
                for whose in ("stages", "stages back")[:1 + self.may_go_back_early]:
                    self._open(whose, device, range(first + self.place, first + self.copies, self.tensor_size))

    def _open(self, whose, device, ranks):
        if (whose, device) not in self._groups:
            self._groups[whose, device] = own_group.made(self._control(), f"castor-{whose}-{device}-{ranks[0]}", list(ranks), device)

    def group(self, whose, device):
        """Of the "tensor"-parallel ranks, of the "stages" of one replica with one place ("stages back": for their gradients), or of the "members" of one replica: for tensors of a type of devices."""
        return self._groups[whose, device]
