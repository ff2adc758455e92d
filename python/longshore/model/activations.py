"""Activation offload: keeps what autograd saves in forward in host memory or on the drives until backward needs it.

When autograd saves a tensor, Longshore copies its storage into the C library's store (``store.h``), which writes it to
the drives, or keeps it as long as it has room. The graph keeps only its place, so that PyTorch can free the memory. All
tensors in one storage at one version share one copy; each gets its own offset, shape, strides and dtype back. Backward
reads ahead.

Inputs of checkpoints, from which layers are computed again, leave as others do, and are counted apart.

These stay in memory: small tensors, inputs and buffers of the model, leaves, tensor subclasses and layouts that are
more than bytes, what backward recomputes, and whatever the store has no room for.

What lies on a device leaves and comes back on streams of its own, for which computing waits, and the host does not. As
long as it is on the device still, backward gets it from there.

If a script changes a tensor through ``.data`` between two saves, neither autograd nor this module sees it.
"""

import itertools
import logging
import threading
import warnings
import weakref

import torch

from .. import forks, native
from ..drives.buffer import Buffer
from ..errors import LongshoreError
from ..interrupts import whole
from ..native import ffi, lib
from ..torch_internals import (
    base,
    graph_task,
    in_backward,
    profiled,
    saves_checkpoints_input,
    storage_id,
    tree_leaves,
    version_of,
)
from .offload_streams import Crossing, OffloadStreams
from .pinned import ALIGN

KINDS = ("memory", "host", "drives", "auto")
LEAST_BYTES = 1 << 20  # smaller storages stay in memory: they are not worth a request
POOL_PARTS = 2  # a storage takes at most 1/POOL_PARTS of the pool
TOGETHER = 4  # how many tensors an operation may save after one that it needs first in backward


class Entry:
    """A storage in the store, as it was when it was saved. Lives as long as a graph refers to it."""

    __slots__ = "store key what size source given crossing origin asked watches __weakref__".split()

    def __init__(self, store, key, what, size, source):
        self.store, self.key, self.what, self.size = store, key, what, size
        self.source = source  # a weak reference to the storage, so that no other storage gets its identity
        self.given = None  # a weak reference to the bytes that backward has
        self.crossing = None  # on a device: the Crossing after which it has them
        self.origin = None  # on a device, which copies late: a tensor that counts changes of the storage, and its count
        self.asked = None  # the backward pass that asked last
        self.watches = []  # for each copy that backward got: a tensor that shares its version counter

    def __del__(self):
        self.store.drop(self.key)


class Saved:
    """What a graph keeps of an offloaded tensor."""

    __slots__ = ("entry", "chain", "place", "device", "dtype", "shape", "stride", "offset")


class Stayed:
    """What a graph keeps of a tensor that stays in memory. The same storage, saved again, stays too."""

    __slots__ = ("tensor", "version", "mark")

    def __init__(self, tensor, mark=None):
        # detached, since a parameter may get other data for a while, and a result leads to the graph that keeps it
        there = tensor.detach() if tensor.grad_fn is not None or hasattr(tensor, "longshore") else tensor
        self.tensor, self.version, self.mark = there, version_of(tensor), mark

    def value(self):
        if version_of(self.tensor) != self.version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"{tuple(self.tensor.shape)} tensor is at version {version_of(self.tensor)}; expected version "
                f"{self.version}"
            )
        return self.tensor


class _Mark:
    """Marks a storage that stays in memory."""

    __slots__ = ("__weakref__",)


class Activations:
    """The offloaded activations of one engine. Thread-safe."""

    def __init__(self, state, kind, pool_bytes, scratch_bytes, device=None, pool=None, least=None):
        """kind: "host" keeps them in the pool as far as it has room. Where it is full, "auto" leaves the tensor in
        memory, and the others wait for the drives. device: the Device that modules compute on; None: the CPU. pool: its
        Pinned memory for them. least: the smallest storage to offload, in bytes."""
        self.state, self.waits = state, kind != "auto"
        self.least = LEAST_BYTES if least is None else least
        self.pool_bytes = pool_bytes if device is None else pool.nbytes
        options = native.new("struct shore_store_options", scratch_bytes=scratch_bytes)
        options.adapts, options.keeps = kind == "auto", kind == "host"
        self.device = device
        if device is None:
            options.pool_bytes = pool_bytes
        else:
            self.pool, self.streams = pool, OffloadStreams(device, measures=kind == "auto")
            part = ffi.new("struct shore_store_memory *", {"at": self.pool.pointer, "bytes": self.pool.nbytes})
            options.pool, options.npool, options.device = part, 1, device.c
        store = native.made("struct shore_activation_store *", lib.shore_store_open, state.fleet, options)
        self.store = ffi.gc(store, lib.shore_store_close)
        self.lock = threading.RLock()
        self.known = weakref.WeakValueDictionary()  # by identity of a storage: its Entry, or the _Mark that it stays
        self.keys = itertools.count(1)  # rising: backward needs the last one first
        self.local = threading.local()
        self.broken = self.said = False  # whether storing failed; whether something was said to be too large
        self.boundaries = {}  # {key: bytes} of inputs of checkpoints
        self.most_boundaries = 0, 0  # (number, bytes) of them, at most
        forks.leave_in_children(self)

    def leave_to_parent(self):
        """In a forked process: forgets the store, whose memory and threads the process does not have."""
        if self.store is not None:
            ffi.gc(self.store, None)
        self.store = None

    @property
    def counts(self):
        """struct shore_store_counts"""
        return native.filled("struct shore_store_counts", lib.shore_store_count, self.store)

    # ---- forward

    def begin(self, model, args, kwargs):
        """Begins a forward pass of the model in this thread."""
        held = tree_leaves((args, kwargs)) + list(model.buffers())
        self.local.held = {t.untyped_storage().data_ptr() for t in held if _is_plain(t)}
        self.local.chain = []
        if self.device is not None:
            lib.shore_store_waited(self.store, self.streams.stood_ns())
        lib.shore_store_begin(self.store, self.state.step + 1)

    def pack(self, tensor):
        """Returns what the graph keeps of a tensor: a Saved or a Stayed."""
        if not self._may_go(tensor):
            return Stayed(tensor)
        storage, key = tensor.untyped_storage(), _identity(tensor)
        with self.lock:
            entry = self.known.get(key)
            if type(entry) is _Mark:
                return Stayed(tensor, entry)
            if entry is None:
                with profiled("offload an activation"):
                    entry = self._take(tensor, storage, saves_checkpoints_input())
                if entry is None:
                    mark = self.known[key] = _Mark()
                    return Stayed(tensor, mark)
                self.known[key] = entry
        out = Saved()
        out.entry, out.device, out.dtype = entry, tensor.device, tensor.dtype
        out.shape, out.stride, out.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        out.chain = self.local.chain
        out.place = len(out.chain)
        out.chain.append(weakref.ref(entry))
        return out

    def _may_go(self, tensor):
        """Whether a tensor's storage may be offloaded."""
        if not _is_plain(tensor) or self.broken or in_backward():
            return False
        if tensor.device.type != "cpu" and (self.device is None or tensor.device != self.device.device):
            return False
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if nbytes < self.least or tensor.is_leaf and tensor.requires_grad:
            return False
        if hasattr(base(tensor), "longshore"):
            return False  # a parameter's data may change without a new version
        if base(tensor) is tensor and tensor.nbytes != nbytes:
            return False  # its version is not its storage's, as with unsafe_chunk()
        if tensor.nbytes * 8 < nbytes and _identity(tensor) not in self.known:
            return False  # a small part of a large storage, which may be in use anyway
        if storage.data_ptr() in self.local.held:
            return False
        if nbytes > self.pool_bytes // POOL_PARTS:
            self._say_large(nbytes)
            return False
        return True

    def _say_large(self, nbytes):
        """Says once that an activation stays because the pool is small."""
        if not self.said:
            logging.getLogger("longshore").warning(
                "activations of %s stay where PyTorch has them: all others leave through %s of memory, of which one "
                "takes at most half; more memory= lets them leave, too",
                *(native.readable(size) for size in (nbytes, self.pool_bytes)),
            )
        self.said = True

    @whole
    def _take(self, tensor, storage, is_boundary):
        """Copies a storage into the store. Returns its Entry, or None if there is no room."""
        nbytes, key, memory = storage.nbytes(), next(self.keys), ffi.new("void **")
        try:
            if native.ask(lib.shore_store_take, self.store, key, nbytes, self.waits, memory) == lib.SHORE_STORE_FULL:
                return None
        except LongshoreError as failure:
            self.broken = True
            warnings.warn(f"activations stay in memory from here on: {failure}", stacklevel=3)
            return None
        what = f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
        source = torch.multiprocessing.reductions.StorageWeakRef(storage)
        entry = Entry(self, key, what, -(-nbytes // ALIGN) * ALIGN, source)
        if is_boundary:
            self.boundaries[key] = entry.size
            together = sum(list(self.boundaries.values()))
            if together > self.most_boundaries[1]:
                self.most_boundaries = len(self.boundaries), together
        if tensor.device.type != "cpu":
            entry.origin = _counter(tensor), version_of(tensor)
        try:
            with torch.no_grad():
                there = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            if tensor.device.type == "cpu":
                torch.frombuffer(ffi.buffer(memory[0], nbytes), dtype=torch.uint8).copy_(there)
                native.call(lib.shore_store_put, self.store, key)
            else:
                until = self.streams.leave(key, there, self.device.at_pointer(memory[0], nbytes))
                native.call(lib.shore_store_put_after, self.store, key, until)
                self.streams.let_go(keeps=False)
        finally:
            self._release(key)
        return entry

    def drop(self, key):
        # from wherever an entry ends
        self.boundaries.pop(key, None)
        if self.store is not None:
            lib.shore_store_drop(self.store, key, ffi.NULL)
            if self.device is not None:
                self.streams.drop(key)

    def _release(self, key):
        if self.store is not None:
            lib.shore_store_release(self.store, key, ffi.NULL)

    # ---- backward

    def unpack(self, saved):
        """Returns the tensor as it was saved. Raises LongshoreError if it cannot be read back."""
        if self.store is None:
            forks.refuse("backward")
        entry = saved.entry
        with self.lock:
            if any(version_of(watch) for watch in entry.watches):
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {entry.what}, as backward got it before"
                )
            if entry.origin is not None and version_of(entry.origin[0]) != entry.origin[1]:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"{entry.what} is at version {version_of(entry.origin[0])}; expected version {entry.origin[1]}"
                )
            memory = entry.given and entry.given()
            if memory is None:
                with profiled("bring an activation"):
                    memory = self._bring(entry, saved.device)
                entry.watches.append(_counter(memory))
                entry.given = weakref.ref(memory)
            if entry.crossing is not None:
                self.streams.use(entry.crossing, memory)
            entry.asked = graph_task()
            self._ahead(saved)
        if memory.numel() % saved.dtype.itemsize:  # of the storage itself, which ends where it likes
            memory = memory[: memory.numel() // saved.dtype.itemsize * saved.dtype.itemsize]
        return torch.as_strided(memory.view(saved.dtype), saved.shape, saved.stride, saved.offset)

    @whole
    def _bring(self, entry, where):
        """Returns an entry's bytes. They stay in the pool until nothing uses them any more, or come to a device."""
        out = ffi.new("void **")
        try:
            if where.type != "cpu":
                self.streams.let_go(keeps=True)
                entry.crossing = self.streams.taken(entry.key) or self._cross(entry)
                memory, entry.crossing.memory = entry.crossing.memory, None
                return memory.data  # whose changes are counted from here on
            if native.ask(lib.shore_store_get, self.store, entry.key, out) == lib.SHORE_STORE_FULL:
                return self._read(entry)
            buffer = ffi.buffer(out[0], entry.size)
            weakref.finalize(buffer, self._release, entry.key).atexit = False
            return torch.frombuffer(buffer, dtype=torch.uint8)
        except LongshoreError as failure:
            raise LongshoreError(
                f"what forward has saved, {entry.what}, cannot be read back: {failure}; drop the "
                "gradients of this step and make it again",
                failure.code,
            ) from failure

    def _read(self, entry):
        """Returns an entry's bytes in memory of their own: all of the pool is in use."""
        own = Buffer(entry.size)
        native.call(lib.shore_store_read, self.store, entry.key, own.pointer)
        return own.bytes

    @whole
    def _cross(self, entry):
        """Begins to bring an entry's bytes to its device. Returns their Crossing."""
        there = torch.empty(entry.size, dtype=torch.uint8, device=self.device.device)
        out, after = ffi.new("void **"), ffi.new("struct shore_event *")
        if native.ask(lib.shore_store_get_after, self.store, entry.key, out, after) == lib.SHORE_STORE_FULL:
            return Crossing(there.copy_(self._read(entry)), None)
        try:
            until, crossing = self.streams.come(there, self.device.at_pointer(out[0], entry.size), after[0])
        except BaseException:
            self._release(entry.key)
            raise
        native.call(lib.shore_store_release_after, self.store, entry.key, until)
        return crossing

    def _ahead(self, saved):
        """Prefetches what backward needs next: entries that were saved together with this one, and before it."""
        ahead = 0
        for place in range(min(saved.place + TOGETHER, len(saved.chain) - 1), -1, -1):
            entry = saved.chain[place]()
            if entry is None or entry is saved.entry:
                continue
            ahead += entry.size
            if ahead > self.pool_bytes * 3 // 4 or lib.shore_store_want(self.store, entry.key, ffi.NULL):
                return
            if self.device is not None and entry.asked != graph_task() and self.streams.may_come(entry.key, entry.size):
                if not lib.shore_store_has(self.store, entry.key):
                    continue
                try:
                    self.streams.coming[entry.key] = self._cross(entry)
                except torch.OutOfMemoryError:
                    return

    # ---- the end

    def settle(self):
        """Waits for requests under way. If storing had failed, later tensors are stored again."""
        lib.shore_store_settle(self.store, ffi.NULL)
        self.broken = False
        self._leave_device()

    def end(self):
        """Releases the drives, and pinned memory. Nobody reads an entry from here on: of a device, backward has
        copies."""
        lib.shore_store_end(self.store)
        self._leave_device()
        if self.device is not None:
            store, self.store, self.pool = self.store, None, None
            ffi.release(store)

    def _leave_device(self):
        if self.device is not None:
            self.streams.clear()


def _identity(tensor):
    """What tells a storage at one version from all others."""
    storage = tensor.untyped_storage()
    return storage_id(storage), storage.data_ptr(), version_of(tensor)


def _counter(tensor):
    """A tensor without memory that counts changes together with another one."""
    counter = tensor.detach()
    counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter


def _is_plain(tensor):
    """Whether a tensor is nothing but the bytes of its storage."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_inference()
    )
