"""Plans an engine's memory: divides a budget among parameters, gradients, activations, drive buffers and state.

It describes a step as a program: forward and backward of each block, and what they hold. The library plans it, as it
does for `longshore train`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .. import native
from ..drives.state import fleet_options
from ..errors import BudgetError
from ..model import cuda
from ..model.pinned import ALIGN
from ..native import ffi, lib
from ..ranks.launch import ranks
from ..step.compression import memory_bytes as compression_bytes
from ..step.optimizer_table import OPTIMIZERS
from ..step.sum_groups import groups_of
from . import endurance, machine as machines, open_engines, shared_budget
from .device_memory import DeviceBudget
from .options import DTYPE_OF
from .pinned_parts import divide, left
from .step_program import ALL_BYTES, Held, StepProgram, fate_of, sums_of, times_of, update_bytes

POOL_BYTES = 16 << 20, 1 << 30  # least and most memory that activations of a CPU pass through on their way to drives
PINNED_POOL_BYTES = 16 << 20, 1 << 40  # the same of a device's: the budget sets the most, and "host" keeps them there
POOL_PARTS = 8  # of the budget: activations on their way to drives take at most one of so many parts
HOST_PARTS = 2  # the same of activations that stay in host memory
CROSSING_BYTES = 2 << 30  # so many of activations on their way from a device are enough to keep it busy
FASTER = 0.95  # another division of the budget is worth it from this part of the time on
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
    landing_bytes: int = 0  # where gradients land that come from a device
    staging_bytes: int = 0  # of the ring for pages that a device does not reach, if there are any
    pinned: dict | None = None  # sizes of a device's HostMemory
    least_bytes: int = 0  # the smallest budget that works for this model
    budget_bytes: int = 0
    most_bytes: int = 0  # what may become of the budget: half of the machine's memory, if none was given
    taken_bytes: int = 0  # of the budget, by take()
    gpu_memory: DeviceBudget | None = None  # of a device's memory; None: no limit is known
    least_slots: int = 1  # the fewest slots of a device; 0: one, which embeddings and heads share, too
    least_slots_bytes: int = 0  # of these
    crossing_bytes: int = 0  # the most that gradients and activations on their way take
    process: Any = None  # the ProcessBudget, if memory= is a promise about the whole process
    slots_beside: Callable[[int], int] | None = None  # how many slots gpu_memory has room for beside so many bytes
    again: Callable | None = None  # (trace, slots, rates): plans it again, see Needs.again(); None: it stays as it is
    activations: Any = None  # what becomes of them (Chosen), if they were planned, too
    times: Any = None  # struct shore_plan_times, of a step with these
    beside: Callable | None = None  # plans them beside this engine: see Needs.beside()
    trace_steps: int = 0  # how many of the last steps are recorded
    state_bytes: int = 0  # of all trained parameters, which each step writes

    @property
    def free_bytes(self):
        """Bytes of the budget that can be had: state in memory gives way."""
        return max(self.most_bytes - self.total_bytes - self.taken_bytes, 0)

    def memory_bytes(self, given):
        """What the run records as its memory. given: memory=, or None."""
        return self.process.limit if self.process else given or self.total_bytes + self.spare_bytes

    def take(self, nbytes):
        """Takes free_bytes. Returns how many of them state had, for give_back()."""
        of_state = max(self.spare_bytes - (self.free_bytes - nbytes), 0)
        self.taken_bytes += nbytes
        self.spare_bytes -= of_state
        return of_state

    def give_back(self, nbytes, of_state):
        self.taken_bytes -= nbytes
        self.spare_bytes += of_state


@dataclass
class Division:
    """A division of the budget, and how long steps take with it."""

    pages: int
    gradient_bytes: int
    spare_bytes: int
    total_bytes: int  # without these
    times: Any  # struct shore_plan_times


class Planned(NamedTuple):
    """A program and its plan."""

    program: Any  # the StepProgram
    rows: dict[str, Any]  # {name: its tensor that plan() asks for; None: there is none}
    fates: dict[str, Any]  # of those that there are
    made: Any
    code: int
    diag: Any
    chosen: Any  # of activations, if they are planned, too
    times: Any  # struct shore_plan_times; None: it does not fit
    least: int  # the smallest budget
    comfortable: int  # one that keeps everything

    def count(self, name):
        """How many there are of "pages" or "slots"; 1: there are no layers."""
        return self.fates[name].count if name in self.fates else 1

    def division(self):
        """The Division that it makes. Raises LongshoreError if it does not fit."""
        native.check(self.code, self.diag)
        gradients, spare = self.fates["gradients"].bytes, self.fates["spare"].bytes
        return Division(self.count("pages"), gradients, spare, sums_of(self.made).total_bytes - spare, self.times)


class Needs:
    """What a model needs of memory: the sizes from which its StepProgram follows."""

    def __init__(self, layout, drives, memory, how, device, pinned_memory, lent, trace, whole=None):
        """The arguments are those of plan(). lent: pinned_memory is what other engines leave."""
        self.layout, self.device, self.trace, self.whole = layout, device, whole.trace if whole else trace, whole
        self.fixed = {}  # {a row's name: how many or how many bytes there are, whatever the budget}
        compress, number = how.get("compress", 0.0), OPTIMIZERS[how["optimizer"]].number
        fp32 = how.get("handed_back", how["storage"]) == "fp32"
        options, self._named = fleet_options(drives, number, how["moments"], fp32, residual=bool(compress))
        self.fleet = options
        self.rings = (
            lib.shore_fleet_memory_least_bytes(layout.c, options),
            lib.shore_fleet_memory_bytes(layout.c, options),
        )
        trained = [layout.elems(b) for b, block in enumerate(layout.blocks) if block.trains]
        size = ranks().size
        groups = groups_of(how, size)  # this rank's
        # between passes, those of a group stay beside the others'; of several ranks all do, and so does what it owns
        self.gradients = 4 * sum(trained) * (min(groups, 2) if size == 1 else groups + 1)
        # gradients of the block that is being sent; the gradient that autograd makes is in PyTorch's memory
        self.block = 4 * max(trained, default=0)
        # the same of groups that are not added to them yet; of several ranks also those of a block that others ask for,
        # and what they give of two blocks
        more = min(groups, 2) - 1 if size == 1 else 2 * groups - 1
        self.group = self.block * more + 2 * self.block * groups * (size - 1) // size
        self.compression = compression_bytes(layout, compress)
        self.written_most = endurance.together(how.get(endurance.NAME), len(drives))
        self.recorder = lib.shore_trace_memory_bytes(len(drives)) if how.get("trace") else 0
        # "host": a run that began on a device and goes on on a CPU leaves them to PyTorch, whose memory that is
        self.activations = how.get("activations", "memory")
        self.offloads = self.activations not in ("memory", "host" if device is None else "memory")
        self.spare = self.most_state = 16 * sum(trained)  # the state of all trained parameters takes no more than this
        if memory is None:  # leaves memory for activations
            self.spare = min(self.spare, shared_budget.within() // 2)
        self.page_bytes, self.one_memory = layout.nbytes, device is None or cuda.is_unified(device)
        self.fetched_bytes = layout.nbytes  # of a run whose record has no dtype to compute in, too
        if "compute" in how:
            dtypes = {"compute": DTYPE_OF[how["compute"]], "storage": DTYPE_OF[how["storage"]]}
            self.fetched_bytes = functools.partial(layout.page_bytes, **dtypes)
        if not self.one_memory:
            self.page_bytes = self.fetched_bytes
        if device is not None:
            page = max(self.page_bytes(b) for b, block in enumerate(layout.blocks) if not block.buffers)
            self.pinned = divide(pinned_memory, self.block, page, PINNED_POOL_BYTES if self.offloads else (), lent)
            self.pinned.ring *= not self.one_memory

    @functools.cached_property
    def state(self):
        """Bytes of the state of all trained parameters, as the drives have it."""
        trained = [b for b, block in enumerate(self.layout.blocks) if block.trains]
        return sum(update_bytes(self.layout, self.fleet, b)[1] for b in trained)

    def disk_bytes(self, room):
        """Bytes that a run takes on its drives, with so many for activations."""
        self.fleet.scratch_bytes = room
        return lib.shore_fleet_disk_bytes(self.layout.c, self.fleet)

    def times(self, planned, fates, memory, there=ALL_BYTES, machine=ffi.NULL, way=None):
        """(the struct shore_plan_times of a plan, the error code if its drives write too much, the diagnostic). fates:
        of the plan, {name: fate of a row of described()}."""
        count = {name: fates[name].count for name in ("pages", "slots") if fates.get(name) is not None}
        stay, fixed = count.get("pages", 0) >= len(self.layout.layers()), self.fixed
        state = None if self.compression else fates["spare"].bytes
        held = Held(fates["gradients"].bytes, state, self.block, stay)
        self.fixed = {f"{name} of layers": n for name, n in count.items()}
        try:
            program = self.described(memory, way, held)[0]
        finally:
            self.fixed = fixed
        program.written_most = self.written_most
        made, code, diag = program.plan(memory, there, machine)
        if code and self.written_most:
            made, code, diag = program.plan(ALL_BYTES, ALL_BYTES, machine)
            return times_of(made), code, diag
        return times_of(planned if code else made), 0, diag  # at the least, rows that no more share have no room

    def described(self, memory=0, way=None, held=None):
        """Returns (the StepProgram for a budget, {name: its tensor that plan() asks for}). way: that of activations, if
        they are planned, too. held: as a StepProgram takes it."""
        given = self.trace, self.fixed, self.offloads and self.activations != "host", held
        program = StepProgram(self.layout, self.page_bytes, self.fleet, self.one_memory, *given)
        backward, rows = [operation for operation, _ in program.backward], {}
        passing = {"by": backward, "stays": False}
        if way is None or self.whole.aside:
            program.add("gradients of a block", self.block, **passing)
        program.add("gradients of groups", self.group, **passing)
        program.add("compression", self.compression, by=backward)
        program.add("trace", self.recorder, by=program.all)
        if self.device is not None:
            how = {"place": program.pinned}
            program.add("landing gradients", self.pinned.landing, **passing, **how)
            program.add("staging", self.pinned.ring, by=program.all, **how)
        if not self.one_memory:
            rows["slots"] = program.parameters(self.layout.nbytes, self.layout.nbytes, lib.SHORE_PLACE_DEVICE, "slots")
        rows["pages"] = program.parameters(self.page_bytes, self.fetched_bytes, lib.SHORE_PLACE_PLAIN, "pages")
        if self.offloads:
            how = {"place": program.pinned, "by": program.all, "stays": False}
            pool = POOL_BYTES if self.device is None else self.pinned.pool
            part = memory // (HOST_PARTS if self.activations == "host" else POOL_PARTS)
            rows["pool"] = program.add("activations", pool[0], max(pool[0], min(pool[1], part)), **how)
        rings = (self.fixed["drives"],) if "drives" in self.fixed else self.rings
        rows["rings"] = program.add("drives", *rings, by=program.all, whole=True)
        # a gradient that is not in memory is written to a drive, and state is read there; it is written either way
        written = {"saves_lane": lib.SHORE_LANE_DRIVE_WRITE, "saves": 1}
        read = {"saves_lane": lib.SHORE_LANE_DRIVE_READ, "saves": self.state / max(self.most_state, 1)}
        if held is not None:
            program.add("gradients", held.gradients, **passing)
            program.add("state", held.state or 0, by=backward)
        else:
            rows["gradients"] = program.add("gradients", 0, self.gradients, **passing, **written)
            rows["spare"] = program.add("state", 0, self.spare, by=backward, **read)
        if way is not None:
            self.whole.describe(program, way)
        return program, rows

    def ways(self):
        """Ways to describe the step."""
        return [None] if self.whole is None else self.whole.ways()

    def least(self):
        """The smallest budget that works."""
        return min(sums_of(self.described(way=way)[0].plan(0)[0]).minimum_bytes for way in self.ways())

    def divisions(self):
        """[(who divides a budget, what is fixed meanwhile)]: an order of thumb, and where it is known what computes,
        the library's search. State stays only for blocks whose pages stay, which a program does not say. So there is
        one in which all of them do, and one with the state of blocks outside of layers alone."""
        layers = {b for side in self.layout.sides() for b in side}
        rest = [b for b, block in enumerate(self.layout.blocks) if block.trains and b not in layers]
        state = sum(update_bytes(self.layout, self.fleet, b)[1] for b in rest)
        order = [(lib.SHORE_POLICY_ORDER, {})]
        if self.trace is None:
            return order
        of_layers = [(lib.SHORE_POLICY_PLANNED, {"pages of layers": len(layers)})] if layers else []
        return [*order, (lib.SHORE_POLICY_PLANNED, {"state": min(state, self.spare)}), *of_layers]

    def planned(self, memory, there, machine, divisions=None):
        """The Planned for this many bytes: of the way whose step is shortest, or if none fits, that needs least."""
        ways = [self._of_way(way, memory, there, machine, divisions or self.divisions()) for way in self.ways()]
        return min(ways, key=lambda p: (1, p.least) if p.code else (0, p.times.step_seconds))

    def _of_way(self, way, memory, there, machine, divisions):
        """The Planned of a way: by the order of thumb, the first of the divisions, unless another one is FASTER."""
        found, given = [], self.fixed
        for policy, fixed in divisions:
            self.fixed = {**given, **fixed}
            if found:  # an open run's drives have the buffers that they began with
                self.fixed["drives"] = found[0].fates["rings"].bytes
            program, rows = self.described(memory, way)
            made, code, diag = program.plan(memory, there, machine, policy)
            chosen = way and self.whole.chosen(made, way)
            fates = {name: fate_of(made, row) for name, row in rows.items() if row is not None}
            self.fixed = given
            times, code, diag = (None, code, diag) if code else self.times(made, fates, memory, there, machine, way)
            sums = sums_of(made)
            full = found[0].comfortable if found else sums.comfortable_bytes  # with all state
            found.append(Planned(program, rows, fates, made, code, diag, chosen, times, sums.minimum_bytes, full))
        others = [each for each in found[1:] if not each.code]
        best = min(others, key=lambda each: each.times.step_seconds, default=found[0])
        if not found[0].code and best.times.step_seconds >= FASTER * found[0].times.step_seconds:
            return found[0]
        return best

    def again(self, plan, rings, memory, there, trace, slots, rates):
        """[the Division of a Plan of these needs, the one that suits the Trace of a step]. rings: bytes of the drives'
        buffers, which an open run keeps. slots: of a device, as many as there are. rates: struct shore_machine *."""
        sizes = {"gradients": plan.gradient_bytes, "state": plan.spare_bytes}
        now = {"pages of layers": plan.pages, "slots of layers": slots, **sizes}
        self.trace, self.fixed = trace, {"drives": rings}
        if self.device is not None:
            self.fixed["slots of layers"] = slots
        divisions = [(lib.SHORE_POLICY_ORDER, now)], None
        return [self.planned(memory, there, rates, each).division() for each in divisions]

    def beside(self, whole, nbytes):
        """The Chosen of activations within so many bytes beside an engine that is there. None: they do not fit."""
        program, (way,) = StepProgram(self.layout, self.page_bytes, self.fleet, True, whole.trace), whole.ways()
        whole.describe(program, way)
        made, code, _ = program.plan(max(nbytes, 0))  # less than nothing may be left
        return None if code else whole.chosen(made, way)

    def of_activations(self, made, chosen):
        """Bytes of a plan that are activations, without those that the engine has: their pool, and the gradients on
        their way to the drives, which a plan with activations counts where they arrive."""
        if chosen is None:
            return 0
        return sums_of(made).placed_bytes - chosen.pool_bytes - self.block * (not self.whole.aside)


def refuse_budgets(device, gpu_memory, pinned_memory):
    """Raises ValueError for a budget of what is not there."""
    for name, size in (("gpu_memory", gpu_memory), ("pinned_memory", pinned_memory)):
        if size is not None and device is None:
            raise ValueError(
                f"{name}= is for a model that computes on an accelerator, and this one computes on the CPU, where "
                f"memory= is the only budget: leave out {name}=, or ask `python -m longshore doctor` why PyTorch "
                "sees no accelerator"
            )
    if pinned_memory is not None and cuda.is_unified(device):
        raise ValueError(
            f"pinned_memory= is for an accelerator with memory of its own, and {device} computes in the host's, all of "
            "which is pinned: leave it out, and give memory="
        )


def _half_of_free(gpu_memory, memory):
    """memory= by default where a device's memory is the host's: what is free is for both. None: it is given, or
    unknown."""
    if memory is not None or gpu_memory is None or gpu_memory.free is None:
        return None
    free = gpu_memory.free - gpu_memory.limit if gpu_memory.given else gpu_memory.free // 2
    return max(min(free, shared_budget.within()), 1)


def _beside(gpu_memory, taken):
    """gpu_memory= where a device's memory is the host's, of which so much is taken: by default nine tenths of the
    rest."""
    if gpu_memory is None or gpu_memory.given or gpu_memory.free is None:
        return gpu_memory
    return replace(gpu_memory, limit=max(gpu_memory.free - taken, 0) * 9 // 10)


def plan(
    layout,
    drives,
    memory,
    how,
    who="this model",
    room=None,
    device=None,
    gpu_memory=None,
    pinned_memory=None,
    trace=None,
    whole=None,
    rates=None,
):
    """The Plan for a memory budget. Raises BudgetError with the minimum of each budget that is too small.

    memory: bytes; None: a part of the open longshore.budget(), or half of the machine's memory.
    how: options of wrap(), as the run records them, with "trace".
    who: the engine's name in messages about a shared budget.
    room: bytes for activations on the drives; None: four times the budget, at most ROOM_BYTES, and none for those that
    stay in host memory.
    device: what modules compute on; None: the CPU.
    gpu_memory: the DeviceBudget; None: no limit is known.
    pinned_memory: bytes, a part of memory; None: what can be had, or of a frozen model what the others leave.
    trace: the Trace of a step; None: what computes is not known.
    whole: Activations that memory is for, too; None: they have memory beside it.
    rates: struct shore_machine *; None: this machine's, as they are kept.
    """
    refuse_budgets(device, gpu_memory, pinned_memory)
    unified = device is not None and cuda.is_unified(device)
    lends = device is not None and not unified and pinned_memory is None and not how.get("trains", True)
    if lends:
        pinned_memory = left(open_engines.training())
    needs = Needs(layout, drives, memory, how, device, pinned_memory, lends, trace, whole)
    if room is None and needs.activations == "host":
        room = 0
    least = needs.least()
    given = [size for size in (memory, shared_budget.left()) if size is not None]
    if whole is None and min(given, default=least) < least and layout.share_rest():
        least = needs.least()
    least_there, one_slot = (0, 0) if unified else (layout.memory_bytes(0), layout.memory_bytes(1))
    there = ALL_BYTES
    if gpu_memory is not None:
        there = gpu_memory.limit
        if there < least_there + gpu_memory.beside:
            raise BudgetError(gpu_memory.too_little(least_there + gpu_memory.beside), lib.SHORE_EBUDGET)
    memory = shared_budget.share(who, memory, least)
    budget, shared = memory or 0, shared_budget.left() is not None
    by_default = _half_of_free(gpu_memory, memory) if unified else None
    memory = shared_budget.within(memory or by_default, least)
    rates = machines.of(None).handle(device) if rates is None else rates
    planned = needs.planned(memory, max(there, one_slot), rates)
    division, program, rows, chosen = planned.division(), planned.program, planned.rows, planned.chosen
    least_slots = int(least_there == one_slot)

    def slots_beside(nbytes):
        if unified:
            return pages
        if there < nbytes + one_slot:
            return least_slots
        beside = program.plan(memory, there - nbytes, rates)[0]
        return 1 if rows["slots"] is None else fate_of(beside, rows["slots"]).count

    beside, rings = needs.of_activations(planned.made, chosen), planned.fates["rings"].bytes
    kept, pool = division.spare_bytes, planned.fates.get("pool")
    total = division.total_bytes + kept - beside
    pool_bytes, pinned = 0 if pool is None else pool.bytes, {}
    if device is not None:
        parts, pool_bytes = needs.pinned, pool_bytes // ALIGN * ALIGN
        pinned = {"landing_bytes": parts.landing, "staging_bytes": parts.ring, "pinned": parts.sizes(pool_bytes)}
    slots, pages = planned.count("slots"), division.pages
    if unified:
        slots = least_slots = pages
        gpu_memory = _beside(gpu_memory, total if by_default else memory)
    most = shared_budget.within() if how.get("default_memory") and not unified else memory
    if by_default:
        most = min(most, max(total, gpu_memory.free - gpu_memory.limit))
    out = Plan(
        ring_bytes=0 if rings >= needs.rings[1] else needs.rings[0],
        pages=pages,
        slots=0 if device is None else slots,
        gradient_bytes=division.gradient_bytes,
        pool_bytes=chosen.pool_bytes if chosen else pool_bytes,
        room_bytes=0 if pool is None else min(4 * memory, ROOM_BYTES) if room is None else room,
        aside_bytes=needs.block,
        spare_bytes=kept,
        total_bytes=total - kept,
        compression_bytes=needs.compression,
        least_bytes=least,
        budget_bytes=budget - beside if budget and not shared else total,
        most_bytes=total if shared else most - beside,
        **pinned,
        gpu_memory=gpu_memory,
        least_slots=least_slots,
        least_slots_bytes=least_there,
        crossing_bytes=2 * max(needs.block, min(pool_bytes, CROSSING_BYTES)),
        slots_beside=slots_beside,
        activations=chosen,
        times=planned.times,
        beside=needs.beside,
        trace_steps=how.get("trace", 0),
        state_bytes=needs.state,
    )
    out.again = None if shared else functools.partial(needs.again, out, rings, memory, max(there, one_slot))
    return out
