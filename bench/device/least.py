"""What a step must at least carry over a device's link, from sizes alone; Belady's copies of a sequence of uses; and how long the device
waits for them if they are made as early as Belady's choice gives room."""
import bisect


def belady_bytes(uses, sizes, capacity):
    """Bytes of the copies that a cache of that capacity makes for `uses`, keys of `sizes`: it begins empty, holds what is used, and
    gives up what is needed last. It may cut what it holds to pieces, which slots cannot, so nobody does with less by more than a
    part of one copy."""
    following, next_use = [None] * len(uses), {}
    for at in range(len(uses) - 1, -1, -1):
        following[at] = next_use.get(uses[at], len(uses))
        next_use[uses[at]] = at
    held, needed, copied = {}, {}, 0  # bytes that are there, and when they are needed again
    for at, key in enumerate(uses):
        size = sizes[key]
        missing = size - held.get(key, 0)
        if size > capacity:
            copied += size  # it is read where it is
            continue
        copied += missing
        held[key], needed[key] = size, following[at]
        over = sum(held.values()) - capacity
        for victim in sorted(held, key=needed.get, reverse=True):
            if over <= 0:
                break
            if victim != key:
                gone = min(over, held[victim])
                held[victim] -= gone
                over -= gone
    return copied


def belady_seconds(uses, sizes, capacity, gaps, rate):
    """How long the device waits for copies of `uses`: each comes `gaps` (seconds of compute) after the one before, from slots that begin
    empty, over a link of `rate` bytes per second, which carries one copy at a time. Copies are made in the order of the uses, each as early
    as there is room: what is needed last gives its room, if that is later than what comes. The sequence is known; a use takes no time."""
    places = {}
    for at, key in enumerate(uses):
        places.setdefault(key, []).append(at)

    def next_use(key, at):
        found = places[key]
        number = bisect.bisect_left(found, at)
        return found[number] if number < len(found) else len(uses)

    arrives, room, link, now, waited = {}, capacity, 0.0, 0.0, 0.0
    for at, key in enumerate(uses):
        ready = now + gaps[at]
        while True:  # what the link does until this use
            begin, wanted = max(link, now), next((n for n in range(at, len(uses)) if uses[n] not in arrives and sizes[uses[n]] <= capacity), None)
            if wanted is None or wanted > at and begin >= ready:
                break
            coming = uses[wanted]
            victims, freed = sorted(arrives, key=lambda held: next_use(held, at), reverse=True), room
            gone = []
            for victim in victims:
                if freed >= sizes[coming] or next_use(victim, at) <= wanted:
                    break
                gone.append(victim)
                freed += sizes[victim]
            if freed < sizes[coming]:
                break
            for victim in gone:
                del arrives[victim]
            room = freed - sizes[coming]
            arrives[coming] = link = begin + sizes[coming] / rate
        if key in arrives:
            now = max(ready, arrives[key])
        else:  # larger than all slots: it is read over the link
            now = max(ready, link) + sizes[key] / rate
        waited += now - ready
    return waited


def operands(parameters):
    """Of matrix products, in the order of the forward pass, those that lie on the host: {name: bytes}."""
    return {p["name"]: p["bytes"] for p in parameters if p["param"] and p["dimensions"] == 2 and not p["name"].startswith(("tokens", "places"))}


def waits(parameters, region, moments, rate):
    """(seconds that the device waited, by Belady's choice, of compute) in the passes of a step; moments: (parameter, seconds, seconds waited so
    far) of each use, and of the begin and the end."""
    sizes = operands(parameters)
    (_, begin, waited), (_, end, waited_at_end) = moments[0], moments[-1]
    uses, gaps, now = [], [], begin - waited  # time without waits
    for name, seconds, so_far in moments:
        if name in sizes:
            uses.append(name)
            gaps.append(seconds - so_far - now)
            now = seconds - so_far
    return waited_at_end - waited, belady_seconds(uses, sizes, region, gaps, rate), end - begin - (waited_at_end - waited)


def step(parameters, region, micro_steps, evaluates=False, on_host=False):
    """Bytes of one step by what they are for. Of a parameter whose gradient is on the host the gradient leaves once; what lies on
    the host comes for the optimizer's step, and leaves if it has changed. on_host: the processors step what they can, and parameters that
    are on the device, but not their gradients and states, leave and come; the gradients of each micro-step leave."""
    sizes = operands(parameters)
    forward = list(sizes)
    uses = (forward if evaluates else forward + forward[::-1]) * micro_steps
    found = {"uses": len(uses), "operands_each_use": sum(sizes[key] for key in uses)}
    if evaluates:  # nothing is written: what the last pass has left is there
        found["operands_in"] = (belady_bytes(uses * 9, sizes, region) - belady_bytes(uses, sizes, region)) // 8
    else:
        found["operands_in"] = belady_bytes(uses, sizes, region)
        grad = sum(p["bytes"] for p in parameters if p["grad"]) * (micro_steps if on_host else 1)
        there, rest = [], []
        for p in parameters:
            (there if on_host and p["grad"] and all(p["states"]) else rest).append(p)
        lent = sum(p["bytes"] for p in there if not p["param"])
        goes = sum(p["bytes"] * (p["param"] + sum(p["states"])) for p in rest)
        found.update(parts_in=goes + sum(p["bytes"] for p in rest if p["grad"]) + lent, parts_out=goes + lent, gradients_out=grad)
    found["in"] = found["operands_in"] + found.get("parts_in", 0)
    found["out"] = found.get("parts_out", 0) + found.get("gradients_out", 0)
    return found
