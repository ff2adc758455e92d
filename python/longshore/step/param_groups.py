"""The rules for the optimizer's parameter groups, which scripts edit as they edit torch.optim's.

The step reads the list as it is: what no group has does not train. Keys of a group are of four kinds. The engine
computes with NUMBERS. Keys in _FREE change no number in torch.optim either. Other keys of torch.optim's class have one
value that the engine can do, and any other value is refused. All other keys are the script's own."""

import math
from numbers import Integral, Real

import torch

from ..errors import LongshoreError
from .optimizer_table import OPTIMIZERS

NUMBERS = ("lr", "betas", "eps", "weight_decay", "momentum")  # in the order of wrap()'s arguments
_FREE = {"foreach", "fused", "capturable", "initial_accumulator_value"}
_FROZEN = (
    "is frozen in this run, which has no room for its moments: let it train at wrap(), and set "
    "requires_grad_(False) for as long as it is not to train"
)
APART = (
    "give the optimizer this model's parameters() alone, and those outside of the model (a loss's, a head's) an "
    "optimizer of their own, whose step() you call beside the engine's; or wrap a module that holds both"
)


def defaults_of(name, numbers=None):
    """Returns the defaults of torch.optim's class for an optimizer, with these numbers, of which it takes those that it
    has."""
    kind = OPTIMIZERS[name].torchs
    own = kind([torch.nn.Parameter(torch.empty(0, device="cpu"))]).defaults
    return {**own, **{k: v for k, v in (numbers or {}).items() if k in NUMBERS and k in own}}


def refuse_kinds(group, defaults, where):
    """Raises LongshoreError for options of torch.optim that the engine does not have. where: begins the message."""
    for key, only in defaults.items():
        if key in NUMBERS or key in _FREE or group.get(key, only) == only:
            continue
        if key != "decoupled_weight_decay" or group.get("weight_decay"):  # without decay they are the same
            raise LongshoreError(f"{where}{key}={group[key]!r} is not supported; leave it at {only!r}")


def refuse_numbers(group, where):
    """Raises ValueError for numbers that no optimizer can compute with. where: begins the message."""
    for key in ("lr", "eps", "weight_decay", "momentum", "clip"):
        value = group.get(key, 0)
        value = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{where}{key} must be 0 or more, and is {value!r}")
    betas = group.get("betas", (0, 0))
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(_is_number(b) and 0 <= b < 1 for b in betas):
        raise ValueError(f"{where}betas must be two numbers from 0 to below 1, and is {betas!r}")


def _is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value):
    if isinstance(value, (tuple, list)):
        return len(value) == 2 and all(_is_finite(item) for item in value)
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and math.isfinite(value)
    return isinstance(value, Real) and math.isfinite(value)


def uses_momentum(numbers, groups):
    """Whether a run needs room for a momentum. numbers: the optimizer's; groups: with numbers of their own."""
    return "momentum" in numbers and any(group.get("momentum", numbers["momentum"]) for group in groups)


def of_script(group, defaults):
    """The keys of a group without those of torch.optim's class that have one value only."""
    return {k: v for k, v in group.items() if k in NUMBERS or k in _FREE or k not in defaults}


def kept(group):
    """The values of a group that a run keeps, as JSON: numbers, texts, and lists of them."""
    found = {k: _as_json(v) for k, v in group.items() if k not in ("params", "param_names") and k not in _FREE}
    return {k: v for k, v in found.items() if v is not None}


def _as_json(value):
    """A value as JSON; None if a run does not keep it."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else None
    if isinstance(value, (tuple, list)):
        items = [_as_json(item) for item in value]
        return None if None in items else items
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else None


def put(group, key, value):
    """Sets a number in a parameter group. A tensor stays the same object, as compiled optimizers require."""
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


# ---- the groups of an engine


def _parameters(core):
    """The parameters of a model in the order of their names, which a model that is made again has, too."""
    return [p for _, p in sorted(core.module.named_parameters(), key=lambda named: named[0])]


def _listed(group):
    """The parameters of a group, whatever a script has put there."""
    params = group.get("params")
    return params if isinstance(params, (list, tuple, set)) else ()


def read(optimizer):
    """Returns {id of a parameter: its group} for the next step. Raises LongshoreError for what it cannot honour."""
    trained, dropped, out = optimizer.trained, optimizer.core.gradients.dropped_ids, {}
    for n, group in enumerate(optimizer.param_groups):
        where = f"optimizer.param_groups[{n}]"
        if _listed(group) is not group.get("params"):
            raise LongshoreError(f'{where}: its "params" must be a list')
        missing = next((key for key in NUMBERS if key in optimizer.defaults and key not in group), None)
        if missing:
            raise LongshoreError(f"{where} has no {missing!r}; optimizer.add_param_group() adds what a group lacks")
        wrong = next((key for key in NUMBERS if key in optimizer.defaults and not _is_finite(group[key])), None)
        if wrong:
            raise LongshoreError(f"{where}.{wrong}={group[wrong]!r}: the step computes with finite numbers alone")
        refuse_kinds(group, optimizer.defaults, f"{where}.")
        for p in group["params"]:
            if id(p) in out:
                raise LongshoreError(
                    f"{where}: {_name(p)} is in the groups twice, and would train twice in a step; "
                    "leave it in one group"
                )
            out[id(p)] = group
            if id(p) in dropped:
                raise LongshoreError(
                    f"{where}: {_name(p)} was in no group at deepspeed.initialize(), so its gradient "
                    "is dropped; give it a group there, with lr 0 until it is to train"
                )
            if id(p) not in trained:
                refuse_untrained(optimizer, p, where, p.requires_grad)
    return out


def _name(p):
    handle = getattr(p, "longshore", None)
    return f"a parameter of shape {list(p.shape)}" if handle is None else handle.name


def refuse_untrained(optimizer, p, where, trains=True):
    """Raises LongshoreError if a parameter is not the model's, or if it is to train and was frozen at wrap()."""
    handle = getattr(p, "longshore", None)
    if id(p) in optimizer.trained or not p.numel():
        return
    if handle is None or handle.streams.core() is not optimizer.core:
        raise LongshoreError(f"{where} has {_name(p)} that is not the model's; {APART}")
    if trains:
        raise LongshoreError(f"{where}: {_name(p)} {_FROZEN}")


def saved(optimizer):
    """Returns the groups as JSON. "params" is there if a script has moved parameters: their numbers."""
    groups = optimizer.param_groups
    out = [kept(group) for group in groups]
    if [[id(p) for p in _listed(group)] for group in groups] != [[id(p) for p in params] for params in optimizer.made]:
        number = {id(p): n for n, p in enumerate(_parameters(optimizer.core))}
        for numbers, group in zip(out, groups):
            numbers["params"] = [number[id(p)] for p in _listed(group) if id(p) in number]
    return out


def restore(optimizer, numbers):
    """Gives the groups what saved() returned."""
    groups, known = optimizer.param_groups, _parameters(optimizer.core)
    moved = any("params" in said for said in numbers)
    lists = [[known[i] for i in said["params"]] for said in numbers] if moved or not numbers else optimizer.made
    del groups[len(lists) :]
    groups += [dict(optimizer.defaults) for _ in lists[len(groups) :]]
    for group, params in zip(groups, lists):
        group["params"] = [*params]
    for group, said in zip(groups, numbers):
        for k, v in said.items():
            if k != "params" and (k not in NUMBERS or k in optimizer.defaults):  # older runs have the others, too
                put(group, k, tuple(v) if isinstance(v, list) else v)
