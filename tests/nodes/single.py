"""A script of one process: single.py [--fail-rank R] [--unseeded] [--layers]. Prints the losses, and what it reads back from files that it has written."""
import argparse
import os
import shutil
import signal

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--fail-rank", type=int, help="of CASTOR_NPROC=auto: is killed after three steps of the first attempt")
parser.add_argument("--unseeded", action="store_true", help="the model begins with numbers that are others in each process")
parser.add_argument("--layers", action="store_true", help="without a batch norm")
args = parser.parse_args()

again = args.fail_rank is not None and os.path.exists("made")
if again:
    shutil.rmtree("made")
os.mkdir("made")  # an error if another rank's were there
step = 0
for kind, options in ((torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}), (torch.optim.AdamW, {"lr": 0.01})):
    torch.manual_seed(7)
    norm = [] if args.layers else [torch.nn.BatchNorm1d(128)]
    model = torch.nn.Sequential(torch.nn.Linear(32, 128), *norm, torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 4))
    if args.unseeded:
        with torch.no_grad():
            model[0].bias.copy_(torch.frombuffer(bytearray(os.urandom(128)), dtype=torch.uint8) / 256)
    optimizer = kind(model.parameters(), **options)
    data = TensorDataset(torch.randn(60, 32), torch.randint(0, 4, (60,)))
    for inputs, wanted in DataLoader(data, batch_size=20, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"loss {loss.item()!r} norm {norm.item()!r}", flush=True)
        with open("made/losses.txt", "a") as file:
            print(loss.item().hex(), file=file)
        step += 1
        if step == 3 and args.fail_rank is not None and not again and int(os.environ["CASTOR_RANK"]) == args.fail_rank:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save(model.state_dict(), f"made/{kind.__name__}.pt")
with open("made/losses.txt") as file:
    print(len(file.readlines()), sum(p.double().abs().sum().item() for p in torch.load("made/AdamW.pt").values()))
