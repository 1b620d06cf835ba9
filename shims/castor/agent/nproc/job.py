"""Single-process scripts under `castor run --nproc N`: every rank runs the script; together they act as one process.

Each rank computes its part of every batch. Gradients are the weighted mean over ranks, and so is the loss after backward()."""
import functools
import hashlib
import os
import random
import sys
import weakref
import zlib

import torch

from .. import core, patching
from ..common import graph, store, tensors
from ..device import choice
from ..device_ranks import alike, entries
from ..nodes import whole
from ..process import strays
from . import arrays, audit, batch_norm, boundary, divided_layers, draws, layout, loaders, losses, randomness, rows, script_process, stages, streams, writers


ROUNDING = 1e-6  # relative differences of one loss that ranks compute alike
PLAIN = 256  # the most tensors, other than torch.nn.Parameter, to step by hand


class Job(script_process.Process):
    """The ranks of this run, opened when the first optimizer is built or a DataLoader is iterated."""

    def __init__(self, rank, world):
        super().__init__(rank, world)
        self.parameters = []  # of all optimizers, in the order of registration
        self.mode = core.options.batch
        self.weight = 1.0 / world  # of this rank's part of the current batch
        self.share = self.weight  # the weight of this rank's loss and gradients: by the size of its part for a mean, 1 for a sum
        self.samples = 0  # in the whole batch
        self.source = lambda: None  # weak reference to the iterator that delivered the last batch, if it splits batches
        self.loader = lambda: None  # weak reference to the DataLoader, whether it splits batches or not
        self.trained = weakref.WeakSet()  # DataLoaders on whose batches backward() was called
        self.backwards = self.steps = self.all_steps = 0
        self.of_batch = {}  # tensors that a step made to require gradients, by their identity
        self.counts = set()  # sizes of the whole batches that were delivered since the last backward
        self.loss = core.options.loss
        self.clipped = 0  # a digest of the clipping since the last step, the same on every rank
        self.unplaced = []  # references to optimizers of parameters on devices that no model's call has placed in a stage yet (adopt_placed), in their order
        self.batch = 0.0  # a digest of the current batch's indices, the same on every rank
        self.split_seen = False  # a DataLoader's batches were split
        self.switched = lambda: None  # weak reference to the model that was last put into a mode
        self.in_train = False  # inside Module.train
        self.audit = audit.Auditor(self)
        self.layout = layout.Layout(rank, world, lambda: self.group)
        self.layers, self.stages = divided_layers.Layers(self.layout), stages.Stages(self.layout)
        self.boundary = boundary.Boundary(self)
        if self.layout.copies > 1 and self.mode not in ("auto", "model"):
            raise core.Error(f"castor: CASTOR_BATCH={self.mode} gives each rank rows of its own, and with CASTOR_TP and CASTOR_PP several ranks need the same ones: "
                             "leave CASTOR_BATCH out")
        self.plain = 0  # tensors that are no torch.nn.Parameter and got the whole batch's gradient
        self.audited = False  # rank 0's fork computes the whole of this batch

    @property
    def sums_late(self):
        return self.layout.stages > 1

    @property
    def is_divided(self):
        """Whether each rank has its part of the batch: the loop's batches come from a loader that splits them, or a model computes its rows."""
        return self.source() is not None or self.boundary.division is not None

    @property
    def on_device(self):
        """Whether there are parameters on this rank's device."""
        return self.synchronizer is not None and self.synchronizer.devices is not None

    @property
    def splits(self):
        """Whether ranks have computed parts of batches."""
        return self.split_seen or self.boundary.used

    @property
    def evaluating(self):
        """Whether the script's model is in evaluation mode (which Trainers also end without calling train())."""
        model = self.switched()
        return model is not None and not model.training

    def meet_nodes(self):
        """Before anything that all ranks do together: they are on several nodes."""
        self.nodes = whole.Whole(self.rank, self.world)

    # ---- parameters

    def adopt(self, optimizer):
        """Registers the parameters of an optimizer that need gradients and are not registered yet."""
        if self.layout.stages > 1 and any(p.is_cuda for p in store.parameters_of(optimizer)):
            self.unplaced.append(weakref.ref(optimizer))
        else:
            self._adopt_of(optimizer)

    def _adopt_of(self, optimizer):
        self._adopt(p for p in self.with_data(optimizer) if p.requires_grad)

    def adopt_placed(self, module, why_whole):
        """Before a call of a model, which tells where the parameters are used that came to optimizers. why_whole(): why it will be computed whole; empty: it may be
        in stages."""
        if not self.unplaced or not store.active() or self.distributed:
            return
        own = {id(p) for p in module.parameters()}
        if any(id(p) in own for optimizer in self._unplaced() for p in store.parameters_of(optimizer)):
            if not why_whole():
                self.stages.place(module)
            self._adopt_unplaced(own)

    def _unplaced(self):
        return [optimizer for optimizer in (reference() for reference in self.unplaced) if optimizer is not None]

    def _adopt_unplaced(self, own=None):
        """own: of optimizers that have some of these parameters, by identity; None: of all."""
        found = [optimizer for optimizer in self._unplaced() if own is None or any(id(p) in own for p in store.parameters_of(optimizer))]
        self.unplaced = [reference for reference in self.unplaced if reference() is not None and not any(reference() is each for each in found)]
        for optimizer in found:
            self._adopt_of(optimizer)

    def adopt_waiting(self):
        if not self.audit.in_fork:
            super().adopt_waiting()

    def _adopt_moved(self):
        """Parameters that came to a device after their optimizer was built, or became others there."""
        if self.synchronizer is not None and torch.cuda.is_initialized():
            self._adopt(self.synchronizer.let_go_of_moved())
        if self.on_device:
            self.synchronizer.devices.renew()

    def _adopt_reached(self, nodes):
        """Registers leaves in no optimizer: they get the whole batch's gradient, too, since the script may step them by hand or
        look at them. A tensor with a row for each sample of this rank's part belongs to the samples, and is no parameter. The
        same holds for one that was made to require gradients while the script had the batch. `nodes`: of the graph."""
        own = round(self.weight * self.samples)
        fresh = [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad" and not script_process.is_registered(node.variable)]
        fresh = [p for p in fresh if id(p) not in self.of_batch]
        plain = [p for p in fresh if not isinstance(p, torch.nn.Parameter) or p.is_complex()]
        if not self.split_seen:  # what the script has outside of its models has the whole gradient, unless a model uses it unseen
            self._adopt(p for p in fresh if isinstance(p, torch.nn.Parameter))
            self.boundary.leaves = plain
            return
        self.plain += sum(not p.dim() or p.shape[0] != own for p in plain)
        if self.plain > PLAIN:
            raise core.Error("castor: the script makes new tensors that require gradients for each batch, and each rank would have its "
                             "part's gradient of them: run this script on one rank")
        self._adopt(p for p in fresh if isinstance(p, torch.nn.Parameter) or not p.dim() or p.shape[0] != own)

    def _adopt(self, parameters):
        if self.distributed or not store.active():
            return
        writers.install_late(self)
        # The store has no sums of complex numbers: at the boundary each rank keeps these parameters for itself, and their gradients are levelled.
        fresh = [p for p in parameters if script_process.is_fresh(p) and not (p.is_complex() and self.boundary.divides)]
        on_device = [p for p in fresh if p.is_cuda]
        fresh = [p for p in fresh if not p.is_cuda]
        for p in fresh:
            why = tensors.why_unsupported(p)
            if why:
                raise core.Error(f"castor: a parameter of shape {tuple(p.shape)} cannot be shared: {why}. Run this script "
                                 "on one rank")
        if not fresh and not on_device:
            return
        if self.synchronizer is None:
            self.synchronizer = script_process.Synchronizer(self)
        if fresh:
            self.synchronizer.add(fresh)
        if on_device:
            self.synchronizer.add_on_device(on_device)
        self.audit.renew()

    # ---- random numbers

    def diverge(self):
        """Gives each rank a random stream of its own from here on: the ranks draw different batches."""
        if self.rank:
            seed = self.seed_of_rank(torch.initial_seed())
            torch.manual_seed(seed)
            random.seed(seed)
            if _numpy() is not None:
                _numpy().random.seed(seed % (1 << 32))

    def seed_of_rank(self, seed):
        return (seed + 0x9E3779B97F4A7C15 * self.rank) % (1 << 63)

    # ---- events

    def batch_delivered(self, weight, digest, count):
        self.weight, self.batch, self.samples = weight, digest, count
        if self.counts is None:  # a backward has used the earlier ones
            self.counts = set()
        self.counts.add(count)

    def _check_counts(self):
        """Several loaders' batches in one loss: this rank's part must weigh the same in each of them."""
        counts, self.counts = self.counts or (), None
        if len({tuple(loaders.local_batch_of(count, rank, self.world)[2] for rank in range(self.world)) for count in counts}) > 1:
            raise core.Error(f"castor: batches of {' and '.join(map(str, sorted(counts)))} samples were drawn for one "
                             f"backward, and {self.world} ranks cannot split them alike: use batch sizes that {self.world} "
                             "divides (and drop_last=True), or CASTOR_BATCH=scale")

    def backward_begun(self, outputs, create_graph):
        if self.audit.in_fork:
            return self.audit.backward_begun()
        if self.distributed or not store.active():
            return
        if self.boundary.division is not None:
            raise core.Error("castor: a backward pass begins inside of a model's forward, which computes some rows of the batch")
        self.adopt_waiting()
        self._adopt_unplaced()
        self._adopt_moved()
        self.audited = False
        self.backwards += 1
        if self.loader() is not None:
            self.trained.add(self.loader())
        nodes = list(graph.nodes(outputs)) if self.splits else []  # whole batches need no look
        if self.splits:
            self._adopt_reached(nodes)
        if self.synchronizer is None:
            return
        writers.install_late(self)
        if create_graph:
            raise core.Error("castor: backward(create_graph=True) cannot be split over ranks: run this script on one "
                             "rank, or compute the second derivative with torch.autograd.grad")
        if self.split_seen:
            self._check_counts()
        if self.split_seen or self.boundary.pending:  # of a call that was tried, the form is not that of calls by rows
            self.audit.form_seen(nodes)
        batch_norm.refuse_unseen(nodes)
        self._weigh(outputs)
        self.synchronizer.expect()
        self.boundary.release_cached(1)

    def _weigh(self, outputs):
        """Sets the share of this rank's loss."""
        if not self.split_seen:
            self.share = self.weight
            if self.boundary.used:
                self.audited = self.audit.wanted()
            return
        measure = losses.Measure(outputs) if self.loss in ("auto", "tokens") else None
        if self.loss == "auto" and measure.compares:
            raise core.Error("castor: the loss compares the samples of a batch with each other (the class of each is its place "
                             "in the batch), and each rank has a part of them only: leave CASTOR_BATCH=loader out. Where they "
                             "may be compared within their part, set CASTOR_LOSS=mean")
        row = [] if measure is None else measure.row()
        every = self.group.gather([float(self.audit.running), self.weight, *row], "what the losses count for")
        self.audited = bool(every[0][0])
        weights, rows = [weight for _, weight, *_ in every], [row for _, _, *row in every]
        self.audit.backward_begun()
        if self.loss == "auto" and not self.audited and not self.audit.found_equal:
            self._warn_of_guess(measure, rows)
        every_share = losses.shares(weights, rows)
        self.share = every_share[self.rank]
        if self.loss == "auto" and every_share != weights:
            self.say("the loss is a mean over targets that are counted (some are ignored, or classes are weighed): each rank's "
                     "part of a batch weighs as much as it has of them (CASTOR_LOSS=mean: as many samples as it has)", 3)

    def _warn_of_guess(self, measure, rows):
        """No audit has shown that the loss is the mean that it is taken for."""
        if measure.unknown:
            self.say("the loss ends in none of the sums and means that Castor knows (it was made in compiled code?), and is "
                     "taken for a mean over samples, none of which has targets that are ignored. CASTOR_LOSS=mean says so", 1)
        if self.samples > 1 and measure.looks_like_sum(self.samples, self.weight * self.samples, rows):
            self.say("the loss looks like a sum over the batch, and is taken for a mean: gradients and loss are divided by "
                     "the number of ranks. Set CASTOR_LOSS=sum if it is a sum, CASTOR_LOSS=mean if it is not", 1)

    def scaled(self, roots):
        """The sum over the ranks is a mean. A rank's share is multiplied into its gradients at their root: then gradients that
        were accumulated before, which are the same on all ranks, stay unchanged."""
        factor = self.share * self.world
        if self.synchronizer is None or not self.synchronizer.expecting or factor == 1.0:
            return roots
        return tuple(root if root is None else root * factor for root in roots)

    def backward_ended(self, outputs, synchronized):
        if self.audit.in_fork:
            return self.audit.backward_ended_in_fork(outputs)
        randomness.used()
        self.boundary.level_leaves()
        self.boundary.release_cached(2)
        if synchronized and len(outputs) == 1 and outputs[0].numel() == 1 and not self.distributed:
            self._show_mean([outputs[0], *losses.scaled_from(outputs[0])])
        if self.audited and not self.distributed:
            self.audit.backward_ended(outputs)

    def gradients_taken(self, inputs, create_graph):
        """Refuses parameters where each rank's script has its part of a batch: it would get that part's gradient. If every rank draws whole
        batches, a later backward() averages rightly (a step inside the loss). And where a model was computed in stages, of which each has the gradients of
        its own layers."""
        if self.boundary.used and self.layout.stages > 1 and store.active() and any(script_process.is_registered(t) for t in inputs):
            raise core.GroupError("castor: torch.autograd.grad of a model whose layers are in stages: let loss.backward() make the gradients, or leave CASTOR_PP out")
        whole = self.boundary.divides or not self.split_seen and (self.synchronizer is None or create_graph)
        if self.distributed or not store.active() or whole and not self.boundary.cannot_take_gradients:
            return
        if any(isinstance(t, torch.nn.Parameter) or script_process.is_registered(t) for t in inputs):
            raise core.Error("castor: torch.autograd.grad of parameters gives each rank the gradient of its own part of "
                             "the batch: let loss.backward() make it, which averages over the ranks, or run this script "
                             "on one rank")

    def gradients_made(self, gradients, create_graph):
        return gradients if self.distributed or not store.active() else self.boundary.gradients_made(gradients, create_graph)

    def step_inside_backward(self, pairs):
        if not self.distributed:
            raise core.Error("castor: an optimizer steps inside a backward pass, where each rank has the gradient of its "
                             "own part of the batch: step after backward(), or run this script on one rank")

    def _show_mean(self, shown):
        """Sets the losses to those of the whole batch, which the script prints and its schedulers see."""
        values = [self.share * loss.item() if self.share else 0.0 for loss in shown]
        every = self.group.gather([float(len(shown)), self.batch, *(values + 3 * [0.0])[:3], float(self.is_divided), *streams.digest()], "the loss")
        if any(row[1] != every[0][1] for row in every):
            ranks = [r for r, row in enumerate(every) if row[1] != every[0][1]]
            raise core.GroupError(f"castor: rank 0 and rank {ranks[0]} drew different batches from their DataLoaders: seed "
                             "the sampler, or draw it from torch's default generator")
        if not self.split_seen:
            self._check_drawn_by_hand(every)
        if every[0][5]:  # a thread that draws batches may have reached their end on some ranks only
            streams.level(self, [row[6:] for row in every])
        for i, loss in enumerate(shown[:3]):
            loss.data.fill_(sum(row[2 + i] for row in every))

    def gradients_clipped(self, *operation):
        self.clipped = zlib.crc32(repr(operation).encode(), self.clipped)

    def said_before_step(self, optimizer):
        """Numbers that must be the same on all ranks: a digest of the script's limits for clipping, and one of gradients that it
        set itself. Empty: there is nothing to compare."""
        if self.distributed or self.synchronizer is None:
            return []
        digest = 0.0
        for p in store.parameters_of(optimizer):
            entry = store.entry_of(p)
            if p.is_cuda and not core.plugin_shards():  # else owners compare
                entry = entries.entry_of(p)
                set_here = entry is not None and p.grad is not None and not entry.is_untouched(p.grad)
            else:
                set_here = entry is not None and p.grad is not None and p.grad is not entry.shown_grad()
            if set_here:
                digest += float(p.grad.double().sum()) + float(p.grad.double().abs().max())
        clipped, self.clipped = self.clipped, 0
        return [float(clipped), digest]

    def compare_before_step(self, every):
        """`every`: each rank's numbers."""
        if len({clipped for clipped, _ in every}) > 1:
            raise core.GroupError("castor: the ranks clip the gradients by different limits: what a script computes from its "
                             "batch is each rank's part of it only. Take the limit from the loss after backward(), which "
                             "is the whole batch's, or run this script on one rank")
        made = [digest for _, digest in every]
        if any(d != made[0] and not (d != d and made[0] != made[0]) for d in made):
            raise core.GroupError("castor: the script put gradients of its own in place (torch.autograd.grad?), and they "
                             "differ between the ranks: let loss.backward() make them, or run on one rank")

    def _compare_nodes(self):
        """The ranks of a node have one model; what another node has computed otherwise (unseeded numbers, other files, other processors) would stay."""
        self.all_steps += 1
        if self.nodes is None or self.distributed or not store.active() or self.all_steps & (self.all_steps - 1):
            return
        each = [p for p in (reference() for reference in self.synchronizer.parameters()) if p is not None] if self.synchronizer else []
        digests = [tensors.digest(p, core.digest) for p in each if not p.is_cuda] + alike.digests([p for p in each if p.is_cuda])
        digest = zlib.crc32(repr(digests).encode())
        every = self.group.gather([float(digest)], "the parameters of all nodes")
        other = next((rank for rank, row in enumerate(every) if row != every[0]), None)
        if other is not None:
            raise core.GroupError(f"castor: the parameters of rank 0 and of rank {other}, on another node, differ after step {self.all_steps}: seed what the script draws, "
                                  "and give all nodes the same files, processors and versions of PyTorch")

    def step_ended(self):
        self._compare_nodes()
        if self.distributed or self.splits or "hand-drawn" in self.said:
            return
        self.steps += 1
        if self.boundary.divides and self.steps <= core.options.audit:
            return
        self.said.add("hand-drawn")
        if self.mode == "scale":
            self.diverge()
        elif self.mode == "loader":
            self.say(f"the script draws its batches by hand: each of the {self.world} ranks computes the whole batch, so steps are no faster than "
                     "on one rank; memory is shared. Leave CASTOR_BATCH=loader out, and the ranks share them")
        elif not self.boundary.settled:
            self.say(f"no call of a model has a batch that the {self.world} ranks can share: each of them computes all of it, which is right, and "
                     "no faster than on one rank; memory is shared")

    @staticmethod
    def refuse_drawn_apart():
        raise core.GroupError("castor: the ranks drew different batches by hand, where each must compute the same: seed torch, numpy "
                              "and random before you draw, or let each rank draw its own (CASTOR_BATCH=scale)")

    def _check_drawn_by_hand(self, every):
        """`every`: rows of the ranks, whose third number is the loss of a batch that was not split."""
        spread = max(row[2] for row in every) - min(row[2] for row in every)
        alike = not spread > ROUNDING * max(abs(row[2]) for row in every)
        if self.mode != "scale" and not alike:
            self.refuse_drawn_apart()
        if self.mode == "scale" and "hand-drawn" in self.said and alike:
            self.say("CASTOR_BATCH=scale, but the script draws nothing at random: every rank computes the same batches", 1)
        elif self.mode == "scale" and "hand-drawn" in self.said:
            self.say(f"CASTOR_BATCH=scale: each of the {self.world} ranks draws its own batches by hand, so a step sees {self.world} "
                     "times as many samples")


def _watch_mode(job):
    """After model.eval() every rank gets a DataLoader's whole batches, even with gradients enabled (as in Trainers)."""

    def wrap(train):
        @functools.wraps(train)
        def module_train(self, mode=True):
            outermost, job.in_train = not job.in_train, True
            try:
                return train(self, mode)
            finally:
                if outermost:
                    job.in_train = False
                    if any(map(script_process.is_registered, self.parameters())):
                        job.switched = weakref.ref(self)

        return module_train

    patching.replace("torch.nn.Module.train", wrap)


def _watch_requires_grad(job):
    """Notes tensors of a batch that shall get gradients: embeddings of frozen weights (PEFT), inputs of adversarial attacks."""

    def wrap(stock):
        @functools.wraps(stock)
        def requires_grad_(self, requires_grad=True):
            result = stock(self, requires_grad)
            if requires_grad and job.is_divided and self.is_leaf and not isinstance(self, torch.nn.Parameter):
                key = id(self)
                job.of_batch[key] = weakref.ref(self, lambda _: job.of_batch.pop(key, None))
            return result

        return requires_grad_

    patching.replace("torch.Tensor.requires_grad_", wrap)


def _numpy():
    return sys.modules.get("numpy")


def refuse_process_groups(world, is_rank):
    """Refuses a script that starts ranks of its own: it is no single-process script, and each rank here would start them anew. A
    group of exactly these ranks is allowed."""
    if not torch.distributed.is_available():
        return

    def wrap(stock):
        @functools.wraps(stock)
        def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, *args, **kwargs):
            size = world_size if world_size >= 0 else int(os.environ.get("WORLD_SIZE") or 1)
            if size != world or not is_rank or strays.is_stray():
                strays.refuse_group()
            return stock(backend, init_method, timeout, world_size, *args, **kwargs)

        return init_process_group

    patching.replace("torch.distributed.distributed_c10d.init_process_group", wrap)


def install(rank, world, token):
    """Returns the job, whose methods the agent's events call."""
    job = Job(rank, world)
    if core.options.meeting:
        job.meet_nodes()
        token = job.group.broadcast(token.encode(), "the begin of the job").decode()
    if torch.version.cuda:
        choice.choose(*(rank, world) if job.nodes is None else (job.nodes.local.rank, job.nodes.local.world))
    seed = int(hashlib.sha256(token.encode()).hexdigest(), 16)
    random.seed(seed)  # unseeded numbers must be the same on every rank, too
    torch.default_generator.manual_seed(seed % (1 << 63))
    if _numpy() is not None:
        _numpy().random.seed(seed % (1 << 32))
    script_process.adopt_at_build(job)
    batch_norm.install(job)
    writers.install(job)
    _watch_mode(job)
    _watch_requires_grad(job)
    loaders.install(job)
    if job.mode in ("auto", "model"):
        boundary.install(job)
    draws.install(job)
    arrays.install()
    return job
