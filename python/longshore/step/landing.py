"""Gradients on their way from a device: each lies in pinned memory, of which there is as much as the plan says, until
the C library's step takes it in order. One that is larger than that memory comes in parts."""

import itertools

import torch

from ..interrupts import whole
from ..native import ffi


class Landing:
    """The gradients of one open step that are on their way. It belongs to the thread that has the streams' lock."""

    def __init__(self, device):
        """device: a Device."""
        self.device, self.memory = device, None  # until open()
        self.stream = device.new_stream()
        # by tag: (parameter, its gradient there, its copy here, whether its pass is the step's last, the rest of it)
        self.coming = {}
        self._tags = itertools.count()

    def open(self, memory):
        """memory: Pinned."""
        self.memory = memory

    @whole
    def begin(self, step, p, g, last):
        """Begins to copy a parameter's gradient. Once it is here, the step says so: see take()."""
        g = (g.to_dense() if g.is_sparse else g).contiguous()
        number, whole, at = p.longshore.block.number, None, 0
        most = self.memory.nbytes if g.nbytes <= self.memory.nbytes else self.memory.nbytes // 2 // 64 * 64
        with step.streams.lock:
            parts = g.view(-1).split(most // g.itemsize)
            if len(parts) > 1:
                whole = torch.empty(g.shape, dtype=g.dtype)
            for part in parts:
                room = step.land_at(part.nbytes)
                here = self.memory.bytes[room : room + part.nbytes].view(g.dtype)
                at += part.numel()
                rest = None if whole is None else (whole, at)
                self._land(step, number, (p, part, here.view(g.shape) if rest is None else here, last, rest))

    @whole
    def end_pass(self, step, last):
        """Says in the same way that all gradients of a pass are here."""
        with step.streams.lock:
            self._land(step, 0, (None, None, None, last, None))

    def _land(self, step, number, what):
        tag, (_, there, here, *_) = next(self._tags), what
        if there is None:
            until = ffi.new("struct shore_event *")[0]
        else:
            until = self.device.copy(self.stream, here.view(-1), there)
        self.coming[tag] = what
        step.land(number, tag, until)

    def take(self, tag):
        """(parameter, its gradient, whether its pass is the step's last) of a tag. The gradient's memory gets others
        afterwards. Without a parameter: a pass has ended. None: a part of a gradient is here."""
        p, _, here, last, rest = self.coming.pop(tag)
        if rest is None:
            return p, here, last
        whole, end = rest
        whole.view(-1)[end - here.numel() : end] = here
        return (p, whole, last) if end == whole.numel() else None

    def there_bytes(self):
        """Bytes on the device of the gradients that are on their way."""
        return sum(g.nbytes for _, g, *_ in self.coming.values() if g is not None)

    def lent(self, g):
        """Whether a gradient lies in the memory that gets others."""
        return 0 <= g.data_ptr() - self.memory.bytes.data_ptr() < self.memory.nbytes

    def blocks(self):
        """The numbers of the blocks that have gradients on their way."""
        return {p.longshore.block.number for p, *_ in self.coming.values() if p is not None}

    def forget(self):
        """The step has forgotten all of them."""
        self.coming = {}
