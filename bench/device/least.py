"""What a step must at least carry over a device's link, from sizes alone; and Belady's copies of a sequence of uses."""


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


def operands(parameters):
    """Of matrix products, in the order of the forward pass, those that lie on the host: {name: bytes}."""
    return {p["name"]: p["bytes"] for p in parameters if p["param"] and p["dimensions"] == 2 and not p["name"].startswith(("tokens", "places"))}


def step(parameters, region, micro_steps, evaluates=False):
    """Bytes of one step by what they are for. Of a parameter whose gradient is on the host the gradient leaves once; what lies on
    the host comes for the optimizer's step, and leaves if it has changed."""
    sizes = operands(parameters)
    forward = list(sizes)
    uses = (forward if evaluates else forward + forward[::-1]) * micro_steps
    found = {"uses": len(uses), "operands_each_use": sum(sizes[key] for key in uses)}
    if evaluates:  # nothing is written: what the last pass has left is there
        found["operands_in"] = (belady_bytes(uses * 9, sizes, region) - belady_bytes(uses, sizes, region)) // 8
    else:
        found["operands_in"] = belady_bytes(uses, sizes, region)
        param = sum(p["bytes"] for p in parameters if p["param"])
        grad = sum(p["bytes"] for p in parameters if p["grad"])
        states = sum(p["bytes"] * sum(p["states"]) for p in parameters)
        found.update(parts_in=param + grad + states, parts_out=param + states, gradients_out=grad)
    found["in"] = found["operands_in"] + found.get("parts_in", 0)
    found["out"] = found.get("parts_out", 0) + found.get("gradients_out", 0)
    return found
