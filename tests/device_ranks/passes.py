"""Passes of a model on one device. Prints what they return, or their losses.

    passes.py moved|made    that no step follows, of a model that was moved there, or made there, and that no optimizer has
    passes.py cast          with steps, under autocast"""
import sys

import torch

PASSES, LAYERS, WIDTH = 6, 24, 256


def model_of(way):
    with torch.device("cuda" if way == "made" else "cpu"):
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    torch.manual_seed(1)
    for layer in layers:  # the same numbers, wherever they were made
        other = torch.nn.Linear(WIDTH, WIDTH)
        layer.weight.data.copy_(other.weight.data)
        layer.bias.data.copy_(other.bias.data)
    return torch.nn.Sequential(*layers).cuda()


def main():
    torch.set_num_threads(1)
    way = sys.argv[1]
    model = model_of(way)
    batches = [torch.full((4, WIDTH), 1.0 + number, device="cuda") for number in range(PASSES)]
    if way == "cast":
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for number, batch in enumerate(batches):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(batch).float().square().sum()
            loss.backward()
            optimizer.step()
            print(f"step {number}: {loss.item()}", flush=True)
    else:
        model.eval()
        with torch.no_grad():
            for number, batch in enumerate(batches):
                print(f"pass {number}: {model(batch).sum().item()}", flush=True)


if __name__ == "__main__":
    main()
