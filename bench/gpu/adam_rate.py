"""What torch's own AdamW moves in a second, for reference: adam_rate.py RESULT.json ELEMENTS"""
import json
import sys

import torch

path, elements = sys.argv[1], int(sys.argv[2])
BYTES = 7 * 4  # parameter, gradient and two states are read, all but the gradient written
rows = []
for tensors in (1, 64):
    parameters = [torch.nn.Parameter(torch.randn(elements // tensors, device="cuda")) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    for name in ("fused", "foreach"):
        optimizer = torch.optim.AdamW(parameters, **{name: True})
        times = []
        for _ in range(12):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            optimizer.step()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        ms = sorted(times[2:])[5]
        rows.append({"implementation": name, "tensors": tensors, "elements": elements, "ms": round(ms, 3),
                     "gb_per_s": round(elements * BYTES / max(ms, 1e-6) / 1e6, 1)})
with open(path, "w") as file:
    json.dump({"adam": rows}, file)
