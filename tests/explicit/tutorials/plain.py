"""The losses of rank 0 in a tutorial of RANKS ranks, by plain PyTorch on whole batches in one process: plain.py TUTORIAL RANKS [fp16] [CHECKPOINT]

fp16: under autocast, with a GradScaler, which leaves out the steps whose gradients overflow. masters: of images, with a model in float16 beside
the float one, whose norms stay float, and a scale of 32.
CHECKPOINT: the tutorial's model at its end, as a file of plain PyTorch; the largest difference from this model is printed.
"""
import copy
import importlib
import sys

import torch

half, masters = "fp16" in sys.argv[3:], "masters" in sys.argv[3:]
checkpoint = [name for name in sys.argv[3:] if name not in ("fp16", "masters")]
tutorial, ranks = importlib.import_module(sys.argv[1]), int(sys.argv[2])
losses = []


def batches():
    """The batches of all ranks of each step."""
    if sys.argv[1] == "gpt_gemini":
        yield from ([tutorial.get_data(rank, step) for rank in range(ranks)] for step in range(tutorial.NUM_STEPS))
        return
    dataset = tutorial.build_dataset()
    for _ in range(tutorial.NUM_EPOCHS):
        loaders = [torch.utils.data.DataLoader(dataset, batch_size=tutorial.BATCH_SIZE, drop_last=True, sampler=torch.utils.data.DistributedSampler(
            dataset, num_replicas=ranks, rank=rank, shuffle=True, seed=1024)) for rank in range(ranks)]
        yield from map(list, zip(*loaders))


def loss_of(model, batch):
    if sys.argv[1] == "glue_bert":
        return model(**batch).loss
    if sys.argv[1] == "gpt_gemini":
        return tutorial.GPTLMLoss()(model(*batch), batch[0])
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def scheduler_of(optimizer, steps):
    """(the scheduler, steps between its steps)"""
    epoch = steps // getattr(tutorial, "NUM_EPOCHS", 1)
    if sys.argv[1] == "cifar_resnet":
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 20], gamma=1 / 3), epoch
    if sys.argv[1] == "cifar_vit":
        # One epoch of warm-up, of which the first step has half the rate; then linearly to 0.
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: VIT_RATES[n]), epoch
    if sys.argv[1] == "glue_bert":
        return tutorial.get_linear_schedule_with_warmup(optimizer, int(tutorial.WARMUP_FRACTION * steps), steps), 1
    return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0), 1


VIT_RATES = [0.5, 1.0, 0.0]
everything = list(batches())
torch.manual_seed(42)
model = tutorial.build_model()
lr = tutorial.LEARNING_RATE * (1 if sys.argv[1] == "gpt_gemini" else ranks)
decay = {"cifar_vit": 0.1, "glue_bert": 0.01}.get(sys.argv[1], 0.0)
parameters = tutorial.grouped(model) if sys.argv[1] == "glue_bert" else model.parameters()
optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
scheduler, every = scheduler_of(optimizer, len(everything))
def working_copy():
    narrow = copy.deepcopy(model)
    for module in narrow.modules():
        if not isinstance(module, torch.nn.BatchNorm2d):  # its float numbers stay what they are
            for p in module.parameters(recurse=False):
                p.data = p.data.half()
    for p in narrow.parameters():
        p.grad_dtype = torch.float32
    return narrow


def by_masters(parts):
    """The gradients of the float model, from the working copy's."""
    narrow = working_copy()
    for rank, (images, labels) in enumerate(parts):
        loss = torch.nn.functional.cross_entropy(narrow(images.half()).float(), labels)
        if rank == 0:
            print(f"loss {loss.item()!r}")
        (loss * 32).backward()
    for wide, p in zip(model.parameters(), narrow.parameters()):
        wide.grad = p.grad / 32


scaler = torch.amp.GradScaler("cpu", enabled=half)
model.train()
for step, parts in enumerate(everything):
    optimizer.zero_grad()
    if masters:
        by_masters(parts)
    for rank, part in enumerate(parts if not masters else ()):
        with torch.autocast("cpu", dtype=torch.float16, enabled=half):
            loss = loss_of(model, part)
        if rank == 0:
            print(f"loss {loss.item()!r}")
        scaler.scale(loss).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= ranks
    scaler.step(optimizer)
    scaler.update()
    if (step + 1) % every == 0:
        scheduler.step()
if checkpoint:
    state = torch.load(checkpoint[0], weights_only=True)
    own = model.state_dict()
    learned = [name for name, _ in model.named_parameters()]  # a rank's batch statistics are its own
    again = tutorial.build_model()
    again.load_state_dict(state)
    print(f"difference {max((state[name].float() - own[name]).abs().max().item() for name in learned)!r}")
