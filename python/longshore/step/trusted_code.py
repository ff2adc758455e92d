"""Finds code of unknown packages that runs between the micro-batches of a step.

Code of the known packages passes nothing but tensors from one micro-batch to the next."""

import functools
import types

from ..torch_internals import grad_hooks, parameters_of, post_accumulate_hooks

_PACKAGES = {"torch", "transformers", "peft", "accelerate", "longshore", "builtins"}
# methods that transformers' Trainer calls between the first and the last micro-batch of a step
_CALLED = """get_batch_samples training_step compute_loss compute_loss_context_manager autocast_smart_context_manager
    _prepare_inputs _prepare_input _prepare_context_parallel_inputs floating_point_ops
    _track_num_input_tokens""".split()
_HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"


def is_of_packages(name):
    return name.partition(".")[0] in _PACKAGES


def is_known(call):
    """Whether a callable is code of these packages. A decorator and the function that it wraps must both be."""
    while call is not None:
        if isinstance(call, functools.partial):
            call = call.func
        elif isinstance(call, (types.MethodType, staticmethod, classmethod)):
            call = call.__func__
        elif isinstance(call, types.FunctionType):
            if not is_of_packages(call.__globals__.get("__name__", "")):
                return False
            call = getattr(call, "__wrapped__", None)
        else:
            return is_of_packages((call if isinstance(call, type) else type(call)).__module__)
    return True


def own_code_of(trainer, model, methods=()):
    """Names the first code of a Trainer or its model that belongs to no known package, or returns None. methods: other
    functions that the Trainer calls."""
    for kind in type(trainer).__mro__:
        for name in _CALLED:
            if name in vars(kind) and not is_known(vars(kind)[name]):
                return f"{kind.__name__}.{name}()"
    name = next((name for name in _CALLED if name in vars(trainer)), None)
    if name or not all(map(is_known, methods)):
        return f"{type(trainer).__name__}.{name or 'training_step'}()"
    for name in "compute_loss_func", "label_smoother":
        if getattr(trainer, name, None) is not None and not is_known(getattr(trainer, name)):
            return name
    if getattr(trainer.args, "past_index", -1) >= 0:
        return "past_index, which hands on a state of the model"
    if not is_known(trainer.accelerator.backward):
        return "accelerator.backward()"
    for callback in trainer.callback_handler.callbacks:
        if not is_known(type(callback).on_substep_end):
            return f"{type(callback).__name__}.on_substep_end()"
    return _own_code_of_model(model)


def _own_code_of_model(model):
    kinds = {}
    for name, module in model.named_modules():
        kind, where = type(module), name or type(model).__name__
        if kind not in kinds:
            kinds[kind] = is_of_packages(kind.__module__) and is_known(kind.forward) and is_known(kind.__call__)
        if not kinds[kind]:
            return f"{where}, a {kind.__name__}"
        for attribute, value in vars(module).items():
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)) and not is_known(value):
                return f"{where}.{attribute}"
        if any(not is_known(hook) for hooks in _HOOKS for hook in getattr(module, hooks).values()):
            return f"a hook of {where}"
        for parameter in parameters_of(module).values():
            for hooks in () if parameter is None else (grad_hooks(parameter), post_accumulate_hooks(parameter)):
                if hooks and not all(map(is_known, hooks.values())):
                    return f"a hook of a parameter of {where}"
    return None
