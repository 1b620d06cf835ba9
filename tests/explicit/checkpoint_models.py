"""A model of everything that a checkpoint may hold, and how checkpoints are compared."""
import torch
from torch import nn

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64]


class Mixed(nn.Module):
    """Everything that a state dict may have, but extra state."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(24, 40)
        self.norm = nn.BatchNorm1d(40)
        self.last = nn.Linear(24, 40, bias=False)
        self.last.weight = self.first.weight  # tied
        self.strided = nn.Parameter(torch.randn(6, 5).t())
        simple = seed in (4, 9)  # for safetensors' own functions, and to load into
        part = torch.randn(50)[10:20]
        self.part = nn.Parameter(part.clone() if simple else part)  # of a larger storage
        expanded = torch.randn(1, 4).expand(3, 4)
        self.expanded = nn.Parameter(expanded.clone() if simple else expanded, requires_grad=False)  # such a one cannot be written to
        for dtype in FLOATS:
            self.register_buffer(f"f{len(self._buffers)}", torch.randn(7).to(dtype))
        for dtype in INTEGERS:
            self.register_buffer(f"i{len(self._buffers)}", torch.randint(0, 2, (3, 3)).to(dtype))
        self.register_buffer("number", torch.tensor(float(seed)))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("gone", torch.ones(2), persistent=False)


def bits(t):
    return (t.numel(), t.dtype, tuple(t.shape), t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"")


def equal(a, b):
    a, b = (m if isinstance(m, dict) else m.state_dict() for m in (a, b))
    return a.keys() == b.keys() and all(bits(a[n]) == bits(b[n]) for n in a)
