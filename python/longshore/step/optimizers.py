"""Optimizers: converts a torch.optim optimizer to the engine's, and provides engine.optimizer.

The engine makes the steps. The optimizer holds the parameter groups, into which learning-rate schedulers write."""

import functools
import inspect

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import LongshoreError
from ..model.hooks import refuse_within_backward
from ..native import ffi, lib
from ..other_names import refuse_optimizer
from ..torch_internals import has_step_hooks, note_step_called
from . import optimizer_state, param_groups
from .optimizer_table import NAMES, OPTIMIZERS
from .param_groups import NUMBERS

# classes of these names, of any package, are AdamW with 8-bit moments
_EIGHT_BITS = ("AdamW8bit", "PagedAdamW8bit")


def told(model, optimizer, groups, numbers):
    """Resolves wrap()'s optimizer arguments. Returns (arguments of wrap(), parameter groups, the torch.optim.Optimizer
    that was given or None). numbers: {name: value, or None if it was not given}."""
    numbers = {k: v for k, v in numbers.items() if v is not None}
    if isinstance(optimizer, str):
        return {"optimizer": optimizer, **_numbers_of(optimizer, numbers)}, groups, None
    if not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        parameters = [p for p in model.parameters() if p.requires_grad] if groups is None else list(groups)
        optimizer, numbers, groups = optimizer(parameters, **numbers), {}, None
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"wrap: optimizer={optimizer!r}; it is the name of one, a torch.optim.Optimizer, or a "
            "function that makes one of parameters"
        )
    beside = [*numbers, *(["groups"] if groups is not None else [])]
    if beside:
        raise ValueError(
            f"wrap: {beside[0]}: the optimizer that was given says it; give it to "
            f"{type(optimizer).__name__}, or optimizer=NAME with the numbers"
        )
    how, groups = arguments_of(optimizer)
    return how, groups, optimizer


def _numbers_of(name, numbers):
    """The numbers of an optimizer of this name: those that were given, and its own defaults."""
    if name not in OPTIMIZERS:
        refuse_optimizer(name, OPTIMIZERS)
    defaults = param_groups.defaults_of(name)
    for key, value in numbers.items():
        if key not in defaults and value:
            raise ValueError(f"wrap: {key}={value!r} has no effect with optimizer={name!r}; leave it out")
    return {key: numbers.get(key, defaults[key]) for key in NUMBERS if key in defaults}


def arguments_of(optimizer):
    """Returns (wrap()'s arguments, parameter groups) for a torch.optim.Optimizer. Raises LongshoreError if the engine
    has no optimizer that does the same."""
    kind = type(optimizer)
    eight = kind.__name__ in _EIGHT_BITS
    known_as = (n for n, known in OPTIMIZERS.items() if isinstance(optimizer, known.torchs))
    name = "adamw" if eight else next(known_as, None)
    if name is None:
        raise LongshoreError(f"optimizer: {kind.__name__} is not supported; torch.optim's {NAMES} are, and AdamW8bit")
    if not eight and not inspect.unwrap(kind.step).__module__.startswith(("torch.optim", "longshore")):
        raise LongshoreError(
            f"optimizer: {kind.__name__} has a step() of its own, which would not be called: the "
            f"engine makes the steps of torch.optim's {NAMES}; do what it does beside engine.step()"
        )
    if has_step_hooks(optimizer):
        raise LongshoreError(
            f"optimizer: hooks of {kind.__name__}'s step() would not be called; register them at engine.optimizer"
        )
    if name in ("adam", "adamw"):
        name = _decays(optimizer, name)
    defaults = param_groups.defaults_of(name)
    for group in optimizer.param_groups:  # _decays() has looked at decoupled_weight_decay
        param_groups.refuse_kinds({**group, "weight_decay": 0}, defaults, f"optimizer: {kind.__name__}: ")
    numbers = {k: v for k, v in optimizer.defaults.items() if k in NUMBERS and k in defaults}
    groups = [param_groups.of_script(group, defaults) for group in optimizer.param_groups]
    return {"optimizer": name, **({"moments": "8bit"} if eight else {}), **numbers}, groups


def _decays(optimizer, name):
    """Returns "adam" or "adamw": how an Adam applies weight decay, the same in all of its groups."""
    mode, default = getattr(optimizer, "adamw_mode", True), name == "adamw"
    said = {mode and bool(group.get("decoupled_weight_decay", default)) for group in optimizer.param_groups}
    if len(said) > 1:
        raise LongshoreError(
            "optimizer: decoupled_weight_decay differs between its groups, and the engine has one kind for all of them"
        )
    return "adamw" if said.pop() else "adam"


def hypers(core, number):
    """Returns a struct shore_hyper for each tensor of a block: its group's numbers, and its count of updates."""
    arrived, optimizer = core.gradients.blocks[number].arrived, core.optimizer
    parameters = core.streams.blocks[number].parameters
    out = ffi.new("struct shore_hyper[]", len(parameters))
    known, has = OPTIMIZERS[core.how["optimizer"]], optimizer.defaults.keys()
    has_momentum = not known.takes_momentum or core.state.made.with_momentum
    for t, (p, _) in enumerate(parameters):
        h = out[t]
        group = optimizer.group_of.get(id(p))
        if t not in arrived or group is None:
            h.frozen, h.inv_sqrt_bias2 = 1, 1
            continue
        h.lr, h.weight_decay = float(group["lr"]), group["weight_decay"]
        h.eps = group["eps"] if "eps" in has else 0
        h.beta1, h.beta2 = group["betas"] if "betas" in has else (0, 0)
        h.momentum = group["momentum"] if "momentum" in has else 0
        if h.momentum and not has_momentum:
            raise LongshoreError(
                "optimizer: momentum was 0 in all groups when the run was made, which has no room "
                "for it; give it to wrap()"
            )
        lib.shore_hyper_at_step(ffi.addressof(out, t), known.number, core.cycle.counts[number][t] + 1)
    return out


def share(optimizer, ours):
    """Turns the optimizer that wrap() was given into an alias of the engine's: same groups, step() and state.
    Schedulers that hold it, or another optimizer made of its groups, then write into the engine's groups."""
    groups = ours.param_groups
    filled = [n for n, group in enumerate(groups) if group["params"]]
    for n, group in zip(filled, [group for group in optimizer.param_groups if group["params"]]):
        group.update(groups[n])
        groups[n] = group
    optimizer.param_groups[:] = groups
    ours.given, optimizer.state = optimizer, ours.state
    for name in ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group"):
        setattr(optimizer, name, functools.partial(getattr(ours, name)))
    note_step_called(optimizer)


def refuse_other_groups(optimizer, ours, run):
    """Raises LongshoreError if a resumed run was made with other groups than those of the optimizer that was given."""
    theirs, own = (
        [{id(p) for p in params} for params in listed if params]
        for listed in ([group["params"] for group in optimizer.param_groups], ours.made)
    )
    if theirs != own:
        raise LongshoreError(
            f"{run}: its parameter groups are not those of the {type(optimizer).__name__}: "
            f"{len(own)} of {sum(map(len, own))} parameters, and not {len(theirs)} of "
            f"{sum(map(len, theirs))}; make the same groups, or another run"
        )


def rebind(scheduler, optimizer):
    """Moves a scheduler from another optimizer with the same groups to this one. Returns it."""
    for group, was in zip(optimizer.param_groups, scheduler.optimizer.param_groups):
        group.update({k: v for k, v in param_groups.of_script(was, optimizer.defaults).items() if k != "params"})
    scheduler.optimizer = optimizer
    return scheduler


def _with_hooks(step):
    """step() as PyTorch makes it, which calls its hooks: what they take is charged to the update."""
    hooked = torch.optim.Optimizer.profile_hook_step(step)

    @functools.wraps(hooked)
    def charged(self, *args, **kwargs):
        charges = self.core.cycle.open_state("step").charges
        charges.turn(lib.SHORE_CHARGE_UPDATE)
        try:
            return hooked(self, *args, **kwargs)
        finally:
            charges.turn(lib.SHORE_CHARGE_BETWEEN)

    charged.hooked = True  # PyTorch wraps it no more
    return charged


class Optimizer(torch.optim.Optimizer):
    """engine.optimizer: live parameter groups, and a state that lies on the drives. The next step uses what a script
    or a scheduler writes into the groups."""

    given = None  # the optimizer that wrap() was given, which has the list of groups then

    def __init__(self, core, groups, defaults):
        self.core, self._states = core, optimizer_state.States(self)
        parameters = [pair for streamed in core.streams.blocks for pair in streamed.parameters]
        tensors = [block.tensors for block in core.layout.blocks]
        self.trained = {id(p) for p, h in parameters if tensors[h.block.number][h.index].trains}
        super().__init__(groups, defaults)
        self.made = [[*group["params"]] for group in self.param_groups]  # as wrap() got them
        self.group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        self._made = self._opt_called = True  # schedulers warn unless a step was called

    @property
    def param_groups(self):
        """The groups. wrap()'s optimizer has the same list, also if a script gives one of the two another list."""
        return self._groups if self.given is None else self.given.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        if self.given is None:
            self._groups = groups
        else:
            self.given.param_groups = groups

    @_with_hooks
    def step(self, closure=None):
        """Calls engine.step(), unless nothing has a gradient. Returns the loss of the closure, if there is one."""
        loss = None
        charges = self.core.state.charges
        if closure is not None:
            charges.turn(lib.SHORE_CHARGE_BETWEEN)
            with torch.enable_grad():
                loss = closure()
            charges.turn(lib.SHORE_CHARGE_UPDATE)
        self.core.cycle.open_state("step")
        if self.core.gradients.has_any():
            self.core.engine.step()
            self.core.gradients.adds = True
            charges.turn(lib.SHORE_CHARGE_UPDATE)  # hooks follow
        return loss

    @property
    def state(self):
        """The state of each parameter, as torch.optim has it. Values are read from the drives when they are used."""
        return self._states

    @state.setter
    def state(self, state):
        if getattr(self, "_made", False):
            anew = '{"state": {}, "param_groups": [...]} begins it anew'
            raise LongshoreError(
                f"optimizer.state: it lies on the drives; optimizer.load_state_dict() writes it, and {anew}"
            )

    def __reduce_ex__(self, protocol):
        """A copy, or a pickle, is torch.optim's own optimizer: of copies of the parameters, with the values of now."""
        return object.__new__, (OPTIMIZERS[self.core.how["optimizer"]].torchs,), self.__getstate__()

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
            param_groups.refuse_kinds(group, self.defaults, where)
            param_groups.refuse_numbers(group, where)
        optimizer_state.load(self, state_dict)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def zero_grad(self, set_to_none=True):
        """Drops the gradients that backward() has gathered. set_to_none=False: makes them zero, with which the next
        step updates, as in PyTorch."""
        refuse_within_backward("optimizer.zero_grad")
        self.core.gradients.zero_grad({id(p) for group in self.param_groups for p in group["params"]}, set_to_none)

    def add_param_group(self, param_group):
        """Adds a group, as torch.optim does, of parameters that trained at wrap()."""
        super().add_param_group(param_group)
        try:
            for p in param_group["params"] if getattr(self, "_made", False) else ():
                param_groups.refuse_untrained(self, p, "optimizer.add_param_group")
        except LongshoreError:
            self.param_groups.remove(param_group)
            raise


def _refuse_others(optimizer, args, kwargs):
    """Refuses a step of another optimizer on the engine's parameters: it would find no gradients, and do nothing."""
    if isinstance(optimizer, Optimizer):
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if getattr(p, "longshore", None) is not None:
                kind = type(optimizer).__name__
                raise LongshoreError(
                    f"{p.longshore.name}: is updated by engine.step() and engine.optimizer; give "
                    f"{kind}'s numbers to longshore.wrap(), and make {kind} of the parameters that "
                    "are not in engine.parameters(), if there are others"
                )


register_optimizer_step_pre_hook(_refuse_others)
