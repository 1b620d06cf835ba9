"""The same training by DeepSpeed's ZeRO-Infinity: parameters and optimizer states in files of a folder, as its NVMe offload has
them. The script is edited as DeepSpeed asks. Times as train_ddp.py notes them.
"""

import argparse
import json
import os
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpt_cpu"))

from model import GPT, SIZES, batches

parser = argparse.ArgumentParser()
parser.add_argument("--size", required=True, choices=SIZES)
parser.add_argument("--batch", type=int, default=1, help="sequences per rank and step")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--optimizer", choices=("adam",), default="adam")
parser.add_argument("--records", required=True, help="folder for the records")
parser.add_argument("--offload", required=True, help="folder for what is offloaded")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend="gloo")

model = GPT(**SIZES[args.size])
largest = max(p.numel() for p in model.parameters())
count, largest_bytes = sum(p.numel() for p in model.parameters()), 4 * largest
optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=3e-4, weight_decay=1e-2, adamw_mode=True)
where = dict(device="nvme", nvme_path=args.offload, pin_memory=False)
configuration = dict(
    train_micro_batch_size_per_gpu=args.batch, gradient_accumulation_steps=1,
    zero_optimization=dict(
        stage=3, offload_param=dict(where, buffer_count=8, buffer_size=2 * largest), offload_optimizer=dict(where, buffer_count=4),
        sub_group_size=2 * largest, stage3_max_live_parameters=4 * largest, stage3_max_reuse_distance=0,
        stage3_prefetch_bucket_size=2 * largest, stage3_param_persistence_threshold=1 << 14, reduce_bucket_size=2 * largest),
    aio=dict(block_size=1 << 20, queue_depth=8, single_submit=False, overlap_events=True, thread_count=1),
)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)
data = batches(args.size, args.batch, dist.get_rank())
records = open(os.path.join(args.records, f"rank{dist.get_rank()}.jsonl"), "w", buffering=1)


def write(**record):
    records.write(json.dumps(record) + "\n")


write(pid=os.getpid(), torch=torch.__version__, deepspeed=deepspeed.__version__, parameters=count, largest_bytes=largest_bytes)
for step in range(args.steps):
    inputs, targets = next(data)
    begin = time.monotonic()
    loss = engine(inputs, targets)
    forward = time.monotonic()
    engine.backward(loss)
    backward = time.monotonic()
    engine.step()
    stepped = time.monotonic()
    write(step=step, begin=begin, forward=forward, backward=backward, stepped=stepped, end=time.monotonic(), loss=float(loss.detach()),
          statistics=[{}, {}, {}])

records.close()
os._exit(0)  # its threads of aio and gloo end the process by a signal where Python takes them down
