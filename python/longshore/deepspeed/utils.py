"""deepspeed.utils: logging, reading and writing parameters, moments and gradients, and RepeatingLoader."""

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
    """Logs a message if rank 0 is among ranks."""
    if not ranks or 0 in ranks or -1 in ranks:
        logger.log(level, message)


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs the resident memory of this process if force is true."""
    if force:
        logger.info(f"{message}: {readable(get_accelerator().memory_allocated())} in memory")


def _check_on_drives(param, function):
    """Raises LongshoreError unless an engine holds the parameter."""
    if getattr(param, "longshore", None) is None:
        raise LongshoreError(f"{function}: no engine holds this parameter; use it as it is")


def _moment(param, key, function):
    """The plane, m or v, of a moment that torch.optim calls key."""
    _check_on_drives(param, function)
    kind = param.longshore.streams.core().how["optimizer"]
    states = OPTIMIZERS[kind].states
    known = {**states, "exp_avg_sq": "v"} if "sum" in states else states  # DeepSpeed calls it so
    if key not in known:
        raise LongshoreError(f"{function}: {key!r} is not a state of {kind}, which has {', '.join(known)}")
    return known[key]


def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """A copy of a parameter's fp32 master at the committed step."""
    if getattr(param, "longshore", None) is None:
        return param.detach().float().clone()
    return parameter_state.read(param, "master")


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Writes a parameter's fp32 master as a separate step. Call it after step() or before backward()."""
    _check_on_drives(param, "safe_set_full_fp32_param")
    parameter_state.write(param, "master", value)


def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor:
    """A copy of a parameter's moment, in fp32.

    optim_state_key: torch.optim's name of it, such as exp_avg.
    """
    return parameter_state.read(param, _moment(param, optim_state_key, "safe_get_full_optimizer_state"))


def safe_set_full_optimizer_state(param: torch.Tensor, value: torch.Tensor, optim_state_key: str) -> None:
    """Writes a parameter's moment as a separate step. Call it after step() or before backward()."""
    parameter_state.write(param, _moment(param, optim_state_key, "safe_set_full_optimizer_state"), value)


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """A copy of the gradient that backward() has summed for a parameter, in fp32, or None."""
    return parameter_state.gradient(param) if getattr(param, "longshore", None) is not None else param.grad


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Replaces the gradient that backward() has summed for a parameter."""
    _check_on_drives(param, "safe_set_full_grad")
    parameter_state.set_gradient(param, value)


def safe_update_full_grad_vectorized(param_list: list, update_func: Callable) -> None:
    """Replaces the gradient of each trained parameter by update_func(gradient, parameter)."""
    for param in param_list:
        if param.requires_grad:
            safe_set_full_grad(param, update_func(safe_get_full_grad(param), param))


# in one process the local part is the whole
safe_get_local_fp32_param, safe_set_local_fp32_param = safe_get_full_fp32_param, safe_set_full_fp32_param
safe_get_local_grad, safe_set_local_grad = safe_get_full_grad, safe_set_full_grad
safe_get_local_optimizer_state = safe_get_full_optimizer_state
safe_set_local_optimizer_state = safe_set_full_optimizer_state


class RepeatingLoader:
    """A data loader that starts over when it ends."""

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
    """A context in which models are made with a dtype, on a device."""
    before = torch.get_default_dtype()
    if enabled:
        torch.set_default_dtype(dtype)
    try:
        with torch.device(device) if enabled else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)
