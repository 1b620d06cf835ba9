"""The graph that a backward pass goes through."""


def nodes(outputs):
    """Each node that can be reached from these tensors, once, in no order."""
    reached, seen = [output.grad_fn for output in outputs], set()
    while reached:
        node = reached.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            reached += [parent for parent, _ in node.next_functions]
