"""The gradients of one block of a step: sums in memory, or put aside on the drives."""

import mmap

import torch

from ..native import lib

_zeros = torch.zeros(0, dtype=torch.float32, device="cpu")


def zeros(shape):
    """A gradient of zeros. It takes no memory: all share pages that nobody writes."""
    global _zeros
    elems = torch.Size(shape).numel()
    if elems > _zeros.numel():
        _zeros = torch.frombuffer(mmap.mmap(-1, 4 * elems), dtype=torch.float32)
    out = _zeros[:elems].view(shape)
    out.longshore_zeros = True
    return out


def is_zeros(g):
    """Whether a gradient is one of zeros()."""
    return getattr(g, "longshore_zeros", False)


def bytes_of(g):
    """How many bytes a gradient takes, or 0 for None."""
    return 0 if g is None or is_zeros(g) else g.nbytes


def merged(sum, value):
    """The sum of a gradient that a script sees as `sum` in its own dtype, and has made `value` of. Elements that it has
    not changed keep all bits of the sum."""
    if is_zeros(value):
        return value
    value = (value.to_dense() if value.is_sparse else value).detach().cpu()
    if not bool(value.any()):
        return zeros(value.shape)
    if sum is None or sum.dtype != torch.float32 or value.dtype == torch.float32:
        return value.clone(memory_format=torch.contiguous_format)
    return torch.where(value == sum.to(value.dtype), sum, value.float()).contiguous()


def shows(value, sum):
    """Whether a gradient, as a script sees it, is that of a sum."""
    return value.layout is torch.strided and torch.equal(
        value.detach(), sum.to(value.device, value.dtype).view(value.shape)
    )


class BlockGradients:
    """The gradients of one block, by the index of its tensors."""

    __slots__ = ("held", "spilled", "arrived", "added", "fired")

    def __init__(self):
        self.clear()

    def clear(self):
        self.held = {}  # the gradients in memory
        self.spilled = False  # whether gradients on the drives must be added to those
        self.arrived = set()  # tensors that have a gradient in this step
        self.added = False  # whether the C step has these gradients as they are
        self.fired = {}  # how many gradients each tensor got in this pass

    def are_zeros(self):
        """Whether all of its gradients are zeros, which take no memory."""
        return all(is_zeros(self.held.get(index)) for index in self.arrived)

    def read_spilled(self, state, number, buffer):
        """Adds the gradients on the drives to the held ones, which become fp32.

        number: of the block. buffer: has room for one of the layout's pieces."""
        layout, alone = state.layout, self.arrived - self.held.keys()
        for index in self.arrived:
            g = self.held.get(index)
            self.held[index] = (
                torch.empty(layout.blocks[number].tensors[index].shape, dtype=torch.float32, device="cpu")
                if g is None
                else g.clone()
                if is_zeros(g)
                else g.float()
            )
        values = buffer.view(torch.float32)
        for segment, count, inside in layout.pieces(number):
            state.fetch(number, lib.SHORE_FETCH_SPILLED, buffer.pointer, segment, count).result()
            for index, at, first, last in inside:
                if index in self.arrived:
                    sum, before = self.held[index].view(-1)[first:last], values[at : at + last - first]
                    sum.copy_(before) if index in alone else sum.add_(before)
        self.spilled = False
