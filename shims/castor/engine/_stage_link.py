"""What goes from a part of a pipelined model to the next one: any nesting of tensors, in forward; the gradients of those that need
some, in backward.

The nesting and the shapes are sent ahead of a batch's first microbatch; its other microbatches must have the same. Sends are
asynchronous. While a receive is waited for the next one is posted as well, so that transfers go on while the stage computes."""
import pickle
import traceback

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten, tree_unflatten


class _Layout:
    """A nesting with its tensors' shapes."""

    def __init__(self, tree, leaves):
        self.tree, self.leaves = tree, leaves  # of each leaf: (shape, dtype, needs a gradient), or (None, the value itself)

    @classmethod
    def of(cls, value):
        leaves, tree = tree_flatten(value)
        return cls(tree, [(tuple(x.shape), x.dtype, x.requires_grad) if isinstance(x, torch.Tensor) else (None, x) for x in leaves])

    def __eq__(self, other):
        return self.tree == other.tree and self.leaves == other.leaves


class StageLink:
    """The ends of one part of the model, for one batch of `microbatches`.

    part: its number, and of how many. before, after: the ranks of the parts next to it; None: there is none.
    groups: PyTorch's, of what goes forward and backward; None: the default one.
    tags: of messages to the next part, from the one before, and the same in backward; alike on both sides.
    shape, dtype: of what arrives and leaves, where shapes are given; None: they are exchanged.
    parallel: (PyTorch's group, its size, this rank's place) of the tensor-parallel ranks, each of which sends its part of a tensor; None:
    each sends all."""

    def __init__(self, part, before, after, microbatches, device, shape=None, dtype=torch.float32, parallel=None, tags=(0, 0, 0, 0), groups=(None, None)):
        self._part, self._before, self._after = part, before, after
        self._microbatches, self._device, self._parallel, self._tags = microbatches, device, parallel, tags
        self._forward, self._backward = groups
        given = None if shape is None else _Layout(tree_flatten(torch.empty(0))[1], [(tuple(shape), dtype, True)])
        self._incoming = self._outgoing = given
        self._given = given is not None
        self._arriving, self._returning = [], []  # posted receives of activations and of gradients, oldest first
        self._received = self._returned = 0
        self._sending = []  # (work, tensor): a tensor lives until it was sent

    def _wait(self, work, rank, what):
        try:
            work.wait()
        except RuntimeError as error:
            raise RuntimeError(f"castor: rank {rank}, a neighbour in the pipeline, has ended or cannot be reached, and stage {self._part} waits for {what}; "
                               f"see its own messages ({error})") from None

    def _send(self, tensor, rank, tag, group):
        """Asynchronously. A tensor is sent in parts if it divides."""
        tensor = tensor.detach().contiguous()
        if self._parallel and tensor.numel() % self._parallel[1] == 0:
            tensor = tensor.view(-1).chunk(self._parallel[1])[self._parallel[2]].contiguous()
        self._send_whole(tensor, rank, tag, group)
        self._sending = [(work, kept) for work, kept in self._sending if not work.is_completed()]

    def _send_whole(self, tensor, rank, tag, group):
        if tensor.numel():
            self._sending.append((dist.isend(tensor, rank, group, tag), tensor))

    def _post(self, layouts, rank, tag, group):
        """Receives for tensors of these (shape, dtype): [(work, buffer, whole tensor)]."""
        posted = []
        for shape, dtype in layouts:
            whole = torch.empty(shape, dtype=dtype, device=self._device)
            split = self._parallel and whole.numel() % self._parallel[1] == 0
            buffer = whole.new_empty(whole.numel() // self._parallel[1]) if split else whole
            posted.append((dist.irecv(buffer, rank, group, tag) if buffer.numel() else None, buffer, whole))
        return posted

    def _take(self, posted, rank, what):
        for work, buffer, whole in posted:
            if work is not None:
                self._wait(work, rank, what)
            if buffer is not whole:
                dist.all_gather(list(whole.view(-1).chunk(self._parallel[1])), buffer, group=self._parallel[0])
        return [whole for _, _, whole in posted]

    # ---- forward

    def send_forward(self, value, microbatch):
        """To the part after this one."""
        layout, tag = _Layout.of(value), self._tags[0]
        if microbatch == 0 and not self._given:
            self._outgoing = layout
            nesting = tree_unflatten(range(len(layout.leaves)), layout.tree)
            packed = torch.frombuffer(bytearray(pickle.dumps((self._microbatches, nesting, layout.leaves))), dtype=torch.uint8).to(self._device)
            self._send_whole(torch.tensor([packed.numel()], device=self._device), self._after, tag, self._forward)
            self._send_whole(packed, self._after, tag, self._forward)
        elif [leaf[:2] for leaf in layout.leaves] != [leaf[:2] for leaf in self._outgoing.leaves]:
            raise ValueError(f"castor: stage {self._part} gives {_shown(layout)} for microbatch {microbatch}, and not {_shown(self._outgoing)}, which "
                             f"{'tensor_shape says' if self._given else 'it gave for the first one'}: all microbatches must be alike")
        for leaf in tree_flatten(value)[0]:
            if isinstance(leaf, torch.Tensor):
                self._send(leaf, self._after, tag, self._forward)

    def _learn(self):
        """The layout that the part before sends."""
        rank, tag = self._before, self._tags[1]
        size = torch.empty(1, dtype=torch.int64, device=self._device)
        self._wait(dist.irecv(size, rank, self._forward, tag), rank, "its output")
        packed = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        self._wait(dist.irecv(packed, rank, self._forward, tag), rank, "its output")
        microbatches, nesting, leaves = pickle.loads(bytes(packed.tolist()))
        if microbatches != self._microbatches:
            raise ValueError(f"castor: rank {rank} has {microbatches} microbatches and stage {self._part} has {self._microbatches}: pass the same "
                             "num_microbatches on all ranks")
        self._incoming = _Layout(tree_flatten(nesting)[1], leaves)

    def receive_forward(self):
        """The next microbatch from the part before. Its tensors need gradients where the sender's do."""
        if self._received == 0 and not self._given:
            self._learn()
        tensors = [leaf[:2] for leaf in self._incoming.leaves if leaf[0] is not None]
        while len(self._arriving) < min(2, self._microbatches - self._received):
            self._arriving.append(self._post(tensors, self._before, self._tags[1], self._forward))
        arrived = iter(self._take(self._arriving.pop(0), self._before, "its output"))
        self._received += 1
        leaves = [next(arrived).requires_grad_(leaf[2] and torch.is_grad_enabled()) if leaf[0] is not None else leaf[1] for leaf in self._incoming.leaves]
        return tree_unflatten(leaves, self._incoming.tree)

    # ---- backward

    def send_backward(self, gradients):
        """Those of what has arrived from the part before, in the order of its tensors that need some."""
        for gradient in gradients:
            self._send(gradient, self._before, self._tags[2], self._backward)

    def receive_backward(self):
        """The gradients of what was sent to the part after for the oldest microbatch, in the same order."""
        needed = [leaf[:2] for leaf in self._outgoing.leaves if leaf[0] is not None and leaf[2]]
        while len(self._returning) < min(2, self._microbatches - self._returned):
            self._returning.append(self._post(needed, self._after, self._tags[3], self._backward))
        self._returned += 1
        return self._take(self._returning.pop(0), self._after, "its gradient")

    def drop(self, error):
        """Of a batch that failed: nothing is waited for any more, nor kept by the frames of the error, so that a group can be closed."""
        self._arriving, self._returning, self._sending = [], [], []
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename == __file__:
                frame.clear()

    def finish(self):
        """All that was sent has been taken."""
        for work, _ in self._sending:
            try:
                work.wait()
            except RuntimeError as error:
                raise RuntimeError(f"castor: a neighbour in the pipeline has ended before it took what stage {self._part} sent to it; see its own "
                                   f"messages ({error})") from None
        self._sending = []


def _shown(layout):
    return ", ".join(f"{str(leaf[1]).removeprefix('torch.')}{list(leaf[0])}" if leaf[0] is not None else repr(leaf[1]) for leaf in layout.leaves)
