"""One process that waits for its DataLoader."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from record import Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(2)


class Slow(Dataset):
    def __len__(self):
        return 4 * 52

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(6, generator=torch.Generator().manual_seed(index)), index % 3


model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = Recorder(args.out)
for number, (x, y) in enumerate(DataLoader(Slow(), 4, shuffle=True)):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if number % 10 == 0:
        log.step(loss, model, optimizer)
log.close()
