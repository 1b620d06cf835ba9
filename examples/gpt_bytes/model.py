"""A byte-level GPT of 29.8 million parameters, and the text that it learns: the Python standard library's sources."""

import pathlib
import sysconfig

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 128


def read_text(limit=4 << 20):
    """The first `limit` bytes of the standard library's modules, in order of their names."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = b""
    for path in sorted(library.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if len(text) <= CONTEXT:
        raise SystemExit(f"no Python sources in {library}: install the standard library's .py files")
    return torch.frombuffer(bytearray(text[:limit]), dtype=torch.uint8)


class Windows(torch.utils.data.Dataset):
    """Every run of CONTEXT bytes (starting at multiples of half of it) and the same run one byte later."""

    def __init__(self, text):
        self.text = text

    def __len__(self):
        return (len(self.text) - 1 - CONTEXT) // (CONTEXT // 2)

    def __getitem__(self, index):
        begin = index * (CONTEXT // 2)
        window = self.text[begin:begin + CONTEXT + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, context, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width=640, layers=6, heads=10):
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.bytes.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.head.weight = self.bytes.weight

    def forward(self, inputs):
        x = self.bytes(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        return self.head(self.norm(self.blocks(x)))
