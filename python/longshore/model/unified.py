"""Where modules compute on a device that has no memory of its own: in the host's pages, with no copy (cuda.is_unified).

    host      fetch l                        waits ── fetch l + slots
    device            layer l ── event        │       layer l + slots
                                   └──────────┘

A stream may compute with a page long after the host has left it. So an event behind each stream that has is recorded
there, and what puts something else into the memory waits for it: a fetch, a widening, an update."""

import contextlib

from .. import native
from ..errors import LongshoreError
from ..native import ffi, lib
from . import cuda
from .pinned import HostMemory
from .tiers import OneTier


class Unified(OneTier):
    """Slots in host memory, which a device sees. The page of a block that was left stays in use until its memory is
    needed, so that nothing is fetched into it before."""

    whole = None

    def __init__(self, layout, slots, nbytes, device, pinned):
        """pinned: sizes of the HostMemory, which has no pages here."""
        self.device, self.host = device, HostMemory(device, **pinned)
        self.held, self.readers = {}, {}  # by slot: the block whose page is in use; {stream that computed: its event}
        self.blocks = ()
        super().__init__(layout, slots, nbytes)

    def take(self):
        if self.bytes is not None:
            return False
        try:
            self.host.take_beside_pages()
            self.memory = self.device.pinned(self.nbytes)
            self.bytes = cuda.seen_by(self.device.device, self.memory)
        except LongshoreError:
            self._let_go()
            self.device.give_back()
            raise
        self.base = self.memory.address
        return True

    def _let_go(self):
        super()._let_go()
        self.whole = None
        self.host.drop()

    def open(self, state, blocks):
        super().open(state, blocks)
        self.blocks = blocks
        self.device.watch()

    def pool(self):
        return self.host.pool

    def parts(self):
        return [self.pages, self.device]

    def is_given(self, streamed):
        return self.device.computing() in streamed.given

    def give(self, streamed):
        if not streamed.given:
            self._bring(streamed)
        streamed.given.add(self.device.computing())

    def _bring(self, streamed):
        slot = streamed.slot
        if streamed.widens and streamed.step == self.state.step:
            return
        if self.held.get(slot) is streamed:
            if not lib.shore_pages_get(self.pages, streamed.number, ffi.new("const void **"), ffi.NULL):
                lib.shore_pages_release(self.pages, streamed.number)  # it is in use once, as before
                return
        try:
            self._free(slot)
        except LongshoreError as failure:
            raise self.device.explained(failure) from failure
        super().give(streamed)
        if not streamed.widens:
            self.held[slot] = streamed

    def _free(self, slot):
        """Waits for every stream that has computed in a slot: from here on its memory may get something else."""
        try:
            for event in self.readers.get(slot, {}).values():
                native.call(lib.shore_device_wait, self.device.c, event)
        finally:
            self._release(slot)

    def _release(self, slot):
        self.readers.pop(slot, None)
        held = self.held.pop(slot, None)
        if held is not None:
            lib.shore_pages_release(self.pages, held.number)

    def want(self, streamed, slot_is_free):
        events = self.readers.get(streamed.slot, {}).values()
        if slot_is_free and all(lib.shore_device_passed(self.device.c, event) for event in events):
            self._release(streamed.slot)
            super().want(streamed, True)

    def leave(self, streamed):
        self._note_readers(streamed)
        streamed.given.clear()

    def _note_readers(self, streamed):
        for stream in streamed.given:
            event = self.device.c.record(self.device.c.ctx, stream)
            self.readers.setdefault(streamed.slot, {})[stream] = event

    def before_update(self, streamed):
        if streamed.stays:
            with contextlib.suppress(LongshoreError):  # if the device is lost, the step's next call says so
                self._free(streamed.slot)  # the update's result goes there
        elif self.held.get(streamed.slot) is streamed:
            lib.shore_pages_release(self.pages, self.held.pop(streamed.slot).number)

    def forget(self):
        for slot in {*self.held, *self.readers}:
            with contextlib.suppress(LongshoreError):
                self._free(slot)

    def after_drive_loss(self, blocks):
        for streamed in blocks:
            self._note_readers(streamed)
        self.forget()

    def close(self):
        for streamed in self.blocks:
            streamed.given.clear()
        self.held, self.readers = {}, {}
        super().close()
        self.device.close()

    def leave_to_parent(self):
        if self.pages is not None:
            self.device.leave_to_parent()
        super().leave_to_parent()
