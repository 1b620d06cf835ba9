"""One process: models whose layers, or whose chain of layers, several ranks can have together."""

import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import record
from model import GPT

VOCABULARY, LENGTH, WIDTH, STEPS = 64, 10, 32, 6
wrapped, batches = lambda model: model, 0  # divided_ddp.py: models of ranks, with batches of their own


def tokens(step, count=4):
    generator = torch.Generator().manual_seed(batches + step)
    return torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def without_momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def train(log, model, loss_of, make=sgd, steps=STEPS, clip=None, stepped=lambda model, step: None):
    model = wrapped(model)
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        stepped(model, step)
        log.step(loss, model, optimizer)


def of_tokens(model, step):
    return model(tokens(step), tokens(step + 1000))[1]


def gpt(**options):
    return GPT(vocabulary=VOCABULARY, context=LENGTH, width=WIDTH, heads=4, layers=4, **options)


@record.case
def gpt_sgd(log):
    train(log, gpt(), of_tokens)


@record.case
def gpt_adamw_clipped(log):
    train(log, gpt(), of_tokens, adamw, clip=0.5)


@record.case
def loss_outside(log):
    def loss_of(model, step):
        logits = model(tokens(step))[0]
        return F.cross_entropy(logits.view(-1, VOCABULARY), tokens(step + 1000).view(-1))

    train(log, gpt(), loss_of)


@record.case
def evaluated(log):
    def stepped(model, step):
        model.eval()
        with torch.no_grad():
            logits = model(tokens(500 + step, 2))[0]
        model.train()
        log.note("logits", logits)

    train(log, gpt(), of_tokens, stepped=stepped)


@record.case
def accumulated(log):
    model = gpt()
    optimizer = adamw(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(3):
            loss = of_tokens(model, 3 * step + micro) / 3
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        log.step(total, model, optimizer)


@record.case
def batches_of_other_sizes(log):
    train(log, gpt(), lambda model, step: model(tokens(step, 2 + step), tokens(step + 1000, 2 + step))[1])


@record.case
def gone_back_twice(log):
    def loss_of(model, step):
        loss = of_tokens(model, step)
        (loss * 3).backward(retain_graph=True)
        return loss / 2

    train(log, gpt(), loss_of, without_momentum)


@record.case
def two_calls_for_a_backward(log):
    train(log, gpt(), lambda model, step: of_tokens(model, step) + 2 * of_tokens(model, step + 100), without_momentum)


@record.case
def calls_that_nobody_goes_back_from(log):
    def loss_of(model, step):
        log.note("looked at", of_tokens(model, step + 100).detach())
        return of_tokens(model, step)

    train(log, gpt(), loss_of, without_momentum, steps=8)


@record.case
def masked_and_scaled(log):
    """Microbatches that count other numbers of targets, one of them none, once all of them, and a loss that is scaled."""

    def loss_of(model, step):
        targets = tokens(step + 1000)
        targets[1, : 1 + 2 * step] = -100
        targets[step % 4] = -100
        if step == 4:
            targets[:] = -100
        return model(tokens(step), targets)[1] * 3.0**step

    train(log, gpt(), loss_of, lambda parameters: torch.optim.SGD(parameters, lr=1e-3))


class Losing(nn.Module):
    """Its call returns the loss."""

    def __init__(self, loss):
        super().__init__()
        self.inner, self.loss = Perceptrons(within=False), loss

    def forward(self, x, y):
        return self.loss(self.inner(x), y)


def of_losing(model, step, count=7):
    generator = torch.Generator().manual_seed(batches + step)
    return model(torch.randn(count, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator))


@record.case
def sum_of_losses(log):
    train(log, Losing(lambda logits, y: F.cross_entropy(logits, y, reduction="sum")), of_losing, without_momentum, steps=8)


@record.case
def mean_of_elements(log):
    train(log, Losing(lambda logits, y: (logits - F.one_hot(y, 3)).square().mean()), of_losing, without_momentum)


@record.case
def losses_of_samples(log):
    train(log, Losing(lambda logits, y: F.cross_entropy(logits, y, reduction="none").mean()), of_losing, without_momentum)


@record.case
def logits_are_used_late(log):
    def loss_of(model, step):
        logits, loss = model(tokens(step), tokens(step + 1000))
        return loss + logits.square().mean() if step == 6 else loss

    train(log, gpt(), loss_of, without_momentum, steps=8)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Perceptrons(nn.Module):
    """Blocks with dropout in between; between the layers of each if `within`."""

    def __init__(self, within, dropout=0.1, norm=nn.LayerNorm, width=WIDTH):
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            Residual(norm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout * within), nn.Linear(2 * width, width), nn.Dropout(dropout * (not within)))
            for _ in range(4)
        )
        self.leave = nn.Linear(width, 3)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def of_classes(model, step, count=8):
    generator = torch.Generator().manual_seed(batches + step)
    x, y = torch.randn(count, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    return F.cross_entropy(model(x), y)


@record.case
def dropout_between_blocks(log):
    train(log, Perceptrons(within=False), of_classes)


@record.case
def dropout_within_blocks(log):
    train(log, Perceptrons(within=True), of_classes)


@record.case
def batch_norms(log):
    train(log, Perceptrons(within=True, dropout=0.0, norm=nn.BatchNorm1d), of_classes)


@record.case
def recomputed(log):
    class Recomputed(Perceptrons):
        def forward(self, x):
            x = self.enter(x)
            for number, block in enumerate(self.blocks):
                x = checkpoint(block, x, use_reentrant=number % 2 == 0)
            return self.leave(x)

    train(log, Recomputed(within=False), of_classes)


class RunAgain(torch.autograd.Function):
    """A script's own checkpoint."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        torch.autograd.backward(y, grad)
        return None, x.grad


@record.case
def recomputed_by_its_own(log):
    class Recomputed(Perceptrons):
        def forward(self, x):
            x = self.enter(x)
            for block in self.blocks:
                x = RunAgain.apply(block, x)
            return self.leave(x)

    train(log, Recomputed(within=False, dropout=0.0), of_classes)


class OfBackward(torch.autograd.Function):
    """As a reentrant checkpoint, it wants the script's own backward(), and no pass for some gradients."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("call backward()")
        return grad


@record.case
def wants_backward_itself(log):
    class Wanting(Perceptrons):
        def forward(self, x, y=None):
            x = self.enter(x)
            for number, block in enumerate(self.blocks):
                x = block(OfBackward.apply(x) if number == 3 else x)  # on the last stage alone
            return F.cross_entropy(self.leave(x), y)

    def loss_of(model, step):
        generator = torch.Generator().manual_seed(batches + step)
        return model(torch.randn(8, 8, generator=generator), torch.randint(0, 3, (8,), generator=generator))

    train(log, Wanting(within=False), loss_of)


@record.case
def encoder(log):
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(WIDTH, VOCABULARY))

    def loss_of(model, step):
        return F.cross_entropy(model(tokens(step)).view(-1, VOCABULARY), tokens(step + 1000).view(-1))

    train(log, model, loss_of)


@record.case
def frozen_first_blocks(log):
    model = Perceptrons(within=False, dropout=0.0)
    for block in model.blocks[:2]:
        block.requires_grad_(False)
    model.enter.requires_grad_(False)
    train(log, model, of_classes)


@record.case
def skips_a_block(log):
    class Skipping(Perceptrons):
        def forward(self, x):
            x = self.enter(x)
            for number, block in enumerate(self.blocks):
                if number != 2:
                    x = block(x)
            return self.leave(x)

    train(log, Skipping(within=False, dropout=0.0), of_classes)


@record.case
def remembers_each_block(log):
    class Remembering(Perceptrons):
        def forward(self, x):
            x, seen = self.enter(x), []
            for block in self.blocks:
                x = block(x)
                seen.append(x)
            return self.leave(sum(seen))

    train(log, Remembering(within=False, dropout=0.0), of_classes)


class Adapted(nn.Linear):
    """A layer in the place of another, which computes more with its weight."""

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features)
        self.load_state_dict(layer.state_dict())

    def forward(self, x):
        return super().forward(x) * 1.5


@record.case
def layers_are_exchanged(log):
    """After the first calls, which are tried: one layer is another's, one has a forward of the script's, and the chain gets shorter."""
    model = Perceptrons(within=False, dropout=0.0)
    train(log, model, of_classes, without_momentum, 4)
    model.blocks[0][1] = Adapted(model.blocks[0][1])
    train(log, model, of_classes, without_momentum, 3)
    plain = model.blocks[1][4].forward
    model.blocks[1][4].forward = lambda x: plain(x).tanh()
    train(log, model, of_classes, without_momentum, 3)
    del model.blocks[3]
    train(log, model, of_classes, without_momentum, 3)


def of_transformers(make, **more):
    """A model of transformers, with random values, that returns its loss."""

    def case(log):
        import transformers

        model = make(transformers)

        def loss_of(model, step):
            ids = tokens(step)
            labels = ids.clone()
            labels[0, : 2 + step % 3] = -100
            return model(input_ids=ids, labels=labels, **more).loss

        train(log, model, loss_of, without_momentum)

    return case


SMALL = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}


def small_gpt2(t):
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=4, n_head=4, use_cache=False))


@record.case
def hf_gpt2(log):
    of_transformers(small_gpt2)(log)


def gpt2_with_checkpoints(t):
    model = small_gpt2(t)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    return model


@record.case
def hf_gpt2_checkpoints(log):
    """As transformers' trainer has it: reentrant checkpoints, and a hook that makes embeddings require gradients."""
    of_transformers(gpt2_with_checkpoints)(log)


@record.case
def hf_gpt2_biases(log):
    """Most of it is frozen, its embeddings too, as where adapters are trained: the checkpoints' gradients end at the embeddings' outputs."""

    def make(t):
        model = gpt2_with_checkpoints(t)
        for p in model.parameters():
            p.requires_grad_(p.dim() == 1)
        return model

    of_transformers(make)(log)


@record.case
def hf_llama(log):
    of_transformers(lambda t: t.LlamaForCausalLM(t.LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False)))(log)


@record.case
def hf_bert(log):
    of_transformers(lambda t: t.BertForMaskedLM(t.BertConfig(**SMALL, max_position_embeddings=LENGTH)))(log)


@record.case
def hf_t5(log):
    of_transformers(lambda t: t.T5ForConditionalGeneration(t.T5Config(vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=4, num_heads=4, use_cache=False, decoder_start_token_id=0)))(log)


@record.case
def hf_vit(log):
    import transformers

    config = transformers.ViTConfig(hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8, num_labels=5)

    def loss_of(model, step):
        generator = torch.Generator().manual_seed(batches + step)
        return model(pixel_values=torch.randn(4, 3, 16, 16, generator=generator), labels=torch.randint(0, 5, (4,), generator=generator)).loss

    train(log, transformers.ViTForImageClassification(config), loss_of, without_momentum)


@record.case
def wide_blocks(log):  # the last of two stages makes more gradients than are queued to be summed
    train(log, Perceptrons(within=False, width=1152), of_classes, without_momentum, steps=2)


if __name__ == "__main__":
    record.main()
