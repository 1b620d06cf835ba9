"""The Booster's first example, a GPT under GeminiPlugin in 16 bits, beside plain PyTorch. As alone.py has it."""
import copy
import os
import warnings

import torch
import transformers

import colossalai
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin
from colossalai.nn.loss import GPTLMLoss
from colossalai.nn.lr_scheduler import LinearWarmupLR
from colossalai.nn.optimizer import HybridAdam
from found import end, found

rank, world, port = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 29500)))
max_epochs, STEPS, LR = 2, 3, 1e-3
losses, rates = [], []


class GPT2(torch.nn.Module):
    """A GPT2 of two layers, called with two tensors."""

    def __init__(self):
        super().__init__()
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.inner = transformers.GPT2LMHeadModel(config)

    def forward(self, input_ids, attention_mask):
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)


tokens = torch.randint(0, 64, (8 * STEPS * world, 16), generator=torch.Generator().manual_seed(1))
train_dataset = torch.utils.data.TensorDataset(tokens, torch.ones_like(tokens))


def LinearWarmupScheduler():
    return LinearWarmupLR(optimizer, total_steps=max_epochs * STEPS, warmup_steps=2)


def plain():
    """The same without the Booster: whole batches, in float."""
    global optimizer
    torch.manual_seed(1024)
    model, criterion = GPT2(), GPTLMLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    scheduler, found_losses, found_rates = LinearWarmupScheduler(), [], []
    for _ in range(max_epochs):
        for step in range(STEPS):
            # Rank r has the samples r, r + world, ...
            parts = [tokens[r::world][step * 8 : step * 8 + 8] for r in range(world)]
            each = [criterion(model(part, torch.ones_like(part)).logits, part) for part in parts]
            found_losses.append(each[rank].item())
            found_rates.append(optimizer.param_groups[0]["lr"])
            (sum(each) / world).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return found_losses, found_rates, model.state_dict()


beside, beside_rates, beside_state = plain()
colossalai.launch(rank=rank, world_size=world, host="127.0.0.1", port=port, verbose=False)
plugin = GeminiPlugin()
warnings.simplefilter("ignore", UserWarning)
booster = Booster(precision='fp16', plugin=plugin)

model = GPT2()
optimizer = HybridAdam(model.parameters())
dataloader = plugin.prepare_dataloader(train_dataset, batch_size=8)
lr_scheduler = LinearWarmupScheduler()
criterion = GPTLMLoss()

model, optimizer, criterion, dataloader, lr_scheduler = booster.boost(model, optimizer, criterion, dataloader, lr_scheduler)

for epoch in range(max_epochs):
    for input_ids, attention_mask in dataloader:
        outputs = model(input_ids.cuda(), attention_mask.cuda())
        loss = criterion(outputs.logits, input_ids)
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        booster.backward(loss, optimizer)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()

found("losses", [losses, beside])
found("rates", [rates, beside_rates])
found("state", max((copy.deepcopy(value).float() - beside_state[name.removeprefix("module.")]).abs().max().item()
                   for name, value in model.unwrap().state_dict().items() if value.is_floating_point()))
end()
