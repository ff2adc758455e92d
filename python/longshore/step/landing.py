"""Gradients on their way from a device: each lies in pinned memory, of which there is as much as the plan says, until
the C library's step takes it in order. One that is larger than that memory comes in parts."""

import itertools
from typing import Any, NamedTuple

import torch

from ..interrupts import whole
from ..native import ffi
from .sum_groups import Place


class _Coming(NamedTuple):
    """A gradient on its way, or a part of one; without a parameter: the end of a pass."""

    place: Place  # its micro-batch's in the step
    p: Any = None
    there: Any = None  # on the device
    here: Any = None
    together: Any = None  # the gradient of which this is a part, which ends before this element
    end: int = 0


class Landing:
    """The gradients of one open step that are on their way. It belongs to the thread that has the streams' lock."""

    def __init__(self, device):
        """device: a Device."""
        self.device, self.memory = device, None  # until open()
        self.stream = device.new_stream()
        self.coming = {}  # {tag: _Coming}
        self._tags = itertools.count()

    def open(self, memory):
        """memory: Pinned."""
        self.memory = memory

    @whole
    def begin(self, step, p, g, place):
        """Begins to copy a parameter's gradient. Once it is here, the step says so: see take()."""
        g = (g.to_dense() if g.is_sparse else g).contiguous()
        most = self.memory.nbytes if g.nbytes <= self.memory.nbytes else self.memory.nbytes // 2 // 64 * 64
        with step.streams.lock:
            parts = g.view(-1).split(most // g.itemsize)
            together, end = torch.empty(g.shape, dtype=g.dtype, device="cpu") if len(parts) > 1 else None, 0
            for part in parts:
                at, end = step.land_at(part.nbytes), end + part.numel()
                here = self.memory.bytes[at : at + part.nbytes].view(g.dtype)
                here = here.view(g.shape) if together is None else here
                self._land(step, _Coming(place, p, part, here, together, end))

    @whole
    def end_pass(self, step, place):
        """Says in the same way that all gradients of a pass are here."""
        with step.streams.lock:
            self._land(step, _Coming(place))

    def _land(self, step, coming):
        number, until, tag = 0, ffi.new("struct shore_event *")[0], next(self._tags)
        if coming.p is not None:
            number = coming.p.longshore.block.number
            until = self.device.copy(self.stream, coming.here.view(-1), coming.there)
        self.coming[tag] = coming
        step.land(number, tag, until)

    def take(self, tag):
        """(parameter, its gradient, its Place) of a tag. The gradient's memory gets others
        afterwards. Without a parameter: a pass has ended. None: a part of a gradient is here."""
        place, p, _, here, together, end = self.coming.pop(tag)
        if together is None:
            return p, here, place
        together.view(-1)[end - here.numel() : end] = here
        return (p, together, place) if end == together.numel() else None

    def there_bytes(self):
        """Bytes on the device of the gradients that are on their way."""
        return sum(coming.there.nbytes for coming in self.coming.values() if coming.p is not None)

    def lent(self, g):
        """Whether a gradient lies in the memory that gets others."""
        return 0 <= g.data_ptr() - self.memory.bytes.data_ptr() < self.memory.nbytes

    def blocks(self):
        """The numbers of the blocks that have gradients on their way."""
        return {coming.p.longshore.block.number for coming in self.coming.values() if coming.p is not None}

    def forget(self):
        """The step has forgotten all of them."""
        self.coming = {}
