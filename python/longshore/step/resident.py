"""longshore.resident(): holds parameters in memory, to read or change them outside of forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ..errors import AbsentParameterError, LongshoreError
from ..model import hooks
from ..model.temporary_values import temporary
from ..model.write_tracking import CHANGE, bits
from ..torch_internals import version_of
from .parameter_state import amend, changed_in, write_back


def _handles(what):
    """Returns the parameters in a module, a tensor, or a nested list of these."""
    if isinstance(what, nn.Module):
        return [p for p in what.parameters()]
    if isinstance(what, torch.Tensor):
        return [what]
    out = []
    for item in what:
        out += _handles(item)
    return out


def _put_in_place(blocks):
    """Copies data that a script has assigned to parameters into their slots."""
    for p, handle in (pair for b in blocks for pair in b.parameters if b.present):
        if p.data_ptr() != handle.view.data_ptr():
            given, p.data = p.data, handle.view
            if given.shape != handle.view.shape:
                raise LongshoreError(
                    f"{handle.name}: is {list(handle.view.shape)}, and {list(given.shape)} was put in its place"
                )
            handle.view.copy_(given)


def _refuse_changes(streams, sums):
    for b, (updates, before) in sums.items():
        if b.present and b.updates == updates:
            if before != (now := _sums(b)):
                name = next(h.name for (_, h), was, is_now in zip(b.parameters, before, now) if was != is_now)
                streams.forget()
                raise AbsentParameterError(f"{name}: was changed, which would be lost; {CHANGE}")
            for p, handle in b.parameters:  # changed and put back
                handle.version = version_of(p)


def _sums(block):
    return [bits(handle.view) for _, handle in block.parameters]


@contextlib.contextmanager
def resident(parameters: nn.Module | torch.Tensor | Iterable, write: bool | str = False) -> Iterator[None]:
    """A context that holds parameters in memory, to read or change them. An exception in it drops the changes.

    Args:
        parameters: a module, a parameter, or several of these.
        write: False: a change raises AbsentParameterError. True: the end of the context commits changes in place;
            moments stay as they are. Right after step(), before the engine is used again, the changes become part of
            that step, which costs a write of them. Otherwise, and on an accelerator, they are a step of their own,
            which changes nothing else.
            "temporary": forward and backward passes in the context use the changed values, and their gradients count
            in the step. At the end of the context the old values are back, and nothing is committed. Call step() after
            the context.

    Raises: LongshoreError if blocks do not fit into memory together, or if a computation in the context needs the
    memory of one; with write=True, LongshoreError between backward() and step(), since it would drop gradients; with
    write="temporary", BudgetError if there is no memory for a copy of the parameters.
    """
    if write not in (False, True, "temporary"):
        raise ValueError(f'resident: write={write!r}; it must be False, True or "temporary"')
    by_streams: dict = {}
    for p in {id(p): p for p in _handles(parameters)}.values():
        handle = getattr(p, "longshore", None)
        if handle is not None:
            by_streams.setdefault(id(handle.streams), (handle.streams, []))[1].append(p)
    with contextlib.ExitStack() as all_of_them:
        for streams, some in by_streams.values():
            all_of_them.enter_context(
                temporary(streams, some) if write == "temporary" else _resident(streams, some, write)
            )
        yield


def _refuse_sharing(streams, blocks):
    if len({b.slot for b in blocks}) < len(blocks):
        streams.core().device_memory.make_room()
    slots: dict = {}
    for b in blocks:
        other = slots.setdefault(id(b.slot), b)
        if other is not b:
            raise LongshoreError(
                f"resident: {other.block.name} and {b.block.name} do not fit into memory together: give more memory, "
                "or use one after the other"
            )


@contextlib.contextmanager
def _resident(streams, parameters, write):
    """The context of resident() for parameters of one engine. write: True or False."""
    blocks = sorted({p.longshore.block for p in parameters}, key=lambda block: block.number)
    if write:
        streams.core().refuse_frozen("resident(write=True)")
        hooks.before_step(streams, "resident(write=True)")
    _refuse_sharing(streams, blocks)
    pinned, sums = [], {}
    try:
        for b in blocks:
            b.pins += 1
            b.resident_pins += 1
            pinned.append(b)
            streams.ensure(b)
            if not write:
                sums[b] = b.updates, _sums(b)
        yield
        if write:
            _put_in_place(blocks)
            if not amend(streams.core(), blocks):
                changed = changed_in(streams.core(), blocks)
                if changed:
                    write_back(streams.core(), changed)
        else:
            _refuse_changes(streams, sums)
    except BaseException:
        for b in pinned:
            if b.pins == 1:  # drops the changes
                with contextlib.suppress(AbsentParameterError):
                    streams.hide(b)
        raise
    finally:
        for b in pinned:
            b.pins -= 1
            b.resident_pins -= 1
        for b in pinned:
            if not b.pins:  # nothing else uses it
                streams.hide(b)
            elif b.resident_pins:  # an outer resident() holds it, beyond the step of the write
                streams.ensure(b)
