"""The gradients of one block of a step: sums in memory, or put aside on the drives."""

import itertools
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


def _sum(sum, g):
    """Adds a gradient to a sum, in fp32."""
    return sum.add_(g) if sum.dtype == torch.float32 else sum.float().add_(g)


class BlockGradients:
    """The gradients of one block, by the index of its tensors."""

    __slots__ = ("apart", "held", "open", "group", "spilled", "arrived", "added", "fired")

    def __init__(self, apart=False):
        """apart: the sums of groups stay apart, since those of other ranks come first."""
        self.apart = apart
        self.clear()

    def clear(self):
        self.held = {}  # the gradients in memory
        self.open = {}  # sums of later groups that are not added to those yet, in order
        self.group = {}  # the group of the last gradient of each tensor
        self.spilled = frozenset()  # tensors with gradients on the drives, which come before those in memory
        self.arrived = set()  # tensors that have a gradient in this step
        self.added = False  # whether the C step has these gradients as they are
        self.fired = {}  # how many gradients each tensor got in this pass

    def are_zeros(self):
        """Whether all of its gradients are zeros, which take no memory."""
        return all(is_zeros(self.held.get(index)) for index in self.arrived)

    @property
    def nbytes(self):
        return sum(map(bytes_of, itertools.chain(self.held.values(), *self.open.values())))

    def leave(self):
        """The drives have its gradients: memory needs them no more."""
        self.held, self.spilled = {}, frozenset(self.arrived)

    def follows(self, index, group):
        """Whether the next gradient of a tensor, of this group, needs what is on the drives: it adds to that, or begins
        a group after another one that does."""
        return bool(self.spilled) and (index in self.held) != (self.group.get(index) == group)

    def awaits(self, group):
        """Whether a sum of this group is in memory that other groups precede: it gets all of its gradients first."""
        return any(self.group.get(index) == group for index in (self.held if self.spilled else self.open))

    def add(self, index, g, group, lent):
        """Adds a gradient to the sum of its group, which becomes fp32 with the second one. lent: its memory is."""
        if index not in self.held or is_zeros(self.held[index]):
            self.held[index] = g.clone() if lent else g.contiguous()
        elif self.group.get(index) != group:
            if not self.apart:
                self.fold(index)
            self.open.setdefault(index, []).append(g.clone() if lent else g.contiguous())
        elif index in self.open:
            self.open[index][-1] = _sum(self.open[index][-1], g)
        else:
            self.held[index] = _sum(self.held[index], g)
        self.group[index] = group

    def sums(self, index):
        """The sums of the groups of a tensor that are in memory, in order."""
        return [self.held[index], *self.open.get(index, ())] if index in self.held else []

    def fold(self, index):
        """Adds the sums of later groups of a tensor to its gradient, in order."""
        for g in self.open.pop(index, ()):
            self.held[index] = _sum(self.held[index], g)

    def fold_all(self):
        for index in [*self.open]:
            self.fold(index)

    def value(self, index):
        """The gradient of a tensor, of all groups so far. None: there is nothing here."""
        value = self.held.get(index)
        for g in self.open.get(index, ()):
            value = value.float() + g
        return value

    def replace(self, index, value):
        """Makes this the gradient of a tensor; None: it has none."""
        self.open.pop(index, None)
        if value is None:
            self.held.pop(index, None)
            self.group.pop(index, None)
            self.arrived.discard(index)
        else:
            self.held[index] = value
            self.group.setdefault(index, 0)

    def read_spilled(self, state, number, buffer):
        """Reads the gradients on the drives, which become the held ones, as fp32. The held ones follow them.

        number: of the block. buffer: has room for one of the layout's pieces."""
        layout, own = state.layout, state.own(number)
        spans = layout.spans(number, *own)
        for index in self.spilled:
            if index in self.held:
                self.open[index] = [self.held[index], *self.open.get(index, ())]
            first, last = spans[index]
            shape = layout.blocks[number].tensors[index].shape
            shape = shape if last - first == torch.Size(shape).numel() else (last - first,)
            self.held[index] = torch.empty(shape, dtype=torch.float32, device="cpu")
        values = buffer.view(torch.float32)
        for segment, count, inside in layout.pieces(number, *own):
            state.fetch(number, lib.SHORE_FETCH_SPILLED, buffer.pointer, segment, count).result()
            for index, at, first, last in inside:
                if index in self.spilled:
                    self.held[index].view(-1)[first:last].copy_(values[at : at + last - first])
        self.spilled = frozenset()
