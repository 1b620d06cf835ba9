"""Places in the store of optimizer states, and of other data of a parameter. The owner writes them, every rank sees them."""
from ctypes import byref, c_void_p

import torch

from .. import core
from . import store, tensors


class Place:
    """The place of the state of a spec (offset, shape, stride, dtype).

    `tensor` is the value in optimizer.state. `view` and `alias` are set if the state has whole pages (`paged`). `handle`: the
    tensor of the store that it belongs to."""

    def __init__(self, spec, handle=None):
        self.spec, self.handle = spec, handle
        offset, shape, stride, dtype = spec
        self.like = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        self.nbytes = self.like.numel() * self.like.element_size()
        self.paged = bool(core.is_paged(self.nbytes))
        self.tensor = self.view = self.alias = None
        self.view_address = self.alias_address = None

    def shows(self, value):
        """Whether `value` is this place's tensor, and lies where the store has it."""
        if value is not self.tensor or not sharable(value) or layout_of(value) != self.spec[1:]:
            return False
        return not self.paged or value.data_ptr() == self.view_address

    def let_go(self, group, entry):
        """On this rank the state has other memory now. A tensor of this place that the script still holds keeps its values,
        whatever owners write here next."""
        self.tensor = None
        if self.paged and tensors.storage_users(self.view) > 1:
            core.view_keep(self.view_address, self.nbytes)
            self.make_view(group, entry)

    def make_view(self, group, entry):
        address = c_void_p()
        core.state_view(entry.handle, self.spec[0], max(self.nbytes, 1), byref(address))
        self.view_address = address.value
        self.view = tensors.tensor_at(address.value, self.like, _at_free(core.state_unview, group, address.value, self.nbytes))


def _at_free(function, group, *arguments):
    def free():
        if store.active():
            function(group.handle, *arguments)

    return free


def layout_of(t):
    return (tuple(t.shape), tuple(t.stride()), t.dtype)


def sharable(value):
    return (
        type(value) is torch.Tensor and value.layout is torch.strided and value.device.type == "cpu"
        and value.numel() > 0 and not value.requires_grad and tensors.is_dense(value)
    )
