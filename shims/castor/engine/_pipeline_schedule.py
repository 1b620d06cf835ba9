"""Pipeline schedules: a stage's part of a batch, in the order that the library computes (interpose/parallel/pipeline.h)."""
import contextlib
import inspect
import itertools
from ctypes import byref

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from .. import parallel
from ..agent import core
from ..utils.gradient_accumulation import GradAccumOptimizer
from . import _agreement, _parallel_groups
from ._schedule import BaseSchedule
from ._stage_link import StageLink

__all__ = ["InterleavedPipelineSchedule", "PipelineSchedule"]

_batches = itertools.count()  # those of one number are one batch on all ranks: every stage runs all of a pipeline's batches


class PipelineSchedule(BaseSchedule):
    """Non-interleaved 1F1B over the stages of castor.launch(config={"parallel": {"pipeline": S}}). The engine's model is this rank's
    stage. At most S - s microbatches of stage s are between their forward and backward.

    Args:
        num_microbatches: M; the batch's samples must divide by it. The same on all ranks.
        batch_data_process_func: as for BaseSchedule.
        tensor_shape: of what each stage but the last gives for one microbatch, if it is one tensor of this shape and float32; shapes are
            not exchanged then. Otherwise a stage may give any nesting of tensors.
        scatter_gather_tensors: each tensor-parallel rank sends its part of a tensor, and the parts are gathered on arrival. A tensor that
            does not divide is sent whole by each.

    Every stage passes an iterator of its own over the same batches. The first stage calls the model with the data. A later one calls it
    with what the stage before gave, and where its forward takes more, with the microbatch's data as well: a dict by name, all else by
    position. The criterion gets the last stage's output and the label."""

    every_stage_loads = False  # a stage between the others computes with the batch, too

    def __init__(self, num_microbatches, batch_data_process_func=None, tensor_shape=None, scatter_gather_tensors=False):
        super().__init__(batch_data_process_func)
        if not isinstance(num_microbatches, int) or num_microbatches < 1:
            raise ValueError(f"castor: num_microbatches is {num_microbatches!r}: expected 1 or more")
        self.num_microbatches = num_microbatches
        self.tensor_shape = None if tensor_shape is None else torch.Size(tensor_shape)
        self.scatter_gather_tensors = scatter_gather_tensors
        self.dtype = torch.float32  # of tensors of tensor_shape
        self._batch, self._microbatch, self._links = None, 0, []

    # ---- the batch

    def load_batch(self, data_iter, to_gpu=True):
        """Keeps the next batch for load_micro_batch(), and returns it. ValueError: it does not divide."""
        self._batch, self._microbatch = super().load_batch(data_iter, to_gpu), 0
        if not self.batch_size or self.batch_size % self.num_microbatches:
            raise ValueError(f"castor: a batch of {self.batch_size} samples does not divide into {self.num_microbatches} microbatches")
        return self._batch

    def load_micro_batch(self):
        """(data, label) of the next batch_size / num_microbatches samples. What has no such number of samples is passed whole."""
        self._microbatch += 1
        return self._micro_batch(self._microbatch - 1)

    def _micro_batch(self, number):
        if self._batch is None:
            return None, None
        size = self.batch_size // self.num_microbatches

        def part(value):
            divided = isinstance(value, torch.Tensor) and value.dim() and len(value) == self.batch_size
            return value[number * size:(number + 1) * size] if divided else value

        return tree_map(part, self._batch)

    # ---- one microbatch

    def forward_step(self, engine, input_tensor, return_tensors, return_output_label=True, accum_loss=None):
        """Forward of the next microbatch. `input_tensor`: what the stage before gave; None on the first stage.

        Returns the stage's output. The last stage appends (output, label) to the list `return_tensors` if `return_output_label`, and with
        `accum_loss` (a tensor of shape (1,)) adds the loss / M to it in place and returns loss / M, a scalar tensor."""
        groups = _stages()
        data, label = self.load_micro_batch()
        output = self._call_engine(engine, data) if groups.stage == 0 else _call_stage(engine.model, engine, input_tensor, data)
        if groups.stage < groups.stages - 1:
            return tree_map(_whole, output)
        return self._end(engine, output, label, return_tensors if return_output_label else None, accum_loss)

    def _end(self, engine, output, label, returned, accum_loss):
        """What the last stage makes of its output."""
        if returned is not None:
            returned.append((tree_map(_detached, output), label))
        if accum_loss is None:
            return output
        loss = self._call_criterion(engine, output, label) / self.num_microbatches
        accum_loss.add_(loss.detach())
        return loss

    def backward_step(self, engine, input_tensor, output_tensor, output_tensor_grad):
        """Backward of one microbatch: adds the parameters' gradients.

        Args:
            input_tensor, output_tensor: what forward_step() got and gave (on the last stage the loss).
            output_tensor_grad: the gradients of the output's tensors that need some: one tensor, or a list in their order; None on the
                last stage.

        Returns those of the input likewise; None on the first stage."""
        inputs = [leaf for leaf in tree_leaves(input_tensor) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        for leaf in inputs:
            leaf.retain_grad()
        if output_tensor_grad is None:
            engine.backward(output_tensor)
        else:
            outputs = [leaf for leaf in tree_leaves(output_tensor) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            gradients = list(output_tensor_grad) if isinstance(output_tensor_grad, (list, tuple)) else [output_tensor_grad]
            if outputs:
                engine.backward_by_grad(*((outputs[0], gradients[0]) if len(outputs) == 1 else (outputs, gradients)))
        return self._given_back(input_tensor, inputs, [leaf.grad for leaf in inputs])

    @staticmethod
    def _given_back(input_tensor, inputs, gradients):
        """What goes to the stage before; a gradient that is None is one of zeros."""
        if input_tensor is None:
            return None
        gradients = [torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(inputs, gradients)]
        return gradients[0] if isinstance(input_tensor, torch.Tensor) and gradients else gradients

    # ---- one batch

    def forward_backward_step(self, engine, data_iter, forward_only=False, return_loss=True, return_output_label=True):
        """Runs a batch through the pipeline. It neither zeroes gradients nor steps.

        Returns (output, label, loss) on the last stage: those of all microbatches put together on dimension 0, and a tensor of shape
        (1,); each is None if it is not asked for. On the other stages: (None, None, None). With `forward_only` no graph is kept."""
        groups = _stages()
        if isinstance(engine.optimizer, GradAccumOptimizer) or core.options.accumulate > 1:
            raise ValueError("castor: each microbatch of a pipeline is a backward, so its optimizer cannot accumulate gradients over batches: give the "
                             "schedule more microbatches of a larger batch instead")
        groups.refuse_broken()
        self._follow(engine)
        self._batch = None
        last = groups.stage == groups.stages - 1
        device = self.device or torch.device("cpu")
        parameter = next((p for p in engine.model.parameters()), None)
        _agreement.begin_batch(self, data_iter, groups.stage == 0 or last or self.every_stage_loads, self._settings(forward_only),
                               self._trouble(engine, groups, forward_only), groups.model_group, device)
        dtype = torch.float64 if parameter is not None and parameter.dtype is torch.float64 else torch.float32
        loss = torch.zeros(1, device=device, dtype=dtype) if last and (return_loss or not forward_only) else None
        returned = [] if last and return_output_label else None
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not forward_only):
                self._run(engine, groups, device, forward_only, returned, loss)
        except BaseException as error:
            for link in self._links:
                link.drop(error)
            groups.break_off(error)
            raise
        finally:
            self._batch, self._links = None, []
        if not last:
            return None, None, None
        output, label = self._together(returned) if returned else (None, None)
        return output, label, loss if return_loss else None

    @staticmethod
    def _together(returned):
        return _together(returned)

    def _trouble(self, engine, groups, forward_only):
        """Why this rank cannot take part in a batch; None: it can."""
        if forward_only or next(engine.model.parameters(), None) is not None:
            return None
        return f"stage {groups.stage} has no parameters, so that it has nothing to train: give it a part of the model that has some"

    def _settings(self, forward_only):
        """What must be alike on all ranks of a pipeline."""
        shape = "not given" if self.tensor_shape is None else f"{str(self.dtype).removeprefix('torch.')}{list(self.tensor_shape)}"
        return {"the schedule": type(self).__name__, "num_microbatches": self.num_microbatches, "tensor_shape": shape,
                "scatter_gather_tensors": self.scatter_gather_tensors, "forward_only": bool(forward_only)}

    def _link(self, groups, device, part, parts, tags=(0, 0, 0, 0)):
        """The ends of one of the model's parts; part p is on stage p mod S."""
        parallel = None
        if self.scatter_gather_tensors and groups.tensor_size > 1:
            parallel = groups.tensor_group, groups.tensor_size, torch.distributed.get_rank(groups.tensor_group)
        before = groups.stage_ranks[(part - 1) % groups.stages] if part else None
        after = groups.stage_ranks[(part + 1) % groups.stages] if part < parts - 1 else None
        self._links.append(StageLink(part, before, after, self.num_microbatches, device, self.tensor_shape, self.dtype, parallel, tags,
                                     (groups.forward_group, groups.backward_group)))
        return self._links[-1]

    def _passes(self, groups, parts, device, forward_only, split=False):
        """A function that gives the `with` of a pass: (kind, microbatch, part). The trace gets a record of each."""
        record = core.Pass(microbatches=self.num_microbatches, virtual_stages=parts, stages=groups.stages, batch=next(_batches), forward_only=forward_only,
                           split=split and not forward_only, on_device=device.type != "cpu")

        @contextlib.contextmanager
        def passing(kind, microbatch, part):
            begin_ns = core.now_ns()
            yield
            record.kind, record.microbatch, record.virtual_stage = kind, microbatch, part
            core.event_pass(byref(record), begin_ns)

        return passing

    def _run(self, engine, groups, device, forward_only, returned, loss):
        passing = self._passes(groups, groups.stages, device, forward_only)
        link = self._link(groups, device, groups.stage, groups.stages)
        kept = {}  # microbatch: (input, output), until its backward
        for kind, microbatch, _ in parallel.operations(core.PIPELINE_1F1B, groups.stages, self.num_microbatches, 1, groups.stage):
            if kind == core.PASS_FORWARD:
                given = link.receive_forward() if groups.stage else None
                with passing(kind, microbatch, groups.stage):
                    output = self.forward_step(engine, given, returned, returned is not None, loss)
                if groups.stage < groups.stages - 1:
                    link.send_forward(output, microbatch)
                if not forward_only:
                    kept[microbatch] = given, output
            elif not forward_only:
                self._backward(engine, link, passing(kind, microbatch, groups.stage), *kept.pop(microbatch), groups.stage == 0,
                               groups.stage == groups.stages - 1)
        link.finish()

    def _backward(self, engine, link, passing, given, output, first, last):
        received = None if last else link.receive_backward()
        with passing:
            gradient = self.backward_step(engine, given, output, received)
        if not first:
            link.send_backward(gradient if isinstance(gradient, list) else [gradient])


class InterleavedPipelineSchedule(PipelineSchedule):
    """Interleaved 1F1B: each stage has several model chunks, so that a microbatch passes all stages as often, and stages wait less. The
    engine's model is an nn.ModuleList of this rank's chunks: chunk c of stage s is part c * S + s of the model's S * num_model_chunks
    parts.

    num_microbatches: a multiple of S. num_model_chunks: 1 or more. The others are PipelineSchedule's. Over gloo alone, since messages have
    tags."""

    def __init__(self, num_microbatches, num_model_chunks, batch_data_process_func=None, tensor_shape=None, scatter_gather_tensors=False):
        super().__init__(num_microbatches, batch_data_process_func, tensor_shape, scatter_gather_tensors)
        if not isinstance(num_model_chunks, int) or num_model_chunks < 1:
            raise ValueError(f"castor: num_model_chunks is {num_model_chunks!r}: expected 1 or more")
        self.num_model_chunks = num_model_chunks

    def _settings(self, forward_only):
        return {**super()._settings(forward_only), "num_model_chunks": self.num_model_chunks}

    def _trouble(self, engine, groups, forward_only):
        chunks = self.num_model_chunks
        if not isinstance(engine.model, torch.nn.ModuleList) or len(engine.model) != chunks:
            return f"an InterleavedPipelineSchedule of {chunks} model chunks needs an engine whose model is an nn.ModuleList of {chunks}"
        if torch.distributed.get_backend() == "nccl":
            return "an InterleavedPipelineSchedule needs messages with tags, which NCCL does not have: use a PipelineSchedule"
        return super()._trouble(engine, groups, forward_only)

    def _run(self, engine, groups, device, forward_only, returned, loss):
        chunks, stages, stage = self.num_model_chunks, groups.stages, groups.stage
        parts, links = chunks * stages, []
        for chunk in range(chunks):
            to, origin = chunk + (stage == stages - 1), chunk - (stage == 0)  # chunks of the parts next to it
            links.append(self._link(groups, device, chunk * stages + stage, parts, (2 * to, 2 * chunk, 2 * origin + 1, 2 * chunk + 1)))
        passing = self._passes(groups, parts, device, forward_only)
        kept = {}  # (microbatch, chunk): (input, output)
        for kind, microbatch, chunk in parallel.operations(core.PIPELINE_INTERLEAVED, stages, self.num_microbatches, chunks, stage):
            part, link = chunk * stages + stage, links[chunk]
            if kind == core.PASS_FORWARD:
                given = link.receive_forward() if part else None
                with passing(kind, microbatch, part):
                    output = self._forward(engine, engine.model[chunk], given, microbatch, part, parts, returned, loss)
                if part < parts - 1:
                    link.send_forward(output, microbatch)
                if not forward_only:
                    kept[microbatch, chunk] = given, output
            elif not forward_only:
                self._backward(engine, link, passing(kind, microbatch, part), *kept.pop((microbatch, chunk)), part == 0, part == parts - 1)
        for link in links:
            link.finish()

    def _forward(self, engine, model, given, microbatch, part, parts, returned, loss):
        data, label = self._micro_batch(microbatch)
        output = self._call_engine(model, data) if part == 0 else _call_stage(model, model, given, data)
        return self._end(engine, output, label, returned, loss) if part == parts - 1 else tree_map(_whole, output)


def _stages():
    groups = _parallel_groups.groups()
    if groups is None:
        raise RuntimeError('castor: a PipelineSchedule needs stages: call castor.launch(..., config={"parallel": {"pipeline": S}}) first')
    return groups


def _detached(value):
    return value.detach() if isinstance(value, torch.Tensor) else value


def _whole(value):
    """What goes to the next stage: of a sharded ColoTensor the whole, as a plain tensor in the same graph."""
    if not hasattr(value, "to_replicate"):
        return value
    from ..tensor.colo_tensor import _local

    return _local(value.to_replicate())


def _call_stage(model, call, given, data):
    """Calls a later stage's model, by `call`, with what the stage before gave, and with the data if its forward takes more."""
    if getattr(model, "takes_all", False):
        return call(given, data)
    parameters = inspect.signature(_forward_of(model)).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    spread = isinstance(given, (list, tuple)) and len(given) > 1 and (len(positional) >= len(given) or any(p.kind == p.VAR_POSITIONAL for p in parameters))
    if isinstance(given, dict) and names >= set(given):
        return call(**given, **_named(data, names - set(given)))
    args = list(given) if spread else [given]
    if isinstance(data, dict):
        return call(*args, **_named(data, names - {p.name for p in positional[: len(args)]}))
    more = [] if data is None else list(data) if isinstance(data, (list, tuple)) else [data]
    return call(*args, *more[: max(len(positional) - len(args), 0)])


def _forward_of(model):
    while isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return model.forward if isinstance(model, torch.nn.Module) else model


def _named(data, names):
    return {name: value for name, value in data.items() if name in names} if isinstance(data, dict) else {}


def _together(returned):
    """Outputs and labels of all microbatches, each put together on dimension 0."""

    def joined(values):
        leaves, tree = zip(*(tree_flatten(value) for value in values))
        together = [torch.cat(of_leaf) if isinstance(of_leaf[0], torch.Tensor) and of_leaf[0].dim() else
                    torch.stack(of_leaf) if isinstance(of_leaf[0], torch.Tensor) else of_leaf[0] for of_leaf in zip(*leaves)]
        return torch.utils._pytree.tree_unflatten(together, tree[0])

    outputs, labels = zip(*returned)
    return joined(outputs), joined(labels)
