"""Writes files atomically (interpose/checkpoint): under a temporary name, made durable, then renamed, with a checksum each. A Job
is a list of files that appear together; what they hold is read from the tensors' memory, without a copy of it all."""
import atexit
import ctypes
import io
import json
import os
import pickle
import sys

import torch

from . import core

# safetensors' names of types, in its own order: tensors of the largest alignment come first, so that each is aligned.
_SAFETENSORS = (
    ("uint64", "U64"), ("int64", "I64"), ("float64", "F64"), ("complex64", "C64"), ("float32", "F32"), ("uint32", "U32"),
    ("int32", "I32"), ("bfloat16", "BF16"), ("float16", "F16"), ("uint16", "U16"), ("int16", "I16"),
    ("float8_e8m0fnu", "F8_E8M0"), ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"), ("int8", "I8"), ("uint8", "U8"),
    ("bool", "BOOL"),
)
_ORDER = {getattr(torch, name): (place, short) for place, (name, short) in enumerate(_SAFETENSORS) if hasattr(torch, name)}
PLACEHOLDER_LENGTH = 16


def _checked(call, *args):
    """Calls a function of the core; a failed system call is an OSError, as open() raises it."""
    try:
        return call(*args)
    except core.Error as error:
        path = ctypes.c_char_p()
        number = core.checkpoint_failure(ctypes.byref(path))
        if not number:
            raise
        raise OSError(number, os.strerror(number), os.fsdecode(path.value or b"")) from error


def checksum(path, begin=0, text=b""):
    """The checksum of a text and of a file's bytes from `begin` on, 16 hexadecimal digits."""
    out = ctypes.c_uint64()
    _checked(core.checkpoint_checksum, os.fsencode(path), begin, text, len(text), ctypes.byref(out))
    return f"{out.value:016x}"


def crcs(path, headers, sizes):
    """The CRC-32 of each of an archive's records, by the positions of their headers and their sizes."""
    count = len(headers)
    out = (ctypes.c_uint32 * count)()
    _checked(core.checkpoint_crcs, os.fsencode(path), (ctypes.c_uint64 * count)(*headers), (ctypes.c_uint64 * count)(*sizes), count, out)
    return list(out)


def summed(header, mark):
    """What the checksum `mark` in a safetensors file covers besides the bytes behind the header: the entries of the tensors, and
    of the metadata the entry in which it stands and names of tensors. Other programs may add some when they copy the file."""
    metadata = header.get("__metadata__", {})
    names = {n: v.replace(mark, "") for n, v in metadata.items() if mark in v or v in header}
    return json.dumps([names, {n: row for n, row in header.items() if n != "__metadata__"}], sort_keys=True).encode()


def _plain(name, tensor):
    """The tensor's values in order, in the CPU's memory: the tensor itself where it lies so."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in _ORDER:
        raise core.Error(f"castor: {name} cannot be written as safetensors: it is {tensor.dtype}, {tensor.layout}, on {tensor.device}")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.clone() if _is_pinned(plain) else plain


def _is_pinned(data):
    """A device may write to such memory, which nothing stops."""
    return torch.cuda.is_initialized() and data.is_pinned()


class _Records:
    """Stands for PyTorch's writer of archives in torch.serialization._save: it gathers the records."""

    def __init__(self):
        self.records = []  # (name, bytes or storage, size)

    def write_record(self, name, data, size):
        self.records.append((name, data.encode() if isinstance(data, str) else data, size))


def _names_hash(names):
    """PyTorch's hash of an archive's names, 20 digits: what its own writer says of an archive with these names."""
    out = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(out)
    for name in names:
        writer.write_record(name, b"", 0)
    writer.write_end_of_file()
    data = out.getvalue()
    name = b"archive/.data/serialization_id"
    at = data.index(name)  # behind its header, the end of which is the size of the padding behind it
    at += len(name) + int.from_bytes(data[at - 2:at], "little")
    return data[at:at + 20]


class Job:
    def __init__(self, background=False):
        """`background`: commit() returns at once, and the files hold what the tensors hold then. Raises the error of an earlier
        save in the background, once."""
        self._handle = None
        self.partial = None  # after commit() in the background: the file that exists while it is written, the one after that and its inode
        _checked(core.checkpoint_check)
        self._background = background
        self._files = 0
        self._keep = []  # what the job's memory belongs to
        self._handle = ctypes.c_void_p()
        core.checkpoint_new(ctypes.byref(self._handle))

    def __del__(self):
        if getattr(self, "_handle", None):
            core.checkpoint_drop(self._handle)

    def _file(self, path):
        if not self._handle:
            raise core.Error("castor: this checkpoint was committed already; make another Job")
        number = ctypes.c_uint32()
        _checked(core.checkpoint_file, self._handle, os.fsencode(path), ctypes.byref(number))
        return number.value

    def _bytes(self, data):
        core.checkpoint_bytes(self._handle, data, len(data))

    def add_safetensors(self, path, tensors, metadata=None, mark=None):
        """Adds a file of tensors, as safetensors' save_file writes it. Returns its number. `mark`: 16 characters in the metadata, in
        whose place the checksum of the file's content will stand (summed)."""
        tensors = {name: _plain(name, tensor) for name, tensor in tensors.items()}
        names = sorted(tensors, key=lambda name: (_ORDER[tensors[name].dtype][0], name))
        header, end = ({"__metadata__": dict(metadata)} if metadata else {}), 0
        for name in names:
            begin, end = end, end + tensors[name].nbytes
            header[name] = {"dtype": _ORDER[tensors[name].dtype][1], "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        number = self._file(path)
        self._bytes(len(text).to_bytes(8, "little") + text)
        if mark is not None:
            what = summed(header, mark)
            _checked(core.checkpoint_sum, self._handle, what, len(what), 8 + text.index(mark.encode()))
        held = [tensors[name] for name in names]
        self._keep.append(held)
        addresses, sizes = core.pointers([t.data_ptr() for t in held]), (ctypes.c_uint64 * len(held))(*(t.nbytes for t in held))
        core.checkpoint_memory(self._handle, addresses, sizes, len(held))
        return number

    def add_torch(self, path, obj, pickle_module=pickle, pickle_protocol=2, folder=None):
        """Adds a file of the bytes that torch.save(obj, path) writes. Returns its number. `folder`: in the archive; None: by the
        file's name, as PyTorch names it."""
        gathered = _Records()
        torch.serialization._save(obj, gathered, pickle_module, pickle_protocol, False)
        gathered.write_record("version", "3\n", 2)
        number = self._file(path)
        name = os.path.basename(os.fsdecode(path))
        if folder is None:
            folder = (name.rpartition(".")[0] or name) if os.fspath(path).isascii() else "archive"
        core.checkpoint_archive(self._handle, folder.encode(), torch.serialization._get_storage_alignment())
        for name, data, size in gathered.records:
            copied = isinstance(data, bytes)
            if not copied:
                data = data.clone() if _is_pinned(data) else data
                self._keep.append(data)
            address = data if copied else data.data_ptr()
            core.checkpoint_record(self._handle, name.encode(), address, size, copied)
        core.checkpoint_archive_end(self._handle, _names_hash([name for name, *_ in gathered.records]))
        return number

    def add_text(self, path, text, checksums=None):
        """Adds a text. `checksums`: the number of an earlier file for each placeholder of 16 characters in the text, in whose
        place that file's checksum stands. Such a file is an index: it appears after the others. Returns its number."""
        for placeholder in checksums or ():
            if len(placeholder) != PLACEHOLDER_LENGTH or placeholder not in text:
                raise core.Error(f"castor: the placeholder {placeholder!r} is not in the text, or has not {PLACEHOLDER_LENGTH} characters")
        number = self._file(path)
        places = sorted((at, placeholder) for placeholder in checksums or () for at in _occurrences(text, placeholder))
        done = 0
        for at, placeholder in places:
            self._bytes(text[done:at].encode())
            core.checkpoint_digits(self._handle, checksums[placeholder])
            done = at + PLACEHOLDER_LENGTH
        self._bytes(text[done:].encode())
        return number

    def remove(self, path):
        """Removes a file when everything else is durable; it need not exist."""
        _checked(core.checkpoint_remove, self._handle, os.fsencode(path))

    def commit(self):
        """Writes everything, or begins to. After an OSError all files are as they were."""
        handle, self._handle = self._handle, None
        kept, self._keep = self._keep, []
        if not self._background:
            _checked(core.checkpoint_write, handle)
            return
        path, place, inode = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(4096), ctypes.c_uint64()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        try:
            _checked(core.checkpoint_start, handle, id(kept), path, place, ctypes.byref(inode))
        except BaseException:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(kept))
            raise
        if inode.value:
            self.partial = os.fsdecode(path.value), os.fsdecode(place.value), inode.value


def _occurrences(text, part):
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part))


def wait():
    """Until all background saves are written. Raises the first error of one that was not raised yet."""
    _checked(core.checkpoint_wait)


def finish():
    """Before the process ends. A checkpoint that could not be written, of which nobody has heard, makes it fail."""
    try:
        wait()
    except (OSError, core.Error) as error:
        core.log(0, f"a checkpoint was not saved, and what was there before is unchanged: {str(error).removeprefix('castor: ')}".encode())
        sys.stdout.flush()
        sys.stderr.flush()
        _exit(1)


_exit = os._exit
core.checkpoint_release_set(*(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in ("Py_AddPendingCall", "Py_DecRef")))
atexit.register(finish)
