"""Copies activations between a device and pinned memory, on two streams of its own, one each way.

Computing waits for events of these streams, and the host for none. What leaves can be used on the device until its
memory there is given up. What backward needs soon comes ahead of it. Both take a bounded part of the device. Where it
matters, events on both sides of a wait say how long computing stood.
"""

import contextlib

import torch

IN_FLIGHT = 2  # how many activations are on their way, each way, however large they are
IN_FLIGHT_BYTES = 256 << 20  # more of them are, up to so many bytes


class Crossing:
    """An activation's bytes on the device, which leave or come."""

    __slots__ = ("memory", "event", "stream", "is_dropped")

    def __init__(self, memory, event):
        """memory: a tensor of bytes. event: torch.Event behind the copy; None: it has passed."""
        self.memory, self.event, self.is_dropped = memory, event, False
        self.stream = torch.accelerator.current_stream(memory.device)  # which gets the memory when it is given up

    def has_passed(self):
        if self.event is not None and self.event.query():
            self.event = None
        return self.event is None

    def give_up(self):
        """Whoever gets the memory next follows the copy."""
        if self.event is not None:
            self.stream.wait_event(self.event)

    def used(self, memory):
        """The memory is used by what this thread computes from here on."""
        computing = torch.accelerator.current_stream(memory.device)
        if computing.stream_id != self.stream.stream_id:
            memory.record_stream(computing)


class OffloadStreams:
    """The streams, and what is on its way. Threading: one thread at a time, but for drop()."""

    def __init__(self, device, measures):
        """measures: how long computing stands where it follows a copy."""
        self.measures, self.stood = measures, []  # pairs of events on both sides of a wait
        self.device, self.out, self.into = device, device.new_stream(), device.new_stream()
        self.leaving, self.coming = {}, {}  # {key: Crossing}, in order
        self.savers = set()  # numbers of the streams that activations were saved on

    def leave(self, key, there, here):
        """Copies an activation's bytes to pinned memory. Returns the struct shore_event behind it."""
        until = self.device.copy(self.out, here, there)
        self.leaving[key] = crossing = Crossing(there, self.device.event_of(until))
        self.savers.add(crossing.stream.stream_id)
        if len(self.savers) > 1:  # its memory may be another one's
            there.record_stream(self.device.on(self.out))
        return until

    def come(self, there, here, after):
        """Copies an activation's bytes to the device, once a struct shore_event has passed. Returns the struct
        shore_event behind it, and the Crossing."""
        self.device.follow(after, self.into)
        until = self.device.copy(self.into, there, here)
        return until, Crossing(there, self.device.event_of(until))

    def may_come(self, key, nbytes):
        """Whether an activation may come ahead of its use."""
        if key in self.coming or key in self.leaving:
            return False
        return self._may_be_on_their_way([*_sizes(self.coming), nbytes])

    def taken(self, key):
        """The Crossing of an activation that is on the device; None: it is not."""
        if key in self.leaving:
            return Crossing(self.leaving[key].memory, None)
        return self.coming.pop(key, None)

    def let_go(self, keeps):
        """Gives up memory of what has left, and of the first ones if too much is leaving. keeps: not what backward may
        ask for."""
        for key, crossing in list(self.leaving.items()):
            if keeps and not crossing.is_dropped:
                continue
            if not crossing.has_passed():
                if self._may_be_on_their_way(_sizes(self.leaving)):
                    return
                self._follow(crossing.stream, crossing)
            self.leaving.pop(key, None)

    def use(self, crossing, memory):
        """What this thread computes from here on follows the copy, and uses its memory."""
        self._follow(torch.accelerator.current_stream(memory.device), crossing)
        crossing.used(memory)

    def _follow(self, stream, crossing):
        if crossing.has_passed():
            return
        sides = [torch.Event(self.device.device, enable_timing=True) for _ in range(2 if self.measures else 0)]
        for side in sides[:1]:
            stream.record_event(side)
        stream.wait_event(crossing.event)
        for side in sides[1:]:
            stream.record_event(side)
            self.stood.append(sides)

    def stood_ns(self):
        """How long computing stood, as far as that is over, since this was asked last."""
        over = [pair for pair in self.stood if pair[1].query()]
        self.stood = [pair for pair in self.stood if pair not in over]
        try:
            return int(sum(before.elapsed_time(after) for before, after in over) * 1e6)
        except RuntimeError:  # not every device can tell
            self.measures, self.stood = False, []
            return 0

    def _may_be_on_their_way(self, sizes):
        few = len(sizes) <= IN_FLIGHT or sum(sizes) <= IN_FLIGHT_BYTES
        return few and not self.device.crosses_too_much(sum(sizes))

    def drop(self, key):
        """Nobody will ask for an activation. Threading: any."""
        came, leaves = self.coming.pop(key, None), self.leaving.get(key)
        with contextlib.suppress(RuntimeError):  # of a device that has failed
            if came is not None:
                came.give_up()
            if leaves is not None:
                leaves.is_dropped = True
                if leaves.has_passed():
                    self.leaving.pop(key, None)

    def clear(self):
        """Gives everything up."""
        for crossings in (self.leaving, self.coming):
            for crossing in crossings.values() if self.device.works() else ():
                crossing.give_up()
            crossings.clear()


def _sizes(crossings):
    return [crossing.memory.nbytes for crossing in list(crossings.values())]
