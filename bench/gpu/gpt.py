"""The model and the sizes of bench/gpu's training scripts, their data, and the record that each leaves for bench.py."""
import argparse
import json
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpt_cpu"))
from model import GPT  # noqa: E402

# Parameters of 16 bytes each: value, gradient and the two states of Adam, in fp32.
SIZES = {
    "tiny": dict(vocabulary=256, width=64, layers=2, heads=4, context=32),
    "350M": dict(vocabulary=50304, width=1024, layers=24, heads=16, context=1024),
    "1.3B": dict(vocabulary=50304, width=2048, layers=24, heads=16, context=2048),
    "7B": dict(vocabulary=50304, width=4096, layers=32, heads=32, context=2048),
}


def parameters_of(size):
    """How many parameters a size has, without making it."""
    s = SIZES[size]
    width = s["width"]
    return (s["vocabulary"] + s["context"]) * width + s["layers"] * (12 * width * width + 13 * width) + 2 * width


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("result", help="the file that gets the record")
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a micro-step")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-steps of a step")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not timed")
    parser.add_argument("--fp32", action="store_true", help="of train_fsdp2.py: no bfloat16, whose LayerNorm simulated devices do not have")
    return parser.parse_args()


def data_of(size, batch):
    """Endless batches on the device, from the host's generator: the same for every script."""
    shape = SIZES[size]
    generator = torch.Generator().manual_seed(1)
    while True:
        tokens = (torch.rand(batch, shape["context"] + 1, generator=generator).pow(3) * shape["vocabulary"]).long().cuda()
        yield tokens[:, :-1], tokens[:, 1:]


class Record:
    """Losses and times of steps; what the device holds after each."""

    def __init__(self, args, parameters):
        self.args, self.losses, self.norms, self.times = args, [], [], []
        self.used = []
        self.record = {"size": args.size, "parameters": parameters, "tokens_per_step": args.batch * args.accumulate * SIZES[args.size]["context"]}
        self.started = time.perf_counter()

    def begin(self):
        torch.cuda.synchronize()
        self.begun = time.perf_counter()

    def end(self, loss, norm):
        torch.cuda.synchronize()
        self.times.append(time.perf_counter() - self.begun)
        self.losses.append(float(loss))
        self.norms.append(float(norm))
        free, total = torch.cuda.mem_get_info()
        self.used.append(total - free)
        self.write()

    def write(self, **more):
        """After each step: what there is, if the script ends early."""
        timed = sorted(self.times[self.args.warmup:]) or sorted(self.times)
        self.record.update(
            losses=self.losses, norms=self.norms, seconds=[round(seconds, 5) for seconds in self.times], step_s=round(timed[len(timed) // 2], 5),
            tokens_per_s=round(self.record["tokens_per_step"] / timed[len(timed) // 2], 1), device_bytes_after_steps=self.used,
            pytorch_peak_bytes=torch.cuda.max_memory_allocated(), whole_s=round(time.perf_counter() - self.started, 2), **more)
        with open(self.args.result + ".new", "w") as file:
            json.dump(self.record, file)
        os.replace(self.args.result + ".new", self.args.result)


def bits_of(model):
    """A number that another bit of a parameter changes, nearly always."""
    return sum(int(parameter.detach().view(torch.int32).sum(dtype=torch.int64)) * (i + 1) for i, parameter in enumerate(model.parameters()))


def make(size):
    """The model; its attention is the one whose backward gives the same bits twice where deterministic algorithms are asked for."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.manual_seed(0)
    with torch.device("cuda"):  # a large model is made in seconds there
        return GPT(**SIZES[size])
