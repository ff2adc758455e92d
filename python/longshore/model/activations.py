"""What autograd saves in forward, in the library's store until backward asks for it.

A storage that autograd saves something of is copied into the store (``store.h``), which writes it to the drives from
there; the graph keeps its place instead, so that its memory goes as soon as nobody else has it. Every tensor that lies
in one storage at one version shares the copy, and each is given back with its own offset, shape, strides and dtype. In
backward, what comes next is read ahead.

What stays in memory, as autograd has it: small tensors, inputs and buffers of the model, leaves, subclasses and layouts
that are more than bytes, what is computed again within backward, and whatever the store has no room for.

A change that autograd cannot see (through ``.data``) between two times that one tensor is saved is not seen here
either.
"""

import itertools
import threading
import warnings
import weakref

import torch

from .. import forks, native
from ..errors import LongshoreError
from ..interrupts import whole
from ..native import ffi, lib
from ..run.state import Buffer
from ..torch_internals import base, in_backward, storage_id, tree_leaves, version_of

KINDS = ("memory", "drives", "auto")
LEAST_BYTES = 1 << 20  # of a storage that goes; smaller ones are not worth a request
POOL_PARTS = 2  # a storage is at most such a part of the pool
TOGETHER = 4  # that one operation may save behind another, and ask for after it


class Entry:
    """A storage as it was when it was saved. Lives as long as something in a graph refers to it."""

    __slots__ = ("store", "key", "what", "size", "source", "given", "watches", "__weakref__")

    def __init__(self, store, key, what, size, source):
        self.store, self.key, self.what, self.size = store, key, what, size
        self.source = source  # a weak reference, so that its identity is nobody else's meanwhile
        self.given = None  # a weak reference: its bytes, as backward has them
        self.watches = []  # of each that backward was given: a tensor that counts its changes

    def __del__(self):
        self.store.drop(self.key)


class Saved:
    """What a graph keeps of a tensor that went."""

    __slots__ = ("entry", "chain", "place", "device", "dtype", "shape", "stride", "offset")


class Stayed:
    """What a graph keeps of a tensor that did not: the same storage, saved again, stays too."""

    __slots__ = ("tensor", "version", "mark")

    def __init__(self, tensor, mark=None):
        # a parameter that has other data for a while is given its own again
        self.tensor, self.version, self.mark = (tensor.detach() if hasattr(tensor, "longshore") else tensor,
                                                version_of(tensor), mark)

    def value(self):
        if version_of(self.tensor) != self.version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"{tuple(self.tensor.shape)} tensor is at version {version_of(self.tensor)}; expected version "
                f"{self.version}")
        return self.tensor


class _Mark:
    __slots__ = ("__weakref__",)


class Activations:
    """What goes of one engine. Thread-safe."""

    def __init__(self, state, kind, pool_bytes, scratch_bytes, least=None):
        """kind: "drives" waits for the drives where the pool is full; "auto" leaves in memory what they do not keep up
        with."""
        self.state, self.waits = state, kind == "drives"
        self.least = LEAST_BYTES if least is None else least
        self.pool_bytes = pool_bytes
        options = native.new("struct shore_store_options", pool_bytes=pool_bytes, scratch_bytes=scratch_bytes,
                             adapts=not self.waits)
        store = native.made("struct shore_activation_store *", lib.shore_store_open, state.fleet, options)
        self.store = ffi.gc(store, lib.shore_store_close)
        self.lock = threading.RLock()
        self.known = weakref.WeakValueDictionary()  # by identity: Entry, or _Mark of what stays
        self.keys = itertools.count(1)  # what is saved last is needed first
        self.local = threading.local()
        self.broken = False  # a store failed
        forks.leave_in_children(self)

    def leave_to_parent(self):
        """The memory is not there in a child, nor are threads that may have the lock."""
        ffi.gc(self.store, None)
        self.store = None

    @property
    def counts(self):
        """struct shore_store_counts"""
        counts = native.new("struct shore_store_counts")
        native.check(lib.shore_store_count(self.store, counts))
        return counts

    # ---- forward

    def begin(self, model, args, kwargs):
        """A forward pass of the model, in this thread."""
        held = tree_leaves((args, kwargs)) + list(model.buffers())
        self.local.held = {t.untyped_storage().data_ptr() for t in held if _is_plain(t)}
        self.local.chain = []
        lib.shore_store_begin(self.store, self.state.step + 1, 0)

    def pack(self, tensor):
        """What the graph is to keep of it: Saved or Stayed."""
        if not self._may_go(tensor):
            return Stayed(tensor)
        storage = tensor.untyped_storage()
        key = storage_id(storage), storage.data_ptr(), version_of(tensor)
        with self.lock:
            entry = self.known.get(key)
            if type(entry) is _Mark:
                return Stayed(tensor, entry)
            if entry is None:
                entry = self._take(tensor, storage)
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
        if not _is_plain(tensor) or self.broken or in_backward():
            return False
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if not self.least <= nbytes <= self.pool_bytes // POOL_PARTS or tensor.is_leaf and tensor.requires_grad:
            return False
        if hasattr(base(tensor), "longshore"):
            return False  # its data may be changed, and count no version
        if base(tensor) is tensor and tensor.nbytes != nbytes:
            return False  # of unsafe_chunk(), say: it counts changes for itself, and its version is not its storage's
        if tensor.nbytes * 8 < nbytes and (storage_id(storage), storage.data_ptr(),
                                           version_of(tensor)) not in self.known:
            return False  # a small part of something larger, which may be somebody's anyway
        return storage.data_ptr() not in self.local.held

    @whole
    def _take(self, tensor, storage):
        """A new entry; None: there is no room for it."""
        nbytes, key, memory = storage.nbytes(), next(self.keys), ffi.new("void **")
        try:
            if native.ask(lib.shore_store_take, self.store, key, nbytes, self.waits, memory) == lib.SHORE_STORE_FULL:
                return None
        except LongshoreError as failure:
            self.broken = True
            warnings.warn(f"activations stay in memory from here on: {failure}", stacklevel=3)
            return None
        what = f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
        entry = Entry(self, key, what, -(-nbytes // lib.SHORE_BUFFER_ALIGN_BYTES) * lib.SHORE_BUFFER_ALIGN_BYTES,
                      torch.multiprocessing.reductions.StorageWeakRef(storage))
        try:
            with torch.no_grad():
                torch.frombuffer(ffi.buffer(memory[0], nbytes), dtype=torch.uint8).copy_(
                    torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
            native.call(lib.shore_store_put, self.store, key)
        finally:
            self._release(key)
        return entry

    def drop(self, key):
        # from wherever an entry ends
        if self.store is not None:
            lib.shore_store_drop(self.store, key, ffi.NULL)

    def _release(self, key):
        if self.store is not None:
            lib.shore_store_release(self.store, key, ffi.NULL)

    # ---- backward

    def unpack(self, saved):
        """The tensor as it was saved. Raises LongshoreError where the drives do not give it back."""
        if self.store is None:
            forks.refuse("backward")
        entry = saved.entry
        with self.lock:
            if any(version_of(watch) for watch in entry.watches):
                raise RuntimeError("one of the variables needed for gradient computation has been modified by an "
                                   f"inplace operation: {entry.what}, as backward got it before")
            memory = entry.given and entry.given()
            if memory is None:
                memory = self._bring(entry)
                watch = memory.detach()  # counts changes together with what backward is given
                watch.data = torch.empty(0, dtype=torch.uint8)
                entry.watches.append(watch)
                entry.given = weakref.ref(memory)
        self._ahead(saved)
        if saved.device.type != "cpu":
            memory = memory.to(saved.device)
        return torch.as_strided(memory.view(saved.dtype), saved.shape, saved.stride, saved.offset)

    @whole
    def _bring(self, entry):
        """Its bytes, in the pool until nobody has them any more."""
        out = ffi.new("void **")
        try:
            if native.ask(lib.shore_store_get, self.store, entry.key, out) != lib.SHORE_STORE_FULL:
                buffer = ffi.buffer(out[0], entry.size)
                weakref.finalize(buffer, self._release, entry.key).atexit = False
                return torch.frombuffer(buffer, dtype=torch.uint8)
            own = Buffer(entry.size)  # all of the pool is somebody's
            native.call(lib.shore_store_read, self.store, entry.key, own.pointer)
            return own.bytes
        except LongshoreError as failure:
            raise LongshoreError(f"what forward has saved, {entry.what}, cannot be read back: {failure}; drop the "
                                 "gradients of this step and make it again", failure.code) from failure

    def _ahead(self, saved):
        """Begins to read what backward will ask for next: what was saved together with this, and before."""
        ahead = 0
        for place in range(min(saved.place + TOGETHER, len(saved.chain) - 1), -1, -1):
            entry = saved.chain[place]()
            if entry is None or entry is saved.entry:
                continue
            ahead += entry.size
            if ahead > self.pool_bytes * 3 // 4 or lib.shore_store_want(self.store, entry.key, ffi.NULL):
                return

    # ---- the end

    def settle(self):
        """Waits for what is under way. What was not stored will be tried again."""
        lib.shore_store_settle(self.store, ffi.NULL)
        self.broken = False

    def end(self):
        """The drives go. What is in memory can still be had."""
        lib.shore_store_end(self.store)


def _is_plain(tensor):
    """Its storage is all there is to it."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
            and tensor.device.type != "meta"
            and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_inference())
