"""Training loops in one process, with a DataLoader."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import record
from model import CLASSES, FEATURES, Classifier


def samples(count=32, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(x, torch.randint(0, CLASSES, (count,), generator=generator))


def train(log, make_optimizer, batch_size=8, epochs=1, network=Classifier, after_backward=None):
    model = network()
    optimizer = make_optimizer(model.parameters())
    for epoch in range(epochs):
        for x, y in DataLoader(samples(), batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if after_backward:
                after_backward(model)
            optimizer.step()
            log.step(loss, model, optimizer)
    return model


@record.case
def sgd(log):
    train(log, lambda p: torch.optim.SGD(p, lr=0.1))


class Waves(nn.Module):
    """Weighs the frequencies of its inputs; lazily conjugated gradients among others."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, FEATURES // 2 + 1, dtype=torch.cfloat) * 0.3)
        self.turns = nn.Parameter(torch.randn(4, 1, dtype=torch.cdouble))
        self.head = nn.Linear(4 * FEATURES, CLASSES)

    def forward(self, x):
        waves = torch.einsum("bf,cf->bcf", torch.fft.rfft(x), self.weights) * self.turns.conj().to(torch.cfloat)
        return self.head(torch.fft.irfft(waves, n=FEATURES).flatten(1))


@record.case
def complex_weights(log):
    train(log, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), network=Waves)


@record.case
def recomputed_twice(log):
    """Reentrant checkpoints of one layer: its parameters get two gradients in one backward."""

    class Twice(Classifier):
        def forward(self, x):
            shared, x = self.shared, x.requires_grad_()
            return super().forward(checkpoint(shared, checkpoint(shared, x, use_reentrant=True), use_reentrant=True))

    def network():
        model = Twice()
        model.shared = nn.Linear(FEATURES, FEATURES)
        return model

    train(log, lambda p: torch.optim.SGD(p, lr=0.1), network=network)


@record.case
def sparse_gradients(log):
    table = nn.Embedding(CLASSES, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for _, y in DataLoader(samples(), 8):
        optimizer.zero_grad()
        loss = table(y).square().mean()
        loss.backward()
        optimizer.step()
        log.step(loss, table)


@record.case
def sgd_momentum(log):
    train(log, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), epochs=2)


@record.case
def adam(log):
    train(log, lambda p: torch.optim.Adam(p, lr=1e-3))


@record.case
def adamw_fused(log):
    train(log, lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True))


@record.case
def double_precision(log):
    """In double precision the order of sums hardly shows: what is left would be a mistake."""
    model = Classifier().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in DataLoader(samples(30), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.double()), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def clipped_by_norm(log):
    train(
        log,
        lambda p: torch.optim.SGD(p, lr=0.1),
        after_backward=lambda model: log.note("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.5)),
    )


@record.case
def clipped_by_value(log):
    train(
        log,
        lambda p: torch.optim.SGD(p, lr=0.1),
        after_backward=lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01),
    )


@record.case
def clipped_by_the_batch(log):
    """A clipping limit that comes from the batch's samples."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1 * x.abs().max())
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def clipped_by_the_loss(log):
    """A clipping limit that follows the loss."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        log.note("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.2 * loss.item()))
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def accumulation(log):
    """Gradients of three batches to a step, the last step with what is left."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(samples(40), 8, shuffle=True)
    for index, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / 3
        loss.backward()
        log.gradients(model)
        if (index + 1) % 3 == 0 or index + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        log.step(loss, model, optimizer)


@record.case
def scaler(log):
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=2)
    for step, (x, y) in enumerate(DataLoader(samples(), 8, shuffle=True)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if step == 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        log.note("scale", scaler.get_scale())
        log.step(None if step == 2 else loss, model, optimizer)


@record.case
def several_losses(log):
    """A sum of terms; the parts are logged too."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        optimizer.zero_grad()
        logits = model(x)
        penalty = sum(p.pow(2).mean() for p in model.parameters())
        loss = F.cross_entropy(logits, y) + 0.1 * penalty
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def plateau_and_early_stop(log):
    """The learning rate falls and the run ends by what the losses say."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.05)
    best, waited = 1e9, 0
    for epoch in range(6):
        total = 0.0
        for x, y in DataLoader(samples(), 8, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        with torch.no_grad():
            model.eval()
            losses = [F.cross_entropy(model(x), y).item() for x, y in DataLoader(samples(20, seed=4), 8)]
            model.train()
        scheduler.step(losses[0])
        log.note("lr", optimizer.param_groups[0]["lr"])
        log.note("loss", [total, losses])
        log.print(f"epoch {epoch} loss {total / 4:.4f} validation {sum(losses) / 3:.4f}")
        waited = 0 if losses[0] < best else waited + 1
        best = min(best, losses[0])
        if waited == 2:
            break
    log.step(None, model, optimizer)


@record.case
def two_networks(log):
    """A generator and a clamped critic."""
    g = nn.Sequential(nn.Linear(16, 600), nn.ReLU(), nn.Linear(600, FEATURES))
    d = nn.Sequential(nn.Linear(FEATURES, 600), nn.ReLU(), nn.Linear(600, 1))
    g_optimizer = torch.optim.SGD(g.parameters(), lr=0.05)
    d_optimizer = torch.optim.SGD(d.parameters(), lr=0.05)
    noise = torch.randn(32, 16, generator=torch.Generator().manual_seed(8))
    for real, z in DataLoader(TensorDataset(samples().tensors[0], noise), 8, shuffle=True):
        d_optimizer.zero_grad()
        d_loss = d(g(z).detach()).mean() - d(real).mean()
        d_loss.backward()
        d_optimizer.step()
        for p in d.parameters():
            p.data.clamp_(-0.05, 0.05)
        g_optimizer.zero_grad()
        g_loss = -d(g(z)).mean()
        g_loss.backward()
        g_optimizer.step()
        log.note("d loss", d_loss)
        log.step(g_loss, g, g_optimizer)
        log.step(None, d, d_optimizer)


@record.case
def ema(log):
    model = Classifier()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.1)
        log.step(loss, model, optimizer)
        log.parameters(average)


@record.case
def frozen_then_thawed(log):
    model = Classifier()
    model.inner.requires_grad_(False)
    model.wide.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for epoch in range(2):
        if epoch == 1:
            thawed = [p for p in model.parameters() if not p.requires_grad]
            for p in thawed:
                p.requires_grad_(True)
            optimizer.add_param_group({"params": thawed, "lr": 0.01})
        for x, y in DataLoader(samples(16), 8, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.step(loss, model, optimizer)


@record.case
def closure(log):
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(samples(), 8, shuffle=True):

        def evaluate():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(evaluate)
        log.step(loss, model, optimizer)


@record.case
def inside_backward(log):
    """Each parameter is stepped and its gradient dropped as soon as it is there."""
    model = Classifier()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step_now(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_now)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        log.step(loss, model)


@record.case
def inside_backward_by_earlier_hooks(log):
    """The hooks are there before the optimizers, and gradients stay until the next batch."""
    model, optimizers = Classifier(), {}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    optimizers.update((p, torch.optim.Adam([p], lr=1e-3)) for p in model.parameters())
    for x, y in DataLoader(samples(), 8, shuffle=True):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        log.step(loss, model, optimizers[model.deep.weight])


@record.case
def stepped_through_the_step(log):
    """The optimizer's parameters are computed from others: its steps are differentiated (meta-learning)."""
    model, rate = nn.Linear(FEATURES, CLASSES), torch.tensor(0.1, requires_grad=True)
    outer = torch.optim.SGD([*model.parameters(), rate], lr=0.01)
    for x, y in DataLoader(samples(), 8):
        outer.zero_grad()
        fast = [(p * 1.0).requires_grad_() for p in model.parameters()]
        inner = torch.optim.SGD(fast, lr=1.0, differentiable=True)
        for p, grad in zip(fast, torch.autograd.grad(F.cross_entropy(F.linear(x, *fast), y), fast, create_graph=True)):
            p.grad = grad * rate
        inner.step()
        loss = F.cross_entropy(F.linear(x, *fast), y)
        loss.backward()
        outer.step()
        log.step(loss, model, outer)


@record.case
def listed_twice(log):
    """PyTorch only warns where an optimizer lists a parameter twice, and steps it twice. Under Castor too."""
    model = Classifier()
    optimizer = torch.optim.Adam([*model.parameters(), model.deep.weight], lr=1e-3)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def local_gradients_only(log):
    """autograd.grad, and an update written out: no backward(), no optimizer."""
    model = Classifier()
    for x, y in DataLoader(samples(), 8, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, slope in zip(model.parameters(), slopes):
                p.sub_(slope, alpha=0.1)
        log.step(loss, model)


@record.case
def sum_of_losses(log):
    """A sum over the batch, not a mean: what a split of the batch must not turn into a mean."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(samples(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def dropout(log):
    """Masks are drawn per rank, so that the run is another one than the single process's."""
    train(log, lambda p: torch.optim.SGD(p, lr=0.1), network=lambda: nn.Sequential(nn.Dropout(0.1), Classifier()))


@record.case
def batch_norm(log):
    train(
        log,
        lambda p: torch.optim.SGD(p, lr=0.1),
        network=lambda: nn.Sequential(nn.Linear(FEATURES, 600, bias=False), nn.BatchNorm1d(600), nn.ReLU(), nn.Linear(600, CLASSES)),
    )


@record.case
def models_one_after_another(log):
    """A sweep of learning rates."""
    for lr in (0.1, 0.01):
        torch.manual_seed(1)
        train(log, lambda p: torch.optim.SGD(p, lr=lr))


if __name__ == "__main__":
    record.main()
