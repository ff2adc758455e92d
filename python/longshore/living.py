"""Engines whose runs are open, also those that were dropped without close(): the last step of a script that ends is committed."""

import atexit
import os

from .errors import BusyError
from .native import lib

engines = set()


@atexit.register
def _close_all():
    failure = None
    for engine in list(engines):
        try:
            engine.close()
        except Exception as e:  # the others' steps count, too
            failure = failure or e
    if failure is not None:
        raise failure


def refuse_second(run):
    """Raises BusyError where an engine of this process works on a run."""
    if any(engine.state.path == os.path.abspath(run) for engine in engines):
        raise BusyError(f"{run}: an engine of this process works on this run; close() it first", lib.SHORE_EBUSY)
