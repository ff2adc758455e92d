"""Gives memory of an open engine to another one: it sleeps for a moment, and wakes with fewer slots. One that sleeps
already sleeps on."""

from __future__ import annotations

from typing import Any

from ..errors import LongshoreError
from ..model.slots import divide
from .sleep import sleep, wake


def make(core: Any, nbytes: int) -> bool:
    """Frees so many bytes of an engine's budget for good: slots that layers share, if they are the host's, then memory
    of gradients, which then wait on the drives. Changes no bit. Returns whether it could."""
    plan, streams, layout = core.plan, core.streams, core.layout
    asleep = streams.asleep is not None
    slot = layout.memory_bytes(2) - layout.memory_bytes(1) if streams.device is None else 0
    slots = max(1, streams.slots - -(-nbytes // slot)) if slot else streams.slots
    of_slots = (streams.slots - slots) * slot
    of_gradients = max(0, nbytes - of_slots)
    if of_gradients > plan.gradient_bytes:
        return False
    try:
        sleep(core)
    except LongshoreError as refused:
        raise LongshoreError(f"wrap: an engine gives memory away between two steps: {refused}") from refused
    plan.gradient_bytes -= of_gradients
    plan.total_bytes -= of_slots + of_gradients
    core.gradients.room = plan.gradient_bytes
    if of_slots:
        plan.pages = slots
        streams.tier.resize(*divide(streams, slots))
    if not asleep:
        wake(core)
    return True
