"""Metrics of a step for the run's metrics.jsonl: time, tokens, bytes moved, memory. Keys as in docs/outputs.md."""

import logging
import time

import torch

from . import allocator
from .allocator import process_bytes
from .peak_memory import Peak

_LINK = {  # metric: the ledger's counters of bytes that cross the host link
    "link_gradients": ("link_in_gradients", "link_out_gradients"),
    "link_compressed": ("link_in_compressed",),
    "link_parameters": ("link_out_params",),
    "link_activations": ("link_activations",),
    "link_state": ("link_in_state", "link_out_state"),
    "link_control": ("link_control",),
}
_DRIVES = {
    "drive_read_bytes": ("drive_read_state", "drive_read_fetch", "drive_read_spill", "drive_read_scratch"),
    "drive_write_bytes": ("drive_write_state", "drive_write_spill", "drive_write_scratch", "drive_write_commit"),
}


class Meter:
    """Measures each step from the end of the step before; the first one after opening a run from its first forward
    pass."""

    def __init__(self):
        self.state = self.began = self.before = None
        self.peak, self.keeper = None, allocator.Keeper()
        self.say = logging.getLogger("longshore").info  # says the memory that the first step took
        self.drop()

    def drop(self):
        """Forgets the tokens of the step that gathers."""
        self.tokens, self.unknown = 0, False

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
        self.state, self.began, self.before = state, time.monotonic(), _counters(state)

    def of_step(self, state, groups):
        """Returns the metrics of the step that ends now. groups: the optimizer's parameter groups."""
        whole = self.state is state
        self.start(state)
        if not whole:
            self.peak.whole = False
        now = _counters(state)
        link = {key: now[key] - self.before[key] for key in _LINK}
        out = {
            "lr": float(groups[0]["lr"]) if groups else None,
            "step_seconds": round(time.monotonic() - self.began, 6),
            "link_bytes": sum(link.values()),
            **link,
        }
        out.update(
            {key: now[key] - self.before[key] for key in _DRIVES}, resident_bytes=process_bytes(), time=int(time.time())
        )
        return out if self.unknown or not self.tokens else {"tokens": self.tokens, **out}


def _counters(state):
    ledger = state.ledger()
    return {key: sum(getattr(ledger, name) for name in names) for key, names in {**_LINK, **_DRIVES}.items()}
