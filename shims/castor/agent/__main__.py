"""python -m castor.agent: the functions of PyTorch that Castor replaces, whether they are as it expects them, and why they are replaced."""
import torch

from . import patching


def main():
    print(f"torch {torch.__version__}")
    for name, problem, why in patching.look():
        print(f"{name}: {problem or 'as expected'}. {why[0].upper()}{why[1:]}")


if __name__ == "__main__":
    main()
