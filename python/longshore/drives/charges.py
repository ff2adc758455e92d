"""What the time of a run's steps is charged to (longshore/metrics.h): the package says what the thread that steps
does, and the library charges what that thread waits for."""

import contextlib

from .. import native
from ..native import ffi, lib
from ..torch_internals import profiled

_NAMES = [native.text(lib.shore_charge_name(charge)) for charge in range(lib.SHORE_CHARGES)]


class Charges:
    """The meter of a run's steps, and its clock. Until begin(), and after close(), nothing is charged."""

    def __init__(self, run, fleet):
        self._run, self._fleet, self.meter = run, fleet, ffi.NULL

    def begin(self):
        """A step begins: what came before belongs to none."""
        if not self.meter:
            meter = native.made("struct shore_meter *", lib.shore_meter_open, self._fleet)
            self.meter = ffi.gc(meter, lambda meter, run=self._run: lib.shore_meter_close(meter))  # before the run
        lib.shore_meter_begin(self.meter)

    def turn(self, charge):
        """This thread steps from here on, and what it does is charged to this. Returns what was charged before."""
        return lib.shore_meter_turn(self.meter, charge)

    @contextlib.contextmanager
    def during(self, charge):
        """The context in which this thread steps, and what it does is charged to this."""
        before = self.turn(charge)
        try:
            yield
        finally:
            self.turn(before)

    @contextlib.contextmanager
    def waiting(self, charge):
        """The context in which this thread waits. If it is the one that steps, the time is charged to this."""
        before = lib.shore_meter_charge(self.meter, charge)
        try:
            with profiled("wait for the", _NAMES[charge]):
                yield
        finally:
            lib.shore_meter_charge(self.meter, before)

    def close(self):
        """The run is about to be closed."""
        meter, self.meter = self.meter, ffi.NULL
        if meter:
            ffi.release(meter)

    def leave_to_parent(self):
        """In a forked process: forgets the meter."""
        if self.meter:
            ffi.gc(self.meter, None)
        self.meter = self._fleet = ffi.NULL
