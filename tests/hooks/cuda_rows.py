"""The rows of the tables of CUDA, NCCL, cuBLAS and cuDNN, as the preprocessor sees them."""
import collections
import os
import subprocess

from preload import FOLDER

ROOT = os.path.dirname(os.path.dirname(FOLDER))

HOOKS = os.path.join(ROOT, "interpose", "hooks", "table")
LAYERS = ("CUDA_RUNTIME", "CUDA_DRIVER", "NCCL", "CUBLAS", "CUBLASLT", "CUDNN")

Row = collections.namedtuple("Row", "layer result id name symbol parameters arguments payload facts")
Abi = collections.namedtuple("Abi", "version name symbol per_thread")


def split(text):
    """The parts of a list between its outermost commas."""
    depth, parts, current = 0, [], ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return parts + [current.strip()] if current.strip() else parts


def _expanded(text):
    done = subprocess.run(
        [os.environ.get("CC", "cc"), "-E", "-P", "-x", "c", "-I", HOOKS, "-"], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout.replace("\n", " ")


def _list(text):
    """What stands between a pair of parentheses, or alone."""
    text = text.strip()
    if text[0] != "(":
        return [text]
    return [] if text[1:-1].strip() in ("", "void") else split(text[1:-1])


def rows(layers=LAYERS):
    """The rows of the layers, in the order of the table."""
    macro = (
        "#define HOOK(layer, mode, result, id, name, symbol, parameters, arguments, payload, source, doc)"
        " @ROW layer @ result @ id @ name @ symbol @ parameters @ arguments @ payload @ source\n"
    )
    found = []
    for text in _expanded(macro + '#include "hooks.def"\n').split("@ROW")[1:]:
        layer, result, id, name, symbol, parameters, arguments, payload, facts = (part.strip() for part in text.split("@"))
        if layer in layers:
            symbol, name = ("".join(part.strip('" ') for part in text.split('" "')) for text in (symbol, name))
            found.append(Row(layer, result, id, name, symbol, _list(parameters), _list(arguments), payload, _list(facts)))
    return found


def abis():
    """The ABIs of the driver's functions: which symbol a name and a version mean."""
    text = (
        "#define DRIVER(version, function, symbol, ...) @ABI version @ function @ symbol @ 0\n"
        "#define DRIVER_PER_THREAD(version, function, symbol, variant, ...) @ABI version @ function @ symbol##variant @ 1\n"
        '#include "cuda_driver.def"\n'
    )
    found = []
    for entry in _expanded(text).split("@ABI")[1:]:
        version, name, symbol, per_thread = (part.strip() for part in entry.split("@"))
        found.append(Abi(int(version), name, symbol, per_thread == "1"))
    return found


def collectives():
    """NCCL's collectives: operation by function."""
    text = '#define NCCL_CALL(...)\n#define NCCL_COLLECTIVE(function, operation, ...) @OP function @ operation\n#include "nccl.def"\n'
    return dict([part.strip() for part in entry.split("@")] for entry in _expanded(text).split("@OP")[1:])
