"""Whether every byte of a run's state is what was written."""

from __future__ import annotations

import contextlib
import os

from ..errors import LongshoreError
from ..step.engine import Engine
from . import lifecycle
from .state import State


def verify(run: str | os.PathLike | Engine, snapshot: str | None = None) -> str:
    """Reads all of a run's committed state on all its drives (or of a snapshot), compares it with its checksums, and
    returns its digest, as ``longshore inspect RUN --digest`` prints it.

    run: a directory that nobody trains at the moment, or an Engine. Raises LongshoreError that names the drive and what
    is damaged, MissingError where there is no such run.
    """
    if isinstance(run, Engine):
        if snapshot is not None:
            run = run.state.path
        else:
            run.settle()
            if run.state is None:
                raise LongshoreError("verify: the engine is closed; give its run's directory")
            return run.state.digest(deep=True)
    if snapshot is None:
        lifecycle.refuse_second(run)
    with contextlib.closing(State.open(run, read_only=True, snapshot=snapshot)) as state:
        return state.digest(deep=True)
