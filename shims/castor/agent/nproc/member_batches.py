"""With CASTOR_MICROBATCHES the batch of a member (members.py) passes the stages as several microbatches of its rows, each with the numbers that its rank draws for
all of it. Results are joined as those of a single-process script's microbatches are."""
import dataclasses
import types

from .. import core
from . import arguments, arrays, draws, losses, microbatches, results, rows


class _OneRank:
    """What rows.py, results.py and draws.py ask of a job: the batch is one rank's."""

    rank, world, distributed, evaluating, synchronizer = 0, 1, False, False, None
    layout = types.SimpleNamespace(replica=0, replicas=1)

    @property
    def loss(self):
        return core.options.loss


_job = _OneRank()
_results = results.Results(_job)


@dataclasses.dataclass
class Split:
    """How a member's batch of `count` rows is divided, which it tells the others. arguments, sums, results: those of the Form (trial.py) of its call."""

    count: int
    parts: int
    arguments: dict
    sums: set
    results: dict

    @classmethod
    def of(cls, module, given, form, parts):
        """parts: as many as are wanted. Raises Apart where it cannot be divided."""
        count = arguments.rows_in(module, given, form, 0)
        return cls(count, min(parts, count), form.arguments, form.sums, form.results)


class Batch:
    """A member's batch, (args, kwargs). split: None: it is one microbatch, of which no more is known. loss: as in Microbatches."""

    def __init__(self, given, split, loss=None):
        self._given, self.microbatches = given, None
        if split is not None:
            self._division = rows.Division(_job, split.count)
            self.microbatches = microbatches.Microbatches(_results, self._division, split, split.parts, loss)

    @property
    def parts(self):
        """[(the division of a microbatch, None: it is the batch; its args; its kwargs)]"""
        if self.microbatches is None or len(self.microbatches.parts) == 1:
            return [(None, *self._given)]
        return [(part, *self.microbatches.rows_of(self._given, part)) for part in self.microbatches.parts]

    def joined(self, of_each):
        """(the results, the sums of the losses in them, the places of their rows), of the results of each part."""
        if self.microbatches is None:
            return of_each[0], {}, {}
        whole = self.microbatches.joined(of_each)
        if len(of_each) > 1 and any(compares for compares, _ in self._division.measures.values()):
            raise rows.Apart("returns a loss that compares the samples of a batch with each other")
        return whole, self._division.sums, self.microbatches.places


def of_loss(number, path):
    """Where the loss of a member is in the results of all that Batch.joined() has given."""
    return f"[{number}][0]{path}"


def install():
    draws.install(_job)
    arrays.install()
