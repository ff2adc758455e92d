"""deepspeed.zero: Init makes models larger than memory; GatheredParameters reads and writes parameters."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import LongshoreError
from ..integrations.deepspeed_config import load
from ..integrations.nvme_paths import make, named
from ..model.init_on_disk import spooling
from ..run import init
from ..step.resident import resident
from . import comm
from .accelerator import get_accelerator  # noqa: F401

_spool = None  # the spool of the open or last Init


class ZeroParamStatus(enum.Enum):
    """Values of a parameter's ds_status, which always says that the value must be asked for."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class Init:
    """A context in which models are made without being in memory as a whole.

    Their parameters lie in files in nvme_path, beside the state, until initialize() takes them. The arguments are
    DeepSpeed's. config_dict_or_path names the place (nvme_path, or "longshore"'s run and drives); without it, that is
    the temporary directory. dtype is the default dtype of new parameters.
    """

    _depth = 0

    def __init__(
        self,
        module=None,
        data_parallel_group=None,
        mem_efficient_linear=True,
        remote_device=None,
        pin_memory=False,
        config_dict_or_path=None,
        config=None,
        enabled=True,
        dtype=None,
        mpu=None,
        **kwargs,
    ):
        said = config_dict_or_path if config_dict_or_path is not None else config
        self.config = load(said) if said is not None else {}
        self.enabled, self.dtype, self.stack = enabled, dtype, contextlib.ExitStack()

    def _directories(self):
        """Directories for the files with parameters."""
        longshore = self.config.get("longshore") or {}
        run = longshore.get("run")
        place = next(iter(named(self.config)), None)
        if place is None and run:
            return init.places(run, init.drives_of(longshore.get("drives")))
        make(place or tempfile.gettempdir())
        return [os.fspath(place or tempfile.gettempdir())]

    def __enter__(self):
        global _spool
        Init._depth += 1
        if self.enabled and Init._depth == 1:
            comm.init_distributed()
            if self.dtype is not None:
                before = torch.get_default_dtype()
                torch.set_default_dtype(self.dtype if self.dtype != torch.float16 else torch.bfloat16)
                self.stack.callback(torch.set_default_dtype, before)
            _spool = self.stack.enter_context(spooling(self._directories(), '"nvme_path" in the configuration'))
        return self

    def __exit__(self, *error):
        Init._depth -= 1
        self.stack.__exit__(*error)
        if self.enabled and Init._depth == 0 and error[0] is None:
            what = "deepspeed.zero.Init(): the model that was made in it"
            init.watch(_spool, what, "deepspeed.initialize(model=...) makes one")


def spool() -> Any:
    """The files with parameters of models that Init made, or None without an Init."""
    return _spool


@contextlib.contextmanager
def GatheredParameters(
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> Iterator[None]:
    """A context with parameters in memory, like longshore.resident(). With modifier_rank, changes are written back."""
    params = [params] if isinstance(params, torch.Tensor) else params.values() if isinstance(params, dict) else params
    present = [p for p in params if p is not None]  # the bias of a layer without one is None
    with contextlib.ExitStack() as gathered:
        try:
            if enabled:
                gathered.enter_context(resident(present, write=modifier_rank is not None))
        except LongshoreError:
            if modifier_rank is not None:
                raise  # otherwise, parameters that do not fit together are fetched one by one as they are read
        yield


def register_external_parameter(module: torch.nn.Module, parameter: torch.Tensor) -> None:
    """Does nothing: a parameter is fetched when any module uses it."""


def unregister_external_parameter(module: torch.nn.Module, parameter: torch.Tensor) -> None:
    """Does nothing: no registration is needed."""


@contextlib.contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[torch.nn.Module]:
    """Yields the model itself, because model.generate() works as it is."""
    yield getattr(model, "module", model)


# marks of ZeRO-3's leaf modules: scripts set and read them; they have no effect, because experts are fetched when used


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks a module as a leaf, or removes the mark."""
    vars(model)["_z3_leaf"] = flag


def z3_leaf_module(module: torch.nn.Module) -> bool:
    """Whether a module is marked as a leaf."""
    return getattr(module, "_z3_leaf", False)


def get_z3_leaf_modules(model: torch.nn.Module) -> list:
    """The modules of a model that are marked as leaves."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: list, raise_if_not_found: bool = True, flag: bool = True
) -> list:
    """Marks the modules of these classes, or of classes with these names, and returns them.

    Raises ValueError if there are none, unless raise_if_not_found is False.
    """
    kinds = tuple(c for c in leaf_module_classes if isinstance(c, type))
    names = [c for c in leaf_module_classes if isinstance(c, str)]
    found = []
    for module in model.modules():
        kind = type(module)
        if isinstance(module, kinds) or kind.__name__ in names or f"{kind.__module__}.{kind.__qualname__}" in names:
            set_z3_leaf_module(module, flag)
            found.append(module)
    if not found and raise_if_not_found:
        raise ValueError(f"No modules of type {leaf_module_classes} found in the model, a {type(model).__name__}")
    return found


def unset_z3_leaf_modules(model: torch.nn.Module, leaf_module_classes: list, raise_if_not_found: bool = True) -> list:
    """Removes the marks from these modules and returns the modules."""
    return set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found, flag=False)


# transformers uses these to keep positions in fp32; here nothing changes the dtype of what modules make
partition_parameters = sys.modules[__name__]
_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(function: Callable, *args: Any, **kwargs: Any) -> Callable:
    """Returns the function unchanged."""
    return function
