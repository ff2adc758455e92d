"""Metrics of a step for the run's metrics.jsonl. The library measures them and names them (longshore/metrics.h)."""

import json
import logging
import math
import time

import torch

from .. import native
from ..native import ffi, lib
from ..progress import OWN
from . import allocator
from .peak_memory import Peak

_log = logging.getLogger("longshore")


class Meter:
    """Measures each step from the end of the step before; the first one after opening a run from its first forward
    pass."""

    def __init__(self):
        self.state = None
        self.peak, self.keeper = None, allocator.Keeper()
        self.sent = 0, 0  # by all ranks to each other, until the last step but one, and until the last one
        self.say_by(_log.info)
        self.drop()

    def say_by(self, say):
        """Lets this function say the memory that the first step took."""
        self.say = say

    def drop(self):
        """Forgets the tokens of the step that gathers."""
        self.tokens, self.unknown = 0, False
        self.step_tokens = 0  # of all ranks; 0: not known

    def told(self, ranks):
        """What the step's metrics need of each rank."""
        return self.tokens, self.unknown, ranks.sent_bytes

    def take(self, told):
        """Takes what each rank has told: the metrics are those of all."""
        tokens, unknown, sent = map(tuple, zip(*told))
        self.step_tokens = 0 if any(unknown) else sum(tokens)
        self.sent = self.sent[1], sum(sent)

    @property
    def rank_bytes(self):
        """Bytes that the ranks have sent each other for the step, from the norm of the one before it to its own."""
        return self.sent[1] - self.sent[0]

    def forward(self, state, args, kwargs):
        """A forward pass in training begins."""
        self.start(state)
        ids = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(ids, torch.Tensor) and not ids.is_floating_point() and ids.dim() == 2:
            self.tokens += ids.numel()
        else:
            self.unknown = True

    def forward_ended(self, output):
        """A forward pass in training has ended: notes the peak of memory."""
        if self.peak is not None and torch.is_grad_enabled():
            self.peak.forward_ended(output)

    def block_ended(self):
        """Backward has completed a block: notes the peak of memory."""
        if self.peak is not None:
            self.peak.look()

    def start(self, state):
        """Starts the clock, unless it runs."""
        if self.state is not state:
            allocator.give_back()  # memory that making or opening the run took
            self.peak = Peak()
            self.restart(state)

    def ended(self, core):
        """A step was made: logs the peak of the first one."""
        if self.peak is not None and not self.peak.whole:
            self.peak.whole = True  # from now on: the next step is said
        elif self.peak is not None:
            self.say(self.peak.text(core))
            self.peak = None
        self.keeper.rest()

    def restart(self, state):
        """A step begins: what came before belongs to none."""
        state.charges.begin()  # it may fail: then the next pass begins again
        if self.state is not state:
            self.state, self.slow = state, None

    def of_step(self, core, groups, loss, norm, dropped_energy, speculated, skipped):
        """Returns the metrics of the step that ends now. groups: the optimizer's parameter groups."""
        state = core.state
        whole = self.state is state
        self.start(state)
        if not whole:
            self.peak.whole = False
        report = native.new(
            "struct shore_step_report",
            step=state.step + 1,
            loss=loss,
            grad_norm=norm,
            lr=groups[0]["lr"] if groups else math.nan,
            val_loss=math.nan,
            dropped_energy=dropped_energy,
            tokens=self.step_tokens,
            speculated=speculated,
            skipped=skipped,
            paced_seconds=core.pace.take_seconds(),
        )
        native.check(lib.shore_meter_end(state.charges.meter, report))
        self._say_slow(native.text(report.slow_drive), report.slow_factor)
        line = ffi.new("char[]", lib.shore_metrics_line(report, ffi.NULL, 0) + 1)
        lib.shore_metrics_line(report, line, len(line))
        return {**json.loads(native.text(line)), "time": int(time.time())}

    def _say_slow(self, drive, factor):
        """Names a drive that holds up the others, once."""
        if drive and drive != self.slow:
            _log.info("slow: %s works %.1f times as long as the others", drive, factor, extra=OWN)
        self.slow = drive
