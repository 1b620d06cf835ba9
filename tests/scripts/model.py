"""The networks of the scripts: small, with parameters below a page, above a page and above a mebibyte."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

FEATURES, CLASSES = 32, 5


class Classifier(nn.Module):
    def __init__(self, hidden=600):
        super().__init__()
        self.inner = nn.Linear(FEATURES, 64)
        self.wide = nn.Linear(64, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.deep = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, CLASSES)
        nn.init.constant_(self.norm.weight, 0.1)  # small steps stay stable at the learning rates that scripts use

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        h = self.norm(F.gelu(self.wide(h)))
        h = h + F.gelu(self.deep(h))
        return self.head(h)


def batch(step, size=8, features=FEATURES):
    """A batch of its own for every step and rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, features, generator=generator), torch.randint(0, CLASSES, (size,), generator=generator)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A decoder whose output layer is tied to its token embedding."""

    def __init__(self, vocabulary=256, context=64, layers=2, width=320, heads=5):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialize)
        self.head.weight = self.tokens.weight

    @staticmethod
    def _initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets=None):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
