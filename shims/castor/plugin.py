"""What a plugin with an engine replaces in PyTorch, before the script's first line runs."""
import os

from . import accumulation, clipping, compiler, core, events, failures, leaving, optimizers, precision, reducer, remote, single


def install():
    compiler.install()
    accumulation.install()
    rank, world = (int(core.option_text(name)) for name in ("CASTOR_RANK", "CASTOR_WORLD_SIZE"))
    # Processes that this one starts (DataLoader workers, tools) inherit the environment, and are not ranks.
    is_rank = rank >= 0 and int(core.option_text("CASTOR_RANK_PROCESS")) in (0, os.getpid())
    os.environ["CASTOR_RANK_PROCESS"] = str(os.getpid())
    if world > 1:
        single.refuse_process_groups(world, is_rank)
    job = single.install(rank, world, core.option_text("CASTOR_JOB")) if is_rank and world > 1 else None
    observers = [] if job is None else [job]
    if accumulation.active():  # after the job, which says whether this backward is synchronized
        observers.append(accumulation.Observer())
    events.install(*observers)
    precision.install()
    reducer.install()
    optimizers.install(job)
    clipping.install(job)
    if core.plugin_shards():
        remote.install()
    failures.install(job)
    leaving.install()
