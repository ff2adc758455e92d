"""Parameters on demand: blocks come into memory before they are computed with, and others make room for them.

Layer n of those that repeat lies in slot `n modulo slots`, always the same one, so that what autograd keeps of a
parameter is at the same address in backward. What is frozen of a layer and what is trained lie side by side there.
Hooks of modules fetch; what autograd saves of a parameter is kept as its place and looked up again, so that it is the
value itself, whoever had the slot in between.

Where parameters are computed with in float32 and stored in bf16, they are fetched into the upper half of their slot,
and widened within it. Those of the dtype that fewer elements have stay in memory, as they are.
"""

import contextlib
import threading

import torch
from torch import nn

from .. import forks, native, progress
from ..errors import AbsentParameterError, LongshoreError
from ..interrupts import whole
from ..native import SEGMENT, ffi, lib
from ..run.state import Buffer
from ..step import recovery
from ..torch_internals import carry_hooks, in_backward, parameters_of, version_of
from . import device, hooks, write_tracking
from .absent import Absent, Handle
from .activations import Stayed
from .forward_scope import Running, checkpoint_that_saves
from .slot_memory import Asked, Place, Places

FETCH = {torch.float32: lib.SHORE_FETCH_MASTER, torch.bfloat16: lib.SHORE_FETCH_BF16}


class Slot:
    def __init__(self, base, nbytes, widens):
        self.base, self.nbytes, self.holds = base, nbytes, None
        # on a device: what of it is there; events of when it was, and of who computes with that
        self.put = self.crossed = self.used = None
        self.fetched = base + (nbytes // 2 if widens else 0)  # where what comes of the drives is put


class Streamed:
    """A block in motion. Its page is the engine's, of the same number."""

    def __init__(self, number, block, slot, stays, storage):
        self.number, self.block, self.slot, self.stays, self.storage = number, block, slot, stays, storage
        self.widens = storage != block.dtype
        self.parameters = []  # (parameter, handle)
        self.present = False  # its parameters may be computed with
        self.pins = 0  # forward passes, and resident() contexts, that are in it
        self.kept = 0  # the latter alone
        self.passed = False  # it was in memory in a pass with gradients
        self.updates = 0  # steps that have changed it
        self.over = None  # whose memory it took, as the forward that is in that one called it
        self.again = None  # who saves what a checkpoint computes again of it
        self.step = -1  # whose parameters the slot holds, where they are widened


class Streams:
    def __init__(self, layout, compute, storage, slots, where=None):
        """compute: dtype of most parameters as modules see them; storage: as those are fetched. slots: for repeated
        layers. where: a device that modules compute on; None: the CPU."""
        self.layout, self.compute, self.storage = layout, compute, storage
        self.state = self.pages = self.gradients = None  # until it is sealed
        self.mapped = None  # {name: value}, while a model saves itself
        self.lock = threading.RLock()
        self.layers = layout.layers()
        self.slots = max(1, min(slots, len(self.layers))) if self.layers else 0
        sides = layout.sides()
        self.memory = (Buffer if where is None else device.Pinned)(max(layout.memory_bytes(self.slots), 4096))
        self.base = int(ffi.cast("uintptr_t", self.memory.pointer))
        self.away = None if where is None else device.Slots(where, self.memory)
        self.contents = 0  # counts when what lies in memory was given up
        self.pool, at = [], 0
        for side in sides * self.slots:
            self.pool.append(Slot(at, side, storage != compute))
            at += side
        self.place_of = {b: n for n, numbers in enumerate(self.layers) for b in numbers}
        slot_of = {b: self.pool[n % self.slots * len(sides) + side]
                   for n, numbers in enumerate(self.layers) for side, b in enumerate(numbers)}
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
        self.places = Places(self.memory, {id(s.slot): s.slot for s in self.blocks}.values(), self.ensure, self.away)
        self.inside = Running(self._pack, self._unpack, {})
        self.turns = None  # of micro-batches that are computed together
        self.loading = None  # of a state_dict, into parameters that are not in memory
        self.progress = progress.Step()
        self.make_activations = None  # of the state that is open: where what is saved goes, but for parameters
        self.activations = None
        self.copies_bytes = 0  # of parameters that have memory of their own for a while
        # nothing can be had, where state is None
        self.why = "the engine is closed; longshore.resume() opens its run again"
        forks.leave_in_children(self)

    def open(self, state):
        """From here on parameters come from the fleet, at its committed step."""
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
        options = native.new("struct shore_pages_options", ranges=ranges, nranges=len(self.blocks), pools=pools,
                             kind=FETCH[self.storage],
                             npools=len(self.pool) if any(not s.stays for s in self.blocks) else 0)
        self.pages = ffi.gc(native.made("struct shore_pages *", lib.shore_pages_open, state.fleet, options),
                            lib.shore_pages_close)
        self.state = state
        self.contents += 1
        for streamed in self.blocks:  # of another state there is nothing
            streamed.step, streamed.slot.holds = -1, None
            streamed.updates += 1
        if self.make_activations is not None:
            self.activations = self.make_activations(state)
        lib.shore_pages_set_step(self.pages, state.step)
        self.gradients.open(state)

    # ---- the model's parameters

    def bind(self, model):
        """Takes the parameters over; what they held is freed. Those on the meta device are replaced by new ones."""
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
                    new.data = view  # which keeps a count of changes of its own, as a view of the memory does not
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
        """Its parameters may not be computed with any more."""
        with self.lock:
            if not streamed.present:
                return
            streamed.present = False
            if self.away is not None:
                self.away.hide(streamed.slot)
            if not streamed.widens:
                lib.shore_pages_release(self.pages, streamed.number)
            changed = [(p, h) for p, h in streamed.parameters if write_tracking.changed(p, h)]
            for p, handle in changed:
                p.data = handle.view
            for p, handle in streamed.parameters:
                if not handle.out:
                    p.__class__ = Absent
            if changed:
                streamed.passed = False
                self.forget()
                raise AbsentParameterError(write_tracking.say_lost(self, changed[0][1]))

    @whole
    def forget(self):
        """What lies in memory is not what the drives hold."""
        self.contents += 1
        for streamed in self.blocks:
            streamed.step = -1
            with contextlib.suppress(LongshoreError):
                self.hide(streamed)
        lib.shore_pages_forget(self.pages)
        lib.shore_pages_set_step(self.pages, self.state.step)

    # ---- coming and going

    def _fetch(self, streamed):
        if self.away is not None and streamed.slot.put != self._content(streamed):
            self.away.fill(streamed.slot)
        try:
            if streamed.widens:
                native.call(lib.shore_pages_take, self.pages, streamed.number,
                            ffi.cast("float *", self.base + streamed.slot.base))
                streamed.step = self.state.step
            else:
                native.call(lib.shore_pages_get, self.pages, streamed.number, ffi.new("const void **"))
        except LongshoreError as failure:
            engine = self.engine()
            if engine is not None and failure.code != lib.SHORE_ELINK:
                engine.settle()  # says it if the step cannot be committed whose update this page waits for
            raise

    @whole
    def ensure(self, streamed):
        """Brings a block: on return its parameters may be computed with."""
        if streamed.present:
            return
        with self.lock:
            if self.state is None:
                raise LongshoreError(f"{streamed.block.name}: {self.why}")
            old = streamed.slot.holds
            if old is not None and old is not streamed:
                self._refuse_to_evict(old,
                                      f"{streamed.block.name}: does not fit into memory together with {old.block.name}")
                self.hide(old)
                old.step, streamed.over = -1, old if old.pins else None
                if not old.pins:
                    self.places.part(old.parameters)
            streamed.slot.holds = streamed
            if not streamed.widens or streamed.step != self.state.step:
                streamed.step = -1
                recovery.persist(self.engine(), lambda: self._fetch(streamed))
            if self.away is not None:
                self.away.put(streamed.slot, self._content(streamed))
            self._show(streamed)

    def _content(self, streamed):
        """What its slot holds, when it is there."""
        return streamed.number, self.state.step, self.contents

    def _refuse_to_evict(self, old, why):
        if old.kept:
            raise LongshoreError(f"{why}, which longshore.resident() holds: leave that first, or give more memory")
        if self.inside.others():
            raise LongshoreError(f"{why}, with which another thread may compute: use the model in one thread after "
                                 "the other, or give more memory")
        if old.again is not None and old.again() is not None and old.again() is checkpoint_that_saves():
            raise LongshoreError(f"{why}, with which it is computed again in one checkpoint: checkpoint each layer, "
                                 "use_reentrant=True, or give more memory")

    @contextlib.contextmanager
    def lent(self, blocks):
        """Outside of forward and backward, while something is computed with parameters of blocks that stay whose
        gradients count."""
        with self.lock, contextlib.ExitStack() as saving:
            if checkpoint_that_saves() is None:
                saving.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
            for streamed in blocks:
                self.ensure(streamed)
            try:
                yield
            finally:
                self.rest()

    def reach(self, streamed):
        """Of a module that reads a parameter which is not its own, in forward or backward: brings its block, where that
        takes nobody the memory that he computes with."""
        if self.inside.modules or in_backward():
            with self.lock:
                old = streamed.slot.holds
                if old is None or old is streamed or not old.pins:
                    self.ensure(streamed)

    @whole
    def want(self, number):
        """Begins to fetch a block, where that takes nobody the memory that he computes with."""
        streamed = self.blocks[number]
        if self.state is None or self.slots < 2 or streamed.present:
            return
        with self.lock:
            old = streamed.slot.holds
            if (streamed.widens and streamed.step == self.state.step or self.away is not None
                and not self.away.may_fill(streamed.slot)):
                return
            if old is not None and old is not streamed:
                if old.pins or self.inside.others():
                    return
                self.hide(old)
                self.places.part(old.parameters)
                old.step = -1
                streamed.slot.holds = None
            lib.shore_pages_want(self.pages, number)

    def want_following(self, number, by):
        """Begins to fetch the layer that comes after a block's, in forward (by 1) or backward (by -1)."""
        self.progress.add()
        place = self.place_of.get(number, -2) + by
        for following in self.layers[place] if 0 <= place < len(self.layers) else ():
            self.want(following)

    @whole
    def copy_of(self, handle):
        """A parameter's value, for whoever asks outside of forward and backward."""
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
            # for its update; why that failed, the commit says
            self.gradients.step.tell(lib.shore_step_wait, streamed.number)
            buffer = Buffer(count * SEGMENT * streamed.storage.itemsize)
            fetch, kind = self.state.fetch, FETCH[streamed.storage]
            recovery.persist(self.engine(),
                             lambda: fetch(streamed.number, kind, buffer.pointer, segment, count).result())
            values = buffer.view(streamed.storage)[first - segment * SEGMENT:][:n]
            return values.to(handle.view.device, handle.view.dtype, copy=True).view(handle.view.shape)

    # ---- a step

    def part_with(self, number):
        """A block is about to be updated: nobody computes with it as it was."""
        streamed = self.blocks[number]
        self.hide(streamed)
        if self.away is not None:
            self.away.fill(streamed.slot)
        if streamed.stays:
            streamed.step = -1  # the update's result goes into the slot
            self.places.part(streamed.parameters)

    @whole
    def stepped(self, changed):
        """The state is one step further. changed: numbers of the blocks that are others."""
        with self.lock:
            lib.shore_pages_set_step(self.pages, self.state.step)
            for streamed in self.blocks:
                if streamed.number in changed:
                    streamed.updates += 1
                    self.places.part(streamed.parameters)
                elif streamed.step == self.state.step - 1:
                    streamed.step += 1
                if not streamed.widens or streamed.step != self.state.step:
                    self.hide(streamed)

    @whole
    def lost(self):
        """Nothing is under way of what drives were lost with. What is computed with stays as it is. Returns whether
        gradients were on them."""
        with self.lock:
            for streamed in self.blocks:
                if streamed.present and not streamed.widens:
                    lib.shore_pages_release(self.pages, streamed.number)
            aside = self.gradients.step.tell(lib.shore_step_lost)
            self.contents += 1
            if self.activations is not None:
                self.activations.settle()
            return aside

    @whole
    def end(self):
        if self.pages is None:
            return
        self._absent()
        if self.activations is not None:
            self.activations.end()
            self.activations = None
        self.gradients.end()
        self.state = None
        pages, self.pages = self.pages, None
        ffi.release(pages)

    def leave_to_parent(self):
        """Where this process was forked off, its memory is not there."""
        self.lock, self.why = threading.RLock(), forks.WHY
        self._absent()
        self.state = self.activations = None
        if self.pages is not None:
            ffi.gc(self.pages, None)
            self.pages = None

    def _absent(self):
        for streamed in self.blocks:
            streamed.present = False
            for p, _ in streamed.parameters:
                p.__class__ = Absent

    # ---- what autograd saves

    def leave(self, whose):
        """The forward of a module ends."""
        if self.inside.leave(whose) and not in_backward():
            self.rest()

    @whole
    def retire(self, blocks):
        """In forward, nobody computes with these: views that are made of them from here on are views of copies. Where
        their memory was that of a forward which goes on, it has it back."""
        if not in_backward():
            with self.lock:
                for streamed in blocks:
                    if not streamed.stays and not streamed.pins:
                        self.hide(streamed)
                for streamed in blocks:
                    over, streamed.over = streamed.over, None
                    if over is not None and over.pins and not streamed.pins:
                        self.ensure(over)

    @whole
    def rest(self):
        """Nobody computes. Who asks for a parameter from here on gets a copy, which no update changes, and who writes
        to it is told."""
        with self.lock:
            for streamed in self.blocks:
                if not streamed.pins:
                    self.hide(streamed)

    def _pack(self, tensor):
        packed = self.places.of(tensor)
        if packed is None:
            packed = self.activations.pack(tensor) if self.inside.sends else Stayed(tensor)
        return packed if self.turns is None else (self.turns.number, packed)

    def _unpack(self, packed):
        if type(packed) is tuple:
            number, packed = packed
            if self.turns is not None:
                self.turns.giving = number
        if type(packed) is Place:
            return self.places.value(packed)
        if type(packed) in (Stayed, Asked):
            return packed.value()
        if self.activations is None:
            raise LongshoreError("backward: the engine of this graph is closed, and so are the drives that its "
                                 "activations went to")
        return self.activations.unpack(packed)
