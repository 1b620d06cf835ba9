"""Passes of a model that no optimizer has, made on the device or moved there, on one device. Prints what they return.

    evaluates.py made|moved"""
import sys

import torch

PASSES = 6


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    made = sys.argv[1] == "made"
    with torch.device("cuda" if made else "cpu"):
        layers = [torch.nn.Linear(256, 256) for _ in range(24)]
    if made:  # with numbers of the host, as the other way
        torch.manual_seed(1)
        for layer in layers:
            other = torch.nn.Linear(256, 256)
            layer.weight.data.copy_(other.weight.data)
            layer.bias.data.copy_(other.bias.data)
    model = torch.nn.Sequential(*layers).cuda().eval()
    with torch.no_grad():
        for number in range(PASSES):
            print(f"pass {number}: {model(torch.full((4, 256), 1.0 + number, device='cuda')).sum().item()}", flush=True)


if __name__ == "__main__":
    main()
