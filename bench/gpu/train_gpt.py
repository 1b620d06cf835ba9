"""A plain training script for one device: fp32 parameters, autocast to bfloat16, AdamW, clipping, accumulation by hand."""
import torch

import gpt

args = gpt.arguments()
torch.use_deterministic_algorithms(True)  # with warn_only, backward passes of attention give other bits each time
torch.utils.deterministic.fill_uninitialized_memory = False

model = gpt.make(args.size)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
data = gpt.data_of(args.size, args.batch)
record = gpt.Record(args, sum(parameter.numel() for parameter in model.parameters()))

for step in range(args.steps):
    record.begin()
    total = 0.0
    for _ in range(args.accumulate):
        inputs, targets = next(data)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(inputs, targets) / args.accumulate
        loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    record.end(total, norm)

record.write(bits=gpt.bits_of(model))
