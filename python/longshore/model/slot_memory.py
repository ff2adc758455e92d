"""The memory of slots, and the places in it that autograd keeps instead of parameters' values.

Backward reads a value at its place again, so that it is right even if other blocks used the slot in between."""

import bisect

import torch

from ..errors import LongshoreError
from ..torch_internals import (
    DisableTorchFunctionSubclass,
    has_storage,
    in_scripts_function,
    refuse_access,
    storage_id,
    storage_users,
    tree_leaves,
    tree_map,
)
from .absent import Absent, StandIn


class Place:
    """Where a view of a parameter lies in its block's slot, and at which update of the block."""

    __slots__ = ("streamed", "updates", "at", "dtype", "shape", "stride")


class SavedAbsent:
    """Stands for an absent parameter that autograd saves, or a view of one. Backward gets a copy."""

    __slots__ = ("handle", "updates", "view")

    def __init__(self, handle, updates, view=None):
        """view: (shape, stride, offset) in a copy of the parameter; None: the parameter itself."""
        self.handle, self.updates, self.view = handle, updates, view

    @classmethod
    def of(cls, tensor, source):
        """The place of a tensor in the memory of a Fetched copy. source: the copy's longshore_source. None if another
        dtype shows the memory, or if the parameter was updated since it was copied."""
        handle, updates = source
        if tensor.dtype != handle.view.dtype or updates != handle.block.updates:
            return None
        return cls(handle, updates, (tensor.shape, tensor.stride(), tensor.storage_offset()))

    def value(self):
        _check(self.handle.block, self.updates)
        value = self.handle.copy()
        return value if self.view is None else value.as_strided(*self.view)


def _check(streamed, updates):
    """Raises LongshoreError if a step has changed the block since, as PyTorch does after a change in place."""
    if streamed.updates != updates:
        raise LongshoreError(
            f"backward: {streamed.block.name} has been updated since the forward pass, or the engine has slept; "
            "call step() after backward() of every loss, or compute the loss again"
        )


class Places:
    """Finds the places of tensors in slots, and the values at places."""

    def __init__(self, tier, streams):
        """tier: has the memory; streams: bring blocks there."""
        self.tier, self.streams, self.device = tier, streams, tier.bytes.device
        self.know(streams.blocks)

    def know(self, blocks):
        """Blocks have these slots from here on."""
        self.nbytes = self.tier.bytes.numel()
        self.slots = sorted({streamed.slot for streamed in blocks}, key=lambda slot: slot.base)
        self.bases = [slot.base for slot in self.slots]
        self.nothing = {}  # by dtype and shape: a tensor without memory, which needs some as it is made

    def view(self, at, dtype, shape):
        """Makes a tensor at an offset. On the host it has a storage of its own, whose users can be counted."""
        if (dtype, shape) not in self.nothing:
            self.nothing[dtype, shape] = torch.empty((), dtype=dtype, device=self.device).expand(shape)
            self.nothing[dtype, shape].untyped_storage().resize_(0)
        if self.tier.whole is None:
            return self.tier.bytes[at : at + shape.numel() * dtype.itemsize].view(dtype).view(shape)
        memory = memoryview(self.tier.whole)[at : at + shape.numel() * dtype.itemsize]
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def detach_views(self, parameters):
        """Detaches views that a script has kept of these parameters: using one raises, since its memory gets other
        values."""
        for p, handle in parameters if self.tier.whole is not None else ():
            if storage_users(handle.view) != handle.users:
                kept, handle.view = (
                    handle.view,
                    self.view(handle.view.data_ptr() - self.tier.base, handle.view.dtype, handle.view.shape),
                )
                with DisableTorchFunctionSubclass():
                    if not handle.temporary:
                        p.data = handle.view
                refuse_access(
                    kept,
                    f"{handle.name}: a view of it, or a tensor that shares its memory, is used after its "
                    "layer has gone or has been updated; make it again, or keep a copy of it",
                )

    def detach_all(self, parameters):
        """Lets go of the memory of these parameters, which keep their shapes."""
        for p, handle in parameters:
            handle.view = self.nothing[handle.view.dtype, handle.view.shape]
            with DisableTorchFunctionSubclass():
                p.data = handle.view

    def slot_of(self, tensor):
        """Returns the slot that a tensor lies in, or None."""
        if tensor.device != self.device or not has_storage(tensor):
            return None
        at = tensor.data_ptr() - self.tier.base
        return self.slots[bisect.bisect_right(self.bases, at) - 1] if 0 <= at < self.nbytes and self.slots else None

    def place_of(self, tensor, sources=None):
        """Returns the Place of a tensor, a SavedAbsent for an absent parameter or a copy of one (sources: as in
        Streams.saving()), or None if it lies in no slot."""
        if isinstance(tensor, Absent):
            return SavedAbsent(tensor.longshore, tensor.longshore.block.updates)
        slot = self.slot_of(tensor)
        if slot is None:
            source = sources.get(storage_id(tensor.untyped_storage())) if sources and has_storage(tensor) else None
            return None if source is None else SavedAbsent.of(tensor, source)
        if slot.holds is None:
            raise LongshoreError(
                "a view of a parameter is computed with after its layer has gone; make it again, or make a copy of it"
            )
        place = Place()
        place.streamed, place.updates, place.at = (
            slot.holds,
            slot.holds.updates,
            tensor.data_ptr() - self.tier.base - slot.base,
        )
        place.dtype, place.shape, place.stride = tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())
        return place

    def value(self, place):
        """Returns the tensor at a place, fetching its block if needed."""
        streamed = place.streamed
        _check(streamed, place.updates)
        if not self.streams.ready(streamed):
            self.streams.ensure(streamed)
        at = (streamed.slot.base + place.at) // place.dtype.itemsize
        value = torch.as_strided(self.tier.bytes.view(place.dtype), place.shape, place.stride, at)
        # a graph made in this backward may keep it, and a script's Function may compute with other blocks meanwhile
        keeps = torch.is_grad_enabled() or not streamed.stays and in_scripts_function()
        return value.clone() if keeps else value

    def copy_out(self, found, parameters=(), copy=torch.clone):
        """Replaces tensors in a tree by copies if they lie in a slot that another block may reuse. parameters: are left
        as they are; copy: makes a copy."""

        def leaves(t):
            if not isinstance(t, torch.Tensor) or isinstance(t, StandIn) or any(t is p for p in parameters):
                return False
            slot = self.slot_of(t)
            return slot is not None and slot.holds is not None and not slot.holds.stays

        if not any(map(leaves, tree_leaves(found))):
            return found
        return tree_map(lambda t: copy(t) if leaves(t) else t, found)
