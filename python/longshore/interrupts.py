"""Signals (Ctrl-C, a scheduler's SIGTERM) are handled before or after what belongs together, never in its middle."""

import _signal  # signal.signal() without enumerations, which take ten times as long
import contextlib
import threading

_STOP = _signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGXCPU
# whose handlers raise, or close the engine
_ALL = (*_STOP, _signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGALRM, _signal.SIGCHLD)
_main = threading.main_thread().ident
_depth = 0
_instead: dict = {}  # of each signal: the handler in whose place _later() is
_came: dict = {}  # signals: where


def _later(signum, frame):
    _came[signum] = frame


def _restore():
    """Handlers that are back may raise at once."""
    try:
        for signum, handler in _instead.items():
            _signal.signal(signum, handler)
    except BaseException:
        _restore()
        raise


def _handle(came):
    for signum, frame, handler in came:
        try:
            handler(signum, frame)
        finally:
            _handle(came)


class Whole(contextlib.ContextDecorator):
    """A context, or a function, at whose end those signals are handled that came within, where Python handles them."""

    def __enter__(self):
        global _depth, _instead, _came
        if threading.get_ident() != _main:
            return self  # signals are the main thread's
        if not _depth:
            _instead, _came = {s: handler for s in _ALL if callable(handler := _signal.getsignal(s))}, {}
            try:
                for signum in _instead:
                    _signal.signal(signum, _later)
            except BaseException:
                _restore()
                raise
        _depth += 1
        return self

    def __exit__(self, *error):
        global _depth
        if threading.get_ident() != _main:
            return
        if _depth == 1:
            try:
                _restore()
            finally:
                _depth = 0
                _handle(iter([(signum, frame, _instead[signum]) for signum, frame in _came.items()]))
        else:
            _depth -= 1


def waits():
    """Whether one that is to stop the process has come, which is handled when the whole is over."""
    return _depth > 0 and any(signum in _came for signum in _STOP)


whole = Whole()
