"""A step as the library's program: forward and backward of each unit of a model, what they compute, and what they hold.

With a Trace, units come in the order in which they run, with what they compute. Without one, each block is a unit."""

from __future__ import annotations

from dataclasses import dataclass

from .. import native
from ..model.trace import Unit
from ..native import ffi, lib

ALL_BYTES = 2**64 - 1  # a budget that holds everything
PLACES = lib.SHORE_PLACES  # keys up to here are those of buffers, by place; the next two are other classes'
LEAVING = 1 << 16  # groups of gradients that leave: of layers, and of other blocks
NORM_ROWS = 4096  # of work in memory that no cache has
LEAST_STATE = 4 << 20  # of a block; less is not held (src/step/held_state.c)


@dataclass
class Held:
    """What a division of the budget holds in memory, in bytes. Without it, a StepProgram is one that divides."""

    gradients: int  # of blocks that wait there until the norm is known
    state: int | None  # None: none ever is
    aside: int  # of gradients on their way to the drives
    pages_stay: bool  # each layer has a page of its own


class StepProgram:
    """A step: its operations, and what they hold. The engine allocates all of it; the library decides how much."""

    written_most = 0.0  # bytes that the drives may write in a day; 0: any

    def __init__(self, layout, page_bytes, fleet, one_memory, trace=None, fixed=(), offloads=False, held=None):
        """page_bytes(block): bytes of a block as it is fetched. fleet: the struct shore_fleet_options. one_memory:
        modules compute in the host's pages. trace: the Trace of a step. fixed: {name: how many buffers, or bytes of an
        amount, there are whatever the budget}. offloads: activations go to the drives. held: the Held."""
        self._fixed, self.rows = dict(fixed), []  # (name, tensor) of all that add() added
        self._program, self._names = ffi.gc(lib.shore_program_new(), lib.shore_program_free), []
        self._layout, self._page_bytes, self._fleet, self._one_memory = layout, page_bytes, fleet, one_memory
        # what a device copies from and to, and is pinned whatever the budget
        self.pinned = lib.SHORE_PLACE_PLAIN if one_memory else lib.SHORE_PLACE_PINNED
        units = _units(layout, trace)
        self.forward = [(self._operation("forward", unit, unit.forward), blocks) for unit, blocks in units]
        goes_back = trace is None or any(unit.backward or unit.seconds.get("backward") for unit, _ in units)
        back = reversed(units if goes_back else ())
        self.backward = [(self._operation("backward", unit, unit.backward), b) for unit, b in back]
        self.all = [operation for operation, _ in self.forward + self.backward]
        if trace and offloads and goes_back:
            self._offload([unit for unit, _ in units])
        # the last backward of a block sends its gradients
        sender = {b: operation for operation, blocks in self.backward for b in blocks if layout.blocks[b].trains}
        order = sorted(sender, key=lambda b: sender[b])
        self._layers = set().union(*layout.sides())
        aside, state = (set(), {}) if held is None else (self._aside(order, held), self._state(order, held))
        # what is updated here goes to the drives in the end: what reads it in the next step does not wait for that
        self._stored = lib.shore_program_operation(self._program, self._name("state")) if state else None
        # state in memory is updated once the norm is known
        self._updater = {b: self.all[-1] if state.get(b) else operation for b, operation in sender.items()}
        for b in order:
            if not (trace and any(unit.seconds for unit, _ in units)):
                self._computes(sender[b], kind=lib.SHORE_WORK_ROWS, work=4 * layout.elems(b), rows=NORM_ROWS)
            self._sends(sender[b], b, held is None or b in aside, state.get(b, 0.0))
        self._leave(sender, [b for b in order if b in aside], held)

    def _name(self, name):
        self._names.append(ffi.new("char[]", name.encode()))
        return self._names[-1]

    def _operation(self, way, unit, works):
        operation = lib.shore_program_operation(self._program, self._name(f"{way} of {unit.name}"))
        seconds = unit.seconds.get(way, 0)
        for work in [] if seconds else works:
            kind = getattr(lib, f"SHORE_WORK_{work.kind.upper()}")
            precision = getattr(lib, f"SHORE_PRECISION_{work.precision.upper()}")
            self._computes(operation, kind=kind, precision=precision, work=work.work, rows=work.rows)
        if seconds:
            self._computes(operation, seconds=seconds)
        return operation

    def _computes(self, operation, **members):
        lib.shore_program_computes(self._program, operation, native.new("struct shore_computing", **members))

    def _offload(self, units):
        """Adds the way of what autograd saves to the drives, and back while the unit behind it computes backward."""
        out, back = (
            (lib.SHORE_LANE_BUS_OUT, lib.SHORE_LANE_DRIVE_WRITE),
            (lib.SHORE_LANE_BUS_IN, lib.SHORE_LANE_DRIVE_READ),
        )
        for n, unit in enumerate(units):
            for operation, (bus, drive) in ((self.all[n], out), (self.all[2 * len(units) - 2 - n], back)):
                self._costs(operation, bus, unit.saved_bytes, int(not self._one_memory))
                self._costs(operation, drive, unit.saved_bytes, self._fleet.ndrives)

    def _aside(self, order, held):
        """The blocks whose gradients wait on the drives: memory has no room for them as they come."""
        aside, room = set(), held.gradients
        for b in order:
            nbytes = 4 * self._layout.c.blocks[b].elems
            if nbytes > room:
                aside.add(b)
            else:
                room -= nbytes
        return aside

    def _state(self, order, held):
        """{block: the part of its state that stays in memory}: as shore_step_hold_state() holds it, of blocks whose
        pages stay, those first that backward completes last."""
        parts, layout = {}, self._layout
        if held.state is None:
            return parts
        most = sum(layout.c.blocks[b].elems * layout.blocks[b].dtype.itemsize for b in order)
        room = held.state + (held.gradients - most + held.aside if most <= held.gradients else 0)
        for b in reversed(order):
            each = update_bytes(layout, self._fleet, b)[1] // max(layout.segments[b], 1)
            count = min(room // each, layout.segments[b]) if each else 0
            if count * each >= LEAST_STATE and (held.pages_stay or b not in self._layers):
                parts[b] = count / layout.segments[b]
                room -= count * each
        return parts

    def _leave(self, sender, blocks, held):
        """Lets the next block's gradients wait for room beside those that leave. Rows of memory_plan.py have their
        bytes."""
        layers = [b for b in blocks if b in self._layers]
        for group, of in ((LEAVING, layers), (LEAVING + 1, [b for b in blocks if b not in self._layers])):
            if of:
                n = max(1, held.aside // max(4 * self._layout.elems(b) for b in of))
                self.add("leaving gradients", least=n, most=n, group=group, buffers=True)
            for b in of:
                piece = self.add("leaving gradients", ways=lib.SHORE_WAY_MOVE, group=group, key=PLACES + 2)
                lib.shore_program_makes(self._program, sender[b], piece)

    def _sends(self, operation, block, aside, state):
        """Adds the work behind a block's backward: the way of its gradients, and its update. aside: they wait on the
        drives. state: the part that is in memory, which is updated there after the last backward. In a program that
        divides, rows of memory_plan.py say what memory saves of it."""
        elems, (read, written) = self._layout.elems(block), update_bytes(self._layout, self._fleet, block)
        here, drives = int(elems * state), self._fleet.ndrives
        self._costs(operation, lib.SHORE_LANE_BUS_OUT, 4 * elems, int(not self._one_memory))
        self._costs(operation, lib.SHORE_LANE_LINK_IN, 4 * (elems - here))
        self._costs(operation, lib.SHORE_LANE_DRIVE_WRITE, 4 * elems * aside, drives)
        self._costs(operation, lib.SHORE_LANE_DRIVE_READ, int(read * (1 - state)), drives)
        self._costs(operation, lib.SHORE_LANE_DRIVE_UPDATE, elems - here, drives)
        self._costs(operation, lib.SHORE_LANE_DRIVE_WRITE, int(written * (1 - state)), drives)
        self._costs(self.all[-1], lib.SHORE_LANE_HOST_UPDATE, here)
        self._costs(self._stored, lib.SHORE_LANE_LINK_IN, int(written * state))
        self._costs(self._stored, lib.SHORE_LANE_DRIVE_WRITE, int(written * state), drives)

    def _costs(self, operation, lane, work, parts=1):
        """Divides work among so many lanes of a kind."""
        for n in range(parts if work else 0):
            lib.shore_program_costs(self._program, operation, lane, n, work // parts + (n < work % parts))

    def of(self, blocks):
        """Forward and backward of these blocks, in their order."""
        return [operation for operation, of in self.forward + self.backward if not of.isdisjoint(blocks)]

    def add(self, name, size=0, full=0, place=lib.SHORE_PLACE_PLAIN, by=(), stays=True, key=0, own=True, **members):
        """by: the operations that read it. stays: it is there all the time, and not only from the first to the last of
        them. key: that of tensors of one class, at most PLACES + 2; 0: one of its own. own: its memory is its own, so
        that it counts all the time, too."""
        if name in self._fixed and members.get("buffers"):
            members["least"] = members["most"] = max(1, min(self._fixed[name], members["most"]))
        elif name in self._fixed:
            full = self._fixed[name]
        tensor = native.new(
            "struct shore_tensor",
            name=self._name(name),
            key=key or PLACES + 2 + len(self._names),
            index=len(self._names),
            place=place,
            own=own,
            bytes=size,
            full_bytes=full,
            **members,
        )
        added = lib.shore_program_tensor(self._program, tensor)
        self.rows.append((name, added))
        for operation in by:
            lib.shore_program_reads(self._program, operation, added)
        if by and not stays:
            lib.shore_program_makes(self._program, by[0], added)
            lib.shore_program_frees(self._program, by[-1], added)
        return added

    def parameters(self, bytes_of, moved_of, place, name):
        """Adds the parameters of all blocks: those of layers pass through as many buffers as there is memory for.
        moved_of(block): bytes of it that are fetched. Returns the buffers; None: there are no layers."""
        most, rest, buffers = len(self._layout.layers()), set().union(*(of for _, of in self.forward)), None
        for group, side in enumerate(self._layout.sides(), 1):
            rest -= {*side}
            how = {"place": place, "group": 2 * group + (place == lib.SHORE_PLACE_DEVICE)}
            for b in side:
                layer = {"ways": lib.SHORE_WAY_MOVE, "by": self.of({b}), "moved_bytes": moved_of(b), **how}
                layer = self.add("parameters of a layer", bytes_of(b), **layer)
                self._changes(b, layer)
            how |= {"by": self.of({*side}), "key": 1 + place, "buffers": True}  # as many of each side
            buffers = self.add(f"{name} of layers", least=1, most=most, **how)
        for b in sorted(rest):
            self._changes(b, self.add("parameters", bytes_of(b), place=place, by=self.of({b})))
        return buffers

    def _changes(self, block, tensor):
        if block in self._updater:
            lib.shore_program_changes(self._program, self._updater[block], tensor)

    def plan(self, memory, there=ALL_BYTES, machine=ffi.NULL, policy=lib.SHORE_POLICY_ORDER):
        """(plan, error code, diagnostic) for this many bytes, and so many there on a device. What is pinned counts in
        memory. machine: struct shore_machine *; NULL: assumed. policy: who chooses."""
        out, diag = ffi.new("struct shore_plan **"), ffi.new("struct shore_diag *")
        what = ffi.new("char[]", b"this model")
        members = {"memory_bytes": memory, "what": what, "machine": machine, "policy": policy}
        options = native.new("struct shore_plan_options", one_memory=self._one_memory, **members)
        options.written_bytes_per_day_most = self.written_most
        if not self._one_memory:
            options.place_bytes[lib.SHORE_PLACE_DEVICE] = there
        code = lib.shore_plan_open(self._program, options, out, diag)
        if out[0] == ffi.NULL:
            native.fail(code, diag)
        return ffi.gc(out[0], lib.shore_plan_close), code, diag


def fate_of(plan, tensor):
    return native.filled("struct shore_fate", lib.shore_plan_tensor, plan, tensor)


def sums_of(plan):
    return native.filled("struct shore_plan_sums", lib.shore_plan_sums, plan)


def times_of(plan):
    return native.filled("struct shore_plan_times", lib.shore_plan_times, plan)


def update_bytes(layout, fleet, block):
    """(read, written) bytes of the drives when a block is updated. fleet: struct shore_fleet_options."""
    moved = ffi.new("uint64_t[2]")
    lib.shore_fleet_update_bytes(layout.c, fleet, block, moved, moved + 1)
    return moved[0], moved[1]


def _units(layout, trace):
    """[(unit, numbers of the blocks that it computes with)] in the order of forward."""
    of = {name: b for b, block in enumerate(layout.blocks) for t in block.tensors for name in t.names or [t.name]}
    units = [(unit, {of[name] for name in unit.parameters if name in of}) for unit in trace.units] if trace else []
    found = set().union(*(blocks for _, blocks in units))
    rest = [b for b, block in enumerate(layout.blocks) if b not in found and not block.buffers]
    return [*((Unit(layout.blocks[b].name, False, []), {b}) for b in rest), *units]
