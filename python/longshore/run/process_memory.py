"""memory_of="process": on a CPU, resident memory of the process beyond its imports stays within memory=.

    wrap()                      before the first pass, and before one with larger inputs
    the engine at its least ──► a trace of the step says what autograd saves ──► the engine's part of memory=, and what
                                                                                 becomes of activations, layer by layer

What becomes of activations changes no bit (model/fates.py). Free memory stays in the C library's heap, where the next
layer finds it without asking the system for pages; it goes back where it would take the process beyond memory=.
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import native
from ..errors import BudgetError, LongshoreError
from ..interrupts import whole
from ..model import trace as tracing
from ..model.adapters import base_of
from ..model.fates import Fates, only_once
from ..native import lib
from ..ranks.launch import ranks
from ..torch_internals import in_backward
from . import allocator, memory, open_engines, room, shared_budget
from .activation_plan import Activations, gradients_of, with_sliced_loss
from .device_memory import larger, sizes
from .peak_memory import most_resident

# Of memory= for what nobody plans: code and workspaces that the first step brings, Python's objects, stacks, and rests
# of pages between tensors.
RESERVE_BYTES, RESERVE_PART = 64 << 20, 32
# What the process has beside an engine and a batch, at least, so that a plan says the minimum before there is a
# process: code, Python's objects, buffers of a model.
OTHERS_BYTES = 32 << 20
ROOM_PARTS = 4  # without activation_room, the drives reserve so many times memory= for activations

_log = logging.getLogger("longshore")


def reserve(limit: int) -> int:
    """Bytes of memory= that no tensor gets."""
    return RESERVE_BYTES + limit // RESERVE_PART


@dataclass
class ProcessBudget:
    """Bytes that the process may add to its imports, and how an engine is planned within them."""

    limit: int
    replan: Callable[..., Any]  # plans the engine for so many bytes: memory=

    def too_little(self, minimum: int, what: str) -> BudgetError:
        said = f'memory={native.readable(self.limit)} with memory_of="process" is too little for {what}'
        return BudgetError(f"{said}: minimum {native.readable(minimum, up=True)}", lib.SHORE_EBUDGET)


def refuse(who: str, memory_of: Any, device: Any, others: Mapping[str, Any], opens: bool = True) -> None:
    """Raises ValueError where memory_of is no such name, or the promise cannot be made. others: options that exclude
    it, by what they are called, where they are given. opens: an engine is about to be opened in this process."""
    if memory_of not in ("engine", "process"):
        raise ValueError(f'{who}: memory_of must be "engine" or "process", and is {memory_of!r}')
    if memory_of == "engine":
        return
    why = None
    if device is not None:
        why = f"this model computes on {device}, where gpu_memory= is the budget of all that the process takes"
    elif ranks().size > 1:
        why = "the ranks of a host share its memory"
    elif opens and (shared_budget.left() is not None or open_engines.any_open()):
        why = "other engines share this process"
    elif (name := next(iter(others), None)) is not None:
        why = f"{name} has memory that cannot be foreseen"
    if why is not None:
        raise ValueError(f'{who}: memory_of="process" is for one engine on a CPU, and {why}: leave it out')


def beside(how: Mapping[str, Any], drives: Sequence[str] | None) -> dict[str, Any]:
    """What excludes the promise, of a run's options and drives."""
    out = {f"{name}=": how[name] for name in ("compile", "compress") if how.get(name)}
    out.update({} if how.get("trains", True) else {"trains=": False})
    return {**out, **{drive: drive for drive in drives or () if drive.startswith("opencl:")}}


def refuse_beside(who: str) -> None:
    """Raises LongshoreError if an open engine has promised the memory of the whole process."""
    core = next((core for core in open_engines.training() if core.plan.process is not None), None)
    if core is not None:
        raise LongshoreError(
            f'{who}: the engine of {core.state.path} has memory_of="process", and takes all of memory= for itself: '
            'close() it first, or make both with memory_of="engine"'
        )


def plan(replan: Callable[..., Any], given: int | None, how: Mapping[str, Any], room_bytes: int | None = None) -> Any:
    """The Plan of a new engine, of the whole process if the options how say so: that of the engine before it has seen a
    batch. replan: plans it for given bytes, memory=, and options, how=."""
    if how.get("memory_of") != "process":
        return replan(memory=given, how=how)
    replan = functools.partial(replan, how={**how, "activations": "memory"})
    budget = ProcessBudget(shared_budget.within(given), replan)
    left = budget.limit - reserve(budget.limit)
    least = replan(memory=None).least_bytes
    if left < least:
        try:
            replan(memory=max(left, 1))  # which lets blocks outside of layers share slots
        except BudgetError:
            least = replan(memory=None).least_bytes
            raise budget.too_little(with_reserve(least), "this model, whatever its batches") from None
        least = replan(memory=left).least_bytes
    made = replan(memory=min(least * 5 // 4, left))
    made.process, made.room_bytes, made.again = budget, 0, None
    if how["activations"] != "memory":
        made.room_bytes = ROOM_PARTS * budget.limit if room_bytes is None else room_bytes
    return made


def with_reserve(nbytes: int) -> int:
    """The smallest limit that leaves so many bytes beside its reserve."""
    return (nbytes + RESERVE_BYTES) * RESERVE_PART // (RESERVE_PART - 1) + 1


def without_cache(model: Any, args: tuple, kwargs: Mapping) -> tuple[tuple, dict] | None:
    """Inputs of a pass with gradients, so that a model of transformers keeps no keys and values for generation, as in
    its own gradient checkpointing: they would stay in memory, and no layer that adds to them could be computed again.
    None: they are that already."""
    model = base_of(model)
    if not getattr(getattr(model, "config", None), "use_cache", False):
        return None
    takes = [*inspect.signature(model.forward).parameters]
    if "use_cache" not in takes[len(args) :] or "use_cache" in kwargs or kwargs.get("past_key_values") is not None:
        return None
    return args, {**kwargs, "use_cache": False}


def _bound(model, args, kwargs):
    """Arguments of forward, as trace() takes them."""
    if args and kwargs:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    return kwargs or args


# of a Plan, which another one may have otherwise
_SIZES = "pages gradient_bytes spare_bytes pool_bytes total_bytes budget_bytes most_bytes".split()


class ProcessMemory:
    """Keeps the process of one engine within its ProcessBudget."""

    budget = None  # of a device

    def __init__(self, streams, plan):
        self.streams, self.plan, self.process = streams, plan, plan.process
        self.imports = memory.imports_bytes() or 0
        # what the plan holds for: the largest sizes of inputs, the most micro-batches that go through layers together,
        # and whether several passes make a step
        self.planned_for: tuple = ([], 0, False)
        self.traced = True  # whether a trace says what the step needs
        self.beyond = 0  # bytes by which a step went beyond memory=, which later ones leave free
        self.before = 0  # the process's peak before the step
        self.gathers = False  # a step has begun
        self.planned = None  # the Trace of the last pass that was planned for, until its plan is kept
        self.times = None  # struct shore_plan_times of a step of it alone; None: it came within one, or nobody knows
        self.drift = None  # the Drift, once rates have changed
        streams.fates = Fates()
        self.guard = allocator.Guard(self.limit, reserve(self.process.limit) // 2)
        weakref.finalize(self, self.guard.stop)

    @property
    def limit(self):
        """Resident memory that the process may have."""
        return self.imports + self.process.limit

    def told(self):
        """As of DeviceMemory."""
        return 0, 0, 0

    def begin(self):
        """As of DeviceMemory."""

    make_room = begin

    def rates_changed(self, drift):
        """As of DeviceMemory: the next pass is planned for again."""
        self.drift, self.planned_for = drift, ([], 0, False)

    # ---- passes

    def before_pass(self, inputs, trains):
        """A forward pass is about to begin, of one micro-batch: inputs are its (args, kwargs). Or of several together:
        a list of what train_batch() takes."""
        streams, core = self.streams, self.streams.core()
        if not trains or in_backward() or streams.inside.modules:
            return
        if not self.gathers:
            self.guard.most, self.before = 0, most_resident()
        several = isinstance(inputs, list)
        batches = inputs if several else [inputs]
        found = functools.reduce(larger, map(sizes, batches), [])
        count = len(batches) if streams.turns is None else streams.turns.count
        adds = count > 1 or core.accumulate > 1 or core.cycle.passes > 0
        largest, most, added = self.planned_for
        wanted = larger(found, largest), max(count, most), adds or added
        if wanted[:2] != (largest, most) or wanted[2] > added:
            batch = max(batches, key=lambda each: sizes(each)[0])
            if (trace := self._trace(batch if several else batch)) is not None:
                adds = self._plan(trace, wanted[1], wanted[2], streams.turns is None and not self.gathers)
                self.planned_for, self.planned = (*wanted[:2], adds), trace
        self.guard.keep(count == 1)
        self.gathers = True

    def given(self, args, kwargs):
        """As of DeviceMemory."""
        return without_cache(self.streams.core().module, args, kwargs) if torch.is_grad_enabled() else None

    def _trace(self, inputs):
        """The Trace of a step with these inputs. None: that of train_batch(), whose loss_of() calls the model with
        others; the pass itself says what."""
        core, blocks = self.streams.core(), self.streams.layout.blocks
        model = core.module
        bound = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], dict)
        layers = list(dict.fromkeys(b.module for b in blocks if b.layer))
        try:
            if bound:
                batch = _bound(model, *(self.given(*inputs) or inputs))
            else:
                batch = self.given((), inputs)[1] if isinstance(inputs, Mapping) and self.given((), inputs) else inputs
            found = tracing.trace(model, batch, layers=layers)
            if core.how.get("fused_loss") and found.has_loss:
                found = with_sliced_loss(found, model)
            self.traced = True
        except tracing.Untraceable as failure:
            if not bound:
                return None
            _log.info("memory_of: %s: the first step says what it needs", failure)
            found, self.traced = tracing.from_blocks(blocks, 1, str(failure)), False
        return found

    def _plan(self, trace, count, adds, may_change):
        """Plans a step. may_change: whether no step has begun, so that the engine's part may become another one. Raises
        BudgetError if memory= is too little for it. Returns whether what was planned may add up several passes: before
        the second one nobody knows, so it may if there is memory for that."""
        streams, plan, limit = self.streams, self.plan, self.process.limit
        left = limit - reserve(limit) - self.beyond - max(self._others(), trace.inputs_bytes + OTHERS_BYTES)
        once = only_once(streams.core().module, trace)
        how = {"count": count, "once": once, "leave": streams.state.scratch_bytes > 0}
        needs = Activations(trace, gradients_of(streams.layout, trace, adds), **how)
        if may_change:
            more = replace(needs, gradients=gradients_of(streams.layout, trace, True))
            made = None if adds else self._divided(more, left, True)
            adds = adds or made is not None
            made = made or self._divided(needs, left, adds)
            if made is None:
                raise self._too_little(needs, left)
            sizes, chosen = {name: getattr(made, name) for name in _SIZES}, made.activations
            self.times = None if trace.why else made.times
            differs = any(getattr(plan, name) != size for name, size in sizes.items())
            if differs:
                room.change(streams.core(), **sizes)
            if self.drift is not None and self.drift.what:
                streams.core().outlook.drifted(differs or chosen.of != streams.fates.of)
        else:
            chosen, self.times = self._beside(replace(needs, pool_bytes=plan.pool_bytes), left, adds), None
        streams.fates = Fates(chosen.of, chosen.pool_bytes > 0)
        return adds

    def _divided(self, needs, left, adds):
        """The Plan that divides so many bytes among the engine and activations. None: they are too few."""
        rates = None if self.drift is None else self.drift.rates()
        try:
            made = self.process.replan(memory=max(left, 1), whole=needs, rates=rates)
        except BudgetError:
            return None
        most = self.streams.gradients.most_bytes(adds)
        if made.gradient_bytes >= most:
            # all gradients of a step stay: state would have the engine's memory for those on their way to the drives
            try:
                made = self.process.replan(memory=left, whole=replace(needs, aside=True), rates=rates)
            except BudgetError:
                made.gradient_bytes = most - 1
        return made

    def _beside(self, needs, left, adds):
        """The Chosen of a step that has begun. State in memory gives way, if it must."""
        plan, engine = self.plan, self._engine_bytes(adds)
        chosen = plan.beside(needs, left - engine + plan.pool_bytes)
        if chosen is None:
            chosen = plan.beside(needs, left - engine + plan.spare_bytes + plan.pool_bytes)
            if chosen is None:
                raise self._too_little(replace(needs, pool_bytes=None), left)
            plan.spare_bytes = 0
            self.streams.gradients.shrink_state()
        return chosen

    def _too_little(self, needs, left):
        limit, least = self.process.limit, self.process.replan(memory=None, whole=needs).least_bytes
        return self.process.too_little(with_reserve(limit - reserve(limit) - left + least), "this batch")

    def _engine_bytes(self, adds):
        """What an engine holds all the time: without memory for gradients on their way to the
        drives, unless state has that, since all gradients of a step stay."""
        plan = self.plan
        on_their_way = plan.aside_bytes * (plan.gradient_bytes < self.streams.gradients.most_bytes(adds))
        return plan.total_bytes + plan.spare_bytes - on_their_way

    def _others(self):
        """Bytes that the process has beyond its imports and its engine: buffers, batches, and what the script has."""
        allocator.give_back()
        plan, core = self.plan, self.streams.core()
        held = plan.total_bytes - plan.aside_bytes - plan.gradient_bytes
        held += core.gradients.held_bytes + core.gradients.step.tell(lib.shore_step_state_bytes)
        return max(memory.process_bytes() - self.imports - held, 0)

    @whole
    def after_pass(self, trains):
        """A pass has ended, and nothing of its step is committed. Raises BudgetError if it went beyond memory=, and no
        trace could have said so."""
        if not trains or self.streams.turns is not None or in_backward():
            return
        peak = most_resident()
        over = (peak if peak > self.before else self.guard.most) - self.limit
        if over <= 0:
            return
        self.planned_for = [], 0, False
        if not self.traced:
            raise self.process.too_little(
                with_reserve(self.process.limit - reserve(self.process.limit) + over), "this batch"
            )
        self.beyond += over
        _log.info("memory_of: a step went %s beyond memory=; later ones leave as much free", native.readable(over))

    def step_ended(self, made):
        """What was gathered is a step, or was dropped."""
        self.gathers = False
