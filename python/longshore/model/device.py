"""Devices other than the CPU, as the library knows them: struct shore_device, made of torch.Stream and torch.Event."""

import errno
import threading

import torch

from .. import native
from ..errors import LongshoreError
from ..native import ffi, lib
from ..torch_internals import accelerator
from . import cuda
from .pinned import Pinned

TIMEOUT_SECONDS = lib.SHORE_DEVICE_TIMEOUT_NS // 10**9  # how long a device may take for a copy
WIDENED_AT_ONCE = 4096  # elements: so many are widened through a copy of them


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


def refuse_timeout(who, value, name="device_timeout"):
    """Raises ValueError for a device_timeout, or another one, that is no time."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise ValueError(f"{who}: {name} must be a number of seconds, more than 0, and is {value!r}")


def numbers(tensors, device=None):
    """The values of tensors of one element, waited for as to_host() does."""
    there = [t.reshape(()) for t in tensors if t.device.type != "cpu"]
    read = iter(to_host({0: torch.stack(there)}, device)[0].tolist() if there else ())
    return [t.item() if t.device.type == "cpu" else next(read) for t in tensors]


def to_host(tensors, device=None):
    """{name: the tensor in host memory} of {name: tensor}, with one wait for all that lie on a device. device: the
    Device, whose limit holds; None: there is no limit."""
    out = {name: t if t.device.type == "cpu" else _host_copy_of(t) for name, t in tensors.items()}
    copied = [out[name].copy_(t, non_blocking=True) for name, t in tensors.items() if t is not out[name]]
    if copied and device is None:
        torch.accelerator.current_stream().synchronize()
    elif copied:
        native.call(lib.shore_device_wait, device.c, device.record(device.computing()))
    return out


def _host_copy_of(t):
    """Memory for a copy of a tensor: pinned, if there is any left."""
    try:
        return torch.empty_like(t, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty_like(t, device="cpu")


def empty_caches():
    """Gives memory that PyTorch keeps for later back to the devices and the system, as far as this PyTorch can."""
    for kind in accelerators():
        getattr(torch.accelerator, "empty_cache", getattr(torch, kind).empty_cache)()
        getattr(torch.accelerator, "empty_host_cache", lambda: None)()


_unfinished: list = []  # memory of lost devices, which nobody else may get


class _Stream:
    """A stream of PyTorch's, with the events on it that have not passed."""

    def __init__(self, stream, copies):
        """copies: it is one of the engine's own, which nothing is computed on."""
        self.stream, self.copies, self.recorded, self.passed = stream, copies, 0, 0
        self.computed = None  # the last event of a computing stream that this one follows
        self.events = {}  # {position: (torch.Event, `computed` at that moment)}, in their order

    def note(self):
        """Forgets events that have passed, the first ones first."""
        for position, (event, _) in list(self.events.items()):
            if not event.query():
                return
            del self.events[position]
            self.passed = position

    def follow(self, event, computed):
        """What is called on it from here on follows a torch.Event. computed: whether that is of a computing stream."""
        self.stream.wait_event(event)
        if computed:
            self.computed = event


class Device:
    """A device for the library (device.h). Its copies run on a stream of its own. Thread-safe."""

    def __init__(self, device, timeout=TIMEOUT_SECONDS):
        """timeout: seconds after which a device that does not go on is lost."""
        self.device, self.is_unified = device, cuda.is_unified(device)
        # bytes that may be on their way from it at once, half of them gradients, half activations; None: any number
        self.crossing_most, self.more_may_cross = None, lambda: False
        self.charges = None  # the Charges of the open run
        self.failure = None  # the first exception of a callback: nothing that was called after it has run for sure
        self._lock = threading.Lock()
        self._numbers, self._streams = {}, []  # {what PyTorch knows a stream by: its number}; from number 1 on
        self._memory, self._pinned = [], []  # (address of a range, its tensor of bytes), here and there; what is here
        self._handle = ffi.new_handle(self)
        self.c = native.new(
            "struct shore_device",
            ctx=self._handle,
            put=_put,
            get=_get,
            record=_record,
            follow=_follow,
            wait=_wait,
            widen=_widen,
            timeout_ns=int(timeout * 1e9),
        )
        try:
            self.copying = self.new_stream()
        except (RuntimeError, NotImplementedError) as failure:
            raise LongshoreError(
                f"{device} has no streams that copies can run on ({native.first_line(failure)}): compute on the CPU, "
                'with device="cpu"'
            ) from failure

    # ---- memory

    def pinned(self, nbytes):
        """Pinned memory that the library may copy from and to."""
        pinned = Pinned(nbytes, self.device)
        self._pinned.append(pinned)
        self._memory.append((pinned.address, pinned.bytes))
        return pinned

    def unpin(self, pinned):
        """Gives pinned memory back that nothing was copied from or to."""
        self._pinned.remove(pinned)
        self._memory.remove((pinned.address, pinned.bytes))
        pinned.release()

    def bytes(self, nbytes):
        """Memory of the device, as a tensor of bytes, that the library may copy from and to."""
        try:
            there = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except (RuntimeError, MemoryError) as failure:
            raise LongshoreError(
                f"{native.readable(nbytes)} for parameters are refused on {self.device} ({native.first_line(failure)})"
            ) from failure
        self._memory.append((there.data_ptr(), there))
        return there

    def watch(self):
        """Begins to wait for events on a thread of the library's, so that nobody else has to look at them."""
        self.rest = torch.empty(WIDENED_AT_ONCE, dtype=torch.bfloat16, device=self.device)  # of a widening
        native.call(lib.shore_device_watch, self.c)

    def _settle(self):
        """Waits until all streams have run, unless the device has failed."""
        for number in self._numbers.values():
            if self.works():
                lib.shore_device_wait(self.c, self.record(number), ffi.NULL)

    def free(self, address):
        """Lets go of the memory at an address, once no stream reads it."""
        self._settle()
        if not self.c.lost:
            self._memory = [(start, there) for start, there in self._memory if start != address]

    def close(self):
        """Lets go of all memory, once no stream reads it. Nothing is called on it any more."""
        self._settle()
        lib.shore_device_unwatch(self.c)
        self.give_back()

    def give_back(self):
        """Gives all memory back. No stream uses it any more, unless the device is lost."""
        if self.c.lost:
            _unfinished.append((self._memory, self._pinned))  # the device may still write there
        else:
            for pinned in self._pinned:
                pinned.release()
        self._memory, self._pinned, self.rest = [], [], None

    def leave_to_parent(self):
        """In a forked process: it has no watch."""
        self.c.watch = ffi.NULL

    def at(self, address, nbytes):
        """The bytes at an address, as a tensor."""
        for start, there in self._memory:
            if start <= address and address + nbytes <= start + there.numel():
                return there[address - start : address - start + nbytes]
        raise AssertionError(f"no memory at {address}")

    def at_pointer(self, pointer, nbytes):
        return self.at(int(ffi.cast("uintptr_t", pointer)), nbytes)

    def crosses_too_much(self, nbytes):
        """Whether somebody has to wait for what is on its way from the device: these bytes of gradients, or of
        activations."""
        return self.crossing_most is not None and nbytes > self.crossing_most // 2 and not self.more_may_cross()

    # ---- streams

    def new_stream(self):
        """The number of a stream of its own."""
        return self.number_of(torch.Stream(self.device), copies=True)

    def number_of(self, stream, copies=False):
        """The number of a torch.Stream, which stands for it in the library as a pointer."""
        with self._lock:
            known = stream.stream_id, stream.device_index
            if known not in self._numbers:
                self._streams.append(_Stream(stream, copies))
                self._numbers[known] = ffi.cast("void *", len(self._streams))
            return self._numbers[known]

    def _of(self, number):
        return self._streams[int(ffi.cast("uintptr_t", number)) - 1]

    def computing(self):
        """The same for the stream that this thread computes on."""
        return self.number_of(torch.accelerator.current_stream(self.device))

    def record(self, number):
        """struct shore_event of the present moment of a stream."""
        event = ffi.new("struct shore_event *", {"stream": number})
        with self._lock:
            there = self._of(number)
            there.note()
            there.recorded += 1
            event.position = there.recorded
            there.events[there.recorded] = there.stream.record_event(), there.computed
        return event[0]

    def event_of(self, event):
        """The torch.Event of a struct shore_event; None: it has passed."""
        return self._both(event)[0]

    def _both(self, event):
        with self._lock:
            there = self._of(event.stream)
            there.note()
            return (None, None) if event.position <= there.passed else there.events[event.position]

    def wait(self, event):
        """Waits for a struct shore_event. Of a copy, the thread that steps is charged for the bus once what the copy
        follows is computed."""
        until, computed = self._both(event)
        if until is None:
            return
        if self.charges is None or not self._of(event.stream).copies:
            until.synchronize()
            return
        if computed is not None:
            computed.synchronize()
        with self.charges.waiting(lib.SHORE_CHARGE_BUS):
            until.synchronize()

    def on(self, number):
        """The torch.Stream of a number."""
        return self._of(number).stream

    def copy(self, number, to, source):
        """Copies on a stream, once what this thread computes so far is there. Returns the struct shore_event behind
        it."""
        there = self._of(number)
        there.follow(torch.accelerator.current_stream(self.device).record_event(), True)
        with there.stream:
            to.copy_(source, non_blocking=True)
        return self.record(number)

    def follow(self, event, number=None):
        """What a stream does from here on begins when a struct shore_event has passed. number: the stream's; None: the
        one that this thread computes on."""
        before = self.event_of(event) if event.stream else None
        if before is not None:
            there = self._of(self.computing() if number is None else number)
            there.follow(before, not self._of(event.stream).copies)

    # ---- failures

    def works(self):
        return self.failure is None and not self.c.lost

    def tried(self, what):
        """Calls what() for a callback of the library, through which no exception may pass."""
        if self.failure is None:
            try:
                what()
            except BaseException as failure:
                self.failure = failure
        return 0 if self.failure is None else -errno.EIO

    def explained(self, failure):
        """The library's error, with the exception of a callback if that is why."""
        if self.failure is None:
            return failure
        out = LongshoreError(
            f"{failure} ({native.first_line(self.failure)}); the committed state is good: continue with "
            "longshore.resume()",
            failure.code,
        )
        out.__cause__ = self.failure
        return out


@ffi.callback("int(void *, void *, uint64_t, void *, size_t)")
def _put(ctx, stream, to, here, nbytes):
    return _copy(ffi.from_handle(ctx), stream, to, int(ffi.cast("uintptr_t", here)), nbytes)


@ffi.callback("int(void *, void *, void *, uint64_t, size_t)")
def _get(ctx, stream, to, there, nbytes):
    return _copy(ffi.from_handle(ctx), stream, int(ffi.cast("uintptr_t", to)), there, nbytes)


def _copy(device, stream, to, source, nbytes):
    def copy():
        with device.on(stream):
            device.at(to, nbytes).copy_(device.at(source, nbytes), non_blocking=True)

    return device.tried(copy)


@ffi.callback("int(void *, void *, uint64_t, uint64_t, size_t)")
def _widen(ctx, stream, to, source, elems):
    device = ffi.from_handle(ctx)

    def widen():
        wide = device.at(to, 4 * elems).view(torch.float32)
        narrow = device.at(source, 2 * elems).view(torch.bfloat16)
        done = 0
        with device.on(stream):
            # narrow may be the upper half of wide: the first half of what is left never overlaps its source
            while elems - done > WIDENED_AT_ONCE:
                until = (done + elems) // 2
                wide[done:until].copy_(narrow[done:until], non_blocking=True)
                done = until
            rest = device.rest[: elems - done]
            rest.copy_(narrow[done:], non_blocking=True)
            wide[done:].copy_(rest, non_blocking=True)

    return device.tried(widen)


@ffi.callback("struct shore_event(void *, void *)")
def _record(ctx, stream):
    device, recorded = ffi.from_handle(ctx), [ffi.new("struct shore_event *", {"stream": stream})[0]]
    device.tried(lambda: recorded.append(device.record(stream)))
    return recorded[-1]  # without the record an event whose wait() tells of the failure


@ffi.callback("int(void *, void *, struct shore_event)")
def _follow(ctx, stream, event):
    device = ffi.from_handle(ctx)

    def follow():
        device.follow(event, stream)

    return device.tried(follow)


@ffi.callback("int(void *, struct shore_event, uint64_t, struct shore_diag *)")
def _wait(ctx, event, timeout_ns, diag):
    device, passed = ffi.from_handle(ctx), []

    def wait():
        if timeout_ns:
            device.wait(event)
        passed.append(bool(timeout_ns) or device.event_of(event) is None)

    code = device.tried(wait)
    if code and diag != ffi.NULL:
        diag.text = f"the device has failed: {native.first_line(device.failure)}".encode()[:1000]
    return code or (0 if passed[0] else -errno.ETIMEDOUT)
