"""What a model's forward keeps, changes, raises and returns beside tensors of rows. Each case is a forward that a public script has, reduced."""

import collections
import dataclasses
import random
import types

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

import record

INPUTS, HIDDEN, CLASSES, ROWS, STEPS = 6, 7, 3, 8, 10
SEEN, FEATURES = 0, []


class Network(nn.Module):
    """Calls `look(model, x, hidden)` between its layers."""

    samples = 0  # of all networks

    def __init__(self, look=None):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last, self.look = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, CLASSES), look

    def forward(self, x, *others):
        hidden = 1.0 * torch.tanh(self.first(x))  # which may be changed in place
        found = self.look(self, x, hidden, *others) if self.look else None
        out = self.last(hidden)
        return out if found is None else (out, found)


def batch(step, rows=ROWS):
    generator = torch.Generator().manual_seed(1000 * rows + step)
    return torch.randn(rows, INPUTS, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)


def train(log, model, call=None, loss_of=None, steps=STEPS, rows=lambda step: ROWS):
    """`call(step, x, y)`: the model's results; `loss_of(results, y)`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(steps):
        x, y = batch(step, rows(step))
        optimizer.zero_grad()
        made = call(step, x, y) if call else model(x)
        loss = loss_of(made, y) if loss_of else F.cross_entropy(made[0] if isinstance(made, tuple) else made, y)
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


def kept(log, value):
    for number, item in enumerate(value):
        log.note(f"kept {number}", item if isinstance(item, torch.Tensor) else torch.as_tensor(item))


# ---- what it keeps, anywhere


@record.case
def samples_counted_in_an_attribute(log):
    def look(model, x, hidden):
        model.count = getattr(model, "count", 0) + len(x)

    model = Network(look)
    train(log, model)
    kept(log, [model.count])


@record.case
def average_in_an_attribute(log):
    def look(model, x, hidden):
        model.average = 0.9 * getattr(model, "average", 0.0) + 0.1 * hidden.mean().item()

    model = Network(look)
    train(log, model)
    kept(log, [model.average])


@record.case
def hidden_states_in_containers(log):
    def look(model, x, hidden):
        model.queue.append(hidden.detach())
        model.maps["last"] = {"hidden": hidden.detach(), "rows": len(x)}

    model = Network(look)
    model.queue, model.maps = collections.deque(maxlen=2), {}
    train(log, model)
    kept(log, [*model.queue, model.maps["last"]["hidden"], model.maps["last"]["rows"]])


@record.case
def hidden_states_that_are_kept_late(log):
    """In place of a tensor whose address they get."""
    def look(model, x, hidden):
        if model.begun:
            model.seen.clear()
            model.seen.append(hidden.detach())

    model = Network(look)
    model.begun, model.seen = [], [torch.zeros(1)]
    train(log, model, lambda step, x, y: (model.begun.extend([step] * (step == 4)), model(x))[1])
    kept(log, model.seen)


@record.case
def classes_in_a_counter(log):
    def look(model, x, hidden):
        model.counter.update(hidden.argmax(1).tolist())

    model = Network(look)
    model.counter = collections.Counter()
    train(log, model)
    kept(log, [model.counter[k] for k in range(HIDDEN)])


@record.case
def meter_that_the_model_refers_to(log):
    @dataclasses.dataclass
    class Meter:
        count: int = 0
        values: list = dataclasses.field(default_factory=list)

    def look(model, x, hidden):
        model.meter.count += len(x)
        model.meter.values.append(hidden.abs().mean().item())

    model = Network(look)
    model.meter = Meter()
    train(log, model)
    kept(log, [model.meter.count, *model.meter.values])


@record.case
def variables_of_the_module(log):
    def look(model, x, hidden):
        global SEEN
        SEEN += len(x)
        FEATURES.append(hidden.detach())

    train(log, Network(look))
    kept(log, [SEEN, *FEATURES])


@record.case
def variable_of_a_class(log):
    def look(model, x, hidden):
        Network.samples += len(x)

    train(log, Network(look))
    kept(log, [Network.samples])


@record.case
def variables_of_a_function(log):
    count, features, others = 0, [], {}

    def look(model, x, hidden):
        nonlocal count
        count += len(x)
        features.append(hidden.detach())
        others[len(others)] = len(x)

    train(log, Network(look))
    kept(log, [count, *features, *others.values()])


@record.case
def histogram_in_an_array(log):
    def look(model, x, hidden):
        model.histogram += numpy.histogram(hidden.detach().numpy(), 5, (-1, 1))[0]

    model = Network(look)
    model.histogram = numpy.zeros(5)
    train(log, model)
    kept(log, [model.histogram])


@record.case
def gradients_inside_are_clamped(log):
    def look(model, x, hidden):
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad.clamp(-0.01, 0.01))

    train(log, Network(look))


@record.case
def gradients_inside_are_read(log):
    lengths, last = [], []

    def look(model, x, hidden):
        hidden.retain_grad()
        last[:] = [hidden]

    model = Network(look)

    def call(step, x, y):
        if last:
            lengths.append(last[0].grad.norm().item())
        return model(x)

    train(log, model, call)
    kept(log, lengths)


@record.case
def hook_of_all_modules(log):
    sizes = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, out: sizes.append(len(out)))
    train(log, Network())
    handle.remove()
    kept(log, sizes)


@record.case
def generators_of_its_own(log):
    def look(model, x, hidden):
        noise = torch.rand(1, generator=model.torch).item() + model.python.random() + float(model.numpy.random())
        hidden.mul_(1 + 0.1 * noise)

    model = Network(look)
    model.torch, model.python, model.numpy = torch.Generator().manual_seed(1), random.Random(2), numpy.random.default_rng(3)
    train(log, model)


@record.case
def iterator_of_its_own(log):
    def look(model, x, hidden):
        hidden.mul_(next(model.factors))

    model = Network(look)
    model.factors = iter([1 + 0.1 * step for step in range(STEPS)])
    train(log, model)


@record.case
def graph_in_an_attribute(log):
    """What one model has made of the batch, another one uses without getting it as an argument."""
    encoder = Network()

    def look(model, x, hidden):
        hidden.add_(model.context.mean() if model.context is not None else 0)

    model = Network(look)
    model.encoder, model.context = encoder, None

    def call(step, x, y):
        model.context = encoder(x).square() if step > 5 else None
        return model(x)

    train(log, model, call)


# ---- what it does to its arguments


def remembered(log, state):
    def look(model, x, hidden, state):
        state["memory"] = 0.5 * state["memory"] + hidden.detach()
        hidden.add_(0.1 * state["memory"])

    model = Network(look)
    train(log, model, lambda step, x, y: model(x, state))
    kept(log, [state["memory"]])


@record.case
def state_in_a_dict(log):
    remembered(log, {"memory": torch.zeros(ROWS, HIDDEN)})


@record.case
def state_in_a_mapping_that_is_no_dict(log):
    """As a tokenizer's encodings are."""
    remembered(log, collections.UserDict(memory=torch.zeros(ROWS, HIDDEN)))


@record.case
def list_that_is_filled(log):
    def look(model, x, hidden, sizes):
        sizes.append(len(x))

    model, sizes = Network(look), []
    train(log, model, lambda step, x, y: model(x, sizes))
    kept(log, sizes)


# ---- what it returns


@record.case
def object_with_tensors(log):
    model = Network(lambda model, x, hidden: types.SimpleNamespace(hidden=hidden, rows=len(x)))
    train(log, model, loss_of=lambda made, y: F.cross_entropy(made[0], y) + made[1].hidden.square().mean() / made[1].rows)


@record.case
def distribution(log):
    model = Network(lambda model, x, hidden: torch.distributions.Categorical(logits=model.last(hidden)))
    train(log, model, loss_of=lambda made, y: -made[1].log_prob(y).mean() - 0.1 * made[1].entropy().mean())


def counted(log, look, factor=lambda step: 1):
    """Keeps what `look` counts in each step's inputs times a factor."""
    model, counts = Network(look), []

    def call(step, x, y):
        made = model(x * factor(step))
        counts.append(made[1])
        return made

    train(log, model, call)
    kept(log, counts)


@record.case
def count_of_rows(log):
    counted(log, lambda model, x, hidden: int((hidden[:, 0] > 0).sum()))


@record.case
def count_that_begins_late(log):
    counted(log, lambda model, x, hidden: (hidden > 0.9).sum(), lambda step: 0.1 if step < 4 else 3)


@record.case
def results_changed_in_place(log):
    model = Network()

    def loss_of(made, y):
        made.mul_(0.5)
        made[:, 0] = 0
        return F.cross_entropy(F.relu(made, inplace=True), y)

    train(log, model, loss_of=loss_of)


@record.case
def loss_of_rows_that_one_rank_lacks(log):
    """From the fourth step on the second half of a batch has no target, and the mean over nothing is no number."""

    def look(model, x, hidden, y, mask):
        return (F.cross_entropy(model.last(hidden), y, reduction="none") * mask).sum() / mask.sum()

    model = Network(look)
    train(log, model, lambda step, x, y: model(x, y, (torch.arange(ROWS) < (ROWS if step < 3 else ROWS // 2)).float()), lambda made, y: made[1])


@record.case
def loss_divided_by_the_whole_batch(log):
    def look(model, x, hidden, y, count):
        return F.cross_entropy(model.last(hidden), y, reduction="sum") / count

    model = Network(look)
    train(log, model, lambda step, x, y: model(x, y, torch.tensor(len(x))), lambda made, y: made[1])


# ---- lengths that are the batch's by chance


@record.case
def results_as_long_as_a_batch_by_chance(log):
    """Prototypes, which the fifth batch has as many rows as, and a part of the sixth."""
    model = Network(lambda model, x, hidden: model.last.weight.t() * 1.0)
    train(log, model, loss_of=lambda made, y: F.cross_entropy(made[0], y) + made[1].square().sum(), rows=lambda step: {4: HIDDEN, 5: 2 * HIDDEN}.get(step, ROWS))


@record.case
def arguments_as_long_as_a_batch_by_chance(log):
    def look(model, x, hidden, scale, weights, size):
        hidden.mul_(scale.mean() + sum(weights) + size[0] / 10)

    model = Network(look)
    train(log, model, lambda step, x, y: model(x, torch.tensor([[0.5, 1.0]]), [0.1, 0.2, 0.3, 0.4], (5, 5)), rows=lambda step: {4: 2, 5: 4}.get(step, ROWS))


# ---- what begins later


@record.case
def stage_in_an_attribute(log):
    def look(model, x, hidden):
        if model.stage:
            hidden.sub_(hidden.mean(0))

    model = Network(look)
    model.stage = 0

    def call(step, x, y):
        model.stage = step // 4
        return model(x)

    train(log, model, call)


@record.case
def mode_in_a_word(log):
    def look(model, x, hidden, mode):
        if mode == "centred":
            hidden.sub_(hidden.mean(0))

    model = Network(look)
    train(log, model, lambda step, x, y: model(x, "centred" if step > 4 else "plain"))


@record.case
def exception_of_some_rows(log):
    """The script leaves a batch out for one bad row."""

    def look(model, x, hidden):
        if not torch.isfinite(hidden).all():
            raise ValueError("bad batch")

    model = Network(look)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(STEPS):
        x, y = batch(step)
        if step == 5:
            x[0, 0] = float("nan")
        try:
            loss = F.cross_entropy(model(x), y)
        except ValueError:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


@record.case
def step_of_its_own(log):
    """A forward that trains the model."""

    class Learner(Network):
        def forward(self, x, y):
            loss = F.cross_entropy(super().forward(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return loss.item()

    model = Learner()
    model.optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(STEPS):
        log.step(torch.tensor(model(*batch(step))), model)


@record.case
def penalty_through_a_batch_norm(log):
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    torch.manual_seed(6)
    for p in model.parameters():
        nn.init.uniform_(p, -0.7, 0.7)

    def call(step, x, y):
        x = x.requires_grad_()
        out = model(x)
        slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out, slope

    train(log, model, call, lambda made, y: F.mse_loss(made[0][:, 0], y.float()) + made[1].square().sum(1).mean())


if __name__ == "__main__":
    record.main()
