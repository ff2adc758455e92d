"""Engines whose runs are open. One that is dropped is closed by the collector, or when the process ends: its last step
is committed."""

import atexit
import gc
import io
import logging
import os
import sys
import weakref

from ..errors import BusyError
from ..native import lib

_log = logging.getLogger("longshore")
_failed = False  # the last step of one that nobody waited for
# and what each closes, which the collector must not end before it
_engines: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def add(engine):
    _engines[engine] = engine.state, engine.streams.pages, engine.gradients.step.c


def discard(engine):
    _engines.pop(engine, None)


def end(engine):
    """Closes one for which nobody waits. What fails is said, and the process exits with a status other than 0."""
    state = engine.state
    try:
        engine.close()
    except Exception as failure:  # the others' steps count, too
        global _failed
        _failed = True
        _log.error("%s: an engine that was not closed before it was dropped, or the process ended, has not committed "
                   "its last step: %s; what is committed is whole, and longshore.resume(%r) goes on from there",
                   state.path, failure, state.path)


@atexit.register
def _end_all():
    for engine in list(_engines):
        end(engine)
    if _failed:
        sys.stderr = _Failing(sys.stderr or io.StringIO())


class _Failing:
    """In the place of a stream. The interpreter flushes it when all that is to be called at exit has been, and exits
    with 120, as after other failures of its end."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def flush(self):
        self.stream.flush()
        if sys.is_finalizing():
            raise OSError("a step was not committed")


def _works_on(run):
    return any(os.path.realpath(engine.state.path) == os.path.realpath(run) for engine in list(_engines))


def refuse_second(run):
    """Raises BusyError where an engine of this process works on a run; one that was dropped is closed."""
    if _works_on(run):
        gc.collect()
    if _works_on(run):
        raise BusyError(f"{run}: an engine of this process works on this run; close() it first (one that was not "
                        "lives as long as its model, its optimizer, or a loss of them)", lib.SHORE_EBUSY)
