"""Optimizers and schedulers of PyTorch as what wrap() takes: the engine makes the steps, and they say which."""

import math
from numbers import Real

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .errors import LongshoreError
from .native import ffi, lib

_KINDS = ((torch.optim.AdamW, "adamw"), (torch.optim.Adam, "adam"), (torch.optim.SGD, "sgd"), (torch.optim.Adagrad, "adagrad"))
# what torch.optim calls the planes of a state that the drives keep
STATES = {"adamw": {"exp_avg": "m", "exp_avg_sq": "v"}, "sgd": {"momentum_buffer": "m"}, "adagrad": {"sum": "v", "exp_avg_sq": "v"}}
STATES["adam"] = STATES["adamw"]
_GROUP_KEYS = ("params", "lr", "betas", "eps", "weight_decay", "momentum", "initial_lr", "name")


def arguments_of(optimizer):
    """(wrap()'s arguments, parameter groups) of a torch.optim.Optimizer that was not stepped yet."""
    name = next((n for kind, n in _KINDS if isinstance(optimizer, kind)), None)
    if name is None:
        raise LongshoreError(f"optimizer: a {type(optimizer).__name__} is not to be had: AdamW, Adam, SGD, Adagrad")
    if name == "adamw" and not getattr(optimizer, "adamw_mode", True):
        name = "adam"
    for group in optimizer.param_groups:
        refuse_kinds(group, "optimizer: ")
    groups = [{k: group[k] for k in _GROUP_KEYS if k in group} for group in optimizer.param_groups]
    return {
        "optimizer": name,
        **{k: v for k, v in optimizer.defaults.items() if k in ("lr", "betas", "eps", "weight_decay", "momentum")},
    }, groups


def refuse_kinds(group, where):
    """Raises for what torch's optimizers do, and the engine's do not. where: begins its name."""
    for key in ("amsgrad", "maximize", "nesterov", "dampening", "lr_decay"):
        if group.get(key):
            raise LongshoreError(f"{where}{key}={group[key]!r} is not to be had")


def refuse_numbers(group, where):
    """Raises ValueError for what no optimizer can compute with, and a step would fail at or make nonsense of. where: begins its name."""
    for key in ("lr", "eps", "weight_decay", "momentum", "clip"):
        value = group.get(key, 0)
        value = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{where}{key}: {value!r} is no number of at least 0")
    betas = group.get("betas", (0, 0))
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(_is_number(b) and 0 <= b < 1 for b in betas):
        raise ValueError(f"{where}betas: {betas!r} are no two numbers from 0 to below 1")


def _is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool)


def hypers(engine, number):
    """struct shore_hyper for each tensor of a block: its group's numbers, and how often it was updated."""
    had = engine.gradients.blocks[number].had
    parameters = engine.streams.blocks[number].parameters
    out = ffi.new("struct shore_hyper[]", len(parameters))
    for t, (p, _) in enumerate(parameters):
        h = out[t]
        group = engine._group_of.get(id(p))
        if t not in had or group is None:
            h.frozen, h.inv_sqrt_bias2 = 1, 1
            continue
        group = engine.optimizer.param_groups[group]
        h.lr, h.eps, h.weight_decay = float(group["lr"]), group["eps"], group["weight_decay"]
        h.beta1, h.beta2 = group["betas"]
        h.momentum = group.get("momentum", 0)
        lib.shore_hyper_at_step(ffi.addressof(out, t), engine._kind, engine._counts[number][t] + 1)
    return out


def put(group, key, value):
    """Into a parameter group. A tensor stays the one that it is, as compiled optimizers want it."""
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def share(optimizer, ours):
    """Makes the groups of an optimizer that was given those of the engine's: whoever holds it, as schedulers do, writes into both, also
    through another optimizer that was made of the same groups."""
    for n, group in enumerate(optimizer.param_groups[:len(ours.param_groups)]):
        group.update(ours.param_groups[n])
        ours.param_groups[n] = group
    optimizer._opt_called = True  # engine.step() is what schedulers look for


def rebind(scheduler, optimizer):
    """Lets a scheduler that was made for another optimizer of the same groups write into this one's."""
    for group, was in zip(optimizer.param_groups, scheduler.optimizer.param_groups):
        group.update({k: v for k, v in was.items() if k in _GROUP_KEYS and k != "params"})
    scheduler.optimizer = optimizer
    return scheduler


class Optimizer(torch.optim.Optimizer):
    """The parameter groups, live: what a scheduler writes into them counts at the next step. The state is on the drives."""

    def __init__(self, engine, groups, defaults):
        self._engine = engine
        super().__init__(groups, defaults)
        self._opt_called = True  # engine.step() is what schedulers look for

    def numbers(self):
        """What the groups say but for their parameters, as plain values."""
        return [{k: (list(v) if isinstance(v, tuple) else float(v) if isinstance(v, torch.Tensor) else v)
                 for k, v in g.items() if k != "params" and isinstance(v, (int, float, tuple, str, bool, torch.Tensor))}
                for g in self.param_groups]

    def step(self, closure=None):
        """Makes the engine's step, as engine.step()."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._engine.step()
        return loss

    def zero_grad(self, set_to_none=True):
        """Drops the gradients of the step that has not been made."""
        self._engine.drop_gradients()

    def add_param_group(self, param_group):
        if getattr(self, "_made", False):
            raise LongshoreError("optimizer.add_param_group: the groups are those that wrap() was given")
        super().add_param_group(param_group)


def _refuse_others(optimizer, args, kwargs):
    """An optimizer of somebody else would find no gradients, and do nothing."""
    if isinstance(optimizer, Optimizer):
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if getattr(p, "longshore", None) is not None:
                raise LongshoreError(f"{p.longshore.name}: is updated by engine.step() and engine.optimizer; give {type(optimizer).__name__}'s "
                                     "numbers to longshore.wrap()")


register_optimizer_step_pre_hook(_refuse_others)
