"""A chain of blocks whose model returns the loss, made on the device; with DistributedDataParallel where torchrun has started ranks."""
import os

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, VOCABULARY = 512, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


of_ranks = "RANK" in os.environ
torch.manual_seed(0)
if of_ranks:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
with torch.device(device):
    model = Chain()
if of_ranks:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5 if of_ranks else 3):
    tokens = torch.randint(0, VOCABULARY, (8, 64)).to(device)
    loss = model(tokens, tokens.roll(-1, 1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("loss", loss.item())
if device == "cuda":
    with open("/proc/self/status") as status:
        print("resident", next(line.split()[1] for line in status if line.startswith("RssShmem")))
