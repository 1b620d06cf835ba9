"""What survives a step and no gradient shows: centres, banks, tallies, ranges, multipliers, weights that the batch edits. And
losses that compare the samples of a batch. The rows of a batch meet in the script, never in the model, but for the last few cases.

What survives is recorded when the run ends (`finish`), beside the loss of every step."""

import collections
import copy
import math
import random

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import record

FEATURES, CLASSES, BATCH = 10, 3, 12


def samples(count=72, seed=3):
    """Classes of several sizes that lie apart, so that half of a batch has other statistics than the whole."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), count, replacement=True, generator=generator)
    x = torch.randn(count, FEATURES, generator=generator) * torch.linspace(0.5, 1.5, count)[:, None]
    return x + y[:, None] * torch.linspace(-0.8, 0.9, FEATURES), y


def numbered(count=72):
    return *samples(count), torch.arange(count)


def views(count=72):
    x, _ = samples(count)
    return x, x + 0.2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(4))


def targets(count=72):
    x, _ = samples(count)
    return x, (x[:, :4].sum(1, keepdim=True) + x[:, 4:6].square().sum(1, keepdim=True)) / 2


def batches(*tensors):
    return DataLoader(TensorDataset(*tensors), BATCH, shuffle=True)


def network(outputs=CLASSES, inputs=FEATURES, hidden=16):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def copied(model):
    return copy.deepcopy(model).requires_grad_(False)


def learning(*models, lr=0.1, momentum=0.0):
    """The models, and their optimizer behind them."""
    return *models, torch.optim.SGD([p for model in models for p in model.parameters()], lr=lr, momentum=momentum)


def adam(*models):
    return torch.optim.Adam([p for model in models for p in model.parameters()], lr=1e-2)


def descend(log, loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.step(loss)


@torch.no_grad()
def follow(teacher, student, by=0.1):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.lerp_(s, by)


def each(logits, y):
    return F.cross_entropy(logits, y, reduction="none")


def unit(x):
    return F.normalize(x, dim=1)


def counts_of(classes, count=CLASSES):
    return torch.bincount(classes, minlength=count)


def finish(log, *trained, **survivors):
    for thing in trained:
        if isinstance(thing, nn.Module):
            log.parameters(thing)
            log.note("buffers", dict(thing.named_buffers()))
        else:
            log.note("optimizer", record.states_of(thing))
    log.note("survivors", survivors)


# ---- centres
def distilled(log, student, count=72):
    """DINO: a student learns what its slow copy says of another view, less the centre of what it said so far."""
    student, optimizer = learning(student, momentum=0.9)
    teacher, centre = copied(student), torch.zeros(1, 8)
    for a, b in batches(*views(count)):
        said = teacher(a)
        loss = -(((said - centre) / 0.1).softmax(1) * (student(b) / 0.5).log_softmax(1)).sum(1).mean()
        descend(log, loss, optimizer)
        centre.lerp_(said.mean(0, keepdim=True), 0.1)
        follow(teacher, student)
    finish(log, student, teacher, optimizer, centre=centre)


@record.case
def centre_of_a_teacher(log):
    distilled(log, network(8), 79)


@record.case
def centre_beside_dropout(log):
    distilled(log, nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 8)), 81)


@record.case
def centre_beside_batch_norm(log):
    distilled(log, nn.Sequential(nn.Linear(FEATURES, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)))


@record.case
def centre_of_both_views_at_once(log):
    """The teacher sees twice as many rows as the batch has."""
    student, optimizer = learning(network(8))
    teacher, centre = copied(student), torch.zeros(8)
    A, B = views()
    for step in range(7):
        index = torch.randint(0, len(A), (BATCH,))
        said = teacher(torch.cat([A[index], B[index]]))
        right = ((said - centre) / 0.1).softmax(1).chunk(2)
        descend(log, F.cross_entropy(student(A[index]) / 0.5, right[1]) + F.cross_entropy(student(B[index]) / 0.5, right[0]), optimizer)
        centre = centre * 0.9 + said.sum(0) / len(said) * 0.1
        follow(teacher, student)
    finish(log, student, teacher, optimizer, centre=centre)


@record.case
def centres_of_classes(log):
    """Each is moved towards the mean of its class in the batch."""
    body, head, optimizer, centres = *learning(network(6), nn.Linear(6, CLASSES), momentum=0.9), torch.zeros(CLASSES, 6)
    for x, y in batches(*samples(81)):
        z = body(x)
        descend(log, F.cross_entropy(head(z), y) + 0.1 * (z - centres[y]).square().sum(1).mean(), optimizer)
        for of in y.unique():
            centres[of] += 0.5 * (z[y == of].detach().mean(0) - centres[of])
    finish(log, body, head, optimizer, centres=centres)


@record.case
def prototypes_moved_one_by_one(log):
    """Sample by sample: the order of a batch's samples counts."""
    model, optimizer, prototypes = *learning(network(6)), torch.zeros(CLASSES, 6)
    for x, y in batches(*samples(79)):
        z = unit(model(x))
        descend(log, F.cross_entropy(z @ prototypes.T / 0.3 + z[:, :CLASSES], y), optimizer)
        for of, label in zip(z.detach(), y):
            prototypes[label] = prototypes[label] * 0.8 + of * 0.2
        prototypes = unit(prototypes)
    finish(log, model, optimizer, prototypes=prototypes)


@record.case
def codebook(log):
    """Vector quantisation whose codes are moving means."""
    encoder, decoder, codes = network(4), network(FEATURES, 4), torch.randn(8, 4) * 0.5
    optimizer, sizes, sums = adam(encoder, decoder), torch.ones(8), codes.clone()
    for x, _ in batches(*samples()):
        z = encoder(x)
        nearest = torch.cdist(z.detach(), codes).argmin(1)
        q = codes[nearest]
        descend(log, F.mse_loss(decoder(z + (q - z).detach()), x) + 0.25 * F.mse_loss(z, q), optimizer)
        hot = F.one_hot(nearest, 8).float()
        sizes.mul_(0.9).add_(hot.sum(0), alpha=0.1)
        sums.mul_(0.9).add_(hot.T @ z.detach(), alpha=0.1)
        codes.copy_(sums / sizes[:, None])
    finish(log, encoder, decoder, optimizer, codes=codes, sizes=sizes, sums=sums)


# ---- banks
@record.case
def queue_with_a_pointer(log):
    """MoCo: the keys of the last batches are the wrong answers."""
    query, optimizer, queue, pointer = *learning(network(6), momentum=0.9), unit(torch.randn(36, 6)), 0
    key = copied(query)
    for a, b in batches(*views()):
        q = unit(query(a))
        follow(key, query, 0.2)
        k = unit(key(b))
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / 0.2
        descend(log, F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long)), optimizer)
        queue[pointer : pointer + len(k)] = k
        pointer = (pointer + len(k)) % len(queue)
    finish(log, query, key, optimizer, queue=queue, pointer=pointer)


@record.case
def bank_of_all_samples(log):
    """A row for each sample of the data, told apart by their numbers."""
    model, optimizer, bank = *learning(network(6)), unit(torch.randn(72, 6))
    for x, _, index in batches(*numbered()):
        z = unit(model(x))
        descend(log, F.cross_entropy(z @ bank.T / 0.2, index), optimizer)
        bank[index] = unit(0.5 * bank[index] + 0.5 * z.detach())
    finish(log, model, optimizer, bank=bank)


@record.case
def features_of_the_last_batches(log):
    """Features and classes of three batches in a deque, which the new ones are compared with."""
    model, optimizer, memory = *learning(network(6)), collections.deque(maxlen=3)
    for x, y in batches(*samples(81)):
        z = unit(model(x))
        memory.append((z.detach(), y))
        kept, classes = (torch.cat(part) for part in zip(*memory))
        alike, same = z @ kept.T, (y[:, None] == classes).float()
        descend(log, (same * (1 - alike) + (1 - same) * F.relu(alike - 0.3)).sum(1).mean() / 10, optimizer)
    finish(log, model, optimizer, kept=kept, classes=classes)


@record.case
def replayed_outputs(log):
    """Dark experience: what the model said of old samples, drawn from a reservoir, is said again."""
    model, optimizer, kept, seen = *learning(network()), [], 0
    for x, y in zip(*(part.split(BATCH) for part in samples())):
        out = model(x)
        loss = F.cross_entropy(out, y)
        if kept:
            old, said = (torch.stack(part) for part in zip(*random.sample(kept, 6)))
            loss = loss + 0.5 * F.mse_loss(model(old), said)
        descend(log, loss, optimizer)
        for pair in zip(x, out.detach()):
            seen += 1
            if len(kept) < 20:
                kept.append(pair)
            elif (place := random.randrange(seen)) < 20:
                kept[place] = pair
    finish(log, model, optimizer, kept=[torch.stack(part) for part in zip(*kept)], seen=seen)


@record.case
def table_of_ensembled_outputs(log):
    """Temporal ensembling: the mean of what the model said of a sample in earlier epochs."""
    model, optimizer = learning(nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES)))
    table = torch.zeros(43, CLASSES)
    for epoch in range(2):
        right = table / (1 - 0.6**epoch) if epoch else table
        for x, y, index in batches(*numbered(43)):
            out = model(x)
            descend(log, F.cross_entropy(out, y) + epoch * F.mse_loss(out.softmax(1), right[index]), optimizer)
            table[index] = 0.6 * table[index] + 0.4 * out.detach().softmax(1)
    finish(log, model, optimizer, table=table)


@record.case
def weights_of_a_sampler(log):
    model, optimizer, sampler = *learning(network(), momentum=0.9), WeightedRandomSampler(torch.ones(36), 33)
    for epoch in range(3):
        for x, y, index in DataLoader(TensorDataset(*numbered(36)), BATCH, sampler=sampler):
            losses = each(model(x), y)
            descend(log, losses.mean(), optimizer)
            sampler.weights[index] = losses.detach().double() + 0.05
    finish(log, model, optimizer, weights=sampler.weights)


@record.case
def weights_for_multinomial(log):
    model, optimizer, weights = *learning(network()), torch.ones(48)
    X, Y = samples(48)
    for step in range(8):
        index = torch.multinomial(weights, BATCH)
        losses = each(model(X[index]), Y[index])
        descend(log, (losses / (weights[index] / weights.mean())).mean(), optimizer)
        weights[index] = 0.5 * weights[index] + losses.detach()
    finish(log, model, optimizer, weights=weights)


@record.case
def hard_examples(log):
    """The three worst of a batch come again with the next."""
    model, optimizer, hard = *learning(network()), []
    X, Y = samples()
    for step in range(7):
        index = torch.cat([torch.randint(0, len(X), (BATCH,)), *hard[-1:]])
        losses = each(model(X[index]), Y[index])
        descend(log, losses.mean(), optimizer)
        hard.append(index[losses.topk(3).indices])
    finish(log, model, optimizer, hard=hard)


# ---- tallies
@record.case
def tally_of_predictions(log):
    model, optimizer, tally = *learning(network(), momentum=0.9), torch.ones(CLASSES, dtype=torch.long)
    for x, y in batches(*samples(79)):
        out = model(x)
        descend(log, F.cross_entropy(out, y, weight=tally.sum() / (CLASSES * tally)), optimizer)
        tally += counts_of(out.argmax(1))
    finish(log, model, optimizer, tally=tally)


@record.case
def loads_of_experts(log):
    """A bias of each expert falls while it has more than its share, without a loss of its own."""
    gate, experts, optimizer, bias = *learning(nn.Linear(FEATURES, 4), nn.Linear(FEATURES, 4 * CLASSES)), torch.zeros(4)
    for x, y in batches(*samples(79)):
        scores = gate(x).sigmoid()
        chosen = (scores + bias).topk(2).indices
        weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        out = experts(x).view(-1, 4, CLASSES) * (weights / weights.sum(1, keepdim=True))[:, :, None]
        descend(log, F.cross_entropy(out.sum(1), y), optimizer)
        load = counts_of(chosen.flatten(), 4).float()
        bias += 0.1 * torch.sign(load.mean() - load)
    finish(log, gate, experts, optimizer, bias=bias, load=load)


@record.case
def confusion_of_classes(log):
    model, optimizer, matrix = *learning(network()), torch.zeros(CLASSES, CLASSES)
    for x, y in batches(*samples()):
        out = model(x)
        right = (matrix.diagonal() + 1) / (matrix.sum(1) + 2)
        descend(log, F.cross_entropy(out, y, weight=1.5 - right), optimizer)
        matrix.index_put_((y, out.argmax(1)), torch.ones(len(y)), accumulate=True)
    finish(log, model, optimizer, matrix=matrix)


# ---- ranges, statistics and thresholds
@record.case
def range_of_an_observer(log):
    """Activations are rounded to 16 values between the smallest and the largest so far."""
    body, head, optimizer = learning(network(6), nn.Linear(6, CLASSES))
    low, high = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    for x, y in batches(*samples(81)):
        z = body(x)
        low, high = torch.minimum(low, z.detach().min()), torch.maximum(high, z.detach().max())
        step = (high - low) / 15
        rounded = low + ((z - low) / step).round() * step
        descend(log, F.cross_entropy(head(z + (rounded - z).detach()), y), optimizer)
    finish(log, body, head, optimizer, low=low, high=high)


@record.case
def moments_of_inputs(log):
    """Mean and variance of all that was seen, put together batch by batch, as in reinforcement learning."""
    model, optimizer, mean, var, count = *learning(network(), momentum=0.9), torch.zeros(FEATURES), torch.ones(FEATURES), 1e-2
    X, Y = samples(81)
    for start in range(0, 81, BATCH):
        x, y = X[start : start + BATCH], Y[start : start + BATCH]
        more, away, total = x.shape[0], x.mean(0) - mean, count + x.shape[0]
        var = (var * count + x.var(0, unbiased=False) * more + away.square() * count * more / total) / total
        mean, count = mean + away * more / total, total
        descend(log, F.cross_entropy(model(((x - mean) / (var + 1e-6).sqrt()).clamp(-5, 5)), y), optimizer)
    finish(log, model, optimizer, mean=mean, var=var, count=count)


@record.case
def quantile_of_losses(log):
    model, optimizer, limit = *learning(network()), None
    for x, y in batches(*samples(81)):
        losses = each(model(x), y)
        now = losses.detach().quantile(0.7)
        limit = now if limit is None else 0.8 * limit + 0.2 * now
        descend(log, (losses * (losses <= limit)).sum() / (losses <= limit).sum().clamp(min=1), optimizer)
    finish(log, model, optimizer, limit=limit)


@record.case
def mean_loss_that_drives_the_rate(log):
    model, optimizer, mean = *learning(network(), momentum=0.9), None
    for x, y in batches(*samples(79)):
        loss = F.cross_entropy(model(x), y)
        mean = loss.item() if mean is None else 0.7 * mean + 0.3 * loss.item()
        optimizer.param_groups[0]["lr"] = 0.05 * mean
        descend(log, loss, optimizer)
    finish(log, model, optimizer, mean=mean)


@record.case
def weights_of_two_tasks(log):
    """Dynamic weight average: by how the losses of the last two steps fell, as Python floats."""
    body, one, other, optimizer, history = *learning(network(8), nn.Linear(8, CLASSES), nn.Linear(8, FEATURES)), []
    for x, y in batches(*samples()):
        ratio = [now / before for before, now in zip(*history[-2:])] if len(history) > 1 else [1.0, 1.0]
        weights = torch.tensor(ratio).div(0.2).softmax(0).mul(2).tolist()
        z = body(x)
        losses = F.cross_entropy(one(z), y), F.mse_loss(other(z), x)
        descend(log, weights[0] * losses[0] + weights[1] * losses[1], optimizer)
        history.append([of.item() for of in losses])
    finish(log, body, one, other, optimizer, weights=weights, history=history)


@record.case
def thresholds_of_classes(log):
    """FreeMatch: what the model is sure enough of is learned; one threshold, and a share of it for each class."""
    model, optimizer, overall, shares = *learning(network()), torch.tensor(0.3), torch.full((CLASSES,), 1 / CLASSES)
    for a, b, y in batches(*views(79), samples(79)[1]):
        says = model(a).detach().softmax(1)
        sure, said = says.max(1)
        overall = 0.7 * overall + 0.3 * sure.mean()
        shares = 0.7 * shares + 0.3 * says.mean(0)
        kept = sure > (overall * shares / shares.max())[said]
        descend(log, 0.5 * F.cross_entropy(model(a), y) + (each(model(b), said) * kept).mean(), optimizer)
    finish(log, model, optimizer, overall=overall, shares=shares)


# ---- multipliers
@record.case
def multiplier_of_a_constraint(log):
    """It rises while the outputs of a batch are larger than allowed."""
    model, optimizer, multiplier = *learning(network()), torch.tensor(0.1)
    for x, y in batches(*samples(81)):
        out = model(x)
        violation = out.square().mean() - 0.02
        descend(log, F.cross_entropy(out, y) + multiplier * violation, optimizer)
        multiplier = (multiplier + 0.5 * violation.detach()).clamp(min=0)
    finish(log, model, optimizer, multiplier=multiplier)


@record.case
def beta_by_a_controller(log):
    """An autoencoder whose divergence is held at a value by a controller with an integral."""
    encoder, decoder, beta, integral, error = network(8), network(FEATURES, 4), 1.0, 0.0, 0.0
    optimizer = adam(encoder, decoder)
    for x, _ in batches(*samples(79)):
        mean, spread = encoder(x).chunk(2, dim=1)
        restored = decoder(mean + torch.randn_like(spread) * (0.5 * spread).exp())
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        descend(log, F.mse_loss(restored, x) + beta * divergence, optimizer)
        before, error = error, 0.5 - divergence.item()
        integral -= 0.2 * error
        beta = max(1 / (1 + math.exp(error)) + integral + 0.2 * (before - error) + 0.2, 0.0)
    finish(log, encoder, decoder, optimizer, beta=beta, integral=integral)


@record.case
def temperature_with_an_optimizer(log):
    """As in soft actor-critic: what the entropy is worth is learned beside the model."""
    policy, optimizer, worth = *learning(network()), torch.zeros(1, requires_grad=True)
    of_worth = torch.optim.SGD([worth], lr=5.0)
    for x, y in batches(*samples()):
        logs = policy(x).log_softmax(1)
        entropy = -(logs.exp() * logs).sum(1).mean()
        descend(log, 2 * F.nll_loss(logs, y) - 0.5 * worth.exp().detach().squeeze() * entropy, optimizer)
        descend(log, (worth * (entropy.detach() - 1.0)).sum() + 1, of_worth)
    finish(log, policy, optimizer, of_worth, worth=worth)


# ---- weights edited by the batch
@record.case
def bias_set_by_the_first_batch(log):
    model, optimizer = learning(network())
    for step, (x, y) in enumerate(batches(*samples(79))):
        if step == 0:
            with torch.no_grad():
                model[0].bias.copy_(-model[0](x).mean(0))
                model[2].bias.copy_((counts_of(y).float() / len(y) + 0.05).log())
        descend(log, F.cross_entropy(model(x), y), optimizer)
    finish(log, model, optimizer)


@record.case
def rows_that_are_dead(log):
    """Units that hardly a sample of the last two batches woke get new weights."""
    inner, outer, optimizer = learning(nn.Linear(FEATURES, 24), nn.Linear(24, CLASSES), momentum=0.9)
    inner.bias.data = torch.linspace(-3.5, 0.5, 24)
    woken, replaced = torch.zeros(24), []
    for step, (x, y) in enumerate(zip(*(part.split(BATCH) for part in samples(79)))):
        h = torch.relu(inner(x))
        descend(log, F.cross_entropy(outer(h), y), optimizer)
        woken += (h > 0).sum(0)
        if step % 2:
            dead = woken < 3
            replaced.append(int(dead.sum()))
            with torch.no_grad():
                inner.weight[dead] = 0.3 * torch.randn(replaced[-1], FEATURES)
                inner.bias[dead] = 0
            woken.zero_()
    finish(log, inner, outer, optimizer, woken=woken, replaced=replaced)


@record.case
def weights_clipped_by_the_batch(log):
    """No row of the first layer is longer than a batch's longest sample allows."""
    model, optimizer, limits = *learning(network(), momentum=0.9), []
    for x, y in batches(*samples(81)):
        descend(log, F.cross_entropy(model(x), y), optimizer)
        limits.append(2.5 / x.norm(dim=1).max().item())
        with torch.no_grad():
            model[0].weight.copy_(torch.renorm(model[0].weight, 2, 0, limits[-1]))
            model[2].weight.clamp_(-x.std() / 10, x.std() / 10)
    finish(log, model, optimizer, limits=limits)


@record.case
def last_layer_by_least_squares(log):
    """In closed form from the batch's features; the layers before it by descent."""
    body, optimizer, head = *learning(network(5)), nn.Linear(5, CLASSES, bias=False)
    for x, y in batches(*samples(79)):
        with torch.no_grad():
            z, right = body(x), F.one_hot(y, CLASSES).float()
            solved = torch.linalg.solve(z.T @ z + 0.5 * torch.eye(5), z.T @ right)
            head.weight.lerp_(solved.T, 0.5)
        descend(log, F.mse_loss(head(body(x)), right), optimizer)
    finish(log, body, head, optimizer)


@record.case
def rows_of_half_a_batch(log):
    """Layers with six and three rows of weights are drawn anew in the middle of the run."""
    model, optimizer, best = *learning(network(3, hidden=6), momentum=0.9), math.inf
    X, Y = samples()
    for step in range(8):
        index = torch.randint(len(X), (BATCH,))
        loss = F.cross_entropy(model(X[index] + 0.1 * torch.randn(len(index), FEATURES)), Y[index])
        descend(log, loss, optimizer)
        best = min(best, loss.item())
        if step in (2, 5):
            model[0].weight.data.copy_(torch.randn(6, FEATURES) * 0.3 * best)
            model[2].weight.data = torch.randn(3, 6) * 0.3
            optimizer.state.clear()
    finish(log, model, optimizer, best=best)


@record.case
def rows_of_a_quarter_of_a_batch(log):
    """Noise of six and three rows for the weights, as strong as the loss is, and gates of three rows that stay."""
    model, optimizer, gates = *learning(network(3, hidden=6)), torch.rand(3, 1)
    for step, (x, y) in enumerate(batches(*samples(79))):
        loss = F.cross_entropy(model(x) * gates.T, y)
        descend(log, loss, optimizer)
        if step % 3 == 1:
            gates = torch.rand(3, 1) + 0.5 * loss.item()
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.8).add_(torch.randn(p.shape), alpha=0.1 * loss.item())
    finish(log, model, optimizer, gates=gates)


# ---- steps without backward
@record.case
def seeds_of_perturbations(log):
    """MeZO: two losses along one direction, which its seed brings back."""
    model, taken = network(), []

    def shift(seed, by):
        torch.manual_seed(seed)
        for p in model.parameters():
            p.data.add_(torch.normal(0.0, 1.0, size=p.shape), alpha=by)

    with torch.no_grad():
        for x, y in zip(*(part.split(BATCH) for part in samples())):
            seed = random.randrange(10**6)
            shift(seed, 0.1)
            above = F.cross_entropy(model(x), y)
            shift(seed, -0.2)
            below = F.cross_entropy(model(x), y)
            taken.append(((above - below) / 0.2).item())
            shift(seed, 0.1 - 0.05 * taken[-1])
            log.step((above + below) / 2)
    finish(log, model, taken=torch.tensor(taken))


@record.case
def evolution(log):
    """The weights become the mean of a small population, weighed by its losses."""
    model, best = network(), []
    for x, y in batches(*samples(79)):
        with torch.no_grad():
            members, losses = [copied(model) for member in range(4)], []
            for member in members:
                for p in member.parameters():
                    p.add_(torch.randn_like(p), alpha=0.2)
                losses.append(F.cross_entropy(member(x), y).item())
            weights = torch.tensor(losses).mul(-10).softmax(0).tolist()
            for p, *others in zip(model.parameters(), *[member.parameters() for member in members]):
                p.copy_(sum(weight * other for weight, other in zip(weights, others)))
        best.append(max(losses) - min(losses))
        log.step(min(losses))
    finish(log, model, best=torch.tensor(best))


@record.case
def better_of_two(log):
    """Random search: a change is kept if the batch likes it better."""
    model, wide, kept = network(), 0.15, []
    X, Y = samples()
    with torch.no_grad():
        for step in range(8):
            index, other = torch.randint(0, len(X), (BATCH,)), copied(model)
            for p in other.parameters():
                p.add_(wide * torch.randn(p.shape))
            losses = [F.cross_entropy(of(X[index]), Y[index]).item() for of in (model, other)]
            kept.append(losses[1] < losses[0])
            if kept[-1]:
                model.load_state_dict(other.state_dict())
            wide *= 1.0 + losses[0] - losses[1]
            log.step(min(losses))
    finish(log, model, wide=wide, kept=kept)


@record.case
def weights_after_hebb(log):
    """Oja's rule; a layer on top learns by descent."""
    inner = nn.Linear(FEATURES, 4, bias=False).requires_grad_(False)
    outer, optimizer = learning(nn.Linear(4, CLASSES))
    for x, y in batches(*samples()):
        h = inner(x)
        inner.weight.add_((h.T @ x - torch.tril(h.T @ h) @ inner.weight) / len(x), alpha=0.05)
        descend(log, F.cross_entropy(outer(h), y), optimizer)
    finish(log, inner, outer, optimizer)


@record.case
def mistakes_of_a_perceptron(log):
    """Each mistake moves two rows; the mean of all weights so far is what is used in the end."""
    model, mean, mistakes = nn.Linear(FEATURES, CLASSES, bias=False), torch.zeros(CLASSES, FEATURES), 0
    with torch.no_grad():
        for step, (x, y) in enumerate(zip(*(part.split(BATCH) for part in samples(79)))):
            out = model(x)
            said, wrong = out.argmax(1), out.argmax(1) != y
            model.weight.index_add_(0, y[wrong], 0.1 * x[wrong])
            model.weight.index_add_(0, said[wrong], -0.1 * x[wrong])
            mistakes += wrong.sum().item()
            mean += (model.weight - mean) / (step + 1)
            log.step(F.cross_entropy(out, y))
    finish(log, model, mean=mean, mistakes=mistakes)


# ---- losses over pairs of samples
def paired(log, loss_of, count=72, momentum=0.0):
    """A loss of two views and the class; what it returns beside the loss is kept."""
    model, optimizer, kept = *learning(network(6), momentum=momentum), []
    for a, b, y in batches(*views(count), samples(count)[1]):
        loss, beside = loss_of(model(a), model(b), y)
        descend(log, loss, optimizer)
        kept.append(beside.detach())
    finish(log, model, optimizer, kept=kept)


@record.case
def contrast_of_views(log):
    """SimCLR; the share of pairs that find each other is kept."""

    def loss_of(za, zb, y):
        z = unit(torch.cat([za, zb]))
        scores = (z @ z.T / 0.3).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        right = torch.arange(len(z)).roll(len(za))
        return F.cross_entropy(scores, right), (scores.argmax(1) == right).float().mean()

    paired(log, loss_of, momentum=0.9)


@record.case
def contrast_of_classes(log):
    """Supervised contrast; the share of pairs that are of a class is kept."""

    def loss_of(za, zb, y):
        scores, same = unit(za) @ unit(zb).T / 0.3, (y[:, None] == y).float()
        return -((scores.log_softmax(1) * same).sum(1) / same.sum(1)).mean(), same.mean()

    paired(log, loss_of, 81)


@record.case
def temperature_of_pairs(log):
    """CLIP: two encoders, and a temperature that is learned and kept in bounds."""
    one, other, scale = network(6), network(6), nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([{"params": [*one.parameters(), *other.parameters()]}, {"params": [scale], "lr": 0.3}], lr=0.1)
    for a, b in batches(*views(79)):
        scores = scale.exp() * unit(one(a)) @ unit(other(b)).T
        right = torch.arange(len(a))
        descend(log, (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2, optimizer)
        with torch.no_grad():
            scale.clamp_(0, 1.2)
    finish(log, one, other, optimizer, scale=scale)


@record.case
def margin_of_hardest_triplets(log):
    """The farthest of the class and the nearest of another; the margin follows their distances."""
    model, optimizer, margin = *learning(network(6)), 0.3
    for x, y in batches(*samples()):
        z = model(x)
        distance = (z[:, None] - z).square().sum(2).add(1e-6).sqrt()
        same = y[:, None] == y
        far, near = (distance * same).max(1).values, distance.masked_fill(same, 1e3).min(1).values
        descend(log, F.softplus(far - near + margin).mean(), optimizer)
        margin = 0.8 * margin + 0.2 * (near - far).mean().abs().item()
    finish(log, model, optimizer, margin=margin)


@record.case
def correlation_of_views(log):
    """Barlow Twins; the matrices are kept."""

    def loss_of(za, zb, y):
        now = ((za - za.mean(0)) / za.std(0)).T @ ((zb - zb.mean(0)) / zb.std(0)) / len(za)
        return (now.diagonal() - 1).square().sum() + 0.05 * (now - now.diagonal().diag()).square().sum(), now

    paired(log, loss_of, 81)


@record.case
def spread_and_covariance(log):
    """VICReg; the spreads are kept."""

    def loss_of(za, zb, y):
        loss = F.mse_loss(za, zb)
        for z in (za, zb):
            covariance = torch.cov(z.T)
            loss = loss + F.relu(1 - z.var(0).add(1e-4).sqrt()).mean() + (covariance - covariance.diagonal().diag()).square().sum() / 6
        return loss, za.std(0)

    paired(log, loss_of, 79)


@record.case
def pairs_in_order(log):
    """A hinge for every pair of samples of which one is worth more."""
    model, optimizer, right = *learning(network(1)), 0
    for x, r in batches(*targets(79)):
        out = model(x)
        higher = (r - r.T) > 0
        descend(log, F.relu(0.5 - (out - out.T))[higher].mean(), optimizer)
        right += int((((out - out.T) > 0) & higher).sum())
    finish(log, model, optimizer, right=right)


@record.case
def hardest_of_the_batch(log):
    model, optimizer, often = *learning(network(), momentum=0.9), torch.zeros(81, dtype=torch.long)
    for x, y, index in batches(*numbered(81)):
        losses, hardest = each(model(x), y).topk(len(x) // 2)
        descend(log, losses.mean(), optimizer)
        often[index[hardest]] += 1
    finish(log, model, optimizer, often=often)


@record.case
def softmax_over_the_batch(log):
    """ListNet: the batch is a list that is put in order."""
    model, optimizer, mean = *learning(network(1)), torch.zeros(())
    for x, r in batches(*targets()):
        shares = model(x).squeeze(1).log_softmax(0)
        descend(log, -(r.squeeze(1).softmax(0) * shares).sum(), optimizer)
        mean.lerp_((shares.detach().exp() * r.squeeze(1)).sum(), 0.3)
    finish(log, model, optimizer, mean=mean)


# ---- gradients of inputs, and two that play against each other
def noises(count=72):
    return samples(count)[0], torch.randn(count, 4, generator=torch.Generator().manual_seed(8))


@record.case
def penalty_as_a_number(log):
    """How steep the critic is between real and false samples, as a number that weighs its decay."""
    d = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1))
    (d, for_d), (g, for_g), weight = learning(d, momentum=0.5), learning(network(FEATURES, 4)), 0.1
    for real, z in batches(*noises(79)):
        fake, share = g(z), torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(d(between).sum(), between)
        weight = 0.5 * weight + 10 * slope.square().sum(1).mean().item()
        loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean() + weight * sum(p.square().mean() for p in d.parameters())
        descend(log, loss, for_d)
        descend(log, F.softplus(-d(fake)).mean(), for_g)
    finish(log, d, g, for_d, for_g, weight=weight)


@record.case
def strength_of_attacks(log):
    """FGSM by the gradient of the samples; the strength grows with how many are still right."""
    model, optimizer, strength = *learning(network(), momentum=0.9), 0.05
    for x, y in batches(*samples(81)):
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        out = model((x + strength * x.grad.sign()).detach())
        descend(log, F.cross_entropy(out, y), optimizer)
        strength *= 0.8 + 0.5 * (out.argmax(1) == y).float().mean().item()
    finish(log, model, optimizer, strength=strength)


@record.case
def attack_kept_between_batches(log):
    """Free adversarial training: a row of noise for each place in a batch, which the next batch meets again."""
    model, optimizer, noise = *learning(network()), torch.zeros(BATCH, FEATURES)
    for x, y in batches(*samples(79)):
        for turn in range(2):
            added = noise[: x.size(0)].clone().requires_grad_()
            descend(log, F.cross_entropy(model(x + added), y), optimizer)
            noise[: x.size(0)] = (noise[: x.size(0)] + 0.1 * added.grad.sign()).clamp(-0.3, 0.3)
    finish(log, model, optimizer, noise=noise)


@record.case
def sum_of_saliencies(log):
    """The input that mattered most so far is halved."""
    model, optimizer, saliency = *learning(network()), torch.zeros(FEATURES)
    for x, y in batches(*samples(79)):
        x = x.clone()
        x[:, saliency.argmax()] *= 0.5
        x.requires_grad_()
        descend(log, F.cross_entropy(model(x), y), optimizer)
        saliency += x.grad.abs().sum(0)
    finish(log, model, optimizer, saliency=saliency)


# ---- schedules
@record.case
def plateau_of_each_step(log):
    model, optimizer = learning(network(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=0.05)
    for x, y in batches(*samples(81)):
        loss = F.cross_entropy(model(x), y)
        descend(log, loss, optimizer)
        scheduler.step(loss.item())
    finish(log, model, optimizer, best=scheduler.best, bad=scheduler.num_bad_epochs, lr=scheduler.get_last_lr())


@record.case
def switch_by_accuracy(log):
    """The first layer learns from the step on at which a batch is mostly right."""
    model, optimizer, switched = *learning(network(), lr=0.3), None
    model[0].requires_grad_(False)
    for step, (x, y) in enumerate(batches(*samples())):
        out = model(x)
        right = (out.argmax(1) == y).float().mean().item()
        descend(log, F.cross_entropy(out, y), optimizer)
        if switched is None and right > 0.6:
            switched = step, right
            model[0].requires_grad_(True)
    finish(log, model, optimizer, switched=switched)


@record.case
def length_of_the_next_batch(log):
    """More samples once the loss falls more slowly."""
    model, optimizer, at, size, last, sizes = *learning(network()), 0, 8, 2.0, []
    X, Y = samples(96)
    while at + size <= 96:
        loss = F.cross_entropy(model(X[at : at + size]), Y[at : at + size])
        descend(log, loss, optimizer)
        sizes.append(size)
        at, size, last = at + size, 16 if loss.item() > 0.93 * last else 12, loss.item()
    finish(log, model, optimizer, sizes=sizes, last=last)


@record.case
def table_that_chooses_the_worst(log):
    """A DataLoader's batches are the samples with the largest losses so far, those never seen first."""
    model, optimizer, table = *learning(network()), 100.0 - torch.arange(30)
    worst = (table.topk(BATCH).indices.tolist() for batch in range(7))
    for x, y, index in DataLoader(TensorDataset(*numbered(30)), batch_sampler=worst):
        losses = each(model(x), y)
        descend(log, losses.mean(), optimizer)
        table[index] = losses.detach()
    finish(log, model, optimizer, table=table)


@record.case
def norms_for_a_limit(log):
    """Gradients are cut to a quantile of their lengths so far."""
    model, optimizer, norms = *learning(network(), lr=0.3, momentum=0.9), []
    X, Y = samples()
    for index in torch.randperm(72).view(-1, BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X[index]), Y[index])
        loss.backward()
        norms.append(sum(p.grad.square().sum() for p in model.parameters()).sqrt().item())
        nn.utils.clip_grad_norm_(model.parameters(), float(numpy.quantile(norms, 0.4)))
        optimizer.step()
        log.step(loss, model, optimizer)
    finish(log, model, optimizer, norms=norms)


@record.case
def accuracy_so_far(log):
    model, optimizer, right, seen, total = *learning(network()), 0, 0, 0.0
    for x, y in batches(*samples(81)):
        seen += x.size(0)
        optimizer.param_groups[0]["lr"] = 0.2 * min(seen / 60, 1)
        out = model(x)
        loss = F.cross_entropy(out, y)
        descend(log, loss, optimizer)
        right += (out.argmax(1) == y).sum().item()
        total += loss.item() * x.size(0)
        log.print(f"{right} of {seen}: {100.0 * right / seen:.2f}%")
    finish(log, model, optimizer, right=right, seen=seen, mean_loss=total / seen)


# ---- two models
@record.case
def agreement_of_two(log):
    """Mutual learning: each learns what the other says; how much that counts follows how often they agree."""
    (one, for_one), (other, for_other), agreed = learning(network(), momentum=0.9), learning(network()), 0.5
    for x, y in batches(*samples(79)):
        a, b = one(x), other(x)
        apart = [F.kl_div(p.log_softmax(1), q.detach().softmax(1), reduction="batchmean") for p, q in ((a, b), (b, a))]
        descend(log, F.cross_entropy(a, y) + agreed * apart[0], for_one)
        descend(log, F.cross_entropy(b, y) + agreed * apart[1], for_other)
        agreed = 0.5 * agreed + 0.5 * (a.argmax(1) == b.argmax(1)).float().mean().item()
    finish(log, one, other, for_one, for_other, agreed=agreed)


@record.case
def choices_for_each_other(log):
    """Co-teaching: each learns from the samples that the other finds easy, fewer with every step."""
    (one, for_one), (other, for_other) = learning(network()), learning(network())
    chosen = torch.zeros(2, 81, dtype=torch.long)
    for step, (x, y, index) in enumerate(batches(*numbered(81))):
        a, b = each(one(x), y), each(other(x), y)
        count = int((1 - 0.05 * step) * len(x))
        easy_a, easy_b = a.argsort()[:count], b.argsort()[:count]
        descend(log, a[easy_b].mean(), for_one)
        descend(log, F.cross_entropy(other(x[easy_a]), y[easy_a]), for_other)
        chosen[0][index[easy_a]] += 1
        chosen[1][index[easy_b]] += 1
    finish(log, one, other, for_one, for_other, chosen=chosen)


@record.case
def teacher_that_follows(log):
    """Mean teacher: the pace follows how far the two are apart."""
    student, optimizer, pace = *learning(network(), lr=0.3), 0.2
    teacher = copied(student)
    for a, b, y in batches(*views(), samples()[1]):
        out = student(a)
        apart = F.mse_loss(out.softmax(1), teacher(b).softmax(1))
        descend(log, F.cross_entropy(out, y) + 5 * apart, optimizer)
        follow(teacher, student, pace)
        pace = min(0.1 + 20 * apart.item(), 1.0)
    finish(log, student, teacher, optimizer, pace=pace)


@record.case
def trust_in_a_frozen_teacher(log):
    """Distillation whose weight falls for the classes about which the teacher is wrong."""
    student, teacher, trust = network(), copied(network(hidden=32)), torch.ones(CLASSES)
    optimizer = adam(student)
    for x, y in batches(*samples(79)):
        said, out = teacher(x), student(x)
        soft = F.kl_div((out / 2).log_softmax(1), (said / 2).softmax(1), reduction="none").sum(1)
        descend(log, F.cross_entropy(out, y) + 4 * (soft * trust[y]).mean(), optimizer)
        right = torch.zeros(CLASSES).index_add_(0, y, (said.argmax(1) == y).float())
        trust = 0.7 * trust + 0.3 * (right + 1) / (counts_of(y) + 1)
    finish(log, student, teacher, optimizer, trust=trust)


@record.case
def soup_of_weights(log):
    """The mean of all weights after batches that were better than the mean loss so far."""
    model, optimizer, count, mean = *learning(network(), lr=0.3), 0, 2.0
    soup = copied(model)
    for x, y in batches(*samples(81)):
        loss = F.cross_entropy(model(x), y)
        descend(log, loss, optimizer)
        if loss.item() < mean:
            count += 1
            follow(soup, model, 1 / count)
        mean = 0.6 * mean + 0.4 * loss.item()
    finish(log, model, soup, optimizer, count=count, mean=mean)


# ---- before and after training
@record.case
def mean_of_a_pass_before(log):
    loader = batches(*samples(79))
    count, total, squares = 0, 0.0, 0.0
    for x, _ in loader:
        count, total, squares = count + x.size(0), total + x.sum(0), squares + x.square().sum(0)
    mean, spread = total / count, (squares / count - (total / count).square()).sqrt()
    model, optimizer = learning(network())
    for x, y in loader:
        descend(log, F.cross_entropy(model((x - mean) / spread), y), optimizer)
    finish(log, model, optimizer, mean=mean, spread=spread, count=count)


@record.case
def weights_counted_before(log):
    loader = batches(*samples(81))
    counts = sum(counts_of(y) for _, y in loader)
    model, optimizer = learning(network())
    criterion = nn.CrossEntropyLoss(weight=counts.sum() / (CLASSES * counts))
    for x, y in loader:
        descend(log, criterion(model(x), y), optimizer)
    finish(log, model, optimizer, counts=counts)


@record.case
def statistics_after_training(log):
    """A last pass in training mode, with gradients on: losses, predictions, and moments of the outputs."""
    model, optimizer, loader = *learning(network(), momentum=0.9), batches(*samples(79))
    for x, y in loader:
        descend(log, F.cross_entropy(model(x), y), optimizer)
    losses, said, mean, largest = 0.0, torch.zeros(CLASSES, dtype=torch.long), torch.zeros(CLASSES), []
    for x, y in loader:
        out = model(x)
        losses += F.cross_entropy(out, y).item() / len(loader)
        said += counts_of(out.argmax(1))
        mean += out.detach().mean(0) / len(loader)
        largest.append(out.max().item())
    finish(log, model, optimizer, losses=losses, said=said, mean=mean, largest=largest)


# ---- rows that meet in the model
def classified(log, model, count=72):
    model, optimizer = learning(model)
    for x, y in batches(*samples(count)):
        out, beside = model(x)
        descend(log, F.cross_entropy(out, y) + beside, optimizer)
    finish(log, model, optimizer)


class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.register_buffer("codes", torch.randn(8, 4))
        self.register_buffer("sizes", torch.ones(8))

    def forward(self, x):
        z = self.inner(x)
        nearest = torch.cdist(z.detach(), self.codes).argmin(1)
        q = self.codes[nearest]
        with torch.no_grad():
            hot = F.one_hot(nearest, 8).float()
            self.sizes.mul_(0.8).add_(hot.sum(0), alpha=0.2)
            self.codes.add_((hot.T @ z - hot.sum(0)[:, None] * self.codes) / self.sizes[:, None], alpha=0.2)
        return self.outer(z + (q - z).detach()), 0.25 * F.mse_loss(z, q)


@record.case
def codebook_in_forward(log):
    classified(log, Codebook(), 79)


class OverTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.outer = nn.Linear(FEATURES, 24), nn.Linear(8, CLASSES)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=1)
        mixed = (q @ k.T / 8**0.5).softmax(1) @ v
        return self.outer(v + mixed), 0.0


@record.case
def attention_over_the_batch(log):
    classified(log, OverTheBatch())


class Scales(nn.Module):
    """ActNorm: the first batch sets a shift and a scale, which are learned from then on."""

    def __init__(self):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.ones(16))
        self.inner, self.outer = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)
        self.register_buffer("set", torch.tensor(False))

    def forward(self, x):
        h = self.inner(x)
        if not self.set:
            with torch.no_grad():
                self.shift.copy_(-h.mean(0))
                self.scale.copy_(1 / (h.std(0) + 1e-3))
                self.set.fill_(True)
        return self.outer(torch.tanh(self.scale * (h + self.shift))), 0.01 * self.scale.abs().log().mean()


@record.case
def scales_set_in_the_first_forward(log):
    classified(log, Scales(), 79)


class Settings:
    calls = 0


calls_of_all = 0


class Counting(nn.Module):
    """Counts its calls in an object, and in a global variable if it has no object."""

    def __init__(self, settings):
        super().__init__()
        self.outer, self.settings, self.lengths = nn.Linear(FEATURES, CLASSES), settings, []

    def forward(self, x):
        self.settings.calls += 1
        self.lengths.append(len(self.lengths))
        return self.outer(x) / (1 + 0.1 * self.settings.calls)


class CountingForAll(Counting):
    def forward(self, x):
        global calls_of_all
        calls_of_all += 1
        return self.outer(x) / (1 + 0.1 * calls_of_all)


def counted(log, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = samples()
    for first in range(0, len(x), BATCH):
        loss = F.cross_entropy(model(x[first:first + BATCH]), y[first:first + BATCH])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss)
    finish(log, model, optimizer, calls=[model.settings.calls, calls_of_all, len(model.lengths)])


@record.case
def calls_counted_in_an_object(log):
    counted(log, Counting(Settings()))


@record.case
def calls_counted_in_a_variable(log):
    global calls_of_all
    calls_of_all = 0
    counted(log, CountingForAll(Settings()))


@record.case
def slopes_that_are_penalized(log):
    """The penalty of WGAN-GP: gradients of gradients with respect to inputs."""
    real_of, fake_of = network(1), nn.Linear(4, FEATURES)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (real_of, fake_of)]
    slopes = []
    for x, _ in batches(*samples()):
        fake = fake_of(torch.randn(len(x), 4))
        between = (0.5 * x + 0.5 * fake.detach()).requires_grad_()
        slope = torch.autograd.grad(real_of(between).sum(), between, create_graph=True)[0].norm(dim=1)
        slopes.append(slope.mean().item())
        loss = F.softplus(-real_of(x)).mean() + F.softplus(real_of(fake.detach())).mean() + (slope - 1).square().mean()
        for optimizer, loss_of in zip(optimizers, (lambda: loss, lambda: F.softplus(-real_of(fake)).mean())):  # noqa: B023
            optimizer.zero_grad()
            value = loss_of()
            value.backward()
            optimizer.step()
            log.step(value)
    finish(log, real_of, fake_of, slopes=slopes)


if __name__ == "__main__":
    record.main()
