"""What a row of the suite must show: how equal to plain PyTorch, or which refusal."""

import math
from dataclasses import dataclass, replace

from compare import Tolerance

ACCUMULATED = "a batch in three parts is summed in another order"

EXACT = Tolerance("bitwise")
SGD = Tolerance(
    "sgd",
    "sums in another order, updates linear in the gradient",
    loss=1e-5,
    gradient=1e-5,
    parameter=1e-5,
    state=1e-5,
)
ADAPTIVE = Tolerance(
    "adaptive",
    "updates divide by the gradient's own size, so that an element whose gradient is rounding noise moves up to a "
    "learning rate either way",
    loss=1e-4,
    gradient=1e-3,
    parameter=5e-3,
    state=1e-3,
    floor=1e-4,
)
HALF = Tolerance(
    "half",
    "sums in another order, rounded to 8 or 11 bits after every addition",
    loss=2e-2,
    gradient=5e-2,
    parameter=5e-2,
    state=1e-1,
)
ANY = Tolerance(
    "agreement",
    "another run than the single process's by design: only the shape of what is seen is compared, and the ranks with each other",
    loss=math.inf,
    gradient=math.inf,
    parameter=math.inf,
    state=math.inf,
)


@dataclass(frozen=True)
class Expect:
    """What a row must show: a tolerance where the order of sums differs, or a refusal with a message like `refused`."""

    tolerance: Tolerance
    reason: str = ""
    refused: str = ""  # pattern that one line of Castor's must match
    says: str = ""  # pattern that one line of Castor's must match where the run goes on
    says_not: str = ""  # pattern that none may match
    aside: str = ""  # why Castor leaves the synchronization to PyTorch; the result must be equal all the same
    differs: str = ""  # pattern of the difference that is meant to be there, for the `reason`
    exact_at_2: bool = True
    plugin: str = ""  # which the row has in place of gemini; others it has not
    only_ranks: tuple = ()  # numbers of ranks; empty: any
    divided: bool = False  # some calls of the models are divided over the ranks
    in_1f1b: bool = False  # some of them with the backward passes of their microbatches
    one_rank: bool = False  # a script of one process, which Castor leaves one process: the result must be bitwise equal
    repeatable: bool = True  # two plain runs are equal
    arguments: tuple = ()
    under: tuple = ()  # arguments of Castor's runs only
    options: tuple = ()  # Castor's, NAME=VALUE
    stages: tuple = ()  # ("plain" | "castor", arguments) one after the other in the same folder
    ignored: tuple = ()  # files whose bytes hold times or paths
    seconds: int = 15  # that one case may take, at most, on a busy machine


sgd, adaptive, half, agreement = Expect(SGD), Expect(ADAPTIVE), Expect(HALF), Expect(ANY)
accumulated = Expect(SGD, exact_at_2=False, under=("--parts", "3"), options=("CASTOR_ACCUMULATE=3",), reason=ACCUMULATED)


def like(expect, **changes):
    return replace(expect, **changes)


def resumed(*stages):
    """The same script twice in one folder; under Castor where the stage says so."""
    return tuple((who, ()) for who in stages)
