"""Says how much memory the process took at its peak in an engine's first step, what for, and how to lower it."""

import torch

from .. import native
from ..model.absent import StandIn
from ..torch_internals import tree_leaves
from . import memory

WORTH_BYTES = 16 << 20  # what a way to lower the peak has to save


def most_resident():
    """The peak of resident memory since the process began."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        return next((int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM")), 0)


class Peak:
    """Samples resident memory where it may be largest: around forward, and between blocks in backward."""

    def __init__(self):
        self.before, self.most_before = memory.process_bytes(), most_resident()
        self.forward = self.most = self.before
        self.output_bytes = 0
        self.whole = True  # whether the step was watched from its first forward pass on

    def look(self):
        self.most = max(self.most, memory.process_bytes())

    def forward_ended(self, output):
        self.forward = max(self.forward, memory.process_bytes())
        self.output_bytes = max(
            self.output_bytes,
            sum(t.nbytes for t in tree_leaves(output) if isinstance(t, torch.Tensor) and not isinstance(t, StandIn)),
        )

    def text(self, core):
        """One line about the step that ends now."""
        self.look()
        most = most_resident() if most_resident() > self.most_before else max(self.most, self.forward)
        held, size, imports = memory.measure(core), native.readable, memory.imports_bytes()
        forward, backward = self.forward - self.before, max(most - self.forward, 0)
        said = f"step {core.state.step + 1}: the process took "
        # what was imported may be gone, with what lay in memory beside it
        known = imports is not None and imports <= self.before
        beyond = f" beyond its imports ({size(imports)})" if known else ""
        said += f"{size(most - imports if known else most)} at its peak{beyond}"
        budget = held.budget if core.plan.process is None else core.plan.process.limit
        said += f": the engine holds {size(held.held)} of memory {size(budget)}"
        if core.streams.device is not None:
            limit, _, on_device = core.device_memory.told()
            said += f"; on {core.streams.device.device} it took {size(on_device)} of gpu_memory {size(limit)}" * (
                limit > 0
            )
            forward = backward = 0  # what they brought is there
        if forward:
            said += f"; forward brought {size(forward)} of activations"
            said += f" (its output, such as logits, has {size(self.output_bytes)})" if self.output_bytes else ""
        number, nbytes = memory.boundaries(core)
        if number:
            said += f"; {number} inputs of checkpointed layers waited elsewhere for backward, {size(nbytes)}"
        if backward:
            said += f"; backward brought {size(backward)}{' more' if forward else ''} of gradients"
        return said + _advice(core, forward, backward) if known and most - imports > budget * 5 // 4 else said


def _advice(core, forward, backward):
    """Ways to lower the peak, each with the bytes that it saves, if that is worth it."""
    size, ways = native.readable, []
    if forward >= WORTH_BYTES and core.how.get("activations", "memory") == "memory":
        ways.append(f'wrap(activations="drives") saves up to {size(forward)}')
    if forward >= WORTH_BYTES and not any(
        getattr(module, "gradient_checkpointing", False) for module in core.module.modules()
    ):
        ways.append(f"gradient checkpointing saves most of {size(forward)}")
    if forward + backward >= 2 * WORTH_BYTES:
        ways.append(f"micro-batches of half the size save about {size((forward + backward) // 2)}")
    return f". That is more than memory= and a quarter: {', '.join(ways)}" if ways else ""
