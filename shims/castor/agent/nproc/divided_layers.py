"""Tensor parallelism under the plugin `hybrid`: while a model's call runs, linear layers compute with this rank's part of their weights. The
parameters stay whole, and so do their gradients."""
import contextlib
import functools
import weakref

import torch

from .. import core


class _Part(torch.autograd.Function):
    """This rank's part of a parameter. The gradient counts N-fold in the mean over the ranks, since each part has one maker among N tensor-parallel ranks."""

    @staticmethod
    def forward(ctx, whole, dimension, layout):
        ctx.shape, ctx.dimension, ctx.layout = whole.shape, dimension, layout
        return _part_of(whole, dimension, layout)

    @staticmethod
    def backward(ctx, gradient):
        return _Scattered.apply(gradient, ctx.shape, ctx.dimension, ctx.layout), None, None


class _Scattered(torch.autograd.Function):
    """The whole gradient of a parameter of which this rank has a part, N-fold. Its mean over the ranks has the part once, and so has the part the gradient of
    that mean."""

    @staticmethod
    def forward(ctx, part, shape, dimension, layout):
        ctx.dimension, ctx.layout = dimension, layout
        whole = part.new_zeros(shape)
        torch.mul(part, layout.tensor_size, out=_part_of(whole, dimension, layout))
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return _Part.apply(gradient, ctx.dimension, ctx.layout), None, None, None


def _part_of(whole, dimension, layout):
    length = whole.shape[dimension] // layout.tensor_size
    return whole.narrow(dimension, layout.place * length, length)


class Layers:
    """The division of the layers of each model that is called."""

    def __init__(self, layout):
        self.layout = layout
        self._plans = weakref.WeakKeyDictionary()  # the outermost module: its Plan
        self._looks = weakref.WeakKeyDictionary()  # the same: _look_of it then

    def knows(self, module, modules):
        """Whether the module's layers are those that were looked at. modules: (name, module) of all that belong to it."""
        return self.layout.tensor_size == 1 or module in self._plans and self._looks[module] == _look_of(modules)

    def prepare(self, module, modules, agreed):
        """Finds how a module is divided. agreed(value): whether all ranks have found the same. Whether it is divided at all."""
        self._looks[module] = _look_of(modules)
        self._plans[module] = self._found(module, agreed)
        return bool(self._plans[module].uses)

    def _found(self, module, agreed):
        from ...shardformer import _plan

        said = core.options.tp_plan
        plan = _plan.given(module, _patterns(said)) if said else _plan.find(module, self.layout.tensor_size, embeddings=False)
        own = {name for name, one in module.named_modules() if "forward" in one.__dict__}
        plan.uses = {name: use for name, use in plan.uses.items() if name not in own}
        return plan if agreed((sorted(plan.uses.items()), sorted(plan.attributes.items()))) else _plan.Plan()

    def put_together(self, module):
        """From now on the outputs of each divided layer are put together. False: they were."""
        from ...shardformer import _plan

        plan = self._plans.get(module)
        if plan is None or core.options.tp_plan or not plan.attributes and not {"column", "row"} & set(plan.uses.values()):
            return False
        self._plans[module] = _plan.find(module, self.layout.tensor_size, embeddings=False, apart=False)
        return True

    @contextlib.contextmanager
    def within(self, module):
        """What `module` calls in here is divided."""
        plan = self._plans.get(module)
        if plan is None:
            yield
            return
        modules = dict(module.named_modules())
        with contextlib.ExitStack() as undone:
            for name, use in plan.uses.items():
                one = modules[name]
                undone.callback(one.__dict__.pop, "forward", None)
                one.__dict__["forward"] = functools.partial(self._output, one, use)
            for name, values in plan.attributes.items():
                for attribute, value in values.items():
                    undone.callback(setattr, modules[name], attribute, getattr(modules[name], attribute))
                    setattr(modules[name], attribute, value)
            yield

    def _output(self, layer, use, x):
        from ...shardformer import _layers

        kind = _layers.kind_of(layer)
        weight = _Part.apply(layer.weight, _layers.dim_of(kind, use), self.layout)
        bias = getattr(layer, "bias", None)
        if bias is not None and use in (_layers.COLUMN, _layers.GATHERED):
            bias = _Part.apply(bias, 0, self.layout)
        return _layers.output_of(_layers.product_of(kind), x, use, self.layout.group("tensor", x.device.type), weight, bias)


def _look_of(modules):
    """What a division depends on: which modules there are, and what each computes with."""
    return [(name, id(one), type(one), "forward" in one.__dict__, [(of, None if p is None else p.shape) for of, p in one._parameters.items()])
            for name, one in modules]


def _patterns(text):
    """"*.up=col,*.down=row" as a policy."""
    found = {}
    for item in filter(None, map(str.strip, text.split(","))):
        pattern, equals, how = map(str.strip, item.partition("="))
        if not equals or how not in ("col", "row", "gathered", "split", "none"):
            raise core.Error(f"castor: CASTOR_TP_PLAN has {item!r}: expected PATTERN=col, row, gathered, split or none, separated by commas")
        found[pattern] = None if how == "none" else how
    return found
