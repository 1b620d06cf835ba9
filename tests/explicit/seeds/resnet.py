"""The Booster's second example, a ResNet under TorchDDPPlugin with a checkpoint in shards, beside plain PyTorch. As alone.py has it."""
import json
import os

import found as looked_at

import torch
from torch.optim import SGD
from torchvision.models import resnet18

import colossalai
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin

rank, world_size, port = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 29500)))


def train():
    # launch colossalai
    colossalai.launch(rank=rank, world_size=world_size, port=port, host='localhost')

    # create plugin and objects for training
    plugin = TorchDDPPlugin()
    booster = Booster(plugin=plugin)
    model = resnet18()
    criterion = lambda x: x.mean()
    optimizer = SGD((model.parameters()), lr=0.001)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)

    # use booster.boost to wrap the training objects
    model, optimizer, criterion, _, scheduler = booster.boost(model, optimizer, criterion, lr_scheduler=scheduler)

    # do training as normal, except that the backward should be called by booster
    x = torch.randn(4, 3, 224, 224)
    x = x.to('cuda')
    output = model(x)
    loss = criterion(output)
    booster.backward(loss, optimizer)
    optimizer.clip_grad_by_norm(1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()

    # checkpointing using booster api
    save_path = "./model"
    booster.save_model(model, save_path, shard=True, size_per_shard=10, use_safetensors=True)

    new_model = resnet18()
    booster.load_model(new_model, save_path)
    return model, new_model, loss, scheduler


def plain():
    torch.manual_seed(1024)
    model = resnet18()
    optimizer = SGD(model.parameters(), lr=0.001)
    loss = model(torch.randn(4, 3, 224, 224)).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return model, loss


beside, beside_loss = plain()
initial = resnet18().state_dict()
model, new_model, loss, scheduler = train()
trained, loaded, expected = model.unwrap().state_dict(), new_model.state_dict(), beside.state_dict()
looked_at.found("bits", [list(trained) == list(loaded), all(torch.equal(trained[name], loaded[name]) for name in loaded), type(new_model).__name__])
looked_at.found("loss", [loss.item(), beside_loss.item(), scheduler.get_last_lr()[0]])
looked_at.found("beside", max((trained[name].double() - expected[name].double()).abs().max().item() for name in expected))
looked_at.found("changed", any(not torch.equal(initial[name], loaded[name]) for name in initial))
with open("model/model.safetensors.index.json") as file:
    index = json.load(file)
shards = sorted(name for name in os.listdir("model") if name.endswith(".safetensors"))
looked_at.found("files", [len(shards), sorted(set(index["weight_map"].values())) == shards, sorted(index["weight_map"]) == sorted(loaded),
                          max(os.path.getsize(f"model/{name}") for name in shards)])
looked_at.end()
