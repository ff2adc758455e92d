"""What the engine hooks to a model: inputs come in its precision, and gradients as parts of a step; and what libraries
take for its hooks."""

import weakref

import torch

from ..torch_internals import tree_map


def take_half(module, args, kwargs):
    """What a script has made for fp16 is computed with in bfloat16."""
    return tree_map(lambda t: t.bfloat16() if isinstance(t, torch.Tensor) and t.dtype == torch.float16 else t,
                    (args, kwargs))


def take_all(module, args, kwargs):
    """auto_cast: inputs come in any precision."""
    return tree_map(lambda t: t.bfloat16() if isinstance(t, torch.Tensor) and t.is_floating_point() else t,
                    (args, kwargs))


class Divide:
    """A hook of parameters: what a script's own loss.backward() brings is a part of gradient_accumulation_steps,
    too."""

    def __init__(self, engine):
        self.engine = weakref.ref(engine)  # what tensors hold is not seen by the collector

    def __call__(self, gradient):
        engine = self.engine()
        parts = 1 if engine is None or engine.engine.gradients.own else engine.settings.accumulate
        return gradient / parts if parts != 1 else None


class ParameterOffload:
    """What libraries reach for to take ZeRO-3's hooks off for a while, and to put them back: there are none in the
    way."""

    def __init__(self, module):
        self.module, self.forward_hooks, self.backward_hooks = module, [], []
        self.param_coordinator = self

    def is_invalid_trace(self):
        return True

    def _nothing(self, *args, **kwargs):
        return None

    _invalidate_trace = _register_deepspeed_module = _register_hooks_recursively = _nothing


def _external_parameters(module):
    """Of modules that use another one's parameters: nobody has to know of them here."""
    return ()


torch.nn.Module.ds_external_parameters = _external_parameters  # which libraries ask of any module
