"""Mixed precision: loss scaling, autocast, models in another dtype."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch


def scaled(log, make_optimizer, unscale=False, overflow_rank=None, steps=6):
    model = DistributedDataParallel(Classifier())
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if step == 2 and dist.get_rank() == overflow_rank:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        log.gradients(model, "scaled")
        if unscale:
            scaler.unscale_(optimizer)
            log.note("norm", torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        scaler.step(optimizer)
        scaler.update()
        log.note("scale", scaler.get_scale())
        log.print(f"scale {scaler.get_scale():.1f}")
        log.step(None if step == 2 else loss, model, optimizer)
    log.note("scaler", scaler.state_dict())


@record.case
def scaler(log):
    scaled(log, lambda p: torch.optim.SGD(p, lr=0.1))


@record.case
def overflow_on_one_rank(log):
    scaled(log, lambda p: torch.optim.AdamW(p, lr=1e-3), overflow_rank=1)


@record.case
def overflow_unscaled_and_clipped(log):
    scaled(log, lambda p: torch.optim.AdamW(p, lr=1e-3), unscale=True, overflow_rank=0)


@record.case
def scaler_with_fused_optimizer(log):
    """A fused optimizer takes the scale and the overflow flag inside its step."""
    scaled(log, lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True), overflow_rank=1)


@record.case
def scaler_over_two_optimizers(log):
    model = DistributedDataParallel(Classifier())
    body = torch.optim.SGD([p for name, p in model.named_parameters() if ".head." not in name], lr=0.1)
    head = torch.optim.Adam(model.module.head.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    for step in range(5):
        x, y = batch(step)
        body.zero_grad()
        head.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if step == 3 and dist.get_rank() == 0:
            log.note("peek", model.module.head.weight.grad)
        scaler.unscale_(head)
        log.gradients(model, "after unscale of one")
        scaler.step(body)
        scaler.step(head)
        scaler.update()
        log.step(loss, model, body)
        log.step(None, None, head)


@record.case
def autocast(log):
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


def in_dtype(log, dtype, optimizer_class, lr, **settings):
    model = DistributedDataParallel(Classifier().to(dtype))
    optimizer = optimizer_class(model.parameters(), lr=lr, **settings)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(dtype)).float(), y)
        loss.backward()
        log.note("norm", torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def bfloat16_model(log):
    in_dtype(log, torch.bfloat16, torch.optim.AdamW, 2e-3)


@record.case
def bfloat16_model_sgd(log):
    in_dtype(log, torch.bfloat16, torch.optim.SGD, 0.1, momentum=0.9)


@record.case
def float16_model(log):
    in_dtype(log, torch.float16, torch.optim.SGD, 0.1)


@record.case
def double_model(log):
    in_dtype(log, torch.float64, torch.optim.AdamW, 1e-3)


@record.case
def mixed_dtypes(log):
    """The body in bfloat16, the head in float32."""
    network = Classifier().to(torch.bfloat16)
    network.head.float()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def master_weights_by_hand(log):
    """A bfloat16 model with float32 copies that the script keeps and steps itself."""
    model = DistributedDataParallel(Classifier().to(torch.bfloat16))
    masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    for step in range(4):
        x, y = batch(step)
        model.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        for master, p in zip(masters, model.parameters()):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters()):
                p.copy_(master)
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
