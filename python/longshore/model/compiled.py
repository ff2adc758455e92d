"""Compiled blocks: torch.compile of each layer, as wrap(compile=...) and a Trainer's torch_compile ask for it.

Layers are compiled one by one, since blocks come and go between them. Last bits may differ from those of layers that
are not compiled, so that it is part of what a run is made with, and resume() does the same.
"""

import inspect

import torch

from ..errors import LongshoreError
from ..torch_internals import raise_recompile_limit, recompile_limit

_KEYS = {"backend": str, "mode": str, "dynamic": bool, "fullgraph": bool, "options": dict}


def told(value):
    """What wrap(compile=) says, as a run records it: arguments of torch.compile, or None where nothing is compiled."""
    if value is None or value is False:
        return None
    value = {} if value is True else {"backend": value} if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise ValueError(f"wrap: compile={value!r}; it is True, the name of a backend (\"inductor\"), or a dict of "
                         f"{', '.join(_KEYS)}")
    for key, given in value.items():
        if key not in _KEYS or not isinstance(given, (_KEYS[key], type(None))):
            raise ValueError(f"wrap: compile: {key}={given!r} is nothing that can be kept in a run; it takes "
                             f"{', '.join(_KEYS)} as torch.compile has them")
    return dict(value)


def compile_blocks(model, names, how):
    """Compiles the layers of these names. how: as told() says; None: nothing is done."""
    layers = list(dict.fromkeys(name for name in names if name))
    if how is None:
        return
    if not layers:
        raise LongshoreError(f"compile: {type(model).__name__} has no layers that repeat: name modules with "
                             "wrap(layers=[...]), or compile the model by its own compile() before wrap()")
    if how.get("backend", "inductor") == "inductor":
        _refuse_without_compiler()
    modules = dict(model.named_modules())
    # transformers' layers know their number, and get a graph each where they fill a cache; beyond the limit they are
    # not compiled
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


def _refuse_without_compiler():
    try:
        from torch._inductor import cpp_builder
        from torch._inductor.exc import InvalidCxxCompiler
    except ImportError:
        return  # another version says it itself, at the first forward pass
    try:
        cpp_builder.get_cpp_compiler()
    except InvalidCxxCompiler as why:
        raise LongshoreError("compile: torch's inductor needs a C++ compiler, and finds none: apt install g++, or "
                             "CXX=PATH, or compile=\"aot_eager\"") from why
