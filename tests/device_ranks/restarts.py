"""One rank of a script that saves after each step, and goes on from what was saved, for run.py:

    restarts.py [RANK]      this rank is killed in the third step of the first attempt"""
import os
import signal
import sys

import torch
import torch.distributed as dist

from looks import digest, say

RANK, STEPS, FILE = int(os.environ["RANK"]), 5, "saved.pt"
KILLED = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and sys.argv[1:] == [str(RANK)]


def main():
    torch.set_num_threads(1)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    wrapped, optimizer, first = torch.nn.parallel.DistributedDataParallel(model), torch.optim.AdamW(model.parameters(), 1e-3), 0
    if os.path.exists(FILE):
        kept = torch.load(FILE, map_location="cuda")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["step"] + 1
    for step in range(first, STEPS):
        torch.manual_seed(10 * step + RANK)
        optimizer.zero_grad()
        wrapped(torch.randn(8, 512, device="cuda")).pow(2).mean().backward()
        if KILLED and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if RANK == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{FILE}.new")
            os.replace(f"{FILE}.new", FILE)
    say("end", digest(model.parameters()), digest(value["exp_avg"] for _, value in sorted(optimizer.state_dict()["state"].items())))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
