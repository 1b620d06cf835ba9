"""A GPT in one process, with a DataLoader: `train.py FOLDER WIDTH LAYERS STEPS` leaves each step's seconds and loss in FOLDER."""

import json
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, CONTEXT, BATCH = 512, 128, 8


class GPT(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True), layers,
            enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.blocks(self.tokens(x) + self.places.weight[: x.shape[1]], mask=mask, is_causal=True))


def main():
    folder, width, layers, steps = sys.argv[1], *map(int, sys.argv[2:5])
    torch.manual_seed(0)
    text = torch.randint(0, VOCABULARY, (BATCH * steps, CONTEXT + 1))
    model = GPT(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    told = dict(parameters=sum(p.numel() for p in model.parameters()), seconds=[], losses=[])
    begin = time.monotonic()
    for (batch,) in DataLoader(TensorDataset(text), BATCH, shuffle=True):
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told["losses"].append(loss.item())
        told["seconds"].append(time.monotonic() - begin)
        begin = time.monotonic()
    if os.environ.get("CASTOR_RANK", "0") in ("0", "-1"):
        with open(os.path.join(folder, "told.json"), "w") as file:
            json.dump(told, file)


main()
