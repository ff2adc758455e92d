"""Closes engines that the script drops, and the rest at exit, so that every last step is committed."""

import atexit
import gc
import io
import logging
import os
import sys
import weakref

from ..errors import BusyError
from ..model import random_numbers
from ..native import lib
from .engine_surface import core_of

_log = logging.getLogger("longshore")
_failed = False  # whether the last step of a dropped engine could not be committed
# {engine: what it closes}, which the garbage collector must not free before the engine
_engines: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_engines.clear)  # they are the parent's


def add(core):
    """Counts an engine as open. core: its Core."""
    _engines[core.engine] = core.state, core.streams.tier.parts(), core.gradients.step.c


def seed_of_run(but=None):
    """The seed of a new run: PyTorch's, unless an open engine other than `but` has it and would draw the same."""
    return random_numbers.seed_of_run({core.cycle.lineage[0] for core in training() if core.engine is not but})


def any_open():
    return bool(_engines)


def training():
    """The Core of each open engine that trains, oldest first."""
    return [core for core in map(core_of, list(_engines)) if core.trains]


def discard(engine):
    _engines.pop(engine, None)


def end(engine):
    """Closes an engine that the script dropped. If that fails, logs it and makes the process exit with an error."""
    state = core_of(engine).state
    try:
        engine.close()
    except Exception as failure:  # the other engines must be closed too
        global _failed
        _failed = True
        _log.error(
            f"{state.path}: an engine was not closed before it was dropped or the process ended, and has not committed "
            f"its last step: {failure}; the steps before it are safe, and longshore.resume({state.path!r}) continues "
            "from there"
        )


@atexit.register
def _end_all():
    for engine in list(_engines):
        end(engine)
    if _failed:
        sys.stderr = _Failing(sys.stderr or io.StringIO())


class _Failing:
    """Replaces stderr to make the interpreter exit with status 120.

    The interpreter flushes stderr after all exit handlers. If the flush raises, it exits with that status.
    """

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def flush(self):
        self.stream.flush()
        if sys.is_finalizing():
            raise OSError("a step was not committed")


def states():
    """Returns [(engine, the State of its run)] of the open engines."""
    return [(engine, state) for engine, (state, *_) in list(_engines.items())]


def _works_on(run):
    return any(os.path.realpath(state.path) == os.path.realpath(run) for _, state in states())


def refuse_second(run):
    """Raises BusyError if an engine of this process uses a run. First collects dropped engines, which closes them."""
    if _works_on(run):
        gc.collect()
    if _works_on(run):
        raise BusyError(
            f"{run}: an engine of this process works on this run; close() it first (until then it lives as "
            "long as its model, its optimizer or one of its losses)",
            lib.SHORE_EBUSY,
        )
