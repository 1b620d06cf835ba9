"""What a run of a case prints, so that two runs can be compared line by line: floats with all their digits, tensors as a hash of their
bytes. A line that begins with `# ` says what a run cost, which another run may exceed."""
import hashlib
import os
import tempfile

import torch


def digest(tensor):
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest()[:24]


def number(value):
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return repr(value.item() if value.numel() == 1 else value.tolist() if value.numel() < 8 else digest(value))


def described(tensor):
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce()
        return f"sparse {described(tensor.indices())} {described(tensor.values())}"
    strides = "" if tensor.is_contiguous() else f" strides {tuple(tensor.stride())}"
    return f"{digest(tensor)} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{strides} {tensor.device}"


def size(tensor):
    return tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else size(tensor._indices()) + size(tensor._values())


def memory_of(tensor):
    """Its storage, which others may share and a file would hold whole."""
    return f"at {tensor.storage_offset()} of {tensor.untyped_storage().nbytes()} bytes"


class Log:
    """What a case prints; `folder` is for its files."""

    def __init__(self, folder, optimizer):
        self.folder, self.optimizer, self.steps = folder, optimizer, 0

    def step(self, loss, **more):
        self.steps += 1
        print(" ".join([f"step {self.steps} loss {number(loss.detach())}", *(f"{name} {number(value)}" for name, value in more.items())]), flush=True)

    @staticmethod
    def note(what, value):
        print(f"{what}: {number(value)}", flush=True)

    def end(self, models, *optimizers):
        """models: one, or several by name."""
        models = models if isinstance(models, dict) else {"": models}
        named = [(f"{first}.{name}" if first else name, parameter) for first, model in models.items() for name, parameter in model.named_parameters()]
        names = {parameter: name for name, parameter in named}
        data = {}  # by name; parameters that a script shares count once
        for name, parameter in named:
            data[f"parameter {name}"] = parameter
            print(f"parameter {name} {described(parameter)} {memory_of(parameter)}")
        for name, parameter in named:
            if parameter.grad is not None:
                data[f"gradient {name}"] = parameter.grad
                print(f"gradient {name} {described(parameter.grad)}")
        for first, model in models.items():
            for name, buffer in model.named_buffers():
                print(f"buffer {first} {name} {described(buffer)} {memory_of(buffer)}")
        for index, optimizer in enumerate(optimizers):
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    where = f"state {index} {names.get(parameter, 'of no parameter')} {key}"
                    self._state(where, value, data)
        print(f"random numbers {digest(torch.get_rng_state())} {digest(torch.cuda.get_rng_state())}")
        self._checkpoint(models, optimizers)
        print(f"model data {sum(map(size, data.values()))}", flush=True)

    def _state(self, where, value, data):
        if isinstance(value, torch.Tensor):
            data[where] = value
            print(f"{where} {described(value)}")
        elif isinstance(value, (list, tuple)):
            for number_of, one in enumerate(value):
                self._state(f"{where}[{number_of}]", one, data)
        else:
            print(f"{where} {value!r}")

    def _checkpoint(self, models, optimizers):
        """What a file says of it that is read by somebody else."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = os.path.join(folder, "checkpoint.pt")
            torch.save({"models": [model.state_dict() for model in models.values()], "optimizers": [one.state_dict() for one in optimizers]}, path)
            print(f"checkpoint of {os.path.getsize(path)} bytes")
            found = torch.load(path, map_location="cpu", weights_only=False)
        whole = hashlib.sha256()
        self._read(found, whole)
        print(f"checkpoint {whole.hexdigest()}")

    def _read(self, value, whole):
        if isinstance(value, torch.Tensor):
            whole.update(described(value).encode())
        elif isinstance(value, dict):
            for key, one in value.items():
                whole.update(repr(key).encode())
                self._read(one, whole)
        elif isinstance(value, (list, tuple)):
            for one in value:
                self._read(one, whole)
        else:
            whole.update(repr(value).encode())
