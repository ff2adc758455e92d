"""Side effects of a pass that cannot be undone: tensors changed in place, and globals and closures of the model's code.

Only code of no known package counts (trusted_code.py). If the model has any such state, the first micro-batch of the
first step goes through the whole model before the others begin. If it changes something, the others would see the
change too early: from then on the micro-batches run one after the other.
"""

import dis
import functools
import types

import torch
from torch import nn

from ..model.write_tracking import LOOK_BYTES, bits
from ..torch_internals import DisableTorchFunctionSubclass, version_of
from .module_changes import _CONTAINERS, _EQUAL, _differ, _flat
from .trusted_code import _HOOKS, is_known, is_of_packages

_CODE = types.FunctionType, types.MethodType, staticmethod, classmethod
_OF_MODULE = {*vars(nn.Module())} - {"_buffers"}
_MOST, _DEEP = 64, 2  # limits of the search: entries of a container, and levels of nested containers


class Watch:
    """Watches the tensors, globals and closures that a pass of a model may change."""

    def __init__(self, model, layers):
        """layers: the modules at whose gates micro-batches take turns."""
        # (name, container): outside of layers or in several; of one layer; (name, function that reads it): of the code
        self.rest, self.own, self.outside = [], {layer: [] for layer in layers}, {}
        inside, code = {}, {}
        for layer in layers:
            for m in layer.modules():
                inside.setdefault(m, []).append(layer)
        for name, m in model.named_modules():
            layers_of = inside.get(m, ())
            if len(layers_of) == 1:
                self._add(self.own[layers_of[0]], name, m)
            elif layers_of or not is_of_packages(type(m).__module__):
                self._add(self.rest, name or type(model).__name__, m)
            hooks = [hook for kind in _HOOKS for hook in getattr(m, kind).values()]
            kinds = [f for kind in type(m).__mro__ if not is_of_packages(kind.__module__) for f in vars(kind).values()]
            code.update(
                (id(f), f) for f in (*hooks, *kinds, *vars(m).values()) if isinstance(f, _CODE) and not is_known(f)
            )
        for f in code.values():
            self._add_code(f)
        self.probing = False
        self.note()

    def _add(self, places, name, module):
        places.append((name, vars(module)))
        for key, value in vars(module).items():
            if type(value) in _CONTAINERS and key not in _OF_MODULE:
                places.append((name if key == "_buffers" else f"{name}.{key}", value))

    def _add_code(self, f):
        """Watches the globals and closures that a function uses."""
        f = getattr(f, "__func__", f)
        if not isinstance(f, types.FunctionType):
            return
        codes = [f.__code__]
        for code in codes:
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in {i.argval for code in codes for i in dis.get_instructions(code) if i.opname.endswith("_GLOBAL")}:
            if name in f.__globals__ and _is_state(f.__globals__[name]):
                read = functools.partial(f.__globals__.get, name)
                self.outside[id(f.__globals__), name] = f"{f.__module__}.{name}", read
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            if _is_state(_content(cell)):
                self.outside[id(cell)] = f"{f.__qualname__}: {name}", functools.partial(_content, cell)

    def has_any(self):
        """Whether there is anything to watch."""
        return bool(self.outside) or any(self._tensors(places) for places in (self.rest, *self.own.values()))

    def _tensors(self, places):
        """Returns [(name, container, key, tensor, its mark now)]."""
        out = []
        with DisableTorchFunctionSubclass():
            for where, container in places:
                by_name = hasattr(container, "keys")
                for key, t in [*(container.items() if by_name else enumerate(container))]:
                    plain = isinstance(t, torch.Tensor) and not isinstance(t, nn.Parameter)
                    if plain and not t.is_inference() and t.grad_fn is None:
                        out.append((f"{where}.{key}" if by_name else where, container, key, t, self._mark(t)))
        return out

    def _mark(self, t):
        return version_of(t), bits(t) if self.probing and _has_bits(t) else None

    def note(self, layer=None):
        """Notes the present state as the one to compare with. layer: only what belongs to this layer alone."""
        if layer is not None:
            self._seen[layer] = self._tensors(self.own[layer])
            return
        self._seen = {layer: self._tensors(places) for layer, places in (*self.own.items(), (None, self.rest))}
        self._outside = {key: _snapshot(now(), _DEEP) for key, (_, now) in self.outside.items()}

    def end_probe(self):
        """From here on only versions are compared."""
        self.probing = False

    def begin(self, probing):
        """Begins a step. probing: compares bits too, since a write through `.data` counts no version."""
        self.probing = probing
        self.note()

    def changed(self, layer=None):
        """Returns the name of the first change since note(), or None. layer: looks only at what belongs to it alone."""
        with DisableTorchFunctionSubclass():
            for of in self._seen if layer is None else (layer,):
                for name, container, key, t, was in self._seen[of]:
                    if self._mark(t) != was and (not isinstance(key, str) or container.get(key) is t):
                        return name
        for key, (where, now) in self.outside.items() if layer is None else ():
            if _differ(_snapshot(now(), _DEEP), self._outside[key]):
                return where
        return None


def _has_bits(t):
    return t.nbytes <= LOOK_BYTES and t.layout == torch.strided and t.device.type == "cpu" and type(t) is torch.Tensor


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_state(value):
    return value is None or type(value) in _CONTAINERS or type(value) in _EQUAL or isinstance(value, torch.Tensor)


def _snapshot(value, deep):
    """Copies what a value holds into a tuple that can be compared later."""
    if isinstance(value, torch.Tensor):
        with DisableTorchFunctionSubclass():
            return value, None if value.is_inference() else version_of(value)
    if deep and type(value) in _CONTAINERS and len(value) <= _MOST:
        keys = tuple(value) if hasattr(value, "keys") else ()
        return value, keys, *(_snapshot(v, deep - 1) for v in _flat(value))
    return value
