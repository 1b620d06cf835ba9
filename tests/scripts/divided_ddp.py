"""DDP: models whose layers, or whose chain of layers, several ranks can have together, while each has batches of its own."""

import numpy
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import divided
import record
from divided import STEPS, VOCABULARY, WIDTH, Perceptrons, adamw, gpt, of_classes, of_tokens, sgd, tokens, train


def with_batches_of_this_rank(model):
    divided.batches = 7919 * dist.get_rank()
    torch.manual_seed(100 + dist.get_rank())  # of dropouts
    return DistributedDataParallel(model)


divided.wrapped = with_batches_of_this_rank
record.CASES.clear()  # those of one process


@record.case
def gpt_adamw_clipped(log):
    divided.gpt_adamw_clipped(log)


@record.case
def loss_outside(log):
    divided.loss_outside(log)


@record.case
def batches_of_other_sizes(log):
    train(log, gpt(), lambda model, step: model(tokens(step, 2 + step + dist.get_rank()), tokens(step + 1000, 2 + step + dist.get_rank()))[1])


@record.case
def dropout_between_blocks(log):
    divided.dropout_between_blocks(log)


@record.case
def dropout_within_blocks(log):
    divided.dropout_within_blocks(log)


@record.case
def batch_norms(log):
    divided.batch_norms(log)


@record.case
def recomputed(log):
    divided.recomputed(log)


@record.case
def recomputed_by_its_own(log):
    divided.recomputed_by_its_own(log)


@record.case
def wants_backward_itself(log):
    divided.wants_backward_itself(log)


@record.case
def encoder(log):
    divided.encoder(log)


@record.case
def frozen_first_blocks(log):
    divided.frozen_first_blocks(log)


@record.case
def remembers_each_block(log):
    divided.remembers_each_block(log)


@record.case
def hf_gpt2(log):
    divided.hf_gpt2(log)


@record.case
def hf_llama(log):
    divided.hf_llama(log)


@record.case
def hf_bert(log):
    divided.hf_bert(log)


@record.case
def hf_t5(log):
    divided.hf_t5(log)


@record.case
def wide_blocks(log):
    divided.wide_blocks(log)


@record.case
def accumulated(log):
    """The first micro-steps of each step without synchronization, and one more of them on rank 0."""
    model = with_batches_of_this_rank(gpt())
    optimizer = adamw(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            for micro in range(2 + (dist.get_rank() == 0)):
                (of_tokens(model, 4 * step + micro) / 4).backward()
        loss = of_tokens(model, 4 * step + 3) / 4
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def evaluated_by_rank_0(log):
    def stepped(model, step):
        if dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                log.note("logits", model.module(tokens(500 + step, 2))[0])
                log.note("wrapped", model(tokens(600 + step, 2))[0])
            model.train()

    train(log, gpt(), of_tokens, stepped=stepped)


@record.case
def one_rank_calls_alone(log):
    """With a graph, which it does not go back through."""
    def stepped(model, step):
        if dist.get_rank() == 0:
            log.note("another", of_tokens(model, 500 + step).detach())

    train(log, gpt(), of_tokens, stepped=stepped)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Perceptrons(within=False, dropout=0.0), Perceptrons(within=False, dropout=0.0)

    def forward(self, x, scale=1.0, *, named=None):
        return {"first": self.first(x) * scale, "others": [self.second(x if named is None else named["x"]), x.sum()]}


@record.case
def results_one_after_another(log):
    """Each result has a backward pass of its own; arguments by name, in a dict, and numbers that differ on the ranks."""
    model = with_batches_of_this_rank(TwoHeads())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(divided.batches + step)
        x, y = torch.randn(8, 8, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        made = model(x, 1.0 + dist.get_rank(), named={"x": 2 * x})
        F.cross_entropy(made["first"], y).backward()
        loss = F.cross_entropy(made["others"][0], y)
        loss.backward()
        optimizer.step()
        log.step(loss + made["others"][1], model, optimizer)


@record.case
def parameters_in_the_loss(log):
    train(log, gpt(), lambda model, step: of_tokens(model, step) + 1e-3 * sum(p.square().sum() for p in model.parameters()))


@record.case
def some_results_unused(log):
    """The loss is made of one of two results, on the one rank of the first and on the other of the sum of both."""

    def loss_of(model, step):
        logits, loss = model(tokens(step), tokens(step + 1000))
        return loss + logits.square().mean() * (1e-3 * dist.get_rank())

    train(log, gpt(), loss_of)


@record.case
def counts_its_calls(log):
    class Counting(Perceptrons):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) / self.calls

    train(log, Counting(within=False, dropout=0.0), of_classes, steps=8)  # the first four values of `calls` make a kind of calls each, which are tried anew


@record.case
def gradients_of_arguments(log):
    def loss_of(model, step):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(divided.batches + step), requires_grad=True)
        return model(x).square().mean()

    train(log, Perceptrons(within=False, dropout=0.0), loss_of)


@record.case
def hooks_of_the_script(log):
    model = Perceptrons(within=False, dropout=0.0)
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 1.1)
    train(log, model, of_classes)


@record.case
def late_change(log):
    """After its first calls a model begins to compute with the number of its call, in ever more of them."""

    class Late(Perceptrons):
        stage = 0

        def forward(self, x):
            return super().forward(x) * (1.0 + self.stage)

    model = Late(within=False, dropout=0.0)

    def loss_of(wrapped, step):
        model.stage = step // 5
        return of_classes(wrapped, step)

    train(log, model, loss_of, steps=12)


@record.case
def two_models(log):
    one, other = with_batches_of_this_rank(gpt()), with_batches_of_this_rank(Perceptrons(within=False))
    optimizer = sgd([*one.parameters(), *other.parameters()])
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = of_tokens(one, step) * of_classes(other, step).detach() + of_classes(other, step + 50)
        loss.backward()
        optimizer.step()
        log.step(loss, nn.ModuleList([one, other]), optimizer)


@record.case
def models_that_share_a_layer(log):
    """One loss of both. Each rank's pass reaches them in its own order."""
    shared = nn.Linear(WIDTH, 400)
    one, other = (with_batches_of_this_rank(nn.Sequential(shared, nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 400), nn.Linear(400, VOCABULARY))) for _ in range(2))
    optimizer = sgd({p: 0 for p in [*one.parameters(), *other.parameters()]})
    for step in range(STEPS):
        optimizer.zero_grad()
        x = F.one_hot(tokens(step) % WIDTH, WIDTH).float()
        loss = F.cross_entropy(one(x).view(-1, VOCABULARY), tokens(step + 1000).view(-1)) + other(x).square().mean()
        loss.backward()
        optimizer.step()
        log.step(loss, nn.ModuleList([one, other]), optimizer)


@record.case
def vocabulary_of_embeddings(log):
    """A chain of whole layers, the first an embedding."""
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    train(log, model, lambda model, step: F.cross_entropy(model(tokens(step)).view(-1, VOCABULARY), tokens(step + 1000).view(-1)))


# ---- batches in microbatches


@record.case
def masked_and_scaled(log):
    """Each rank counts another number of targets, once none, and so does each of its microbatches."""

    def loss_of(model, step):
        targets = tokens(step + 1000)
        targets[:, : 1 + 2 * dist.get_rank()] = -100
        targets[1, : 1 + step] = -100
        targets[step % 4] = -100
        if step == 4 and dist.get_rank() == 1:
            targets[:] = -100
        return model(tokens(step), targets)[1] * 3.0**step

    train(log, gpt(), loss_of, lambda parameters: torch.optim.SGD(parameters, lr=1e-3))


@record.case
def a_rank_without_targets(log):
    """Of the first rank, in some steps."""
    counted = divided.Losing(lambda logits, y: F.cross_entropy(logits, y, reduction="sum") / (y >= 0).sum().clamp(min=1))

    def loss_of(model, step):
        generator = torch.Generator().manual_seed(divided.batches + step)
        x, y = torch.randn(7, 8, generator=generator), torch.randint(0, 3, (7,), generator=generator)
        if dist.get_rank() == 0 and step in (2, 5, 6):
            y[:] = -100
        return model(x, y)

    train(log, counted, loss_of, divided.without_momentum, steps=8)


@record.case
def sum_of_losses(log):
    divided.sum_of_losses(log)


@record.case
def mean_of_elements(log):
    divided.mean_of_elements(log)


@record.case
def losses_of_samples(log):
    divided.losses_of_samples(log)


@record.case
def losses_weighed_by_rank(log):
    train(log, gpt(), lambda model, step: of_tokens(model, step) * (1.0 + dist.get_rank() / 3) / (1 + step))


@record.case
def losses_weighed_anew(log):
    train(log, gpt(), lambda model, step: of_tokens(model, step) * (1.0 + dist.get_rank() * step))


@record.case
def losses_weighed_anew_late(log):
    train(log, gpt(), lambda model, step: of_tokens(model, step) * (1.0 + dist.get_rank() * (step == 6)), divided.without_momentum, steps=8)


@record.case
def logits_are_used_late(log):
    divided.logits_are_used_late(log)


@record.case
def asks_for_gradients_within(log):
    class Asking(Perceptrons):
        def forward(self, x):
            x = self.enter(x)
            for number, block in enumerate(self.blocks):
                x = block(x)
                if number == 2 and x.requires_grad:
                    x.register_hook(lambda g: g / g.norm())
            return self.leave(x)

    train(log, Asking(within=False, dropout=0.0), of_classes)


@record.case
def noise_of_samples(log):
    """Numbers for each sample, for all of them, and NumPy's."""

    class Noisy(Perceptrons):
        def forward(self, x):
            x = self.enter(x + torch.randn_like(x) + torch.from_numpy(numpy.random.standard_normal(x.shape)).to(x.dtype)) * torch.rand(1)
            for block in self.blocks:
                x = block(x)
            return self.leave(x)

    def loss_of(model, step):
        if step == 0:
            numpy.random.seed(dist.get_rank())
        return of_classes(model, step, 6)

    train(log, Noisy(within=True), loss_of)


@record.case
def samples_beside_each_other(log):
    """A loss that compares the samples of a batch: each one's class is its own place."""

    class Contrasting(Perceptrons):
        def forward(self, x):
            made = super().forward(x)
            return F.cross_entropy(made @ made.t(), torch.arange(len(x)))

    def loss_of(model, step):
        return model(torch.randn(8, 8, generator=torch.Generator().manual_seed(divided.batches + step)))

    train(log, Contrasting(within=False, dropout=0.0), loss_of)


@record.case
def results_of_other_kinds(log):
    """A loss, rows, a number, words, and a tensor that is as long as a microbatch of the last batches by chance."""

    class Telling(Perceptrons):
        def forward(self, x, y, *, name):
            logits = super().forward(x)
            return {"loss": F.cross_entropy(logits, y), "logits": logits.detach(), "classes": (3, "abc"), "table": torch.arange(3.0), "name": name}

    def loss_of(model, step):
        count = 8 if step < 4 else 6  # microbatches of 3 or 2
        generator = torch.Generator().manual_seed(divided.batches + step)
        made = model(torch.randn(count, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator), name=f"step {step % 2}")
        log.note("told", [made["logits"], made["table"]])
        assert made["name"] == f"step {step % 2}" and made["classes"] == (3, "abc")
        return made["loss"]

    train(log, Telling(within=True), loss_of, steps=8)


@record.case
def one_row(log):
    """Of rank 0's batches, at times; fewer than microbatches."""
    train(log, gpt(), lambda model, step: model(tokens(step, 1 + (step + dist.get_rank()) % 3), tokens(step + 1000, 1 + (step + dist.get_rank()) % 3))[1], steps=8)


@record.case
def scaled_by_a_scaler(log):
    """A loss scale that grows, and one that is too large."""
    model = with_batches_of_this_rank(gpt())
    optimizer = divided.without_momentum(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(STEPS + 2):
        optimizer.zero_grad()
        loss = of_tokens(model, step)
        scaler.scale(loss * (float("inf") if step == 4 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 4:
            optimizer.zero_grad()  # of what is not finite there are two kinds
        log.step(loss, model, optimizer)


if __name__ == "__main__":
    record.main()
