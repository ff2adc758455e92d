"""Compiles each layer with torch.compile, for wrap(compile=...) and a Trainer's torch_compile.

Layers are compiled one by one, since blocks are fetched and evicted between them. Last bits may differ from those of
layers that are not compiled. So the run records the option, and resume() compiles in the same way.
"""

import inspect

import torch

from .. import progress
from ..errors import LongshoreError
from ..torch_internals import raise_recompile_limit, recompile_limit

_KEYS = {"backend": str, "mode": str, "dynamic": bool, "fullgraph": bool, "options": dict}


def told(value):
    """Converts wrap(compile=) to what a run records: a dict of torch.compile's arguments, or None."""
    if value is None or value is False:
        return None
    value = {} if value is True else {"backend": value} if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise ValueError(
            f'wrap: compile={value!r}; it must be True, the name of a backend ("inductor"), or a dict '
            f"of {', '.join(_KEYS)}"
        )
    for key, given in value.items():
        if key not in _KEYS or not isinstance(given, (_KEYS[key], type(None))):
            raise ValueError(
                f"wrap: compile: {key}={given!r} cannot be kept in a run; compile takes "
                f"{', '.join(_KEYS)} as torch.compile has them"
            )
    return dict(value)


def compile_blocks(model, names, how):
    """Has the layers of these names compiled when they are first called, says so, and returns how many they are.

    how: as told() returns it; None: does nothing."""
    layers = list(dict.fromkeys(name for name in names if name))
    if how is None:
        return 0
    if not layers:
        raise LongshoreError(
            f"compile: {type(model).__name__} has no layers that repeat: name modules with "
            "wrap(layers=[...]), or compile the model by its own compile() before wrap()"
        )
    if how.get("backend", "inductor") == "inductor":
        _refuse_without_compiler()
    modules = dict(model.named_modules())
    # transformers' layers have a number, and each gets a graph of its own when it fills a cache; PyTorch compiles no
    # more graphs than its limit
    limit = max(recompile_limit(), 8 + 4 * len(layers))
    more = {}
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        more["recompile_limit"] = limit
    else:
        raise_recompile_limit(limit)
    for name in layers:
        try:
            modules[name].compile(**{k: v for k, v in how.items() if v is not None}, **more)
        except (RuntimeError, AssertionError) as why:
            raise ValueError(f"compile={how!r}: {why}") from why
    progress.say(
        f"compiling {len(layers)} layers of {type(model).__name__} with "
        f"{how.get('backend') or 'inductor'} in the first step, which may take minutes"
    )
    return len(layers)


def _refuse_without_compiler():
    try:
        from torch._inductor import cpp_builder
        from torch._inductor.exc import InvalidCxxCompiler
    except ImportError:
        return  # another version of PyTorch raises at the first forward pass
    try:
        cpp_builder.get_cpp_compiler()
    except InvalidCxxCompiler as why:
        raise LongshoreError(
            "compile: torch's inductor needs a C++ compiler, and finds none: apt install g++, or "
            'CXX=PATH, or compile="aot_eager"'
        ) from why
