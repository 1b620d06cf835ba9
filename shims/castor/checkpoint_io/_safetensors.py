"""Reads safetensors files: https://github.com/huggingface/safetensors, "Format". Nothing in a file is trusted."""
import json
import os
from typing import NamedTuple

import torch

from ._files import CheckpointError

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}
_HEADER_MOST = 100_000_000  # bytes; the limit of the format's own library


class Entry(NamedTuple):
    dtype: torch.dtype
    shape: tuple
    begin: int  # in the file, bytes
    end: int


def once(pairs):
    """For json: an object whose names are all different."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands there twice")
    return made


def read_header(path):
    """(the header as it stands there, {name: Entry}, where the tensors' bytes begin) of a file that holds exactly those tensors."""
    size = os.stat(path).st_size

    def damaged(why):
        return CheckpointError(f"castor: {path} is damaged or was cut off: {why}; load another checkpoint, or copy the file again")

    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8 or length > _HEADER_MOST:
            raise damaged(f"its header claims {length} bytes, and the file has {size}")
        text = file.read(length)
    try:
        header = json.loads(text.decode(), object_pairs_hook=once)
        if any(not isinstance(v, str) for v in header.get("__metadata__", {}).values()):
            raise ValueError("its metadata are no text")
        entries = {name: _entry(row, 8 + length) for name, row in header.items() if name != "__metadata__"}
    except KeyError as error:
        raise CheckpointError(f"castor: {path} holds a tensor of the type {error}, which PyTorch cannot read from safetensors") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"its header cannot be read ({error})") from None
    at = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.begin != at:
            raise damaged(f"{name!r} begins at byte {entry.begin}, where {at} is the next")
        at = entry.end
    if at != size:
        raise damaged(f"its tensors end at byte {at}, and the file has {size}")
    return header, entries, 8 + length


def _entry(row, base):
    shape, (begin, end) = row["shape"], row["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, begin, end)):
        raise ValueError("a size or an offset is no natural number")
    dtype, nbytes = TYPES[row["dtype"]], 1
    for n in shape:
        nbytes *= n
    if end - begin != nbytes * dtype.itemsize:
        raise ValueError(f"{end - begin} bytes for a tensor of {shape} of {row['dtype']}")
    return Entry(dtype, tuple(shape), base + begin, base + end)


def read(path):
    """(metadata, {name: tensor}, the file's bytes): the tensors show the file's pages, which are read when they are looked at."""
    header, entries, _ = read_header(path)
    size = os.stat(path).st_size
    file = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage.from_file(path, False, size))
    return header.get("__metadata__", {}), {name: _tensor(file, entry) for name, entry in entries.items()}, file


def _tensor(file, entry):
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    part = file[entry.begin:entry.end]
    if part.data_ptr() % entry.dtype.itemsize:
        part = part.clone()  # the format lets a tensor begin anywhere
    return part.view(entry.dtype).view(entry.shape)
