"""Reads files of torch.save without running code of theirs."""
import re
import textwrap
import zipfile

import torch

from ..agent import core
from . import _files
from ._files import CheckpointError

_GLOBAL = re.compile(r"GLOBAL (\S+)")


def read(path, kind, mapped, is_checked=False):
    """What torch.save wrote. `mapped`: the tensors show the file's pages; else they have memory of their own. `is_checked`: a
    checksum of the whole file has been compared."""
    if kind == _files.ZIP:
        _check_archive(path, is_checked)
    trusted = core.options.unsafe_load
    try:
        return torch.load(path, map_location="cpu", weights_only=not trusted, mmap=mapped and kind == _files.ZIP)
    except Exception as error:  # noqa: BLE001 - a damaged file fails anywhere in PyTorch's reader
        found = _GLOBAL.search(str(error))
        if found or "weights_only" in str(error) and not trusted:
            raise CheckpointError(
                f"castor: {path} holds {found[1] if found else 'objects'}, which only code of its writer's choice can rebuild: nothing of it was loaded. "
                "If you trust the file, CASTOR_UNSAFE_LOAD=1 lets it run code") from None
        raise _damaged(path, error) from None


def _damaged(path, error):
    why = textwrap.shorten(f"{type(error).__name__}: {error}".splitlines()[0], 160, placeholder=" ...")
    return CheckpointError(f"castor: {path} is damaged or was cut off ({why}): load another checkpoint, or copy the file again")


def _check_archive(path, is_checked):
    """PyTorch's reader maps records as they lie: a compressed one would be noise. It does not look at the CRC-32 that torch.save wrote
    beside each of them (0: it was told not to)."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            if any(r.compress_type != zipfile.ZIP_STORED or r.file_size != r.compress_size for r in records):
                raise CheckpointError(f"castor: {path} is a compressed archive, which torch.save does not write: not loaded")
            if not is_checked:
                _check_records(path, archive, [r for r in records if r.CRC])
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with an archive
        raise _damaged(path, error) from None


def _check_records(path, archive, records):
    from ._writer import crcs

    found = crcs(f"/proc/self/fd/{archive.fp.fileno()}", [r.header_offset for r in records], [r.file_size for r in records])
    for record, crc in zip(records, found):
        if crc != record.CRC:
            raise CheckpointError(f"castor: {path} is damaged: its record {record.filename} has another checksum; load another checkpoint")


def tensors_in(value):
    """Each tensor in any nesting of dicts, lists and tuples."""
    rest, seen = [value], set()
    while rest:
        one = rest.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (dict, list, tuple)) and id(one) not in seen:
            seen.add(id(one))
            rest.extend(reversed(one.values() if isinstance(one, dict) else one))
