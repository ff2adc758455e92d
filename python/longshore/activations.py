"""What autograd saves in forward, on the drives until backward asks for it.

A storage that autograd saves something of is copied into a pool of fixed size and written from there; the graph keeps its
place instead, so that its memory goes as soon as nobody else has it. Every tensor that lies in one storage at one version
shares the copy, and each is given back with its own offset, shape, strides and dtype. In backward, what comes next is read
ahead into the pool; what is still in the pool is given from there, and what was not yet written by then never is.

What stays in memory, as autograd has it: small tensors, inputs and buffers of the model, leaves, subclasses and layouts that
are more than bytes, what is computed again within backward, and whatever the pool or the drives have no room for.

A change that autograd cannot see (through ``.data``) between two times that one tensor is saved is not seen here either.
"""

import bisect
import threading
import time
import warnings
import weakref
from collections import deque

import torch
from torch.utils._pytree import tree_leaves

from . import native
from .errors import LongshoreError
from .native import ffi, lib
from .state import Buffer

KINDS = ("memory", "drives", "auto")
LEAST_BYTES = 1 << 20  # of a storage that goes; smaller ones are not worth a request
POOL_PARTS = 2  # a storage is at most such a part of the pool
PUTS = 4  # under way together
STALL = 0.02  # a longer part of the time waiting, and "auto" lets less go
UNIT = lib.SHORE_BUFFER_ALIGN_BYTES


class Room:
    """A range of bytes, taken in parts and given back: the first that is long enough."""

    def __init__(self, nbytes):
        self.nbytes = self.left = nbytes
        self.free = [(0, nbytes)] if nbytes else []

    def take(self, nbytes):
        """Where; None: no part is long enough."""
        for i, (at, length) in enumerate(self.free):
            if length >= nbytes:
                self.free[i:i + 1] = [(at + nbytes, length - nbytes)] if length > nbytes else []
                self.left -= nbytes
                return at
        return None

    def give(self, at, nbytes):
        self.left += nbytes
        i = bisect.bisect(self.free, (at, 0))
        if i < len(self.free) and at + nbytes == self.free[i][0]:
            nbytes += self.free.pop(i)[1]
        if i and sum(self.free[i - 1]) == at:
            i -= 1
            at, nbytes = self.free[i][0], nbytes + self.free.pop(i)[1]
        self.free.insert(i, (at, nbytes))


class Entry:
    """A storage as it was when it was saved. Lives as long as something in a graph refers to it."""

    __slots__ = ("what", "size", "source", "gone", "bytes", "at", "seal", "flight", "coming", "stored", "is_cached", "__weakref__")

    def __init__(self, what, size, source, gone):
        self.what, self.size, self.gone = what, size, gone
        self.source = source  # a weak reference, so that its identity is nobody else's meanwhile
        self.bytes = None  # in memory
        self.at = None  # on the drives
        self.flight = self.coming = None  # a request; of a get: the memory that it fills
        self.stored = self.is_cached = False

    def __del__(self):
        # may run anywhere: what has to be done is done by the next who comes
        if self.at is not None:
            self.gone.append((self.at, self.size))


class Saved:
    """What a graph keeps of a tensor that went."""

    __slots__ = ("entry", "chain", "place", "device", "dtype", "shape", "stride", "offset")


class Stayed:
    """What a graph keeps of a tensor that did not: the same storage, saved again, stays too."""

    __slots__ = ("tensor", "version", "mark")

    def __init__(self, tensor, mark=None):
        # a parameter that has other data for a while is given its own again
        self.tensor, self.version, self.mark = tensor.detach() if hasattr(tensor, "longshore") else tensor, tensor._version, mark

    def value(self):
        if self.tensor._version != self.version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"{tuple(self.tensor.shape)} tensor is at version {self.tensor._version}; expected version {self.version}")
        return self.tensor


class _Mark:
    __slots__ = ("__weakref__",)


class Activations:
    """The store of one engine. Thread-safe; requests are begun and ended by whoever saves or asks."""

    def __init__(self, fleet, kind, pool_bytes, scratch_bytes, least=None):
        """kind: "drives" waits for the drives where the pool is full; "auto" leaves in memory what they do not keep up with."""
        self.fleet, self.waits = fleet, kind == "drives"
        self.least = LEAST_BYTES if least is None else least
        self.memory = Buffer(pool_bytes)
        self.pool, self.scratch = Room(self.memory.nbytes), Room(scratch_bytes)
        self.lock = threading.RLock()
        self.known = weakref.WeakValueDictionary()  # by identity: Entry, or _Mark of what stays
        self.queue = deque()  # entries to be written, weakly
        self.cached = deque()  # entries that are both in memory and on the drives, weakly; the oldest first
        self.flying = []  # entries with a request under way
        self.returned, self.gone = deque(), deque()  # of the pool; of scratch
        self.local = threading.local()
        self.paused = False  # in backward nothing is written that will be asked for soon
        self.broken = None  # what a store failed with
        # since the beginning, bytes
        self.went_bytes = self.stayed_bytes = self.written_bytes = self.read_bytes = 0
        self.stalled_s = 0.0
        self._round = (time.monotonic(), 0.0, 0)  # when this one began; stalled, went until then
        self.most = None  # bytes that may go in a round; None: all

    # ---- forward

    def begin(self, model, args, kwargs):
        """A forward pass of the model, in this thread."""
        held = tree_leaves((args, kwargs)) + list(model.buffers())
        self.local.held = {t.untyped_storage().data_ptr() for t in held if _is_plain(t)}
        self.local.chain = []
        if not self.waits:
            self._adapt()

    def _adapt(self):
        """Less goes where backward had to wait, more where it did not."""
        with self.lock:
            if self.known:
                return  # a graph is still there: the round goes on
            now = time.monotonic()
            began, stalled, went = self._round
            self._round = now, self.stalled_s, self.went_bytes
            went = self.went_bytes - went
            if not went:
                return
            if self.stalled_s - stalled > STALL * (now - began):
                self.most = went * 7 // 8
            elif self.most is not None:
                self.most += self.most // 16

    def pack(self, tensor):
        """What the graph is to keep of it: Saved or Stayed."""
        if not self._may_go(tensor):
            return Stayed(tensor)
        storage = tensor.untyped_storage()
        key = storage._cdata, storage.data_ptr(), tensor._version
        with self.lock:
            self.paused = False
            entry = self.known.get(key)
            if type(entry) is _Mark:
                return Stayed(tensor, entry)
            if entry is None:
                entry = self._take(tensor, storage)
                if entry is None:
                    mark = self.known[key] = _Mark()
                    self.stayed_bytes += storage.nbytes()
                    return Stayed(tensor, mark)
                self.known[key] = entry
            out = Saved()
            out.entry, out.device, out.dtype = entry, tensor.device, tensor.dtype
            out.shape, out.stride, out.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
            out.chain = self.local.chain
            out.place = len(out.chain)
            out.chain.append(weakref.ref(entry))
            self._pump()
            return out

    def _may_go(self, tensor):
        if not _is_plain(tensor) or self.broken is not None or torch._C._current_graph_task_id() != -1:
            return False
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if not self.least <= nbytes <= self.memory.nbytes // POOL_PARTS or tensor.is_leaf and tensor.requires_grad:
            return False
        if hasattr(tensor if tensor._base is None else tensor._base, "longshore"):
            return False  # its data may be changed, and count no version
        if tensor._base is None and tensor.nbytes != nbytes:
            return False  # of unsafe_chunk(), say: it counts changes for itself, and its version is not its storage's
        if tensor.nbytes * 8 < nbytes and (storage._cdata, storage.data_ptr(), tensor._version) not in self.known:
            return False  # a small part of something larger, which may be somebody's anyway
        return storage.data_ptr() not in self.local.held

    def _take(self, tensor, storage):
        nbytes = storage.nbytes()
        if self.most is not None and self.went_bytes - self._round[2] + nbytes > self.most:
            return None
        size = -(-nbytes // UNIT) * UNIT
        memory = self._memory(size, waits=self.waits)
        if memory is None:
            return None
        with torch.no_grad():
            memory.data[:nbytes].copy_(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
        what = f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
        entry = Entry(what, size, torch.multiprocessing.reductions.StorageWeakRef(storage), self.gone)
        entry.bytes = memory
        self.queue.append(weakref.ref(entry))
        self.went_bytes += nbytes
        return entry

    # ---- memory

    def _memory(self, size, evicts=True, waits=False):
        """Of the pool, as a tensor of bytes that gives it back when nobody has it; None: there is no room."""
        while True:
            self._pump()
            at = self.pool.take(size)
            if at is not None:
                buffer = ffi.buffer(self.memory.pointer + at, size)
                weakref.finalize(buffer, _give, self.returned, at, size, self.memory).atexit = False
                return torch.frombuffer(buffer, dtype=torch.uint8)
            if evicts and self.cached:
                entry = self.cached.popleft()()
                if entry is not None:
                    entry.is_cached, entry.bytes = False, None
            elif waits and self.flying:
                self._land(self.flying.pop(0))
            else:
                return None

    def _cache(self, entry):
        """It is both in memory and on the drives: whoever needs memory may take this."""
        while self.cached and self.cached[0]() is None:
            self.cached.popleft()
        if not entry.is_cached:
            entry.is_cached = True
            self.cached.append(weakref.ref(entry))

    # ---- requests

    def _pump(self):
        """Ends what has ended, and begins what waits."""
        while self.gone:
            self.scratch.give(*self.gone.popleft())
        under_way, self.flying = self.flying, []
        for entry in under_way:
            if entry.flight.done:
                self._land(entry)
            else:
                self.flying.append(entry)
        del under_way
        while self.returned:
            self.pool.give(*self.returned.popleft())
        while self.queue and not self.paused and len(self.flying) < PUTS and self.broken is None:
            entry = self.queue[0]()
            if entry is not None and not self._put(entry):
                return
            self.queue.popleft()

    def _put(self, entry):
        """False: scratch has no room."""
        at = self.scratch.take(entry.size)
        if at is None:
            return False
        entry.at, entry.seal = at, ffi.new("unsigned char[16]")
        try:
            entry.flight = native.Wait(lib.shore_fleet_scratch_put, self.fleet, at, entry.size, self._pointer(entry.bytes), entry.seal,
                                       keeps=entry.bytes, what="an activation cannot be stored")
        except LongshoreError as failure:
            self._break(failure)
            return True
        self.flying.append(entry)
        return True

    def _get(self, entry, memory):
        entry.flight = native.Wait(lib.shore_fleet_scratch_get, self.fleet, entry.at, entry.size, self._pointer(memory), entry.seal,
                                   keeps=memory, what=f"what forward has saved, {entry.what}, cannot be read back")
        entry.coming = memory
        self.flying.append(entry)

    def _land(self, entry):
        """Its request has ended, or is waited for. Of a get, what it failed with is raised by who asks for it again."""
        flight, memory = entry.flight, entry.coming
        entry.flight = entry.coming = None
        try:
            flight.result()
        except LongshoreError as failure:
            if memory is None:
                self._break(failure)
            return failure
        if memory is None:
            entry.stored = True
            self.written_bytes += entry.size
            self._cache(entry)
        else:
            entry.bytes = memory
            self.read_bytes += entry.size
        return None

    def _break(self, failure):
        self.broken = failure
        warnings.warn(f"activations stay in memory from here on: {failure}", stacklevel=2)

    @staticmethod
    def _pointer(memory):
        return ffi.cast("void *", memory.data_ptr())

    # ---- backward

    def unpack(self, saved):
        """The tensor as it was saved. Raises LongshoreError where the drives do not give it back."""
        with self.lock:
            entry, self.paused = saved.entry, True
            self._pump()
            if entry.bytes is None:
                began = time.monotonic()
                self._bring(entry)
                self.stalled_s += time.monotonic() - began
            self._ahead(saved)
            if entry.stored:
                self._cache(entry)
            memory = entry.bytes
        if memory._version:
            raise RuntimeError(f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                               f"{entry.what}, as backward got it before")
        if saved.device.type != "cpu":
            memory = memory.to(saved.device)
        return torch.as_strided(memory.view(saved.dtype), saved.shape, saved.stride, saved.offset)

    def _bring(self, entry):
        if entry.flight is not None:
            self.flying.remove(entry)
            self._land(entry)
            if entry.bytes is not None:
                return
        if self.fleet is None:
            raise LongshoreError(f"what forward has saved, {entry.what}, went with the engine, which is closed")
        memory = self._memory(entry.size)
        self._get(entry, Buffer(entry.size).bytes if memory is None else memory)
        self.flying.remove(entry)
        failure = self._land(entry)
        if failure is not None:
            raise LongshoreError(f"{failure}; drop the gradients of this step and make it again", failure.code) from failure

    def _ahead(self, saved):
        """Begins to read what backward will ask for next: what was saved before."""
        ahead = 0
        for place in range(saved.place - 1, -1, -1):
            entry = saved.chain[place]()
            if entry is None or entry is saved.entry:
                continue
            ahead += entry.size
            if ahead > self.memory.nbytes * 3 // 4:
                return
            if entry.bytes is None and entry.flight is None:
                if self.fleet is None:
                    return
                memory = self._memory(entry.size, evicts=False)
                if memory is None:
                    return
                self._get(entry, memory)

    # ---- the end

    def settle(self):
        """Waits for what is under way."""
        with self.lock:
            while self.flying:
                self._land(self.flying.pop())
            self._pump()

    def end(self):
        """The drives go. What is in memory can still be had."""
        with self.lock:
            self.paused = True
            self.queue.clear()
            self.settle()
            self.fleet = None


def _is_plain(tensor):
    """Its storage is all there is to it."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.device.type != "meta"
            and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_inference())


def _give(returned, at, size, memory):
    """memory: lives as long as a part of it is somebody's."""
    returned.append((at, size))
