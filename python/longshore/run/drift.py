"""Notices in mid-run that the machine no longer works as fast as when memory was divided (longshore/machine.h)."""

from __future__ import annotations

from .. import native
from ..native import ffi, lib
from . import machine as machines

COMPUTING = "forward", "again", "backward"  # charges of a step


class Drift:
    """What the drives and the processor take of one engine's steps."""

    def __init__(self, device):
        """device: what modules compute on, beside the processor; None: on that itself."""
        self.device, self.machine = device, machines.of(None)  # whose rates memory is divided by
        self.now, self.what = self.machine, ""  # with the rates of the last steps, and what has changed; "": nothing
        self._usual = self._fleet = self._drift = None

    def divided(self):
        """Memory is divided anew, by the rates of now: what steps take from here on stands for them."""
        self.machine, self.what, self._drift = self.now, "", None

    def kept(self):
        """Memory stays divided by the rates from before, and what the first steps took stands for these."""
        self.now, self.what = self.machine, ""

    def step_ended(self, state, passes, metrics):
        """A step was made. passes: sizes of the inputs of its passes. Returns whether rates have changed for several
        steps. Only steps as large as the first one count."""
        if self._drift is None or self._fleet != state.fleet:
            self._fleet, self._usual = state.fleet, passes
            drift = native.made("struct shore_drift *", lib.shore_drift_open, state.fleet)
            self._drift = ffi.gc(drift, lib.shore_drift_close)
            return False
        changed = False
        if passes == self._usual and not metrics.get("skipped"):
            charges = metrics["charges"]
            computing = sum(charges[name] for name in COMPUTING) if self.device is None else 0.0
            step = metrics["step_seconds"] - charges["before_forward"]
            changed = lib.shore_drift_end(self._drift, computing, step)
        lib.shore_drift_begin(self._drift)
        if changed:
            self._take()
        return bool(self.what) and changed

    def _take(self):
        change = native.new("struct shore_drift_change")
        made = native.made(
            "struct shore_machine *", lib.shore_drift_take, self._drift, self.rates(self.machine), change
        )
        self.what = native.text(change.what)
        self.now = machines.Machine(machines.described(ffi.gc(made, lib.shore_machine_free)), "rates of the last steps")

    def rates(self, machine=None):
        """The struct shore_machine * of now, or of another Machine."""
        return (machine or self.now).handle(self.device)
