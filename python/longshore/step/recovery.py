"""Drives of other hosts that are lost and come back: the engine goes on with the same bits, as the program does.

What was under way is given up, the drives are waited for, and the step that was made last is made again from the
gradients that are kept until it is durable. What forward and backward have computed so far stays: it is what would be
computed again.
"""

import logging

from .. import interrupts, native
from ..errors import LongshoreError
from ..interrupts import whole
from ..native import ffi, lib

_log = logging.getLogger("longshore")


def persist(engine, what):
    """what(), again after each loss of a drive."""
    while True:
        refuse(engine)
        try:
            return what()
        except LongshoreError as lost:
            mend(engine, lost)


def refuse(engine):
    """Where drives did not come back, nothing that needs them is done any more."""
    if engine is not None and engine.gone is not None:
        raise LongshoreError(str(engine.gone), engine.gone.code)


@whole
def mend(engine, lost):
    """Returns when the drives are there again that were lost, with all as it was. Raises `lost`, where it is something
    else; and a sentence where the drives do not come back, or where what is to be made again is not known any more."""
    if lost.code != lib.SHORE_ELINK or engine is None or engine.state is None:
        raise lost
    refuse(engine)
    with engine.streams.lock:
        aside = False
        while lost is not None:
            engine.state.forget_commit()
            aside |= engine.streams.lost()  # whether gradients were on the drives
            lost = _back(engine, lost)
        if aside:
            engine.drop_gradients()
            raise LongshoreError(f"a drive was lost and is there again, and step {engine.state.committed()} is whole, "
                                 "but the gradients that had been put aside on the drives are gone: make the step "
                                 "again, from its first backward on; more memory keeps them here")


def _back(engine, lost):
    """Waits for the drives, and makes the last step again. Returns what they were lost with once more; None."""
    try:
        _reconnect(engine, lost)
        committed = engine.state.committed()
        if not engine.state.step - 1 <= committed <= engine.state.step:
            raise LongshoreError(f"{lost}; it came back at step {committed} instead of {engine.state.step}",
                                 lib.SHORE_ESTALE)
    except LongshoreError as failure:
        engine.gone = failure
        raise
    try:
        if committed == engine.state.step - 1:
            _make_again(engine, lost)
        else:
            engine.cycle.found_committed()
    except LongshoreError as again:
        if again.code != lib.SHORE_ELINK:
            raise
        return again
    return None


def _reconnect(engine, lost):
    go_on = ffi.new("char[]", f"longshore.resume({engine.state.path!r})".encode())
    patience = engine.patience
    patience.seconds, patience.go_on = engine.reconnect_timeout, go_on
    why, said = ffi.new("struct shore_diag *"), ffi.new("struct shore_diag *")
    why.text = str(lost).encode()[:1000]
    lib.shore_patience_begin(patience, why, said)
    _log.warning("%s", native.text(said.text))
    code = lib.SHORE_ELINK
    while (code := lib.shore_patience_try(patience, code, why)) > 0:
        if interrupts.waits():
            raise LongshoreError(f"stopped while a drive was away ({native.text(why.text)}); the committed state is "
                                 f"good: when the drive is back, go on with: {native.text(go_on)}", lib.SHORE_ELINK)
        code = lib.shore_run_reconnect(engine.state.run, why)
    native.check(code, why)
    native.check(lib.shore_patience_end(patience, engine.state.committed(), why, said), why)
    _log.warning("%s", native.text(said.text))


def _make_again(engine, lost):
    """The step that was made last."""
    if not engine.cycle.send_again():
        raise LongshoreError(f"{lost}; it is there again, but step {engine.state.step + 1}, whose gradients are not "
                             f"in memory any more, was not committed: the engine is at step {engine.state.step}", 0)


def say_closed(engine, failure, what):
    """Of what failed because a handler of a signal, say, has closed the engine meanwhile."""
    if isinstance(failure, Exception) and not isinstance(failure, LongshoreError):
        engine.cycle.open_state(what)
