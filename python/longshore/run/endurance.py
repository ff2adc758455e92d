"""max_writes_per_day=: what the drives may write in a day. The plan counts it, and steps wait where it is not enough.

The library counts as it does for `longshore train --max-writes-per-day` (longshore/run.h)."""

from __future__ import annotations

import logging
import time

from .. import interrupts, native
from ..native import ffi, lib
from ..ranks.launch import ranks

LOOK_SECONDS = 0.1  # an interrupt is heard after so long at most
NAME = "max_writes_per_day"
_log = logging.getLogger("longshore")


def sizes(value, who="wrap"):
    """Bytes a day: [of all drives together], or [of each]; [] for None and "none", which are no limit. Raises
    ValueError."""
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, (int, float)) else value
    if value is None or parts == ["none"]:
        return []
    found = [native.size(part, NAME) for part in parts]
    if not found:
        raise ValueError(f"{who}: {NAME}={value!r}; give a size such as '2TB', or one of each drive")
    if ranks().size > 1:
        raise ValueError(
            f"{who}: {NAME}={value!r} works in one process, and each rank has drives of its own: start one process, or "
            "leave it out"
        )
    return found


def recorded(value):
    """What a run records of it: {} if there is no limit."""
    found = sizes(value)
    return {NAME: found} if found else {}


def refuse_others(found, ndrives, who="wrap"):
    """Raises ValueError if the sizes are neither one nor those of so many drives."""
    if len(found) > 1 and len(found) != ndrives:
        raise ValueError(
            f"{who}: {NAME}= has {len(found)} sizes for {ndrives} drive{'s' if ndrives > 1 else ''}: give one for "
            "each, or one for all together"
        )


def together(found, ndrives):
    """What all drives may write in a day, if each writes as much as the others: the first one to reach its own limit
    stops all. 0: any."""
    return float(min(found) * (ndrives if len(found) > 1 else 1)) if found else 0.0


class Pace:
    """Holds back the steps of an engine."""

    def __init__(self, core):
        self.core = core
        self.state, self.counts = None, ffi.NULL  # of the run that is open
        self.step, self.holds = None, False  # the last one that was asked for
        self.seconds = 0.0  # that the step has waited
        self.said = False

    def take_seconds(self):
        """Seconds that the step has waited."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def before_pass(self):
        """A pass of training begins: the first one of a step may have to wait."""
        state, found = self.core.state, self.core.how.get(NAME)
        if not found:
            return
        if self.state is not state:
            n = len(state.drives)
            most = ffi.new("uint64_t[]", [*found, 0] if len(found) > 1 else [0] * n + found)
            given = state.run, most, self.core.plan.state_bytes
            counts = native.made("struct shore_endurance *", lib.shore_endurance_open, *given)
            self.state, self.counts = state, ffi.gc(counts, lib.shore_endurance_close)
            self.step, self.holds = state.step, True  # a run that goes on counts from its last step
        elif self.step != state.step:
            self.step, self.holds = state.step, lib.shore_endurance_holds(self.counts)
        if self.holds:
            self.core.cycle.settle()
            self._wait()
            self.holds = False

    def _wait(self):
        began, left = time.monotonic(), lib.shore_endurance_left(self.counts)
        if left > 0 and not self.said:
            self.said = True
            _log.info("steps wait for %s: the next one begins in %s", NAME, native.seconds(left))
        while left > 0 and not interrupts.waits():
            time.sleep(min(left, LOOK_SECONDS))
            left = lib.shore_endurance_left(self.counts)
            self.seconds = time.monotonic() - began
