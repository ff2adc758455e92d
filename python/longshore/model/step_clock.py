"""Measures what a step computes, unit by unit: seconds of forward and of backward without the waits for parameters, and
bytes that autograd saves. What runs outside of units belongs to the one before, as in trace.py."""

import contextlib
import time

import torch

from .trace import Trace, Unit


class StepClock:
    """The clock of one engine's modules. It runs in the steps whose Trace is wanted, and otherwise does nothing."""

    def __init__(self, device=None):
        """device: the torch.device that modules compute on, whose streams have times of their own; None: the CPU."""
        self.device, self.runs = device, False
        self._forget()

    def _forget(self):
        self.units = {}  # by name, in the order in which they first run
        self._since = self._now = None  # when what runs now began; its unit and way
        self._spans = []  # on a device: (unit, way, torch.Event before, after)
        self._tokens = 0
        self._saved = set()  # addresses of storages that were counted

    def begin(self):
        """From here on a step is measured."""
        self._forget()
        self.runs = True

    def go(self, way, name, layer=False, parameters=()):
        """A unit begins to compute: its parameters are there. way: "forward" or "backward"."""
        unit = self.units.get(name)
        if unit is None:
            unit = self.units[name] = Unit(name, layer, list(parameters))
        self._now, self._since = (unit, way), self._mark()

    def turn(self):
        """Forward has ended, and the backward of what ran last begins."""
        if self._now is not None:
            unit, _ = self._now
            self.stop()
            self._now, self._since = (unit, "backward"), self._mark()

    def stop(self):
        """What runs now ends, or waits."""
        if self._since is None:
            return
        (unit, way), since, now = self._now, self._since, self._mark()
        self._since = None
        if self.device is None:
            unit.seconds[way] = unit.seconds.get(way, 0.0) + now - since
        else:
            self._spans.append((unit, way, since, now))

    def _mark(self):
        if self.device is None:
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def saves(self, t):
        """Autograd saves a tensor."""
        with contextlib.suppress(RuntimeError):  # one without a storage
            storage = t.untyped_storage()
            if self._now is not None and storage.data_ptr() not in self._saved:
                self._saved.add(storage.data_ptr())
                self._now[0].saved_bytes += storage.nbytes()

    def end(self, tokens):
        """Ends the step, which had so many tokens."""
        self.stop()
        self.runs, self._tokens = False, tokens

    def trace(self):
        """The Trace of the last step that was measured, once; None: there is none, or a device still computes it."""
        if self.runs or not self.units or self._spans and not self._spans[-1][3].query():
            return None
        for unit, way, before, after in self._spans:
            unit.seconds[way] = unit.seconds.get(way, 0.0) + before.elapsed_time(after) / 1e3
        trace = Trace(list(self.units.values()), self._tokens, 0)
        self._forget()
        return trace
