"""Microbatches of a replica's rows, which a model's call computes one after another where it is in stages (stages.py), and what is made of their results."""
import torch

from . import losses, results, rows

_FAR = 1e-9  # of the largest weight: two are not the same


class Microbatches:
    """parts: of the division, a microbatch each; places: of results, where their rows are, as form.results (trial.py) has them. loss: where the loss is whose gradients are made within the call (one_f_one_b.py); None: they are made later."""

    def __init__(self, of, division, form, count, loss=None):
        self._of, self._division, self._form, self.loss = of, division, form, loss
        count = min(count, division.size)
        self.parts = [division.part(number, count) for number in range(count)]
        self.places = dict(form.results)
        self._measures = {}  # (path, number): of losses whose graphs are gone
        self._weights, self._reference = {}, None  # number: the weight of its loss, beside that of the first one that counts anything
        self._counts_nothing = False  # none of them does

    def rows_of(self, arguments, part):
        """(args, kwargs) with the rows of a part of this replica's rows."""

        def rows_in(leaf, path):
            dimension = self._form.arguments.get(path)
            if dimension is None or results.is_of_model(leaf):
                return leaf
            return leaf.narrow(dimension, part.at, part.size) if isinstance(leaf, torch.Tensor) else leaf[part.at:part.at + part.size]

        return rows.mapped(arguments, rows_in, "", rows.is_column)

    def joined(self, of_each):
        """The results of a replica's rows, made of those of each part."""
        every = [dict((path, leaf) for leaf, path in rows.leaves(result)) for result in of_each]
        if any(list(one) != list(every[0]) for one in every):
            raise rows.Apart("its microbatches have results of different forms")

        def whole_of(leaf, path):
            leaves = [one[path] for one in every]
            place = self.places.setdefault(path, results.place_of(leaf, self.parts[0])) if isinstance(leaf, torch.Tensor) else None
            if place == results.LOSS:
                self._division.sums[path] = sum(loss.item() for loss in leaves)
                shares = self._shares_of(path, leaves)
                return sum(share * loss for share, loss in zip(shares, leaves) if share)
            if place is not None:
                dimension, each = place
                if any(one.dim() <= dimension or one.shape[dimension] != part.size * each for one, part in zip(leaves, self.parts)):
                    raise rows.Apart(f"returns another number of rows{path and f' (result{path})'} than it gets")
                return torch.cat(leaves, dimension) if len(leaves) > 1 else leaf
            if len({results.digest(one) for one in leaves}) > 1:
                raise rows.Apart(f"returns numbers{path and f' (result{path})'} that are made of the rows of a microbatch")
            return leaf

        return rows.mapped(of_each[0], whole_of)

    def _shares_of(self, path, leaves):
        """Of the loss of each part in that of all."""
        if path in self._form.sums:
            return [1.0] * len(leaves)
        measures = [measure for number, loss in enumerate(leaves) for measure in self._measures.get((path, number)) or self._of.measures_of([loss])]
        self._division.measures[path] = losses.added(measures)
        return losses.shares([part.size / self._division.size for part in self.parts], [m.row() for m in measures] or [[] for _ in self.parts])

    # ---- backward passes within the call

    def weigh(self, number, result):
        """The loss of a microbatch, and its weight beside the others'; 0: it counts nothing, and has no gradient."""
        loss = next((leaf for leaf, path in rows.leaves(result) if path == self.loss), None)
        if not isinstance(loss, torch.Tensor) or results.place_of(loss, self.parts[number]) != results.LOSS:
            raise rows.Apart("returns no loss, as it did before")
        weight = 1.0
        if self.loss not in self._form.sums:
            measures = self._measures[self.loss, number] = self._of.measures_of([loss])
            weight = self._weight(number, [m.row() for m in measures])
        self._weights[number] = weight
        return loss, weight

    def _weight(self, number, row):
        counts_nothing = any(measure.counts_nothing for measure in self._measures[self.loss, number])
        if self._reference is None:
            if counts_nothing and number < len(self.parts) - 1:
                return 0.0
            self._reference, self._counts_nothing = (number, row), counts_nothing
            return 1.0
        of, row_of = self._reference
        sizes = [self.parts[of].size, self.parts[number].size]
        first, own = losses.shares([size / sum(sizes) for size in sizes], [*(row_of or [[]]), *(row or [[]])])
        return own / first

    @property
    def guess(self):
        """What the loss of weight 1 may be multiplied with in the whole loss."""
        return 1.0 if self.loss in self._form.sums else self.parts[0].size / self._division.size

    @property
    def factor(self):
        """What the losses of all parts, times their weights, are to be multiplied with for the sum to be the whole loss."""
        shares = self._shares_of(self.loss, self.parts)
        if self._counts_nothing:  # shares of nothing: what the gradient of such a loss is, zeros or no numbers, the last one's is
            return self.guess
        factor = max(shares) / max(self._weights.values())
        if any(abs(share - factor * self._weights[number]) > _FAR * max(shares) for number, share in enumerate(shares)):
            raise rows.Apart("returns a loss whose parts weigh otherwise beside all others than beside one")
        return factor
