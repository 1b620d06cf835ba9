"""Scripts with DistributedDataParallel under the plugin `hybrid`: ranks that have a model together (layout.py) are its members, and each has a batch of its own.

A wrapped model's call computes the batches of all members, one after another (in stages with CASTOR_MICROBATCHES, rows of them: member_batches.py), each member
a part of the work: with the random numbers of the rank whose batch it is, and to the results of that rank. In the backward pass each member gets the gradients of every member's results, and adds its part of the parameters'. Of
t members each counts t times its part (divided_layers.py, stages.py), so the sum over the members is that of their batches: what DistributedDataParallel
divides by the number of ranks is what it would be without members.

Only calls whose gradients are summed are divided, for these all ranks make together; an evaluation on one rank is its own. The first calls are tried, with their
backward passes, beside the whole ones (trial.py)."""
import contextlib
import functools
import math
import pickle
import threading
import weakref

import torch
import torch.distributed as dist

from .. import core, patching
from ..backward import reducer
from ..common import store, tensors, traced
from ..device import activations
from ..device_ranks import pages
from ..nodes import grouping
from ..process import events
from . import backward_trial, boundary, contents, divided_layers, layout, member_batches, one_f_one_b, randomness, rows, stage_link, stages, streams, trial


OFTEN = 16  # calls


class Members:
    """The members of this rank's model, in a process group of the script's."""

    def __init__(self, control):
        self.layout = layout.Layout(control.rank, control.world, lambda: control)
        self.layers, self.stages = divided_layers.Layers(self.layout), stages.Stages(self.layout)
        self.trials = trial.Trials(self.layout.may_go_back_early)
        self.own = control.rank % self.layout.copies  # this rank's place among them
        self.apart = False  # they have stepped, or written, other values into parameters
        self.trying = False  # a call, with its backward pass
        self._calls = 0
        self.running = None  # (the module whose call is divided just now, the division of its batch that runs; None: it is not divided)
        self.hooked = False  # the script wants to see, or change, gradients inside of that call
        self._wanted = -(-core.options.microbatches // self.layout.copies)  # microbatches of a member's batch

    # ---- what members tell each other

    def _told(self, value):
        """What each member says; anything that can be pickled."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = [int(length) for length in self._gathered(torch.tensor([len(data)], device="cpu"))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
        padded[:len(data)] = data
        return [pickle.loads(each[:length].numpy().tobytes()) for each, length in zip(self._gathered(padded), lengths)]

    def _gathered(self, own):
        every = [torch.empty_like(own) for _ in range(self.layout.copies)]
        try:
            self.layout.group("members", "cpu").allgather([every], [own]).wait()
        except RuntimeError as error:
            raise core.GroupError("castor: ranks that have a model together make each call together whose gradients are summed, and not all of them came: evaluate "
                                  f"alone in torch.no_grad(), or leave CASTOR_TP and CASTOR_PP out ({str(error).rpartition('] ')[2]})") from None
        return every

    def _sent(self, of, tensors):
        """Those of a member, on all of them; `tensors`: elsewhere, memory for them."""
        options = dist.BroadcastOptions()
        options.rootRank = of
        for work in [self.layout.group("members", t.device.type).broadcast([t], options) for t in tensors if t.numel()]:
            work.wait()
        return tensors

    def _exchanged(self, kinds, own):
        """The tensors of each member. kinds: for each of them (shape, dtype, type of device) each."""
        return [self._sent(of, list(map(rows.resolved, own)) if of == self.own else [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in kind])
                for of, kind in enumerate(kinds)]

    def _all_well(self, why):
        return not any(self._told(bool(why)))

    def _agreed(self, found):
        every = self._told(found)
        return all(each == every[0] for each in every)

    # ---- calls

    def call(self, stock, ddp, args, kwargs):
        module, modules = ddp.module, list(ddp.module.named_modules())
        form = self.trials.of(module, modules, (args, kwargs))
        stock = _with_its_forward(stock, module)
        self._calls += 1
        holes, why = [], self.apart and _WHOLE or _why_apart(ddp, modules, form, (args, kwargs))

        def hole(leaf, path):
            if not isinstance(leaf, torch.Tensor):
                return leaf
            holes.append(leaf)
            return stage_link.Hole(leaf)

        words = states = values = split = early = None
        if not why:
            try:
                words = pickle.dumps(rows.mapped((args, kwargs), hole))
            except Exception as error:  # of the script's objects
                why = f"gets an argument that other ranks cannot have ({type(error).__name__}: {error})"
        if not why:
            states, values = streams.states(), self._values_of(module)
            split = self._split_of(module, (args, kwargs), form)
            early = _gone_back_from(form), form.early
        every = self._told((why, form.due, self.layers.knows(module, modules), words, states, values, split, early))
        why = next((each[0] for each in every if each[0]), "")
        if not why and any(each[5] != values for each in every):
            self.apart, why = True, "its parameters have other values on each of the ranks that have it together"
        if why:
            return self._whole(stock, ddp, args, kwargs, why)
        words = [pickle.loads(each[3]) for each in every]
        kinds = [[(leaf.shape, leaf.dtype, leaf.device) for leaf, _ in rows.leaves(each) if isinstance(leaf, stage_link.Hole)] for each in words]
        inputs = [stage_link.filled(each, tensors) for each, tensors in zip(words, self._exchanged(kinds, holes))]
        inputs[self.own] = args, kwargs
        losses = _losses_gone_back_from([each[7][0] for each in every]) if all(each[6] for each in every) else None
        batches = [member_batches.Batch(given, each[6], loss and loss[0]) for given, each, loss in zip(inputs, every, losses or [None] * len(every))]
        began = [each[4] for each in every]
        try:
            if not all(each[2] for each in every) and not self._prepare(module, modules):
                return self._whole(stock, ddp, args, kwargs, "no layer of it is divided")
            if self.layout.stages > 1:
                self.stages.prepare(module)
        except rows.Apart as error:  # of the model, which is the same on all ranks
            form.whole = True
            return self._whole(stock, ddp, args, kwargs, error)
        in_parts = any(len(batch.parts) > 1 for batch in batches)
        run = functools.partial(self._divided, stock, ddp, batches, began, losses)
        if any(each[1] for each in every) or losses and any(each[7][1] is None for each in every):
            self.trying = True
            try:
                return form.watched(self._tried(stock, ddp, modules, form, inputs[self.own], run, in_parts, *_beside_first(losses, self.own)))
            finally:
                self.trying = False
        core.event_call(1, losses is not None)
        # Stages wait for each other within a backward pass, and one nested in it gives a parameter a gradient for each member's batch: sums, which come in one
        # order on all ranks, wait for its end.
        ddp.reducer.late = self.layout.stages > 1 or form.nested
        try:
            return form.watched(run()[0])
        except rows.Apart as error:
            option = "CASTOR_MICROBATCHES" if in_parts or losses else "CASTOR_PP"
            raise core.GroupError(f"castor: {type(module).__name__} {error}, which it did not do in its first calls: run this script without {option}") from None

    def _split_of(self, module, arguments, form):
        """Of this rank's batch; None: it is one microbatch."""
        if not self.layout.may_go_back_early or not form.in_parts:
            return None
        try:
            return member_batches.Split.of(module, arguments, form, self._wanted)
        except rows.Apart as error:
            form.in_parts = False
            self._say_in_one(module, error, error.level)
            return None

    @staticmethod
    def _say_in_one(module, why, level=2):
        core.log(level, f"CASTOR_MICROBATCHES: the batch of each rank is one microbatch ({type(module).__name__}: {why})".encode())

    def _whole(self, stock, ddp, args, kwargs, why):
        core.event_call(0, 0)
        if str(why) != _WHOLE:
            self._say_whole(ddp.module, why)
        return stock(ddp, *args, **kwargs)

    @staticmethod
    def _say_whole(module, why, level=2):
        core.log(level, f"calls of a model are computed whole on every rank, which is right, and no faster than without CASTOR_TP and CASTOR_PP "
                        f"({type(module).__name__}: {why})".encode())

    def _values_of(self, module):
        """Numbers that tell the values of its parameters. Where these may lie on the host, and others than this rank's layers are read over the link, one looks
        in the first calls, and in ever fewer."""
        some = list(module.parameters())
        if some[0].is_cuda:
            if not tensors.holds_numbers(some[0]):
                return None
            far = core.options.device_budget != -1 or self.layout.stages > 1 and core.plugin_shards() > 2
            if far and self._calls > OFTEN and self._calls & self._calls - 1:
                return None
            some = pages.readable(some)
        return torch.stack([_sum_of_bits(p).to(some[0].device) for p in some]).tolist()

    def _prepare(self, module, modules):
        """Whether its layers are divided."""
        before = contents.Snapshot(modules)  # parts of the model are run
        with trial.unheard():
            divides = self.layers.prepare(module, modules, self._agreed)
        before.put_back()
        return divides or self.layout.stages > 1

    def _divided(self, stock, ddp, batches, began, losses):
        """(this rank's results, and of these what Batch.joined() says), of a call that computes all members' batches. losses: (path, gradient) of that of each
        member, whose backward passes are run within the call; None: they are not."""
        of_each, ended, every, self.hooked = [batch.parts for batch in batches], [], [], False
        calls = [[functools.partial(self._computed, stock, ddp, *part) for part in parts] for parts in of_each]
        if self.layout.stages > 1:
            def join(results):
                left = iter(results)
                return [batch.joined([next(left) for _ in parts]) for batch, parts in zip(batches, of_each)]

            microbatches, passes = [(call, states) for parts, states in zip(calls, began) for call in parts], None
            if losses is not None:
                of = [one_f_one_b.OfBatch(batch.microbatches, gradient, member_batches.of_loss(number, path)) for number, (batch, (path, gradient)) in enumerate(zip(batches, losses))]
                passes = self.stages.passes(ddp.module, of, boundary.makes_require_gradients(ddp.module))
            every = self.stages.run(ddp.module, microbatches, join, sum(map(len, of_each[:self.own + 1])) - 1, passes)
        else:
            for batch, (call,), states in zip(batches, calls, began):
                streams.restore(states)
                every.append(batch.joined([call()]))
                ended.append(streams.states())
            streams.restore(ended[self.own])
        if self.hooked:
            raise rows.Apart("asks for gradients inside of it, of which each rank has others")
        _, *said = every[self.own]
        return self._given(ddp, [results for results, *_ in every]), *said

    def _computed(self, stock, ddp, division, args, kwargs, within=contextlib.nullcontext):
        if division is not None:
            division.local_batch.look_at((args, kwargs))
        with self._within(ddp.module, division), within():
            return stock(ddp, *args, **kwargs)

    @contextlib.contextmanager
    def _within(self, module, division):
        """What runs here computes a member's batch, or the rows of a division of it."""
        self.running = module, division
        try:
            with contextlib.nullcontext() if division is None else randomness.within(division.local_batch), self.layers.within(module):
                yield
        finally:
            self.running = None

    def recomputed(self, function):
        """`function` of a checkpoint: in the backward pass its layers are divided, too."""
        running = self.running
        return function if running is None else boundary.again_within(function, lambda: self.running is not None, lambda: self._within(*running))

    def _given(self, ddp, results):
        """This rank's results, the gradient of each of which goes to all members."""
        needing = list(map(rows.needing_gradients, results))
        if len(set(map(len, needing))) > 1:
            raise rows.Apart("has results with a gradient on some ranks only")
        given = {id(every[self.own]): _Result.apply(self, ddp, (self._calls, number), *every) for number, every in enumerate(zip(*needing))}
        return rows.mapped(results[self.own], lambda leaf, path: given.get(id(leaf), leaf))

    def gradients_of(self, ddp, result, kinds, own):
        """Those of one result, for each member. result: which one, on all members the same."""
        if not (self.trying or ddp.reducer.expecting):
            raise core.GroupError("castor: a backward pass goes once more through the results of a model whose gradients were summed, and adds to those of one rank "
                                  "alone, which has a part of the model: add the losses and call backward() once, or run this script without CASTOR_TP and CASTOR_PP")
        every = self._gathered(torch.tensor(result, device="cpu"))
        if any(not torch.equal(each, every[0]) for each in every):
            raise core.GroupError("castor: ranks go back through the results of a model in another order each, and have its layers together: add their losses and "
                                  "call backward() once, or run this script without CASTOR_TP and CASTOR_PP")
        return [gradient for gradient, in self._exchanged([[kind] for kind in kinds], [own])]

    # ---- trials

    def _tried(self, stock, ddp, modules, form, own_inputs, run, in_parts, loss, gradient):
        """Computes a call divided, undoes that, and computes it whole: what it returns. Are the results the same, and the gradients of all members? in_parts: some
        members' batches are several microbatches. loss: of which result, and with what gradient, the backward passes are run within the call; None: they are
        not."""
        args, kwargs = own_inputs
        module, early, why, made, changes, totals, places = ddp.module, form.left > 0, "", None, {}, {}, {}
        before, given = contents.Snapshot(modules), contents.Given(own_inputs, own_inputs, keeps=True)
        inputs = backward_trial.inputs_of(modules, ())
        divided = backward_trial.Pass(inputs, self.stages.abandon, self.layout.stages == 1)
        whole = backward_trial.Pass(inputs)
        try:
            with trial.unheard(), activations.leaving_if_short(module) if self.layout.may_go_back_early else contextlib.nullcontext():
                made, totals, places = run()
        except rows.Apart as error:
            why = str(error)
        if given.changed():
            why = why or "changes its arguments"
        if self._all_well(why):
            changes = before.changed()
            with trial.unheard():
                divided.go_back(made, loss, gradient)
            form.nested = divided.nested or divided.failed  # it may have them
            made = rows.mapped(made, lambda leaf, path: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
        given.put_back()
        lost = before.put_back()
        if lost:
            raise core.GroupError(f"castor: {type(module).__name__} changes {lost[0]} in its forward, which is too large to be kept for a trial: run this "
                                  "script without CASTOR_TP and CASTOR_PP, or set CASTOR_AUDIT=0")
        with activations.leaving_if_short(module):  # those of the whole model, of which this device may have a part
            result = stock(ddp, *args, **kwargs)
        sums = len(form.sums)
        made = trial.added(made, result, totals, form.sums)
        why = why or (trial.difference(made, result, early) or trial.difference(changes, before.changed(), early, "changes what it holds in another way")).replace(
            "by rows", "divided")
        shares = not any(self._told(len(form.sums) > sums))  # those of losses were right
        if self._all_well(why) and shares:
            after = contents.Snapshot(modules)
            with trial.unheard():
                whole.go_back(result, loss, gradient)
            after.put_back()
            why = self._compared(divided, whole)
        whys = [each for each in self._told(why) if each]
        if not whys:
            form.left -= early and shares
            form.results |= places
            if loss is not None and form.early is None and shares:
                form.early = True
                core.log(3, f"the backward passes of a {type(module).__name__} are run within its calls (1F1B), so a stage keeps what at most "
                            f"{self.layout.stages} microbatches save".encode())
            if form.why_in_one:
                self._say_in_one(module, form.why_in_one)
                form.why_in_one = ""
        elif loss is not None:
            since = "" if form.early is None else _LATE
            form.early, form.left = False, max(form.left, 1)
            core.log(1 if since else 3, f"the backward passes of a {type(module).__name__} are not run within its calls, so a stage keeps what all microbatches save: "
                                        f"{whys[0]}{since}".encode())
        elif early and self.layers.put_together(module):
            core.log(3, f"the outputs of each divided layer of a {type(module).__name__} are put together: where they stay divided, {whys[0]}".encode())
        elif self.layout.stages > 1 and not form.tried:
            form.tried = True
        elif in_parts:
            form.in_parts, form.why_in_one = False, early and whys[0]
            if not early:
                self._say_in_one(module, whys[0] + _LATE, 1)
        else:
            form.whole = True
            self._say_whole(module, whys[0] + ("" if early else _LATE), 2 if early else 1)
        return result

    def _compared(self, divided, whole):
        every = self._told((divided.failed or whole.failed, divided.half or whole.half, divided.sketches, whole.sketches))
        if any(failed for failed, *_ in every):
            return ""
        made, expected = (sum(each[place] for each in every) / len(every) for place in (2, 3))
        return backward_trial.verdict(whole.inputs, expected, made, any(half for _, half, *_ in every))


_WHOLE = "divided it has other results"  # which was said
_LATE = ". That began after its first calls: since half as many calls as there were, results may differ"


def _gone_back_from(form):
    """Of the last two calls of a form: (path of the loss that the script went back from, and from nothing else; its gradients); None: that is not known."""
    path = form.loss
    if path is None:
        form.gradients = []
    else:
        gradient = form.reached.gradients[path]
        form.gradients = [*form.gradients[-1:], float(gradient) if tensors.holds_numbers(gradient) else 1.0]
    return (path, form.gradients) if len(form.gradients) == 2 else None


def _losses_gone_back_from(every):
    """(path, gradient in the last call) of the loss of each member. None: of some that is not known, or they weigh otherwise beside each other in each call."""
    if not all(every):
        return None
    before, last = zip(*(gradients for _, gradients in every))
    steady = all(math.isfinite(g) and g for g in (*before, *last)) and one_f_one_b.are_one([g / b for g, b in zip(last, before)])
    return list(zip((path for path, _ in every), last)) if steady else None


def _beside_first(losses, own):
    """(path, gradient beside the first member's) of a member's loss."""
    if losses is None:
        return None, 1.0
    (_, first), (path, gradient) = losses[0], losses[own]
    return path, gradient / first


class _Result(torch.autograd.Function):
    """A result of all members, of which this rank's script gets its own. Gradients come from the member whose result it is."""

    @staticmethod
    def forward(ctx, members, ddp, result, *every):
        ctx.members, ctx.ddp, ctx.result, ctx.kinds = members, weakref.ref(ddp), result, [(t.shape, t.dtype, t.device.type) for t in every]
        own = every[members.own]
        return own.view_as(own)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        every = ctx.members.gradients_of(ctx.ddp(), ctx.result, ctx.kinds, gradient)
        return None, None, None, *(each / len(every) for each in every)


def _with_its_forward(stock, module):
    """`stock`, before each call of which the module has the forward that it has now: Lightning's trainers put one there that its first call takes away."""
    now = module.__dict__.get("forward")

    def call(*args, **kwargs):
        if module.__dict__.get("forward") is not now:
            module.__dict__["forward"] = now
        return stock(*args, **kwargs)

    return call


@torch.no_grad()
def _sum_of_bits(p):
    """Of a tensor, in words that wrap around."""
    flat = p.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    words = flat[:whole].view(torch.int64) if flat.storage_offset() % 8 == 0 else flat[:whole]
    return words.sum(dtype=torch.int64) + flat[whole:].sum(dtype=torch.int64)


def _why_apart(ddp, modules, form, arguments):
    """Why a call is not divided; empty: it may be."""
    if form.whole:
        return _WHOLE
    why = boundary.why_whole(modules) or layout.why_one_has_it(modules)
    summed = {id(p()) for p in ddp.reducer.summed}
    if any(p.requires_grad and id(p) not in summed for p in ddp.module.parameters()):
        why = why or "has a parameter that requires a gradient, which DistributedDataParallel does not sum"
    for leaf, path in () if why else rows.leaves(arguments):
        if isinstance(leaf, torch.Tensor):
            if not rows.is_plain(leaf):
                return "an argument is no plain tensor"
            if leaf.requires_grad:
                return "gets an argument that requires a gradient"
        elif rows.is_opaque(leaf):
            return f"an argument is a {type(leaf).__name__}, which may hold tensors"
    return why


_members = {}  # ranks of a process group: its Members


def _members_of(module, process_group):
    ranks = tuple(dist.get_process_group_ranks(process_group))
    if ranks not in _members:
        parameters = [p for p in module.parameters() if p.requires_grad]
        on_devices = reducer.serves_on_devices(parameters)
        control = reducer.on_devices.control_of(process_group, parameters) if on_devices else grouping.control_of(process_group)
        made = _members[ranks] = Members(control)
        made.layout.open_groups(members=True)
    return _members[ranks]


def _place(module, process_group):
    """Before its parameters are adopted."""
    if core.options.pp > 1 and process_group.size() > 1 and reducer.serves_on_devices([p for p in module.parameters() if p.requires_grad]):
        _members_of(module, process_group).stages.place(module)


def _able(ddp):
    """Whether the gradients of the call that begins are summed, by Castor."""
    return (torch.is_grad_enabled() and ddp.require_backward_grad_sync and isinstance(ddp.reducer, reducer.StandsIn) and store.active()
            and not events.is_running() and threading.current_thread() is threading.main_thread())


def install():
    def wrap(stock):
        def _run_ddp_forward(self, *args, **kwargs):
            return _members_of(self.module, self.process_group).call(stock, self, args, kwargs) if _able(self) else stock(self, *args, **kwargs)

        return traced.unless_compiled(_run_ddp_forward, stock, in_graphs=True)

    patching.replace("torch.nn.parallel.DistributedDataParallel._run_ddp_forward", wrap)
    if 1 < core.options.pp < core.options.microbatches:
        member_batches.install()
    boundary.install_asking(lambda: next((members for members in _members.values() if members.running is not None), None))
    reducer.at_sync.append(_place)
    boundary.install_checkpoint(lambda function: functools.reduce(lambda made, members: members.recomputed(made), _members.values(), function),
                                lambda: any(members.running is not None and members.layout.stages > 1 for members in _members.values()))
