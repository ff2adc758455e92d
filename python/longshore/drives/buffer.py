"""Memory that drives read and write."""

import torch

from .. import forks, native
from ..native import ffi, lib


class Buffer:
    """Zeroed memory that drives read and write, and that PyTorch sees as a tensor."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        pointer = native.made("void *", lib.shore_buffer_alloc, nbytes, 0)
        self.pointer = ffi.gc(pointer, lambda p, n=nbytes: lib.shore_buffer_free(p, n), nbytes)
        self.whole = ffi.buffer(self.pointer, nbytes)  # keeps the memory alive
        self.bytes = torch.frombuffer(self.whole, dtype=torch.uint8)
        forks.leave_in_children(self)

    @property
    def address(self):
        return int(ffi.cast("uintptr_t", self.pointer))

    def leave_to_parent(self):
        ffi.gc(self.pointer, None)  # a forked child does not have the memory, and must not free it

    def view(self, dtype):
        return self.bytes.view(dtype)
