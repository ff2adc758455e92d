"""Leaves out layers that equal the one before them, so that a deep model is traced as quickly as a flat one."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

FROM = 16  # so many equal layers in a row
KEPT = 3  # the first two, since what comes before the first differs, and the last one
_NUMBERS = {"layer_idx", "layer_id", "layer_index", "layer_number", "idx", "index"}  # what tells equal layers apart
_PLAIN = (bool, int, float, str, tuple, type(None))


def equal_layers(model, layers):
    """{name of a list of layers: (number of the one that stands for those that are left out, how many these are)}"""
    taken, modules = {}, dict(model.named_modules())
    for name in dict.fromkeys(layer.rpartition(".")[0] for layer in layers):
        whole = modules.get(name)
        if type(whole) is not nn.ModuleList or len(whole) < FROM:
            continue
        first, end = _longest(list(whole))
        if end - first >= FROM and f"{name}.{first}" in layers:
            taken[name] = first + 1, end - first - KEPT
    return taken


def shorten(model, taken):
    """Takes the layers out of a copy of the model."""
    for name, (at, count) in taken.items():
        del model.get_submodule(name)[at + 1 : at + 1 + count]


def lengthen(trace, taken):
    """Puts the layers back into the Trace of the model that shorten() made."""
    units, saved = [], 0
    for unit in trace.units:
        parent, _, number = unit.name.rpartition(".")
        at, count = taken.get(parent, (None, 0))
        after = int(number) > at if at is not None else False
        units.append(_renamed(unit, parent, int(number) + count) if after else unit)
        if at is not None and int(number) == at:
            units += [_renamed(unit, parent, at + n) for n in range(1, count + 1)]
    for unit in units:
        unit.before_bytes, saved = saved, saved + unit.saved_bytes
    return replace(trace, units=units)


def _renamed(unit, parent, number):
    name = f"{parent}.{number}"
    inside = len(unit.name)
    names = [name + p[inside:] if p.startswith(f"{unit.name}.") else p for p in unit.parameters]
    return replace(unit, name=name, parameters=names)


def _longest(modules):
    """(first, last + 1) of the longest run of equal modules."""
    kinds, best, first = [_kind(m) for m in modules], (0, 0), 0
    for n in range(1, len(kinds) + 1):
        if n == len(kinds) or kinds[n] != kinds[first]:
            best, first = max(best, (first, n), key=lambda run: run[1] - run[0]), n
    return best


def _kind(module):
    """What equal modules have in common."""
    parts = []
    for name, m in module.named_modules():
        own = {k: v for k, v in vars(m).items() if isinstance(v, _PLAIN) and k not in _NUMBERS and k[0] != "_"}
        parts.append((name, type(m), sorted(own.items(), key=lambda pair: pair[0])))
    tensors = [(name, t.shape, t.dtype, t.requires_grad) for name, t in module.named_parameters()]
    return parts, tensors, [(name, t.shape, t.dtype) for name, t in module.named_buffers()]
