"""What loops do between backward and step, and around them."""
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from . import case
from .networks import FEATURES, GPT, LENGTH, MLP, Adversary, batch, tokens, train, train_on_texts


@case
def accumulation(log, make):
    model = GPT(context=LENGTH).cuda()
    optimizer = make(model.parameters())
    for step in range(6):
        x, y = tokens(step)
        _, loss = model(x, y)
        (loss / 2).backward()
        if step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
        log.step(loss)
    log.end(model, optimizer)


@case
def clipped_by_norm(log, make):
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=(2.0, float("inf"))[step % 2], foreach=(None, False)[step // 2])
        optimizer.step()
        log.step(loss, norm=norm)
    log.end(model, optimizer)


@case
def clipped_by_value(log, make):
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def evaluation(log, make):
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        model.eval()
        with torch.no_grad() if step % 2 else torch.inference_mode():
            before = F.cross_entropy(model(batch(50)[0]), batch(50)[1])
        optimizer.step()
        with torch.no_grad():
            after = F.cross_entropy(model(batch(50)[0]), batch(50)[1])
        log.step(loss, before=before, after=after)
    log.end(model, optimizer)


@case
def zeroed(log, make):
    """Gradients are kept and zeroed, as they were before PyTorch 2."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        if step % 2:
            model.zero_grad(set_to_none=False)
        else:
            optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def scheduled(log, make):
    model = MLP().cuda()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)], [2])
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        log.step(loss, rate=optimizer.param_groups[0]["lr"])
    log.end(model, optimizer)


@case
def groups(log, make):
    """Without weight decay for vectors; the second group learns faster."""
    model = GPT(context=LENGTH).cuda()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = make([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 2e-3}])
    for step in range(4):
        optimizer.zero_grad()
        _, loss = model(*tokens(step))
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def hooked(log, make):
    """Hooks on parameters, on outputs and on modules read and change gradients."""
    model = MLP().cuda()
    seen = []
    model.head.weight.register_hook(lambda gradient: gradient * 0.5)

    def clamp(parameter):
        parameter.grad.clamp_(-1e-2, 1e-2)

    model.enter.weight.register_post_accumulate_grad_hook(clamp)
    model.blocks[0].register_forward_hook(lambda module, args, out: out * 1.5)
    model.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
    model.blocks[1].register_full_backward_hook(lambda module, before, after: seen.append(after[0].abs().max().item()))
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, seen=seen[-1])
    log.end(model, optimizer)


@case
def second_stream(log, make):
    """Half of each batch on another stream; gradients meet in backward."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    side = torch.cuda.Stream()
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other = F.cross_entropy(model(x[4:]), y[4:])
        loss = F.cross_entropy(model(x[:4]), y[:4])
        torch.cuda.current_stream().wait_stream(side)
        loss = (loss + other) / 2
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def trains_on_a_stream(log, make):
    """All of it, the optimizer as well, away from the default stream."""
    with torch.cuda.stream(torch.cuda.Stream()):
        model = MLP().cuda()
        train(log, model, make(model.parameters()))
    torch.cuda.synchronize()


@case
def steps_on_a_stream(log, make):
    """The optimizer's stream computes while the next batch is drawn."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    side = torch.cuda.Stream()
    for step in range(4):
        x, y = batch(step)
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            optimizer.step()
        log.step(loss)
    torch.cuda.synchronize()
    log.end(model, optimizer)


@case
def pinned_batches(log, make):
    """Batches come from pinned memory by a stream of their own."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    copies = torch.cuda.Stream()
    for step in range(4):
        x, y = (tensor.cpu().pin_memory() for tensor in batch(step))
        with torch.cuda.stream(copies):
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        for tensor in (x, y):
            tensor.record_stream(torch.cuda.current_stream())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def cache_emptied(log, make):
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        torch.cuda.empty_cache()
        loss.backward()
        optimizer.step()
        log.step(loss)
        torch.cuda.empty_cache()
    log.end(model, optimizer)


@case
def batch_grows(log, make):
    """The activations need more memory from the third step on."""
    model = GPT(context=LENGTH).cuda()
    train_on_texts(log, model, make(model.parameters()), (1, 1, 24, 24))


def _beside(log, make, sizes):
    """Each step needs so many mebibytes for a while, that are the driver's again before the optimizer steps."""
    model = GPT(context=LENGTH).cuda()
    optimizer = make(model.parameters())
    for step, size in enumerate(sizes):
        x, y = tokens(step)
        optimizer.zero_grad()
        _, loss = model(x, y)
        loss.backward()
        total = torch.ones(size << 18, device="cuda").sum()
        torch.cuda.empty_cache()
        optimizer.step()
        log.step(loss, total=total)
    log.end(model, optimizer)


@case
def memory_short_once(log, make):
    _beside(log, make, [1, 96, *[1] * 10])


@case
def memory_short_each_second_step(log, make):
    _beside(log, make, [1, 96] * 20)


@case
def recomputed(log, make):
    model = MLP(depth=3).cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        h = model.enter(x)
        for block in model.blocks:
            h = h + checkpoint(block, h, use_reentrant=step % 2 == 0)
        loss = F.cross_entropy(model.head(h), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def data_parallel(log, make):
    model = nn.DataParallel(MLP().cuda())
    train(log, model, make(model.parameters()))


@case
def two_models(log, make):
    """A generator and its adversary, a step each."""
    torch.manual_seed(5)
    made, judge = MLP(), Adversary()
    made.head = nn.Linear(768, FEATURES)
    made.cuda(), judge.cuda()
    optimizers = make(made.parameters()), make(judge.parameters())
    for step in range(4):
        real, noise = batch(step)[0], batch(100 + step)[0]
        optimizers[1].zero_grad()
        fake = made(noise)
        judged = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        judged.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss = F.softplus(-judge(fake)).mean()
        loss.backward()
        optimizers[0].step()
        log.step(loss, judged=judged)
    log.end({"made": made, "judge": judge}, *optimizers)


@case(without=("adagrad",))
def frozen(log, make):
    """Half of the model is frozen, and trained from the third step on."""
    model = MLP().cuda()
    late = [*model.enter.parameters(), *model.blocks[0].parameters()]
    for parameter in late:
        parameter.requires_grad_(False)
    optimizer = make([parameter for parameter in model.parameters() if parameter.requires_grad])
    for step in range(5):
        if step == 2:
            for parameter in late:
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": late})
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case(without=("sgd-fused",))
def partly_used(log, make):
    """A block is left out now and then: its gradients are None."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        h = model.enter(x)
        for number, block in enumerate(model.blocks):
            if (step + number) % 2:
                h = h + block(h)
        loss = F.cross_entropy(model.head(h), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def gradient_penalty(log, make):
    """The backward of a backward."""
    model = Adversary().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x = batch(step)[0].requires_grad_()
        optimizer.zero_grad()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.square().mean() + (slope.norm(dim=1) - 1).square().mean()
        loss.backward(retain_graph=True)
        out.mean().backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def functional_calls(log, make):
    """The weights as arguments, and a gradient for each sample."""
    model = MLP(width=512, depth=1).cuda()
    model.eval()
    optimizer = make(model.parameters())

    def loss_of(weights, x, y):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    for step in range(3):
        x, y = batch(step, 4)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].mean(0)
        optimizer.step()
        log.step(torch.func.functional_call(model, dict(model.named_parameters()), (x,)).square().mean())
    log.end(model, optimizer)


@case
def without_gradients_of_backward(log, make):
    """Gradients by torch.autograd.grad, set by hand."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        loss = F.cross_entropy(model(x), y)
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            parameter.grad = gradient
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)


@case
def after_a_failure(log, make):
    """A batch that needs more memory than there is, which the script leaves out."""
    model = MLP().cuda()
    optimizer = make(model.parameters())
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        if step == 1:
            with contextlib.suppress(torch.OutOfMemoryError):
                model(torch.empty(1 << 40, device="cuda", dtype=torch.float32))
                raise AssertionError("memory is expected to be out")
            continue
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss)
    log.end(model, optimizer)
