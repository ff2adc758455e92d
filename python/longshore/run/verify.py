"""longshore.verify(): checks every byte of a run's state against its checksums."""

from __future__ import annotations

import contextlib
import os

from ..drives.state import State
from ..errors import LongshoreError
from . import open_engines
from .engine import Engine
from .engine_surface import core_of


def verify(run: str | os.PathLike | Engine, snapshot: str | None = None) -> str:
    """Reads a run's whole committed state on all drives, and compares it with its checksums.

    Args:
        run: Directory of a run that nobody trains at the moment, or an Engine.
        snapshot: Name of a snapshot to read instead of the committed state.

    Returns:
        The digest that ``longshore inspect RUN --digest`` prints.

    Raises:
        LongshoreError: State is damaged; the message names the drive and what is damaged.
        MissingError: There is no such run.
        BusyError: An engine of this process uses the run.
    """
    if isinstance(run, Engine):
        state = core_of(run).state
        if state is None:
            raise LongshoreError("verify: the engine is closed; give its run's directory")
        if snapshot is None:
            run.settle()
            return state.digest(deep=True)
        run = state.path
    if snapshot is None:
        open_engines.refuse_second(run)
    with contextlib.closing(State.open(run, read_only=True, snapshot=snapshot)) as state:
        return state.digest(deep=True)
