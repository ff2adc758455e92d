"""How an engine looks from outside: an nn.Module whose child is the model, and which has the model's names."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import nn

from .. import native
from ..errors import LongshoreError, RankError
from ..torch_internals import LoadsChild, in_functional_call, parameters_of

_Engine = TypeVar("_Engine", bound="Face")

# methods of nn.Module that the model answers: it may have its own, and its hooks and parts are not the engine's. Where
# they return the model, the engine's return the engine, since scripts assign the result
_OF_THE_MODEL = """
    add_module apply bfloat16 compile cpu cuda double float half ipu load_state_dict mtia register_buffer
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ share_memory to to_empty type xpu
    zero_grad""".split()


def core_of(engine):
    """The Core of an engine, for modules of the package."""
    return vars(engine)["_core"]


class Face(LoadsChild):
    """The base class of Engine: everything that is not part of a step.

    What a script sees are the engine's public names and, beyond them, the names of the model, reading and writing. The
    parts of the engine stand behind one private name, so that a model may have attributes of any name.

    Names of parameters, buffers and modules are the model's, without a "module." before them, also in the module that
    holds the engine. So what is saved with an engine loads without one, and the other way round."""

    def __repr__(self) -> str:
        core = self.__dict__.get("_core")
        state, closed_at = (core.state, core.closed_at) if core else (None, None)
        if core is None or state is None:
            of = f" of {type(self.module).__name__}" if hasattr(self, "module") else ""
            return f"<Engine{of}, closed" + (": run {}, step {}>".format(*closed_at) if closed_at else ">")
        elements = sum(t.elems for block in core.layout.blocks if not block.buffers for t in block.tensors)
        drives = ", ".join(state.drives)
        memory = native.readable(core.plan.budget_bytes)
        now = "open" if core.streams.asleep is None else "asleep"
        return (
            f"<Engine of {type(self.module).__name__}, {now}: run {state.path}, step {state.step}, {elements:,} "
            f"parameters on {drives}, memory {memory}, computes on {core.streams.places.device}>"
        )

    def __enter__(self: _Engine) -> _Engine:
        return self

    def __exit__(self, kind: type | None, failure: BaseException | None, _: object) -> None:
        if failure is None or core_of(self).state is None:
            self.close()
            return
        with contextlib.suppress(RankError):  # the script gets its own exception, and the other ranks hear of it
            name = f"{type(failure).__name__}: {failure}".removesuffix(": ")
            core_of(self).ranks.meet(f"engine.close() after {name}")
        with contextlib.suppress(RankError):
            self.close()

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refuses to copy or pickle the engine: a copy would close the run when it is deleted."""
        raise TypeError(
            "an Engine cannot be copied or pickled, because its run is open once: "
            "copy.deepcopy(engine.module) is the model with its values, and longshore.resume() opens the "
            "run again, after close() or in another process"
        )

    def __dir__(self) -> list[str]:
        return sorted({"module", *(n for kind in type(self).__mro__ for n in vars(kind) if not n.startswith("_"))})

    def __getattr__(self, name: str) -> Any:
        """Forwards names that the engine does not have to its module: config, generate."""
        module = self.__dict__.get("_modules", {}).get("module")
        if name == "module" and module is not None:
            return module
        if name.startswith("_") or module is None:
            raise AttributeError(f"Engine: there is no {name} here", name=name, obj=self)
        try:
            return getattr(module, name)
        except AttributeError:
            raise AttributeError(
                f"Engine: there is no {name} here, and its module, a {type(module).__name__}, has none",
                name=name,
                obj=self,
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute of the engine. What the model has, parameters and modules are the model's."""
        if name in self.__dict__ or hasattr(type(self), name) or "_core" not in self.__dict__:
            super().__setattr__(name, value)
        elif name == "module":
            raise LongshoreError("engine.module: is the model that was wrapped, and stays so; wrap() another model")
        elif name in parameters_of(self.module) and in_functional_call():
            parameters_of(self.module)[name] = value
        elif isinstance(value, (nn.Module, nn.Parameter)) or not name.startswith("_") and hasattr(self.module, name):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Deletes an attribute of the engine, or else of the model."""
        (super() if name in self.__dict__ or hasattr(type(self), name) else self.module).__delattr__(name)

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_modules" in self.__dict__:  # nn.Module.__init__() sets it before there is a model
            self.module.training = mode

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> None:
        """What DistributedDataParallel looks for in a module, which it takes over. Not an AttributeError, so that it
        ends."""
        raise LongshoreError(
            "DistributedDataParallel(engine): the engine adds up the gradients of all ranks itself: use it as it is. "
            "With Accelerate, give prepare() engine.optimizer and the loaders alone"
        )

    def named_modules(
        self, memo: set | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """As nn.Module's: the engine, then the model with the same name, then its parts with the model's names."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)


def _of_the_model(name):
    """A method of the engine that calls the module's, and returns the engine wherever that returns the module."""

    @functools.wraps(getattr(nn.Module, name))
    def call(self, *args, **kwargs):
        out = getattr(self.module, name)(*args, **kwargs)
        return self if out is self.module else out

    return call


for _name in _OF_THE_MODEL:
    if hasattr(nn.Module, _name):  # older PyTorch versions lack some
        setattr(Face, _name, _of_the_model(_name))


def with_signature(method, other):
    """A bound method of an engine that shows another function's signature: callers choose arguments by the names that
    forward() has."""

    def call(self, *args, **kwargs):
        return method.__func__(self, *args, **kwargs)

    shown = inspect.signature(other)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    call.__signature__ = shown.replace(parameters=[this, *shown.parameters.values()])  # type: ignore[attr-defined]
    return types.MethodType(call, method.__self__)


def refuse_engine(model, caller, instead):
    """Raises ValueError if the model that a function got is an Engine. instead: what to do."""
    if isinstance(model, Face):
        raise ValueError(f"{caller}: this is an Engine, whose model is wrapped already: {instead}")
