"""How long steps take by plan, and how long they took.

The first step warms up; the next one is measured unit by unit (step_clock.py), and the budget is divided again for what
it computes, if steps get faster by that. A batch that is larger than all before is measured in the step after its
first. Neither changes a bit."""

from __future__ import annotations

import logging
import statistics
from collections import deque

from .. import native
from ..errors import LongshoreError
from ..model.slots import divide
from . import kept_plan
from .device_memory import larger, sizes
from .memory_plan import FASTER
from .sleep import sleep, wake

STEPS = 101  # so many of the last steps are told of
_log = logging.getLogger("longshore")


class Outlook:
    """The plan and the truth of one engine's steps."""

    def __init__(self, core):
        self.core = core
        self.largest = None  # sizes of inputs, the largest of all passes
        self.wanted = False  # the next step is measured
        self.planned = None  # seconds of a step
        self.took = deque(maxlen=STEPS)  # seconds, since it was planned

    def before_pass(self, inputs):
        """A forward pass of training begins."""
        core, found = self.core, sizes(inputs)
        if self.largest is None or larger(self.largest, found) != self.largest:
            self.largest = found if self.largest is None else larger(self.largest, found)
            self.wanted = core.plan.again is not None and core.ranks.size == 1
        elif self.wanted and not core.cycle.forwards:
            self.wanted = False
            core.streams.clock.begin()

    def step_ended(self, metrics):
        """A step was made."""
        self.took.append(metrics["step_seconds"])
        clock = self.core.streams.clock
        if clock.runs:
            clock.end(metrics.get("tokens") or 0)
        trace = clock.trace()
        if trace is not None:
            self._plan(trace)

    def _plan(self, trace):
        core, tokens = self.core, trace.tokens
        streams = core.streams
        try:
            now, other = core.plan.again(trace, streams.slots)
        except LongshoreError:
            return
        faster = other.times.step_seconds < FASTER * now.times.step_seconds
        if faster and streams.device is None and not core.plan.taken_bytes and self._apply(other):
            now = other
        again = ", planned again" if self.planned is not None else ""
        self.planned = now.times.step_seconds
        self.took.clear()
        _log.info(
            "a step%s takes about %s%s, bound by %s",
            f" of {tokens:,} tokens" if tokens else "",
            native.seconds(self.planned),
            again,
            native.LANES[now.times.bound].bound,
        )
        kept_plan.keep(core, trace)

    def _apply(self, division):
        """Divides the budget as planned. Returns whether it could: nothing is in use between two steps."""
        core = self.core
        try:
            sleep(core)
        except LongshoreError:
            return False
        plan = core.plan
        before = plan.pages, plan.gradient_bytes, plan.spare_bytes, plan.total_bytes
        for numbers in ((division.pages, division.gradient_bytes, division.spare_bytes, division.total_bytes), before):
            plan.pages, plan.gradient_bytes, plan.spare_bytes, plan.total_bytes = numbers
            core.gradients.room = plan.gradient_bytes
            core.streams.tier.resize(*divide(core.streams, plan.pages))
            try:
                wake(core)
                break
            except LongshoreError:
                if numbers is before:
                    raise
        return numbers is not before

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
