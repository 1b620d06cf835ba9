"""python -m castor.agent: the functions of PyTorch that Castor replaces, whether each is as expected, and why it is replaced."""
import torch

from . import patching


def main():
    print(f"torch {torch.__version__}")
    for name, problem, why in patching.look():
        print(f"{name}: {problem or 'as expected'}. {why[0].upper()}{why[1:]}")


if __name__ == "__main__":
    main()
