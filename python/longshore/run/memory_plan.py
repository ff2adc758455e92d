"""Plans an engine's memory: divides a budget among parameters, gradients, activations, drive buffers and state.

It lists what an engine holds as rows of a program; the library plans them, as it does for `longshore train`.
"""

import os
from dataclasses import dataclass

import torch

from .. import native
from ..drives.state import fleet_options
from ..native import ffi, lib
from ..step.compression import memory_bytes as compression_bytes
from ..step.optimizer_table import OPTIMIZERS
from . import shared_budget

POOL_BYTES = 16 << 20, 1 << 30  # least and most memory that activations pass through on their way to drives
ROOM_BYTES = 64 << 30  # most room for activations on the drives, unless the user gives activation_room


@dataclass
class Plan:
    """How an engine uses its memory budget."""

    ring_bytes: int  # buffers of the drives
    pages: int  # layers whose parameters are in the host's memory at once
    slots: int  # layers that a device holds at once; 0: there is none, and modules compute in the pages
    gradient_bytes: int
    pool_bytes: int  # memory that activations pass through; 0: they stay in PyTorch's memory, beside the budget
    room_bytes: int  # room for activations on the drives
    aside_bytes: int  # gradients of one block on their way to the drives
    spare_bytes: int  # state that stays in memory, beyond total_bytes
    total_bytes: int
    compression_bytes: int = 0
    least_bytes: int = 0  # the smallest budget that works for this model
    budget_bytes: int = 0  # the budget that was given; 0: none was


class _Program:
    """The rows of a plan. The engine allocates them itself; the library only decides their sizes."""

    def __init__(self):
        self._program, self._names = ffi.gc(lib.shore_program_new(), lib.shore_program_free), []

    def add(self, name, role, size=0, full=0, **members):
        self._names.append(ffi.new("char[]", name.encode()))
        tensor = native.new(
            "struct shore_tensor",
            name=self._names[-1],
            key=len(self._names),
            role=role,
            place=lib.SHORE_PLACE_PLAIN,
            own=True,
            bytes=size,
            full_bytes=full,
            **members,
        )
        return lib.shore_program_tensor(self._program, tensor)

    def plan(self, memory):
        """(plan, error code, diagnostic) for this many bytes."""
        out, diag = ffi.new("struct shore_plan **"), ffi.new("struct shore_diag *")
        what = ffi.new("char[]", b"this model")
        options = native.new("struct shore_plan_options", memory_bytes=memory, what=what, one_memory=True)
        code = lib.shore_plan_open(self._program, options, out, diag)
        if out[0] == ffi.NULL:
            native.fail(code, diag)
        return ffi.gc(out[0], lib.shore_plan_close), code, diag


def _fate(plan, tensor):
    fate = native.new("struct shore_fate")
    native.check(lib.shore_plan_tensor(plan, tensor, fate))
    return fate


def _sums(plan):
    sums = native.new("struct shore_plan_sums")
    lib.shore_plan_sums(plan, sums)
    return sums


def plan(
    layout,
    drives,
    memory,
    *,
    storage,
    optimizer,
    moments,
    activations="memory",
    room=None,
    compress=0.0,
    who="this model",
    device=None,
):
    """The Plan for a memory budget. Raises BudgetError with the minimum.

    memory: bytes; None: a part of the open longshore.budget(), or half of the machine's memory.
    activations: as wrap() takes it.
    room: bytes for activations on the drives; None: four times the budget, at most ROOM_BYTES.
    who: the engine's name in messages about a shared budget.
    device: what modules compute on; None: the CPU.
    """
    options, _ = fleet_options(
        drives, OPTIMIZERS[optimizer].number, moments, storage == torch.float32, residual=bool(compress)
    )
    least_rings, best_rings = (
        lib.shore_fleet_memory_least_bytes(layout.c, options),
        lib.shore_fleet_memory_bytes(layout.c, options),
    )
    trained = sum(layout.elems(b) for b, block in enumerate(layout.blocks) if block.trains)
    layers, sides = len(layout.layers()), layout.sides()
    # gradients of the block that is being sent; the gradient that autograd makes is in PyTorch's memory
    block = 4 * max((layout.elems(b) for b, block in enumerate(layout.blocks) if block.trains), default=0)
    # most_spare: the state of all trained parameters takes no more than this
    compressing, most_spare = compression_bytes(layout, compress), trained * 16
    if memory is None:
        # without a given budget, leave memory for activations
        most_spare = min(
            most_spare, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 4, shared_budget.within() // 2
        )
    program = _Program()
    program.add("gradients of a block", lib.SHORE_ROLE_FIXED, block)
    program.add("compression", lib.SHORE_ROLE_FIXED, compressing)
    program.add("parameters", lib.SHORE_ROLE_FIXED, layout.memory_bytes(0))
    pool = program.add("activations", lib.SHORE_ROLE_POOL, *POOL_BYTES) if activations != "memory" else None
    rings = program.add("drives", lib.SHORE_ROLE_DRIVES, least_rings, best_rings)
    for group, side in enumerate(sides, 1):
        program.add("parameters of a layer", lib.SHORE_ROLE_LAYER, side, ways=lib.SHORE_WAY_MOVE, group=group)
        pages = program.add("pages of layers", lib.SHORE_ROLE_BUFFERS, group=group, least=1, most=layers)
    gradients = program.add("gradients", lib.SHORE_ROLE_GRADIENTS, 0, 4 * trained)
    spare = program.add("state", lib.SHORE_ROLE_SPARE, 0, most_spare)

    least = _sums(program.plan(0)[0]).minimum_bytes
    if (
        min((size for size in (memory, shared_budget.left()) if size is not None), default=least) < least
        and layout.share_rest()
    ):
        return plan(
            layout,
            drives,
            memory,
            storage=storage,
            optimizer=optimizer,
            moments=moments,
            activations=activations,
            room=room,
            compress=compress,
            who=who,
            device=device,
        )
    memory = shared_budget.share(who, memory, least)
    given = memory or 0
    memory = shared_budget.within(memory, least)
    made, code, diag = program.plan(memory)
    native.check(code, diag)
    kept, total = _fate(made, spare).bytes, _sums(made).total_bytes
    held = _fate(made, pages).count if sides else 1
    return Plan(
        ring_bytes=0 if _fate(made, rings).full else least_rings,
        pages=held,
        slots=0 if device is None else held,
        gradient_bytes=_fate(made, gradients).bytes,
        pool_bytes=0 if pool is None else _fate(made, pool).bytes,
        room_bytes=0 if pool is None else min(4 * memory, ROOM_BYTES) if room is None else room,
        aside_bytes=block,
        spare_bytes=kept,
        total_bytes=total - kept,
        compression_bytes=compressing,
        least_bytes=least,
        budget_bytes=given if shared_budget.left() is None else total,
    )
