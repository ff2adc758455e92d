"""p.grad, as PyTorch has it: a tensor from the backward pass that makes it until zero_grad(), or until a script sets it
to None.

    stand-in ──── read, or changed in place ────► a copy for that one operation; the sum takes over what it changed
       │
       └─ seen as it lies (view, numpy(), data_ptr), given memory (data =, set_()), or kept after it is dropped
                          ▼
    an ordinary tensor, as is what a script assigns ──► at the next pass or step, the sum takes over what differs

A stand-in takes no memory. What only reads a gradient changes no bit of the step.
"""

import logging
import weakref

import torch

from ..errors import LongshoreError
from ..model.absent import Fetched, StandIn, fetched, one_by_one, tensors, writes
from ..native import readable
from ..torch_internals import DisableTorchFunctionSubclass, refuse_access, tree_map, version_of
from .block_gradients import shows, zeros

_log = logging.getLogger("longshore")
_ADVICE = (
    "change it as a whole, as parameter.grad.mul_() does, or give parameter.grad another tensor; with more "
    "memory= it has memory of its own, which can be changed in part"
)
_POINTERS = {"data_ptr", "untyped_storage", "storage", "numpy", "__array__", "__dlpack__", "share_memory_"}
_zeros: dict = {}  # by dtype and device: what all stand-ins are views of


def _dtype_of(p):
    """The dtype of a parameter's gradient."""
    return getattr(p, "grad_dtype", None) or p.dtype


class Gathered(StandIn):
    """A stand-in for the gradient of a parameter. It has the parameter's shape, the gradient's dtype, and no memory."""

    @classmethod
    def of(cls, p):
        with torch.no_grad(), DisableTorchFunctionSubclass():
            key = _dtype_of(p), p.device
            if key not in _zeros:
                _zeros[key] = torch.zeros((), dtype=key[0], device=key[1])
                if key[1].type != "cpu":
                    _zeros[key].untyped_storage().resize_(0)
                refuse_access(
                    _zeros[key],
                    "p.grad: a function that PyTorch does not announce asks for its memory; clone() it first. If "
                    "this is DistributedDataParallel, use the engine without it: it adds up the ranks' gradients",
                )
            out = _zeros[key].expand(p.shape).as_subclass(cls)
        out.longshore_parameter, out.longshore_name = p, f"{p.longshore.name}.grad"
        return out

    def longshore_gradients(self):
        """Returns the Gradients that have its value. Raises LongshoreError where nobody has it any more."""
        p = self.longshore_parameter
        if p is None:
            raise LongshoreError(
                f"{self.longshore_name}: was kept after it was dropped, when memory had no room for "
                "it; clone() what is wanted afterwards, or give more memory="
            )
        p.longshore.streams.open_state(self.longshore_name)
        return p.longshore.streams.gradients

    def longshore_value(self):
        """Returns a copy of the gradient."""
        value = self.longshore_gradients().value_of(self.longshore_parameter)
        if value is None:
            raise LongshoreError(
                f"{self.longshore_name}: was lost with a drive, or was dropped by close(); make the step again"
            )
        with DisableTorchFunctionSubclass():
            return value.to(self.device, self.dtype, copy=True).view(self.shape)

    def longshore_become(self, change):
        """Makes it an ordinary tensor: change(self) gives it memory. Returns it."""
        with DisableTorchFunctionSubclass():
            self.data = torch.empty(0, dtype=self.dtype, device=self.device)
            change(self)
        self.__class__ = torch.Tensor
        return self

    def longshore_get_memory(self):
        """Makes it an ordinary tensor with its value. Returns whether memory has room for it."""
        if not self.longshore_gradients().shown.reserve(self):
            return False
        value = self.longshore_value()
        self.longshore_become(lambda g: setattr(g, "data", value))
        return True

    # PyTorch does not give all of these to __torch_function__()
    def stride(self, *args):
        return torch.empty(self.shape, device="meta").stride(*args)

    def is_contiguous(self, *args, **kwargs):
        return torch.empty(self.shape, device="meta").is_contiguous(*args, **kwargs)

    def requires_grad_(self, requires_grad=True):
        """Returns a tensor of its own, as of p.grad.detach(), which autograd follows."""
        if not requires_grad:
            return self
        has = self.longshore_get_memory()
        g = self.detach() if has else fetched(self.longshore_value(), self.longshore_name, _ADVICE)
        with DisableTorchFunctionSubclass():
            return g.requires_grad_()

    def set_(self, *args, **kwargs):
        rest = [a.longshore_value() if isinstance(a, Gathered) else a for a in args]
        return self.longshore_become(lambda g: torch.Tensor.set_(g, *rest, **kwargs))

    @classmethod
    def longshore_call(cls, func, name, first, args, kwargs):
        if isinstance(first, Gathered):
            if name in ("detach", "detach_") or func == torch.Tensor.data.__get__:
                return first
            if func == torch.Tensor.data.__set__:
                value = args[1].longshore_value() if isinstance(args[1], Gathered) else args[1]
                return first.longshore_become(lambda g: setattr(g, "data", value))
        if func is torch.Tensor.__iter__:
            return iter(args[0].unbind(0))
        if "_foreach_" in name and isinstance(first, (list, tuple)) and len(first) > 1:
            return one_by_one(func, args, kwargs)
        given = [a for a in tensors((args, kwargs)) if isinstance(a, Gathered)]
        if name in _POINTERS:
            return _point(func, name, given, args, kwargs)
        changed = kwargs.get("out", first if writes(func, kwargs) else None)
        written = {id(g): g for g in tensors(changed) if isinstance(g, Gathered)}
        copies = {}
        for g in given:
            if id(g) not in copies:
                value = torch.zeros(g.shape, dtype=g.dtype, device=g.device) if "zero_" in name else g.longshore_value()
                copies[id(g)] = value if id(g) in written else fetched(value, g.longshore_name, _ADVICE)
        there, by_name = tree_map(lambda a: copies[id(a)] if isinstance(a, Gathered) else a, (args, kwargs))
        out = func(*there, **by_name)
        if any(isinstance(a, Fetched) for a in tensors(out)) and all(
            g.longshore_get_memory() for g in given if type(g) is Gathered
        ):
            return func(*args, **kwargs)  # what it returns shares their memory
        for g in written.values():
            g.longshore_gradients().change(g.longshore_parameter, copies[id(g)])
        return next((g for g in written.values() if copies[id(g)] is out), out)


def _point(func, name, given, args, kwargs):
    """Calls a function that gives away the memory of a gradient."""
    for g in given:
        if type(g) is Gathered and not g.longshore_get_memory():
            if name not in ("numpy", "__array__"):
                raise LongshoreError(
                    f"{g.longshore_name}: {name}(): it has no memory of its own, and memory= has no "
                    "room for it; clone() it first"
                )
            return func(fetched(g.longshore_value(), g.longshore_name, _ADVICE), *args[1:], **kwargs)
    return func(*args, **kwargs)


class Shown:
    """p.grad of one engine's trained parameters."""

    def __init__(self, parameters):
        """parameters: those that the engine trains."""
        self.parameters = parameters
        # by a parameter's id: a weak reference to its p.grad as the engine has seen it last, and its version
        self._seen = {}
        self._hidden = {}  # during a pass, by a parameter's id: its p.grad
        self._own, self.most_bytes = {}, 0  # bytes of the stand-ins that got memory, now by id, and at most
        self._said_kept = False

    def _p_grads(self):
        with DisableTorchFunctionSubclass():
            return [(p, p.grad) for p in self.parameters]

    def _set(self, p, g):
        with DisableTorchFunctionSubclass():
            p.grad = g
        if g is None:
            self._seen.pop(id(p), None)
        else:
            self._seen[id(p)] = weakref.ref(g), version_of(g)

    def reserve(self, g):
        """Takes memory for a stand-in: of what the plan leaves for optimizer state. Returns whether there is room."""
        gradients, key = g.longshore_gradients(), id(g)
        core = gradients.streams.core()
        nbytes = g.numel() * g.element_size()
        taken = sum(self._own.values()) + nbytes
        if taken > core.plan.spare_bytes:
            return False
        self._own[key] = nbytes
        weakref.finalize(g, self._own.pop, key, None).atexit = False
        if taken > self.most_bytes:
            self.most_bytes = taken
            gradients.shrink_state()
        return True

    def look(self, gradients):
        """Takes over what a script has made of p.grad. Returns whether it has removed a gradient of this step."""
        removed, kept = False, 0
        for p, g in self._p_grads():
            seen = self._seen.get(id(p))
            if g is None and seen is None or gradients.in_hooks(p):
                continue
            before = None if seen is None else seen[0]()
            if g is not None and g is before:
                if type(g) is not Gathered:
                    gradients.take_over(p, g, version_of(g) != seen[1])
                    self._set(p, g)
                continue
            if isinstance(g, Gathered) and g.longshore_parameter is not p:
                g.longshore_get_memory()  # another's, which both have from now on
            kept += self._keep([before])
            if g is None:
                removed |= gradients.change(p, None)
                self._set(p, None)
            elif isinstance(g, Gathered) or g.layout is not torch.strided:
                gradients.change(p, g.longshore_value() if isinstance(g, Gathered) else g)
                self._set(p, Gathered.of(p))
            else:
                gradients.change(p, g)
                self._set(p, g)
        self._say_kept(kept)
        return removed

    def end_last(self, gradients):
        """Sets p.grad to None where it is of the last step, and not of the one that gathers."""
        refs = []
        for p in self.of_last_step(gradients):
            if id(p) in self._seen:
                refs.append(self._seen[id(p)][0])
            self._set(p, None)
        self._say_kept(self._keep(ref() for ref in refs))

    def hide(self, gradients):
        """Clears p.grad for a pass, which autograd begins without. Raises LongshoreError if two have the same one."""
        due = [(p, g) for p, g in self._p_grads() if g is not None and not gradients.in_hooks(p)]
        owners = {id(g): p for p, g in due}
        for p, g in due:
            if owners[id(g)] is not p:
                raise LongshoreError(
                    f"{p.longshore.name}.grad: is {owners[id(g)].longshore.name}.grad, too, and "
                    "backward would add the gradients of both to it; assign a clone() of it"
                )
        for p, g in due:
            self._set(p, None)
            self._hidden[id(p)] = g

    def show(self, gradients):
        """Sets p.grad of the parameters that have a gradient in this step."""
        with DisableTorchFunctionSubclass():
            due = [p for p in self.parameters if p.grad is None and gradients.has(p)]
        for p in due:
            g = self._hidden.pop(id(p), None)
            if g is not None and type(g) is not Gathered:
                self.refresh(gradients, p, g)
            self._set(p, Gathered.of(p) if g is None else g)

    def refresh(self, gradients, p, g):
        """Gives a script's tensor the value of the sum, in place."""
        sum = gradients.value_of(p)
        if not shows(g, sum):
            with torch.no_grad():
                g.detach().copy_(sum.view(g.shape))

    def renew(self, gradients, p):
        """After the engine's own change of a gradient: p.grad shows it."""
        with DisableTorchFunctionSubclass():
            g = p.grad
        if not gradients.has(p):
            self._set(p, None)
        elif g is not None and type(g) is not Gathered:
            self.refresh(gradients, p, g)
            self._set(p, g)

    def of_last_step(self, gradients):
        return [p for p, g in self._p_grads() if g is not None and not gradients.has(p) and not gradients.in_hooks(p)]

    def parted(self, parameters):
        """Returns the parameters with p.grad whose ids are in a set, and the others."""
        there = [p for p, g in self._p_grads() if g is not None]
        return [p for p in there if id(p) in parameters], [p for p in there if id(p) not in parameters]

    def zero(self):
        """Takes p.grad of all parameters away, with their values. Returns [(parameter, its p.grad)] for set()."""
        out = [(p, g) for p, g in self._p_grads() if g is not None]
        for p, g in out:
            self._set(p, None)
            if type(g) is not Gathered:
                with torch.no_grad():
                    g.detach().zero_()
        return out

    def set(self, gradients, zeroed):
        """Shows gradients again that zero() has taken away, as zeros."""
        for p, g in zeroed:
            gradients.change(p, zeros(p.shape))
            self._set(p, g)

    def drop(self):
        """Sets every p.grad to None. Stand-ins that a script has kept get memory and their value first."""
        refs = [weakref.ref(g) for g in self._hidden.values()] + [ref for ref, _ in self._seen.values()]
        self._hidden = {}
        for p in self.parameters:
            self._set(p, None)
        self._say_kept(self._keep(ref() for ref in refs))

    def _keep(self, dropped):
        """Gives memory and value to those that a script has kept of these, where there is room. Returns the bytes."""
        nbytes = 0
        for g in dropped:
            if type(g) is not Gathered:
                continue
            try:
                there = g.longshore_get_memory()
            except LongshoreError:
                there = False
            if there:
                nbytes += g.nbytes
            else:
                g.longshore_parameter = None
        return nbytes

    def _say_kept(self, nbytes):
        if nbytes and not self._said_kept:
            self._said_kept = True
            _log.warning(
                f"the script keeps gradients past their step or zero_grad(): they take {readable(nbytes)} of memory "
                "until it lets them go"
            )

    def lend(self, gradients, p, sum):
        """Sets p.grad for a script's hooks: its own tensor, or a copy."""
        g = self._hidden.get(id(p))
        with DisableTorchFunctionSubclass():
            if g is None or type(g) is Gathered or gradients.over_ranks is not None:  # hooks see this rank's alone
                p.grad = sum.to(p.device, _dtype_of(p), copy=True).view(p.shape)
            else:
                self.refresh(gradients, p, g)
                p.grad = g

    def stays(self, p, ref):
        """After a script's hooks: p.grad is what they still have of it, by its weak reference."""
        before = self._hidden.pop(id(p), None)
        if ref() is not None:
            self._hidden[id(p)] = ref()
        elif before is not None and type(before) is Gathered:
            self._hidden[id(p)] = before
