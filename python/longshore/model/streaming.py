"""Streaming of parameters: fetches each block into its slot before a module computes with it, and evicts others.

Repeated layer n always uses slot `n modulo slots`, so that a parameter has the same address in forward and in backward.
A slot holds a layer's frozen and trained parameters side by side. Hooks of modules fetch blocks (hooks.py). If autograd
saves a parameter, Longshore keeps only its place in the slot, and reads the value again in backward. So the value is
right even if other layers used the slot in between.

If modules compute in float32 and the drives store bf16, a block is fetched into the upper half of its slot and widened
in place. Parameters of the less common dtype stay in memory.
"""

import contextlib
import functools
import threading

import torch
from torch import nn

from .. import forks, native, progress
from ..drives import recovery
from ..drives.state import Buffer
from ..errors import AbsentParameterError, LongshoreError
from ..interrupts import whole
from ..native import SEGMENT, ffi, lib
from ..torch_internals import carry_hooks, in_backward, parameters_of, version_of
from . import device, hooks, write_tracking
from .absent import Absent, Handle
from .activations import Stayed
from .forward_scope import Running, checkpoint_that_saves
from .slot_memory import Place, Places, SavedAbsent

FETCH = {torch.float32: lib.SHORE_FETCH_MASTER, torch.bfloat16: lib.SHORE_FETCH_BF16}


class Slot:
    """A range of memory that holds one block at a time."""

    def __init__(self, base, nbytes, widens):
        self.base, self.nbytes, self.holds = base, nbytes, None
        # on a device: the content that it has; the event of its copy; the event of the last computation with it
        self.put = self.crossed = self.used = None
        self.fetched = base + (nbytes // 2 if widens else 0)  # offset at which fetched bytes arrive


class Streamed:
    """A block that is fetched and evicted. It is the C library's page of the same number."""

    def __init__(self, number, block, slot, stays, storage):
        self.number, self.block, self.slot, self.stays, self.storage = number, block, slot, stays, storage
        self.widens = storage != block.dtype
        self.parameters = []  # (parameter, handle)
        self.present = False  # whether modules can compute with its parameters
        self.pins = 0  # forward passes and resident() contexts that use it now
        self.resident_pins = 0  # resident() contexts alone
        self.first_pass_done = False  # whether it was in memory in a pass with gradients
        self.updates = 0  # how many steps have changed it
        self.evicted = None  # the block whose slot this one reuses while that block's forward is still running
        self.recomputer = None  # weak reference to the checkpoint that recomputes it
        self.step = -1  # the step of the widened parameters in the slot; -1: none


class Streams:
    """All blocks of one model, and the slots that they share."""

    def __init__(self, layout, compute, storage, slots, where=None):
        """compute: the dtype that most parameters have in modules; storage: the dtype in which they are fetched. slots:
        how many repeated layers memory holds. where: a device that modules compute on; None: the CPU."""
        self.layout, self.compute, self.storage = layout, compute, storage
        self.state = self.pages = self.gradients = None  # until open()
        self.mapped = None  # {name: value}, while a model saves itself
        self.lock = threading.RLock()
        self.layers = layout.layers()
        self.slots = max(1, min(slots, len(self.layers))) if self.layers else 0
        sides = layout.sides()
        self.memory = (Buffer if where is None else device.Pinned)(max(layout.memory_bytes(self.slots), 4096))
        self.base = int(ffi.cast("uintptr_t", self.memory.pointer))
        self.device = None if where is None else device.Device(where)
        self.mirror = None if where is None else device.Slots(where, self.memory)
        self.contents = 0  # goes up when the contents of memory become invalid
        self.pool, at = [], 0
        for side in sides * self.slots:
            self.pool.append(Slot(at, side, storage != compute))
            at += side
        self.place_of = {b: n for n, numbers in enumerate(self.layers) for b in numbers}
        slot_of = {
            b: self.pool[n % self.slots * len(sides) + side]
            for n, numbers in enumerate(self.layers)
            for side, b in enumerate(numbers)
        }
        self.blocks = []
        for b, block in enumerate(layout.blocks):
            if block.buffers:
                continue
            fetched = storage if block.dtype == compute else block.dtype
            if block.layer:
                slot, stays = slot_of[b], self.slots == len(self.layers)
            else:
                slot, stays = Slot(at, layout.nbytes(b), fetched != block.dtype), True
                at += slot.nbytes
            self.blocks.append(Streamed(b, block, slot, stays, fetched))
        self.places = Places(self.memory, {id(s.slot): s.slot for s in self.blocks}.values(), self.ensure, self.mirror)
        self.inside = Running(self._pack, self._unpack, {})
        self.turns = None  # the Turns of a layer-major step
        self.loading = None  # a Loading, for load_state_dict()
        self.progress = progress.Step()
        self.make_activations = None  # makes the Activations of an opened state; None: activations stay in memory
        self.activations = None
        self.copies_bytes = 0  # bytes of copies that resident(write="temporary") holds
        # why nothing can be fetched while state is None
        self.why = "the engine is closed; longshore.resume() opens its run again"
        forks.leave_in_children(self)

    def open(self, state):
        """Opens the pages of a run's state: from here on blocks are fetched from its drives, at the committed step."""
        ranges = ffi.new("struct shore_pages_range[]", len(self.blocks))
        address = {id(slot): ffi.cast("void *", self.base + slot.fetched) for slot in self.pool + self.places.slots}
        for r, streamed in zip(ranges, self.blocks):
            r.block, r.count = streamed.number, self.layout.segments[streamed.number]
            r.other_kind = streamed.storage != self.storage
            if streamed.stays:
                r.pool, r.memory = lib.SHORE_PAGES_STAYS, address[id(streamed.slot)]
            else:
                r.pool = self.pool.index(streamed.slot)
        pools = ffi.new("struct shore_pages_pool[]", max(len(self.pool), 1))
        buffers = [ffi.new("void *[]", [address[id(slot)]]) for slot in self.pool]
        for pool, buffer in zip(pools, buffers):
            pool.nbuffers, pool.buffers = 1, buffer
        options = native.new(
            "struct shore_pages_options",
            ranges=ranges,
            nranges=len(self.blocks),
            pools=pools,
            kind=FETCH[self.storage],
            npools=len(self.pool) if any(not s.stays for s in self.blocks) else 0,
        )
        self.pages = ffi.gc(
            native.made("struct shore_pages *", lib.shore_pages_open, state.fleet, options), lib.shore_pages_close
        )
        self.state = state
        self.contents += 1
        for streamed in self.blocks:  # memory may hold blocks of another state
            streamed.step, streamed.slot.holds = -1, None
            streamed.updates += 1
        if self.make_activations is not None:
            self.activations = self.make_activations(state)
        lib.shore_pages_set_step(self.pages, state.step)
        self.gradients.open(state)

    # ---- the model's parameters

    def bind(self, model):
        """Points the model's parameters into the slots, and frees their memory. Replaces those on the meta device."""
        owners = {}
        for module_name, module in model.named_modules(remove_duplicate=False):
            for name, p in parameters_of(module).items():
                if p is not None:
                    owners.setdefault(f"{module_name}.{name}" if module_name else name, (module, name))
        self.owners = owners
        for streamed in self.blocks:
            for index, tensor in enumerate(streamed.block.tensors):
                module, name = owners[tensor.name]
                p = parameters_of(module)[name]
                at = streamed.slot.base + self.layout.offsets[streamed.number][index] * tensor.dtype.itemsize
                view = self.places.view(at, tensor.dtype, torch.Size(tensor.shape))
                if p.device != view.device or p.dtype != view.dtype:
                    new = nn.Parameter(torch.empty(0, dtype=view.dtype), requires_grad=p.requires_grad)
                    new.data = view  # keeps a version counter of its own, which a view of the memory would not
                    carry_hooks(p, new)
                    for full in tensor.names:
                        module, name = owners[full]
                        parameters_of(module)[name] = new
                    p = new
                else:
                    p.data = view
                p.longshore = handle = Handle(self, streamed, index, tensor.name, type(p))
                handle.view = view
                streamed.parameters.append((p, handle))
                p.__class__, handle.users = Absent, write_tracking.users(view)
        hooks.hook(self, model)

    def _show(self, streamed):
        """Lets modules compute with a block's parameters."""
        for p, handle in streamed.parameters:
            p.__class__ = handle.kind
            handle.version = version_of(p)
        streamed.present = True
        if self.turns is not None:
            self.turns.show(streamed)
        if in_backward() or self.inside.modules and torch.is_grad_enabled():
            write_tracking.watch_first(streamed)

    @whole
    def hide(self, streamed):
        """Makes a block's parameters absent. Raises AbsentParameterError if one was changed, which would be lost."""
        with self.lock:
            if not streamed.present:
                return
            streamed.present = False
            if self.mirror is not None:
                self.mirror.hide(streamed.slot)
            if not streamed.widens:
                lib.shore_pages_release(self.pages, streamed.number)
            changed = [(p, h) for p, h in streamed.parameters if write_tracking.changed(p, h)]
            for p, handle in changed:
                p.data = handle.view
            for p, handle in streamed.parameters:
                if not handle.temporary:
                    p.__class__ = Absent
            if changed:
                streamed.first_pass_done = False
                self.forget()
                raise AbsentParameterError(write_tracking.say_lost(self, changed[0][1]))

    @whole
    def forget(self):
        """Hides all blocks, and forgets their contents in memory, which differ from the drives'."""
        self.contents += 1
        for streamed in self.blocks:
            streamed.step = -1
            with contextlib.suppress(LongshoreError):
                self.hide(streamed)
        lib.shore_pages_forget(self.pages)
        lib.shore_pages_set_step(self.pages, self.state.step)

    # ---- coming and going

    def _fetch(self, streamed):
        """Reads a block into its slot, widened if need be."""
        if self.mirror is not None and streamed.slot.put != self._content(streamed):
            self.mirror.fill(streamed.slot)
        try:
            if streamed.widens:
                native.call(
                    lib.shore_pages_take,
                    self.pages,
                    streamed.number,
                    ffi.cast("float *", self.base + streamed.slot.base),
                )
                streamed.step = self.state.step
            else:
                native.call(lib.shore_pages_get, self.pages, streamed.number, ffi.new("const void **"))
        except LongshoreError as failure:
            core = self.core()
            if core is not None and failure.code != lib.SHORE_ELINK:
                core.cycle.settle()  # raises the cause, if the page waits for an update whose step cannot be committed
            raise

    @whole
    def ensure(self, streamed):
        """Fetches a block unless it is in memory, evicting the one in its slot. On return modules can compute with its
        parameters."""
        if streamed.present:
            return
        with self.lock:
            if self.state is None:
                raise LongshoreError(f"{streamed.block.name}: {self.why}")
            old = streamed.slot.holds
            if old is not None and old is not streamed:
                self._refuse_to_evict(
                    old, f"{streamed.block.name}: does not fit into memory together with {old.block.name}"
                )
                self.hide(old)
                old.step, streamed.evicted = -1, old if old.pins else None
                if not old.pins:
                    self.places.detach_views(old.parameters)
            streamed.slot.holds = streamed
            if not streamed.widens or streamed.step != self.state.step:
                streamed.step = -1
                recovery.persist(self.core(), lambda: self._fetch(streamed))
            if self.mirror is not None:
                self.mirror.put(streamed.slot, self._content(streamed))
            self._show(streamed)

    def _content(self, streamed):
        """Identifies what a slot holds once this block is in it."""
        return streamed.number, self.state.step, self.contents

    def _refuse_to_evict(self, old, why):
        """Raises LongshoreError if a block that is in use would be evicted. why: begins the message."""
        if old.resident_pins:
            raise LongshoreError(f"{why}, which longshore.resident() holds: leave that first, or give more memory")
        if self.inside.others_compute():
            raise LongshoreError(
                f"{why}, with which another thread may compute: use the model in one thread after "
                "the other, or give more memory"
            )
        if old.recomputer is not None and old.recomputer() is not None and old.recomputer() is checkpoint_that_saves():
            raise LongshoreError(
                f"{why}, with which it is computed again in one checkpoint: checkpoint each layer, "
                "use_reentrant=True, or give more memory"
            )

    def saving(self, sources):
        """The context of an operation on copies of absent parameters: autograd saves their places. sources: {the id of
        a copy's storage: its longshore_source}."""
        if checkpoint_that_saves() is not None:
            return contextlib.nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(functools.partial(self._pack, sources=sources), self._unpack)

    def fetch_if_free(self, streamed):
        """Fetches a block in forward or backward, unless its slot is in use: a module reads a parameter of another."""
        if self.inside.modules or in_backward():
            with self.lock:
                old = streamed.slot.holds
                if old is None or old is streamed or not old.pins:
                    self.ensure(streamed)

    @whole
    def want(self, number):
        """Prefetches a block, unless its slot is in use."""
        streamed = self.blocks[number]
        if self.state is None or self.slots < 2 or streamed.present:
            return
        with self.lock:
            old = streamed.slot.holds
            if (
                streamed.widens
                and streamed.step == self.state.step
                or self.mirror is not None
                and not self.mirror.may_fill(streamed.slot)
            ):
                return
            if old is not None and old is not streamed:
                if old.pins or self.inside.others_compute():
                    return
                self.hide(old)
                self.places.detach_views(old.parameters)
                old.step = -1
                streamed.slot.holds = None
            lib.shore_pages_want(self.pages, number)

    def prefetch_next(self, number, by):
        """Prefetches the layer after a block's own, in forward (by=1) or backward (by=-1)."""
        self.progress.add()
        place = self.place_of.get(number, -2) + by
        for following in self.layers[place] if 0 <= place < len(self.layers) else ():
            self.want(following)

    @whole
    def copy_of(self, handle):
        """Returns a copy of a parameter's value, for a use outside of forward and backward."""
        streamed = handle.block
        with self.lock:
            if self.state is None:
                raise AbsentParameterError(f"{handle.name}: {self.why}")
            if self.mapped is not None:
                return self.mapped[handle.name]
            if streamed.present or streamed.stays:
                was = streamed.present
                self.ensure(streamed)
                value = handle.view.clone()
                if not was:
                    self.hide(streamed)
                return value
            first, n = self.layout.offsets[streamed.number][handle.index], handle.view.numel()
            segment = first // SEGMENT
            count = (first + n - 1) // SEGMENT - segment + 1
            # waits for the block's update; if that failed, the commit raises the cause
            self.gradients.step.tell(lib.shore_step_wait, streamed.number)
            buffer = Buffer(count * SEGMENT * streamed.storage.itemsize)
            fetch, kind = self.state.fetch, FETCH[streamed.storage]
            recovery.persist(self.core(), lambda: fetch(streamed.number, kind, buffer.pointer, segment, count).result())
            values = buffer.view(streamed.storage)[first - segment * SEGMENT :][:n]
            return values.to(handle.view.device, handle.view.dtype, copy=True).view(handle.view.shape)

    # ---- a step

    def before_update(self, number):
        """Hides a block that is about to be updated."""
        streamed = self.blocks[number]
        self.hide(streamed)
        if self.mirror is not None:
            self.mirror.fill(streamed.slot)
        if streamed.stays:
            streamed.step = -1  # the update's result goes into the slot
            self.places.detach_views(streamed.parameters)

    @whole
    def after_step(self, changed):
        """The state is one step further. changed: numbers of the blocks that the step changed."""
        with self.lock:
            lib.shore_pages_set_step(self.pages, self.state.step)
            for streamed in self.blocks:
                if streamed.number in changed:
                    streamed.updates += 1
                    self.places.detach_views(streamed.parameters)
                elif streamed.step == self.state.step - 1:
                    streamed.step += 1
                if not streamed.widens or streamed.step != self.state.step:
                    self.hide(streamed)

    @whole
    def after_drive_loss(self):
        """Cancels requests to lost drives. Present blocks stay as they are. Returns whether gradients were spilled to
        the lost drives."""
        with self.lock:
            for streamed in self.blocks:
                if streamed.present and not streamed.widens:
                    lib.shore_pages_release(self.pages, streamed.number)
            spilled = self.gradients.step.tell(lib.shore_step_lost)
            self.gradients.lose()
            self.contents += 1
            if self.activations is not None:
                self.activations.settle()
            return spilled

    @whole
    def end(self):
        """Closes the pages: every parameter is absent from here on."""
        if self.pages is None:
            return
        self._mark_absent()
        if self.activations is not None:
            self.activations.end()
            self.activations = None
        self.gradients.end()
        self.state = None
        pages, self.pages = self.pages, None
        ffi.release(pages)

    def leave_to_parent(self):
        """In a forked process: forgets the run, whose memory the process does not have."""
        self.lock, self.why = threading.RLock(), forks.WHY
        self._mark_absent()
        self.state = self.activations = None
        if self.pages is not None:
            ffi.gc(self.pages, None)
            self.pages = None

    def _mark_absent(self):
        for streamed in self.blocks:
            streamed.present = False
            for p, _ in streamed.parameters:
                p.__class__ = Absent

    # ---- what autograd saves

    def leave(self, whose):
        """Called when a module's forward ends. whose: the module, or the streams for the whole model."""
        if self.inside.leave(whose) and not in_backward():
            self.hide_unused()

    @whole
    def retire(self, blocks):
        """Hides blocks in forward that no module computes with any more. If one of them has evicted a block whose
        forward still runs, that block is fetched again."""
        if not in_backward():
            with self.lock:
                for streamed in blocks:
                    if not streamed.stays and not streamed.pins:
                        self.hide(streamed)
                for streamed in blocks:
                    evicted, streamed.evicted = streamed.evicted, None
                    if evicted is not None and evicted.pins and not streamed.pins:
                        self.ensure(evicted)

    @whole
    def hide_unused(self):
        """Hides all blocks that nothing uses. From here on reading a parameter gives a copy that no update changes, and
        writing to it raises."""
        with self.lock:
            for streamed in self.blocks:
                if not streamed.pins:
                    self.hide(streamed)

    def _pack(self, tensor, sources=None):
        """What autograd keeps instead of a saved tensor; _unpack() takes it. sources: as in saving()."""
        packed = self.places.place_of(tensor, sources)
        if packed is None:
            packed = self.activations.pack(tensor) if self.inside.offloads else Stayed(tensor)
        return packed if self.turns is None else (self.turns.number, packed)

    def _unpack(self, packed):
        """Returns the tensor that _pack() took."""
        if type(packed) is tuple:
            number, packed = packed
            if self.turns is not None:
                self.turns.current_backward = number
        if type(packed) is Place:
            return self.places.value(packed)
        if type(packed) in (Stayed, SavedAbsent):
            return packed.value()
        if self.activations is None:
            raise LongshoreError(
                "backward: the engine of this graph is closed, and so are the drives that its activations went to"
            )
        return self.activations.unpack(packed)
