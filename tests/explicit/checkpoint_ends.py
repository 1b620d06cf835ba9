"""The end of a script with a save in the background; the argument is how it ends. A failing save: "full" before it."""
import os
import resource
import sys

import torch

large = torch.ones(6 << 20)
torch.save(large, "end.pt")
torch.save(large * 2, "end.pt") if "full" not in sys.argv else torch.load("end.pt")
if "full" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    torch.save(large * 2, "end.pt")
large.zero_()
print("the script's last line", flush=True)
if "exit" in sys.argv:
    sys.exit(3)
if "_exit" in sys.argv:
    os._exit(4)
if "raise" in sys.argv:
    raise ValueError("the script's own")
