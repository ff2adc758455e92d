"""Interrupts (Ctrl-C) come before or after what belongs together, never in its middle."""

import contextlib
import _signal  # signal.signal() without enumerations, which take ten times as long
import threading

_main = threading.main_thread().ident
_depth = 0
_instead = None  # the handler in whose place _later() is
_came = None


def _later(signum, frame):
    global _came
    _came = signum, frame


class Whole(contextlib.ContextDecorator):
    """A context, or a function, at whose end an interrupt is raised that came within."""

    def __enter__(self):
        global _depth, _instead, _came
        if threading.get_ident() != _main:
            return self  # signals are the main thread's
        if not _depth:
            _instead, _came = _signal.getsignal(_signal.SIGINT), None
            if callable(_instead):
                _signal.signal(_signal.SIGINT, _later)
        _depth += 1
        return self

    def __exit__(self, *error):
        global _depth
        if threading.get_ident() != _main:
            return
        _depth -= 1
        if not _depth and callable(_instead):
            _signal.signal(_signal.SIGINT, _instead)
            if _came is not None:
                _instead(*_came)


def waits():
    """Whether one has come that will be raised when the whole is over."""
    return _depth > 0 and _came is not None


whole = Whole()
