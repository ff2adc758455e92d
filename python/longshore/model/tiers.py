"""Where modules compute with blocks: in slots of host memory, each the buffer of a page of the library (OneTier), or in
slots on a device, to which the library copies pages (TwoTiers, ``device.h``)."""

import itertools

from .. import native
from ..drives.buffer import Buffer
from ..drives.state import FETCH
from ..errors import LongshoreError
from ..native import ffi, lib
from .pinned import ALIGN, HostMemory

NOWHERE = 1 << 64  # behind every address


class OneTier:
    """Slots in host memory. If the drives store bf16 and modules compute in float32, a page is fetched into the upper
    half of its slot and widened in place."""

    device = None
    there_bytes = 0  # of slots in memory that is a device's alone

    def __init__(self, layout, slots, nbytes):
        """slots: those that layers share."""
        self.layout, self.pages = layout, None
        self.memory = self.bytes = None
        self.resize(slots, nbytes)
        self.take()

    def resize(self, slots, nbytes):
        """Layers share these slots from the next take() on."""
        self.slots = slots
        self.nbytes = self.pages_bytes = max(nbytes, 4096)

    def _buffers(self):
        """The addresses of the buffers of each pool of pages."""
        return [[self.base + slot.fetched] for slot in self.slots]

    def _page_of(self, streamed):
        """(its pool, the address of its own memory) of a block's page."""
        if streamed.stays:
            return lib.SHORE_PAGES_STAYS, self.base + streamed.slot.fetched
        return streamed.slot.number, 0

    def take(self):
        """Takes the memory, unless it is there: close() lets go of it. Returns whether it did."""
        if self.bytes is not None:
            return False
        self.memory = Buffer(self.nbytes)
        self.bytes, self.whole = self.memory.bytes, self.memory.whole
        self.base = self.memory.address
        return True

    def _let_go(self):
        self.memory = self.bytes = self.whole = None
        self.base = NOWHERE

    def open(self, state, blocks):
        """Opens the pages of a run's state."""
        self.state = state
        ranges = ffi.new("struct shore_pages_range[]", len(blocks))
        for r, streamed in zip(ranges, blocks):
            r.block, r.count = streamed.number, self.layout.segments[streamed.number]
            r.kind = FETCH[streamed.storage]
            r.pool, address = self._page_of(streamed)
            r.memory = ffi.cast("void *", address)
        buffers = [ffi.new("void *[]", [ffi.cast("void *", address) for address in of]) for of in self._buffers()]
        pools = ffi.new("struct shore_pages_pool[]", max(len(buffers), 1))
        for pool, of in zip(pools, buffers):
            pool.nbuffers, pool.buffers = len(of), of
        options = native.new(
            "struct shore_pages_options",
            ranges=ranges,
            nranges=len(blocks),
            pools=pools,
            npools=len(buffers) if any(r.pool != lib.SHORE_PAGES_STAYS for r in ranges) else 0,
        )
        self.pages = ffi.gc(
            native.made("struct shore_pages *", lib.shore_pages_open, state.fleet, options), lib.shore_pages_close
        )

    def pool(self):
        """Memory that activations pass through, where a device copies from and to it."""
        return None

    def parts(self):
        """What closing needs, and the garbage collector must not free before."""
        return [self.pages]

    def is_given(self, streamed):
        """Whether this thread may compute with a block that is present."""
        return True

    def give(self, streamed):
        """Brings a block into its slot, for the computations of this thread."""
        if streamed.widens and streamed.step == self.state.step:
            return
        streamed.step = -1
        if streamed.widens:
            to = ffi.cast("float *", self.base + streamed.slot.base)
            native.call(lib.shore_pages_take, self.pages, streamed.number, to)
            streamed.step = self.state.step
        else:
            native.call(lib.shore_pages_get, self.pages, streamed.number, ffi.new("const void **"))

    def want(self, streamed, slot_is_free):
        """Prefetches a block, as far as this needs no waiting and its slot is free."""
        if slot_is_free:
            lib.shore_pages_want(self.pages, streamed.number)

    def leave(self, streamed):
        """Nobody computes with a block from here on."""
        if not streamed.widens:
            lib.shore_pages_release(self.pages, streamed.number)

    def before_update(self, streamed):
        """A block that was left is about to be updated."""

    def forget(self):
        """Forgets what slots hold: it differs from the drives'. All blocks were left."""

    def after_drive_loss(self, blocks):
        """Ends all uses of pages. Blocks that are present stay as they are."""
        for streamed in blocks:
            if streamed.present:
                self.leave(streamed)

    def close(self):
        pages, self.pages, self.state = self.pages, None, None
        if pages is not None:
            ffi.release(pages)
        self._let_go()

    def leave_to_parent(self):
        """In a forked process: forgets the pages."""
        if self.pages is not None:
            ffi.gc(self.pages, None)
        self.pages = self.state = None


class TwoTiers(OneTier):
    """Slots on a device, and pages in host memory, in numbers and sizes of their own. What is copied into a slot
    follows the streams that the script computed on, whoever leaves the block."""

    whole = None

    def __init__(self, layout, slots, nbytes, pages, device, page_bytes, pinned):
        """pages: how many layers' pages host memory holds. page_bytes(number): bytes of a block's page. pinned: sizes
        of the HostMemory."""
        self.layout, self.slots, self.device = layout, slots, device
        self.pages = self.shown = None
        layers = layout.layers()
        sides = layout.sides()
        count = min(pages, len(layers))
        rest = [b for b, block in enumerate(layout.blocks) if not block.layer and not block.buffers]
        self.nbytes = max(nbytes, 4096)  # there
        self.bytes, self.host = None, HostMemory(device, **pinned)
        at = 0
        self.turns = []  # of each turn: where each side's buffer begins in memory
        for _ in range(count):
            self.turns.append([])
            for side in sides:
                self.turns[-1].append(at)
                at += max(map(page_bytes, side))
        self.side = {b: n for n, side in enumerate(sides) for b in side}
        self.own = {}  # {block: where its own page begins}
        for b in rest:
            self.own[b] = at
            at += page_bytes(b)
        self.pages_bytes = max(at, ALIGN)
        self.starts = sorted({*itertools.chain(*self.turns), *self.own.values()})
        for place, numbers in enumerate(layers) if count == len(layers) else ():
            self.own.update({b: self.turns[place][self.side[b]] for b in numbers})
        self.take()

    def take(self):
        if self.bytes is not None:
            return False
        try:
            self.host.take([*self.starts[1:], self.pages_bytes])
            self.bytes = self.device.bytes(self.nbytes)
        except LongshoreError:
            self._let_go()
            self.device.give_back()
            raise
        self.base = self.bytes.data_ptr()
        return True

    @property
    def there_bytes(self):
        return self.nbytes

    def _let_go(self):
        super()._let_go()
        self.host.drop()

    def _buffers(self):
        return [[self.host.page(at) for at in of] for of in zip(*self.turns)]

    def _page_of(self, streamed):
        b = streamed.number
        return (lib.SHORE_PAGES_STAYS, self.host.page(self.own[b])) if b in self.own else (self.side[b], 0)

    def change(self, slots, nbytes, blocks):
        """Takes other memory for these slots, once no stream reads what is there. Nobody computes with blocks."""
        shown, self.shown, self.bytes = self.shown, None, None
        if shown is not None:
            ffi.release(shown)
            self.device.free(self.base)
        self.slots, self.nbytes = slots, max(nbytes, 4096)
        self.bytes = self.device.bytes(self.nbytes)
        self.base = self.bytes.data_ptr()
        self._show(blocks)

    def open(self, state, blocks):
        super().open(state, blocks)
        self.device.watch()
        self._show(blocks)

    def _show(self, blocks):
        """Opens the slots, as buffers on the device that pages are put into."""
        slots = {slot.number: slot for slot in (*self.slots, *(streamed.slot for streamed in blocks))}
        widen = {streamed.slot.number for streamed in blocks if streamed.storage != streamed.block.dtype}
        buffers = [ffi.new("uint64_t[]", [self.base + slots[number].base]) for number in range(len(slots))]
        pools = ffi.new("struct shore_shown_pool[]", max(len(buffers), 1))
        for number, (pool, buffer) in enumerate(zip(pools, buffers)):
            pool.buffers, pool.nbuffers, pool.widens = buffer, 1, number in widen
        options = native.new(
            "struct shore_shown_options",
            device=self.device.c,
            copying=self.device.copying,
            pools=pools,
            npools=len(buffers),
            **self.host.reached(),
        )
        self.shown = ffi.gc(
            native.made("struct shore_shown *", lib.shore_shown_open, self.pages, options), lib.shore_shown_close
        )

    def pool(self):
        return self.host.pool

    def parts(self):
        return [self.pages, self.shown, self.device]

    def is_given(self, streamed):
        return self.device.computing() in streamed.given

    def give(self, streamed):
        stream = self.device.computing()
        try:
            native.call(
                lib.shore_shown_get,
                self.shown,
                streamed.slot.number,
                streamed.number,
                stream,
                ffi.new("const void **"),
                ffi.new("uint64_t *"),
            )
        except LongshoreError as failure:
            raise self.device.explained(failure) from failure
        streamed.given.add(stream)

    def want(self, streamed, slot_is_free):
        if slot_is_free:
            lib.shore_shown_want(self.shown, streamed.slot.number, streamed.number)
        else:
            lib.shore_pages_want(self.pages, streamed.number)

    def leave(self, streamed):
        streamed.given.clear()
        lib.shore_shown_leave(self.shown, streamed.slot.number, streamed.number)

    def before_update(self, streamed):
        lib.shore_shown_release(self.shown, streamed.slot.number, streamed.number)

    def forget(self):
        lib.shore_shown_release_all(self.shown)

    def after_drive_loss(self, blocks):
        lib.shore_shown_settle(self.shown)

    def close(self):
        shown, self.shown = self.shown, None
        if shown is not None:
            ffi.release(shown)
        super().close()
        self.device.close()

    def leave_to_parent(self):
        if self.shown is not None:
            ffi.gc(self.shown, None)
            self.device.leave_to_parent()
        self.shown = None
        super().leave_to_parent()
