"""Engines whose runs are open. One that is dropped is closed by the collector, or when the process ends: its last step is committed."""

import atexit
import gc
import os
import weakref

from .errors import BusyError
from .native import lib

_engines = weakref.WeakKeyDictionary()  # and what each closes, which the collector must not end before it


def add(engine):
    _engines[engine] = engine.state, engine.streams.pages


def discard(engine):
    _engines.pop(engine, None)


@atexit.register
def _close_all():
    failure = None
    for engine in list(_engines):
        try:
            engine.close()
        except Exception as e:  # the others' steps count, too
            failure = failure or e
    if failure is not None:
        raise failure


def _works_on(run):
    return any(os.path.realpath(engine.state.path) == os.path.realpath(run) for engine in list(_engines))


def refuse_second(run):
    """Raises BusyError where an engine of this process works on a run; one that was dropped is closed."""
    if _works_on(run):
        gc.collect()
    if _works_on(run):
        raise BusyError(f"{run}: an engine of this process works on this run; close() it first (one that was not lives as long as its "
                        "model, its optimizer, or a loss of them)", lib.SHORE_EBUSY)
