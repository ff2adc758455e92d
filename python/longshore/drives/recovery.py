"""Recovery from lost drives of other hosts: waits until they are back, and continues with the same bits.

The engine cancels requests under way, waits for the drives, and sends the last step again. It keeps that step's
gradients until the step is durable. Values that forward and backward have computed stay: they would be the same again.
"""

import logging

from .. import interrupts, native
from ..errors import LongshoreError
from ..interrupts import whole
from ..native import ffi, lib

_log = logging.getLogger("longshore")


def persist(engine, what):
    """Calls what() until no drive is lost meanwhile. Returns its result."""
    while True:
        refuse(engine)
        try:
            return what()
        except LongshoreError as lost:
            recover(engine, lost)


def refuse(engine):
    """Raises LongshoreError if drives were lost and did not come back."""
    if engine is not None and engine.gone is not None:
        raise LongshoreError(str(engine.gone), engine.gone.code)


@whole
def recover(engine, lost):
    """Waits until lost drives are back, and restores the state that they had.

    Raises `lost` itself if it is no lost drive, and LongshoreError if the drives do not come back, or if gradients are
    gone that the step needs."""
    if lost.code != lib.SHORE_ELINK or engine is None or engine.state is None:
        raise lost
    refuse(engine)
    with engine.streams.lock:
        spilled = False
        while lost is not None:
            engine.state.forget_commit()
            spilled |= engine.streams.after_drive_loss()
            lost = _recover_once(engine, lost)
        if spilled:
            engine.drop_gradients()
            raise LongshoreError(
                f"a drive was lost and is back, and step {engine.state.committed()} is whole, "
                "but the gradients that had been put aside on the drives are gone: make the step "
                "again, from its first backward on; more memory keeps them here"
            )


def _recover_once(engine, lost):
    """Waits for the drives, and sends the last step again. Returns the error if a drive is lost once more, or None."""
    try:
        _reconnect(engine, lost)
        committed = engine.state.committed()
        if not engine.state.step - 1 <= committed <= engine.state.step:
            raise LongshoreError(
                f"{lost}; it came back at step {committed} instead of {engine.state.step}", lib.SHORE_ESTALE
            )
    except LongshoreError as failure:
        engine.gone = failure
        raise
    try:
        if committed == engine.state.step - 1:
            _resend_last_step(engine, lost)
        else:
            engine.cycle.found_committed()
    except LongshoreError as again:
        if again.code != lib.SHORE_ELINK:
            raise
        return again
    return None


def _reconnect(engine, lost):
    """Tries to reconnect until the drives are back, or engine.reconnect_timeout is over."""
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
            raise LongshoreError(
                f"stopped while a drive was away ({native.text(why.text)}); the committed state is "
                f"good: when the drive is back, go on with: {native.text(go_on)}",
                lib.SHORE_ELINK,
            )
        code = lib.shore_run_reconnect(engine.state.run, why)
    native.check(code, why)
    native.check(lib.shore_patience_end(patience, engine.state.committed(), why, said), why)
    _log.warning("%s", native.text(said.text))


def _resend_last_step(engine, lost):
    """Sends the last step again. Raises LongshoreError if its gradients are not in memory any more."""
    if not engine.cycle.send_again():
        raise LongshoreError(
            f"{lost}; it is back, but step {engine.state.step + 1}, whose gradients are not "
            f"in memory any more, was not committed: the engine is at step {engine.state.step}",
            0,
        )


def say_closed(engine, failure, what):
    """Raises that the engine is closed, if a signal handler closed it meanwhile and that made `what` fail."""
    if isinstance(failure, Exception) and not isinstance(failure, LongshoreError):
        engine.cycle.open_state(what)
