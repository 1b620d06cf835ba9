"""Where ranks meet that torchrun may have started again.

torchrun keeps the store in which they meet, and each node starts its ranks again by itself. So the store may have what ranks of an earlier attempt left there (where they
listened, for instance), and those that start again at once would read it, fail, and use up the attempts; nodes do not count attempts alike either. The ranks therefore
find those first that are there now: each says a word that is new, and rank 0 answers with another one, under which they meet when all have taken it."""
import os
import secrets
import time

from .. import core

_LOOK_S, _LOOKS = 0.02, 50  # so many, before a rank looks whether rank 0 was started again


def possible():
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def meeting(store, rank, world, patience_s):
    """A part of the store that ranks of earlier attempts do not know. All ranks call this together; an error where some do not come so long."""
    from torch.distributed import PrefixStore

    store, until = PrefixStore("castor restarts", store), time.monotonic() + patience_s
    answer = _answer_all(store, world, until) if rank == 0 else _be_answered(store, rank, until)
    if not answer:
        raise core.GroupError(f"castor: after {patience_s:g} s not all {world} ranks have come to the process group that torchrun's variables tell of")
    return PrefixStore(answer, store)


def _answer_all(store, world, until):
    answer, answered, missing = secrets.token_hex(16), {}, set(range(1, world))
    while True:
        for rank in range(1, world):
            word = store.get(f"word {rank}").decode() if store.check([f"word {rank}"]) else None
            if word != answered.get(rank):  # another one: it was started again meanwhile
                answered[rank] = word
                missing.add(rank)
                store.set(f"answer to {word}", answer)
            if word is not None and rank in missing and store.check([f"taken by {word} {answer}"]):
                missing.discard(rank)
        if not missing:
            store.set(f"all have {answer}", "")
            return answer
        if time.monotonic() > until:
            return ""
        time.sleep(_LOOK_S)


def _be_answered(store, rank, until):
    word = secrets.token_hex(16)
    store.set(f"word {rank}", word)
    while time.monotonic() < until:
        if _comes(store, f"answer to {word}"):
            answer = store.get(f"answer to {word}").decode()  # another one, where rank 0 was started again
            store.set(f"taken by {word} {answer}", "")
            if _comes(store, f"all have {answer}"):
                return answer
    return ""


def _comes(store, key):
    for _ in range(_LOOKS):  # PyTorch would print a line for each wait in vain
        if store.check([key]):
            return True
        time.sleep(_LOOK_S)
    return False
