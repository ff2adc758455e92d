"""How long steps take by plan, and how long they took.

The first step warms up; the next one is measured unit by unit (step_clock.py), and the budget is divided again for what
it computes, if steps get faster by that. A batch that is larger than all before is measured in the step after its
first, and so is a step after the machine got slower or faster. None of it changes a bit."""

from __future__ import annotations

import functools
import logging
import statistics
from collections import deque

from .. import native
from ..errors import LongshoreError
from . import kept_plan, room
from .device_memory import larger, sizes
from .drift import Drift
from .memory_plan import FASTER
from .sleep import wake

STEPS = 101  # so many of the last steps are told of
DIVIDED = "pages", "gradient_bytes", "spare_bytes", "total_bytes"  # of a Plan and a Division
_log = logging.getLogger("longshore")


class Outlook:
    """The plan and the truth of one engine's steps."""

    def __init__(self, core):
        self.core = core
        self.largest = None  # sizes of inputs, the largest of all passes
        self.wanted = False  # the next step is measured
        self.planned = None  # seconds of a step
        self.took = deque(maxlen=STEPS)  # seconds, since it was planned
        self.told = False  # that no other plan saves enough time since rates have changed
        self.passes = []  # sizes of the inputs of the step that gathers
        # (the Division of now, a faster one that the next step begins with, tokens, _sizes() that it is for)
        self.better = None

    @functools.cached_property
    def drift(self):
        """The Drift of the machine."""
        device = self.core.streams.device
        return Drift(None if device is None else device.device)

    def before_step(self):
        """A forward pass of training comes: before the first one of a step memory may be divided anew."""
        if self.better is not None and not self.core.cycle.forwards:
            self._divide()

    def before_pass(self, inputs):
        """A forward pass of training begins."""
        core, found = self.core, sizes(inputs)
        self.passes.append(found)
        if self.largest is None or larger(self.largest, found) != self.largest:
            self.largest = found if self.largest is None else larger(self.largest, found)
            self.wanted = core.plan.again is not None and core.ranks.size == 1
        elif self.wanted and not core.cycle.forwards:
            self.wanted = False
            core.streams.clock.begin()

    def step_ended(self, metrics):
        """A step was made."""
        self.core.streams.saves_places = False
        self.took.append(metrics["step_seconds"])
        clock = self.core.streams.clock
        if clock.runs:
            clock.end(metrics.get("tokens") or 0)
        trace = clock.trace()
        if trace is not None:
            self._plan(trace)
        memory, passes, self.passes = self.core.device_memory, self.passes, []
        if memory.planned is not None:
            if memory.times is not None and len(passes) == 1:
                self._say(memory, memory, memory.planned.tokens)
            kept_plan.keep(self.core, memory.planned, self.drift.machine)
            memory.planned = None
        if self.core.ranks.size == 1:
            self._watch(passes, metrics)

    def _watch(self, passes, metrics):
        """Has memory divided again if the machine no longer works as fast."""
        if self.drift.step_ended(self.core.state, passes, metrics):
            self.wanted = self.core.plan.again is not None
            self.core.device_memory.rates_changed(self.drift)

    def _plan(self, trace):
        core, tokens = self.core, trace.tokens
        streams, drift, self.better = core.streams, self.drift, None
        try:
            now, other = core.plan.again(trace, streams.slots, drift.rates())
        except LongshoreError:
            return
        faster = other.times.step_seconds < FASTER * now.times.step_seconds
        if faster and streams.device is None and not core.plan.taken_bytes:
            self.better = now, other, tokens, self._sizes()
        else:
            self._say(now, now, tokens)
        kept_plan.keep(core, trace, drift.machine)

    def _divide(self):
        """Divides memory anew before the first pass of a step, where what a script wrote since the last one is part of
        that one. Gradients that the script keeps would be lost, and so would parameters with which it has computed:
        while there are any, memory stays as it is."""
        gradients = self.core.gradients
        if (
            self.core.streams.saves_places
            or gradients.adds
            or gradients.has_pass
            or any(block.arrived for block in gradients.blocks)
        ):
            return
        (now, other, tokens, sizes), self.better = self.better, None
        may = sizes == self._sizes()  # otherwise another engine has got some of the memory meanwhile
        self._say(now, other if may and self._apply(other) else now, tokens)

    def _sizes(self):
        """How memory is divided, and what of it is taken."""
        plan = self.core.plan
        return {name: getattr(plan, name) for name in (*DIVIDED, "taken_bytes")}

    def _say(self, before, now, tokens):
        """Says what a step takes. before, now: the Division until now, and from now on."""
        drift, old = self.drift, before.times.step_seconds
        again = ", planned again" if self.planned is not None else ""
        self.planned = now.times.step_seconds
        self.took.clear()
        _log.info(
            "a step%s takes about %s%s, bound by %s",
            f" of {tokens:,} tokens" if tokens else "",
            native.seconds(self.planned),
            again,
            native.bound(now.times.bound).bound,
        )
        if drift.what:
            took = f"a step takes {native.seconds(self.planned)} instead of {native.seconds(old)}"
            self.drifted(now is not before, f": by simulation, {took}")
        elif now is not before:
            drift.divided()

    def drifted(self, divided, more=""):
        """Says that memory is planned again, since rates have changed, and records it. divided: otherwise than before;
        else no plan is better, or none can be made between two steps. more: what it saves."""
        said = f"planned again, since {self.drift.what}"
        if divided:
            _log.info("%s%s", said, more)
            self.core.state.record(said + more)
            self.drift.divided()
        else:
            if not self.told:
                _log.info("%s: no other plan saves enough time", said)
            self.told = True
            self.drift.kept()

    def _apply(self, division):
        """Divides the budget as planned. Returns whether it could: nothing is in use between two steps."""
        core = self.core
        before = {name: getattr(core.plan, name) for name in DIVIDED}
        try:
            room.change(core, **{name: getattr(division, name) for name in DIVIDED})
        except LongshoreError:
            if core.streams.asleep is not None:  # there is too little memory for it
                room.change(core, **before)
                wake(core)
            return False
        return True

    def ended(self):
        """The engine is closed: says plan against truth."""
        if self.planned is not None and len(self.took) > 1:
            took = statistics.median(self.took)
            _log.info(
                "a step took %s (median of %d), and %s by plan",
                native.seconds(took),
                len(self.took),
                native.seconds(self.planned),
            )
