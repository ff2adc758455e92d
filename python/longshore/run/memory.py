"""What is held of the budget, and what the process takes beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import native
from . import allocator
from .allocator import process_bytes

_imports_bytes = process_bytes()  # PyTorch is there


def imports_bytes() -> int:
    """What the process took before it had a model, as far as can be told."""
    return _imports_bytes


def note_imports(model_bytes: int = 0) -> None:
    """The process takes so much before it trains: with all that it has imported by now, and without a model that is in
    memory."""
    global _imports_bytes
    allocator.give_back()
    _imports_bytes = process_bytes() - model_bytes


@dataclass(repr=False)
class Memory:
    """Bytes: what was promised, what Longshore holds for each purpose, and resident memory of the process, which the
    interpreter, PyTorch and activations in memory are part of, when the engine was made and now. allocated: of the
    latter what PyTorch's tensors (activations, gradients that autograd makes) and Python's objects have; kept: what the
    allocator keeps of what they had, 128 MiB or more of which is given back between steps."""

    budget: int
    parameters: int
    gradients: int
    gradients_most: int
    state: int
    activations: int
    drives: int
    process_at_wrap: int
    process_now: int
    allocated: int
    kept: int

    @property
    def held(self) -> int:
        """All that Longshore holds now, within the budget."""
        return self.parameters + self.gradients + self.state + self.activations + self.drives

    def __str__(self) -> str:
        names = ("parameters", "gradients", "state", "activations", "drives")
        parts = ", ".join(f"{name} {native.readable(getattr(self, name))}" for name in names if getattr(self, name))
        return (f"memory {native.readable(self.budget)}, of which {native.readable(self.held)} are held ({parts}); "
                f"the process takes {native.readable(self.process_now)} ({native.readable(self.allocated)} for "
                f"PyTorch's tensors and Python's objects, {native.readable(self.kept)} kept by their allocator), and "
                f"took {native.readable(self.process_at_wrap)} when it was wrapped")

    __repr__ = __str__


def measure(engine: Any) -> Memory:
    """Of an engine, now."""
    plan, parameters, copies = engine.plan, engine.streams.memory.nbytes, engine.streams.copies_bytes
    # of which state has what they do not need
    compressing, gradients = plan.compression_bytes, plan.gradient_bytes + plan.aside_bytes
    drives = plan.total_bytes - parameters - gradients - plan.pool_bytes - compressing
    return Memory(plan.budget_bytes or engine.state.memory_bytes or plan.total_bytes, parameters + copies,
                  engine.gradients.held_bytes + compressing,
                  gradients + compressing, engine.gradients.step.tell(native.lib.shore_step_state_bytes),
                  plan.pool_bytes, drives, engine.process_at_wrap_bytes,
                  process_bytes(), *allocator.held())
