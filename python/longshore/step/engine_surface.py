"""How an engine looks from outside: its repr, its public names, and the names that it forwards to its module."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from .. import native

_Engine = TypeVar("_Engine", bound="Face")

# public attributes of an instance; the others are for the package
_PUBLIC = ("accumulate", "lr_scheduler", "module", "optimizer", "reconnect_timeout")
# methods of nn.Module that return the module; the engine returns itself, since scripts assign the result
_RETURN_SELF = {"apply", "bfloat16", "cpu", "cuda", "double", "float", "half", "ipu", "mtia", "requires_grad_",
                "share_memory", "to", "to_empty", "type", "xpu"}


class Face:
    """The base class of Engine: everything that is not part of a step."""

    def __repr__(self) -> str:
        state = self.__dict__.get("state")
        if state is None:
            of = f" of {type(self.module).__name__}" if "module" in self.__dict__ else ""
            return f"<Engine{of}, closed" + (": run {}, step {}>".format(*self._closed_at) if self._closed_at else ">")
        elements = sum(t.elems for block in self.layout.blocks if not block.buffers for t in block.tensors)
        drives = ", ".join(state.drives)
        memory = native.readable(self.plan.budget_bytes or state.memory_bytes or self.plan.total_bytes)
        return (f"<Engine of {type(self.module).__name__}, open: run {state.path}, step {state.step}, {elements:,} "
                f"parameters on {drives}, memory {memory}>")

    def __enter__(self: _Engine) -> _Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refuses to copy or pickle the engine: a copy would close the run when it is deleted."""
        raise TypeError("an Engine is not copied or pickled, since its run is open once: copy.deepcopy(engine.module) "
                        "is the model with its values, and longshore.resume() opens the run again, after close() or "
                        "in another process")

    def __dir__(self) -> list[str]:
        return sorted({*_PUBLIC,
                       *(name for kind in type(self).__mro__
                         for name in vars(kind) if not name.startswith("_"))} - {"state"})

    def __getattr__(self, name: str) -> Any:
        """Forwards names that the engine does not have to its module: config, generate, parameters, state_dict."""
        module = self.__dict__.get("module")
        if name.startswith("_") or module is None:
            raise AttributeError(f"Engine: there is no {name} here", name=name, obj=self)
        if name == "forward":
            return self.__call__  # which runs the hooks
        try:
            value = getattr(module, name)
        except AttributeError:
            raise AttributeError(f"Engine: there is no {name} here, and its module, a {type(module).__name__}, has "
                                 "none", name=name, obj=self) from None
        return _with_engine(self, module, value) if name in _RETURN_SELF and callable(value) else value

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        return self.__dict__["module"].training

    @training.setter
    def training(self, mode: bool) -> None:
        self.__dict__["module"].training = mode


def _with_engine(engine, module, method):
    """Wraps a module's method so that it returns the engine wherever it would return the module."""
    @functools.wraps(method)
    def call(*args, **kwargs):
        out = method(*args, **kwargs)
        return engine if out is module else out
    return call


def refuse_engine(model, caller, instead):
    """Raises ValueError if the model that a function got is an Engine. instead: what to do."""
    if isinstance(model, Face):
        raise ValueError(f"{caller}: this is an Engine, whose model is wrapped already: {instead}")
