"""Names and kinds of a checkpoint's files, and how the path that a script gives leads to them."""
import errno
import os
import re
import stat

from ..agent import core

core.require()

MODEL = ("model.safetensors", "pytorch_model.bin")
OPTIMIZER = ("pytorch_optim.bin",)
GROUPS = "pytorch_optim_group.bin"
INDEX = ".index.json"
SAFETENSORS, ZIP, LEGACY = "safetensors", "zip", "legacy"  # what a file's first bytes say it is

_SUFFIXES = {".safetensors": True, ".bin": False, ".pt": False, ".pth": False, ".ckpt": False}


class CheckpointError(core.Error):
    """A checkpoint cannot be read or written, or does not fit. The text names the file and says what to do."""


def check_suffix(path, use_safetensors):
    """A file's name must not promise another format than its content: programs choose their reader by it."""
    promised = _SUFFIXES.get(os.path.splitext(path)[1])
    if promised is not None and promised != use_safetensors:
        raise ValueError(f"castor: {path} would hold {'safetensors' if use_safetensors else 'a file of torch.save'}: "
                         f"pass use_safetensors={promised}, or another name")


# ---- to write


def target(checkpoint, names, use_safetensors=False):
    """The path of a checkpoint in one file. In a folder it has Hugging Face's name."""
    path = os.fspath(checkpoint)
    if os.path.isdir(path):
        return os.path.join(path, name_of(names, use_safetensors))
    check_suffix(path, use_safetensors)
    return path


def folder(checkpoint):
    """The folder of a checkpoint in shards; it is made."""
    path = os.fspath(checkpoint)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise CheckpointError(f"castor: shards are saved in a folder, and {path} is a file: give another path, or shard=False")
    os.makedirs(path, exist_ok=True)
    return path


def name_of(names, use_safetensors):
    return names[0] if use_safetensors or len(names) == 1 else names[1]


def _shard_names(name, count, digits):
    stem, suffix = os.path.splitext(name)
    return [f"{stem}-{i:0{digits}}-of-{count:0{digits}}{suffix}" for i in range(1, count + 1)]


def shard_names(folder_path, name, count):
    """Names of `count` new shards and of one more file (the groups'), none of which an index there names: until the new index is
    in its place, the old one must lead to the old files. The second set of names is like Hugging Face's, with a digit more."""
    index = os.path.join(folder_path, name + INDEX)
    used = ""
    if os.path.lexists(index):
        with open(index, encoding="utf-8", errors="replace") as file:
            used = file.read()
    for digits in (5, 6):
        shards, groups = _shard_names(name, count, digits), GROUPS if digits == 5 else GROUPS.replace(".bin", "-1.bin")
        first = _shard_names(name, 1, digits)[0]
        pattern = re.escape(os.path.splitext(name)[0]) + rf"-\d{{{digits}}}-of-\d{{{digits}}}" + re.escape(os.path.splitext(first)[1])
        if not re.search(pattern, used):
            return shards, groups
    raise CheckpointError(f"castor: {index} names shards of two saves: remove the folder, or save into another one")


def stale(folder_path, name, kept):
    """Files of an older checkpoint of the same name that a new one (`kept`: its files' names) replaces."""
    stem, suffix = map(re.escape, os.path.splitext(name))
    pattern = rf"{stem}(-\d{{5,6}}-of-\d{{5,6}})?{suffix}({re.escape(INDEX)})?"
    if name in OPTIMIZER:
        pattern += r"|pytorch_optim_(group|rest)(-1)?\.bin"
    return [os.path.join(folder_path, n) for n in sorted(os.listdir(folder_path)) if n not in kept and re.fullmatch(pattern, n)]


# ---- to read


def check_regular(path, missing="check the path"):
    """Refuses what is no file with content, before it is opened: a pipe would wait for ever. Links are followed, as the cache of
    Hugging Face consists of them."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        what = "a link that leads nowhere" if os.path.islink(path) else "not there"
        raise FileNotFoundError(errno.ENOENT, f"castor: the checkpoint's file is {what}: {missing}", path) from None
    except OSError as error:
        raise OSError(error.errno, f"castor: the checkpoint's file cannot be reached: {error.strerror}", path) from None
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"castor: {path} is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no regular file'}, where a file of a checkpoint should be")
    if not found.st_size:
        raise CheckpointError(f"castor: {path} is empty: its save was interrupted, or the disk was full; load another checkpoint")
    return found.st_size


def find(checkpoint, names):
    """The file or index that `checkpoint`, a file, an index or a folder, leads to."""
    path = os.fspath(checkpoint)
    if os.path.isdir(path):
        path = os.path.join(path, _in_folder(path, names))
    check_regular(path)
    return path


def _in_folder(path, names):
    there = [n + ending for n in names for ending in ("", INDEX) if os.path.lexists(os.path.join(path, n + ending))]
    if len(there) > 1:
        raise CheckpointError(f"castor: {path} holds several checkpoints, {' and '.join(there)}: give the path of the one to load, or remove the other")
    if there:
        return there[0]
    foreign = [n for n in sorted(os.listdir(path)) if n.endswith(INDEX) and not (names is MODEL and n.startswith(OPTIMIZER[0]))]
    if names is MODEL and len(foreign) == 1:
        return foreign[0]
    if os.path.lexists(os.path.join(path, ".metadata")):
        raise CheckpointError(f"castor: {path} is a checkpoint of torch.distributed.checkpoint: convert it with "
                              "castor.checkpoint_io.from_dcp(folder, checkpoint)")
    raise FileNotFoundError(errno.ENOENT, f"castor: there is no {' or '.join(names)} and no index of one in", path)


def is_index(path):
    return path.endswith(".json")


def kind(path):
    """SAFETENSORS, ZIP or LEGACY: the format of a file, whatever its name is."""
    check_regular(path)
    with open(path, "rb") as file:
        head = file.read(9)
    if head[:4] == b"PK\x03\x04":
        return ZIP
    if head[8:9] == b"{":
        return SAFETENSORS
    if head[:1] == b"\x80":
        return LEGACY
    raise CheckpointError(f"castor: {path} is neither a safetensors file nor one of torch.save: it is damaged, or no checkpoint")
