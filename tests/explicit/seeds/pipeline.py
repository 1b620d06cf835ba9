"""execute_pipeline, as the documents of the Booster and scripts that finetune a GPT under HybridParallelPlugin call it, beside plain PyTorch."""
import copy
import os

import torch
import transformers

import colossalai
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin
from colossalai.nn.optimizer import HybridAdam
from found import end, found

rank, world, port = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 29500)))
colossalai.launch(rank=rank, world_size=world, host="127.0.0.1", port=port, verbose=False)
plugin = HybridParallelPlugin(tp_size=1, pp_size=2, num_microbatches=2, precision="fp32", enable_all_optimization=True)
booster = Booster(plugin=plugin)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    n_layer=4, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
plain = copy.deepcopy(model)
tokens = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(2))
dataset = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in tokens]
dataloader = plugin.prepare_dataloader(dataset, batch_size=4)
output_transform_fn = lambda x: x
criterion = lambda x: x.loss


def _criterion(outputs, inputs):
    outputs = output_transform_fn(outputs)
    loss = criterion(outputs)
    return loss


optimizer = HybridAdam(model.parameters(), lr=1e-2)
model, optimizer, _criterion, _, _ = booster.boost(model, optimizer, criterion=_criterion)
is_pp_last_stage = booster.plugin.stage_manager.is_last_stage()
losses, returned = [], []
for epoch in range(2):
    train_dataloader_iter = iter(dataloader)
    for _ in range(len(dataloader)):
        outputs = booster.execute_pipeline(train_dataloader_iter, model, _criterion, optimizer, return_loss=True)
        returned.append([outputs["loss"] is not None, outputs["outputs"] is not None])
        if is_pp_last_stage:
            losses.append(outputs["loss"].item())
        optimizer.step()
        optimizer.zero_grad()
# A batch at a time, without an optimizer
batch = {name: part.cuda() for name, part in next(iter(dataloader)).items()}
with torch.no_grad():
    outputs = booster.execute_pipeline(iter([batch]), model, _criterion, return_loss=True, return_outputs=True)

other, expected = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0), []
for _ in range(2):
    for start in range(0, 8, 4):
        loss = plain(input_ids=tokens[start : start + 4], labels=tokens[start : start + 4]).loss
        expected.append(loss.item())
        loss.backward()
        other.step()
        other.zero_grad()
found("losses", [losses, expected])
found("returned", [is_pp_last_stage, returned])
with torch.no_grad():
    whole = plain(input_ids=tokens[:4], labels=tokens[:4])
found("evaluated", [outputs["outputs"] is not None and (outputs["outputs"]["logits"] - whole.logits).abs().max().item(),
                    outputs["loss"] is not None and abs((outputs["loss"] - whole.loss).item())])
end()
