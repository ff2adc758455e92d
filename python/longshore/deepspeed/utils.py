"""deepspeed.utils: the log, parameters with what the optimizer keeps of them, a loader that repeats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from ..errors import LongshoreError
from ..integrations.deepspeed_config import logger
from ..native import readable
from ..step import parameter_state
from ..step.optimizer_table import OPTIMIZERS
from .accelerator import get_accelerator
from .zero import get_z3_leaf_modules, set_z3_leaf_module, set_z3_leaf_modules, unset_z3_leaf_modules, z3_leaf_module  # noqa: F401  DeepSpeed has them here, too


def log_dist(message: str, ranks: list | None = None, level: int = 20) -> None:
    """Says something in the log, where rank 0 is among ranks."""
    if not ranks or 0 in ranks or -1 in ranks:
        logger.log(level, message)


def see_memory_usage(message: str, force: bool = False) -> None:
    """Says in the log what this process takes of memory, where force is true."""
    if force:
        logger.info(f"{message}: {readable(get_accelerator().memory_allocated())} in memory")


def _on_drives(param, function):
    if getattr(param, "longshore", None) is None:
        raise LongshoreError(f"{function}: this parameter is not one of an engine; use it as it is")


def _moment(param, key, function):
    _on_drives(param, function)
    kind = param.longshore.streams.engine().how["optimizer"]
    states = OPTIMIZERS[kind].states
    known = {**states, "exp_avg_sq": "v"} if "sum" in states else states  # which DeepSpeed's scripts ask for
    if key not in known:
        raise LongshoreError(f"{function}: {key!r} is no state of {kind}: {', '.join(known)}")
    return known[key]


def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """The fp32 master of a parameter at the committed step, as a copy."""
    return (parameter_state.read(param, "master") if getattr(param, "longshore", None) is not None
            else param.detach().float().clone())


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Writes the fp32 master of a parameter, as a step of its own: after step(), or before backward()."""
    _on_drives(param, "safe_set_full_fp32_param")
    parameter_state.write(param, "master", value)


def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor:
    """A moment of a parameter, fp32, as a copy: exp_avg and exp_avg_sq (Adam, AdamW), momentum_buffer (SGD), sum
    (Adagrad)."""
    return parameter_state.read(param, _moment(param, optim_state_key, "safe_get_full_optimizer_state"))


def safe_set_full_optimizer_state(param: torch.Tensor, value: torch.Tensor, optim_state_key: str) -> None:
    """Writes a moment of a parameter, as a step of its own: after step(), or before backward()."""
    parameter_state.write(param, _moment(param, optim_state_key, "safe_set_full_optimizer_state"), value)


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """The gradient that backward() has gathered for a parameter, fp32, as a copy; None: there is none."""
    return parameter_state.gradient(param) if getattr(param, "longshore", None) is not None else param.grad


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Puts another gradient in the place of the one that backward() has gathered."""
    _on_drives(param, "safe_set_full_grad")
    parameter_state.set_gradient(param, value)


def safe_update_full_grad_vectorized(param_list: list, update_func: Callable) -> None:
    """update_func(gradient, parameter) gives each parameter's new gradient."""
    for param in param_list:
        if param.requires_grad:
            safe_set_full_grad(param, update_func(safe_get_full_grad(param), param))


# of one process: its part is the whole
safe_get_local_fp32_param, safe_set_local_fp32_param = safe_get_full_fp32_param, safe_set_full_fp32_param
safe_get_local_grad, safe_set_local_grad = safe_get_full_grad, safe_set_full_grad
safe_get_local_optimizer_state, safe_set_local_optimizer_state = (safe_get_full_optimizer_state,
                                                                  safe_set_full_optimizer_state)


class RepeatingLoader:
    """A loader that begins again where it ends."""

    def __init__(self, loader):
        self.loader, self.iterator = loader, iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)


@contextlib.contextmanager
def OnDevice(dtype: torch.dtype, device: str = "meta", enabled: bool = True) -> Iterator[None]:
    """Models that are made in here are of a dtype, on a device."""
    before = torch.get_default_dtype()
    if enabled:
        torch.set_default_dtype(dtype)
    try:
        with torch.device(device) if enabled else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)
