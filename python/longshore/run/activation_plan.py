"""Describes what autograd saves in a step, and what computes beside it, as rows of the step's program; and says what a
plan of that program makes of each layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from ..model import sliced_loss
from ..model.activations import LEAST_BYTES, POOL_PARTS
from ..model.fates import Fate
from ..native import lib
from .step_program import PLACES, fate_of

MOVED_AT_ONCE = (
    4  # the largest tensors that a pool holds, through which all of a layer's leave: one backward needs several
)
KEY, GROUP = PLACES + 1, 8  # of what may stay in layers: keys of single tensors are above the program's operations
WAY_OF = {Fate.AGAIN: lib.SHORE_WAY_AGAIN, Fate.MOVE: lib.SHORE_WAY_MOVE}
NAME_OF = {Fate.KEEP: "kept", Fate.AGAIN: "recomputed", Fate.MOVE: "offloaded"}


def with_sliced_loss(trace, model):
    """The Trace of a step whose loss is computed in slices of tokens, with its gradients."""
    name, head = sliced_loss.head_of(model)
    weight = head.weight
    most = sliced_loss.most_bytes(trace.tokens, weight.shape, weight.dtype, weight.requires_grad)
    units = [unit for unit in trace.units if unit.name != name]
    of_head = next(unit for unit in trace.units if unit.name == name)
    hidden = trace.tokens * head.in_features * weight.dtype.itemsize
    kept = [hidden, weight.nbytes * weight.requires_grad]  # gradients, which wait for backward
    now = {"forward_most_bytes": most, "backward_most_bytes": hidden + most, "forward_temporary_bytes": most}
    units.append(
        replace(of_head, saved_bytes=sum(kept), saved_sizes=kept, output_bytes=0, backward_waits_bytes=0, **now)
    )
    return replace(trace, units=units, logits_bytes=0)


def gradients_of(layout, trace, adds):
    """{name of a unit: bytes of gradients that the engine holds while the unit's last one comes}. adds: whether several
    passes make a step."""
    of, out = {}, {}
    for b, block in enumerate(layout.blocks):
        for t in block.tensors:
            of.update(dict.fromkeys([t.name, *t.names], b))
    for unit in trace.units:
        blocks = {of[name] for name in unit.parameters if name in of}
        tensors = [t for b in blocks for t in layout.blocks[b].tensors if t.trains]
        # autograd has the last one of those that the engine takes as they are
        last = 0 if adds else max((t.elems for t in tensors if t.dtype is torch.float32), default=0)
        out[unit.name] = 4 * (sum(t.elems for t in tensors) - last)
    return out


class Way(NamedTuple):
    """A way to describe a step."""

    instead: Fate  # of what does not stay in layers
    pool_bytes: int  # through which activations leave; 0: none do


class Needs(NamedTuple):
    """What a unit needs of memory, with one Fate."""

    held: int  # until its backward
    forward: int  # with it, while it computes
    backward: int


@dataclass
class Activations:
    """What PyTorch holds in a step, which a plan counts beside the engine."""

    trace: Any
    gradients: dict[str, int]  # {name of a unit: bytes of gradients that the engine holds while the unit's arrive}
    count: int = 1  # micro-batches that go through the layers together
    once: frozenset = frozenset()  # names of layers that cannot be computed again
    leave: bool = True  # whether drives have room for activations
    pool_bytes: int | None = None  # what there is, through which they leave; None: as the plan needs it
    aside: bool = False  # whether the engine has memory of its own for gradients on their way to the drives
    inner: dict[str, int] = field(default_factory=dict)  # of the program described last: {name of a layer: its row}

    def ways(self):
        """Ways to describe the step, from what costs the least to what needs the least memory."""
        if self.pool_bytes is not None:
            return [Way(Fate.AGAIN, self.pool_bytes)]
        layers = [unit for unit in self.trace.units if unit.layer]
        inputs = POOL_PARTS * max((unit.boundary_bytes for unit in layers), default=0)
        largest = max((size for unit in layers for size in unit.saved_sizes), default=0)
        ways = [Way(Fate.AGAIN, 0), Way(Fate.AGAIN, inputs), Way(Fate.MOVE, max(inputs, MOVED_AT_ONCE * largest))]
        return ways if self.leave else ways[:1]

    def instead(self, unit, way):
        """The Fate of what does not stay of a unit."""
        if not unit.layer:
            return Fate.KEEP
        if way.instead is Fate.AGAIN and unit.name in self.once:
            return Fate.MOVE if way.pool_bytes else Fate.KEEP
        return way.instead

    def _held(self, unit, fate, way):
        if fate is Fate.KEEP:
            return unit.saved_bytes
        sizes = unit.saved_sizes if fate is Fate.MOVE else [unit.boundary_bytes]
        return sum(size for size in sizes if not LEAST_BYTES <= size <= way.pool_bytes // POOL_PARTS)

    def _needs(self, unit, fate, way):
        forward, backward, held = unit.forward_most_bytes, unit.backward_most_bytes, self._held(unit, fate, way)
        if fate is Fate.MOVE:
            # where what is read ahead fills the pool, a backward gets its tensors in memory of their own
            read = MOVED_AT_ONCE * max(unit.saved_sizes, default=0)
            forward, backward = unit.forward_temporary_bytes, unit.backward_temporary_bytes + held + read
        elif fate is Fate.AGAIN:
            backward = max(backward, forward + unit.backward_waits_bytes)
        backward += self.gradients.get(unit.name, 0)
        # the other micro-batches have computed this unit, or wait with its gradient
        others = (self.count - 1) * (max(forward, backward) + unit.output_bytes)
        return Needs(self.count * held, forward + others, backward + others)

    def describe(self, program, way):
        """Adds rows to the program of a step, in the order of forward, so that each lies on those before it."""
        units, n, self.inner = self.trace.units, len(self.trace.units), {}
        operations = list(zip((f for f, _ in program.forward[-n:]), (b for b, _ in reversed(program.backward[:n]))))
        program.add("logits", self.trace.logits_bytes, own=False)
        program.add("activations on their way", way.pool_bytes, own=False)
        layers: dict[str, list] = {}
        for unit, pair in zip(units, operations):
            layers.setdefault(unit.name, []).append((unit, pair))
        for unit, (forward, backward) in zip(units, operations):
            fate = self.instead(unit, way)
            kept, other = (self._needs(unit, each, way) for each in (Fate.KEEP, fate))
            if unit is units[-1]:  # beside what the trace knows: of a loss that the script computes
                outside = 0 if self.trace.has_loss else 2 * unit.output_bytes
                kept, other = (n._replace(backward=max(n.backward, n.held + outside)) for n in (kept, other))
            passing = {"by": [forward, backward], "stays": False, "own": False}
            program.add("saved activations", other.held, **passing)
            if fate is not Fate.KEEP and unit.name not in self.inner:
                self.inner[unit.name] = self._add_inner(program, layers[unit.name], fate, way)
            inner = self.inner.get(unit.name)
            self._add_computing(program, forward, kept.forward - kept.held, other.forward - other.held, inner)
            self._add_computing(program, backward, kept.backward - kept.held, other.backward - other.held, inner)

    def _add_inner(self, program, runs, fate, way):
        """Adds what may stay of a layer, which runs once or several times. Returns its row."""
        more = sum(self._needs(u, Fate.KEEP, way).held - self._needs(u, fate, way).held for u, _ in runs)
        pairs = [pair for _, pair in runs]
        passing = {"by": [*(f for f, _ in pairs), *(b for _, b in reversed(pairs))], "stays": False, "own": False}
        inner = program.add(
            "activations of a layer",
            max(more, 0),
            ways=lib.SHORE_WAY_KEEP | WAY_OF[fate],
            again=(1 + pairs[0][0]) * (fate is Fate.AGAIN),
            key=KEY,
            group=GROUP,
            **passing,
        )
        moved = sum(u.boundary_bytes for u, _ in runs) * self.count
        if fate is Fate.AGAIN and way.pool_bytes and moved:
            how = {"ways": lib.SHORE_WAY_MOVE, "moved_bytes": moved, "group": GROUP + 1, "key": KEY}
            program.add("an input of a layer", 0, without=1 + inner, **how, **passing)
        return inner

    def _add_computing(self, program, operation, kept, other, inner):
        """Adds what is there while a unit computes, beside what it holds. inner: the row that stays, or does not."""
        both, passing = max(min(kept, other), 0), {"by": [operation], "stays": False, "own": False}
        program.add("computing", both, **passing)
        if kept > both:
            program.add("computing", kept - both, **{"with": 1 + inner}, **passing)
        if other > both:
            program.add("computing", other - both, without=1 + inner, **passing)

    def chosen(self, made, way):
        """What a plan makes of the program described last."""
        stays = {name: fate_of(made, row).way == lib.SHORE_WAY_KEEP for name, row in self.inner.items()}
        of = {
            u.name: Fate.KEEP if stays.get(u.name, True) else self.instead(u, way) for u in self.trace.units if u.layer
        }
        amounts = dict.fromkeys(NAME_OF.values(), 0)
        for unit in self.trace.units:
            amounts[NAME_OF[of.get(unit.name, Fate.KEEP)]] += unit.saved_bytes
        return Chosen(of, way.pool_bytes, amounts)


class Chosen(NamedTuple):
    """What becomes of activations."""

    of: dict[str, Fate]  # of layers
    pool_bytes: int
    amounts: dict[str, int]  # bytes that autograd saves, by what becomes of them
