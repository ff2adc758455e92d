"""The state of a model on drives: an open run with its commits.

Where several ranks work on a run, each has a State with a Part of it (parts.py): what all ranks call says so."""

import contextlib
import functools
import json
import logging
import os

import torch

from .. import forks, native, progress
from ..errors import LongshoreError
from ..native import Wait, ffi, lib
from ..torch_internals import profiled
from . import run_json
from .buffer import Buffer
from .charges import Charges
from .layout import DTYPES, PIECE, Layout
from .parts import Part, Together, new_volumes, owners, rank_0_first

FETCH = {torch.float32: lib.SHORE_FETCH_MASTER, torch.bfloat16: lib.SHORE_FETCH_BF16}
MOMENTS = {"fp32": lib.SHORE_MOMENTS_FP32, "8bit": lib.SHORE_MOMENTS_8BIT}


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


class State(Together):
    """An open run: its drives and its committed step. part: this rank's Part of it; None: this process has it whole."""

    def __init__(self, path, layout, run, step, part=None):
        super().__init__(part)
        self.run = ffi.gc(run, lib.shore_run_close)
        self.path = os.path.abspath(path)
        self.fleet = lib.shore_run_fleet(run)
        self.charges, self.trace = Charges(self.run, self.fleet), ffi.NULL
        self.layout, self._step = layout, step
        self.pending = False
        self.is_written = True  # whether drives have more of the last step than its commit, which a skip is
        self.made_with = None  # the blob of the run's start, once commit_blob.py has read it
        self.kept_images = {}  # {block: (images, pending request)} of the blocks that begin_store() stores each step
        forks.leave_in_children(self)

    def leave_to_parent(self):
        """In a forked child: lets go of the run and its lock without closing it."""
        if self.run is not None:
            self.charges.leave_to_parent()
            ffi.gc(self.run, None)
            lib.shore_run_forked(self.run)
        self.run = self.fleet = None

    @classmethod
    def create(cls, path, layout, drives, program, memory, ranks, **fleet):
        """Begins a new run; all ranks call it. Call init_block() for all blocks and then seal(). program: rank 0's
        counts. fleet: what fleet_options() takes."""
        part, what = None, f"making {path}"
        with ranks.together():
            if ranks.size > 1:
                drives, owner = new_volumes(ranks, drives, path)
                part = Part(ranks, owner)
            # each has looked whether a run may be made there
            said = ranks.meet(what, (program, fleet["scratch_bytes"]))
            program, fleet["scratch_bytes"] = said[0][0], sum(scratch for _, scratch in said)
            starts = [of_rank["position"] for of_rank, _ in said]
            if part and sum(map(len, starts)) < lib.SHORE_PROGRAM_BYTES // 2:
                program["starts"] = starts  # with random states of each
            fleet, named = fleet_options(drives, **fleet)
            text = ffi.new("char[]", run_json.text(program).encode())
            for member, value in part.options().items() if part else ():
                setattr(fleet, member, value)
            keeps = part is not None and part.keeps
            making = native.new("struct shore_run_making", fleet=fleet, program=text, memory_bytes=memory, keeps=keeps)
            (shapes, _names), where = layout.shapes(), native.path_bytes(os.path.abspath(path))
            told = where, layout.c, shapes, len(shapes), making
            with rank_0_first(ranks, what):  # rank 0 writes down where the volumes are
                run = native.made("struct shore_run *", lib.shore_run_create, *told)
            return cls(path, layout, run, 0, part).united(what)

    @classmethod
    def open(
        cls, path, *, ranks=None, read_only=False, ring_bytes=0, snapshot=None, without_drives=False, accept_step=None
    ):
        """Opens a run at its committed step, or at accept_step, with the layout it recorded.

        ranks: all of them call it, and each opens its Part; by default this process opens all. snapshot: opens that one
        instead; needs read_only. without_drives: opens only the record, without a step; needs read_only.
        """
        if ranks is None or ranks.size == 1:
            return cls._open(path, None, read_only, ring_bytes, snapshot, without_drives, accept_step)
        with ranks.together():
            with rank_0_first(ranks, f"opening {path}"):  # it finishes what was interrupted, which may take long
                with contextlib.closing(cls.open(path, read_only=True, without_drives=True)) as record:
                    volumes = record.drives
            part = Part(ranks, owners(ranks, volumes, path))
            with rank_0_first(ranks, f"opening {path}"):
                state = cls._open(path, part, read_only, ring_bytes, snapshot, without_drives, accept_step)
            return state.united(f"opening {path}")

    @classmethod
    def _open(cls, path, part, read_only, ring_bytes, snapshot, without_drives, accept_step):
        how = {"read_only": read_only, "ring_bytes": ring_bytes, "without_drives": without_drives}
        how.update(note=ffi.NULL if without_drives else _note)
        how.update({"keeps": part.keeps, **part.options()} if part else {})
        opening = native.new("struct shore_run_opening", **how)
        if snapshot is not None:
            name = ffi.new("char[]", snapshot.encode())
            opening.snapshot = name
        if accept_step is not None:
            step = ffi.new("uint64_t *", accept_step)
            opening.accept_step = step
        run = native.made("struct shore_run *", lib.shore_run_open, native.path_bytes(os.path.abspath(path)), opening)
        state = cls(path, None, run, 0, part)
        state.layout = Layout.of_run(run)
        if not without_drives and not part:
            state.step = state.info().step
        return state

    def united(self, what):
        """Makes one run of the parts that the ranks have opened. Returns the State."""
        if self.part is not None:
            try:
                self.part.unite(self, what)
                self.step = self.info().step
                self.meet(what)  # from here on each may ask the others for segments
            except BaseException as failure:
                self.part.ranks.fail(failure)
                self.close()
                raise
        return self

    @property
    def step(self):
        return self._step

    @step.setter
    def step(self, step):
        self._step = step
        if self.part is not None:
            self.part.notify()

    @functools.cached_property
    def drives(self):
        out = []
        while (drive := lib.shore_run_drive(self.run, len(out))) != ffi.NULL:
            out.append(native.text(drive))
        return out

    @property
    def scratch_bytes(self):
        """Bytes reserved for activations on the drives that this process has opened."""
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
        change = lib.shore_run_record, self.run, self.step, what.encode(), text
        self.each("a change of the run's record", lambda: native.call(*change))

    def info(self):
        return native.filled("struct shore_fleet_info", lib.shore_fleet_info, self.fleet)

    def begin_trace(self, steps):
        """Records the last so many steps from here on, in RUN/trace.spans. Of several ranks, rank 0 does."""
        if steps and not self.rank and not self.trace:
            where = native.path_bytes(self.path)
            self.trace = native.made("struct shore_trace *", lib.shore_trace_open, where, steps, self.fleet)

    # ---- the initial state

    def init_block(self, block, segment, value, m=None, v=None):
        """Writes whole segments of a new run's block from `segment` on: fp32, canonical. None moments are zeros."""
        values = (ffi.NULL if x is None else ffi.cast("float *", x.data_ptr()) for x in (value, m, v))
        count = value.numel() // native.SEGMENT
        native.call(lib.shore_fleet_init_block, self.fleet, block, segment, count, *values)

    def seal(self):
        """Makes the new run permanent. All ranks call it."""
        self.rank_0_last("the seal of the run", lambda: native.call(lib.shore_run_seal, self.run, 0))

    # ---- a step

    @property
    def fetched_step(self):
        """The step of the values that are fetched. A step that was skipped has those of the one before it."""
        return self.step if self.is_written else self.committed()

    def own(self, block, segment=0, count=None):
        """(the first of these segments of a block that lie on drives of this rank, how many there are)."""
        end = self.layout.segments[block] if count is None else segment + count
        first, many = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        if not lib.shore_fleet_own(self.fleet, block, first, many):
            return segment, 0
        begin = max(segment, first[0])
        return begin, max(0, min(end, first[0] + many[0]) - begin)

    def fetch(self, block, kind, pointer, segment=0, count=None):
        """Begins to read segments of a block into memory. Returns the Wait."""
        count = self.layout.segments[block] - segment if count is None else count
        why = f"the parameters of {self.layout.blocks[block].name} cannot be fetched"
        step = self.fetched_step
        request = self.fleet, step, block, segment, count, kind, pointer
        return Wait(lib.shore_fleet_fetch, *request, what=why, charges=self.charges)

    def outdate(self, pages, block):
        """The last step has changed a block, of which other ranks have a part. pages: struct shore_pages *."""
        if self.part is not None:
            lib.shore_pages_outdate(pages, block, self.step)

    def read(self, block, kind, nbytes, segment=0, count=None):
        """Reads segments of a block into a new Buffer of as many bytes as they have."""
        out = Buffer(nbytes)
        self.fetch(block, kind, out.pointer, segment, count).result()
        return out

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
        request = self.fleet, self.step, self.attempt, block, segment, count
        lane = lib.SHORE_LANE_DRIVE_WRITE
        return Wait(lib.shore_fleet_carry, *request, what=why, charges=self.charges, lane=lane)

    def store_values(self, block, segment, count, master=None, tensors=(), m=None, v=None, last=False):
        """Writes new parameters, or new moments of some tensors, into the next step; the rest stays.

        master, m, v: Buffers of fp32, canonical, whole segments; rank 0's count, and all ranks call it. last: into the
        last step instead, which is not handed to a commit yet.
        """
        for values in (master, m, v):
            if values is not None:
                self.take_rank_0s(values.view(torch.float32))
        self._store_values(block, segment, count, master, tensors, m, v, last)

    def _store_values(self, block, segment, count, master=None, tensors=(), m=None, v=None, last=False):
        first, count = self.own(block, segment, count)
        if not count:
            return
        skip, segment = (first - segment) * native.SEGMENT, first
        images = self._images(block, segment, count)
        values = [ffi.NULL if x is None else ffi.cast("float *", x.pointer) + skip for x in (master, m, v)]
        if master is not None:
            lib.shore_fleet_put_masters(self.fleet, images.pointer, count, values[0])
        moments = values[1:]
        for tensor in tensors:
            lib.shore_fleet_put_moments(self.fleet, images.pointer, block, tensor, segment, count, *moments)
        self._store(block, segment, count, images, self.step - last).result()

    def begin_store(self, block, master):
        """Begins to write a whole block with unchanged moments. If that fails, the commit raises."""
        segment, count = self.own(block)
        if not count:
            return
        if block not in self.kept_images:
            self.kept_images[block] = self._images(block, segment, count), None
        images, storing = self.kept_images[block]
        if storing is not None:
            storing.settle()
        values = ffi.cast("float *", master.pointer) + segment * native.SEGMENT
        lib.shore_fleet_put_masters(self.fleet, images.pointer, count, values)
        self.kept_images[block] = images, self._store(block, segment, count, images)

    def copy(self, other, block, masters=False):
        """Copies a block of another run with the same layout into the next step.

        masters: copies only the parameters; otherwise both runs need the same `kinds`.
        """
        most = max(1, PIECE // 4)
        each = 4 * native.SEGMENT if masters else lib.shore_fleet_state_bytes(self.fleet)
        kind = lib.SHORE_FETCH_MASTER if masters else lib.SHORE_FETCH_STATE
        begin, own = self.own(block)
        values = Buffer(min(most, own) * each) if own else None
        for segment in range(begin, begin + own, most):
            count = min(most, begin + own - segment)
            other.fetch(block, kind, values.pointer, segment, count).result()
            if masters:
                self._store_values(block, segment, count, master=values)
            else:
                self._store(block, segment, count, values).result()

    def _images(self, block, segment, count):
        nbytes = count * lib.shore_fleet_state_bytes(self.fleet)
        return self.read(block, lib.SHORE_FETCH_STATE, nbytes, segment, count)

    def _store(self, block, segment, count, images, base_step=None):
        base_step = self.step if base_step is None else base_step
        where = {"block": block, "order": block, "segment": segment, "count": count}
        store = native.new(
            "struct shore_store", base_step=base_step, attempt=self.attempt, state=images.pointer, **where
        )
        why = f"{self.layout.blocks[block].name} cannot be stored"
        lane = lib.SHORE_LANE_DRIVE_WRITE
        return Wait(lib.shore_fleet_store, self.fleet, store, keeps=images, what=why, charges=self.charges, lane=lane)

    def masters(self, block):
        """Reads a block's fp32 parameters at the committed step into a Buffer."""
        return self.read(block, lib.SHORE_FETCH_MASTER, self.layout.elems(block) * 4)

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
        if block in self.kept_images:
            self._store(block, *self.own(block), self.kept_images[block][0]).result()

    def has(self, step):
        """Whether other ranks that are at this step get what they ask for."""
        return step in (self.step, self.fetched_step)

    def forget_commit(self):
        """Waits for a pending commit and ignores whether it succeeds."""
        if self.pending:
            lib.shore_run_commit_wait(self.run, ffi.new("struct shore_diag *"))
        self.pending = False

    def commit(self, skip, metrics, blob):
        """Begins to commit step `self.step`; all ranks call it. The next commit() or settle() waits for it.

        skip: the step changes no parameters. metrics: its line in metrics.jsonl. blob: bytes that commit with it.
        """
        self.settle()
        if skip:
            self.meet(f"the commit of step {self.step}")  # nobody reads values of the step before any more
        request = native.new(
            "struct shore_commit", step=self.step, how=lib.SHORE_COMMIT_SKIPPED if skip else lib.SHORE_COMMIT_UPDATED
        )
        if "charges" in metrics:  # a step, which the meter has ended last; changes by hand have no such line
            native.call(lib.shore_run_drives, self.run, self.charges.meter)
        data = ffi.from_buffer(blob)
        request.blob, request.blob_bytes = data, len(blob)
        native.call(lib.shore_run_commit, self.run, request, json.dumps(metrics).encode())
        self.pending = True

    def settle(self):
        """Waits until the pending commit is durable, on the drives of all ranks."""
        if not self.pending:
            return
        try:
            with self.together(), profiled("wait for the commit"):
                native.call(lib.shore_run_commit_wait, self.run)
                if self.part is not None:
                    self.part.ranks.meet(f"the commit of step {self.step}")
                    native.call(lib.shore_run_confirm, self.run, self.step)
        except LongshoreError:
            self.forget_commit()  # which also ends a wait that failed before it began
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
        """The committed state's digest, as `longshore inspect --digest` prints it. All ranks call it.

        deep: first reads every byte and compares it with its checksum.
        """
        self.settle()
        out = ffi.new("unsigned char[16]")
        with self.together():
            native.call(lib.shore_fleet_leaf_sum, self.fleet, deep, out)
            sums = ffi.from_buffer(b"".join(self.meet("engine.digest()", bytes(out))))
            lib.shore_fleet_digest_of(self.committed(), ffi.cast("unsigned char(*)[16]", sums), len(sums) // 16, out)
        return bytes(out).hex()

    def snapshot(self, name=None, keep=0):
        """Keeps the committed state under a name. All ranks call it."""
        self.settle()
        name, what = ffi.NULL if name is None else ffi.new("char[]", name.encode()), "engine.snapshot()"
        if self.part is None:
            native.call(lib.shore_run_snapshot, self.run, name, keep)
            return
        keeps, digest = self.part.keeps, None
        if self.each(what, lambda: keeps and native.ask(lib.shore_run_snapshot_begin, self.run, name)):
            return  # it is there
        try:
            self.each(what, lambda: native.call(lib.shore_run_snapshot_copy, self.run, name))
            digest = bytes.fromhex(self.digest())
        finally:  # without a digest it goes
            end = lib.shore_run_snapshot_end, self.run, name, keep, ffi.NULL if digest is None else digest
            self.rank_0_last(what, lambda: native.call(*end))

    def remove_snapshot(self, name):
        """Removes a snapshot; of several ranks, rank 0 does it."""
        self.settle()
        if not self.rank:
            native.call(lib.shore_run_snapshot_remove, self.run, name.encode())

    def close(self):
        """Closes the run. All ranks call it, and leave together, unless one has failed."""
        if self.run is None:
            return
        for _, storing in self.kept_images.values():
            storing.settle()
        try:
            self.settle()
            if self.part is not None and not self.part.ranks.failed:
                self.meet("engine.close()")
        finally:
            run, self.run, self.fleet = self.run, None, None
            if self.part is not None:
                self.part.end()
            self.charges.close()
            ffi.release(run)
            trace, self.trace, diag = self.trace, ffi.NULL, ffi.new("struct shore_diag *")
            if lib.shore_trace_close(trace, diag):
                logging.getLogger("longshore").warning("%s", native.text(diag.text))


def rollback(run, snapshot):
    """Returns a run that is not open to one of its snapshots."""
    native.call(lib.shore_run_rollback, native.path_bytes(run), snapshot.encode(), ffi.NULL, ffi.NULL)


def remove(run):
    """Deletes a run that is not open, with its volumes and snapshots."""
    native.call(lib.shore_run_remove, native.path_bytes(run), ffi.NULL)
