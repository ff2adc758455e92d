"""Devices that modules compute on. The host's memory is C's, and what crosses between the two goes by streams: who
needs it waits for an event."""

import queue
import threading
from concurrent.futures import Future, TimeoutError

import torch

from ..errors import LongshoreError
from ..native import ffi
from ..torch_internals import accelerator

TIMEOUT_SECONDS = 300  # for which a device may stand still
TRIED: set[str] = set()  # kinds of devices that slots are put on; of any other a model's parameters come to the CPU


def accelerators():
    """Kinds of devices beside the CPU that this process computes on."""
    found = accelerator()
    return (found.type,) if found.type != "cpu" and getattr(torch, found.type).is_initialized() else ()


def random_states():
    """{kind: states of its devices' generators}"""
    return {kind: [getattr(torch, kind).get_rng_state(n) for n in range(getattr(torch, kind).device_count())]
            for kind in accelerators()}


def set_random_states(states):
    for kind, each in states.items():
        for n, state in enumerate(each if kind in accelerators() else ()):
            getattr(torch, kind).set_rng_state(state, n)


def of(model):
    """The device that a model's parameters are on, if slots are put there; None: slots are the host's."""
    return next((p.device for p in model.parameters() if p.device.type in TRIED), None)


class Pinned:
    """In the place of a Buffer: memory of the host that a device copies from while others go on."""

    def __init__(self, nbytes):
        self.nbytes, self.bytes = nbytes, torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
        self.pointer = ffi.cast("void *", self.bytes.data_ptr())
        self.whole = ffi.buffer(self.pointer, nbytes)

    def view(self, dtype):
        return self.bytes.view(dtype)


class Slots:
    """Memory of slots on a device: what the host's have is put there when it is to be computed with."""

    def __init__(self, device, host):
        self.device, self.host, self.stream = device, host, torch.Stream(device)
        self.bytes = torch.empty(host.nbytes, dtype=torch.uint8, device=device)

    def put(self, slot, what):
        """what: tells one content of the slot from another."""
        computing = torch.accelerator.current_stream(self.device)
        if slot.put != what:
            here, there = (memory.bytes[slot.base:slot.base + slot.nbytes] for memory in (self.host, self))
            if slot.used is not None:
                self.stream.wait_event(slot.used)
            with self.stream:
                there.copy_(here, non_blocking=True)
            slot.put, slot.crossed = what, self.stream.record_event()
        computing.wait_event(slot.crossed)

    def hide(self, slot):
        """Nothing that is begun from here on computes with it."""
        slot.used = torch.accelerator.current_stream(self.device).record_event()

    def may_fill(self, slot):
        """Whether the host's memory may get other content."""
        return slot.crossed is None or slot.crossed.query()

    def fill(self, slot):
        """The host's memory gets other content."""
        if not self.may_fill(slot):
            slot.crossed.synchronize()
        slot.put = None


class Landing:
    """Gradients on their way from a device. One thread takes each of them when it is there, in the order in which they
    came."""

    def __init__(self, device):
        self.device, self.stream = device, torch.Stream(device)
        self.coming, self._asked = [], queue.SimpleQueue()
        self._failed = False  # whether one could not be taken: those behind it are not, either
        self._taker = threading.Thread(target=self._take, name="longshore-landing", daemon=True)
        self._taker.start()

    def begin(self, g, take):
        """take: called with its copy in memory of the host."""
        g = (g.to_dense() if g.is_sparse else g).contiguous()
        here = torch.empty(g.shape, dtype=g.dtype, pin_memory=True)
        self.stream.wait_event(torch.accelerator.current_stream(self.device).record_event())
        with self.stream:
            here.copy_(g, non_blocking=True)
        self.coming.append(Future())
        self._asked.put((self.coming[-1], self.stream.record_event(), here, g, take))

    def _take(self):
        while True:
            landed, event, here, g, take = self._asked.get()  # g: its memory is nobody else's until it has crossed
            try:
                event.synchronize()
                if not self._failed:
                    take(here)
                landed.set_result(None)
            except BaseException as failure:
                self._failed = True
                landed.set_exception(failure)
            del landed, event, here, g, take

    def end(self):
        """Returns when all are taken. Raises what one could not be taken for. The thread that takes them, which drops
        them where a drive was lost, does not wait for itself."""
        if threading.current_thread() is self._taker:
            return
        coming, self.coming = self.coming, []
        failures = [failure for failure in [_landed(future) for future in coming] if failure is not None]
        self._failed = False
        if failures:
            raise failures[0]


def _landed(future):
    """What it could not be taken for, or None."""
    try:
        return future.exception(TIMEOUT_SECONDS)
    except TimeoutError:
        return LongshoreError(f"the device has not gone on for {TIMEOUT_SECONDS:g} seconds (device_timeout), and is "
                              "taken to be lost; what was committed is whole: longshore.resume() goes on with it")
