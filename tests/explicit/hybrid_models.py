"""Models for the tests of HybridParallelPlugin, each with a function that makes a batch and one that makes a loss of outputs and batch."""
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, WIDTH = 48, 6, 16


class Perceptron(nn.Module):
    """What a script writes: a list of blocks, an embedding of its own, a head that is tied to it, and a bias that several places have."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    """Two layers that look as if the one between them could stay divided, and may not; `kind` says why."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.up, self.down, self.scale = kind, nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        h = torch.tanh(self.up(x))
        if self.kind == "also an output":
            return x + self.down(h) + h.mean(-1, keepdim=True)
        if self.kind == "a parameter between":
            return x + self.down(h * self.scale)
        if self.kind == "all of it normalized":
            return x + self.down(F.layer_norm(h, (8,)))
        if self.kind == "halves exchanged":
            return x + self.down(torch.cat([h[..., 4:], h[..., :4]], -1))
        if self.kind == "used twice":
            return x + self.down(torch.tanh(self.up(h)))
        return x + self.down(h) * self.scale  # which may


class Awkward(nn.Module):
    KINDS = "also an output", "a parameter between", "all of it normalized", "halves exchanged", "used twice", "nothing", "hooked"

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(kind) for kind in self.KINDS)
        self.blocks[6].up.register_forward_hook(lambda module, args, output: output / output.detach().norm())

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def _tokens(generator, count):
    return torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)


def _of_ids(generator, count):
    ids = _tokens(generator, count)
    return {"ids": ids}


def _language(generator, count):
    ids = _tokens(generator, count)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _classes(generator, count):
    return {"input_ids": _tokens(generator, count), "labels": torch.randint(0, 2, (count,), generator=generator)}


def _images(generator, count):
    return {"pixel_values": torch.randn(count, 3, 8, 8, generator=generator), "labels": torch.randint(0, 2, (count,), generator=generator)}


def _vectors(generator, count):
    return (torch.randn(count, 8, generator=generator),)


def own_loss(output, batch):
    """As scripts take it: transformers computes it in float."""
    return output.loss


def _of_logits(output, batch):
    return F.cross_entropy(output.logits.flatten(0, -2), batch["labels"].flatten())


def _transformers(name, config, **more):
    def make():
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**more))

    return make


_SHAPE = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 8, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
         "bos_token_id": 0, "eos_token_id": 1}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {  # name: (the model, a batch, its loss)
    "sequential": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)),
                   _vectors, lambda output, batch: (output - 0.5).square().mean()),
    "awkward": (Awkward, _vectors, lambda output, batch: (output - 0.5).square().mean()),
    "perceptron": (Perceptron, _of_ids, lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch["ids"].flatten())),
    "gpt2": (_transformers("GPT2LMHeadModel", "GPT2Config", **_GPT2), _language, _of_logits),
    "gpt2 of odd sizes": (_transformers("GPT2LMHeadModel", "GPT2Config", **{**_GPT2, "vocab_size": 49, "n_embd": 18, "n_head": 3}), _language, _of_logits),
    "llama": (_transformers("LlamaForCausalLM", "LlamaConfig", vocab_size=VOCABULARY, num_key_value_heads=2, **_SHAPE), _language, _of_logits),
    "llama of one head": (_transformers("LlamaForCausalLM", "LlamaConfig", vocab_size=VOCABULARY, num_key_value_heads=1, **_SHAPE), _language, _of_logits),
    "qwen3": (_transformers("Qwen3ForCausalLM", "Qwen3Config", vocab_size=VOCABULARY, num_key_value_heads=2, head_dim=4, **_SHAPE), _language, _of_logits),
    "bert": (_transformers("BertForSequenceClassification", "BertConfig", vocab_size=VOCABULARY, **_SHAPE, **_NO_DROPOUT), _classes, _of_logits),
    "bert masked": (_transformers("BertForMaskedLM", "BertConfig", vocab_size=VOCABULARY, **_SHAPE, **_NO_DROPOUT), _language, _of_logits),
    "vit": (_transformers("ViTForImageClassification", "ViTConfig", image_size=8, patch_size=4, **_SHAPE, **_NO_DROPOUT), _images, _of_logits),
    "t5": (_transformers("T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=WIDTH, d_kv=4, d_ff=32, num_layers=2, num_heads=4,
                         dropout_rate=0.0, decoder_start_token_id=0), _language, _of_logits),
    "encoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False),
                lambda generator, count: (torch.randn(count, 5, 8, generator=generator),), lambda output, batch: output.square().mean()),
}


def _of_castor(name, parameters):
    import castor.nn.optimizer

    return getattr(castor.nn.optimizer, name)(parameters, lr=0.01)


OPTIMIZERS = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
              "hybridadam": lambda p: _of_castor("HybridAdam", p), "lamb": lambda p: _of_castor("Lamb", p), "lars": lambda p: _of_castor("Lars", p)}


def call(model, batch):
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def part(batch, index, of, dtype):
    """The samples of one replica."""
    def cut(t):
        return t.chunk(of)[index].to(dtype) if t.is_floating_point() else t.chunk(of)[index]

    return {name: cut(t) for name, t in batch.items()} if isinstance(batch, dict) else tuple(cut(t) for t in batch)
