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
    slot = layout.memory_bytes(2) - layout.memory_bytes(1) if streams.device is None else 0
    slots = max(1, streams.slots - -(-nbytes // slot)) if slot else streams.slots
    of_slots = (streams.slots - slots) * slot
    of_gradients = max(0, nbytes - of_slots)
    if of_gradients > plan.gradient_bytes:
        return False
    total, gradients = plan.total_bytes - of_slots - of_gradients, plan.gradient_bytes - of_gradients
    try:
        change(core, pages=slots if of_slots else plan.pages, gradient_bytes=gradients, total_bytes=total)
    except LongshoreError as refused:
        raise LongshoreError(f"wrap: an engine gives memory away between two steps: {refused}") from refused
    return True


def change(core: Any, **sizes: int) -> None:
    """Gives an engine's plan other sizes, and the engine what they say. Changes no bit. Raises LongshoreError if a step
    has begun."""
    asleep, plan, streams = core.streams.asleep is not None, core.plan, core.streams
    sleep(core)
    slots = plan.pages
    for name, size in sizes.items():
        setattr(plan, name, size)
    core.gradients.room = plan.gradient_bytes
    if plan.pages != slots:
        streams.tier.resize(*divide(streams, plan.pages))
    if not asleep:
        wake(core)
