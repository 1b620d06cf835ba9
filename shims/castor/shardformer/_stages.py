"""A model whose longest chain of layers is divided over pipeline stages, with its own forward, whatever that does before, between and
after them.

Each stage runs the whole model's forward. A layer of another stage computes nothing: in the stages behind it, it gives what arrived from
the stage before; and a stage's forward ends (by an exception) with its last layer. What is no layer of the chain (embeddings, norms, heads) is on
every stage that reaches it, and its gradients are added over the stages. So masks, positions and tied weights need no care.

What a forward does with the output of a layer that its stage does not have is an error: it would be something else than the next layer's input."""
from collections.abc import Mapping

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from .. import parallel
from ._module import advised
from .shard import PipelineGradientCheckpointConfig

__all__ = ["Part", "StagedModel", "longest_chain"]


class _Ended(Exception):
    """A part's last layer has run. Carries its output."""


_SHOWN = {"shape", "dtype", "device", "get_device", "requires_grad", "ndim", "is_cuda", "is_cpu", "is_meta", "is_sparse", "layout", "is_leaf", "grad_fn", "size", "dim",
          "numel", "element_size", "__len__", "is_floating_point", "is_complex", "ndimension", "is_inference", "_version"}
_MOVED = {"to", "contiguous", "detach"}  # the same values, still unknown


class _Elsewhere(torch.Tensor):
    """The output of a layer that is on an earlier stage: its shape is known, its values are not."""

    @classmethod
    def of(cls, tensor):
        return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        name = getattr(getattr(function, "__self__", None), "__name__", "") if name == "__get__" else name
        if name not in _SHOWN and name not in _MOVED:
            raise RuntimeError(f"castor: the model's forward computes ({name}) with the output of a layer of an earlier pipeline stage, and not only in the "
                               "next layer: such a model does not divide into stages; use pp_size=1")
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs or {})
        return cls.of(result) if name in _MOVED else result

    def __repr__(self):
        return f"<an output of another stage, {tuple(self.shape)}>"


class _Layer:
    """Put before the class of each layer of the chain."""

    def __call__(self, *args, **kwargs):
        chain = self.__dict__["castor_chain"]
        if chain.run is None:
            raise RuntimeError("castor: this model is divided into pipeline stages: call booster.execute_pipeline(data_iter, model, criterion, optimizer) "
                               "instead of the model")
        return chain.run.layer(self.__dict__["castor_place"], lambda: super(_Layer, self).__call__(*args, **kwargs))

    def __deepcopy__(self, memo):
        raise RuntimeError("castor: a model that is divided into pipeline stages cannot be copied: each rank has a part of it; copy it before boost()")


class _Chain:
    run = None  # the pass that runs


class _Run:
    """One forward of layers [begin, end) of the chain. given: what arrived, if begin > 0."""

    def __init__(self, begin, end, last, given):
        self.begin, self.end, self.last, self.given, self.next = begin, end, last, given, 0

    def layer(self, place, call):
        if place != self.next:
            raise RuntimeError(f"castor: the model's forward calls layer {place} of its chain where layer {self.next} was expected: a model that skips layers "
                               "or calls them in another order does not divide into stages; use pp_size=1")
        self.next += 1
        if place < self.begin - 1:
            return tree_map(lambda x: _Elsewhere.of(x) if isinstance(x, torch.Tensor) else x, self.given)
        if place == self.begin - 1:
            return self.given
        output = call()
        if place == self.end - 1 and not self.last:
            raise _Ended(output)
        return output


def longest_chain(model):
    """(its name, the list of its layers with their places' names): the nn.ModuleList or nn.Sequential with the most layers that have parameters, of
    those as long the one with the most bytes. ValueError: there is none."""
    best, name_of_best = None, None
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            layers = sum(any(True for _ in child.parameters()) for child in module)
            size = layers, sum(p.numel() * p.element_size() for p in module.parameters())
            if layers > 1 and (best is None or size > best):
                best, name_of_best = size, name
    if best is None:
        raise ValueError(f"castor: a {type(model).__name__} has no nn.ModuleList or nn.Sequential of several layers to divide into pipeline stages: use "
                         "pp_size=1")
    return name_of_best, list(model.get_submodule(name_of_best).named_children())


def bounds_of(layers, parts, given=None):
    """The first layer of each part, and the end; given: the number of layers of each part."""
    if given is not None:
        if len(given) != parts or sum(given) != len(layers) or min(given) < 1:
            raise ValueError(f"castor: num_layers_per_stage is {given}: expected {parts} numbers above 0 that add up to the chain's {len(layers)} layers")
        ends = [sum(given[:i + 1]) for i in range(parts)]
        return [0, *ends]
    starts = [i for i, layer in enumerate(layers) if any(True for _ in layer.parameters())]
    if parts > len(starts):
        raise ValueError(f"castor: {parts} parts of a pipeline (pp_size x num_model_chunks) of a chain of {len(starts)} layers with parameters: each part needs one")
    blocks = [0, *starts[1:], len(layers)]
    costs = [sum(p.numel() * p.element_size() for layer in layers[begin:end] for p in layer.parameters()) for begin, end in zip(blocks, blocks[1:])]
    return [0, *(blocks[end] for end in parallel.divide(costs, parts))]


class StagedModel:
    """What this rank has of a model.

    Args:
        model: whole, on every rank; it is changed in place.
        stages, stage, chunks: part p of stages * chunks is on stage p mod stages.
        layers_per_part: the number of layers of each; None: by bytes.

    parts: this stage's Part modules. common: {name: parameter} of what is on all stages. own: names of parameters of this stage's layers; owner: {name:
    the stage that has it} of the parameters of all layers."""

    def __init__(self, model, stages, stage, chunks=1, layers_per_part=None):
        self.model, self.chain = model, _Chain()
        chain_name, children = longest_chain(model)
        prefix = chain_name + "." if chain_name else ""
        layers = [layer for _, layer in children]
        if len({id(layer) for layer in layers}) < len(layers):
            raise ValueError("castor: a layer stands several times in the chain: such a model does not divide into stages; use pp_size=1")
        bounds = bounds_of(layers, stages * chunks, layers_per_part)
        part_of = [next(p for p in range(stages * chunks) if bounds[p] <= i < bounds[p + 1]) for i in range(len(layers))]
        self.owner = {}
        used_at = {}  # a parameter's id: the layers that use it
        for place, (name, layer) in enumerate(children):
            for of, p in layer.named_parameters(remove_duplicate=False):
                self.owner[f"{prefix}{name}.{of}"] = part_of[place] % stages
                used_at.setdefault(id(p), set()).add(part_of[place] % stages)
        in_chain = {id(p) for layer in layers for p in layer.parameters()}
        outside = set()
        self.buffers_of = {f"{prefix}{name}.{of}": part_of[place] % stages for place, (name, layer) in enumerate(children) for of, _ in layer.named_buffers()}
        for name, p in model.named_parameters(remove_duplicate=False):
            if name not in self.owner:
                outside.add(id(p))
        shared = {key for key in in_chain if key in outside or len(used_at[key]) > 1}  # layers that share weights, or weights with a head
        self.common = {name: p for name, p in model.named_parameters() if id(p) in outside or id(p) in shared}
        self.owner = {name: stage_of for name, stage_of in self.owner.items() if id(model.get_parameter(name)) not in shared}
        for place, layer in enumerate(layers):
            if part_of[place] % stages != stage:
                for module in layer.modules():
                    for name, p in module._parameters.items():
                        if p is not None and id(p) not in shared:
                            module._parameters[name] = None
            layer.__dict__["castor_chain"], layer.__dict__["castor_place"] = self.chain, place
            layer.__class__ = type(type(layer).__name__, (_Layer, type(layer)), {"__module__": type(layer).__module__})
        self._place, last = (stage, stages, chunks), stages * chunks - 1
        self.parts = [Part(model, self.chain, bounds[p], bounds[p + 1], p == last, layers[bounds[p]:bounds[p + 1]]) for p in range(stage, stages * chunks, stages)]


    def checkpoint(self, config):
        """Leaves as many layers of each part checkpointed as a GradientCheckpointConfig says (None: all that the model has so); those that are not were
        never, or recompute nothing from now on. ValueError: its numbers do not fit the parts."""
        stage, stages, chunks = self._place
        for chunk, part in enumerate(self.parts if config is not None else ()):
            where = (stage, stages, len(part._layers), chunk, chunks) if isinstance(config, PipelineGradientCheckpointConfig) else (len(part._layers),)
            for layer in part._layers[config.get_num_ckpt_layers(*where):]:
                for module in layer.modules():
                    if getattr(module, "gradient_checkpointing", False) is True:
                        module.gradient_checkpointing = False


class Part(nn.Module):
    """A part of the chain. Its parameters are those of the whole rank."""

    takes_all = True  # what arrived, and the batch

    def __init__(self, model, chain, begin, end, last, layers):
        super().__init__()
        self.model, self._chain, self._bounds, self._layers = model, chain, (begin, end, last), tuple(layers)
        self.before = lambda value: value  # of the batch

    def _call(self, data):
        with advised():
            if isinstance(data, Mapping):
                return self.model(**data)
            return self.model(*data) if isinstance(data, (list, tuple)) else self.model(data)

    def _trains(self):
        return self.training and any(p.requires_grad for layer in self._layers for p in layer.parameters())

    def forward(self, given, data):
        if self._chain.run is not None:
            raise RuntimeError("castor: a stage's forward runs within another one")
        begin, end, last = self._bounds
        self._chain.run = run = _Run(begin, end, last, given)
        data = self.before(data)
        try:
            output = self._call(data)
        except _Ended as ended:
            output, = ended.args
            if torch.is_grad_enabled() and self._trains() and not any(isinstance(x, torch.Tensor) and x.requires_grad for x in tree_leaves(output)):
                raise RuntimeError("castor: what a pipeline stage gives has no gradient: a reentrant checkpoint around a layer of another stage cuts it off; "
                                   "use torch.utils.checkpoint with use_reentrant=False") from None
            return output
        finally:
            self._chain.run = None
        if run.next < end or not last:
            raise RuntimeError(f"castor: the model's forward has ended before layer {end - 1} of its chain, after {run.next} layers: a model that skips layers does "
                               "not divide into stages; use pp_size=1")
        if any(isinstance(x, _Elsewhere) for x in tree_leaves(output)):
            raise RuntimeError("castor: the model's output contains that of a layer of an earlier pipeline stage (output_hidden_states?): it is not here; "
                               "leave it out, or use pp_size=1")
        return output
