"""torchrun that gives the others time to say what they saw: `torchrun.py ARGUMENTS`, as torchrun's own.

torchrun ends the other workers as soon as it sees that one has failed. Whether they have spoken by then is a matter of chance;
what they say is what is tested.
"""
import time

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

SAY_S = 5  # at most: they end by themselves
close = SubprocessContext.close


def close_later(context, *arguments, **options):
    ended = [handler.proc.poll() for handler in context.subprocess_handlers.values()]
    deadline = time.monotonic() + SAY_S
    while any(ended) and None in ended and time.monotonic() < deadline:
        time.sleep(0.1)
        ended = [handler.proc.poll() for handler in context.subprocess_handlers.values()]
    close(context, *arguments, **options)


SubprocessContext.close = close_later
run.main()
