"""The loss of a causal model's head in slices of tokens, for wrap(fused_loss=True): whole logits never exist.

In a forward pass with labels, the head gives Logits, a tensor that has no values yet. transformers' loss calls float(),
view() and cross_entropy() of it. The last one takes a slice of the hidden states at a time: its logits, their loss, and
their gradients, as Liger's fused linear cross entropy does. Anything else that asks for values computes the head
as PyTorch does, and goes on with ordinary logits.

The gradient of the head's weight is summed over slices in fp32, and rounded once to the weight's dtype.
"""

import copy

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .. import progress
from ..errors import LongshoreError
from ..torch_internals import (
    DisableTorchFunctionSubclass,
    in_functional_call,
    is_transformed,
    module_hooks,
    tree_map,
    wrapper,
)
from .absent import StandIn, is_that_already
from .adapters import base_of
from .forward_scope import Hook

SLICE_TOKENS = 256  # of a slice: as many as keep its products busy, with few logits
_OFF = "wrap(fused_loss=False) computes the loss as PyTorch does"
_ABOUT = frozenset("shape dtype device layout ndim requires_grad is_cpu is_cuda is_meta itemsize nbytes".split())
_METHODS = frozenset("size dim numel nelement ndimension element_size is_floating_point is_complex __len__".split())
_GRADIENTS = torch.Tensor.register_hook, torch.Tensor.retain_grad, torch.Tensor.grad.__get__, torch.autograd.grad


def chosen(model, asked, default=False):
    """Whether a run computes its loss in slices. asked: wrap()'s fused_loss; None: `default`, where the model can.
    Raises ValueError for True if the model cannot."""
    if asked not in (None, True, False):
        raise ValueError(f"wrap: fused_loss must be True, False or None, and is {asked!r}")
    if asked and _head_of(model) is None:
        raise ValueError(
            f"wrap: fused_loss=True is for a model of transformers whose output embeddings are a torch.nn.Linear, and "
            f"{type(model).__name__} has none: leave it out"
        )
    return default and _head_of(model) is not None if asked is None else asked


def _head_of(model):
    """The module that makes logits of hidden states, if it is PyTorch's Linear; or None."""
    named = getattr(base_of(model), "get_output_embeddings", None)
    head = named() if callable(named) else None
    return head if type(head) is torch.nn.Linear else None


def head_of(model):
    """(name, module) of the head of a run with fused_loss."""
    head = _head_of(model)
    return next((name, module) for name, module in model.named_modules() if module is head)


def attach(streams, model):
    """Lets the head of a model that these streams bring compute its loss in slices, unless it is one of the layers, for
    which micro-batches take turns."""
    head = _head_of(model)
    if not any(p.longshore.block.block.layer for p in head.parameters()):
        Head(streams, head).attach()


def most_bytes(tokens, head_shape, dtype, trains=True):
    """Bytes that the loss of so many tokens takes at most, with the gradients that it holds until backward takes them.

    head_shape: (vocabulary, width). trains: whether the head's weight does."""
    vocabulary, width = head_shape
    whole, less = dtype.itemsize, dtype.itemsize if dtype.itemsize < 4 else 0
    of_slice = _rows(tokens) * (vocabulary * (4 + less) + width * 4)
    return of_slice + tokens * (width * whole + 32) + vocabulary * width * (4 + less) * trains


def _rows(tokens):
    """How many tokens a slice has: all slices about as many."""
    return -(-tokens // max(1, -(-tokens // SLICE_TOKENS)))


class Call:
    """What the head is called with instead of hidden states: compute(weight, bias) gives its result."""

    def __init__(self, compute, reads):
        """reads: whether compute() needs the values of parameters."""
        self.compute, self.reads = compute, reads

    @classmethod
    @torch.compiler.disable  # of a model that is compiled as a whole
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return args[0].compute(*args[1:])


class Head:
    """The head of a model, which gives Logits in forward passes with labels."""

    def __init__(self, streams, module):
        self.streams, self.module, self.said = streams, module, False

    def attach(self):
        self.module.register_forward_pre_hook(Hook(self.pre_forward), prepend=True)

    def pre_forward(self, module, args):
        """The first hook of the head: lets it give Logits, unless something looks at what it computes with."""
        hidden = args[0] if len(args) == 1 else None
        if not self.streams.inside.has_labels or type(hidden) is not torch.Tensor or is_transformed(hidden):
            return None
        if not all(isinstance(hook, Hook) for hook in module_hooks(module)) or in_functional_call():
            return None
        cast = None
        if torch.is_autocast_enabled(hidden.device.type):
            cast = torch.get_autocast_dtype(hidden.device.type)
        if hidden.dim() < 2 or hidden.shape[-1] != module.in_features:
            return None
        if cast is None and hidden.dtype != module.weight.dtype:
            return None
        return (Call(lambda weight, bias: Logits.of(self, hidden, cast), reads=False),)

    def __call__(self, compute):
        """Calls the head, with its parameters in memory."""
        return self.module(Call(compute, reads=True))

    def updates(self):
        """How often each block with parameters of the head was updated."""
        return [p.longshore.block.updates for p in self.module.parameters()]

    def at_once(self):
        """Whether forward computes gradients, too: not for micro-batches that wait for each other before backward."""
        turns = self.streams.turns
        return turns is None or turns.count == 1 or turns.sequential

    def say_twice(self):
        """Says once that the script looks at logits whose loss is computed already."""
        if not self.said:
            self.said = True
            progress.warn(f"fused_loss: this script reads logits, so the head computes them once more; {_OFF}", 8)


class Logits(StandIn):
    """Logits that nobody has looked at."""

    @staticmethod
    def __new__(cls, shape, dtype, device, trains):
        return wrapper(cls, shape, dtype, device=device, requires_grad=trains)

    @classmethod
    def of(cls, head, hidden, cast):
        """The logits of hidden states. cast: autocast's dtype, or None."""
        parameters = list(head.module.parameters())
        grad = torch.is_grad_enabled()
        trains = grad and (hidden.requires_grad or any(p.requires_grad for p in parameters))
        shape = torch.Size((*hidden.shape[:-1], head.module.out_features))
        out = cls(shape, cast or hidden.dtype, hidden.device, trains)
        out.head, out.hidden, out.cast, out.grad_mode = head, hidden, cast, grad
        out.updates, out.in_slices = head.updates(), False
        return out._begin(out, out._whole)

    def _begin(self, source, make):
        """source: the head's own Logits. make: computes the values."""
        self.source, self.make, self.values = source, make, None
        if self.requires_grad:
            with DisableTorchFunctionSubclass():
                self.register_hook(_refuse_gradient)
        return self

    def _view(self, shape, dtype, make):
        """These logits in another shape or dtype, without values."""
        out = Logits(shape, dtype, self.device, self.requires_grad)
        return out._begin(self.source, lambda: make(self.longshore_value()))

    def _whole(self):
        """Computes the head as PyTorch does."""
        if self.head.updates() != self.updates:
            raise LongshoreError(
                "fused_loss: these logits are of a pass before the last step, which has changed the head; read them "
                f"before step(), or {_OFF}"
            )
        if self.in_slices:
            self.head.say_twice()
        cast = torch.autocast(self.device.type, dtype=self.cast, enabled=self.cast is not None)
        with torch.set_grad_enabled(self.grad_mode), cast:
            return self.head(lambda weight, bias: functional.linear(self.hidden, weight, bias))

    def longshore_value(self):
        """The ordinary logits."""
        if self.values is None:
            self.values = self.make()
        return self.values

    def _has_values(self):
        return self.values is not None or self.source.values is not None

    def without_values(self, func, args, kwargs):
        """The result of a function that needs no values; NotImplemented: it needs them."""
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if owner in _ABOUT if name == "__get__" else name in _METHODS:
            with DisableTorchFunctionSubclass():
                return func(self, *args, **kwargs)
        if self._has_values():
            return NotImplemented
        if name == "contiguous" and not args or name in ("to", "float") and is_that_already(name, self, args, kwargs):
            return self
        if func is torch.Tensor.float:
            return self._view(self.shape, torch.float32, torch.Tensor.float)
        if func in (torch.Tensor.view, torch.Tensor.reshape) and not kwargs:
            flat = self.shape[:-1].numel(), self.shape[-1]
            if tuple(args[0] if len(args) == 1 else args) in (flat, (-1, flat[1])):
                return self._view(torch.Size(flat), self.dtype, lambda values: values.view(flat))
        if func is functional.cross_entropy:
            return self._cross_entropy(*args, **kwargs)
        return NotImplemented

    def _cross_entropy(self, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, **old):
        """torch.nn.functional.cross_entropy() in slices, as far as transformers' loss uses it."""
        plain = weight is None and label_smoothing == 0.0 and not any(v is not None for v in old.values())
        if not plain or reduction not in ("mean", "sum") or self.dim() != 2 or self.dtype != torch.float32:
            return NotImplemented
        if target.dtype != torch.int64 or target.shape != self.shape[:1] or target.device != self.device:
            return NotImplemented
        source = self.source
        source.in_slices = True
        slices = Slices(source, target, ignore_index, reduction == "mean")
        hidden = source.hidden.reshape(-1, source.hidden.shape[-1])
        return source.head(lambda weight, bias: _Loss.apply(hidden, weight, bias, slices))

    @classmethod
    @torch.compiler.disable  # of a model that is compiled as a whole
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        named = args[0] if args else kwargs.get("input")
        if isinstance(named, Logits):
            given = args[1:] if args else ()
            out = named.without_values(func, given, {k: v for k, v in kwargs.items() if args or k != "input"})
            if out is not NotImplemented:
                return out
        if func in _GRADIENTS:
            of = args[1:2] if func is torch.autograd.grad else args[:1]
            _refuse_if_sliced(of or kwargs.get("inputs"))
        return func(*_read(args), **_read(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*_read(args), **_read(kwargs or {}))

    def __deepcopy__(self, memo):
        return copy.deepcopy(self.longshore_value(), memo)


def _read(tree):
    return tree_map(lambda a: a.longshore_value() if isinstance(a, Logits) else a, tree)


def _refuse_if_sliced(tree):
    """Raises LongshoreError if a gradient is asked for that no slice leaves."""

    def refuse(a):
        if isinstance(a, Logits) and a.source.in_slices:
            raise LongshoreError(f"fused_loss: the loss leaves no gradient of its logits; {_OFF}")

    tree_map(refuse, tree)


def _refuse_gradient(gradient):
    raise LongshoreError(
        f"fused_loss: a torch.autograd.Function of the script computes with logits, and its gradient is lost; {_OFF}"
    )


class Slices:
    """The loss of one batch of tokens, slice by slice."""

    def __init__(self, logits, target, ignore_index, mean):
        """logits: the head's own Logits, of whose hidden states the loss is. mean: the loss is the tokens' mean."""
        self.head, self.dtype, self.updates = logits.head, logits.dtype, logits.updates
        self.target, self.counted, self.mean = target, target != ignore_index, mean
        wrong = self.counted & ((target < 0) | (target >= logits.shape[-1]))
        if target.device.type == "cpu" and bool(wrong.any()):
            raise IndexError(f"Target {int(target[wrong][0])} is out of bounds.")

    @property
    def waits(self):
        """Whether gradients are computed in backward, with the loss's own: a scaler's factor is in that, without which
        those of single tokens are less than the least float16."""
        return self.dtype is torch.float16

    def compute(self, hidden, weight, bias, wanted, factor=1.0):
        """Returns the loss, and its gradients for hidden states, weight and bias, times a factor. wanted: whether each
        is."""
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            return self._compute(hidden, weight, bias, wanted, factor)

    def _compute(self, hidden, weight, bias, wanted, factor):
        matrix, shift = weight.to(self.dtype), None if bias is None else bias.to(self.dtype)
        count, exact = self.counted.sum() if self.mean else 1, {"dtype": torch.float32, "device": hidden.device}
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros(weight.shape, **exact) if wanted[1] else None
        of_bias = torch.zeros(bias.shape, **exact) if wanted[2] else None
        losses, rows = torch.empty(len(hidden), **exact), _rows(len(hidden))
        for first in range(0, len(hidden), rows):
            part = slice(first, first + rows)
            states, counted = hidden[part].to(self.dtype), self.counted[part, None]
            target = self.target[part, None].where(counted, 0)
            values = functional.linear(states, matrix, shift).float()
            values -= values.amax(-1, keepdim=True)
            chosen = values.gather(-1, target)
            sums = values.exp_().sum(-1, keepdim=True)
            losses[part] = (sums.log() - chosen).where(counted, 0.0).squeeze(-1)
            if not any(wanted):
                continue
            scale = (factor / count * torch.ones_like(sums)).where(counted, 0.0)
            gradient = values.mul_(scale / sums).scatter_add_(-1, target, -scale).to(self.dtype)
            del values
            if of_hidden is not None:
                of_hidden[part] = gradient @ matrix
            if of_weight is not None and self.dtype == torch.float32:
                of_weight.addmm_(gradient.t(), states)
            elif of_weight is not None:
                of_weight += gradient.t() @ states
            if of_bias is not None:
                of_bias += gradient.sum(0)
            del gradient  # before the next slice's logits, which are as large
        of_weight, of_bias = (None if g is None else g.to(weight.dtype) for g in (of_weight, of_bias))
        return losses.sum() / count, (of_hidden, of_weight, of_bias)


class _Loss(torch.autograd.Function):
    """The loss, whose gradients are computed with it, or in backward."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, slices):
        ctx.slices, ctx.wanted = slices, ctx.needs_input_grad[:3]
        at_once = slices.head.at_once() and any(ctx.wanted) and not slices.waits
        loss, gradients = slices.compute(hidden, weight, bias, ctx.wanted if at_once else (False,) * 3)
        ctx.gradients = gradients if at_once else None
        ctx.save_for_backward(hidden)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (gradients, ctx.gradients), slices = (ctx.gradients, None), ctx.slices
        if gradients is None:  # of micro-batches together, of those that wait, or with retain_graph=True
            (hidden,), factor = ctx.saved_tensors, gradient if slices.waits else 1.0
            if slices.head.updates() != slices.updates:
                raise LongshoreError(
                    "backward: the head has been updated since the forward pass; call step() after backward() of every "
                    "loss, or compute the loss again"
                )
            gradients = slices.head(lambda weight, bias: slices.compute(hidden, weight, bias, ctx.wanted, factor))[1]
        return *(g if g is None or slices.waits else g.mul_(gradient) for g in gradients), None
