"""engine.sleep() and engine.wake(): memory of the device, pinned memory and slots for somebody else meanwhile.

The run stays open, with the buffers of its drives. Everything else of memory goes as when the engine is closed, and
comes back as when a run is opened."""

from dataclasses import dataclass

import torch

from .. import native
from ..drives.state import State
from ..errors import LongshoreError
from ..model import device, hooks, placement
from ..model.streaming import CLOSED
from ..native import lib
from . import allocator, open_engines

WHY = "the engine sleeps: engine.wake() wakes it"


@dataclass
class Rest:
    """What a sleeping engine goes on with."""

    state: State
    has_pass: bool  # as of Gradients
    made: dict


def sleep(core):
    """Settles, and gives memory back: Engine.sleep()."""
    streams, gradients = core.streams, core.gradients
    if streams.asleep is not None:
        return
    state = core.cycle.open_state("sleep")
    _refuse(core)
    core.cycle.settle()
    if streams.device is not None:
        there = streams.device
        native.call(lib.shore_device_wait, there.c, there.record(there.computing()))
        placement.put(core.module, placement.copies_beside(core.module, torch.device("cpu")))
    gradients.rest()
    rest = Rest(state, gradients.has_pass, gradients.made)
    streams.end()
    streams.asleep, streams.why = rest, WHY
    device.empty_caches()
    allocator.give_back()


def wake(core):
    """Takes the memory again: Engine.wake()."""
    streams, rest = core.streams, core.streams.asleep
    if rest is None:
        core.cycle.open_state("wake")
        return
    try:
        core.open(rest.state)
    except (RuntimeError, MemoryError) as failure:
        streams.end()
        streams.asleep, streams.why = rest, WHY
        raise LongshoreError(
            f"engine.wake: {native.first_line(failure)}; the engine sleeps on, and nothing is lost: "
            "call engine.wake() again when there is memory"
        ) from failure
    streams.why = CLOSED
    core.gradients.has_pass, core.gradients.made = rest.has_pass, rest.made
    open_engines.add(core)
    if core.meter.state is rest.state:
        core.meter.restart(rest.state)  # the time asleep belongs to no step


def _refuse(core):
    """Raises LongshoreError where memory is in use."""
    streams = core.streams
    hooks.before_step(streams, "engine.sleep")
    held = next((streamed.block.name for streamed in streams.blocks if streamed.resident_pins), None)
    if held is not None:
        raise LongshoreError(f"engine.sleep: longshore.resident() holds {held}: leave it first")
    if streams.inside.modules or streams.inside.others_compute() or core.together.turns is not None:
        raise LongshoreError(
            "engine.sleep: a pass of the model is running; call it after the pass has ended (engine.drop_gradients() "
            "ends one that was interrupted)"
        )
    core.gradients.look()
    if core.cycle.backwards or core.gradients.has_more_than_zeros():
        raise LongshoreError(
            "engine.sleep: gradients wait for their step; make it with step(), or drop them with drop_gradients()"
        )
