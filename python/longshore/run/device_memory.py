"""gpu_memory=: what this process adds to a device's memory stays within a budget.

    wrap()               step 1                         step 2 ...
    the least slots ───► measures what lies beside ───► as many slots as the rest has room for, at fixed addresses
                  ▲                                 │
                  └── a pass with larger inputs ◄───┘   before it begins

What lies beside the slots (activations, gradients, batches, what PyTorch's operations need) is known once passes have
run: it is the peak that PyTorch's allocator counts. The number of slots changes no bit.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from .. import native
from ..errors import BudgetError
from ..interrupts import whole
from ..model import slots
from ..model.device import WIDENED_AT_ONCE
from ..native import lib
from ..torch_internals import in_backward, tree_leaves

ROUNDED_TO = 1 << 20  # PyTorch's allocators give up to so much more than they are asked for
# The parts of what was measured that stay free, since other passes round otherwise: where there are more slots than the
# least, and in a minimum that is said, with a few small tensors
SPARE_PART, LEAST_PART, SMALL_BYTES = 8, 32, 64 << 10
CROSSING_PART = 4  # the part of what is left that is for gradients and activations on their way, rather than for slots


def said(minimum):
    """A size that is enough, in tenths of a MiB."""
    tenths = -(-minimum * 10 // (1 << 20))
    return f"{tenths // 10}.{tenths % 10} MiB" if minimum < 1 << 30 else native.readable(minimum, up=True)


@dataclass
class DeviceBudget:
    """Bytes that a process may add to a device's memory, and how they are counted."""

    limit: int
    given: bool = True  # whether the user gave it
    before: int = 0  # bytes that the process had allocated there
    beside: int = 0  # bytes beside the slots that are known from the start: buffers
    free: int | None = None  # bytes that were free there

    def too_little(self, minimum, what="this model"):
        """The sentence of a BudgetError."""
        by_default = "" if self.given else " (nine tenths of what is free)"
        return f"gpu_memory={native.readable(self.limit)}{by_default} is too little for {what}: minimum {said(minimum)}"


def _counts(device):
    """What counts a device's memory: torch.accelerator, or in older versions the device's module."""
    found = getattr(torch, "accelerator", None)
    return found if hasattr(found, "memory_allocated") else getattr(torch, device.type)


def memory(device):
    """(free, all) bytes of a device's memory; None: PyTorch does not tell."""
    told = (getattr(torch, "accelerator", None), "get_memory_info"), (getattr(torch, device.type), "mem_get_info")
    for module, name in told:
        if hasattr(module, name):
            with contextlib.suppress(RuntimeError):
                return getattr(module, name)(device)
    return None


def free_bytes(device):
    """Bytes of a device's memory that this process can still get; None if PyTorch does not tell."""
    counts, told = _counts(device), memory(device)
    if told is None:
        return None
    return told[0] + max(0, counts.memory_reserved(device) - counts.memory_allocated(device))


def counted(budgets, device, model, lenders=()):
    """Budgets as memory_plan.plan() takes them, before anything of a model is put on its device: gpu_memory is a
    DeviceBudget there, if it is known. lenders: Cores whose budget the model shares, if it is given none. Raises
    BudgetError if it is more than what is free."""
    free, given = None if device is None else free_bytes(device), budgets.get("gpu_memory")
    if device is None or free is None and given is None:
        return budgets
    if free is not None:
        free += sum(p.nbytes for p in model.parameters() if p.device == device)  # wrap() frees it
    if given is not None and free is not None and given > free:
        raise BudgetError(
            f"gpu_memory={native.readable(given)} is more than what is free on {device}, {native.readable(free)}: give "
            "less, or end what uses the rest (`python -m longshore doctor` says what does)",
            lib.SHORE_EBUDGET,
        )
    beside = sum(b.nbytes for b in model.buffers()) + 2 * WIDENED_AT_ONCE
    for core in lenders:
        if given is None and core.device_memory.budget is not None and core.streams.places.device == device:
            return {**budgets, "gpu_memory": replace(core.device_memory.budget, beside=beside, free=None)}
    limit = free * 9 // 10 if given is None else given
    before = _counts(device).memory_allocated(device)
    return {**budgets, "gpu_memory": DeviceBudget(limit, given is not None, before, beside, free)}


def _tensors(inputs):
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):  # of a class that PyTorch does not know as one
            yield from _tensors(list(leaf.values()))


def sizes(inputs):
    """The sizes of a pass's inputs: elements of all tensors, and the largest of each dimension."""
    shapes = [tuple(t.shape) for t in _tensors(inputs)]
    return [
        sum(torch.Size(shape).numel() for shape in shapes),
        *(max(of) for of in itertools.zip_longest(*shapes, fillvalue=0)),
    ]


class DeviceMemory:
    """Keeps one engine's device within its DeviceBudget. Without one it does nothing."""

    planned = None  # as of ProcessMemory

    def __init__(self, streams, plan):
        self.streams, self.plan, self.budget = streams, plan, plan.gpu_memory
        # sizes of inputs, {whether gradients are computed: [...]}: the largest that were measured; those of passes that
        # are being measured
        self.largest, self.found = {}, {}
        self.beside = self.most = 0  # the peak in bytes: what lies beside planned_bytes; all
        self.level = self.began = 0  # bytes beside planned_bytes as a pass began: the one with the peak; the last one
        self.measures = True  # passes are being measured, with the least slots
        self.unfit = True  # the next pass needs another number of slots
        self.gathers = False  # a step has begun
        if self.budget is not None:
            self.device = streams.device
            self.device.crossing_most, self.device.more_may_cross = 0, self._more_may_cross
            self.base = min(self.budget.before, self._allocated() - self.planned_bytes)
            self.begin()

    @property
    def planned_bytes(self):
        """Bytes of slots, and of what may be on its way at once."""
        return self.streams.tier.there_bytes + self.device.crossing_most

    def _allocated(self):
        return _counts(self.device.device).memory_allocated(self.device.device)

    def _peak(self):
        return _counts(self.device.device).max_memory_allocated(self.device.device) - self.base

    def begin(self):
        """Measures the peak from now on."""
        if self.budget is not None:
            _counts(self.device.device).reset_peak_memory_stats(self.device.device)

    def rates_changed(self, drift):
        """The machine got slower or faster: a Drift says how."""

    def _look(self):
        """Notes the peak so far."""
        peak = self._peak()
        if peak - self.planned_bytes > self.beside:
            self.beside, self.level = peak - self.planned_bytes, self.began
        self.most = max(self.most, peak)

    def _change(self, count, crossing):
        """Gives the device so many slots, and lets so many bytes be on their way at once, unless somebody computes with
        what is there: then a later pass does."""
        self._look()
        self.unfit = count != self.streams.slots and not slots.change(self.streams, count)
        if not self.unfit:
            self.device.crossing_most = crossing
        self.begin()

    def _fit(self):
        """Takes as many slots as there is room for beside what was measured."""
        self._look()
        free = free_bytes(self.device.device)
        taken = 0 if free is None else max(0, self.budget.limit - free - self._allocated() + self.base)  # by others
        beside = self.beside + self.beside // SPARE_PART + ROUNDED_TO + taken
        left = self.budget.limit - self.plan.least_slots_bytes - beside
        crossing = min(max(0, left) // CROSSING_PART, self.plan.crossing_bytes)
        self._change(min(self.plan.slots, self.plan.slots_beside(beside + crossing)), crossing)

    def _more_may_cross(self):
        """Whether more may be on its way than is planned: while passes are measured, if there is room for it."""
        peak = self._peak()
        return self.measures and peak + peak // SPARE_PART + self.plan.crossing_bytes <= self.budget.limit

    def make_room(self):
        """Takes as many slots as there is room for while nobody computes: a script holds several blocks at once."""
        if self.budget is not None:
            beside = self._allocated() - self.base - self.streams.tier.there_bytes + ROUNDED_TO
            count = min(self.plan.slots, self.plan.slots_beside(beside))
            if count > self.streams.slots:
                self._change(count, self.device.crossing_most)
                self.unfit = True

    # ---- passes

    @whole
    def before_pass(self, inputs, trains):
        """A forward pass is about to begin, of one micro-batch or of several together. trains: whether it computes
        gradients."""
        streams = self.streams
        if self.budget is None or streams.turns is not None or in_backward() or streams.inside.modules:
            return
        if not streams.core().trains:
            self.step_ended(True)  # no step follows
        known, found = self.largest.get(trains), sizes(inputs)
        if known is None or any(new > old for new, old in itertools.zip_longest(found, known, fillvalue=0)):
            if not self.gathers:
                gc.collect()  # what nobody can use any more must not count
            self.found[trains] = larger(found, self.found.get(trains, known or []))
            self._change(self.plan.least_slots, 0)
            if not self.largest and not self.gathers:
                self.beside = self.level = 0  # the first pass, or the first one after one that was too large
            self.measures = self.unfit = True
        elif self.unfit and not self.gathers:
            self._fit()
            self.measures = False
        self.gathers |= trains
        self._see_level()

    def _see_level(self):
        """What lies there as a pass begins may have grown since the peak: then there are fewer slots."""
        self._look()
        self.began = self._allocated() - self.base - self.planned_bytes
        grown = max(0, self.began - self.level)
        if not self.measures and self.planned_bytes + self.beside + grown > self.budget.limit:
            self.beside, self.level = self.beside + grown, self.began
            self._fit()

    def given(self, args, kwargs):
        """The arguments of forward, if it gets others than the script gives; else None."""
        return None

    def after_pass(self, trains):
        """A pass has ended, and nothing of its step is committed. Raises BudgetError if the budget does not hold it
        with the least slots."""
        if self.budget is None or self.streams.turns is not None or in_backward():
            return
        self._look()
        if not trains and False in self.found:
            self.largest[False] = self.found.pop(False)
        needs = self.beside + self.plan.least_slots_bytes
        if self.measures and self.budget.given and needs > self.budget.limit:
            minimum = needs + self.beside // LEAST_PART + SMALL_BYTES
            self.largest, self.found = {}, {}
            raise BudgetError(self.budget.too_little(minimum, "this batch"), lib.SHORE_EBUDGET)

    def told(self):
        """(the limit, bytes that are planned, the most that was in use)."""
        if self.budget is None:
            return 0, 0, 0
        self._look()
        return self.budget.limit, self.planned_bytes, self.most

    def step_ended(self, made):
        """What was gathered is a step, or was dropped."""
        found, self.gathers = self.found.pop(True, None), False
        if made and found is not None:
            self.largest[True] = found


def larger(sizes, others):
    return [max(pair) for pair in itertools.zip_longest(sizes, others, fillvalue=0)]
