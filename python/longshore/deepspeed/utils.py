"""deepspeed.utils: the log, and parameters in full."""

import contextlib

import torch

from ..errors import LongshoreError
from ..resident import resident
from .config import logger
from .zero import set_z3_leaf_modules, unset_z3_leaf_modules

__all__ = [
    "OnDevice",
    "log_dist",
    "logger",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_set_full_fp32_param",
    "set_z3_leaf_modules",
    "unset_z3_leaf_modules",
]


def log_dist(message, ranks=None, level=20):
    if not ranks or 0 in ranks or -1 in ranks:
        logger.log(level, message)


def safe_get_full_fp32_param(param):
    """The fp32 master of a parameter at the committed step, as a copy."""
    handle = getattr(param, "longshore", None)
    if handle is None:
        return param.detach().float().clone()
    state, number = handle.streams.state, handle.block.number
    handle.streams.engine().settle()
    masters = state.masters(number)
    at = state.layout.offsets[number][handle.index]
    return masters.view(torch.float32)[at : at + param.numel()].clone().view(param.shape)


def safe_get_full_grad(param):
    """The gradient that backward() has gathered for a parameter, in fp32; None: there is none."""
    handle = getattr(param, "longshore", None)
    if handle is None:
        return param.grad
    engine, number = handle.streams.engine(), handle.block.number
    block = engine.gradients.blocks[number]
    if handle.index not in block.had:
        return None
    if handle.index not in block.held:
        engine.gradients._settle(block)
        engine.gradients._bring(number)
    return block.held[handle.index].float().view(param.shape)


def safe_set_full_fp32_param(param, value):
    """Writes a parameter, as a step of its own: see longshore.resident()."""
    with resident(param, write=True), torch.no_grad():
        param.copy_(value)


def safe_get_full_optimizer_state(param, optim_state_key):
    raise LongshoreError("safe_get_full_optimizer_state: moments stay on the drives; `longshore inspect` says what is there")


@contextlib.contextmanager
def OnDevice(dtype, device="meta", enabled=True):
    """Models that are made in here are of a dtype, on a device."""
    before = torch.get_default_dtype()
    if enabled:
        torch.set_default_dtype(dtype)
    try:
        with torch.device(device) if enabled else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)
