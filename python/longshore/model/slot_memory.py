"""Memory of slots, and what autograd keeps of it: the place of a value instead of the value, which is looked up again
when backward asks, so that it is right whoever had the slot in between."""

import bisect

import torch

from ..errors import LongshoreError
from ..torch_internals import DisableTorchFunctionSubclass, is_transformed, refuse_access, tree_leaves, tree_map
from .absent import Absent
from .write_tracking import users


class Place:
    """Of a view of a parameter."""

    __slots__ = ("streamed", "updates", "at", "dtype", "shape", "stride")


class Asked:
    """Of a parameter that was not there, as a function of the script's own may save one: a copy, as whoever asks for it
    gets."""

    __slots__ = ("handle", "updates")

    def __init__(self, parameter):
        self.handle = parameter.longshore
        self.updates = self.handle.block.updates

    def value(self):
        _check(self.handle.block, self.updates)
        return self.handle.copy()


def _check(streamed, updates):
    """Raises LongshoreError where a step has been made since, as PyTorch does after a change in place."""
    if streamed.updates != updates:
        raise LongshoreError(f"backward: {streamed.block.name} has been updated since the forward pass; call step() "
                             "after backward() of every loss, or compute the loss again")


class Places:
    def __init__(self, memory, slots, bring, away=None):
        """memory: a Buffer; slots: ranges of it, that know which block they hold; bring(block): its parameters are
        there on return. away: memory of a device that has the same slots, which modules compute with instead."""
        self.memory, self.away, self.bring = memory, away, bring
        self.bytes = (memory if away is None else away).bytes
        self.base = self.bytes.data_ptr()
        self.slots = sorted(slots, key=lambda slot: slot.base)
        self.bases = [slot.base for slot in self.slots]

    def view(self, at, dtype, shape):
        """A tensor there; of the host, with a storage of its own: who else has it can be counted."""
        if self.away is not None:
            return self.bytes[at:at + shape.numel() * dtype.itemsize].view(dtype).view(shape)
        memory = memoryview(self.memory.whole)[at:at + shape.numel() * dtype.itemsize]
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def part(self, parameters):
        """Where these lie, other numbers will: views that somebody has kept raise when they are computed with."""
        for p, handle in parameters if self.away is None else ():
            if users(handle.view) != handle.users:
                kept, handle.view = handle.view, self.view(handle.view.data_ptr() - self.base, handle.view.dtype,
                                                           handle.view.shape)
                with DisableTorchFunctionSubclass():
                    if not handle.out:
                        p.data = handle.view
                refuse_access(kept,
                              f"{handle.name}: a view of it, or a tensor that shares its memory, is used after its "
                        "layer has gone or has been updated; make it again, or keep a copy of it")

    def slot_of(self, tensor):
        """The slot that a tensor lies in; None: it lies elsewhere."""
        if tensor.device != self.bytes.device or tensor.layout != torch.strided or is_transformed(tensor):
            return None
        at = tensor.data_ptr() - self.base
        return (self.slots[bisect.bisect_right(self.bases, at) - 1] if 0 <= at < self.memory.nbytes
                and self.slots else None)

    def of(self, tensor):
        """The Place of a tensor, or what stands for one of a parameter that is not there; None: it lies in no slot."""
        if isinstance(tensor, Absent):
            return Asked(tensor)
        slot = self.slot_of(tensor)
        if slot is None:
            return None
        if slot.holds is None:
            raise LongshoreError("a view of a parameter is computed with after its layer has gone; make it again, or "
                                 "make a copy of it")
        place = Place()
        place.streamed, place.updates, place.at = slot.holds, slot.holds.updates, tensor.data_ptr() - self.base
        place.dtype, place.shape, place.stride = tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())
        return place

    def value(self, place):
        """What lies there."""
        streamed = place.streamed
        _check(streamed, place.updates)
        if not streamed.present:
            self.bring(streamed)
        value = torch.as_strided(self.bytes.view(place.dtype), place.shape, place.stride,
                                 place.at // place.dtype.itemsize)
        return value.clone() if torch.is_grad_enabled() else value  # a graph of this backward pass may keep it

    def apart(self, found, parameters=(), copy=torch.clone):
        """Tensors, but for parameters themselves, that outlive the block which is in their slot: copies of those that
        lie in one that others get."""
        def leaves(t):
            if not isinstance(t, torch.Tensor) or isinstance(t, Absent) or any(t is p for p in parameters):
                return False
            slot = self.slot_of(t)
            return slot is not None and slot.holds is not None and not slot.holds.stays

        if not any(map(leaves, tree_leaves(found))):
            return found
        return tree_map(lambda t: copy(t) if leaves(t) else t, found)
