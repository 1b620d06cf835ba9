"""The benchmark's model: a GPT with learned positions, pre-norm blocks and a head tied to the token embedding."""

import torch
from torch import nn
from torch.nn import functional as F

# Dimensions by name. `60M` has 59.9 million parameters, `150M` has 145.0 million.
SIZES = {
    "60M": dict(vocabulary=4096, width=768, layers=8, heads=12, context=128),
    "150M": dict(vocabulary=4096, width=768, layers=20, heads=12, context=128),
    "8M": dict(vocabulary=4096, width=256, layers=8, heads=4, context=128),
    "tiny": dict(vocabulary=256, width=64, layers=2, heads=4, context=32),
}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, context, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))


class GPT(nn.Module):
    """`forward(inputs, targets)`: two int64 tensors (batch, context); returns the mean cross entropy in nats."""

    def __init__(self, vocabulary, width, layers, heads, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def count_parameters(self):
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def batches(size, batch, rank):
    """Endless batches of (inputs, targets) with few frequent and many rare tokens, others on each rank."""
    vocabulary, context = SIZES[size]["vocabulary"], SIZES[size]["context"]
    generator = torch.Generator().manual_seed(1 + rank)
    while True:
        tokens = (torch.rand(batch, context + 1, generator=generator).pow(3) * vocabulary).long()
        yield tokens[:, :-1], tokens[:, 1:]
