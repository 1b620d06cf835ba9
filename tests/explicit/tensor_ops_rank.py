"""Operators of ColoTensors on each rank, beside PyTorch's on whole tensors: see test_tensor.py."""
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F

from castor.tensor import ColoParameter, ColoTensor, ColoTensorSpec, ComputePattern, ComputeSpec, ProcessGroup, ReplicaSpec, ShardSpec
from found import end, found, launch, raised

launch()
world = dist.get_world_size()
group = ProcessGroup(tp_degree=world)
ROWS, COLUMNS, WHOLE = ShardSpec([0], [world]), ShardSpec([-1], [world]), ReplicaSpec()
LAYOUTS = {"whole": WHOLE, "rows": ROWS, "columns": COLUMNS}
if world == 4:
    LAYOUTS["blocks"] = ShardSpec([0, 1], [2, 2])
wrong, compared = [], 0


def made(value, layout, requires_grad=True, gathered=True):
    compute = ComputeSpec(ComputePattern.TP1D)
    compute.set_output_replicate(gathered)
    tensor = ColoParameter(value.clone(), requires_grad, ColoTensorSpec(group))
    tensor.set_tensor_spec(layout, compute)
    return tensor


def whole(tensor):
    if not isinstance(tensor, ColoTensor):
        return tensor
    return tensor.to_replicate()


def same(name, got, expected):
    """Both whole; sums over ranks are added in another order."""
    global compared
    compared += 1
    if got is None or got.shape != expected.shape or not torch.allclose(got, expected, rtol=1e-9, atol=1e-9):
        wrong.append(f"{name}: {got} instead of {expected}")


def compare(name, function, *operands):
    """function(*operands) and the gradients of all operands; `operands`: (value, layout or None for a plain tensor) each."""
    plain = [value.clone().requires_grad_(value.is_floating_point()) for value, _ in operands]
    expected = function(*plain)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (expected * weights).sum().backward()
    for gathered in (True, False):
        mine = [value.clone().requires_grad_(value.is_floating_point()) if layout is None else made(value, layout, gathered=gathered)
                for value, layout in operands]
        result = function(*mine)
        if not isinstance(result, ColoTensor):
            wrong.append(f"{name}: a {type(result).__name__}")
            continue
        same(name, whole(result), expected)
        (whole(result) * weights).sum().backward()
        for i, (tensor, reference) in enumerate(zip(mine, plain)):
            if reference.requires_grad:
                same(f"{name}, gradient {i}", None if tensor.grad is None else whole(tensor.grad), reference.grad)


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


torch.manual_seed(0)
X, W, B, M = random(8, 16), random(4, 16), random(4), random(16, 4)
INDEX = torch.tensor([[0, 3, 7], [5, 5, 1]])
TABLE = random(8, 4)
for (name, layout), bias, x in itertools.product(LAYOUTS.items(), (WHOLE, ROWS, None), (None, WHOLE, COLUMNS, ROWS)):
    case = f"{name}, bias {bias}, x {x}"
    compare(f"linear {case}", F.linear, (X, x), (W, layout), (B, bias))
    compare(f"addmm {case}", lambda x, m, b: torch.addmm(b, x, m), (X, x), (M, layout), (B, bias))
    if bias is None:
        compare(f"linear without a bias {case}", F.linear, (X, x), (W, layout))
        compare(f"addmm with factors {case}", lambda x, m, b: torch.addmm(b, x, m, beta=2, alpha=3), (X, x), (M, layout), (B, bias))
        compare(f"matmul {case}", torch.matmul, (X, x), (M, layout))
        compare(f"@ {case}", lambda x, m: x @ m, (X, x), (M, layout))
        compare(f"linear of three dimensions {case}", F.linear, (X.view(2, 4, 16), None), (W, layout))
for (name, layout), padding in itertools.product(LAYOUTS.items(), (None, 5, -1)):
    compare(f"embedding {name}, padding {padding}", lambda w, padding=padding: F.embedding(INDEX, w, padding_idx=padding), (TABLE, layout))
    compare(f"embedding by frequency {name}", lambda w: F.embedding(INDEX, w, scale_grad_by_freq=True), (TABLE, layout))
    for mode in ("sum", "mean", "max"):
        compare(f"embedding_bag {name} {mode}", lambda w, mode=mode: F.embedding_bag(INDEX.flatten(), w, torch.tensor([0, 3]), mode=mode), (TABLE, layout))

SQUARE = random(8, 8)
OPERATORS = {
    "layer_norm": lambda x: F.layer_norm(x, (8,)), "softmax": lambda x: x.softmax(-1), "softmax 0": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: x.log_softmax(1), "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(8)), "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(0), "norm": lambda x: x.norm(), "vector_norm": torch.linalg.vector_norm, "index": lambda x: x[1:5, 2],
    "transposed": lambda x: x.t() + 1, "T": lambda x: x.T @ x, "mT": lambda x: x.mT * 2, "cat": lambda x: torch.cat([x, x]),
    "cat 1": lambda x: torch.cat([x, x], 1), "stack": lambda x: torch.stack([x, x]), "view": lambda x: x.view(2, 4, 8), "view -1": lambda x: x.view(8, -1, 4),
    "flat": lambda x: x.view(-1), "reshape": lambda x: x.reshape(4, -1), "flatten": lambda x: x.flatten(), "unflatten": lambda x: x.unflatten(1, (2, 4)),
    "elements": lambda x: F.gelu(x) * 2 + x, "relu": F.relu, "power": lambda x: x ** 2, "reversed": lambda x: 1 - x, "divided": lambda x: 1 / (x * x + 1),
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros(8, 8, dtype=torch.float64)), "l1_loss": lambda x: F.l1_loss(x, torch.ones(8, 8, dtype=torch.float64)),
    "max": lambda x: x.max(1)[0], "amax": lambda x: x.amax(), "sort": lambda x: x.sort(0)[0], "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x.unsqueeze(1).expand(8, 3, 8), "squeeze": lambda x: x.unsqueeze(0).squeeze(0), "cumsum": lambda x: x.cumsum(0),
    "var": lambda x: x.var(), "std": lambda x: x.std(1), "logsumexp": lambda x: x.logsumexp(0), "tril": lambda x: x.tril(),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 4, 8)] * 3, is_causal=True), "bmm": lambda x: torch.bmm(x[None], x[None]),
    "mm": lambda x: x @ x.t(), "einsum": lambda x: torch.einsum("ij,kj->ik", x, x), "conv1d": lambda x: F.conv1d(x[None], torch.ones(3, 8, 3, dtype=torch.float64)),
    "masked_fill": lambda x: x.masked_fill(torch.eye(8).bool(), 0.0), "where": lambda x: torch.where(x > 0, x, torch.zeros((), dtype=torch.float64)),
    "chunk": lambda x: x.chunk(2, 1)[1], "split": lambda x: x.split(3)[1], "repeat": lambda x: x.repeat(2, 1), "flip": lambda x: x.flip(0),
    "gather": lambda x: x.gather(1, torch.zeros(8, 1, dtype=torch.long)), "dot": lambda x: x.flatten().dot(x.flatten()), "clone": lambda x: x.clone(),
    "a column added": lambda x: x + torch.arange(8, dtype=torch.float64), "a row added": lambda x: x + torch.arange(8, dtype=torch.float64)[:, None],
    "in place": lambda x: (x * 1).add_(x).mul_(3), "iadd": lambda x: _iadd(x), "dropout": lambda x: _dropped(x), "double": lambda x: x.float().double() * 0 + x,
}


def _iadd(x):
    x = x * 2
    x += 1
    return x


def _dropped(x):
    torch.manual_seed(4)
    return F.dropout(x, 0.5)


for (name, function), (layout_name, layout) in itertools.product(OPERATORS.items(), LAYOUTS.items()):
    compare(f"{name}, {layout_name}", function, (SQUARE, layout))
for name, layout in LAYOUTS.items():  # a learnt number for all blocks, and operands that lie in two ways
    compare(f"scaled {name}", lambda x, s: x * s + s, (SQUARE, layout), (random(1), None))
    for other_name, other in LAYOUTS.items():
        compare(f"{name} + {other_name}", lambda a, b: a + b * a, (SQUARE, layout), (random(8, 8), other))
        compare(f"{name} @ {other_name}", lambda a, b: a @ b, (SQUARE, layout), (random(8, 8), other))

# ---- optimizers and clipping of what is sharded
KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1), "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True), "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}
for (kind, optimizer), (name, layout), foreach in itertools.product(KINDS.items(), LAYOUTS.items(), (False, True)):
    shapes = ((8, 8), (16, 4), (4,))
    plain = [torch.nn.Parameter(torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=torch.float64).view(shape)) for shape in shapes]
    mine = [made(p.detach(), layout if p.dim() == 2 else WHOLE) for p in plain]
    for parameters in (plain, mine):
        steps = optimizer(parameters)
        for _ in range(3):
            steps.zero_grad()
            sum((p.square() * p.sin()).sum() for p in parameters).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
            steps.step()
    for got, expected in zip(mine, plain):
        same(f"{kind} {name} {foreach}", whole(got.detach()), expected.detach())

# ---- activations of another group
alone = ProcessGroup(tp_degree=1)
for layout in (ROWS, COLUMNS):
    activation = ColoTensor.from_torch_tensor(X.clone(), ColoTensorSpec(alone))
    same(f"linear of another group {layout}", whole(F.linear(activation, made(W, layout), made(B, WHOLE))), F.linear(X, W, B))

sharded = made(SQUARE, ROWS)
with torch.no_grad():
    found("written otherwise", raised(NotImplementedError, sharded.index_fill_, 0, torch.tensor([0]), 1.0) if world > 1 else "writes to a sharded ColoTensor")
found("max_norm", raised(NotImplementedError, F.embedding, INDEX, sharded, max_norm=1.0) if world > 1 else "max_norm")
found("index outside", raised(IndexError, F.embedding, INDEX + 1, sharded) if world > 1 else "in 0 to 7")
found("wrong", wrong[:5])
found("compared", compared)
end()
