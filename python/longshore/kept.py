"""State that stays in memory, as far as the budget has room when parameters and gradients have theirs.

What UPDATE reads of it is there already: the step computes it in memory, bit for bit as drives do, and they only write. First of
all what backward completes last and forward needs first, an embedding mostly, whose update everybody would wait for.
"""

import torch

from . import native
from .errors import LongshoreError
from .native import SEGMENT, Wait, ffi, lib
from .state import Buffer

LEAST_BYTES = 4 << 20  # of images of one block; less is not worth a request


class Kept:
    """State images of the last segments of a block."""

    __slots__ = ("number", "first", "count", "buffer", "step", "coming", "leaving")

    def __init__(self, number, first, count, each):
        self.number, self.first, self.count = number, first, count
        self.buffer = Buffer(count * each)
        self.step = None  # that the images are of; None: of none
        self.coming = self.leaving = None  # requests

    def settle(self):
        """Nothing is under way any more. What a store failed with, the commit says."""
        for request in self.coming, self.leaving:
            if request is not None:
                request.settle()
        self.coming = self.leaving = None


class KeptState:
    """Of one engine: blocks that stay in memory, on drives of this machine."""

    def __init__(self, streams):
        self.streams = streams
        self.blocks = {}  # by number
        self._completed = {}  # numbers, in the order in which backward has completed them

    @property
    def nbytes(self):
        return sum(kept.buffer.nbytes for kept in self.blocks.values())

    def completed(self, number):
        """Backward has all gradients of a block."""
        self._completed.setdefault(number)

    def has(self, number):
        return number in self.blocks

    def plan(self, state, budget, gradients, several):
        """Before a backward pass: what does not fit any more goes, and what fits is kept from now on. Returns whether some of it is
        to be read. budget: the Plan; several: gradients of more than one pass are added up."""
        each, segments = lib.shore_fleet_state_bytes(state.fleet), state.layout.segments
        room_bytes, most = budget.spare_bytes, gradients.most_bytes(several)
        if most <= gradients.room:  # then none is put aside either
            room_bytes += gradients.room - most + budget.aside_bytes
        self.shrink(room_bytes)
        used = self.nbytes
        if state.away or state.made.fp32_params != (self.streams.storage == torch.float32):
            return False  # it would cross the link; or is of a run that stores another form than pages have
        for number in reversed(self._completed):
            count = min(segments[number], max(room_bytes - used, 0) // each)
            streamed = self.streams.blocks[number]
            if streamed.stays and streamed.storage == self.streams.storage and number not in self.blocks and count * each >= LEAST_BYTES:
                self.blocks[number] = Kept(number, segments[number] - count, count, each)
                used += count * each
        return any(kept.step != state.step for kept in self.blocks.values())

    def shrink(self, room_bytes):
        """What does not fit goes, the last first."""
        for number in list(self.blocks)[::-1]:
            if self.nbytes > room_bytes:
                self._drop(number)

    def fetch(self, state):
        """Begins to read what is not there. The step is committed."""
        for kept in self.blocks.values():
            if kept.step != state.step:
                kept.settle()
                kept.coming = state.fetch(kept.number, lib.SHORE_FETCH_STATE, kept.buffer.pointer, kept.first, kept.count)
                kept.step = state.step

    def update(self, state, number, request):
        """Updates what there is of a block, into its page, and begins to write it. Returns its first segment; None: there is
        nothing, or it could not be updated, of which the drives will say more."""
        kept = self.blocks.get(number)
        if kept is None or kept.step != state.step:
            return None
        kept.step = None
        mine = ffi.new("struct shore_update *", request[0])
        mine.segment, mine.count = kept.first, kept.count
        mine.params_out = self.streams.page_of(number) + kept.first * SEGMENT * self.streams.storage.itemsize
        try:
            if kept.coming is not None:
                coming, kept.coming = kept.coming, None
                coming.result()
            kept.settle()
            lib.shore_pages_settle(self.streams.pages, number)  # what was wanted of the page would be written over this
            native.call(lib.shore_fleet_update_images, state.fleet, mine, kept.buffer.pointer)
        except LongshoreError:
            return None
        store = native.new("struct shore_store", base_step=state.step, attempt=mine.attempt, state=kept.buffer.pointer, block=number,
                           segment=kept.first, count=kept.count, order=request.order)
        kept.leaving = Wait(lib.shore_fleet_store, state.fleet, store, keeps=kept.buffer, what="state cannot be stored")
        kept.step = state.step + 1
        return kept.first

    def carried(self, state, number):
        """The block is in the next step what it is in this one."""
        kept = self.blocks.get(number)
        if kept is not None and kept.step == state.step:
            kept.step += 1

    def discarded(self, state):
        """What is in memory of the next step will not be on the drives."""
        for kept in self.blocks.values():
            if kept.step != state.step:
                kept.settle()
                kept.step = None

    def drop(self):
        """Gives the memory back."""
        for number in list(self.blocks):
            self._drop(number)

    def _drop(self, number):
        self.blocks.pop(number).settle()
