"""Hooks of DeepSpeedEngine: cast a model's inputs, divide its gradients, and stand in for ZeRO-3's hooks."""

import weakref

import torch

from ..run.engine_surface import core_of
from ..torch_internals import tree_map


def cast_inputs(takes, module, args, kwargs):
    """A forward hook that turns inputs into bfloat16. takes(tensor): whether one is turned."""
    return tree_map(lambda t: t.bfloat16() if isinstance(t, torch.Tensor) and takes(t) else t, (args, kwargs))


def is_half(t):
    return t.dtype == torch.float16


class Divide:
    """A parameter hook that divides the gradients of a script's own loss.backward() by gradient_accumulation_steps."""

    def __init__(self, engine):
        self.engine = weakref.ref(engine)  # the garbage collector does not see what a tensor's hooks hold

    def __call__(self, gradient):
        engine = self.engine()
        parts = 1 if engine is None or core_of(engine).gradients.own else engine.settings.accumulate
        return gradient / parts if parts != 1 else None


class ParameterOffload:
    """Stands in for ZeRO-3's object whose hooks libraries remove for a while and put back. It has no hooks."""

    def __init__(self, module):
        self.module, self.forward_hooks, self.backward_hooks = module, [], []
        self.param_coordinator = self

    def is_invalid_trace(self):
        return True

    def _nothing(self, *args, **kwargs):
        return None

    _invalidate_trace = _register_deepspeed_module = _register_hooks_recursively = _nothing


def _external_parameters(module):
    """The external parameters registered for a module: none, because Longshore needs no registration."""
    return ()


torch.nn.Module.ds_external_parameters = _external_parameters  # libraries call it on any module
