"""Devices other than the CPU: copies slots to a device, and gradients back, on streams of their own.

Code that needs a copy waits for its event."""

import queue
import threading
from concurrent.futures import Future, TimeoutError

import torch

from ..errors import LongshoreError
from ..native import ffi
from ..torch_internals import accelerator

TIMEOUT_SECONDS = 300  # how long a device may take for a copy
TRIED: set[str] = set()  # kinds of devices that slots are copied to; a model on any other is moved to the CPU


def accelerators():
    """The kinds of devices other than the CPU that this process uses."""
    found = accelerator()
    return (found.type,) if found.type != "cpu" and getattr(torch, found.type).is_initialized() else ()


def random_states():
    """Returns {kind: random generator states of its devices}."""
    return {
        kind: [getattr(torch, kind).get_rng_state(n) for n in range(getattr(torch, kind).device_count())]
        for kind in accelerators()
    }


def set_random_states(states):
    for kind, each in states.items():
        for n, state in enumerate(each if kind in accelerators() else ()):
            getattr(torch, kind).set_rng_state(state, n)


def of(model):
    """Returns the device of a model's parameters, if slots are copied to it; None: modules compute in the host's
    slots."""
    return next((p.device for p in model.parameters() if p.device.type in TRIED), None)


class Pinned:
    """A Buffer in pinned host memory, which a device copies asynchronously."""

    def __init__(self, nbytes):
        self.nbytes, self.bytes = nbytes, torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
        self.pointer = ffi.cast("void *", self.bytes.data_ptr())
        self.whole = ffi.buffer(self.pointer, nbytes)

    def view(self, dtype):
        return self.bytes.view(dtype)


class Slots:
    """The slots on a device: copies of the host's slots, made when a module needs them."""

    def __init__(self, device, host):
        self.device, self.host, self.stream = device, host, torch.Stream(device)
        self.bytes = torch.empty(host.nbytes, dtype=torch.uint8, device=device)

    def put(self, slot, what):
        """Copies a slot from the host unless the device has its content. what: identifies the content."""
        computing = torch.accelerator.current_stream(self.device)
        if slot.put != what:
            here, there = (memory.bytes[slot.base : slot.base + slot.nbytes] for memory in (self.host, self))
            if slot.used is not None:
                self.stream.wait_event(slot.used)
            with self.stream:
                there.copy_(here, non_blocking=True)
            slot.put, slot.crossed = what, self.stream.record_event()
        computing.wait_event(slot.crossed)

    def hide(self, slot):
        """Notes the last computation with a slot: the next copy waits for it."""
        slot.used = torch.accelerator.current_stream(self.device).record_event()

    def may_fill(self, slot):
        """Whether the host's slot may be overwritten, since its copy has ended."""
        return slot.crossed is None or slot.crossed.query()

    def fill(self, slot):
        """Waits until the host's slot may be overwritten."""
        if not self.may_fill(slot):
            slot.crossed.synchronize()
        slot.put = None


class Landing:
    """Gradients on their way from a device. A thread takes each one after its copy, in the order of arrival."""

    def __init__(self, device):
        self.device, self.stream = device, torch.Stream(device)
        self.coming, self._asked = [], queue.SimpleQueue()
        self._failed = False  # whether taking one has failed: later ones are then dropped
        self._taker = threading.Thread(target=self._take, name="longshore-landing", daemon=True)
        self._taker.start()

    def begin(self, g, take):
        """Begins to copy a gradient. take: is called with the copy in host memory."""
        g = (g.to_dense() if g.is_sparse else g).contiguous()
        here = torch.empty(g.shape, dtype=g.dtype, pin_memory=True)
        self.stream.wait_event(torch.accelerator.current_stream(self.device).record_event())
        with self.stream:
            here.copy_(g, non_blocking=True)
        self.coming.append(Future())
        self._asked.put((self.coming[-1], self.stream.record_event(), here, g, take))

    def _take(self):
        while True:
            landed, event, here, g, take = self._asked.get()  # g: keeps its memory until the copy has ended
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
        """Waits until all gradients are taken. Raises the first failure. Called on the taking thread, which drops
        gradients if a drive was lost, it does nothing."""
        if threading.current_thread() is self._taker:
            return
        coming, self.coming = self.coming, []
        failures = [failure for failure in [_landed(future) for future in coming] if failure is not None]
        self._failed = False
        if failures:
            raise failures[0]


def _landed(future):
    """Returns the exception with which taking a gradient failed, or None."""
    try:
        return future.exception(TIMEOUT_SECONDS)
    except TimeoutError:
        return LongshoreError(
            f"the device has done nothing for {TIMEOUT_SECONDS:g} seconds (device_timeout), so it "
            "counts as lost; the committed state is good: continue with longshore.resume()"
        )
