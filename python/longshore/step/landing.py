"""Gradients on their way from a device: each lies in pinned memory, of which there is as much as the plan says, until
the C library's step takes it in order."""

import itertools

from ..interrupts import whole
from ..native import ffi


class Landing:
    """The gradients of one open step that are on their way. It belongs to the thread that has the streams' lock."""

    def __init__(self, device, nbytes):
        """device: a Device. nbytes: of pinned memory."""
        self.device, self.memory = device, device.pinned(-(-nbytes // 64) * 64)
        self.stream = device.new_stream()
        self.coming = {}  # by tag: (parameter, its gradient there, its copy here, whether its pass is the step's last)
        self._tags = itertools.count()

    @whole
    def begin(self, step, p, g, last):
        """Begins to copy a parameter's gradient. Once it is here, the step says so: see take()."""
        g = (g.to_dense() if g.is_sparse else g).contiguous()
        with step.streams.lock:
            at = step.land_at(g.nbytes)
            here = self.memory.bytes[at : at + g.nbytes].view(g.dtype).view(g.shape)
            until = self.device.copy(self.stream, here, g)
            self._land(step, p.longshore.block.number, (p, g, here, last), until)

    @whole
    def end_pass(self, step, last):
        """Says in the same way that all gradients of a pass are here."""
        with step.streams.lock:
            self._land(step, 0, (None, None, None, last), ffi.new("struct shore_event *")[0])

    def _land(self, step, number, what, until):
        tag = next(self._tags)
        self.coming[tag] = what
        step.land(number, tag, until)

    def take(self, tag):
        """(parameter, its gradient, whether its pass is the step's last) of a tag. The gradient's memory gets others
        afterwards. Without a parameter: a pass has ended."""
        p, _, here, last = self.coming.pop(tag)
        return p, here, last

    def lent(self, g):
        """Whether a gradient lies in the memory that gets others."""
        return 0 <= g.data_ptr() - self.memory.bytes.data_ptr() < self.memory.nbytes

    def blocks(self):
        """The numbers of the blocks that have gradients on their way."""
        return {p.longshore.block.number for p, _, _, _ in self.coming.values() if p is not None}

    def forget(self):
        """The step has forgotten all of them."""
        self.coming = {}
