"""torch.save under CASTOR_CHECKPOINT, in one process: files beside PyTorch's own, who waits for them, and errors."""
import collections
import io
import os
import resource
import shutil
import subprocess
import sys

import numpy as np
import torch
from found import found, raised

plain_save, plain_load = torch.save.__wrapped__, torch.load.__wrapped__
BYTES = 12 << 20
BACKGROUND = os.environ["CASTOR_CHECKPOINT"] == "async"


def same(one, other):
    with open(one, "rb") as a, open(other, "rb") as b:
        return a.read() == b.read()


class Tensor(torch.Tensor):
    pass


def objects():
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    shared = torch.randn(1000)
    yield "state dicts", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    yield "whole model", model
    yield "views", [shared, shared[10:20], shared.view(10, 100).t(), torch.randn(3, 4, 5).permute(2, 0, 1)]
    yield "types", [torch.zeros(3, dtype=t) for t in (torch.bool, torch.uint8, torch.bfloat16, torch.complex64, torch.int64, torch.float8_e4m3fn)]
    yield "empty", {"none": None, "no": torch.zeros(0), "tensors": collections.OrderedDict(a=(), b=[[[]]])}
    yield "sparse", torch.eye(50).to_sparse()
    yield "quantized", torch.quantize_per_tensor(torch.randn(40), 0.1, 3, torch.qint8)
    yield "large", [torch.randn(BYTES // 4), torch.arange(100000)]
    yield "mapped", plain_load("mapped.pt", mmap=True)
    yield "shared memory", torch.ones(100000).share_memory_()
    yield "number", 3
    yield "more types", [torch.zeros(3, dtype=t) for t in (torch.uint16, torch.uint64, torch.complex32, torch.complex128, torch.float8_e8m0fnu)]
    yield "over each other", [shared[:600], shared[400:], shared[::3], shared[:10].expand(5, 10), torch.as_strided(shared, (50, 30), (1, 7)), shared[5:5]]
    yield "other layouts", [torch.eye(30).to_sparse_csr(), torch.eye(30).to_sparse_bsr((2, 2)), torch.randn(9, dtype=torch.complex64).conj(),
                            torch.nested.nested_tensor([torch.randn(3), torch.randn(5)], layout=torch.jagged), torch.empty(5, device="meta"),
                            torch.quantize_per_channel(torch.randn(8, 9), torch.rand(8) + 0.1, torch.zeros(8), 0, torch.qint8)]
    yield "others' objects", {"array": np.arange(100000.), "objects": np.array(["a", None], dtype=object), "class": torch.randn(4).as_subclass(Tensor),
                              "of an array": torch.from_numpy(np.ones(70000)), "parameter": torch.nn.Parameter(torch.randn(5)), "text": "ü" * 99999}
    yield "many", {f"k{i}": [torch.full((17,), float(i)), (i, {"x": None})] for i in range(500)}


def outcome(folder, path, save, obj, more):
    """The file, or the error."""
    path = path.format(folder)
    try:
        save(obj, path, **more)
    except RuntimeError as error:
        return str(error).replace(folder, "")
    with open(path, "rb") as file:
        return file.read()


def forms():
    plain_save(torch.randn(200000), "mapped.pt")
    for folder in ("plain", "castor"):
        os.makedirs(folder)
    for name, obj in objects():
        plain_save(obj, f"plain/{name}.pt")
        torch.save(obj, f"castor/{name}.pt")
        found(f"bytes: {name}", same(f"plain/{name}.pt", f"castor/{name}.pt"))
    tensor = torch.randn(1000)
    for name in ("no ending", "two.end.ings", "ünï.pt"):
        plain_save(tensor, f"plain/{name}")
        torch.save(tensor, f"castor/{name}")
        found(f"bytes: {name}", same(f"plain/{name}", f"castor/{name}"))
    one, other = io.BytesIO(), io.BytesIO()
    plain_save(tensor, one)
    torch.save(tensor, other)
    found("a buffer", one.getvalue() == other.getvalue())
    with open("opened.pt", "wb") as file:
        torch.save(tensor, file)
    found("an open file", torch.equal(torch.load("opened.pt"), tensor))
    plain_save(tensor, "plain/old.pt", _use_new_zipfile_serialization=False)
    torch.save(tensor, "castor/old.pt", _use_new_zipfile_serialization=False)
    found("the old form", len(open("plain/old.pt", "rb").read()) == len(open("castor/old.pt", "rb").read()))
    plain_save(tensor, "plain/protocol.pt", pickle_protocol=4)
    torch.save(tensor, "castor/protocol.pt", pickle_protocol=4)
    found("another protocol", same("plain/protocol.pt", "castor/protocol.pt"))
    for name, path, more in (("a name of one dot", "{}/.hidden", {}), ("another record", "{}/order.pt", {"_disable_byteorder_record": True})):
        found(name, outcome("plain", path, plain_save, tensor, more) == outcome("castor", path, torch.save, tensor, more))
    os.mkfifo("pipe")
    reader = subprocess.Popen([sys.executable, "-c", "print(len(open('pipe', 'rb').read()))"], stdout=subprocess.PIPE, text=True)
    torch.save(tensor, "pipe")
    found("a pipe", int(reader.communicate()[0]) > 4000)


def waits():
    large = torch.randn(BYTES // 4)
    ways = {
        "load": lambda: torch.load("w.pt"),
        "replace": lambda: (os.replace("w.pt", "moved.pt"), os.rename("moved.pt", "w.pt")),
        "exists": lambda: os.path.exists("w.pt"),
        "copy": lambda: shutil.copy("w.pt", "copied.pt"),
        "list": lambda: os.listdir(".").index("w.pt"),
        "size": lambda: os.path.getsize("w.pt"),
        "program": lambda: subprocess.run(["cp", "w.pt", "copied.pt"], check=True),
        "shell": lambda: os.system("cp w.pt copied.pt"),
        "remove and link": lambda: os.link("w.pt", "linked.pt"),
    }
    for name, use in ways.items():
        for file in ("w.pt", "copied.pt", "linked.pt"):
            if os.path.exists(file):
                os.unlink(file)
        torch.save(large, "w.pt")
        use()
        found(f"waits: {name}", plain_load("w.pt").sum().item() == large.sum().item() and
              (not os.path.exists("copied.pt") or same("w.pt", "copied.pt")))


def several():
    """Saves that follow each other, while their memory changes."""
    value = torch.zeros(BYTES // 4)
    for i in range(6):
        value.fill_(i)
        torch.save(value, "same.pt")
        torch.save({"i": i, "value": value}, f"one of {i}.pt")
    value.fill_(6)
    found("to the same path", plain_load("same.pt").unique().tolist() == [5])
    found("of the same tensor", [plain_load(f"one of {i}.pt")["value"].unique().tolist() for i in range(6)] == [[i] for i in range(6)])
    torch.save(value, "parent.pt")
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # OpenMP's are the parent's
        value.fill_(7)
        torch.save(value, "child.pt")
        os._exit(0)
    value.fill_(8)
    found("and of a forked child", os.waitpid(child, 0)[1] == 0 and [plain_load(f"{n}.pt").unique().tolist() for n in ("parent", "child")] == [[6], [7]])


def errors():
    found("no directory", raised(RuntimeError, torch.save, 1, "none/such.pt") == raised(RuntimeError, plain_save, 1, "none/such.pt"))
    found("a directory", raised(RuntimeError, torch.save, 1, "castor") == raised(RuntimeError, plain_save, 1, "castor"))
    found("what cannot be pickled", "pickle" in raised((AttributeError, TypeError), torch.save, lambda: 1, "lambda.pt") and not os.path.exists("lambda.pt"))
    torch.save(torch.ones(BYTES // 4), "full.pt")
    torch.load("full.pt")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES // 2, hard))
    if BACKGROUND:
        torch.save(torch.zeros(BYTES // 4), "full.pt")
        text = raised(OSError, torch.load, "full.pt")
        found("told where it is read", "File too large" in text and "full.pt" in text)
        torch.save(torch.zeros(BYTES // 4), "full.pt")
        os.path.exists("full.pt")
    text = raised(OSError, torch.save, *((1, "other.pt") if BACKGROUND else (torch.zeros(BYTES // 4), "full.pt")))
    found("told by the next save", "File too large" in text and "full.pt" in text)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    found("the file before", plain_load("full.pt").eq(1).all().item())
    found("nothing is left", not [name for name in os.listdir(".") if name.startswith(".castor")])


if __name__ == "__main__":
    forms()
    waits()
    several()
    errors()
