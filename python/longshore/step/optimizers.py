"""Optimizers: converts a torch.optim optimizer to the engine's, and provides engine.optimizer.

The engine makes the steps. The optimizer holds the parameter groups, into which learning-rate schedulers write."""

import functools
import inspect
import math
from numbers import Real

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import LongshoreError
from ..model.hooks import refuse_within_backward
from ..native import ffi, lib
from ..torch_internals import has_step_hooks, note_step_called
from . import optimizer_state
from .optimizer_table import NAMES, OPTIMIZERS

# classes of these names, of any package, are AdamW with 8-bit moments
_EIGHT_BITS = ("AdamW8bit", "PagedAdamW8bit")
DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "momentum": 0.0}  # of wrap()
APART = ("give the optimizer this model's parameters() alone, and those outside of the model (a loss's, a head's) an "
         "optimizer of their own, whose step() you call beside the engine's; or wrap a module that holds both")
_GROUP_KEYS = ("params", "lr", "betas", "eps", "weight_decay", "momentum", "initial_lr", "name")


class AdamW8bit(torch.optim.AdamW):
    """Asks for the engine's AdamW with 8-bit moments."""


class EmptyAdagrad(torch.optim.Adagrad):
    """torch.optim's Adagrad without its sums, which it would make in memory for all parameters at once."""

    def __init__(self, params, lr=1e-2, lr_decay=0, weight_decay=0, eps=1e-10):
        torch.optim.Optimizer.__init__(self, params,
                                       {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps})


def told(model, optimizer, groups, numbers):
    """Resolves wrap()'s optimizer arguments. Returns (arguments of wrap(), parameter groups, the torch.optim.Optimizer
    that was given or None). numbers: {name: value, or None if it was not given}."""
    numbers = {k: v for k, v in numbers.items() if v is not None}
    if isinstance(optimizer, str):
        return {"optimizer": optimizer, **DEFAULTS, **numbers}, groups, None
    if not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        parameters = [p for p in model.parameters() if p.requires_grad] if groups is None else list(groups)
        optimizer, numbers, groups = optimizer(parameters, **numbers), {}, None
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"wrap: optimizer={optimizer!r}; it is the name of one, a torch.optim.Optimizer, or a "
                         "function that makes one of parameters")
    beside = [*numbers, *(["groups"] if groups is not None else [])]
    if beside:
        raise ValueError(f"wrap: {beside[0]}: the optimizer that was given says it; give it to "
                         f"{type(optimizer).__name__}, or optimizer=NAME with the numbers")
    how, groups = arguments_of(optimizer)
    own = {id(p) for p in model.parameters()}
    for n, group in enumerate(groups):
        for p in group["params"]:
            if id(p) not in own:
                raise ValueError(f"wrap: optimizer: param_groups[{n}] has a parameter of shape {list(p.shape)} that "
                                 f"is not the model's; {APART}")
    return {**DEFAULTS, **how}, groups, optimizer


def arguments_of(optimizer):
    """Returns (wrap()'s arguments, parameter groups) for a torch.optim.Optimizer. Raises LongshoreError if the engine
    has no optimizer that does the same."""
    kind = type(optimizer)
    name = "adamw" if kind.__name__ in _EIGHT_BITS else next((n for n, known in OPTIMIZERS.items()
                                                              if isinstance(optimizer, known.torchs)), None)
    if name is None:
        raise LongshoreError(f"optimizer: {kind.__name__} is not supported; torch.optim's {NAMES} are, and AdamW8bit")
    eight = kind.__name__ in _EIGHT_BITS
    if not eight and not inspect.unwrap(kind.step).__module__.startswith(("torch.optim", "longshore")):
        raise LongshoreError(f"optimizer: {kind.__name__} has a step() of its own, which would not be called: the "
                             f"engine makes the steps of torch.optim's {NAMES}; do what it does beside engine.step()")
    if has_step_hooks(optimizer):
        raise LongshoreError(f"optimizer: hooks of {kind.__name__}'s step() would not be called; register them at "
                             "engine.optimizer")
    if name in ("adam", "adamw"):
        name = _decays(optimizer, name)
    for group in optimizer.param_groups:
        refuse_kinds(group, f"optimizer: {kind.__name__}: ")
    groups = [{k: group[k] for k in _GROUP_KEYS if k in group} for group in optimizer.param_groups]
    return {
        "optimizer": name, **({"moments": "8bit"} if eight else {}),
        **{k: v for k, v in optimizer.defaults.items() if k in DEFAULTS},
    }, groups


def _decays(optimizer, name):
    """Returns "adam" or "adamw": how an Adam applies weight decay, the same in all of its groups."""
    decoupled = getattr(optimizer, "adamw_mode", True)
    said = {bool(group.get("decoupled_weight_decay", name == "adamw")) and decoupled
            for group in optimizer.param_groups}
    if len(said) > 1:
        raise LongshoreError("optimizer: decoupled_weight_decay differs between its groups, and the engine has one "
                             "kind for all of them")
    return "adamw" if said.pop() else "adam"


def refuse_kinds(group, where):
    """Raises LongshoreError for options of torch.optim that the engine does not have. where: begins the message."""
    for key in ("amsgrad", "maximize", "nesterov", "dampening", "lr_decay", "differentiable"):
        if group.get(key):
            raise LongshoreError(f"{where}{key}={group[key]!r} is not supported; leave it out")


def refuse_numbers(group, where):
    """Raises ValueError for numbers that no optimizer can compute with. where: begins the message."""
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
    """Returns a struct shore_hyper for each tensor of a block: its group's numbers, and its count of updates."""
    arrived = engine.gradients.blocks[number].arrived
    parameters = engine.streams.blocks[number].parameters
    out = ffi.new("struct shore_hyper[]", len(parameters))
    known = OPTIMIZERS[engine.how["optimizer"]]
    has_momentum = not known.takes_momentum or engine.state.made.with_momentum
    for t, (p, _) in enumerate(parameters):
        h = out[t]
        group = engine.optimizer.group_of.get(id(p))
        if t not in arrived or group is None:
            h.frozen, h.inv_sqrt_bias2 = 1, 1
            continue
        group = engine.optimizer.param_groups[group]
        h.lr, h.eps, h.weight_decay = float(group["lr"]), group["eps"], group["weight_decay"]
        h.beta1, h.beta2 = group["betas"]
        h.momentum = group.get("momentum", 0)
        if h.momentum and not has_momentum:
            raise LongshoreError("optimizer: momentum was 0 in all groups when the run was made, which has no room "
                                 "for it; give it to wrap()")
        lib.shore_hyper_at_step(ffi.addressof(out, t), known.number, engine.cycle.counts[number][t] + 1)
    return out


def put(group, key, value):
    """Sets a number in a parameter group. A tensor stays the same object, as compiled optimizers require."""
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def share(optimizer, ours):
    """Turns the optimizer that wrap() was given into an alias of the engine's: same groups, step() and state.
    Schedulers that hold it, or another optimizer made of its groups, then write into the engine's groups."""
    filled = [n for n, group in enumerate(ours.param_groups) if group["params"]]
    for n, group in zip(filled, [group for group in optimizer.param_groups if group["params"]]):
        group.update(ours.param_groups[n])
        ours.param_groups[n] = group
    optimizer.state = ours.state
    for name in ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group"):
        setattr(optimizer, name, functools.partial(getattr(ours, name)))
    note_step_called(optimizer)


def refuse_other_groups(optimizer, ours, run):
    """Raises LongshoreError if a resumed run has other parameter groups than the optimizer that was given."""
    theirs, own = ([{id(p) for p in group["params"]} for group in o.param_groups if group["params"]]
                   for o in (optimizer, ours))
    if theirs != own:
        raise LongshoreError(f"{run}: its parameter groups are not those of the {type(optimizer).__name__}: "
                             f"{len(own)} of {sum(map(len, own))} parameters, and not {len(theirs)} of "
                             f"{sum(map(len, theirs))}; make the same groups, or another run")


def rebind(scheduler, optimizer):
    """Moves a scheduler from another optimizer with the same groups to this one. Returns it."""
    for group, was in zip(optimizer.param_groups, scheduler.optimizer.param_groups):
        group.update({k: v for k, v in was.items() if k in _GROUP_KEYS and k != "params"})
    scheduler.optimizer = optimizer
    return scheduler


class Optimizer(torch.optim.Optimizer):
    """engine.optimizer: live parameter groups, and a state that lies on the drives. The next step uses what a scheduler
    writes into the groups."""

    def __init__(self, engine, groups, defaults):
        self.engine, self._states = engine, optimizer_state.States(self)
        super().__init__(groups, defaults)
        self.group_of = {id(p): n for n, g in enumerate(self.param_groups) for p in g["params"]}
        self._made = self._opt_called = True  # schedulers warn unless a step was called

    def numbers(self):
        """Returns the groups without their parameters, as plain values."""
        return [{k: (list(v) if isinstance(v, tuple) else float(v) if isinstance(v, torch.Tensor) else v)
                 for k, v in g.items() if k != "params" and isinstance(v, (int, float, tuple, str, bool, torch.Tensor))}
                for g in self.param_groups]

    def step(self, closure=None):
        """Calls engine.step(). Returns the loss of the closure, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.engine.step()
        return loss

    @property
    def state(self):
        """The state of each parameter, as torch.optim has it. Values are read from the drives when they are used."""
        return self._states

    @state.setter
    def state(self, state):
        if getattr(self, "_made", False):
            raise LongshoreError('optimizer.state: it lies on the drives; optimizer.load_state_dict() writes it, and '
                                 '{"state": {}, "param_groups": '
                                 "[...]} begins it anew")

    def state_dict(self):
        """Returns torch.optim's state_dict(), with moments that are read from the drives as they are saved."""
        out = super().state_dict()
        out["state"] = {k: dict(v) if isinstance(v, optimizer_state.Entry) else v for k, v in out["state"].items()}
        return out

    def load_state_dict(self, state_dict):
        """Loads a state_dict() of the engine's optimizer or of the same torch.optim optimizer. Commits it as a step of
        its own, which changes nothing else."""
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        for n, group in enumerate(state_dict["param_groups"]):
            where = f"load_state_dict: param_groups[{n}]."
            refuse_kinds(group, where)
            refuse_numbers(group, where)
            if (group.get("decoupled_weight_decay", wanted := self.engine.how["optimizer"] == "adamw") != wanted
                and group.get("weight_decay")):
                raise LongshoreError(f"{where}decoupled_weight_decay: is that of another optimizer than "
                                     f"{self.engine.how['optimizer']}")
        optimizer_state.load(self, state_dict)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def zero_grad(self, set_to_none=True):
        """Drops the gradients that backward() has gathered since the last step."""
        refuse_within_backward("optimizer.zero_grad")
        self.engine.drop_gradients()

    def add_param_group(self, param_group):
        if getattr(self, "_made", False):
            raise LongshoreError("optimizer.add_param_group: the groups are those that wrap() was given")
        super().add_param_group(param_group)


def _refuse_others(optimizer, args, kwargs):
    """Refuses a step of another optimizer on the engine's parameters: it would find no gradients, and do nothing."""
    if isinstance(optimizer, Optimizer):
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if getattr(p, "longshore", None) is not None:
                kind = type(optimizer).__name__
                raise LongshoreError(f"{p.longshore.name}: is updated by engine.step() and engine.optimizer; give "
                                     f"{kind}'s numbers to longshore.wrap(), and make {kind} of the parameters that "
                                     "are not in engine.parameters(), if there are others")


register_optimizer_step_pre_hook(_refuse_others)
