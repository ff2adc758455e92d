"""engine.memory(): the bytes that Longshore holds of its budget, and what the process takes beside them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .. import native
from . import allocator
from .allocator import process_bytes

_imports_bytes: int | None = process_bytes()  # with PyTorch imported


def imports_bytes() -> int | None:
    """Bytes that the process took before it had a model; None if the system does not tell."""
    return _imports_bytes


def note_imports(tensors: Iterable[torch.Tensor] = ()) -> None:
    """Measures imports_bytes(): the process with everything imported by now, without the tensors of a model."""
    global _imports_bytes
    allocator.give_back()
    try:
        _imports_bytes = process_bytes() - _resident_bytes(tensors)
    except OSError:
        _imports_bytes = None


def _resident_bytes(tensors):
    """The part of these tensors that is in memory: of a model in files, only pages that were touched are."""
    page, spans, resident = os.sysconf("SC_PAGE_SIZE"), set(), 0
    for t in tensors:
        with contextlib.suppress(RuntimeError):  # a tensor without a storage
            if t.device.type == "cpu":
                storage = t.untyped_storage()
                spans.add((storage.data_ptr() // page, -(-(storage.data_ptr() + storage.nbytes()) // page)))
    with open("/proc/self/pagemap", "rb") as f:
        for first, last in spans:
            f.seek(8 * first)
            # the highest bit of a page's eight bytes says whether it is in memory
            resident += len(f.read(8 * (last - first))[7::8].translate(None, _ABSENT)) * page
    return resident


_ABSENT = bytes(range(128))


@dataclass(repr=False)
class Memory:
    """The memory of an engine and its process, in bytes.

    Attributes:
        budget: The memory that Longshore may hold.
        parameters, gradients, state, activations, drives: What it holds now, by purpose.
        gradients_most: The most that gradients may take.
        boundaries: The most that inputs of checkpointed layers have taken where activations go: a part of activations
            and of the room on the drives.
        process_at_wrap, process_now: Resident memory of the process when the engine was made, and now. It includes the
            interpreter, PyTorch, and activations in PyTorch's memory.
        allocated: The part of process_now that PyTorch's tensors and Python's objects use, such as activations and
            the gradients that autograd makes.
        kept: Free memory that their allocator keeps. 128 MiB or more of it goes back to the system before these numbers
            are taken, and between steps as long as that takes no more than a hundredth of the time.
        gpu_memory: The accelerator's memory that the process may add from wrap() or resume() on; 0: no limit is known.
        gpu_planned: The part of it that is planned for parameters, and for what is on its way to the host.
        gpu_most: The most that the process has added, as PyTorch's allocator counts.
    """

    budget: int
    parameters: int
    gradients: int
    gradients_most: int
    state: int
    activations: int
    boundaries: int
    drives: int
    process_at_wrap: int
    process_now: int
    allocated: int
    kept: int
    gpu_memory: int = 0
    gpu_planned: int = 0
    gpu_most: int = 0

    @property
    def held(self) -> int:
        """Bytes that Longshore holds now, within the budget."""
        return self.parameters + self.gradients + self.state + self.activations + self.drives

    def __str__(self) -> str:
        names = ("parameters", "gradients", "state", "activations", "drives")
        waited = native.readable(self.boundaries) if self.boundaries else None
        parts = ", ".join(f"{name} {native.readable(getattr(self, name))}" for name in names if getattr(self, name))
        return (
            f"memory {native.readable(self.budget)}, of which {native.readable(self.held)} are held ({parts}); "
            f"{f'inputs of checkpointed layers waited elsewhere for backward, {waited} at most; ' if waited else ''}"
            f"the process takes {native.readable(self.process_now)} ({native.readable(self.allocated)} for "
            f"PyTorch's tensors and Python's objects, {native.readable(self.kept)} kept by their allocator), and "
            f"took {native.readable(self.process_at_wrap)} when it was wrapped{self._of_gpu()}"
        )

    def _of_gpu(self) -> str:
        size = native.readable
        if not self.gpu_memory:
            return ""
        return (
            f"; gpu_memory {size(self.gpu_memory)}, of which {size(self.gpu_planned)} are for parameters and "
            f"transfers, and {size(self.gpu_most)} were in use at the peak"
        )

    __repr__ = __str__


def boundaries(core: Any) -> tuple[int, int]:
    """(number, bytes) of inputs of checkpointed layers that were away from PyTorch's memory at once, at most."""
    activations = core.streams.activations
    return (0, 0) if activations is None else activations.most_boundaries


def measure(core: Any) -> Memory:
    """The Memory of an engine, now."""
    if allocator.held()[1] >= allocator.LEAST_BYTES:
        allocator.give_back()
    plan, parameters, copies = core.plan, core.streams.tier.pages_bytes, core.streams.copies_bytes
    beside = plan.compression_bytes + plan.landing_bytes
    # the engine keeps state in what gradients do not use
    gradients = plan.gradient_bytes + plan.aside_bytes + beside
    drives = plan.total_bytes - parameters - gradients - plan.pool_bytes - plan.staging_bytes
    return Memory(
        min(plan.budget_bytes, plan.most_bytes - plan.taken_bytes + copies),
        parameters + copies + plan.staging_bytes,
        core.gradients.held_bytes + beside,
        gradients,
        core.gradients.step.tell(native.lib.shore_step_state_bytes),
        plan.pool_bytes,
        boundaries(core)[1],
        drives,
        core.process_at_wrap_bytes,
        process_bytes(),
        *allocator.held(),
        *core.device_memory.told(),
    )
