"""Memory of the host that a device copies from and to, and what is done where it is short."""

import bisect
import logging
import weakref

import torch

from .. import native
from ..drives.buffer import Buffer
from ..errors import LongshoreError
from ..native import ffi, lib
from . import cuda

ALIGN = lib.SHORE_BUFFER_ALIGN_BYTES


class Pinned(Buffer):
    """A Buffer in pinned memory. CUDA registers what we have mapped. Of other devices it is PyTorch's, which may round
    it up and keep it."""

    def __init__(self, nbytes, device):
        """Raises LongshoreError if it is refused."""
        self._unregister = None
        try:
            if cuda.registers(device):
                super().__init__(nbytes)
                cuda.register(self.address, nbytes, device)
                self._unregister = weakref.finalize(self, cuda.unregister, self.address)
                self._unregister.atexit = False
            else:
                found = torch.zeros(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
                if found.data_ptr() % ALIGN:
                    found = torch.zeros(nbytes + ALIGN, dtype=torch.uint8, device="cpu", pin_memory=True)
                self._take(nbytes, found)
        except (RuntimeError, MemoryError) as failure:
            raise LongshoreError(
                f"{native.readable(nbytes)} of pinned memory, which a device copies from and to, are refused "
                f"({native.first_line(failure)}); raise the limit of locked memory (ulimit -l), or give pinned_memory= "
                "what there is: `python -m longshore doctor` says how much"
            ) from failure

    def _take(self, nbytes, found):
        before = -found.data_ptr() % ALIGN
        self.nbytes, self.bytes = nbytes, found[before : before + nbytes]
        self.pointer = ffi.cast("void *", self.bytes.data_ptr())
        self.whole = ffi.buffer(self.pointer, nbytes)

    def release(self):
        """Gives it back. Nothing copies there any more."""
        if self._unregister is not None:
            self._unregister()
        self.bytes = self.whole = self.pointer = None

    def leave_to_parent(self):
        if self._unregister is not None:
            self._unregister.detach()
        if self.pointer is not None:
            super().leave_to_parent()


class HostMemory:
    """What an engine's device copies from and to: room for gradients that land, the pool that activations pass through,
    and pages of parameters. As many pages are pinned as can be had. The device reaches the others through a ring."""

    def __init__(self, device, landing, pool, ring, pages):
        """landing, pool: (bytes, the least that works); pool None: there is none. ring: bytes. pages: bytes of pages
        that may be pinned."""
        self.device, self._sizes = device, (landing, pool, ring, pages)
        self.landing = self.pool = self.ring = self._pinned = self._rest = None
        self._said, self.nbytes = set(), 0  # bytes that are pinned; those of a sleeping engine, until it wakes

    def take(self, ends):
        """ends: where pages end in the memory of all, rising."""
        *_, ring, most = self._sizes
        total = ends[-1]
        self.ring = self.device.pinned(ring)
        self.take_beside_pages()
        why = f"pinned_memory= leaves {native.readable(max(most, 0))} for them"
        at = bisect.bisect_right(ends, min(most, total))
        while at and self._pinned is None:
            try:
                self._pinned = self.device.pinned(ends[at - 1])
            except LongshoreError as failure:
                why, at = str(failure), bisect.bisect_right(ends, ends[at - 1] // 2)
        self.cut = self._pinned.nbytes if self._pinned else 0
        if self.cut == total:
            self.device.unpin(self.ring)
            self.ring = None
        else:
            self._rest = Buffer(total - self.cut)
            self._say(
                f"{native.readable(self.cut)} of {native.readable(total)} for parameters are pinned: {why}. The others "
                f"reach {self.device.device} through a ring of {native.readable(ring)} of pinned memory: the script's "
                "thread copies them once more each time"
            )
        parts = self.ring, self.pool, self.landing, self._pinned
        self.nbytes = sum(part.nbytes for part in parts if part is not None)

    def take_beside_pages(self):
        landing, pool, *_ = self._sizes
        self.pool = self._had(*pool, "activations") if pool else None
        self.landing = self._had(*landing, "gradients that land")

    def _had(self, most, least, purpose):
        """Pinned memory of so many bytes, or of as many as can be had."""
        nbytes, why = most, None
        while True:
            try:
                had = self.device.pinned(nbytes)
                break
            except LongshoreError as failure:
                if nbytes <= least:
                    raise
                nbytes, why = max(nbytes // 2 // ALIGN * ALIGN, least), failure
        if why is not None:
            self._say(f"{native.readable(nbytes)} of {native.readable(most)} for {purpose} are pinned: {why}")
        return had

    def _say(self, what):
        if what not in self._said:
            logging.getLogger("longshore").warning("%s", what)
        self._said.add(what)

    def page(self, at):
        """The address of a page that begins there in the memory of all."""
        return self._pinned.address + at if at < self.cut else self._rest.address + at - self.cut

    def reached(self):
        """Members of struct shore_shown_options: which pages the device reaches, and the ring for the others."""
        if self.ring is None:
            return {}
        reached = self._pinned.pointer if self._pinned else ffi.NULL
        return {
            "reached": reached,
            "reached_bytes": self.cut,
            "ring": self.ring.pointer,
            "ring_bytes": self.ring.nbytes,
        }

    def drop(self):
        """Forgets all of it, which the device has given back."""
        self.landing = self.pool = self.ring = self._pinned = self._rest = None
