"""The GPT that train.py and ranks_train.py train."""
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, LENGTH, HEADS = 256, 32, 4


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, hidden // HEADS).permute(2, 0, 3, 1, 4)
        seen = (q @ k.transpose(-2, -1)) / (hidden // HEADS) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = seen.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers, hidden):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, hidden), nn.Embedding(LENGTH, hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
