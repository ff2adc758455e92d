"""p.grad between backward() and step(): a tensor without memory that stands for the engine's gradient.

Reading it gives a copy of the sum so far, in fp32. Changing it in place, as `clip_grad_norm_()` does, changes the
gradient that step() uses. Assigning another tensor, or None, has the same effect as in PyTorch.
"""

import torch

from ..errors import LongshoreError
from ..model.absent import fetched, is_about, tensors, writes
from ..torch_internals import DisableTorchFunctionSubclass, tree_map
from . import parameter_state

_ADVICE = "change it as a whole, as parameter.grad.mul_() does, or give parameter.grad another tensor"


class Gathered(torch.Tensor):
    """The gradient of a parameter. It has the parameter's shape and dtype, and no memory."""

    @classmethod
    def of(cls, p):
        with torch.no_grad():
            out = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape).as_subclass(cls)
        out.longshore_parameter = p
        return out

    def longshore_value(self):
        """Returns a copy of the gradient, in fp32."""
        value = parameter_state.gradient(self.longshore_parameter)
        if value is None:
            raise LongshoreError(f"{self.longshore_parameter.longshore.name}.grad: the step was made, or its "
                                 "gradients were dropped; clone() what is wanted afterwards")
        return value

    def __deepcopy__(self, memo):
        out = memo[id(self)] = self.longshore_value()
        return out

    def __reduce_ex__(self, protocol):
        return self.longshore_value().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first = args[0] if args else None
        name = getattr(func, "__name__", "")
        if is_about(func):
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if isinstance(first, Gathered) and (name == "detach" or func == torch.Tensor.data.__get__):
            return first
        if name.startswith("_foreach_") and len(first) > 1 and not any(isinstance(a, (list, tuple))
                                                                       for a in (*args[1:], *kwargs.values())):
            outs = [func([g], *args[1:], **kwargs) for g in first]  # one copy at a time
            return None if outs[0] is None else [g for out in outs for g in out]
        written = {id(g): g
                   for g in tensors(kwargs.get("out", first if writes(func) else None)) if isinstance(g, Gathered)}
        copies = {}

        def copy(g):
            if isinstance(g, Gathered) and id(g) not in copies:
                value = g.longshore_value()
                copies[id(g)] = value if id(g) in written else fetched(value,
                                                                       f"{g.longshore_parameter.longshore.name}.grad",
                                                                       _ADVICE)
            return copies.get(id(g), g)

        args, kwargs = tree_map(copy, (args, kwargs))
        out = func(*args, **kwargs)
        for g in written.values():
            parameter_state.set_gradient(g.longshore_parameter, copies[id(g)])
        return next((g for g in written.values() if copies[id(g)] is out), out)


class Shown:
    """Sets and clears p.grad of one engine's parameters."""

    def __init__(self):
        self._made, self._there = {}, []  # by a parameter's id: its Gathered; the parameters that show it now

    def show(self, parameters):
        """Sets p.grad of these parameters, which have a gradient in this step."""
        with DisableTorchFunctionSubclass():
            for p in parameters:
                if p.grad is None:
                    if id(p) not in self._made:
                        self._made[id(p)] = Gathered.of(p)
                    p.grad = self._made[id(p)]
                    self._there.append(p)

    def hide(self):
        """Clears p.grad, and takes over what a script has assigned to it. Returns whether it has assigned None."""
        there, self._there = self._there, []
        with DisableTorchFunctionSubclass():
            found = [(p, p.grad) for p in there]
            for p in there:
                p.grad = None
        for p, g in [(p, g.longshore_value() if isinstance(g, Gathered) else g)
                     for p, g in found if g is not self._made[id(p)]]:
            parameter_state.set_gradient(p, g)
        return any(g is None for _, g in found)

    def forget(self):
        """Forgets which parameters show a gradient; the caller clears p.grad."""
        self._there = []
