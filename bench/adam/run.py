#!/usr/bin/env python3
"""AdamW's step: Castor's kernels beside torch's three implementations, DeepSpeed's CPUAdam and what memory allows.

    bench/adam/run.py [--quick] [--python INTERPRETER] [--sizes 1,4,32,200] [-o RESULT.json]

All contenders of a case (a type of parameters, a size, a number of threads) step the same memory in one process, in turn, round by
round; ratios are taken within a round, and their medians are shown. Parameters and gradients are of the case's type, states are
float; torch's own 16-bit steps have 16-bit states and so move fewer bytes. The limit reads and writes the same bytes with three
additions an element (stream.c). INTERPRETER needs torch; where it has deepspeed too (bench/README.md), CPUAdam takes part.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = os.path.join(ROOT, "build", "lib", "libcastor.so")
FOLDER = os.path.join(ROOT, "build", "bench")
MILLION = 10**6
LR, BETAS, EPS, DECAY = 1e-6, (0.9, 0.999), 1e-8, 0.01


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv", "bin", "python"))
    parser.add_argument("--sizes", help="millions of elements")
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, help="of the smaller sizes; the largest have fewer")
    parser.add_argument("--quick", action="store_true", help="1 and 16 million elements, 3 rounds: half a minute")
    parser.add_argument("--note", default="", help="kept in the result file")
    parser.add_argument("-o", "--output")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.sizes = args.sizes or ("1,16" if args.quick else "1,4,32,200")
    args.rounds = args.rounds or (3 if args.quick else 9)
    args.output = args.output or os.path.join(
        ROOT, *(("build", "bench", "adam_quick.json") if args.quick else ("bench", "results", "adam.json")))
    return args


def start():
    """The measuring process: with the library there from its start, and as many threads as a case wants."""
    os.makedirs(FOLDER, exist_ok=True)
    subprocess.check_call([os.environ.get("CC", "cc"), "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared",
                           os.path.join(HERE, "stream.c"), "-o", os.path.join(FOLDER, "stream.so")])
    args = parse_arguments()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CASTOR_", "OMP_", "MKL_"))}
    environment.update(LD_PRELOAD=LIBRARY, CASTOR_LOG_LEVEL="error", OPTIMIZER_TEST_LIBRARY=LIBRARY,
                       PATH=os.path.dirname(args.python) + os.pathsep + os.environ["PATH"])
    return subprocess.call([args.python, os.path.abspath(__file__), "--inside", *sys.argv[1:]], env=environment)


class Case:
    """The memory that all contenders step, and the contenders: name to a function that makes one step."""

    def __init__(self, torch, native, dtype, numel, threads, deepspeed):
        self.torch, self.native, self.numel, self.threads = torch, native, numel, threads
        torch.set_num_threads(threads)
        self.param = torch.nn.Parameter(torch.randn(numel).to(dtype))
        self.param.grad = torch.randn(numel).to(dtype)
        self.states = [torch.zeros(numel), torch.ones(numel)]
        half = [state.to(dtype) for state in self.states] if dtype != torch.float32 else self.states
        self.contenders = {"limit": self.stream(), "castor": self.castor(False), "castor_fused": self.castor(True),
                           "torch_fused": self.optimizer(half, fused=True),
                           "torch_foreach": self.optimizer(half, foreach=True),
                           "torch_default": self.optimizer(half, foreach=False)}
        if deepspeed:
            self.contenders["deepspeed"] = self.deepspeed(deepspeed)

    def addresses(self):
        return [ctypes.c_void_p(tensor.data_ptr()) for tensor in (self.param, self.param.grad, *self.states)]

    def stream(self):
        library = ctypes.CDLL(os.path.join(FOLDER, "stream.so"))
        function = library.stream_float if self.param.dtype == self.torch.float32 else library.stream_half
        arguments = [*self.addresses(), ctypes.c_size_t(self.numel), self.threads]
        return lambda: function(*arguments)

    def castor(self, fused):
        kept = self.native.Native(self.param.detach(), fused, self.threads)
        kept.states = self.states
        grad = self.param.grad
        return lambda: kept.adam(grad, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, decoupled=True)

    def optimizer(self, states, **implementation):
        optimizer = self.torch.optim.AdamW([self.param], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, **implementation)
        optimizer.state[self.param] = dict(step=self.torch.tensor(1.0), exp_avg=states[0], exp_avg_sq=states[1])
        return optimizer.step

    def deepspeed(self, make):
        optimizer = make([self.param], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, adamw_mode=True)
        optimizer.state[self.param] = dict(step=1, exp_avg=self.states[0], exp_avg_sq=self.states[1])
        return optimizer.step

    def measure(self, rounds):
        """Seconds of a step, for each contender one figure a round."""
        seconds = {name: [] for name in self.contenders}
        repeats = max(1, 8 * MILLION // self.numel)
        for step in self.contenders.values():
            step()
        for number in range(rounds):
            names = list(self.contenders)
            for name in names[number % len(names):] + names[:number % len(names)]:
                step, slow = self.contenders[name], name in ("torch_default", "torch_foreach")
                count = 1 if slow and repeats < 4 else max(1, repeats // (2 if slow else 1))
                begin = time.perf_counter()
                for _ in range(count):
                    step()
                seconds[name].append((time.perf_counter() - begin) / count)
        return seconds


def figures_of(seconds):
    def ratio(name, to):
        return round(statistics.median(a / b for a, b in zip(seconds[name], seconds[to])), 3)

    figures = {"milliseconds": {name: round(statistics.median(values) * 1e3, 3) for name, values in seconds.items()}}
    for ours in ("castor", "castor_fused"):
        figures[ours + "_speed_to"] = {name: ratio(name, ours) for name in seconds if not name.startswith("castor")}
    return figures


def inside():
    args = parse_arguments()
    sys.path.insert(0, os.path.join(ROOT, "tests", "optimizer"))
    import torch
    import native
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam as deepspeed
        import importlib.metadata
        deepspeed_version = importlib.metadata.version("deepspeed")
    except ImportError:
        deepspeed = deepspeed_version = None
    cases = []
    for name in args.types.split(","):
        for millions in args.sizes.split(","):
            for threads in map(int, args.threads.split(",")):
                numel = int(float(millions) * MILLION)
                case = Case(torch, native, getattr(torch, name), numel, threads, deepspeed)
                seconds = case.measure(args.rounds if numel <= 50 * MILLION else max(3, args.rounds // 3))
                del case
                figures = figures_of(seconds)
                cases.append(dict(type=name, numel=numel, threads=threads, **figures, seconds=seconds))
                print(f"{name}, {millions} M, {threads} threads: {figures['milliseconds']['castor']} ms;",
                      "castor's speed to", figures["castor_speed_to"], "fused", figures["castor_fused_speed_to"], flush=True)
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
    version = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    result = dict(bench="adam", date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                  command="run.py " + " ".join(a for a in sys.argv[1:] if a != "--inside"), note=args.note,
                  machine=dict(cpu=cpu, cores=os.cpu_count(), kernel=platform.release()),
                  versions=dict(torch=torch.__version__, deepspeed=deepspeed_version, castor=version), cases=cases)
    os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
    with open(args.output, "w") as file:
        json.dump(result, file)
        file.write("\n")
    print(args.output)


if __name__ == "__main__":
    if "--inside" in sys.argv:
        inside()
    else:
        sys.exit(start())
