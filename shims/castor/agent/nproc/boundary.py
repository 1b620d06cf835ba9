"""Batches are split at the model's boundary (CASTOR_BATCH=model, and auto).

Every rank's script has the whole batch. The outermost call of a module that holds registered parameters computes this rank's rows of it, and
returns the whole results. What the script computes outside of the model it computes from the whole batch, on every rank alike.

A call that cannot be divided so (nothing tells which dimension is the batch's, hooks of the script look into it) is computed whole on every
rank, which is right, too. What a divided call must not do: change the module by its rows alone, or return other numbers on each rank that are
neither rows nor losses. Each call is looked at for that, and refused."""
import contextlib
import functools
import threading
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .. import core, patching
from ..common import store, tensors, traced
from ..device import activations
from ..process import events
from . import arguments, backward_trial, contents, layout, microbatches, one_f_one_b, randomness, results, rows, script_process, stages, streams, trial


class Boundary:
    def __init__(self, job):
        self.job = job
        self.results = results.Results(job)
        self.division = None  # of the call that runs
        self.stepping = False  # in an optimizer's step: its closure calls the model
        self._in_whole = False  # a call that might be divided is computed whole
        self.used = False  # some call was divided
        self.cached = 0  # on a device, 2, 1: PyTorch's allocator keeps the memory of a trial, which is more than that of a step; of gradients until the next ones come
        self.settled = False  # a trial has shown that some may be, or a line has said that calls are computed whole
        self.trials = trial.Trials(job.layout.may_go_back_early)
        self._shared = []  # (path, reference, _age() then): tensors in shared memory that were there when calls were tried
        self.deliveries = 0  # of loaders
        self.rows = 0  # of the batch that a loader gave last; 0: not known
        self.leaves = []  # plain tensors that the running backward gives gradients, and that are no arguments of divided calls
        self._divisions = weakref.WeakSet()  # of calls whose graphs live
        self._holds = weakref.WeakKeyDictionary()  # module: (number of registered parameters then, whether it has one)

    @property
    def divides(self):
        """Whether models' calls are divided."""
        return self.job.mode in ("auto", "model")

    def _age(self):
        """Batches so far."""
        return self.deliveries or self.job.backwards

    def in_shared_memory(self):
        """The path of a tensor that another process would change, too; empty: there is none. Batches of workers are shared as well, until the next."""
        return next((path for path, tensor, age in self._shared if tensor() is not None and self._age() >= age + 2), "")

    # ---- calls

    def call(self, stock, module, args, kwargs):
        if self.division is not None or self._in_whole or not self.divides:
            return stock(module, *args, **kwargs)
        audit = self.job.audit
        if audit.in_fork:
            return self._call_in_fork(stock, module, args, kwargs)
        self.job.adopt_placed(module, lambda: self._why_one_has_it(list(module.named_modules()), (args, kwargs)))
        if not self._able() or not self._holds_registered(module):
            return stock(module, *args, **kwargs)
        modules = list(module.named_modules())
        form = self.trials.of(module, modules, (args, kwargs))
        try:
            if form.whole:
                raise rows.Apart("by rows it has other results", 3)
            why = why_whole(modules)
            if why:
                raise rows.Apart(why)
            division, own_args, own_kwargs = self._divide(module, args, kwargs, form)
            if self.job.layout.copies > 1:
                self._prepare_replica(module, modules, (args, kwargs))
        except rows.Apart as error:
            return self._whole(stock, module, args, kwargs, error)
        loss = form.loss
        if form.due or loss is not None and form.early is None:
            return form.watched(self._tried(stock, module, modules, args, kwargs, form, division, own_args, own_kwargs, loss))
        if torch.is_grad_enabled():
            if audit.boundary_reached():
                return self._call_in_fork(stock, module, args, kwargs)
            self.used = True
            self._divisions.add(division)
        core.event_call(1, loss is not None)
        held, given = contents.Versions(modules), contents.Given((args, kwargs), (own_args, own_kwargs))
        result, raised = None, None
        try:
            result = self._rows_of(stock, module, division, own_args, own_kwargs, form, loss)
        except core.GroupError:
            raise
        except Exception as error:  # on all ranks, or the others must not wait for this one
            raised = error
        try:
            if raised is None and given.changed():
                raised = rows.Apart("changes its arguments, of which each rank has some rows")
            return form.watched(self.results.join(division, held, result, form, raised))
        except rows.Apart as error:
            raise core.GroupError(f"castor: the model cannot be computed by rows: {type(module).__name__} {error}, and in one process it would get the "
                                  "whole batch. Run this script on one rank, or let the model do that outside of its forward") from None

    def _whole(self, stock, module, args, kwargs, error):
        self._say_whole(module, error, error.level)
        return self._computed_whole(stock, module, args, kwargs)

    def _computed_whole(self, stock, module, args, kwargs):
        """With all that it calls."""
        core.event_call(0, 0)
        self._in_whole = True
        try:
            return stock(module, *args, **kwargs)
        finally:
            self._in_whole = False

    def _say_whole(self, module, why, level=2):
        level = level if torch.is_grad_enabled() else 3  # an evaluation's loss
        self.settled = self.settled or level < 3
        self.job.say(f"calls of a model are computed whole on every rank, which is right, and no faster than on one rank ({type(module).__name__}: {why})", level)

    def _rows_of(self, stock, module, division, args, kwargs, form, loss):
        """loss: of which result the backward passes are run within the call; None: they are not."""
        if self.job.layout.stages == 1:
            return self._computed(stock, module, division, args, kwargs)
        parts = microbatches.Microbatches(self.results, division, form, core.options.microbatches or self.job.layout.stages, loss)
        began = streams.states()  # each microbatch draws for the whole batch
        calls = [functools.partial(self._computed, stock, module, part, *parts.rows_of((args, kwargs), part)) for part in parts.parts]
        passes = None
        if loss is not None:
            passes = self.job.stages.passes(module, [one_f_one_b.OfBatch(parts, form.reached.gradients[loss], loss)], makes_require_gradients(module))
        return self.job.stages.run(module, [(call, began) for call in calls], parts.joined, passes=passes)

    def _computed(self, stock, module, division, args, kwargs, within=contextlib.nullcontext):
        division.module = weakref.ref(module)
        with self._within(division), within():
            division.local_batch.look_at((args, kwargs))
            return stock(module, *args, **kwargs)

    def _why_one_has_it(self, modules, arguments):
        """Why several ranks cannot have a model with these submodules (name, module) together, as far as that can be seen before a call; empty: they may."""
        why = layout.why_one_has_it(modules)
        if not why and self.job.layout.stages > 1 and any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf, _ in rows.leaves(arguments)):
            why = "gets an argument that requires a gradient, of which one stage has it"
        return why

    def _prepare_replica(self, module, modules, arguments):
        """Raises Apart where several ranks cannot have a model together."""
        why = self._why_one_has_it(modules, arguments)
        if why:
            raise rows.Apart(why)
        self.job.layout.open_groups()
        if self.job.layout.stages > 1:
            if any(p.requires_grad and not script_process.is_registered(p) for p in module.parameters()):
                raise rows.Apart("has parameters that require gradients, and are no optimizer's")
            self.job.stages.prepare(module)

        def agreed(found):
            every = self.job.group.gather([results.digest(found)], "how layers are divided")
            return all(row == every[0] for row in every)

        if self.job.layers.knows(module, modules):
            return
        before = contents.Snapshot(modules)  # parts of the model are run, which may change variables of the script's
        with trial.unheard():
            divides = self.job.layers.prepare(module, modules, agreed)
        before.put_back()
        if not divides:
            self.job.say(f"CASTOR_TP={self.job.layout.tensor_size}: no layer of a {type(module).__name__} is divided, and these ranks compute the same")

    def _tried(self, stock, module, modules, args, kwargs, form, division, own_args, own_kwargs, loss):
        """Computes a call by rows, undoes that, and computes it whole: what it returns. Do they have the same results? loss: as for _rows_of()."""
        before, given = contents.Snapshot(modules), contents.Given((args, kwargs), (own_args, own_kwargs), keeps=True)
        self._shared += [(path, tensor, self._age()) for path, tensor in before.shared]
        made, changes, why = None, {}, ""
        passes = self._passes(modules, (args, kwargs), loss is not None)
        try:
            with trial.unheard(), activations.leaving_if_short(module) if self.job.layout.may_go_back_early else contextlib.nullcontext():
                made = self._rows_of(stock, module, division, own_args, own_kwargs, form, loss)
        except core.GroupError:
            raise
        except rows.Apart as error:
            why = str(error)
        except Exception as error:  # of the script's code, which gets another number of rows than it expects
            why = f"by rows it raises {type(error).__name__}: {error}"
        if given.changed():
            why = why or "it changes its arguments"
        if self._all_well(why):
            try:
                made = self.results.join(division, before, made, form)
                changes = before.changed()
                with trial.unheard():
                    for each in passes[:1]:
                        each.go_back(made, loss)
                made = rows.mapped(made, lambda leaf, path: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
            except core.GroupError:
                raise
            except (rows.Apart, core.Error) as error:  # (a loss that has no right weights)
                why = f"it {error}"
        given.put_back()
        lost = before.put_back()
        if lost:
            raise core.GroupError(f"castor: {type(module).__name__} changes {lost[0]} in its forward, which is too large to be kept for a trial: run this "
                                  "script on one rank, or set CASTOR_AUDIT=0")
        self.cached = 2 if torch.cuda.is_initialized() else 0
        with activations.leaving_if_short(module):  # those of the whole batch, of which this device need not have room for more than some rows
            result = self._computed_whole(stock, module, args, kwargs)
        sums = len(form.sums)
        made = trial.added(made, result, division.totals, form.sums)
        early = form.left > 0
        why = why or trial.difference(made, result, early) or trial.difference(changes, before.changed(), early, "changes what it holds in another way")
        shares = len(form.sums) == sums  # those of losses were right
        if passes and self._all_well(why) and shares:
            why = self._compared(passes, modules, result, loss)
        if not self._all_well(why):
            if loss is not None:
                since = "" if form.early is None else ". That began after its first calls: since half as many calls as there were, results may differ"
                form.early, form.left = False, max(form.left, 1)
                self.job.say(f"the backward passes of a {type(module).__name__} are not run within its calls, so a stage keeps what all microbatches save: "
                             f"{why or 'on another rank there are other results'}{since}", 1 if since else 3)
                return result
            if early and self.job.layers.put_together(module):
                self.job.say(f"the outputs of each divided layer of a {type(module).__name__} are put together, since it has other results where "
                             f"they stay divided (dropout between layers?): {why or 'on another rank'}", 3)
                return result
            if self.job.layout.stages > 1 and not form.tried:
                form.tried = True
                return result
            form.whole = True
            if not early:
                why = f"{why or 'by rows it has other results on another rank'}. That began after its first calls: since half as many calls as there were, results may differ"
            self._say_whole(module, why or "by rows it has other results on another rank", 2 if early else 1)
        else:
            if loss is not None and form.early is None and shares:
                form.early = True
                self.job.say(f"the backward passes of a {type(module).__name__} are run within its calls (1F1B), so a stage keeps what at most "
                             f"{self.job.layout.stages} microbatches save", 3)
            if early:
                form.left -= shares or not passes
                self.settled = True
        return result

    def _passes(self, modules, arguments, needed):
        """For a trial of the backward passes too: of the call by rows, and of the whole one. Where an audit can be, it is none, unless it is needed."""
        if not torch.is_grad_enabled() or not (needed or torch.cuda.is_initialized()):
            return ()
        inputs = backward_trial.inputs_of(modules, arguments)
        if not needed and not any(t.is_cuda for t in inputs):
            return ()
        in_stages = self.job.layout.stages > 1  # whose arguments require no gradients: what the call has made is in no other graph
        return backward_trial.Pass(inputs, self.job.stages.abandon, not in_stages), backward_trial.Pass(inputs)

    def release_cached(self, pending):
        """The backward pass of what a trial has returned is over (pending=2), or the next one begins (1)."""
        if self.cached == pending:
            self.cached -= 1
            torch.cuda.empty_cache()

    def _compared(self, passes, modules, result, loss):
        by_rows, whole = passes
        after = contents.Snapshot(modules)
        with trial.unheard():
            whole.go_back(result, loss)
        after.put_back()
        return backward_trial.differs(self.job, by_rows, whole)

    def _all_well(self, why):
        """On all ranks of a trial: whether no rank has found a reason against it."""
        return not any(bad for bad, in self.job.group.gather([float(bool(why))], "whether a model can be computed by rows"))

    def _call_in_fork(self, stock, module, args, kwargs):
        """Whole, in the process that audits; its graph is watched all the same."""
        if not torch.is_grad_enabled() or events.is_running():
            return stock(module, *args, **kwargs)
        self.job.audit.step_ended_in_fork()
        result = self._computed_whole(stock, module, args, kwargs)
        self._divisions.add(rows.Watched(result))
        return result

    @contextlib.contextmanager
    def _within(self, division):
        """What runs here computes the rows of a division, of whose module it has layers."""
        weight, self.job.weight, self.division = self.job.weight, division.size / division.count, division
        try:
            with randomness.within(division.local_batch), self.job.layers.within(division.module()):
                yield
        finally:
            self.job.weight, self.division = weight, None

    def recomputed(self, function):
        """`function` of a checkpoint: in the backward pass it computes the same rows."""
        division = self.division
        return function if division is None else again_within(function, lambda: self.division is not None, lambda: self._within(division))

    @property
    def pending(self):
        """Graphs of divided calls are there that no backward pass has gone through: in a process that has whole batches they would be wrong."""
        return any(not division.went_back for division in self._divisions)

    def _able(self):
        """Whether the outermost call of a model that begins now may be divided. In others the script looks at numbers, or PyTorch does."""
        job = self.job
        return not (job.synchronizer is None or events.is_running() or not store.active()
                    or job.distributed or self._are_hooks_set() or torch.jit.is_tracing() or rows.many_at_a_time()
                    or torch.autograd.forward_ad._current_level >= 0 or threading.current_thread() is not threading.main_thread())

    @staticmethod
    def _are_hooks_set():
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return hooks is not None and not activations.are_own(hooks)

    def _holds_registered(self, module):
        count = self.job.synchronizer.count
        known = self._holds.get(module)
        if known is None or known[0] != count:
            parameters = list(module.parameters())
            lacking = any(torch.nn.parameter.is_lazy(p) for p in parameters)
            known = self._holds[module] = -1 if lacking else count, not lacking and any(map(script_process.is_registered, parameters))
        return known[1]

    # ---- arguments

    def _divide(self, module, args, kwargs, form):
        """(the division, this rank's args, and kwargs)"""
        count = arguments.rows_in(module, (args, kwargs), form, self.rows)
        if count < self.job.layout.replicas:
            raise rows.Apart("a batch has fewer rows than there are ranks", 3)
        division = rows.Division(self.job, count)

        def rows_in(leaf, path):
            dimension = form.arguments.get(path)
            if isinstance(leaf, torch.Tensor) and not results.is_of_model(leaf):
                if dimension is not None:
                    self._note_leaf(leaf)
                    return division.rows(leaf, dimension)
                return rows.Same.apply(leaf, division) if leaf.requires_grad else leaf
            return leaf if dimension is None else leaf[division.first:division.last]

        return (division, *rows.mapped((args, kwargs), rows_in, "", rows.is_column))

    def _note_leaf(self, tensor):
        """A tensor of the batch that shall get a gradient is no parameter: it has the whole one on every rank already."""
        of_batch = self.job.of_batch
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in of_batch:
            key = id(tensor)
            of_batch[key] = weakref.ref(tensor, lambda _: of_batch.pop(key, None))

    def level_leaves(self):
        """A tensor of the script's that a model used without getting it as an argument has the gradient of this rank's rows, times N."""
        leaves, self.leaves = self.leaves, []
        grads = [p.grad for p in leaves if p.grad is not None and rows.is_plain(p.grad)]
        if self.used and self.differ(grads):
            for grad in grads:
                grad.copy_(rows.Division(self.job, self.job.world).mean_of(grad))

    @property
    def cannot_take_gradients(self):
        """Many gradients at a time (is_grads_batched), of which none can be looked at."""
        return self.used and self.division is None and rows.many_at_a_time()

    def gradients_made(self, gradients, create_graph):
        """What autograd.grad has made: of tensors that a model used without getting them as arguments, such as parameters, that of this rank's
        rows, times N."""
        if not self.divides or self.job.synchronizer is None or self.division is not None or self.cannot_take_gradients or self.job.audit.in_fork:
            return gradients
        plain = [g for g in gradients if g is not None and rows.is_plain(g)]
        if not plain or not self.differ(plain):
            return gradients
        mean = rows.Mean.apply if create_graph else lambda g, division: division.mean_of(g)
        division = rows.Division(self.job, self.job.world)
        means = tuple(mean(g, division) if any(g is other for other in plain) else g for g in gradients)
        if not self.used and any(g is not None and not trial.close(g.detach(), m.detach()) for g, m in zip(gradients, means)):
            self.job.refuse_drawn_apart()
        return means

    def differ(self, grads):
        """Whether they are not the same on all ranks."""
        rows.refuse_many()
        every = self.job.group.gather([float(len(grads)), results.digest([results.digest(g) for g in grads])], "gradients of tensors that are no parameters")
        return any(row != every[0] for row in every)


_OF_ALL_MODULES = [value for name, value in vars(torch.nn.modules.module).items() if name.startswith("_global_") and name.endswith("_hooks")]


def why_whole(modules):
    """Why calls of a module with these submodules (name, module) are not divided; empty: they may be."""
    if any(_is_of_script(hook) for hooks in _OF_ALL_MODULES for hook in hooks.values()):
        return "a hook of the script looks into all modules"
    for name, m in modules:
        if not type(m).__module__.startswith("torch.") and any(hasattr(type(value), "__next__") for value in vars(m).values()):
            return f"{name or 'it'} holds an iterator, which a trial would use up"
        for hooks in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks):
            if any(_is_of_script(hook) and not (hooks is m._forward_hooks and _only_requires_gradients(hook)) for hook in hooks.values()):
                return f"a hook of the script looks into {name or 'it'}"
        for key, p in m._parameters.items():
            if p is not None and any(_is_of_script(hook) for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks) for hook in (hooks or {}).values()):
                return f"a hook of the script gets the gradient of {f'{name}.{key}'.lstrip('.')}"
    return ""


def _is_of_script(hook):
    """PyTorch's own, of weight_norm and of lazy modules, look at weights and shapes."""
    return not (tensors.is_castors(hook) or (getattr(hook, "__module__", None) or "").startswith("torch.nn."))


def makes_require_gradients(module):
    """Whether a hook makes outputs of its layers require gradients."""
    return any(_only_requires_gradients(hook) for m in module.modules() for hook in m._forward_hooks.values())


def _only_requires_gradients(hook):
    """Whether all that a function can do is to make tensors that it gets require gradients, as transformers does for checkpoints: it knows no other name."""
    code = getattr(hook, "__code__", None)
    return code is not None and code.co_names == ("requires_grad_",) and not code.co_freevars and not hook.__defaults__ and not hook.__kwdefaults__


def again_within(function, inside, within):
    """`function`, which a checkpoint calls now and once more in the backward pass: there, where it is not inside() of a call, it runs within()."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        if inside():
            return function(*args, **kwargs)
        with within():
            return function(*args, **kwargs)

    return run


def install_checkpoint(recomputed, in_stages):
    """recomputed(function): what a checkpoint is to call in the place of a function. in_stages(): this is called by a stage of a model."""

    def wrap(stock):
        @functools.wraps(stock)
        def checkpoint(function, *args, use_reentrant=None, **kwargs):
            if use_reentrant is not False and in_stages() and stages.gives_as_much_without_reentry(args):
                use_reentrant = False
            return stock(recomputed(function), *args, use_reentrant=use_reentrant, **kwargs)

        return traced.unless_compiled(checkpoint, stock, in_graphs=True)

    patching.replace("torch.utils.checkpoint.checkpoint", wrap)


def install_asking(division):
    """division(): of the call that runs, if there is one: that gradients inside of it were asked for is noted there, as `hooked`."""

    def wrap(stock):
        @functools.wraps(stock)
        def ask(self, *args, **kwargs):
            of = division()
            if of is not None:
                of.hooked = True
            return stock(self, *args, **kwargs)

        return traced.unless_compiled(ask, stock, in_graphs=True)

    for name in ("register_hook", "retain_grad"):
        patching.replace(f"torch.Tensor.{name}", wrap)


def install(job):
    def wrap(stock):
        def call(self, *args, **kwargs):
            return job.boundary.call(stock, self, args, kwargs)

        return traced.unless_compiled(call, stock, in_graphs=True)

    def note_step(begins, *args):
        job.boundary.stepping = begins

    register_optimizer_step_pre_hook(functools.partial(note_step, True))
    register_optimizer_step_post_hook(functools.partial(note_step, False))
    patching.replace("torch.nn.Module.__call__", wrap)
    install_checkpoint(job.boundary.recomputed, lambda: job.boundary.division is not None and job.layout.stages > 1)
    install_asking(lambda: job.boundary.division)
