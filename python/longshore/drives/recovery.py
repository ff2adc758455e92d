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


def persist(core, what):
    """Calls what() until no drive is lost meanwhile. Returns its result."""
    while True:
        refuse(core)
        try:
            return what()
        except LongshoreError as lost:
            recover(core, lost)


def refuse(core):
    """Raises LongshoreError if drives were lost and did not come back."""
    if core is not None and core.gone is not None:
        raise LongshoreError(str(core.gone), core.gone.code)


@whole
def recover(core, lost):
    """Waits until lost drives are back, and restores the state that they had.

    Raises `lost` itself if it is no lost drive, and LongshoreError if the drives do not come back, or if gradients are
    gone that the step needs."""
    if lost.code != lib.SHORE_ELINK or core is None or core.state is None:
        raise lost
    refuse(core)
    with core.streams.lock, core.state.charges.during(lib.SHORE_CHARGE_LINK):
        spilled = False
        while lost is not None:
            core.state.forget_commit()
            spilled |= core.streams.after_drive_loss()
            lost = _recover_once(core, lost)
        if spilled:
            core.drop_gradients()
            raise LongshoreError(
                f"a drive was lost and is back, and step {core.state.committed()} is whole, "
                "but the gradients that had been put aside on the drives are gone: make the step "
                "again, from its first backward on; more memory keeps them here"
            )


def _recover_once(core, lost):
    """Waits for the drives, and sends the last step again. Returns the error if a drive is lost once more, or None."""
    try:
        _reconnect(core, lost)
        committed = core.state.committed()
        if not core.state.step - 1 <= committed <= core.state.step:
            raise LongshoreError(
                f"{lost}; it came back at step {committed} instead of {core.state.step}", lib.SHORE_ESTALE
            )
    except LongshoreError as failure:
        core.gone = failure
        raise
    try:
        if committed == core.state.step - 1:
            _resend_last_step(core, lost)
        else:
            core.cycle.found_committed()
    except LongshoreError as again:
        if again.code != lib.SHORE_ELINK:
            raise
        return again
    return None


def _reconnect(core, lost):
    """Tries to reconnect until the drives are back, or engine.reconnect_timeout is over."""
    go_on = ffi.new("char[]", f"longshore.resume({core.state.path!r})".encode())
    patience = core.patience
    patience.seconds, patience.go_on = core.reconnect_timeout, go_on
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
        code = lib.shore_run_reconnect(core.state.run, why)
    native.check(code, why)
    native.check(lib.shore_patience_end(patience, core.state.committed(), why, said), why)
    _log.warning("%s", native.text(said.text))


def _resend_last_step(core, lost):
    """Sends the last step again. Raises LongshoreError if its gradients are not in memory any more."""
    if not core.cycle.send_again():
        raise LongshoreError(
            f"{lost}; it is back, but step {core.state.step + 1}, whose gradients are not "
            f"in memory any more, was not committed: the engine is at step {core.state.step}",
            0,
        )


def say_closed(core, failure, what):
    """Raises that the engine is closed, if a signal handler closed it meanwhile and that made `what` fail."""
    if isinstance(failure, Exception) and not isinstance(failure, LongshoreError):
        core.cycle.open_state(what)
