"""Delays signals (Ctrl-C, a scheduler's SIGTERM) until a group of actions that belong together is complete."""

import _signal  # signal.signal() without its enums, which make it ten times slower
import contextlib
import threading

_STOP = _signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGXCPU
# signals whose handlers may raise or close the engine
_ALL = (*_STOP, _signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGALRM, _signal.SIGCHLD)
_main = threading.main_thread().ident
_depth = 0
_instead: dict = {}  # {signal: the handler that _later() replaces}
_came: dict = {}  # {signal that came meanwhile: the frame that it interrupted}


def _later(signum, frame):
    _came[signum] = frame


def _restore():
    """Puts the handlers back. One that is back may raise at once; the others are put back nevertheless."""
    try:
        for signum, handler in _instead.items():
            _signal.signal(signum, handler)
    except BaseException:
        _restore()
        raise


def _handle(came):
    """Calls the handlers of the delayed signals, also the rest after one that raises."""
    for signum, frame, handler in came:
        try:
            handler(signum, frame)
        finally:
            _handle(came)


class Whole(contextlib.ContextDecorator):
    """A context or decorator that delays signals: Python handles those that came inside when it ends."""

    def __enter__(self):
        global _depth, _instead, _came
        if threading.get_ident() != _main:
            return self  # only the main thread handles signals
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
    """Whether a delayed signal is one that stops the process."""
    return _depth > 0 and any(signum in _came for signum in _STOP)


whole = Whole()
