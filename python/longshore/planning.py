"""What is kept in memory with a budget."""

import os
from dataclasses import dataclass

import torch

from . import native
from .compression import memory_bytes as compression_bytes
from .errors import BudgetError
from .native import lib
from .state import fleet_options

POOL_BYTES = 16 << 20, 1 << 30  # that activations pass through: at least, at most
ROOM_BYTES = 64 << 30  # for activations on the drives, at most, where the user does not say


@dataclass
class Plan:
    """What is kept with a budget. Bytes."""

    ring_bytes: int
    slots: int
    gradient_bytes: int
    pool_bytes: int  # that activations pass through; 0: they stay in memory, beside the budget
    room_bytes: int  # for them on the drives
    aside_bytes: int  # of the gradients of a block that go to the drives
    spare_bytes: int  # of the budget, beyond the total
    total_bytes: int
    compression_bytes: int = 0
    least_bytes: int = 0  # of a budget for this model


def plan(layout, drives, memory, *, storage, optimizer, moments, activations="memory", room=None, compress=0.0):
    """A budget (bytes; None: half of the machine's memory) to what is kept. Raises BudgetError with the minimum.

    activations: as wrap() takes it. room: bytes for them on the drives; None: four times the budget, at most ROOM_BYTES."""
    options, named = fleet_options(drives, optimizer, moments, storage == torch.float32, residual=bool(compress))
    least_rings = lib.shore_fleet_memory_least_bytes(layout.c, options)
    best_rings = lib.shore_fleet_memory_bytes(layout.c, options)
    trained = sum(layout.elems(b) for b, block in enumerate(layout.blocks) if block.trains)
    layers = len(layout.layers())
    # gradients of one that goes; that which autograd makes is PyTorch's
    block = 4 * max((layout.elems(b) for b, block in enumerate(layout.blocks) if block.trains), default=0)
    compressing = compression_bytes(layout, compress)
    pool = POOL_BYTES[0] if activations != "memory" else 0

    def total(rings, slots, gradients):
        return block + compressing + pool + rings + layout.memory_bytes(slots) + gradients

    minimum, most_spare = total(least_rings, 1, 0), trained * 16  # state that may stay in memory is no larger
    if memory is None:
        most_spare = min(most_spare, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 4)  # activations are to come
        memory = max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, minimum)
    if memory < minimum and layout.share_rest():
        return plan(layout, drives, memory, storage=storage, optimizer=optimizer, moments=moments, activations=activations, room=room,
                    compress=compress)
    if memory < minimum:
        raise BudgetError(f"memory={native.readable(memory)} is too little for this model: minimum {native.readable(minimum + (1 << 20))}"
                          f"{native.doubt(memory)}", lib.SHORE_EBUDGET)
    if pool:
        pool = max(pool, min(memory // 8, POOL_BYTES[1], pool + memory - minimum))
        room = min(4 * memory, ROOM_BYTES) if room is None else room
    slots, rings, gradients = min(2, max(layers, 1)), best_rings, 0
    if total(rings, slots, 0) > memory:
        rings = least_rings
    if total(rings, slots, 0) > memory:
        slots = 1
    gradients = min(trained * 4, memory - total(rings, slots, 0))
    while slots < layers and total(rings, slots + 1, gradients) <= memory:
        slots += 1
    needed = total(rings, slots, gradients)
    spare = min(memory - needed, most_spare)
    return Plan(0 if rings == best_rings else rings, slots, gradients, pool, room if pool else 0, block, spare, needed,
                compressing, minimum)
