"""The slots that layers share: layer n lies in slot `n modulo slots`, its blocks (frozen and trained, of each dtype)
side by side.
Embeddings, heads and the like have slots of their own, unless memory is short.

A device's slots may become more or fewer between passes. Then parameters get other addresses, and stay the same
objects."""

from ..errors import LongshoreError
from ..interrupts import whole
from ..torch_internals import DisableTorchFunctionSubclass, outside_inference_mode


class Slot:
    """A range of memory that holds one block at a time."""

    def __init__(self, number, base, nbytes, of):
        """of: one of the blocks that lie in it, all of one dtype."""
        widens = of.storage != of.block.dtype
        self.number, self.base, self.nbytes, self.holds = number, base, nbytes, None
        self.fetched = base + (nbytes // 2 if widens else 0)  # offset at which fetched bytes arrive in one tier


def divide(streams, count):
    """Gives each block its slot, where layers share so many; 0: one, which blocks outside of layers share, too, if they
    may. Returns (the slots that are shared, bytes of all)."""
    layout, layers = streams.layout, streams.layers
    streams.slots = min(count, max(1, len(layers)))
    sides, shared, at = layout.sides() if count else layout.sides_of_all(), [], 0
    for side in sides * max(1, streams.slots):
        shared.append(Slot(len(shared), at, max(map(layout.nbytes, side)), streams.blocks[side[0]]))
        at += shared[-1].nbytes
    number, side_of = len(shared), {b: n for n, side in enumerate(sides) for b in side}
    for streamed in streams.blocks:
        b = streamed.number
        if b in side_of:
            n = streams.place_of.get(b, 0) % max(1, streams.slots)
            streamed.slot = shared[n * len(sides) + side_of[b]]
            streamed.stays = streams.slots == len(layers) if count else len(sides[side_of[b]]) == 1
        else:
            streamed.slot, streamed.stays = Slot(number, at, layout.nbytes(b), streamed), True
            number, at = number + 1, at + streamed.slot.nbytes
    return shared, at


def bind(streams):
    """Points all parameters into their slots, wherever these lie now."""
    streams.places.know(streams.blocks)
    for streamed in streams.blocks:
        for index, (p, handle) in enumerate(streamed.parameters):
            handle.view = streams.view_of(streamed, index)
            if not handle.temporary:
                with DisableTorchFunctionSubclass():
                    p.data = handle.view


@whole
@outside_inference_mode
def change(streams, count):
    """Gives the device's slots another number. Returns False if somebody computes with blocks now, who needs them where
    they are. If the device refuses the memory, there are as many slots as before."""
    with streams.lock:
        if streams.inside.others_compute() or any(streamed.pins for streamed in streams.blocks):
            return False
        before = streams.slots
        for streamed in streams.blocks:
            streams.hide(streamed)
        streams.places.detach_all([named for streamed in streams.blocks for named in streamed.parameters])
        for number in (count, before):
            try:
                streams.tier.change(*divide(streams, number), streams.blocks)
                break
            except LongshoreError:
                if number == before:
                    raise
        bind(streams)
        return True
