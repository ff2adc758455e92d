"""Parameters in memory for a while, for whoever looks at them or changes them outside of forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from .errors import AbsentParameterError, LongshoreError
from .values import changed_in, write_back


def _handles(what):
    if isinstance(what, nn.Module):
        return [p for p in what.parameters()]
    if isinstance(what, torch.Tensor):
        return [what]
    out = []
    for item in what:
        out += _handles(item)
    return out


def _put_in_place(blocks):
    """What was given to parameters as other data."""
    for p, handle in (pair for b in blocks for pair in b.parameters if b.present):
        if p.data_ptr() != handle.view.data_ptr():
            given, p.data = p.data, handle.view
            if given.shape != handle.view.shape:
                raise LongshoreError(f"{handle.name}: is {list(handle.view.shape)}, and {list(given.shape)} was put in its place")
            handle.view.copy_(given)


def _sums(block):
    """Of the bits of its parameters, by which a change through .data is seen."""
    return [int(h.view.reshape(-1).view(torch.int32 if h.view.itemsize == 4 else torch.int16).sum(dtype=torch.int64)) for _, h in block.parameters]


def _refuse_changes(streams, sums):
    for b, (updates, before) in sums.items():
        if b.present and b.updates == updates and before != (now := _sums(b)):
            name = next(h.name for (_, h), was, is_now in zip(b.parameters, before, now) if was != is_now)
            streams.forget()
            raise AbsentParameterError(f"{name}: was changed, which would be lost; use `with longshore.resident(parameter, write=True):`")


@contextlib.contextmanager
def resident(parameters: nn.Module | torch.Tensor | Iterable, write: bool = False) -> Iterator[None]:
    """Brings parameters (one, a list, or those of a module) into memory while the context lasts.

    write=True: what is changed in place is written back at its end and committed, as a step of its own in which nothing
    else changes; moments stay as they are. Gradients of a step that has been begun are dropped. Without it a change raises
    AbsentParameterError. Blocks that do not fit into memory together are refused by name, and so is what needs the memory of one
    while the context lasts. After an exception in the context what it has changed is forgotten.
    """
    parameters = [p for p in _handles(parameters) if getattr(p, "longshore", None) is not None]
    blocks = {}
    for p in parameters:
        blocks[p.longshore.block.number] = p.longshore.block
    blocks = [blocks[n] for n in sorted(blocks)]
    if not blocks:
        yield
        return
    streams = parameters[0].longshore.streams
    slots = {}
    for b in blocks:
        other = slots.setdefault(id(b.slot), b)
        if other is not b:
            raise LongshoreError(
                f"resident: {other.block.name} and {b.block.name} do not fit into memory together: give more memory, or ask for one "
                "after the other")
    pinned, sums = [], {}
    try:
        for b in blocks:
            b.pins += 1
            b.kept += 1
            pinned.append(b)
            streams.ensure(b)
            if not write:
                sums[b] = b.updates, _sums(b)
        yield
        if write:
            _put_in_place(blocks)
            changed = changed_in(streams.engine(), blocks)
            if changed:
                write_back(streams.engine(), changed)
        else:
            _refuse_changes(streams, sums)
    except BaseException:
        for b in pinned:
            if b.pins == 1:  # forgets what was changed
                with contextlib.suppress(AbsentParameterError):
                    streams.hide(b)
        raise
    finally:
        for b in pinned:
            b.pins -= 1
            b.kept -= 1
        for b in pinned:
            if not b.pins:  # nobody else computes with it
                streams.hide(b)
            elif b.kept:  # by whoever is outside of this, beyond the step that it was
                streams.ensure(b)
