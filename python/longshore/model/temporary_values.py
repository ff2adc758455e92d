"""Temporary values of parameters (perturbed ones, averages), for resident(write="temporary").

They have memory of their own, so that slots, drives and updates do not change. At the end of the context the parameters
have the run's values again."""

import contextlib

from .. import native
from ..errors import BudgetError
from ..interrupts import whole
from ..native import lib
from ..torch_internals import DisableTorchFunctionSubclass, version_of
from .absent import Absent


@contextlib.contextmanager
def temporary(streams, parameters):
    """The context of resident(write="temporary") for parameters of one engine."""
    streams.open_state(parameters[0].longshore.name)
    before = []
    with _room(streams.core(), sum(p.nbytes for p in parameters)):
        try:
            for p in parameters:
                with whole:
                    before.append(_take_out(p))
            yield
        finally:
            with whole:
                for p, data, pending in reversed(before):
                    _put_in(p, data, pending)


@contextlib.contextmanager
def _room(core, nbytes):
    """A context that reserves memory for copies: memory that the plan leaves free, or that held optimizer state gives
    back. Raises BudgetError if there is too little."""
    plan, streams, budget = core.plan, core.streams, core.plan.budget_bytes
    free = min(plan.free_bytes, budget - plan.total_bytes - streams.copies_bytes)
    free = max(free - core.gradients.shown.most_bytes, 0)
    if nbytes > free:
        raise BudgetError(
            f'resident(write="temporary"): a copy of these parameters needs {native.readable(nbytes)}, and of '
            f"memory={native.readable(budget)}, {native.readable(free)} is left: give "
            f"{native.readable(budget - free + nbytes + (1 << 20))}, or fewer parameters",
            lib.SHORE_EBUDGET,
        )
    streams.copies_bytes += nbytes
    of_state = plan.take(nbytes)
    try:
        core.gradients.shrink_state()
        yield
    finally:
        streams.copies_bytes -= nbytes
        plan.give_back(nbytes, of_state)


def _take_out(p):
    """Gives a parameter a copy of its value. Returns what _put_in() takes."""
    handle = p.longshore
    with DisableTorchFunctionSubclass():
        data = p.data if handle.temporary else handle.view
        # whether a surrounding resident(write=True) has changes to commit
        pending = handle.block.present and version_of(p) != handle.version
        p.data = data.clone() if handle.temporary else handle.copy()
        p.__class__ = handle.kind
    if not handle.temporary:
        handle.users -= 1  # the parameter itself
    handle.temporary += 1
    return p, data, pending


def _put_in(p, data, pending):
    """Gives a parameter its own data again: the inverse of _take_out()."""
    handle = p.longshore
    handle.temporary -= 1
    with DisableTorchFunctionSubclass():
        # a new view, if a script has kept one of the old view
        p.data = data if handle.temporary else handle.view
    if not handle.temporary:
        handle.users += 1
        p.__class__ = handle.kind if handle.block.present else Absent
        if not pending:
            handle.version = version_of(p)
