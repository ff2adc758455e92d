"""Chooses the Fate of what autograd saves in each layer, from a Trace of the step and the bytes that there are."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..model import sliced_loss
from ..model.activations import LEAST_BYTES, POOL_PARTS
from ..model.fates import Fate

MOVED_AT_ONCE = (
    4  # the largest tensors that a pool holds, through which all of a layer's leave: one backward needs several
)


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


class ActivationPlan:
    """What becomes of activations in a step, and what PyTorch holds at its peak."""

    def __init__(self, trace, count, gradients, once=()):
        """count: micro-batches that go through the layers together. gradients: {name of a unit: bytes of the gradients
        that the engine holds while the unit's arrive}. once: names of layers that cannot be computed again."""
        self.trace, self.count, self.gradients, self.once = trace, count, gradients, once
        # beside what the trace knows: of a loss that the script computes
        self.outside = 0 if trace.has_loss else 2 * trace.units[-1].output_bytes
        self.layers = list(dict.fromkeys(unit.name for unit in trace.units if unit.layer))
        self.pool_bytes = 0  # through which activations leave; 0: all stay
        self._all(Fate.AGAIN)

    def _all(self, fate):
        instead = Fate.MOVE if self.pool_bytes else Fate.KEEP
        self.of = {name: instead if fate is Fate.AGAIN and name in self.once else fate for name in self.layers}

    def _fate(self, unit):
        return self.of.get(unit.name, Fate.KEEP)

    def _held(self, unit):
        """What stays of a unit until its backward."""
        fate = self._fate(unit)
        if fate is Fate.KEEP:
            return unit.saved_bytes
        sizes = unit.saved_sizes if fate is Fate.MOVE else [unit.boundary_bytes]
        return sum(size for size in sizes if not LEAST_BYTES <= size <= self.pool_bytes // POOL_PARTS)

    def _own(self, unit):
        """The most beside what earlier units hold while a unit computes, forward or backward."""
        fate, forward, backward = self._fate(unit), unit.forward_most_bytes, unit.backward_most_bytes
        if fate is Fate.MOVE:
            # where what is read ahead fills the pool, a backward gets its tensors in memory of their own
            read = MOVED_AT_ONCE * max(unit.saved_sizes, default=0)
            forward, backward = unit.forward_temporary_bytes, unit.backward_temporary_bytes + self._held(unit) + read
        elif fate is Fate.AGAIN:
            backward = max(backward, forward + unit.backward_waits_bytes)
        return max(forward, backward + self.gradients.get(unit.name, 0))

    def peak(self):
        """Bytes of activations and gradients at the peak of the step, with the pool."""
        held, most, others = self.trace.logits_bytes, 0, self.count - 1
        for unit in self.trace.units:
            own = self._held(unit)
            # the other micro-batches have computed this unit, or wait with its gradient
            most = max(most, held + self._own(unit) + others * (own + unit.output_bytes))
            held += self.count * own
        return max(most, held + self.outside) + self.pool_bytes

    def _pools(self):
        """(fate of layers, bytes of the pool), from what costs the least to what needs the least memory."""
        layers = [unit for unit in self.trace.units if unit.layer]
        inputs = POOL_PARTS * max((unit.boundary_bytes for unit in layers), default=0)
        largest = max((size for unit in layers for size in unit.saved_sizes), default=0)
        return (Fate.AGAIN, 0), (Fate.AGAIN, inputs), (Fate.MOVE, max(inputs, MOVED_AT_ONCE * largest))

    def amounts(self):
        """Bytes that autograd saves, by what becomes of them."""
        out = dict.fromkeys(("kept", "recomputed", "offloaded"), 0)
        name = {Fate.KEEP: "kept", Fate.AGAIN: "recomputed", Fate.MOVE: "offloaded"}
        for unit in self.trace.units:
            out[name[self._fate(unit)]] += unit.saved_bytes
        return out

    def computes_again(self):
        """The Trace of the step with what is computed again."""
        return replace(self.trace, units=[self._again(unit) for unit in self.trace.units])

    def _again(self, unit):
        if self._fate(unit) is not Fate.AGAIN:
            return unit
        return replace(unit, backward=[*unit.forward, *unit.backward])

    def least(self, room_bytes=None):
        """Bytes at the peak with the fates that need the least memory. room_bytes: on the drives; None: enough."""
        found = []
        for fate, pool in self._pools():
            if pool and room_bytes == 0:
                break
            self.pool_bytes = pool
            self._all(fate)
            found.append(self.peak())
        return min(found)

    def fit(self, nbytes, room_bytes):
        """Chooses what costs the least time within so many bytes. room_bytes: on the drives; None: the pool stays as it
        is. Returns whether it fits."""
        for fate, pool in [(Fate.AGAIN, self.pool_bytes)] if room_bytes is None else self._pools():
            if pool and room_bytes == 0:
                break
            self.pool_bytes = pool
            self._all(fate)
            if self.peak() <= nbytes:
                break
        if self.peak() > nbytes:
            return False
        for name in reversed(self.layers):  # the last ones wait the shortest
            before, self.of[name] = self.of[name], Fate.KEEP
            if self.peak() > nbytes:
                self.of[name] = before
                break
        return True
