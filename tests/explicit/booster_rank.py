"""Cases of training with a Booster on each rank, or with the same written in plain PyTorch: see test_booster.py.

    booster_rank.py PLUGIN [save FOLDER | load FOLDER | on] CASE...

PLUGIN: plain, plain-autocast, plain-fsdp (fully_shard), or a name of make_plugin's; `none` is a Booster without one. A case is words joined by +: sgd or adamw; fp16 or
bf16; lora, no_sync, lazy, clip; kinds of models (build) and habits (train); and how it is saved: shard, safe, background. Of each: the losses and norms of this rank, and the bits of
parameters and states at its end. `save` saves then, `load` goes on from there, `on` goes on without an interruption."""
import contextlib
import hashlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import in_rank_order
from found import end, found

STEPS, BATCH, WIDE = 4, 8, int(os.environ.get("BOOSTER_WIDE", "32"))
PLAIN = "plain"
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["first", "last"]}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDE, 2 * WIDE)
        self.norm = torch.nn.LayerNorm(2 * WIDE)
        self.last = torch.nn.Linear(2 * WIDE, WIDE)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def build(words):
    model = Model()
    if "batchnorm" in words:
        model.norm = torch.nn.BatchNorm1d(2 * WIDE)
    if "tied" in words:
        model.last = torch.nn.Sequential(torch.nn.Linear(2 * WIDE, WIDE), torch.nn.ReLU(), torch.nn.Linear(WIDE, 2 * WIDE), torch.nn.Linear(2 * WIDE, WIDE))
        model.last[2].weight, model.last[3].weight = model.first.weight, model.last[0].weight
    if {"frozen", "thaws"} & set(words):
        model.first.requires_grad_(False)
    if "half" in words:
        for p in model.parameters():
            p.data = p.data.half().float()
    return model


def make_plugin(name, precision, **more):
    from castor.booster import plugin as plugins

    chosen = {"precision": precision or "fp32", **more}
    if name == "ddp":
        return plugins.TorchDDPPlugin()
    if name in ("zero1", "zero2"):
        return plugins.LowLevelZeroPlugin(stage=int(name[-1]), initial_scale=2**16, hysteresis=1, **chosen)
    if name == "gemini":
        return plugins.GeminiPlugin(hysteresis=1, **chosen)
    if name == "gemini-static":
        return plugins.GeminiPlugin(hysteresis=1, offload_optim_frac=1.0, offload_param_frac=1.0, min_chunk_size_m=0.25, search_range_m=1, **chosen)
    if name == "fsdp":
        from torch.distributed.fsdp import MixedPrecision

        half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        return plugins.TorchFSDPPlugin(mixed_precision=half and MixedPrecision(param_dtype=half, reduce_dtype=torch.float32))
    if name.startswith("hybrid"):  # hybrid-TP, hybrid-replicas-TP
        return plugins.HybridParallelPlugin(tp_size=int(name[-1]), pp_size=1, zero_stage=0 if "replicas" in name else 1, hysteresis=1, **chosen)
    if name == "zero1-offload":
        return plugins.LowLevelZeroPlugin(cpu_offload=True, initial_scale=2**16, hysteresis=1, **chosen)
    return None


def optimizer_for(words, parameters):
    if "grows" in words:  # the others come later
        parameters = list(parameters)[:-2]
    if "groups" in words:
        parameters = [{"params": list(parameters)[:2], "weight_decay": 0.1}, {"params": list(parameters)[2:], "lr": 0.03}]
    if "adamw" in words:
        return torch.optim.AdamW(parameters, lr=0.01)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batch(step, part, parts, device):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(BATCH, WIDE, generator=generator), torch.randn(BATCH, WIDE, generator=generator)
    return x[part::parts].to(device), y[part::parts].to(device)


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def bits(tensors):
    summed = hashlib.sha256()
    for t in tensors:
        summed.update(t.float().cpu().numpy().tobytes())
    return summed.hexdigest()


def states(optimizer):
    of = sorted(optimizer.state_dict()["state"].items())
    return [whole(value) for _, p in of for _, value in sorted(p.items()) if isinstance(value, torch.Tensor)]


class Plain:
    """The case in plain PyTorch."""

    def __init__(self, words, device, autocast, sharded):
        self.words, self.device, self.sharded = words, device, sharded
        self.half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(next((w for w in words if w in ("fp16", "bf16")), None))
        torch.manual_seed(1)
        model = build(words)
        if "lora" in words:
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(**LORA))
        self.model = model.to(device)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad or "thaws" in words]
        self.optimizer = optimizer_for(words, self.parameters)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.autocast = autocast and self.half is not None and not sharded
        self.masters = self.half is not None and not autocast and not sharded
        self.scale = 2.0**16 if self.half is torch.float16 else 1.0
        if sharded:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            self.ddp = fully_shard(self.model, mp_policy=MixedPrecisionPolicy(param_dtype=self.half, reduce_dtype=torch.float32))
            self.parameters = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = optimizer_for(words, self.parameters)
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        elif self.masters:
            self.narrow = self._narrow()
        elif dist.get_world_size() > 1:
            self.ddp = DistributedDataParallel(torch.compile(self.model, backend="eager") if "compiled" in words else self.model, device_ids=[device] if device.type == "cuda" else None)
            if dist.get_world_size() > 2:
                self.ddp.register_comm_hook(None, in_rank_order.mean)
        else:
            self.ddp = self.model
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.autocast and self.half is torch.float16)

    def _narrow(self):
        import copy

        narrow = copy.deepcopy(self.model).to(self.half)
        for p in narrow.parameters():
            if self.half is torch.float16:
                p.grad_dtype = torch.float32
        for module in narrow.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.LayerNorm)):
                module.register_forward_pre_hook(lambda module, args: tuple(a.to(module.weight.dtype) for a in args))
        return narrow

    def forward(self, x, y):
        if self.masters:
            return F.mse_loss(self.narrow(x).float(), y)
        with torch.autocast(self.device.type, dtype=self.half, enabled=self.autocast):
            return F.mse_loss(self.ddp(x).float() if self.sharded else self.ddp(x), y)

    def backward(self, loss):
        (self.scaler.scale(loss) if self.autocast else loss * self.scale if self.masters else loss).backward()

    @contextlib.contextmanager
    def _added_up(self):
        self.ddp.set_requires_gradient_sync(False)
        yield
        self.ddp.set_requires_gradient_sync(True)

    def no_sync(self):
        if self.sharded:
            return self._added_up()
        return self.ddp.no_sync() if not self.masters and dist.get_world_size() > 1 else contextlib.nullcontext()

    def before_step(self):
        """Gradients as floats without scale: the ranks' mean."""
        if not self.masters:
            self.scaler.unscale_(self.optimizer) if self.autocast else None
            return
        ranks = dist.get_world_size()
        narrow = [p for p in self.narrow.parameters() if p.requires_grad]
        for p, n in zip(self.parameters, narrow):
            grad = n.grad if self.half is torch.bfloat16 else n.grad.float() / self.scale
            every = [torch.empty_like(grad) for _ in range(ranks)]
            dist.all_gather(every, grad * (1 / ranks))
            p.grad = sum(every[1:], every[0]).float()
            n.grad = None

    @torch.no_grad()
    def clip(self):
        if self.sharded and self.device.type == "cpu":  # by the norms of whole tensors; of DTensors PyTorch adds those of the ranks' parts
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(map(whole, gradients))
            for gradient in gradients:
                gradient.to_local().mul_(torch.clamp(0.5 / (norm + 1e-6), max=1.0))
            return norm
        norm = whole(torch.nn.utils.clip_grad_norm_(self.parameters, 0.5))
        if self.masters and norm > 0.5:  # docs/precision.md: what bf16 clips is rounded once more
            for p in self.parameters:
                p.grad = p.grad.to(self.half).float() if self.half is torch.bfloat16 else p.grad
        return norm

    def step(self):
        if self.autocast:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.masters:
            with torch.no_grad():
                for p, n in zip(self.model.parameters(), self.narrow.parameters()):
                    n.copy_(p)

    part = property(lambda self: (dist.get_rank(), dist.get_world_size()))

    def whole(self):
        return self.narrow if self.masters else self.model

    def state(self):
        """Float masters, and the buffers of the model that runs."""
        return {**self.model.state_dict(), **dict(self.whole().named_buffers())}


class Boosted:
    """The case with a Booster."""

    def __init__(self, name, words, device):
        from castor.booster import Booster
        from castor.lazy import LazyInitContext

        precision = next((w for w in words if w in ("fp16", "bf16")), None)
        self.device = device
        self.plugin = make_plugin(name, precision)
        own = self.plugin is None or not self.plugin.control_precision()
        self.booster = Booster(plugin=self.plugin, mixed_precision=precision if own else None)
        torch.manual_seed(1)
        with LazyInitContext() if "lazy" in words else contextlib.nullcontext():
            model = build(words)
        if "half" in words:
            model = model.half()
        if "lora" in words:
            import peft

            model = self.booster.enable_lora(model, lora_config=peft.LoraConfig(**LORA))
        optimizer = optimizer_for(words, [p for p in model.parameters() if p.requires_grad or "thaws" in words])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        if "compiled" in words:
            model = torch.compile(model, backend="eager")
        self.model, self.optimizer, self.criterion, _, self.scheduler = self.booster.boost(model, optimizer, F.mse_loss, lr_scheduler=scheduler)

    def forward(self, x, y):
        return self.criterion(self.model(x).float(), y)

    def backward(self, loss):
        self.booster.backward(loss, self.optimizer)

    def no_sync(self):
        return self.booster.no_sync(self.model, self.optimizer)

    def before_step(self):
        pass

    def clip(self):
        return self.optimizer.clip_grad_by_norm(0.5)

    def step(self):
        self.optimizer.step()

    def files(self, folder, case):
        return [os.path.join(folder, f"{case}-{what}") for what in ("model", "optimizer", "scheduler")]

    def save(self, folder, case, words):
        model, optimizer, scheduler = self.files(folder, case)
        shard, background = "shard" in words, "background" in words
        suffix = "" if shard else ".safetensors" if "safe" in words else ".bin"
        self.booster.save_model(self.model, model + suffix, shard=shard, size_per_shard=1, use_safetensors="safe" in words, use_async=background)
        self.booster.save_optimizer(self.optimizer, optimizer + ("" if shard else ".bin"), shard=shard, size_per_shard=1, use_async=background)
        self.booster.save_lr_scheduler(self.scheduler, scheduler + ".bin")

    def load(self, folder, case, words):
        model, optimizer, scheduler = self.files(folder, case)
        shard = "shard" in words
        self.booster.load_model(self.model, model + ("" if shard else ".safetensors" if "safe" in words else ".bin"))
        self.booster.load_optimizer(self.optimizer, optimizer + ("" if shard else ".bin"))
        self.booster.load_lr_scheduler(self.scheduler, scheduler + ".bin")

    @property
    def part(self):
        if self.plugin is None:
            return dist.get_rank(), dist.get_world_size()
        return (dist.get_rank(self.plugin.dp_group) if self.plugin.dp_group is not None else 0), self.plugin.dp_size

    def whole(self):
        return self.model.unwrap() if hasattr(self.model, "unwrap") else self.model

    def state(self):
        """With masters in the place of what is rounded (docs/hybrid.md)."""
        from castor.shardformer.checkpoint_io import HybridParallelCheckpointIO

        checkpoints = self.booster.checkpoint_io
        return checkpoints._floats(self.model) if isinstance(checkpoints, HybridParallelCheckpointIO) else self.whole().state_dict()


def train(case, run, words, first=0):
    losses, norms, micro = [], [], 3 if "no_sync" in words else 1
    for step in range(first, first + STEPS):
        for number in range(micro):
            with run.no_sync() if number < micro - 1 else contextlib.nullcontext():
                loss = run.forward(*batch(step * micro + number, *run.part, run.device))
                losses.append(loss.item())
                run.backward(loss / micro)
        run.before_step()
        if "clip" in words:
            norms.append(float(run.clip()))
        run.step()
        run.scheduler.step()
        if "kept" not in words:
            run.optimizer.zero_grad(set_to_none="zeros" not in words)
        if "alone" in words and dist.get_rank() == 0:
            with torch.no_grad():
                norms.append(float(run.whole()(batch(step, 0, 1, run.device)[0]).float().sum()))
                norms.append(sum(float(t.double().sum()) for t in run.state().values()))
    model = {key: whole(value) for key, value in run.state().items()}
    found(case, {"part": run.part[0], "losses": losses, "norms": norms, "names": [key.removeprefix("_orig_mod.") for key in model], "model": bits(model.values()),
                 "optimizer": bits(states(run.optimizer)), "numbers": [float(t.double().sum()) for t in model.values()]})


def main():
    name, *cases = sys.argv[1:]
    does = cases.pop(0) if cases[0] in ("save", "load", "on") else None
    folder = cases.pop(0) if does in ("save", "load") else None
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    for case in cases:
        words = case.split("+")
        if name.startswith(PLAIN):
            run = Plain(words, device, name == "plain-autocast", name == "plain-fsdp")
        else:
            run = Boosted(name, words, device)
        if does == "load":
            run.load(folder, case, words)
        elif does == "on":
            train(f"{case} before", run, words)
        train(case, run, words, first=STEPS if does in ("load", "on") else 0)
        if does == "save":
            run.save(folder, case, words)
        del run
    end()


if __name__ == "__main__":
    main()
