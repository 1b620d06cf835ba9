"""The graph that a backward pass goes through."""


def nodes(outputs, until=()):
    """Each node that can be reached from these tensors, once, in no order; until: but for those that have made these, and what is behind them."""
    reached, seen = [output.grad_fn for output in outputs], {t.grad_fn for t in until}
    while reached:
        node = reached.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            reached += [parent for parent, _ in node.next_functions]


def leaves_but(outputs, known):
    """The tensors that a backward pass from these, as far as the known ones, gives gradients, beside these."""
    ids = {id(t) for t in known}
    return [node.variable for node in nodes(outputs, known) if type(node).__name__ == "AccumulateGrad" and id(node.variable) not in ids]
