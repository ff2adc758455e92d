"""Says how much memory the process took at its peak in an engine's first step, what for, and how to lower it."""

import torch

from .. import native
from ..torch_internals import tree_leaves
from . import memory


def _most():
    """The peak of resident memory since the process began."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        return next((int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM")), 0)


class Peak:
    """Samples resident memory where it may be largest: around forward, and between blocks in backward."""

    def __init__(self):
        self.before, self.most_before = memory.process_bytes(), _most()
        self.forward = self.most = self.before
        self.output_bytes = 0

    def look(self):
        self.most = max(self.most, memory.process_bytes())

    def forward_ended(self, output):
        self.forward = max(self.forward, memory.process_bytes())
        self.output_bytes = max(self.output_bytes,
                                sum(t.nbytes for t in tree_leaves(output) if isinstance(t, torch.Tensor)))

    def text(self, engine):
        """One line about the step that ends now."""
        self.look()
        most = _most() if _most() > self.most_before else max(self.most, self.forward)
        held, size = memory.measure(engine), native.readable
        beyond = most - memory.imports_bytes()
        forward, backward = self.forward - self.before, max(most - self.forward, 0)
        said = (f"step {engine.state.step + 1}: the process took {size(max(beyond, 0))} at its peak beyond its "
                f"imports ({size(memory.imports_bytes())}): the engine holds {size(held.held)} of memory "
                f"{size(held.budget)}; forward brought {size(forward)} of activations (its output, such as logits, "
                f"has {size(self.output_bytes)}), backward {size(backward)} more of gradients")
        return said + _advice(engine, forward, backward) if beyond > held.budget * 5 // 4 else said


def _advice(engine, forward, backward):
    """Ways to lower the peak, each with the bytes that it saves."""
    size, ways = native.readable, []
    if engine.how.get("activations", "memory") == "memory":
        ways.append(f'wrap(activations="drives") up to {size(forward)} less')
    if not any(getattr(module, "gradient_checkpointing", False) for module in engine.module.modules()):
        ways.append(f"gradient checkpointing most of {size(forward)}")
    ways.append(f"micro-batches of half the size about {size((forward + backward) // 2)}")
    return f". That is more than memory= and a quarter: {', '.join(ways)}"
