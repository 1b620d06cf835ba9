"""The optimizers of castor.nn, for nn_rank.py: their settings, models, and what training with them gives."""
import hashlib

import torch

import castor.nn.optimizer as optimizers

STEPS = 5
# What each is, as torch.optim says it, to the bit; None: only of castor.nn.
SETTINGS = {
    "HybridAdam": (lambda groups: optimizers.HybridAdam(groups, lr=0.01, weight_decay=0.1), lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)),
    "HybridAdam, L2": (lambda groups: optimizers.HybridAdam(model_params=groups, lr=0.01, weight_decay=0.1, adamw_mode=False, betas=(0.8, 0.9)),
                       lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1, betas=(0.8, 0.9))),
    "HybridAdam, uncorrected": (lambda groups: optimizers.HybridAdam(groups, lr=0.01, weight_decay=0.1, bias_correction=False), None),
    "CPUAdam": (lambda groups: optimizers.CPUAdam(groups, eps=1e-6), lambda groups: torch.optim.AdamW(groups, eps=1e-6, weight_decay=0)),
    "FusedAdam": (lambda groups: optimizers.FusedAdam(groups, amsgrad=True), lambda groups: torch.optim.AdamW(groups, weight_decay=0, amsgrad=True)),
    "FusedSGD": (lambda groups: optimizers.FusedSGD(groups, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
                 lambda groups: torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True)),
    "FusedSGD, decay last": (lambda groups: optimizers.FusedSGD(groups, 0.1, momentum=0.9, weight_decay=0.01, wd_after_momentum=True), None),
    "Lamb": (lambda groups: optimizers.Lamb(groups, 0.01, weight_decay=0.01, bias_correction=True), None),
    "FusedLAMB": (lambda groups: optimizers.FusedLAMB(groups, 0.01, max_grad_norm=0.05), None),
    "Lars": (lambda groups: optimizers.Lars(groups, 0.1, momentum=0.9, weight_decay=0.01), None),
    "CAME": (lambda groups: optimizers.CAME(groups, 0.01, weight_decay=0.01), None),
    "Adafactor": (lambda groups: optimizers.Adafactor(groups, beta1=0.9, weight_decay=0.01), None),
}


class Model(torch.nn.Module):
    """Parameters of more and of less than a page; one that is frozen, and one that only even steps use."""

    def __init__(self, width, depth):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(48, width), torch.nn.LayerNorm(width), torch.nn.Linear(width, 16, bias=False)
        self.middle = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))
        self.seldom = torch.nn.Parameter(torch.randn(2048))
        self.frozen = torch.nn.Parameter(torch.randn(16), requires_grad=False)

    def forward(self, samples, even):
        samples = samples.to(self.frozen.dtype)
        out = self.last(self.middle(torch.tanh(self.norm(self.first(samples))))) + self.frozen
        return out.square().mean() + (self.seldom.square().mean() if even else 0.0)


def groups(model):
    """Two groups of different rates, as an optimizer with rates has them."""
    bare = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    return [{"params": [p for p in model.parameters() if p.dim() >= 2]}, {"params": bare, "weight_decay": 0.0}]


def samples(step, rank):
    return torch.randn(8, 48, generator=torch.Generator().manual_seed(10 * step + rank))


def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()[:16]


def digests(model, optimizer):
    """Of the parameters, and of all states with their keys."""
    states = optimizer.state_dict()["state"]
    keys = {str(number): sorted(state) for number, state in states.items()}
    return [digest(model.parameters()), digest(torch.as_tensor(state[key]) for state in states.values() for key in sorted(state)), keys]


class Masters:
    """The float masters of a model that becomes bfloat16, with the method that an optimizer's groups are made of."""

    def __init__(self, model):
        self.pairs = [(p, torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)) for p in model.parameters()]
        model.bfloat16()

    def parameters(self):
        return [master for _, master in self.pairs]

    def take_gradients(self):
        for p, master in self.pairs:
            master.grad = None if p.grad is None else p.grad.float()
            p.grad = None

    @torch.no_grad()
    def give_values(self):
        for p, master in self.pairs:
            p.copy_(master)


def train(make, backward, wrap=lambda model: model, steps=STEPS, again=None, size=(96, 0), masters=False, boost=None):
    """Trains a fresh model; `backward(model, step)` makes the mean gradient of the ranks. `boost(model, optimizer)`: instead of `wrap`. `again`: (make, steps): another optimizer takes up the
    state dict then, and steps on. `masters`: in bfloat16, as CASTOR_PRECISION does it, written out. Returns the digests after each part."""
    torch.manual_seed(0)
    model = Model(*size)
    wide = Masters(model) if masters else None
    if boost is None:
        wrapped, optimizer = wrap(model), make(groups(wide or model))
    else:
        wrapped, optimizer = boost(model, make(groups(model)))
    found, count = [], 0
    for next_make, more in ((None, steps), *(again or ())):
        if next_make is not None:
            state = optimizer.state_dict()
            optimizer = next_make(groups(wide or model))
            optimizer.load_state_dict(state)
        for _ in range(more):
            optimizer.zero_grad()
            backward(wrapped, count)
            if wide:
                wide.take_gradients()
            optimizer.step()
            if wide:
                wide.give_values()
            count += 1
        found.append(digests(model, optimizer))
    return found
