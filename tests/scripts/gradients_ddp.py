"""What scripts do with gradients between backward and step."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record
from model import Classifier, batch


def start(optimizer_class=torch.optim.AdamW, lr=1e-3, **settings):
    model = DistributedDataParallel(Classifier())
    return model, optimizer_class(model.parameters(), lr=lr, **settings)


def backward(model, step):
    x, y = batch(step)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


@record.case
def zeroed_in_place(log):
    model, optimizer = start()
    same, known = [], None
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        log.gradients(model, "zeroed")
        loss = backward(model, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        grads = [id(p.grad) for p in model.parameters()]
        same.append(known is None or known == grads)
        known = grads
        log.step(loss, model, optimizer)
    log.note("the same gradient tensors", same)


@record.case
def zeroed_by_the_module(log):
    model, optimizer = start()
    for step in range(4):
        model.zero_grad(set_to_none=step % 2 == 0)
        loss = backward(model, step)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def zeroed_by_hand(log):
    model, optimizer = start()
    for step in range(4):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        loss = backward(model, step)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def never_zeroed(log):
    model, optimizer = start(torch.optim.SGD, 0.01)
    for step in range(4):
        loss = backward(model, step)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def kept_in_a_list(log):
    """References to old gradients, no clones; one rank looks at them late."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    kept = []
    for step in range(4):
        optimizer.zero_grad()
        loss = backward(model, step)
        optimizer.step()
        kept.append([p.grad for p in model.parameters()])
        log.step(loss, model, optimizer)
        if dist.get_rank() == step % dist.get_world_size():
            log.note("kept so far", kept)
    log.note("kept", kept)


@record.case
def zeroed_in_place_listed_twice(log):
    """PyTorch only warns where an optimizer lists a parameter twice, and steps it twice."""
    model, _ = start()
    optimizer = torch.optim.SGD([*model.parameters(), model.module.deep.weight], 0.1)
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        log.gradients(model, "zeroed")
        loss = backward(model, step)
        optimizer.step()
        if dist.get_rank() != step % 2:
            time.sleep(0.1)  # the other rank zeroes its gradients meanwhile
        log.step(loss, model, optimizer)


@record.case
def kept_while_zeroed_in_place(log):
    """The kept reference is the live gradient, so it follows it."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    kept = []
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        loss = backward(model, step)
        kept.append(model.module.deep.weight.grad)
        optimizer.step()
        log.step(loss, model, optimizer)
        log.note("kept", kept)


@record.case
def replaced(log):
    model, optimizer = start()
    for step in range(4):
        optimizer.zero_grad()
        loss = backward(model, step)
        for p in model.parameters():
            p.grad = p.grad * 0.5 + 0.001 * p.detach()
        model.module.inner.weight.grad.data.add_(1e-3)
        log.gradients(model, "replaced")
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def edited_in_place(log):
    """Scaling, noise from a common seed, a mask on some rows, a gradient set to None."""
    model, optimizer = start(torch.optim.SGD, 0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        loss = backward(model, step)
        generator = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad.mul_(2.0).add_(torch.randn(p.shape, generator=generator), alpha=1e-3)
        model.module.deep.weight.grad[10:20] = 0
        model.module.wide.weight.grad.data.clamp_(-0.01, 0.01)
        if step == 2:
            model.module.inner.bias.grad = None
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def noise_of_one_rank(log):
    """One rank alone changes its gradients: what its own gradients show must be that, and no other rank sees it."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = backward(model, step)
        if dist.get_rank() == 1:
            model.module.deep.weight.grad.add_(1.0)
            log.gradients(model, "edited")
            model.module.deep.weight.grad.sub_(1.0)
        log.gradients(model)
        dist.barrier()
        if dist.get_rank() == 1:
            model.module.deep.weight.grad.zero_()
        log.gradients(model, "zeroed on one rank")
        model.zero_grad()
        log.note("loss", loss)


@record.case
def step_on_noise_of_one_rank(log):
    """The replicas would drift apart from here."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = backward(model, step)
        if step and dist.get_rank() == 1:
            model.module.deep.weight.grad.add_(1.0)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def gathered_by_the_script(log):
    """The script's own collectives over gradients that are averaged already."""
    model, optimizer = start()
    for step in range(3):
        optimizer.zero_grad()
        loss = backward(model, step)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def hooks_of_the_script(log):
    """Hooks made before and after the wrapper, on tensors and on accumulation."""
    network = Classifier()
    seen = []

    def observe(p):
        seen.append(None if p.grad is None else p.grad.norm())

    for p in network.parameters():
        p.register_post_accumulate_grad_hook(observe)
    network.deep.weight.register_hook(lambda grad: grad * 0.5)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = backward(model, step)
        optimizer.step()
        log.step(loss, model, optimizer)
    log.note("count", len(seen))


@record.case
def hooks_after_the_wrapper(log):
    """They see the gradient; one that the script keeps stays in its place until the backward ends."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    kept, seen = [], []

    def observe(p):
        time.sleep(0.01)  # meanwhile it is summed
        seen.append((p.grad is not None, all(q.grad is grad for q, grad in kept)))
        kept.append((p, p.grad))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(observe)
    for step in range(2):
        optimizer.zero_grad()
        loss = backward(model, step)
        optimizer.step()
        log.step(loss, model, optimizer)
        kept.clear()
    log.note("all in place", all(flag for flags in seen for flag in flags))
    log.note("count", len(seen))


@record.case
def two_backwards_of_one_graph(log):
    model, optimizer = start(torch.optim.SGD, 0.1)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def two_forwards_one_backward(log):
    model, optimizer = start(torch.optim.SGD, 0.1)
    for step in range(3):
        optimizer.zero_grad()
        first, second = batch(step), batch(step + 50)
        loss = F.cross_entropy(model(first[0]), first[1]) + F.cross_entropy(model(second[0]), second[1])
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def two_losses_one_step(log):
    """Two forward and backward passes, both synchronized, into the same gradients."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        log.gradients(model, "after the first")
        loss = backward(model, step + 50)
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def double_backward(log):
    """A gradient penalty: autograd.grad through the wrapper, then backward through that gradient."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    for step in range(3):
        x, y = batch(step)
        x.requires_grad_(True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = loss + slope.pow(2).sum()
        loss.backward()
        optimizer.step()
        log.note("slope", slope)
        log.step(loss, model, optimizer)


@record.case
def gradient_of_the_input_only(log):
    """An adversarial step: gradients of the input alone, which must not touch the parameters' gradients."""
    model, optimizer = start()
    for step in range(3):
        x, y = batch(step)
        x.requires_grad_(True)
        optimizer.zero_grad()
        (slope,) = torch.autograd.grad(F.cross_entropy(model.module(x), y), x)
        log.gradients(model, "before")
        x = (x + 0.01 * slope.sign()).detach()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def stale_graph(log):
    """Backward through a graph whose weights were stepped meanwhile is an error in PyTorch."""
    model, optimizer = start(torch.optim.SGD, 0.1)
    x, y = batch(7)
    stale = F.cross_entropy(model.module(x), y)
    before = [p._version for p in model.parameters()]
    optimizer.zero_grad()
    loss = backward(model, 0)
    optimizer.step()
    after = [p._version for p in model.parameters()]
    try:
        torch.autograd.grad(stale, list(model.parameters()))
        log.note("error", None)
    except RuntimeError as error:
        log.note("error", type(error).__name__)
    log.note("versions grew", [b > a for a, b in zip(before, after)])
    log.step(loss, model, optimizer)


@record.case
def slow_ranks(log):
    """Ranks that reach each point at different times read the same values."""
    model, optimizer = start()
    for step in range(3):
        optimizer.zero_grad()
        loss = backward(model, step)
        if dist.get_rank() == 0:
            time.sleep(0.1)
        log.parameters(model, "before")
        log.gradients(model, "before")
        optimizer.step()
        if dist.get_rank() == 1:
            time.sleep(0.1)
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
