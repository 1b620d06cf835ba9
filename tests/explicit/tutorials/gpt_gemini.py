"""Trains a GPT2 from its configuration, as benchmarks for Colossal-AI do. The tokens are made on the spot."""
import argparse
from contextlib import nullcontext
from time import time

import torch
import torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

import colossalai
from colossalai.accelerator import get_accelerator
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from colossalai.lazy import LazyInitContext
from colossalai.logging import disable_existing_loggers, get_dist_logger
from colossalai.nn.optimizer import HybridAdam

NUM_STEPS = 6
BATCH_SIZE = 4
SEQ_LEN = 16
VOCAB_SIZE = 64
LEARNING_RATE = 1e-3


class GPTLMModel(nn.Module):
    def __init__(self, checkpoint=True):
        super().__init__()
        self.checkpoint = checkpoint
        self.config = GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=SEQ_LEN, n_ctx=SEQ_LEN, vocab_size=VOCAB_SIZE,
                                 resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.model = GPT2LMHeadModel(self.config)
        if checkpoint:
            self.model.gradient_checkpointing_enable()

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=not self.checkpoint)[0]


class GPTLMLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss_fn = nn.CrossEntropyLoss()

    def forward(self, logits, labels):
        shift_logits = logits[..., :-1, :].contiguous()
        return self.loss_fn(shift_logits.view(-1, shift_logits.size(-1)), labels[..., 1:].contiguous().view(-1))


def build_model():
    return GPTLMModel()


def get_data(rank, step):
    # As randint(..., device=torch.cuda.current_device()) is written in such scripts, with a generator, for the comparison.
    draws = torch.Generator(device=torch.device("cuda", torch.cuda.current_device())).manual_seed(100 * step + rank)
    input_ids = torch.randint(0, VOCAB_SIZE, (BATCH_SIZE, SEQ_LEN), device=torch.cuda.current_device(), generator=draws)
    return input_ids, torch.ones_like(input_ids)


def get_mem_info(prefix=""):
    return f"{prefix}GPU memory usage: {torch.cuda.memory_allocated() / 1024**2:.2f} MB, peak {torch.cuda.max_memory_allocated() / 1024**2:.2f} MB"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--distplan", default="CAI_Gemini", choices=["CAI_ZeRO1", "CAI_ZeRO2", "CAI_Gemini", "Pytorch_DDP"])
    parser.add_argument("--precision", default="fp16")
    args = parser.parse_args()
    assert colossalai.__version__ >= "0.2.0"

    disable_existing_loggers()
    colossalai.launch_from_torch()
    logger = get_dist_logger()
    logger.info(f"gpt2, {args.distplan}, batch size {BATCH_SIZE}", ranks=[0])

    criterion = GPTLMLoss()
    torch.manual_seed(42)
    if args.distplan.startswith("CAI"):
        ctx = LazyInitContext(default_device=get_accelerator().get_current_device()) if args.distplan == "CAI_Gemini" else nullcontext()
        with ctx:
            model = build_model()
        if args.distplan == "CAI_Gemini":
            plugin = GeminiPlugin(search_range_m=128, hidden_dim=model.config.n_embd, precision=args.precision)
        else:
            plugin = LowLevelZeroPlugin(stage=int(args.distplan[-1]), reduce_bucket_size_in_m=12, overlap_communication=True, verbose=True,
                                        precision=args.precision)
        optimizer = HybridAdam(model.parameters(), lr=LEARNING_RATE)
        logger.info(get_mem_info(prefix="After init optim, "), ranks=[0])
    else:
        model = build_model().cuda()
        plugin = TorchDDPPlugin()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    booster = Booster(plugin=plugin)
    model, optimizer, criterion, _, _ = booster.boost(model, optimizer, criterion)
    logger.info(get_mem_info(prefix="After init model, "), ranks=[0])

    torch.cuda.synchronize()
    model.train()
    for n in range(NUM_STEPS):
        input_ids, attn_mask = get_data(torch.distributed.get_rank(), n)
        optimizer.zero_grad()
        start = time()
        outputs = model(input_ids, attn_mask)
        loss = criterion(outputs, input_ids)
        torch.cuda.synchronize()
        booster.backward(loss, optimizer)
        torch.cuda.synchronize()
        optimizer.step()
        torch.cuda.synchronize()
        logger.info(f"[{n + 1}/{NUM_STEPS}] Loss:{loss.item():.3f}, Step time: {time() - start:.3f}s", ranks=[0])
        logger.info(get_mem_info(prefix=f"[{n + 1}/{NUM_STEPS}] "), ranks=[0])
        if torch.distributed.get_rank() == 0:
            print(f"loss {loss.item()!r}")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
