"""Damaged, foreign and hostile checkpoints: each is refused by the name of its file, runs no code and leaves the model as it was."""
import io
import json
import os
import pickle
import shutil
import tempfile
import zipfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from castor.checkpoint_io import CheckpointIndexFile, CheckpointIO, GeneralCheckpointIO, from_dcp
from found import found

folder = tempfile.mkdtemp(prefix="castor-hostile-")
marker = os.path.join(folder, "code has run")
disk = GeneralCheckpointIO()


def made(seed, width=24):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.Linear(width, 16))


def stepped(model, kind, **options):
    optimizer = kind(model.parameters(), **options)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer


class Code:
    def __reduce__(self):
        return open, (marker, "w")


def values(model):
    return [t.clone() for t in model.state_dict().values()]


# ---- sound checkpoints, which each case damages in a copy
saved = made(1)
sound = {
    "one": os.path.join(folder, "one.safetensors"), "late": os.path.join(folder, "late.safetensors"), "bin": os.path.join(folder, "bin.bin"), "shards": os.path.join(folder, "shards"),
    "bins": os.path.join(folder, "bins"), "optim": os.path.join(folder, "optim.bin"), "optims": os.path.join(folder, "optims"),
}
disk.save_model(saved, sound["one"], use_safetensors=True)
disk.save_model(saved, sound["late"], use_safetensors=True, use_async=True)
disk.save_model(saved, sound["bin"])
disk.save_model(saved, sound["shards"], shard=True, size_per_shard=0.001, use_safetensors=True)
disk.save_model(saved, sound["bins"], shard=True, size_per_shard=0.001)
optimizer = stepped(saved, torch.optim.AdamW)
disk.save_optimizer(optimizer, sound["optim"])
disk.save_optimizer(optimizer, sound["optims"], shard=True, size_per_shard=0.002)
INDEX = "model.safetensors.index.json"
refused, unlike, changed = {}, [], []


def case(name, of, damage, load=None, names=None):
    """`damage(path)` of a copy; then loading it must fail and name `names`, a file's name, by default the path's."""
    path = os.path.join(folder, "case", os.path.basename(sound[of]))
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    os.mkdir(os.path.dirname(path))
    (shutil.copytree if os.path.isdir(sound[of]) else shutil.copy)(sound[of], path)
    damage(path)
    model = made(2)
    other = stepped(model, torch.optim.AdamW)
    before, state = values(model), pickle.dumps(other.state_dict())
    try:
        if load is not None:
            load(model, other, path)
        elif of.startswith("optim"):
            disk.load_optimizer(other, path)
        else:
            disk.load_model(model, path)
        refused[name] = None
    except (RuntimeError, OSError) as error:
        text = " ".join(str(a) for a in error.args) + str(getattr(error, "filename", "") or "")
        refused[name] = text.replace(folder, "")
        if (names or os.path.basename(path)) not in text or "castor: " not in text:
            unlike.append(name)
    if pickle.dumps(other.state_dict()) != state or not all(torch.equal(a, b) for a, b in zip(before, values(model))):
        changed.append(name)


def put(path, data):
    with open(path, "wb") as file:
        file.write(data)


def get(path):
    with open(path, "rb") as file:
        return file.read()


def header(change, data=lambda d: d):
    """Damages a safetensors file by its header."""

    def damage(path):
        whole = get(path)
        length = int.from_bytes(whole[:8], "little")
        text = json.loads(whole[8:8 + length])
        changed = change(text)
        text = changed if isinstance(changed, bytes) else json.dumps(text if changed is None else changed).encode()
        put(path, len(text).to_bytes(8, "little") + text + data(whole[8 + length:]))

    return damage


def entry(**new):
    return header(lambda h: h["0.bias"].update(new))


def flip(path, at):
    whole = bytearray(get(path))
    whole[at] ^= 1
    put(path, bytes(whole))


def index(change, name=INDEX):
    def damage(path):
        path = os.path.join(path, name)
        text = json.loads(get(path))
        put(path, json.dumps(change(text) or text).encode())

    return damage


def shards(path):
    return CheckpointIndexFile.from_file(os.path.join(path, INDEX)).get_checkpoint_filenames()


def whole_of(name):
    return lambda text: text["weight_map"].update(dict.fromkeys(text["weight_map"], name))


def without_sums(change):
    """What an index without checksums would lead to: other programs write none."""

    def damage(text):
        text["metadata"].pop("castor")
        return change(text)

    return damage


# ---- safetensors
def exchanged(text):
    one, two = text["1.running_mean"], text["1.weight"]
    one["data_offsets"], two["data_offsets"] = two["data_offsets"], one["data_offsets"]


case("cut off in the data", "one", lambda p: put(p, get(p)[:-5]))
case("cut off in the header", "one", lambda p: put(p, get(p)[:40]))
case("8 bytes", "one", lambda p: put(p, get(p)[:8]))
case("a changed bit in a tensor", "one", lambda p: flip(p, -3))
case("a changed bit, saved in the background", "late", lambda p: flip(p, -3))
case("exchanged tensors", "one", header(exchanged))
case("another entry of Castor's", "one", header(lambda h: h["__metadata__"].update(castor=h["__metadata__"]["castor"].replace('{"', '{"prefix": "", "', 1))))
case("no checksum was filled in", "one", header(lambda h: h["__metadata__"].update(castor=h["__metadata__"]["castor"][:-18] + "0" * 16 + '"}')))
case("changed, and saved by another program", "one", lambda p: save_file({**load_file(p), "0.bias": torch.ones(24)}, p, metadata=safe_open(p, "pt").metadata()))
case("more than its tensors", "one", lambda p: put(p, get(p) + b"\0"))
case("a huge header", "one", lambda p: put(p, (1 << 62).to_bytes(8, "little") + get(p)[8:]))
case("a header of zero", "one", lambda p: put(p, bytes(8) + get(p)[8:]))
case("no JSON", "one", header(lambda h: b"{" + b"x" * 64))
case("deep JSON", "one", header(lambda h: b'{"a":' + b"[" * 100000))
case("a list for a header", "one", header(lambda h: b'{"0.bias": 3}'))
case("a name twice", "one", header(lambda h: b'{"a":{},"a":{}}'))
case("overlapping", "one", header(lambda h: h["0.bias"].update(data_offsets=h["2.bias"]["data_offsets"]) or h["0.bias"].update(shape=[16])))
case("out of range", "one", entry(data_offsets=[10 ** 9, 10 ** 9 + 96]))
case("negative offsets", "one", entry(data_offsets=[-96, 0]))
case("backward offsets", "one", entry(data_offsets=[96, 0]))
case("offsets of text", "one", entry(data_offsets=["0", "96"]))
case("a negative shape", "one", entry(shape=[-24]))
case("an overflowing shape", "one", entry(shape=[1 << 62, 1 << 62]))
case("a shape of true", "one", entry(shape=[True]))
case("an unknown type", "one", entry(dtype="F3"))
case("another shape", "one", lambda p: disk.save_model(made(3, width=25), p, use_safetensors=True))
case("another type", "one", entry(dtype="I32"))
case("a hole", "one", header(lambda h: h.pop("0.bias") and None))
case("missing names", "one", lambda p: disk.save_model(saved[:2], p, use_safetensors=True))
case("unexpected names", "one", lambda p: disk.save_model(nn.Sequential(*saved, nn.Linear(2, 2)), p, use_safetensors=True))
case("Castor's entry is damaged", "one", header(lambda h: h["__metadata__"].update(castor='{"prefix": 3}')))
case("empty", "one", lambda p: put(p, b""))
case("a folder", "one", lambda p: (os.unlink(p), os.mkdir(p)))
case("a pipe", "one", lambda p: (os.unlink(p), os.mkfifo(p)))
case("a link to nowhere", "one", lambda p: (os.unlink(p), os.symlink(p + ".gone", p)))
case("a link to a device", "one", lambda p: (os.unlink(p), os.symlink("/dev/zero", p)))
case("a link to itself", "one", lambda p: (os.unlink(p), os.symlink(p, p)))
case("a link to a text", "one", lambda p: (os.unlink(p), os.symlink("/etc/passwd", p)))
case("not there", "one", os.unlink)
case("noise", "one", lambda p: put(p, bytes(range(256)) * 8))

# ---- files of torch.save
case("code", "bin", lambda p: torch.save({"0.weight": Code()}, p))
case("code without an archive", "bin", lambda p: torch.save({"0.weight": Code()}, p, _use_new_zipfile_serialization=False))
case("a pickle", "bin", lambda p: put(p, pickle.dumps(Code())))
case("a module", "bin", lambda p: torch.save(saved, p))
case("a list", "bin", lambda p: torch.save([1, 2], p))
case("numbers for names", "bin", lambda p: torch.save({1: torch.ones(2)}, p))
case("text for tensors", "bin", lambda p: torch.save({**saved.state_dict(), "0.bias": "text"}, p))
case("integers for floats", "bin", lambda p: torch.save({**saved.state_dict(), "0.bias": torch.ones(24, dtype=torch.int32)}, p))
case("floats for integers", "bin", lambda p: torch.save({**saved.state_dict(), "1.num_batches_tracked": torch.tensor(1.5)}, p))
case("nested", "bin", lambda p: torch.save({"model": saved.state_dict()}, p))
case("cut off archive", "bin", lambda p: put(p, get(p)[:-30]))
case("half an archive", "bin", lambda p: put(p, get(p)[:len(get(p)) // 2]))
case("a changed bit", "bin", lambda p: flip(p, get(p).index(made(1)[0].weight.detach().numpy().tobytes()) + 7))


def compressed(path):
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as new:
        for one in old.namelist():
            new.writestr(one, old.read(one))
    os.rename(path + ".new", path)


def claims_more(of):
    """The pickle of a large tensor beside the record of a small one."""

    def damage(path):
        large, small = io.BytesIO(), io.BytesIO()
        torch.save(of(torch.ones(1 << 16)), large)
        torch.save(of(torch.ones(24)), small)
        with zipfile.ZipFile(large) as one, zipfile.ZipFile(small) as two, zipfile.ZipFile(path, "w") as new:
            for name in two.namelist():
                new.writestr(name, (one if name.endswith("data.pkl") else two).read(name))

    return damage


case("compressed", "bin", compressed)
case("claims more than it has", "bin", claims_more(lambda t: {**saved.state_dict(), "0.bias": t}))
case("empty archive", "bin", lambda p: zipfile.ZipFile(p, "w").close())
case("an optimizer's", "bin", lambda p: disk.save_optimizer(optimizer, p))

# ---- shards
first = os.path.basename(shards(sound["shards"])[0])
for name in ("../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\0b", 3, None, ["a"]):
    case(f"index: {name!r}", "shards", index(whole_of(name)), names=INDEX)
case("index: no JSON", "shards", lambda p: put(os.path.join(p, INDEX), b"{"), names=INDEX)
case("index: deep", "shards", lambda p: put(os.path.join(p, INDEX), b"[" * 100000), names=INDEX)
case("index: binary", "shards", lambda p: put(os.path.join(p, INDEX), bytes(range(256))), names=INDEX)
case("index: a list", "shards", lambda p: put(os.path.join(p, INDEX), b"[]"), names=INDEX)
case("index: no map", "shards", index(lambda t: {"metadata": {}}), names=INDEX)
case("index: a map of a list", "shards", index(lambda t: {"weight_map": []}), names=INDEX)
case("index: empty", "shards", lambda p: put(os.path.join(p, INDEX), b""), names=INDEX)
case("index: a sum is missing", "shards", index(lambda t: t["metadata"]["castor"]["checksums"].pop(first) and None), names=INDEX)
case("index: sums are no text", "shards", index(lambda t: t["metadata"]["castor"].update(checksums={first: 3})), names=INDEX)
case("index: nothing", "shards", index(lambda t: t["weight_map"].clear()), names=INDEX)
case("a shard is missing", "shards", lambda p: os.unlink(shards(p)[1]), names="model-00002-of-")
case("a shard is a folder", "shards", lambda p: (os.unlink(shards(p)[1]), os.mkdir(shards(p)[1])), names="model-00002-of-")
case("a shard is empty", "shards", lambda p: put(shards(p)[1], b""), names="model-00002-of-")
case("a shard is a pipe", "shards", lambda p: (lambda one: (os.unlink(one), os.mkfifo(one)))(shards(p)[1]), names="model-00002-of-")
case("a changed bit in a shard", "shards", lambda p: flip(shards(p)[-1], -3), names=os.path.basename(shards(sound["shards"])[-1]))


def swapped(path):
    one, two = shards(path)[:2]
    os.rename(one, one + ".x")
    os.rename(two, one)
    os.rename(one + ".x", two)


case("shards are swapped", "shards", swapped, names="model-00001-of-")
case("swapped, without sums", "shards", lambda p: (swapped(p), index(without_sums(lambda t: None))(p)), names="model-00001-of-")
case("another save's shard", "shards", lambda p: shutil.copy(os.path.join(folder, "later", first), os.path.join(p, first)) if disk.save_model(
    made(9), os.path.join(folder, "later"), shard=True, size_per_shard=0.001, use_safetensors=True) is None else None, names=first)
case("another model's index", "shards", lambda p: (shutil.rmtree(p), disk.save_model(made(3, 40), p, shard=True, size_per_shard=0.001, use_safetensors=True)),
     names=INDEX)
case("two formats", "shards", lambda p: disk.save_model(saved, p, shard=True))
case("a file beside the index", "shards", lambda p: shutil.copy(sound["one"], os.path.join(p, "model.safetensors")))
case("an empty folder", "shards", lambda p: (shutil.rmtree(p), os.mkdir(p)))
case("code in a shard", "bins", lambda p: (lambda one: (torch.save({"0.weight": Code()}, one), index(without_sums(lambda t: None), "pytorch_model.bin.index.json")(p)))(
    os.path.join(p, sorted(os.listdir(p))[0])), names="pytorch_model-00001-of-")

# ---- optimizers
case("optimizer: code", "optim", lambda p: torch.save({"state": {0: Code()}, "param_groups": []}, p))
case("optimizer: a model's", "optim", lambda p: disk.save_model(saved, p))
case("optimizer: of another class", "optim", lambda p: disk.save_optimizer(stepped(saved, torch.optim.SGD, lr=0.1, momentum=0.9), p))
case("optimizer: of another model", "optim", lambda p: disk.save_optimizer(stepped(made(3, 25), torch.optim.AdamW), p))
case("optimizer: other groups", "optim", lambda p: disk.save_optimizer(stepped(made(3)[:1], torch.optim.AdamW), p))
case("optimizer: claims more than it has", "optim", claims_more(lambda t: {"state": {0: {"step": t}}, "param_groups": optimizer.state_dict()["param_groups"]}))
case("optimizer: groups of text", "optim", lambda p: torch.save({"state": {}, "param_groups": "text"}, p))
case("optimizer: a changed bit", "optim", lambda p: flip(p, get(p).index(optimizer.state_dict()["state"][0]["exp_avg"].numpy().tobytes()) + 7))
case("optimizer: a shard is missing", "optims", lambda p: os.unlink(os.path.join(p, sorted(os.listdir(p))[0])), names="pytorch_optim-00001-of-")
case("optimizer: groups are missing", "optims", lambda p: os.unlink(os.path.join(p, "pytorch_optim_group.bin")), names="pytorch_optim_group.bin")
case("optimizer: groups elsewhere", "optims", index(lambda t: t["metadata"].update(param_groups="../optim.bin"), "pytorch_optim.bin.index.json"),
     names="pytorch_optim.bin.index.json")
case("optimizer: no groups", "optims", index(lambda t: t["metadata"].pop("param_groups") and None, "pytorch_optim.bin.index.json"),
     names="pytorch_optim.bin.index.json")
case("optimizer: names", "optims", index(lambda t: {**t, "weight_map": {"a" + n: f for n, f in t["weight_map"].items()}}, "pytorch_optim.bin.index.json"),
     names="pytorch_optim.bin.index.json")

# ---- DCP's metadata are a pickle
case("DCP: code", "shards", lambda p: put(os.path.join(p, ".metadata"), pickle.dumps(Code())),
     load=lambda m, o, p: from_dcp(p, os.path.join(folder, "converted")), names=".metadata")

found("refused", refused)
found("unlike", unlike)
found("changed", changed)
found("code has run", os.path.exists(marker))

# ---- what must load all the same
loads = {}


def fits(name, path, load=disk.load_model, model=None):
    model = model or made(2)
    load(model, path)
    loads[name] = all(torch.equal(a, b) for a, b in zip(values(saved_before), values(model)))


saved_before = made(1)
os.symlink(sound["one"], os.path.join(folder, "link"))
fits("a link", os.path.join(folder, "link"))
os.mkdir(os.path.join(folder, "links"))
for name in os.listdir(sound["shards"]):
    os.symlink(os.path.join(sound["shards"], name), os.path.join(folder, "links", name))
fits("a folder of links, as Hugging Face's cache", os.path.join(folder, "links"))
misaligned = os.path.join(folder, "misaligned")
header(lambda h: (json.dumps(h) + " " * (3 - len(json.dumps(h)) % 4)).encode())(shutil.copy(sound["one"], misaligned))
fits("misaligned tensors", misaligned)
save_file(load_file(sound["one"]), misaligned, metadata={**safe_open(sound["one"], "pt").metadata(), "a": "note"})
fits("copied by another program, with the checksum", misaligned)
torch.save(saved_before.state_dict(), misaligned, _use_new_zipfile_serialization=False)
fits("PyTorch's old format", misaligned)
torch.serialization.set_crc32_options(False)
torch.save(saved_before.state_dict(), misaligned)
fits("without CRC-32", misaligned)
torch.save({"module." + n: t for n, t in saved_before.state_dict().items()}, misaligned)
fits("with a prefix of DistributedDataParallel", misaligned)
torch.save({n: t for n, t in saved_before.state_dict().items() if "num_batches" not in n}, misaligned)
fits("batch norms of old files", misaligned)
found("loads", loads)

shutil.rmtree(folder)
assert issubclass(GeneralCheckpointIO, CheckpointIO)
