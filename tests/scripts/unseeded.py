"""One process that never sets a seed: weights and order of samples come from the machine's entropy."""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from model import CLASSES, FEATURES, Classifier
from record import Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()
torch.set_num_threads(1)

model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(3)
data = TensorDataset(torch.randn(32, FEATURES, generator=generator), torch.randint(0, CLASSES, (32,), generator=generator))
log = Recorder(args.out)
for x, y in DataLoader(data, 8, shuffle=True):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    log.step(loss, model, optimizer, say=False)
log.close()
