"""The audit of split batches: do the parts of a batch give the same result as the whole batch?

No list of losses can answer this for every script. So for the first batches (CASTOR_AUDIT) rank 0 forks when a batch is
handed out. The fork gets the whole batch and runs the script's own code on it. The loss and a sketch of each parameter's
gradient in each backward() there are compared with those of the ranks together (audit.c decides). The ranks wait for this at
the end of their backward, so a difference stops them before the step. The fork writes nothing, is no child that the script
could wait for, and ends when the script asks for the next batch."""
import atexit
import ctypes
import mmap
import os
import resource
import signal
import struct
import sys
import threading
import time
import warnings

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .. import core, patching
from ..backward import accumulation
from ..common import graph, tensors
from ..process import compiler, events, strays
from . import loaders, randomness, streams

WAIT_SHARE = 0.8  # of CASTOR_TIMEOUT, for which other ranks wait for rank 0: the longest that rank 0 waits for the fork
WAIT_SECONDS, WAIT_TIMES = 30.0, 20.0  # ... else that long, and so many times the ranks' time for all parts
LOOK_SECONDS = 0.001
FREE_BYTES = 256 << 20  # of memory: the fork ends before less is free
OOM_SCORE = "1000"  # of a fork: the system ends it first if memory is short
BACKWARDS = 16  # of one batch that are compared, at most
FORM_NODES, FORMS = 24, 8  # nodes of a loss's graph that are its form; forms, after which none is new
WHY_LETTERS = 1000  # of what ended a fork: a path has room
ENDS, FORK, RECORD = struct.Struct("2q"), struct.Struct(f"2q{4 * WHY_LETTERS}s"), struct.Struct("2d")  # RECORD: (loss, in 16 bits)
RUNNING, DONE, FAILED = range(3)
SKETCH_BYTES = 8 * core.SKETCH_BUCKETS


class _Board:
    """Shared memory that the fork writes and rank 0 reads. It needs no descriptor. Each field has one writer."""

    def __init__(self, entries):
        self.record_bytes = RECORD.size + entries * SKETCH_BYTES
        self.memory = mmap.mmap(-1, ENDS.size + FORK.size + BACKWARDS * self.record_bytes)

    @property
    def ends(self):
        """(the fork's process id, whether rank 0 wants it to end)"""
        return ENDS.unpack_from(self.memory)

    @ends.setter
    def ends(self, values):
        ENDS.pack_into(self.memory, 0, *values)

    @property
    def told(self):
        """(number of records, state, why), written by the fork."""
        count, state, why = FORK.unpack_from(self.memory, ENDS.size)
        return count, state, why.rstrip(b"\0").decode(errors="replace")

    @told.setter
    def told(self, values):
        count, state, why = values
        FORK.pack_into(self.memory, ENDS.size, count, state, core.shortened(why, WHY_LETTERS).encode(errors="replace"))

    def put(self, loss, half, sketches):
        count, *rest = self.told
        if count < BACKWARDS:
            at = ENDS.size + FORK.size + count * self.record_bytes
            RECORD.pack_into(self.memory, at, loss, half)
            self.memory[at + RECORD.size:at + self.record_bytes] = bytes(sketches)
            self.told = (count + 1, *rest)

    def take(self, number):
        at = ENDS.size + FORK.size + number * self.record_bytes
        sketches = (ctypes.c_double * ((self.record_bytes - RECORD.size) // 8)).from_buffer_copy(self.memory, at + RECORD.size)
        return (*RECORD.unpack_from(self.memory, at), sketches)


class Gradients:
    """Sketches of what one backward adds to the entries' gradients: those after it less those before."""

    def __init__(self, entries, weight):
        self.entries, self.weight = entries, weight
        self.sketches = (ctypes.c_double * (len(entries) * core.SKETCH_BUCKETS))()
        self._add(-weight)

    def ended(self):
        self._add(self.weight)
        return self.sketches

    def _add(self, weight):
        for number, entry in enumerate(self.entries):
            p = entry.parameter()
            if p is None or p.grad is None or p.grad.layout is not torch.strided or p.grad.dtype not in tensors.DTYPES:
                continue
            grad = p.grad.detach().contiguous()
            core.sketch_add(tensors.DTYPES[grad.dtype], grad.data_ptr(), grad.numel(), weight,
                            ctypes.c_double.from_buffer(self.sketches, number * SKETCH_BYTES))


def _loss_of(outputs):
    return outputs[0].item() if len(outputs) == 1 and outputs[0].numel() == 1 else float("nan")


class Auditor:
    """A rank's side of the audit. On rank 0 it makes the forks; in a fork it reports."""

    def __init__(self, job):
        self.job = job
        self.first, self.every = core.options.audit, core.options.audit_every
        self.left, self.delivered = self.first, 0
        self.board = None  # the reports of the running fork
        self.compared = 0  # backward passes since the fork
        self.seen_backwards = -1  # how many there were at the last batch that was looked at (boundary_reached)
        self.in_fork = False
        self.began = 0.0  # when the fork was made
        self.entries, self.gradients = [], None
        self.forms = set()  # of the losses so far
        self.found_equal = False  # in some batch

    # ---- where a batch is handed out

    @property
    def due(self):
        """The batch that is drawn now is one to audit."""
        return not self.in_fork and not self.job.rank and (
            self.left > 0 or self.every > 0 and (self.delivered + 1) % self.every == 0)

    def batch_handed_out(self, split, local, whole_batch):
        """Rank 0 hands out its local batch. Returns that one, or in a fork the whole batch. `whole_batch()` makes it; None:
        it cannot be made here."""
        if self.board is not None and not self.compared:  # another batch for the same backward: the fork draws its own
            split.drawn_ahead = True  # ... or for a later one, while the script still holds this one
            return local
        self.stop()
        due = self.due
        self.delivered += 1
        if due and whole_batch is not None and not split.drawn_ahead and self._able() and self._fork():
            try:
                return whole_batch()
            except BaseException as error:
                self._fail(error)
        return local

    def boundary_reached(self):
        """The outermost call of a model begins, which the ranks divide. True in a fork, which computes it whole."""
        if self.seen_backwards == self.job.backwards or self.job.boundary.stepping or self.job.boundary.pending:
            return False
        self.seen_backwards = self.job.backwards
        self.stop()
        due = self.due
        self.delivered += 1
        shared = due and self.job.boundary.in_shared_memory()
        if shared:
            return self._leave_out(f"{shared} is in shared memory, where a second process would change it, too")
        return due and self._able() and self._fork()

    def wanted(self):
        """On all ranks, before a backward: whether rank 0's fork computes it, too."""
        wanted = bool(self.job.group.gather([float(self.running)], "whether a batch is audited")[0][0])
        self.backward_begun()
        return wanted

    def _able(self):
        job = self.job
        if job.synchronizer is None or not job.synchronizer.count:
            return False
        if threading.current_thread() is not threading.main_thread():
            return self._leave_out("batches are drawn on another thread than the main one")
        if torch.cuda.is_initialized():
            return self._leave_out("a process that uses a device cannot be copied", 3)  # the trials compare what models return
        model_bytes = sum(entry.bytes for entry in job.synchronizer.entries)
        if core.places(model_bytes):
            return self._leave_out("under a memory budget there is no room for a second copy")
        if core.options.precision != "fp32":
            return self._leave_out("CASTOR_PRECISION computes with other values than the script alone")
        arena = core.ArenaInfo()
        core.arena_get(arena)
        # For the whole batch: rank 0's memory for its part, times the ranks; copies of parameters, gradients and states as they
        # are now; and as the fork writes them.
        needed = job.world * arena.live_peak_bytes + 6 * model_bytes
        if core.memory_available() < needed + FREE_BYTES:
            return self._leave_out(f"there may be too little free memory ({(needed + FREE_BYTES) >> 20} MiB wanted)")
        return True

    def _leave_out(self, why, level=2):
        if self.found_equal:  # some were compared, though not all that were wanted
            return False
        self.job.say(f"split batches are not compared with whole ones (CASTOR_AUDIT): {why}. What the loss is made of is checked all "
                     "the same", level)
        return False

    def _fork(self):
        """True in the fork."""
        self.entries = list(self.job.synchronizer.entries)
        self.board, self.compared, self.began = _Board(len(self.entries)), 0, time.monotonic()
        states = streams.states()
        # Python warns of threads: the fork does without them. catch_warnings() would repeat the script's own warnings.
        ignored = ("ignore", None, DeprecationWarning, None, 0)
        warnings.filters.insert(0, ignored)
        try:
            parent = os.getpid()
            between = os.fork()
        finally:
            warnings.filters.remove(ignored)
        if between:
            os.waitpid(between, 0)
            return False
        try:
            pid = os.fork()  # so that the fork is no child that the script could wait for
            if pid:
                self.board.ends = (pid, 0)
                os._exit(0)
            self._become_fork(parent, states)
        except BaseException as error:
            self._fail(error)
        return True

    def _become_fork(self, parent, states):
        """From here on this process runs the script unsplit, and leaves no trace."""
        self.in_fork = True
        # In a folder that castor run removes when the job ends: this process may be killed.
        core.files_divert(os.path.join(core.options.files, f"audit-{os.getpid()}").encode())
        strays.watch_ranks(None)  # it may step: no rank sees it
        self.job.synchronizer = None
        streams.restore(states)  # Python reseeds its generator in a fork
        loaders.PartOfSamples.whole = True
        torch.set_num_threads(1)  # the threads of its pools are the parent's
        if compiler.loaded():
            torch.compiler.set_stance("force_eager")  # the compiler's processes are the parent's, too
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(OOM_SCORE)
        core.event_backward = lambda *args: None
        events.observe_only(self.job)
        if accumulation.active():  # the ranks may not step now
            register_optimizer_step_pre_hook(lambda *args: self._leave(DONE))
        if self.job.boundary.divides:  # the script may draw no more batches, and must not be gone on with
            register_optimizer_step_post_hook(lambda *args: self.step_ended_in_fork())
        # The workers are the parent's.
        patching.replace("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers", lambda _: lambda self: None)
        sys.excepthook = lambda kind, error, trace: self._fail(error)
        atexit.register(self._leave, DONE)  # before the script's own functions at its end
        threading.Thread(target=self._watch, args=(parent,), daemon=True).start()

    def _watch(self, parent):
        """Ends the fork when rank 0 ends, when its time is over, and before it takes the last memory."""
        until = time.monotonic() + self._seconds()
        while _lives(parent) and not self.board.ends[1]:
            if time.monotonic() > until:
                self._leave(FAILED, "it takes too long")
            if core.memory_available() < FREE_BYTES:
                self._leave(FAILED, "there is too little free memory")
            time.sleep(0.05)
        self._leave(FAILED)

    def _fail(self, error):
        self._leave(FAILED, f"{type(error).__name__} in the process that computes them: {error}")

    def _leave(self, state, why=""):
        self.board.told = (self.board.told[0], state, why)
        os._exit(0)

    @staticmethod
    def _seconds():
        return WAIT_SHARE * core.options.timeout

    def give_up_in_fork(self):
        self._leave(DONE)

    def next_batch_in_fork(self):
        """The script asks for a batch. After a backward that is the next batch, which is not this fork's."""
        if self.board.told[0]:
            self._leave(DONE)

    def step_ended_in_fork(self):
        """A step, or the call of a model that would begin another one: all graphs of this one have had their backward."""
        if self.board.told[0] and not self.job.boundary.pending:
            self._leave(DONE)

    def stop(self):
        """Ends the fork: it has done its work."""
        if self.board is None:
            return
        pid, _ = self.board.ends
        self.board.ends = (pid, 1)
        if self.board.told[1] == RUNNING:
            _kill(pid)
        self.board.memory.close()
        self.board = None
        self.left = max(self.left - 1, 0)

    # ---- backward passes

    @property
    def running(self):
        """A fork of this process computes the whole of the batch that the ranks compute in parts."""
        return self.board is not None and not self.in_fork

    def renew(self):
        """Another model, or a loss of another form, is compared too."""
        self.left, self.found_equal = max(self.left, self.first), False

    def form_seen(self, nodes):
        """`nodes`: the graph of a loss; the first ones are its form."""
        form = tuple(type(node).__name__ for node in nodes[:FORM_NODES])
        if form not in self.forms and len(self.forms) < FORMS:
            if self.forms:
                self.renew()
            self.forms.add(form)

    def backward_begun(self):
        if self.in_fork:
            self.gradients = Gradients(self.entries, 1.0)
        elif self.running:
            self.gradients = Gradients(self.entries, float(accumulation.size()))

    def backward_ended_in_fork(self, outputs):
        half = any(type(node).__name__ == "ToCopyBackward0" for node in graph.nodes(outputs)) or any(
            entry.parameter() is not None and entry.parameter().dtype in (torch.float16, torch.bfloat16) for entry in self.entries)
        self.board.put(_loss_of(outputs), half, self.gradients.ended())

    def backward_ended(self, outputs):
        """On all ranks, if rank 0's fork computes this batch: the verdict is the same for all."""
        found = core.Audit(verdict=core.AUDIT_UNKNOWN)
        if self.running:
            found = self._compare(outputs)
        found = core.Audit.from_buffer_copy(self.job.group.broadcast(bytes(found), "the audit of a batch"))
        if found.verdict in (core.AUDIT_DIFFERENT, core.AUDIT_SUM):
            self._refuse(found)

    def _compare(self, outputs):
        split, found = self.gradients.ended(), core.Audit(verdict=core.AUDIT_UNKNOWN)
        loose = randomness.drawn_loosely()
        if not self._wait():
            _, state, why = self.board.told
            self.stop()
            if state != DONE:
                self._leave_out(why or "the process that computes whole batches was ended", 1)
            return found
        whole_loss, half, whole = self.board.take(self.compared)
        self.compared += 1
        found.whole_loss, found.split_loss, found.ranks = whole_loss, _loss_of(outputs), self.job.world
        found.rounding = core.AUDIT_LOOSE if loose else core.AUDIT_HALF if half else core.AUDIT_SINGLE
        core.audit_compare(whole, split, len(self.entries), found)
        if found.verdict == core.AUDIT_EQUAL:
            self.found_equal = True
            core.event_audit(found.difference)
        if loose:
            self.job.say("the audit of split batches is loose: random numbers are drawn inside the step that belong to no sample "
                         "whose place is known")
        return found

    def _wait(self):
        took = time.monotonic() - self.began
        until = time.monotonic() + min(self._seconds(), WAIT_SECONDS + WAIT_TIMES * self.job.world * took)
        while True:
            lives = _lives(self.board.ends[0])
            count, state, _ = self.board.told
            if count > self.compared:
                return True
            if not lives or state != RUNNING or time.monotonic() > until:
                return False
            time.sleep(LOOK_SECONDS)

    def _refuse(self, found):
        if found.verdict == core.AUDIT_SUM:
            raise core.GroupError(f"castor: the loss is a sum over the batch's samples ({found.whole_loss:.5g}), and was taken for a mean "
                                  f"({found.split_loss:.5g} on {self.job.world} ranks): set CASTOR_LOSS=sum")
        entries = self.job.synchronizer.entries
        p = entries[found.worst].parameter() if found.worst < len(entries) else None
        advice = "Run this script on one rank" if self.job.boundary.divides else "Leave CASTOR_BATCH=loader out"
        where = "" if p is None else f", most for shape {tuple(p.shape)}"
        raise core.GroupError(
            f"castor: this batch cannot be split: whole, its loss is {found.whole_loss:.5g} and its gradients' norm {found.whole_norm:.4g}; "
            f"the parts of {self.job.world} ranks have {found.split_loss:.5g} and {found.split_norm:.4g} (they differ by {found.difference:.2g}"
            f"{where}). {advice}, say by CASTOR_LOSS what the loss is, or accept it by CASTOR_AUDIT=0")


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pid > 0


def _kill(pid):
    """At once, if the system can tell that the id is still that of the fork. Else the fork ends by itself."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        with open(f"/proc/{pid}/oom_score_adj") as file:
            if file.read().strip() == OOM_SCORE:
                signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        pass  # it has ended
    finally:
        os.close(process)
