"""What becomes of what autograd saves in each layer: it is kept, computed again in backward, or offloaded.

A layer that is computed again runs in a checkpoint of PyTorch's, which the engine puts between its own hooks of the
layer: its inputs stay, or are offloaded, and the random numbers are the first pass's. So the bits are the same.
"""

import enum

import torch

from ..errors import LongshoreError
from ..torch_internals import BatchNorm, begin_checkpoint, in_backward, saves_checkpoints_input, tree_leaves, version_of
from .forward_scope import checkpoint_that_saves


class Fate(enum.Enum):
    """Of what autograd saves in a layer."""

    KEEP = "kept"
    AGAIN = "recomputed"
    MOVE = "offloaded"


class Fates:
    """The Fate of each layer, as the next forward pass takes it."""

    def __init__(self, of=None, moves_inputs=False):
        """of: {name of a layer: its Fate}; others are kept. moves_inputs: whether inputs of checkpoints are offloaded,
        a script's own ones too."""
        self.of, self.moves_inputs = of or {}, moves_inputs

    def goes(self, inside):
        """Whether a tensor that autograd saves now is offloaded."""
        return inside.fate is Fate.MOVE or self.moves_inputs and saves_checkpoints_input()

    def begin(self, inside, name, module, args, kwargs):
        """A layer's forward begins. inside: the Running of its thread."""
        if inside.layer is not None or not torch.is_grad_enabled() or in_backward():
            return
        fate = self.of.get(name, Fate.KEEP)
        if fate is Fate.AGAIN and (checkpoint_that_saves() is not None or not may_again(module, (args, kwargs))):
            fate = Fate.KEEP
        inside.layer, inside.fate = module, Fate.MOVE if fate is Fate.AGAIN and self.moves_inputs else fate
        if fate is Fate.AGAIN:
            inside.versions = {name: version_of(b) for name, b in module.named_buffers()}
            inside.checkpoint = begin_checkpoint(module, args, kwargs)

    def end(self, inside, name, module, finished):
        """A layer's forward ends. finished: it has an output."""
        if inside.layer is not module or in_backward():
            return
        checkpoint = inside.checkpoint
        inside.end_layer()
        if checkpoint is None or not finished:
            return
        changed = next((n for n, b in module.named_buffers() if version_of(b) != inside.versions.get(n)), None)
        if changed is not None:
            raise LongshoreError(
                f"{name}.{changed}: is a buffer that forward changes, so that the layer cannot be computed again in "
                'backward: leave out memory_of="process"'
            )


def may_again(module, given=()):
    """Whether a layer may be computed again, with these arguments: it writes nothing into statistics of norms, and no
    keys and values into a cache."""
    norms = [m for m in module.modules() if isinstance(m, BatchNorm) and m.running_mean is not None]
    caches = [leaf for leaf in tree_leaves(given) if type(leaf).__module__ == "transformers.cache_utils"]
    return not caches and not any(norm.training for norm in norms)


def only_once(model, trace):
    """Names of a trace's layers that cannot be computed again."""
    layers = {unit.name for unit in trace.units if unit.layer}
    return frozenset(name for name in layers if not may_again(model.get_submodule(name)))
