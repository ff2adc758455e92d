"""Shows the progress of long work: a bar in a terminal or notebook, elsewhere records of the logger `longshore`.

It shows nothing for the first two seconds. After that, a record comes at least every ten seconds, even while the work
waits. Of several ranks, rank 0 says what all would say; the others say only what is their own.
"""

import logging
import sys
import threading
import time
import warnings

from . import native

SILENT_SECONDS, RECORD_SECONDS, BAR_SECONDS = 2, 10, 0.2
OWN = {"own": True}  # of a record that is about this rank alone
clock = time.monotonic
rank = 0  # of this process, among those that train together
_log = logging.getLogger("longshore")


def _bar_class():
    """tqdm's class for this terminal or notebook; None without one, without tqdm, or while another bar is shown."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if type(shell).__name__ != "ZMQInteractiveShell" and not (sys.stderr is not None and sys.stderr.isatty()):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return None if getattr(tqdm, "_instances", None) else tqdm


def _of_this_rank(record):
    """The logger's filter: drops what rank 0 says for all, and names the rank in the rest."""
    own = hasattr(record, "own")
    if rank and own:
        record.msg = f"rank {rank}: {record.msg}"
    return own or not rank


def warn(text, stacklevel):
    """Warns of what holds for all ranks alike."""
    if not rank:
        warnings.warn(text, stacklevel=stacklevel + 1)


def _end_line(record=None):
    """Where a bar of tqdm is shown, what is written to stderr next begins a line. As a filter of the logger, it does
    that for each record."""
    bars = list(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ()))
    if bars and sys.stderr is not None:
        if sys.stderr.isatty():
            for bar in bars:
                bar.clear()  # its next update draws it again, below
        else:
            sys.stderr.write("\n")
    return True


_log.addFilter(_of_this_rank)
_log.addFilter(_end_line)


def write(text):
    """Writes one line to stderr."""
    if not rank:
        _end_line()
        print(text, file=sys.stderr)


def say(text):
    """Shows one line where bars would appear, or logs it."""
    if _bar_class() is None:
        _log.info("%s", text)
    else:
        write(f"longshore: {text}")


class Progress:
    """A context around long work that shows its progress. add() reports how much is done.

    what: the work's name, such as "saving out".
    total: all there is to do, in bytes or in `unit`; None if unknown.
    head: a line that appears before the first progress.
    stays: whether the bar remains when it is full.
    ticks: whether a thread watches the clock, for work that waits without calling add().
    """

    def __init__(self, what, total=None, unit="B", head=None, stays=True, ticks=True):
        self.what, self.total, self.unit, self.head, self.stays, self.ticks = what, total, unit, head, stays, ticks
        self.done, self.bar = 0, None
        self.lock, self.ended = threading.Lock(), threading.Event()

    def __enter__(self):
        self.begun = clock()
        self.due = self.begun + SILENT_SECONDS
        self.thread = (
            threading.Thread(target=self._tick, name="longshore-progress", daemon=True) if self.ticks else None
        )
        if self.thread is not None:
            self.thread.start()
        return self

    def __exit__(self, kind, *error):
        self.ended.set()
        if self.thread is not None:
            self.thread.join()
        if self.bar is not None:
            self._move()
            self.bar.close()
        elif self.due > self.begun + SILENT_SECONDS and kind is None:
            _log.info("%s: done, %s in %.0f s", self.what, self._amount(self.done), clock() - self.begun)

    def add(self, amount=1):
        """Reports that this much more is done."""
        self.done += amount
        self.look()

    def look(self):
        """Shows the progress if the next update is due."""
        if not rank and clock() >= self.due:
            with self.lock:
                if clock() >= self.due:
                    self._show()

    def _tick(self):
        while not self.ended.wait(BAR_SECONDS):
            self.look()

    def _show(self):
        shown = self.due > self.begun + SILENT_SECONDS
        bar = None if shown and self.bar is None else _bar_class() if self.bar is None else None
        if not shown and self.head:
            say(self.head)
        if bar is not None:
            how = {"desc": f"longshore: {self.what}", "total": self.total, "leave": self.stays, "file": sys.stderr}
            unit = {"unit": f" {self.unit}"}
            if self.unit == "B":
                unit = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
            self.bar = bar(**how, **unit, dynamic_ncols=True)
            self.bar.start_t -= clock() - self.begun  # tqdm measures from the work's begin
        if self.bar is not None:
            self._move()
        else:
            _log.info("%s", self.line())
        self.due = clock() + (RECORD_SECONDS if self.bar is None else BAR_SECONDS)

    def _move(self):
        self.bar.n = min(self.done, self.total) if self.total else self.done
        self.bar.refresh()

    def line(self):
        """The progress as text."""
        seconds = max(clock() - self.begun, 1e-9)
        if not self.done:
            return f"{self.what}: {seconds:.0f} s"
        done, rate = self._amount(self.done), self._amount(self.done / seconds)
        if not self.total:
            return f"{self.what}: {done}, {rate}/s"
        left = max(self.total - self.done, 0) * seconds / self.done
        return (
            f"{self.what}: {done} of {self._amount(self.total)} ({min(self.done / self.total, 1):.0%}), {rate}/s, "
            f"{left:.0f} s to go"
        )

    def _amount(self, n):
        return native.readable(int(n)) if self.unit == "B" else f"{n:.4g} {self.unit}"


class Step:
    """The progress of a training step: how many of its passes through layers have begun."""

    def __init__(self):
        self.progress, self.seconds = None, 0  # of the present step; duration of the step before
        self.compiling = 0

    def compiles(self, layers):
        """The next step compiles so many layers."""
        self.compiling = layers

    def begin(self, number, layers, *passes):
        """Begins with the first forward pass of a step.

        passes: numbers of forward passes that the step will have, as far as they are known. Each is followed by
        a backward pass.
        """
        if self.progress is None and layers:
            total = 2 * layers * max(n for n in passes if isinstance(n, int))
            what = f"step {number}" + (f", compiling {self.compiling} layers" if self.compiling else "")
            self.progress = Progress(
                what, total, "layers", stays=False, ticks=bool(self.compiling) or self.seconds > SILENT_SECONDS
            ).__enter__()

    def add(self):
        """Counts one layer that begins to compute."""
        if self.progress is not None:
            self.progress.add()

    def end(self):
        """Ends the step, whether it was made or dropped."""
        if self.progress is not None:
            progress, self.progress, self.compiling = self.progress, None, 0
            self.seconds = clock() - progress.begun
            progress.__exit__(None)


def of_work(progress):
    """(struct shore_work that reports to a Progress, a list for exceptions, the callback to keep alive).

    The library calls back on the caller's thread. If a signal handler raises there, the exception goes into the list,
    and the caller raises it after the library returns.
    """
    raised = []

    def report(ctx, done, total):
        try:
            progress.total, progress.done = total, done
            progress.look()
        except BaseException as interrupt:  # signal handlers run here too
            raised.append(interrupt)
            return 1
        return 0

    callback = native.ffi.callback("int(void *, uint64_t, uint64_t)", report)
    return native.new("struct shore_work", progress=callback), raised, callback
