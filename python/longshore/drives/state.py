"""The state of a model on drives: an open run with its commits (State), and memory that drives read and write."""

import functools
import json
import logging
import os

import torch

from .. import forks, native, progress
from ..errors import LongshoreError
from ..native import Wait, ffi, lib
from . import run_json
from .layout import DTYPES, PIECE, Layout

FETCH = {torch.float32: lib.SHORE_FETCH_MASTER, torch.bfloat16: lib.SHORE_FETCH_BF16}
MOMENTS = {"fp32": lib.SHORE_MOMENTS_FP32, "8bit": lib.SHORE_MOMENTS_8BIT}


class Buffer:
    """Zeroed memory that drives read and write, and that PyTorch sees as a tensor."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        pointer = native.made("void *", lib.shore_buffer_alloc, nbytes, 0)
        self.pointer = ffi.gc(pointer, lambda p, n=nbytes: lib.shore_buffer_free(p, n), nbytes)
        self.whole = ffi.buffer(self.pointer, nbytes)  # keeps the memory alive
        self.bytes = torch.frombuffer(self.whole, dtype=torch.uint8)
        forks.leave_in_children(self)

    @property
    def address(self):
        return int(ffi.cast("uintptr_t", self.pointer))

    def leave_to_parent(self):
        ffi.gc(self.pointer, None)  # a forked child does not have the memory, and must not free it

    def view(self, dtype):
        return self.bytes.view(dtype)


def fleet_options(drives, optimizer, moments, fp32, **more):
    """(struct shore_fleet_options, the objects that it points to). optimizer: its number; fp32: parameters are fetched
    as fp32."""
    paths = [ffi.new("char[]", native.path_bytes(d)) for d in drives]
    array = ffi.new("char *[]", paths)
    where = {"drives": array, "ndrives": len(paths), "spill": True, "note": _note}
    kind = {"optimizer": optimizer, "moments": MOMENTS[moments], "fp32_params": fp32}
    return native.new("struct shore_fleet_options", **where, **kind, **more), (paths, array)


@ffi.callback("void(void *, const char *)")
def _note(ctx, text):
    """Logs the library's harmless notes while it opens a run: a copied run, damage it worked around, a slow path."""
    logging.getLogger("longshore").warning("%s", native.text(text), extra=progress.OWN)


class State:
    """An open run: its drives and its committed step."""

    def __init__(self, path, layout, run, step):
        self.run = ffi.gc(run, lib.shore_run_close)
        self.path = os.path.abspath(path)
        self.fleet = lib.shore_run_fleet(run)
        self.layout = layout
        self.step = step
        self.pending = False
        self.is_written = True  # whether drives have more of the last step than its commit, which a skip is
        self.made_with = None  # the blob of the run's start, once commit_blob.py has read it
        self.kept_images = {}  # {block: (images, pending request)} of the blocks that begin_store() stores each step
        forks.leave_in_children(self)

    def leave_to_parent(self):
        """In a forked child: lets go of the run and its lock without closing it."""
        if self.run is not None:
            ffi.gc(self.run, None)
            lib.shore_run_forked(self.run)
        self.run = self.fleet = None

    @classmethod
    def create(cls, path, layout, drives, program, memory, **fleet):
        """Begins a new run. Call init_block() for all blocks and then seal(). fleet: what fleet_options() takes."""
        fleet, named = fleet_options(drives, **fleet)
        text = ffi.new("char[]", run_json.text(program).encode())
        making = native.new("struct shore_run_making", fleet=fleet, program=text, memory_bytes=memory)
        (shapes, _names), where = layout.shapes(), native.path_bytes(os.path.abspath(path))
        told = where, layout.c, shapes, len(shapes), making
        return cls(path, layout, native.made("struct shore_run *", lib.shore_run_create, *told), 0)

    @classmethod
    def open(cls, path, *, read_only=False, ring_bytes=0, snapshot=None, without_drives=False, accept_step=None):
        """Opens a run at its committed step, or at accept_step, with the layout it recorded.

        snapshot: opens that one instead; needs read_only. without_drives: opens only the record, without a step; needs
        read_only.
        """
        how = {"read_only": read_only, "ring_bytes": ring_bytes, "without_drives": without_drives}
        opening = native.new("struct shore_run_opening", **how, note=ffi.NULL if without_drives else _note)
        if snapshot is not None:
            name = ffi.new("char[]", snapshot.encode())
            opening.snapshot = name
        if accept_step is not None:
            step = ffi.new("uint64_t *", accept_step)
            opening.accept_step = step
        run = native.made("struct shore_run *", lib.shore_run_open, native.path_bytes(os.path.abspath(path)), opening)
        state = cls(path, None, run, 0)
        state.layout = Layout.of_run(run)
        if not without_drives:
            state.step = state.info().step
        return state

    @functools.cached_property
    def drives(self):
        out = []
        while (drive := lib.shore_run_drive(self.run, len(out))) != ffi.NULL:
            out.append(native.text(drive))
        return out

    @property
    def scratch_bytes(self):
        """Bytes reserved on the drives for activations."""
        return self.info().scratch_bytes

    @functools.cached_property
    def made(self):
        """struct shore_run_info: how the run was made. memory_bytes is 0 if it was not recorded."""
        return native.filled("struct shore_run_info", lib.shore_run_info, self.run)

    @property
    def memory_bytes(self):
        """The memory budget that the run records, or 0."""
        return self.made.memory_bytes

    @property
    def kinds(self):
        """Kinds of the stored planes: copy() needs the same kinds and layout."""
        info = self.made
        return info.optimizer, info.moments, info.with_momentum, info.residual

    @property
    def program(self):
        """The record that wrap() made, or None."""
        said = lib.shore_run_program(self.run)
        return None if said == ffi.NULL else run_json.program(native.text(said))

    def record(self, what, program=None):
        """Notes a change (what) in the run's history, and replaces its record if one is given."""
        text = ffi.NULL if program is None else ffi.new("char[]", run_json.text(program).encode())
        native.call(lib.shore_run_record, self.run, self.step, what.encode(), text)

    def info(self):
        return native.filled("struct shore_fleet_info", lib.shore_fleet_info, self.fleet)

    # ---- the initial state

    def init_block(self, block, segment, value, m=None, v=None):
        """Writes whole segments of a new run's block from `segment` on: fp32, canonical. None moments are zeros."""
        values = (ffi.NULL if x is None else ffi.cast("float *", x.data_ptr()) for x in (value, m, v))
        count = value.numel() // native.SEGMENT
        native.call(lib.shore_fleet_init_block, self.fleet, block, segment, count, *values)

    def seal(self):
        native.call(lib.shore_run_seal, self.run, 0)

    # ---- a step

    def fetch(self, block, kind, pointer, segment=0, count=None):
        """Begins to read segments of a block into memory. Returns the Wait."""
        count = self.layout.segments[block] - segment if count is None else count
        why = f"the parameters of {self.layout.blocks[block].name} cannot be fetched"
        step = self.step if self.is_written else self.step - 1
        return Wait(lib.shore_fleet_fetch, self.fleet, step, block, segment, count, kind, pointer, what=why)

    def values(self, block, first, out, fetched):
        """Reads parameters of a block, from an element on, into a flat tensor of any dtype, a piece at a time. fetched:
        the dtype that they are read in."""
        begin, end = first // native.SEGMENT, -(-(first + out.numel()) // native.SEGMENT)
        buffer = Buffer(min(PIECE, end - begin) * native.SEGMENT * fetched.itemsize)
        for segment in range(begin, end, PIECE):
            count, at = min(PIECE, end - segment), segment * native.SEGMENT - first
            self.fetch(block, FETCH[fetched], buffer.pointer, segment, count).result()
            to = out[max(at, 0) : at + count * native.SEGMENT]
            to.copy_(buffer.view(fetched)[max(-at, 0) :][: to.numel()])

    def own(self, block):
        """(first segment, number of segments) of a block that lie on this process's drives."""
        return 0, self.layout.segments[block]

    def gather(self, block, gradients):
        """(struct shore_gather array, its length) for {index of the tensor: what of it is on this process's drives, a
        contiguous tensor of a known dtype}."""
        spans = self.layout.spans(block, *self.own(block))
        order = [t for t in sorted(gradients) if gradients[t].numel()]
        items = ffi.new("struct shore_gather[]", max(len(order), 1))
        for item, t in zip(items, order):
            g = gradients[t]
            setattr(item, "from", ffi.cast("void *", g.data_ptr()))
            item.offset_elems, item.elems = self.layout.offsets[block][t] + spans[t][0], g.numel()
            item.dtype = DTYPES[g.dtype]
        return items, len(order)

    def carry(self, block, segment=0, count=None):
        """Begins to copy segments of a block unchanged into the next step. Returns the Wait."""
        count = self.layout.segments[block] - segment if count is None else count
        why = f"{self.layout.blocks[block].name} cannot be carried over"
        return Wait(lib.shore_fleet_carry, self.fleet, self.step, self.attempt, block, segment, count, what=why)

    def store_values(self, block, segment, count, master=None, tensors=(), m=None, v=None, last=False):
        """Writes new parameters, or new moments of some tensors, into the next step; the rest stays.

        master, m, v: Buffers of fp32, canonical, whole segments. last: into the last step instead, which is not handed
        to a commit yet.
        """
        images = self._images(block, segment, count)
        if master is not None:
            lib.shore_fleet_put_masters(self.fleet, images.pointer, count, ffi.cast("float *", master.pointer))
        moments = [ffi.NULL if x is None else ffi.cast("float *", x.pointer) for x in (m, v)]
        for tensor in tensors:
            lib.shore_fleet_put_moments(self.fleet, images.pointer, block, tensor, segment, count, *moments)
        self._store(block, segment, count, images, self.step - last).result()

    def begin_store(self, block, master):
        """Begins to write a whole block with unchanged moments. If that fails, the commit raises."""
        count = self.layout.segments[block]
        if block not in self.kept_images:
            self.kept_images[block] = self._images(block, 0, count), None
        images, storing = self.kept_images[block]
        if storing is not None:
            storing.settle()
        lib.shore_fleet_put_masters(self.fleet, images.pointer, count, ffi.cast("float *", master.pointer))
        self.kept_images[block] = images, self._store(block, 0, count, images)

    def copy(self, other, block, masters=False):
        """Copies a block of another run with the same layout into the next step.

        masters: copies only the parameters; otherwise both runs need the same `kinds`.
        """
        most = max(1, PIECE // 4)
        each = 4 * native.SEGMENT if masters else lib.shore_fleet_state_bytes(self.fleet)
        kind = lib.SHORE_FETCH_MASTER if masters else lib.SHORE_FETCH_STATE
        values = Buffer(min(most, self.layout.segments[block]) * each)
        for segment in range(0, self.layout.segments[block], most):
            count = min(most, self.layout.segments[block] - segment)
            other.fetch(block, kind, values.pointer, segment, count).result()
            if masters:
                self.store_values(block, segment, count, master=values)
            else:
                self._store(block, segment, count, values).result()

    def _images(self, block, segment, count):
        images = Buffer(count * lib.shore_fleet_state_bytes(self.fleet))
        self.fetch(block, lib.SHORE_FETCH_STATE, images.pointer, segment, count).result()
        return images

    def _store(self, block, segment, count, images, base_step=None):
        base_step = self.step if base_step is None else base_step
        where = {"block": block, "order": block, "segment": segment, "count": count}
        store = native.new(
            "struct shore_store", base_step=base_step, attempt=self.attempt, state=images.pointer, **where
        )
        why = f"{self.layout.blocks[block].name} cannot be stored"
        return Wait(lib.shore_fleet_store, self.fleet, store, keeps=images, what=why)

    def masters(self, block):
        """Reads a block's fp32 parameters at the committed step into a Buffer."""
        out = Buffer(self.layout.elems(block) * 4)
        self.fetch(block, lib.SHORE_FETCH_MASTER, out.pointer).result()
        return out

    @property
    def away(self):
        """Whether a drive is behind a link, to another host or a local server; such a drive may go and come back."""
        return self.info().away

    @property
    def attempt(self):
        """The number of the present attempt at a step. It changes when a drive loses what was written for the step."""
        return lib.shore_fleet_attempt(self.fleet)

    def committed(self):
        """The step that the drives have committed."""
        return self.info().step

    def store_again(self, block):
        """Stores again what the last begin_store() of this block stored."""
        self._store(block, 0, self.layout.segments[block], self.kept_images[block][0]).result()

    def forget_commit(self):
        """Waits for a pending commit and ignores whether it succeeds."""
        if self.pending:
            lib.shore_run_commit_wait(self.run, ffi.new("struct shore_diag *"))
        self.pending = False

    def commit(self, skip, metrics, blob):
        """Begins to commit step `self.step`. The next commit() or settle() waits for it.

        skip: the step changes no parameters. metrics: its line in metrics.jsonl. blob: bytes that commit with it.
        """
        self.settle()
        request = native.new(
            "struct shore_commit", step=self.step, how=lib.SHORE_COMMIT_SKIPPED if skip else lib.SHORE_COMMIT_UPDATED
        )
        data = ffi.from_buffer(blob)
        request.blob, request.blob_bytes = data, len(blob)
        native.call(lib.shore_run_commit, self.run, request, json.dumps(metrics).encode())
        self.pending = True

    def settle(self):
        """Waits until the pending commit is durable."""
        if not self.pending:
            return
        try:
            native.call(lib.shore_run_commit_wait, self.run)
        except LongshoreError:
            self.pending = False
            raise
        self.pending = False  # stays True if a signal interrupts the wait: the next settle() gets the result

    def ledger(self):
        """Counters of bytes and time since the run was opened: struct shore_ledger."""
        return native.filled("struct shore_ledger", lib.shore_fleet_ledger, self.fleet)

    def blob(self):
        """The bytes that were committed with the step."""
        size = ffi.new("uint32_t *", lib.SHORE_BLOB_BYTES)
        data = ffi.new("char[]", lib.SHORE_BLOB_BYTES)
        native.call(lib.shore_fleet_blob, self.fleet, data, size)
        return bytes(ffi.buffer(data, size[0]))

    def digest(self, deep=False):
        """The committed state's digest, as `longshore inspect --digest` prints it.

        deep: first reads every byte and compares it with its checksum.
        """
        self.settle()
        out = ffi.new("unsigned char[16]")
        native.call(lib.shore_fleet_digest, self.fleet, deep, out)
        return bytes(out).hex()

    def snapshot(self, name=None, keep=0):
        self.settle()
        native.call(lib.shore_run_snapshot, self.run, ffi.NULL if name is None else name.encode(), keep)

    def remove_snapshot(self, name):
        self.settle()
        native.call(lib.shore_run_snapshot_remove, self.run, name.encode())

    def close(self):
        run, self.run = self.run, None
        if run is None:
            return
        self.fleet = None
        for _, storing in self.kept_images.values():
            storing.settle()
        try:
            if self.pending:
                self.pending = False
                native.call(lib.shore_run_commit_wait, run)
        finally:
            ffi.release(run)


def rollback(run, snapshot):
    """Returns a run that is not open to one of its snapshots."""
    native.call(lib.shore_run_rollback, native.path_bytes(run), snapshot.encode(), ffi.NULL, ffi.NULL)


def remove(run):
    """Deletes a run that is not open, with its volumes and snapshots."""
    native.call(lib.shore_run_remove, native.path_bytes(run), ffi.NULL)
