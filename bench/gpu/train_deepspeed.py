"""The same training with DeepSpeed's ZeRO-Offload (stage 2, states and steps on the CPU), in one process."""
import os

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29517"))

import deepspeed  # noqa: E402

import gpt  # noqa: E402

args = gpt.arguments()
model = gpt.make(args.size)
count = sum(parameter.numel() for parameter in model.parameters())
configuration = dict(
    train_micro_batch_size_per_gpu=args.batch, gradient_accumulation_steps=args.accumulate, gradient_clipping=1.0, bf16=dict(enabled=True),
    zero_optimization=dict(stage=2, offload_optimizer=dict(device="cpu", pin_memory=True), overlap_comm=True, contiguous_gradients=True),
    optimizer=dict(type="AdamW", params=dict(lr=3e-4)), steps_per_print=1 << 30)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration)
data = gpt.data_of(args.size, args.batch)
record = gpt.Record(args, count)

for step in range(args.steps):
    record.begin()
    total = 0.0
    for _ in range(args.accumulate):
        inputs, targets = next(data)
        loss = engine(inputs, targets)
        engine.backward(loss)
        engine.step()
        total += loss.detach().float() / args.accumulate
    record.end(total, engine.get_global_grad_norm() or 0.0)
