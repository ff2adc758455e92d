"""What the engine hooks to a model: inputs come in its precision, and gradients as parts of a step."""

import weakref

import torch
from torch.utils._pytree import tree_map


def take_half(module, args, kwargs):
    """What a script has made for fp16 is computed with in bfloat16."""
    return tree_map(lambda t: t.bfloat16() if isinstance(t, torch.Tensor) and t.dtype == torch.float16 else t, (args, kwargs))


def take_all(module, args, kwargs):
    """auto_cast: inputs come in any precision."""
    return tree_map(lambda t: t.bfloat16() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, (args, kwargs))


class Divide:
    """A hook of parameters: what a script's own loss.backward() brings is a part of gradient_accumulation_steps, too."""

    def __init__(self, engine):
        self.engine = weakref.ref(engine)  # what tensors hold is not seen by the collector

    def __call__(self, gradient):
        engine = self.engine()
        parts = 1 if engine is None or engine.engine.gradients.own else engine.settings.accumulate
        return gradient / parts if parts != 1 else None
