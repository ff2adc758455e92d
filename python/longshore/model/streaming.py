"""Streaming of parameters: fetches each block into its slot before a module computes with it, and evicts others.

A repeated layer always uses the same slot (slots.py), so that a parameter has the same address in forward and in
backward; tiers.py has the memory. Hooks of modules fetch blocks (hooks.py). If autograd saves a parameter, Longshore
keeps only its place in the slot, and reads the value again in backward. So the value is right even if other layers used
the slot in between.
"""

import contextlib
import functools
import threading

import torch
from torch import nn

from .. import forks, progress
from ..drives import recovery
from ..errors import AbsentParameterError, LongshoreError
from ..interrupts import whole
from ..native import lib
from ..torch_internals import (
    at_end_of_backward,
    carry_hooks,
    in_backward,
    may_get,
    parameters_of,
    profiled,
    storage_users,
    version_of,
)
from . import hooks, write_tracking
from .absent import Absent, Handle
from .activations import Stayed
from .forward_scope import Running, checkpoint_that_saves
from .slot_memory import Place, Places, SavedAbsent
from .slots import bind, divide
from .step_clock import StepClock
from .tiers import OneTier, TwoTiers
from .unified import Unified

CLOSED = "the engine is closed; longshore.resume() opens its run again"


class Streamed:
    """A block that is fetched and evicted. It is the C library's page of the same number."""

    def __init__(self, number, block, storage, widens):
        """widens: the host widens it, after its page was fetched."""
        self.number, self.block, self.storage, self.widens = number, block, storage, widens
        self.slot, self.stays = None, True  # from slots.divide() on; whether no other block uses its slot
        self.given = set()  # streams of a device that compute with it now
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

    def __init__(self, layout, compute, storage, slots, pages=0, device=None, pinned=None):
        """compute: the dtype that most parameters have in modules; storage: the dtype in which they are fetched. slots:
        how many repeated layers modules can compute with at once. device: the Device with the slots; None: they are
        the host's, as pages are. pages: of how many repeated layers the host holds pages for a device.
        pinned: sizes of a device's HostMemory."""
        self.layout, self.compute = layout, compute
        self.state = None  # the State of the open run
        self.gradients = None  # until open()
        self.mapped = None  # {name: value}, while a model saves itself
        self.saves_places = False  # whether autograd has saved places of parameters since the last step
        self.lock = threading.RLock()
        self.layers = layout.layers()
        self.place_of = {b: n for n, numbers in enumerate(self.layers) for b in numbers}
        self.blocks, one_memory = [], device is None or device.is_unified
        for b, block in enumerate(layout.blocks):
            if not block.buffers:
                fetched = layout.fetched(b, compute, storage)
                self.blocks.append(Streamed(b, block, fetched, fetched != block.dtype and one_memory))
        shared, at = divide(self, slots)
        if device is None:
            self.tier = OneTier(layout, shared, at)
        elif one_memory:
            self.tier = Unified(layout, shared, at, device, pinned)
        else:
            page_bytes = functools.partial(layout.page_bytes, compute=compute, storage=storage)
            self.tier = TwoTiers(layout, shared, at, pages, device, page_bytes, pinned)
        self.device = device
        self.places = Places(self.tier, self)
        self.inside = Running(self._pack, self._unpack, {})
        self.turns = None  # the Turns of a layer-major step
        self.loading = None  # a Loading, for load_state_dict()
        self.progress, self.clock = progress.Step(), StepClock(None if device is None else self.places.device)
        self.make_activations = None  # makes the Activations of an opened state; None: activations stay in memory
        self.activations = None
        self.fates = None  # the Fates of layers; None: where there are activations, all that may go there does
        self.copies_bytes = 0  # bytes of copies that resident(write="temporary") holds
        self.why = CLOSED  # why nothing can be fetched while state is None
        self.asleep = None  # what a sleeping engine goes on with: run/sleep.py
        forks.leave_in_children(self)

    def open(self, state):
        """Opens the pages of a run's state: from here on blocks are fetched from its drives, at the committed step."""
        if self.tier.take():
            bind(self)
            self.core().device_memory.begin()
        self.tier.open(state, self.blocks)
        self.state, self.asleep = state, None
        if self.device is not None:
            self.device.charges = state.charges
        for streamed in self.blocks:  # memory may hold blocks of another state
            streamed.step, streamed.slot.holds = -1, None
            streamed.updates += 1
        if self.make_activations is not None:
            self.activations = self.make_activations(state)
        lib.shore_pages_set_step(self.pages, state.step)
        self.gradients.open(state)

    def open_state(self, asked):
        """Returns the State of the open run. Raises LongshoreError if the engine is closed. asked: what needs it."""
        if self.state is None:
            raise LongshoreError(f"{asked}: {self.why}")
        return self.state

    @contextlib.contextmanager
    def reading(self, values):
        """The context in which reading a parameter gives one of these values: {name: tensor}."""
        self.mapped = values
        try:
            yield
        finally:
            self.mapped = None

    @contextlib.contextmanager
    def taking(self, turns):
        """The context in which modules compute in these Turns."""
        self.turns = turns
        try:
            yield
        finally:
            self.turns = None

    @property
    def pages(self):
        """struct shore_pages *, while a state is open."""
        return self.tier.pages

    # ---- the model's parameters

    def view_of(self, streamed, index):
        """Where a block's tensor lies in its slot."""
        tensor = streamed.block.tensors[index]
        at = streamed.slot.base + self.layout.offsets[streamed.number][index] * tensor.dtype.itemsize
        return self.places.view(at, tensor.dtype, torch.Size(tensor.shape))

    def bind(self, model):
        """Points the model's parameters into the slots, and frees their memory. Replaces those that cannot
        stay the same objects (see may_get())."""
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
                view = self.view_of(streamed, index)
                if not may_get(p, view):
                    new = nn.Parameter(
                        torch.empty(0, dtype=view.dtype, device=view.device), requires_grad=p.requires_grad
                    )
                    new.data = view  # keeps a version counter of its own, which a view of the memory would not
                    carry_hooks(p, new)
                    for full in tensor.names:
                        module, name = owners[full]
                        parameters_of(module)[name] = new
                    p = new
                else:
                    p.data = view
                    if p.grad is not None and p.grad.device != view.device:
                        p.grad.data = p.grad.data.to(view.device)
                p.longshore = handle = Handle(self, streamed, index, tensor.name, type(p))
                handle.view = view
                streamed.parameters.append((p, handle))
                p.__class__, handle.users = Absent, storage_users(view)
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
            self.tier.leave(streamed)
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
        for streamed in self.blocks:
            streamed.step = -1
            with contextlib.suppress(LongshoreError):
                self.hide(streamed)
        self.tier.forget()
        lib.shore_pages_forget(self.pages)
        lib.shore_pages_set_step(self.pages, self.state.step)

    # ---- coming and going

    def ready(self, streamed):
        """Whether the code of this thread may compute with a block's parameters."""
        return streamed.present and self.tier.is_given(streamed)

    def _fetch(self, streamed):
        """Brings a block into its slot."""
        try:
            with profiled("fetch", streamed.block.name):
                self.tier.give(streamed)
        except LongshoreError as failure:
            core = self.core()
            if core is not None and failure.code != lib.SHORE_ELINK:
                core.cycle.settle()  # raises the cause, if the page waits for an update whose step cannot be committed
            raise

    @whole
    def ensure(self, streamed):
        """Fetches a block unless it is in memory, evicting the one in its slot. On return modules can compute with its
        parameters."""
        if self.ready(streamed):
            return
        with self.lock:
            self.open_state(streamed.block.name)
            if streamed.present:  # and another stream of the device computes with it
                return recovery.persist(self.core(), lambda: self._fetch(streamed))
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
            recovery.persist(self.core(), lambda: self._fetch(streamed))
            self._show(streamed)

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
        """Prefetches a block, into its slot unless that is in use."""
        streamed = self.blocks[number]
        if self.state is None or streamed.present:
            return
        with self.lock:
            old = streamed.slot.holds
            if streamed.widens and streamed.step == self.state.step:
                return
            is_free = self.slots > 1
            if is_free and old is not None and old is not streamed:
                is_free = not old.pins and not self.inside.others_compute()
                if is_free:
                    self.hide(old)
                    self.places.detach_views(old.parameters)
                    old.step = -1
                    streamed.slot.holds = None
            self.tier.want(streamed, is_free)

    def backward_runs(self):
        """This thread steps, in backward. A pass that no gradient of a parameter comes from, as torch.autograd.grad()
        may make it, ends as a part of what a script does then."""
        if self.state is not None:
            charges = self.state.charges
            before = charges.turn(lib.SHORE_CHARGE_BACKWARD)
            if before not in (lib.SHORE_CHARGE_BACKWARD, lib.SHORE_CHARGE_AGAIN):
                at_end_of_backward(lambda: charges.turn(before))

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
            if self.mapped is not None:
                return self.mapped[handle.name]
            if self.state is None:
                raise AbsentParameterError(f"{handle.name}: {self.why}")
            if streamed.present or streamed.stays:
                was = streamed.present
                self.ensure(streamed)
                value = handle.view.clone()
                if not was:
                    self.hide(streamed)
                return value
            first, n = self.layout.offsets[streamed.number][handle.index], handle.view.numel()
            # waits for the block's update; if that failed, the commit raises the cause
            self.gradients.step.tell(lib.shore_step_wait, streamed.number)
            value, read = torch.empty(n, dtype=handle.view.dtype, device="cpu"), self.state.values
            recovery.persist(self.core(), lambda: read(streamed.number, first, value, streamed.storage))
            return value.to(handle.view.device).view(handle.view.shape)

    # ---- a step

    def before_update(self, number):
        """Hides a block that is about to be updated."""
        streamed = self.blocks[number]
        self.hide(streamed)
        self.tier.before_update(streamed)
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
                    self.state.outdate(self.pages, streamed.number)
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
        if self.state is None:
            return False
        with self.lock:
            self.tier.after_drive_loss(self.blocks)
            spilled = self.gradients.step.tell(lib.shore_step_lost)
            self.gradients.lose()
            if self.activations is not None:
                self.activations.settle()
            return spilled

    @whole
    def end(self):
        """Closes the pages and lets go of their memory: every parameter is absent from here on."""
        self.state = None
        if self.asleep is not None:
            self.asleep, self.why = None, CLOSED
        if self.tier.bytes is None and self.pages is None:
            return
        self._mark_absent()
        if self.activations is not None:
            self.activations.end()
            self.activations = None
        self.gradients.end()
        # Parameters keep their shapes alone. A handler that closes in a pass may have come while an operation saves
        # what it then reads: that memory ends with the parameters.
        for streamed in self.blocks if not self.inside.computing else ():
            self.places.detach_views(streamed.parameters)
            self.places.detach_all(streamed.parameters)
        self.tier.close()

    def leave_to_parent(self):
        """In a forked process: forgets the run, whose memory the process does not have."""
        self.lock, self.why, self.asleep = threading.RLock(), forks.WHY, None
        self._mark_absent()
        self.state = self.activations = None
        self.tier.leave_to_parent()

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
            if self.clock.runs:
                self.clock.saves(tensor)
            goes = self.inside.offloads and (self.fates is None or self.fates.goes(self.inside))
            packed = self.activations.pack(tensor) if goes else Stayed(tensor)
        else:
            self.saves_places = True
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
        if packed.entry.store is not self.activations:
            raise LongshoreError(
                "backward: the engine of this graph is closed, or has slept since, and the activations of the graph, "
                "which went to the drives, are gone; compute the loss again"
            )
        return self.activations.unpack(packed)
