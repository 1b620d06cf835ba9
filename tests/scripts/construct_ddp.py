"""How scripts make models: initializers, edits, copies, tied weights, reads, seeds. Every rank's values and its random state
afterwards count, before the wrapper and after it."""

import copy
import math
import threading

import numpy
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record

WIDTH = 512


class Network(nn.Module):
    """Parameters above a mebibyte, at one, and below a page."""

    def __init__(self, layers=3):
        super().__init__()
        self.tokens = nn.Embedding(600, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 600, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens).mean(1)
        for layer in self.layers:
            x = x + torch.tanh(layer(x.to(layer.weight.dtype))).to(x.dtype)
        return self.head(self.norm(x))


def weights(model):
    return [p for p in model.parameters() if p.dim() > 1]


def made(log, model, optimizer_class=torch.optim.SGD, lr=0.05):
    """Notes what was made, and trains it a little."""
    log.parameters(model, "made")
    log.note("buffers", dict(model.named_buffers()))
    log.note("random state", torch.get_rng_state())
    log.note("drawn next", torch.randn(40))
    wrapped = DistributedDataParallel(model)
    log.parameters(model, "wrapped")
    optimizer = optimizer_class(wrapped.parameters(), lr=lr)
    for step in range(3):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        tokens = torch.randint(0, 600, (4, 9), generator=generator)
        optimizer.zero_grad()
        x = F.dropout(wrapped(tokens[:, :-1]).float(), 0.1)
        loss = F.cross_entropy(x, tokens[:, -1])
        loss.backward()
        optimizer.step()
        log.step(loss, model, optimizer)


def initialized(log, seed, initialize, **settings):
    torch.manual_seed(seed)
    model = Network()
    with torch.no_grad():
        for p in weights(model):
            initialize(p)
    made(log, model, **settings)


@record.case
def plain(log):
    torch.manual_seed(1)
    made(log, Network())


@record.case
def plain_adam(log):
    torch.manual_seed(2)
    made(log, Network(), torch.optim.AdamW, 1e-3)


@record.case
def applied(log):
    """All weights a second time, from the outside."""
    torch.manual_seed(3)
    model = Network()

    def initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    model.apply(initialize)
    made(log, model, torch.optim.Adam, 1e-3)


@record.case
def truncated(log):
    initialized(log, 4, lambda p: nn.init.trunc_normal_(p, std=0.02, a=-0.03, b=0.03))


@record.case
def orthogonal(log):
    initialized(log, 5, nn.init.orthogonal_)


@record.case
def kaiming(log):
    initialized(log, 6, nn.init.kaiming_uniform_, optimizer_class=torch.optim.AdamW, lr=1e-3)


@record.case
def constants(log):
    """Zeros, ones and the identity: the same contents many times over."""
    initialized(log, 7, lambda p: nn.init.eye_(p) if p.shape[0] == WIDTH else nn.init.constant_(p, 0.01))


@record.case
def sparse_initialization(log):
    initialized(log, 8, lambda p: nn.init.sparse_(p, 0.9, std=0.05))


@record.case
def edited(log):
    """In place, by slices, through .data and through NumPy."""
    torch.manual_seed(9)
    model = Network()
    with torch.no_grad():
        for number, p in enumerate(weights(model)):
            p.mul_(0.5).add_(0.001)
            p[number::7].zero_()
            p.data[:, 3] = number
            p.detach().numpy()[5] *= 2
            model.layers[0].weight.data.numpy()[number, :] = numpy.arange(WIDTH) / 1000
    made(log, model)


@record.case
def copied_from_numpy(log):
    values = numpy.random.default_rng(10)
    initialized(log, 10, lambda p: p.copy_(torch.from_numpy(values.normal(0, 0.02, tuple(p.shape)).astype(numpy.float32))))


@record.case
def read_while_it_is_made(log):
    """What is drawn depends on what was drawn before."""
    torch.manual_seed(11)
    model = Network()
    with torch.no_grad():
        for before, p in zip(weights(model)[1:], weights(model)):
            if before.abs().sum().item() > 1000:
                p.normal_(0, before.std().item() / 2)
            while p[0, :8].sum() < 0.01:
                p[0, :8].uniform_(-0.1, 0.2)
            p.div_(p.norm() / math.sqrt(WIDTH))
    made(log, model)


@record.case
def tied(log):
    torch.manual_seed(12)
    model = Network()
    model.head.weight = model.tokens.weight
    model.layers[2].weight.data = model.layers[1].weight.data
    with torch.no_grad():
        model.head.weight.normal_(std=0.02)
    made(log, model)


@record.case
def copies_of_a_half_built_module(log):
    """One layer, copied; then some of the copies are changed, and so is the layer."""
    torch.manual_seed(13)
    model = Network(layers=1)
    layer = model.layers[0]
    model.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(4))
    with torch.no_grad():
        model.layers[1].weight.uniform_(-0.02, 0.02)
        layer.weight.zero_()
        model.layers[3].weight[100:200].mul_(3)
    made(log, model)
    log.note("the layer that was copied", layer.weight)


@record.case
def loaded(log):
    """A state dict of another model, before the wrapper, in place and by assignment."""
    torch.manual_seed(14)
    model, other, third = Network(), Network(), Network()
    state = other.state_dict()
    with torch.no_grad():
        other.head.weight.mul_(2)
    model.load_state_dict(state)
    made(log, model)
    model = Network()
    model.load_state_dict(third.state_dict(), assign=True)
    made(log, model, torch.optim.AdamW, 1e-3)


@record.case
def parametrized(log):
    torch.manual_seed(15)
    model = Network()
    nn.utils.parametrizations.weight_norm(model.layers[0])
    nn.utils.parametrizations.spectral_norm(model.layers[1])
    made(log, model)


@record.case
def other_types(log):
    """Parameters move to other memory."""
    torch.manual_seed(16)
    model = Network()
    model.layers[0].to(torch.bfloat16)
    model.layers[1].half().float()
    model.double().float()
    model.layers[2].to(torch.bfloat16)
    made(log, model)


@record.case
def with_buffers(log):
    torch.manual_seed(17)
    model = Network()
    model.register_buffer("mask", torch.randn(WIDTH, WIDTH).tril())
    model.register_buffer("statistics", torch.ones(WIDTH), persistent=False)
    made(log, model)


@record.case
def seeded_inside(log):
    """Every layer from a seed of its own, and with a generator of its own."""
    model = Network()
    for number, p in enumerate(weights(model)):
        torch.manual_seed(number % 3)
        nn.init.normal_(p, std=0.02)
        if number % 2:
            nn.init.uniform_(p, -0.1, 0.1, generator=torch.Generator().manual_seed(5))
    made(log, model)


@record.case
def ranks_seed_apart(log):
    torch.manual_seed(18 + dist.get_rank())
    made(log, Network())


@record.case
def one_rank_edits(log):
    """Another rank's values are the same in part: rank 0's win."""
    torch.manual_seed(19)
    model = Network()
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.layers[1].weight.normal_()
            model.head.weight[17].zero_()
    made(log, model)


@record.case
def rank_0_loads(log):
    """Only rank 0 reads the checkpoint, as the wrapper sends it to all; the others' random states go their own way."""
    torch.manual_seed(20)
    model = Network()
    if dist.get_rank() == 0:
        model.load_state_dict(Network().state_dict())
    made(log, model)


@record.case
def made_by_threads(log):
    """Layers that threads make, at the same time as the main thread makes its own. Each draws from its own generator."""
    torch.manual_seed(21)
    model = Network()
    layers = [None] * 4

    def make(number):
        layers[number] = nn.utils.skip_init(nn.Linear, WIDTH, WIDTH)
        generator = torch.Generator().manual_seed(number)
        for _ in range(20):
            nn.init.normal_(layers[number].weight, std=0.02, generator=generator)
            nn.init.normal_(model.layers[number % 3].weight, std=0.02, generator=generator) if number < 3 else None
        nn.init.zeros_(layers[number].bias)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        nn.init.normal_(model.head.weight, std=0.02)
    for thread in threads:
        thread.join()
    model.layers.extend(layers)
    made(log, model)


@record.case
def sent_while_it_is_made(log):
    """Collectives of the script's own fill parameters, while it makes more."""
    torch.manual_seed(22 + dist.get_rank())
    model = Network()
    works = [dist.broadcast(p.data, 0, async_op=True) for p in model.parameters()]
    torch.manual_seed(23)
    other = Network()
    for work in works:
        work.wait()
    log.parameters(model, "sent")
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters()):
            p.add_(q, alpha=0.1)
    made(log, model)


@record.case
def lists_and_aliases(log):
    """Parameters outside of modules, views of them that the script keeps, and one that is freed."""
    torch.manual_seed(24)
    model = Network()
    model.extra = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.02) for _ in range(3))
    row, flat = model.head.weight.data[5], model.layers[0].weight.detach().view(-1)
    state = model.state_dict()
    with torch.no_grad():
        model.layers[0].weight.mul_(1.5)
    del model.extra
    made(log, model)
    log.note("views", [row, flat, state["tokens.weight"], state["extra.1"]])


@record.case
def frozen_parts(log):
    """Some parameters are never trained, and one belongs to another, untrained model."""
    torch.manual_seed(25)
    model, teacher = Network(), Network()
    model.tokens.weight.requires_grad_(False)
    model.layers[1].requires_grad_(False)
    made(log, model)
    log.parameters(teacher, "teacher")
    with torch.no_grad():
        teacher.head.weight[3].add_(1)
    log.parameters(teacher, "teacher, edited")


@record.case
def forked_while_it_is_made(log):
    """A process of the script's own that was forked sees the parameters as they were then."""
    torch.manual_seed(26)
    model = Network()
    context = torch.multiprocessing.get_context("fork")
    go, answer = context.Event(), context.SimpleQueue()

    def look():
        go.wait(60)
        answer.put([p.detach().numpy().tobytes()[:64] + p.detach().numpy().tobytes()[-64:] for p in model.parameters()])

    process = context.Process(target=look)
    process.start()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    made(log, model)
    go.set()
    log.note("what the other process sees", answer.get())
    process.join()


if __name__ == "__main__":
    record.main()
