"""A backward in two passes: gradients of a graph's inputs, then those of all other leaves.

A node from which an input is reached belongs to the first pass. Where it has edges that lead to other leaves alone (a linear layer's to
its weight), it is kept with the gradient that it got, and the second pass runs it again, for these edges alone. What lies between kept
nodes is not run again. That holds where no two kept nodes have such edges to the same; else (a weight that is used twice) the second pass
is the backward of the whole graph, for the leaves."""
import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge


class SplitBackward:
    """Of `outputs` (tensors with graphs) with their gradients (None: of one scalar). The constructor makes the first pass; of_inputs: what
    the inputs, leaves, got; None where they got nothing. finish() makes the second one: it adds the gradients of all other leaves, as
    backward() does."""

    def __init__(self, outputs, gradients, inputs):
        self._roots = [get_gradient_edge(output) for output in outputs]
        self._gradients = [torch.ones_like(output) for output in outputs] if gradients is None else gradients
        ends = {get_gradient_edge(leaf).node for leaf in inputs}
        order = _in_order([edge.node for edge in self._roots])
        first = set(ends)  # nodes of the first pass
        for node in order:
            if any(following in first for following, _ in node.next_functions):
                first.add(node)
        self._leaves = [node.variable for node in order if _is_leaf(node) and node not in ends]
        self._kept = _kept(order, first, self._roots) if self._leaves else []
        self._got = [None] * len(self._kept or ())
        hooks = [node.register_prehook(self._keep(place)) for place, (node, _) in enumerate(self._kept or ())]
        self.of_inputs = torch.autograd.grad(self._roots, inputs, self._gradients, retain_graph=bool(self._leaves), allow_unused=True)
        for hook in hooks:
            hook.remove()
        if self._kept is not None:
            self._roots = self._gradients = None

    def _keep(self, place):
        got = self._got

        def hook(gradients):
            got[place] = gradients

        return hook

    def finish(self):
        if self._kept is None:
            torch.autograd.backward(self._roots, self._gradients, inputs=self._leaves)
        for (node, leaves), got in zip(self._kept or (), self._got):
            there = [(place, gradient) for place, gradient in enumerate(got or ()) if gradient is not None]
            if not there:
                continue  # nothing has reached it
            # In place of what the hooks of its tensors make: what was kept has gone through them.
            hook = node.register_prehook(lambda _, got=got: got)
            torch.autograd.backward([GradientEdge(node, place) for place, _ in there], [gradient for _, gradient in there], inputs=leaves)
            hook.remove()
        self._kept = self._roots = self._gradients = None


def _kept(order, first, roots):
    """[(node, the leaves that it alone leads to)]. None: two lead to the same, or a root is not of the first pass."""
    kept, owner = [], {}
    if any(edge.node not in first for edge in roots):
        return None
    for node in order:
        if node not in first:
            continue
        behind = _in_order([following for following, _ in node.next_functions if following is not None and following not in first])
        if any(owner.setdefault(one, node) is not node for one in behind):
            return None
        if behind:
            kept.append((node, [one.variable for one in behind if _is_leaf(one)]))
    return kept[::-1]  # as backward goes


def splits(outputs):
    """The nodes of the graph may run twice: none is a torch.autograd.Function's, which may do anything."""
    nodes = _in_order([get_gradient_edge(output).node for output in outputs])
    return not any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes)


def _is_leaf(node):
    return node.name() == "torch::autograd::AccumulateGrad"


def _in_order(roots):
    """The nodes that are reached from `roots`, each after those that its edges lead to."""
    order, seen, left = [], set(), [(root, False) for root in roots]
    while left:
        node, done = left.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            left.append((node, True))
            left.extend((following, False) for following, _ in node.next_functions if following is not None and following not in seen)
    return order
