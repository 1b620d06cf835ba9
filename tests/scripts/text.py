"""Real text that every machine with Python has: sources of its standard library, as bytes."""

import argparse
import os

import torch
from torch.utils.data import Dataset


def corpus(limit=200_000):
    folder = os.path.dirname(argparse.__file__)
    data = b""
    for name in ("argparse.py", "ast.py", "difflib.py", "inspect.py"):
        with open(os.path.join(folder, name), "rb") as file:
            data += file.read()
    return torch.frombuffer(bytearray(data[:limit]), dtype=torch.uint8).long()


class Windows(Dataset):
    """Consecutive windows of the text, with the next byte as target."""

    def __init__(self, data, context, count):
        self.data, self.context = data, context
        self.count = min(count, (len(data) - 1) // context)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        start = index * self.context
        return self.data[start : start + self.context], self.data[start + 1 : start + self.context + 1]
