"""Which layers of a model are divided over tensor-parallel ranks, and how: found by running parts of the model, never guessed.

Any linear layer can be divided by its outputs if these are put together. Where the outputs of layers ("columns") go to nothing but the inputs of others
("rows"), and each part of a row's input needs that part of the columns' outputs alone, neither is put together: a multilayer
perceptron's first and second layer, an attention's projections with its heads divided. That this is so is shown by the model's own
code: a copy of a layer of it runs in double precision with random weights and inputs.

1. What reaches a row's input is asked of autograd: columns alone, and they reach nothing else.
2. The copy runs with the columns' weights of each rank in turn, and a row's input must be the rank's part of the whole one's.

What cannot be run or differs has its outputs put together."""
import collections
import contextlib
import copy
import fnmatch
import functools
import inspect
import types

import torch
from torch import nn

from ._layers import COLUMN, GATHERED, ROW, SPLIT, divide_module, kind_of
from ._policy import ModulePolicyDescription, Policy, SubModuleReplacementDescription

__all__ = ["Plan", "find", "given", "wanted"]

# Numbers that a module keeps of its heads and widths; those that stand in a later row are divided if the ones before do not do.
_COUNTS = (), ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "num_key_value_heads", "num_kv_heads", "n_kv_heads"), \
    ("all_head_size", "inner_dim", "embed_dim", "hidden_size", "d_model", "split_size", "dim", "n_embd")
_NUMBERS = "layer_idx", "layer_id", "layer_number", "idx"  # of a layer among those of its kind
# Arguments with a value for each head, which a run without them cannot show to be divided.
_PER_HEAD = "position_bias", "alibi", "attention_bias", "attn_bias", "rel_pos_bias", "relative_position_bias", "head_mask"
_INPUTS = 4  # how many widths of inputs are tried


class Plan:
    """uses: {a module's name: COLUMN, GATHERED, ROW or SPLIT}. attributes: {a module's name: {a name: its value on each rank}}. last: what a script's policy
    does to the model besides, functions without arguments."""

    def __init__(self):
        self.uses, self.attributes, self.last = {}, {}, []

    def apply(self, model, mesh):
        """Divides `model` in place. Tied parameters stay tied. Returns {the id of a parameter before: (its DTensor, that parameter)}."""
        modules, made = dict(model.named_modules()), {}
        for name, use in self.uses.items():
            divide_module(modules[name], use, mesh, made)
        for name, values in self.attributes.items():
            for attribute, value in values.items():
                setattr(modules[name], attribute, value)
        for module in modules.values():  # a bias that another module holds as well
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) in made:
                    module._parameters[name] = made[id(parameter)][0]
        return made


    def finish(self):
        for change in self.last:
            change()

    def described(self, model):
        """The plan as a policy's module_policy() says it."""
        from . import layer

        modules = dict(model.named_modules())
        linear = {COLUMN: (layer.Linear1D_Col, {}), GATHERED: (layer.Linear1D_Col, {"gather_output": True}), ROW: (layer.Linear1D_Row, {}),
                  SPLIT: (layer.Linear1D_Row, {"parallel_input": False})}
        table = {GATHERED: (layer.VocabParallelEmbedding1D, {}), SPLIT: (layer.Embedding1D, {})}
        replaced = [SubModuleReplacementDescription(name, *(table if kind_of(modules[name]) == "embedding" else linear)[use]) for name, use in self.uses.items()]
        attributes = {f"{name}.{of}".lstrip("."): value for name, values in self.attributes.items() for of, value in values.items()}
        return {model: ModulePolicyDescription(attribute_replacement=attributes, sub_module_replacement=replaced)}


def wanted(model, policy, config):
    """The Plan of a model for a ShardConfig. policy: None, a dict as given() takes it, or a Policy of .policies."""
    if isinstance(policy, Policy):
        return _of_policy(model, policy, config)
    if config.tensor_parallel_size == 1:
        return Plan()
    return find(model, config.tensor_parallel_size) if policy is None else given(model, policy)


def _of_policy(model, policy, config):
    """The Plan that a Policy describes; its preprocess() has run, and postprocess() is the plan's last change."""
    from .layer import _Layer

    policy.set_model(model)
    policy.set_shard_config(config)
    if policy.preprocess() not in (None, model):
        raise ValueError(f"castor: {type(policy).__name__}.preprocess() returns another model: change the one that it has, in place")
    plan, modules, divided = Plan(), dict(model.named_modules()), config.tensor_parallel_size > 1
    for key, description in policy.module_policy().items():
        for name, module in modules.items():
            if module is not key and type(module) is not key and type(module).__name__ != key:
                continue
            for path, value in (description.attribute_replacement or {}).items():
                _add_attribute(plan, module, path, value)
            for change in description.param_replacement or ():
                plan.last.append(functools.partial(change, module))
            for of, method in (description.method_replacement or {}).items():
                plan.last.append(functools.partial(setattr, module, of, types.MethodType(method, module)))
            for one in description.sub_module_replacement or ():
                layer = f"{name}.{one.suffix.replace('[', '.').replace(']', '')}".lstrip(".")
                if not isinstance(one.target_module, type) or not issubclass(one.target_module, _Layer):
                    raise ValueError(f"castor: {type(policy).__name__} puts a {getattr(one.target_module, '__name__', one.target_module)} into the place of {layer}: "
                                     "expected a class of castor.shardformer.layer")
                if layer not in modules and one.ignore_if_not_exist:
                    continue
                if layer not in modules or kind_of(modules[layer]) not in one.target_module.kinds:
                    what = type(modules[layer]).__name__ if layer in modules else "nothing"
                    raise ValueError(f"castor: {type(policy).__name__} makes {layer} a {one.target_module.__name__}, and it is {what}: expected an "
                                     f"nn.{one.target_module.native.__name__}")
                if divided:
                    plan.uses[layer] = one.target_module.use_of(one.kwargs or {})
    plan.last.append(policy.postprocess)
    return plan


def _add_attribute(plan, module, path, value):
    """A name that the module lacks is passed over, as in the original."""
    *parents, name = path.replace("[", ".").replace("]", "").split(".")
    for parent in parents:
        module = module[int(parent)] if parent.isdigit() and hasattr(module, "__getitem__") else getattr(module, parent, None)
    if module is not None and hasattr(module, name):
        plan.last.append(functools.partial(setattr, module, name, value))


def find(model, size, embeddings=True, apart=True):
    """The Plan of a model for `size` ranks. embeddings: also of these. apart: activations between layers may stay divided."""
    plan, owners = Plan(), {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    tied = {key for key, of in owners.items() if len(of) > 1}
    names = collections.Counter(id(one) for _, one in model.named_modules(remove_duplicate=False))
    tied.update(id(one.weight) for one in model.modules() if kind_of(one) is not None and names[id(one)] > 1)  # which several parents call
    if apart:
        _search(model, "", size, plan, tied, {})
    for name, module in model.named_modules():
        kind = kind_of(module)
        if kind is None or name in plan.uses or not embeddings and kind == "embedding":
            continue
        if any(kind_of(owner) is None or of != "weight" for owner, of in owners[id(module.weight)]):
            continue  # a weight that something else uses as it is
        if len(owners[id(module.weight)]) > 1 and any(kind_of(owner) == "conv1d" for owner, _ in owners[id(module.weight)]):
            continue
        outputs, inputs = reversed(module.weight.shape) if kind == "conv1d" else module.weight.shape
        if outputs % size == 0:
            plan.uses[name] = GATHERED
        elif inputs % size == 0:
            plan.uses[name] = SPLIT
    return plan


def given(model, policy):
    """The Plan that a script's policy asks for: {a pattern of modules' names: "col", "row", "gathered", "split", or None}; the first pattern that fits
    decides, and what none fits stays whole. Instead of "col" and "row", PyTorch's ColwiseParallel() and RowwiseParallel()."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    if not isinstance(policy, dict):
        raise TypeError(f"castor: custom_policy is {policy!r}: expected a dict of patterns of modules' names and 'col', 'row', 'gathered', 'split' or None; "
                        "without one the plan is found from the model")
    plan = Plan()
    names = {"col": COLUMN, "column": COLUMN, "row": ROW, "gathered": GATHERED, "split": SPLIT, None: None}
    for name, module in model.named_modules():
        style = next((style for pattern, style in policy.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if isinstance(style, ColwiseParallel):
            use = GATHERED if all(isinstance(place, Replicate) for place in style.output_layouts) else COLUMN
        elif isinstance(style, RowwiseParallel):
            use = SPLIT if all(isinstance(place, Replicate) for place in style.input_layouts) else ROW
        elif isinstance(style, (str, type(None))) and style in names:
            use = names[style]
        else:
            raise ValueError(f"castor: custom_policy has {style!r} for {name}: expected 'col', 'row', 'gathered', 'split', None, ColwiseParallel() or RowwiseParallel()")
        if use is None:
            continue
        if kind_of(module) is None:
            raise ValueError(f"castor: custom_policy divides {name}, a {type(module).__name__}: expected an nn.Linear, an nn.Embedding or transformers' Conv1D")
        plan.uses[name] = use
    return plan


# ---- what of a model is looked at

def _linears(module, tied=()):
    return {name: one for name, one in module.named_modules() if kind_of(one) in ("linear", "conv1d") and id(one.weight) not in tied}


def _search(module, name, size, plan, tied, known):
    """Adds to the plan what is found in a module, or in its children where it does not run by itself."""
    linears = _linears(module, tied)
    if len(linears) < 2:
        return
    children = list(module.named_children())
    if not _repeats(module) and not any(isinstance(one, nn.Embedding) or _takes_heads(one) or _hooked(one) for one in module.modules()):
        key = _signature(module)
        if key not in known:
            known[key] = _analyse(module, linears, size)
        if known[key] is not None:
            uses, attributes = known[key]
            prefix = name + "." if name else ""
            plan.uses.update({prefix + of: use for of, use in uses.items()})
            plan.attributes.update({(prefix + of).rstrip("."): values for of, values in attributes.items()})
            return
    for child_name, child in children:
        _search(child, f"{name}.{child_name}" if name else child_name, size, plan, tied, known)


def _repeats(module):
    """It has a chain of layers, each of which is looked at by itself: a copy of all of them would be large."""
    return any(isinstance(one, (nn.ModuleList, nn.Sequential)) and sum(len(_linears(child)) > 1 for child in one) > 1 for one in module.modules())


def _hooked(module):
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def _takes_heads(module):
    return any(name in _PER_HEAD for name in inspect.signature(module.forward).parameters)


def _signature(module):
    """Layers of one signature compute alike, but for their values."""
    said = [repr(module)]
    for name, one in module.named_modules():
        said.append((name, type(one), tuple((of, None if p is None else p.shape) for of, p in one._parameters.items())))
        said.append([(of, value) for of, value in sorted(vars(one).items(), key=lambda item: item[0])
                     if isinstance(value, (int, float, str, bool, type(None))) and of not in _NUMBERS and of != "training"])
        said.append([(of, id(value)) for of, value in vars(one).items() if callable(value) and not isinstance(value, nn.Module)])
    return repr(said)


# ---- a layer, run by itself

class _Part(Exception):
    """A layer could not be run, or is not divided in this way."""


def _analyse(module, linears, size):
    """({a linear layer's name: COLUMN or ROW}, {a module's name: its attributes}), names within `module`; None: it does not run by itself."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        try:
            unit = copy.deepcopy(module).cpu().double().train()
        except Exception:
            return None
        _prepare(unit)
        for width in dict.fromkeys(one.weight.shape[0 if kind_of(one) == "conv1d" else 1] for one in list(linears.values())[:_INPUTS]):
            for shape in ((2, 4, width), (4, width)):
                given_to = _arguments(unit, shape)
                try:
                    whole = _dependencies(unit, given_to, linears)
                except Exception:  # not an input that it takes
                    continue
                return _divisions(unit, given_to, linears, size, whole)
    return None


def _prepare(unit):
    for parameter in unit.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) / max(parameter.shape[-1] if parameter.dim() > 1 else 1, 1) ** 0.5)
    for one in unit.modules():
        for name, value in vars(one).items():
            if isinstance(value, float) and ("drop" in name or name == "p"):
                vars(one)[name] = 0.0


def _arguments(unit, shape):
    """(args, kwargs) of a call: the first argument is a random tensor, and what rotates positions is made up; nothing else is known."""
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    named = {}
    for name, parameter in list(inspect.signature(unit.forward).parameters.items())[1:]:
        if name == "position_embeddings":
            heads = [vars(one)["head_dim"] for one in unit.modules() if isinstance(vars(one).get("head_dim"), int)]
            if heads and len(shape) == 3:
                named[name] = torch.randn(1, shape[1], heads[0], dtype=torch.float64), torch.randn(1, shape[1], heads[0], dtype=torch.float64)
        elif parameter.default is parameter.empty and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            named[name] = None
    return (x,), named


def _run(unit, given_to):
    torch.manual_seed(1)
    args, named = given_to
    return unit(*args, **named)


@contextlib.contextmanager
def _hooks(made):
    try:
        yield
    finally:
        for hook in made:
            hook.remove()


def _dependencies(unit, given_to, linears):
    """Runs the unit with each linear layer's output cut off from what it was made of. Returns {its name: (its input, its output, the names of
    layers whose outputs reach its input, True if anything else that has a gradient does)}, in the order of calls, and the names whose outputs the
    unit's own contain."""
    inputs, leaves, values, called, hooks = {}, {}, {}, [], []
    modules = dict(unit.named_modules())
    for name in linears:
        def before(_, args, name=name):
            called.append(name)
            inputs[name], = args

        def after(_, args, output, name=name):
            values[name] = output.detach()
            leaves[name] = output.detach().clone().requires_grad_()
            return leaves[name].clone()

        hooks += [modules[name].register_forward_pre_hook(before), modules[name].register_forward_hook(after)]
    with _hooks(hooks):
        output = _run(unit, given_to)
    others = [*given_to[0], *unit.parameters()]
    found = {}

    def reached(tensors):
        tensors = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
        if not tensors:
            return set(), False
        wanted = [*leaves.values(), *others]
        gradients = torch.autograd.grad(tensors, wanted, [torch.randn_like(t) for t in tensors], retain_graph=True, allow_unused=True)
        names = {name for name, gradient in zip(leaves, gradients) if gradient is not None}
        return names, any(gradient is not None for gradient in gradients[len(leaves):])

    for name in dict.fromkeys(called):
        if called.count(name) == 1:
            found[name] = (inputs[name].detach(), values[name], *reached([inputs[name]]))
    at_end, _ = reached(torch.utils._pytree.tree_leaves(output))
    return found, at_end | {name for name in called if called.count(name) > 1}


def _divisions(unit, given_to, linears, size, whole):
    found, at_end = whole
    uses, attributes = {}, {}
    for name in found:
        columns, rows = found[name][2], {name}
        while columns:  # all that these columns reach, and all that reaches those
            more = {row for row, (_, _, of, _) in found.items() if of & columns}
            if more == rows:
                break
            rows, columns = rows | more, columns.union(*(found[row][2] for row in rows | more))
        if not columns or columns & rows or columns & at_end or (columns | rows) & set(uses) or not columns <= set(found):
            continue
        if any(found[row][3] for row in rows) or any(found[one][1].shape[-1] % size for one in columns) or any(found[row][0].shape[-1] % size for row in rows):
            continue
        changed = _shown(unit, given_to, size, found, columns, rows)
        if changed is not None:
            uses.update(dict.fromkeys(columns, COLUMN))
            uses.update(dict.fromkeys(rows, ROW))
            for of, values in changed.items():
                attributes.setdefault(of, {}).update(values)
    return uses, attributes


def _shown(unit, given_to, size, found, columns, rows):
    """{a module's name: the attributes to divide} if that makes each rank's run give its part of the rows' inputs; None: nothing does."""
    parents = {one.rpartition(".")[0] for one in columns}
    changed = {}
    for names in _COUNTS:
        modules = dict(unit.named_modules())
        for parent in parents:
            kept = {of: value for of, value in vars(modules[parent]).items() if of in names and type(value) is int}
            if any(value % size for value in kept.values()):
                return None
            changed.setdefault(parent, {}).update({of: value // size for of, value in kept.items()})
        if names and not any(changed.values()):
            continue
        try:
            for training in (True, False):
                for rank in range(size):
                    _run_of_rank(unit, given_to, size, rank, found, columns, rows, changed, training)
        except Exception:  # of shapes that do not fit, or _Part
            continue
        return {of: values for of, values in changed.items() if values}
    return None


def _run_of_rank(unit, given_to, size, rank, found, columns, rows, changed, training):
    """Raises if a row's input is not this rank's part of the whole one's."""
    modules, reached = dict(unit.named_modules()), set()
    with contextlib.ExitStack() as restored, torch.no_grad():
        for of, values in changed.items():
            for name, value in values.items():
                restored.callback(setattr, modules[of], name, getattr(modules[of], name))
                setattr(modules[of], name, value)
        unit.train(training)
        restored.callback(unit.train, True)
        hooks = []
        for name in columns:
            hooks.append(modules[name].register_forward_hook(lambda _, args, output: output.chunk(size, -1)[rank].contiguous()))
        for row in rows:
            def instead(module, args, row=row):
                expected = found[row][0].chunk(size, -1)[rank]
                if args[0].shape != expected.shape or not torch.allclose(args[0], expected, rtol=1e-9, atol=1e-9 * float(found[row][0].abs().max())):
                    raise _Part
                reached.add(row)
                return (found[row][0],)  # what follows sees the whole model's values

            hooks.append(modules[row].register_forward_pre_hook(instead))
        with _hooks(hooks):
            _run(unit, given_to)
    if reached != rows:
        raise _Part
