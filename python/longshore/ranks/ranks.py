"""What the ranks of a run say to each other. All that crosses between ranks goes through Ranks."""

from __future__ import annotations

import contextlib
import itertools
import math
import pickle
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .. import forks
from ..errors import LongshoreError, RankError
from .link import Link

_PARTING = 2.0  # seconds for telling the others that this rank ends or has failed
_HANDLERS = 2  # threads for each thing that is served


class _Ask:
    """Bytes that another rank was asked for."""

    def __init__(self, rank, what, out, done, left):
        self.rank, self.what, self.out, self.done, self.left = rank, what, out, done, left
        self.arriving = False  # whether gloo may be writing into `out`


class _Served:
    """Something that other ranks may ask for: requests (rank, number, numbers), and the threads that answer them."""

    def __init__(self, what, answer, early):
        self.requests: queue.SimpleQueue = queue.SimpleQueue()
        for request in early:
            self.requests.put(request)
        name = f"longshore serves {what}"
        self.threads = [
            threading.Thread(target=self._run, args=(answer,), name=name, daemon=True) for _ in range(_HANDLERS)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, answer):
        while (request := self.requests.get()) is not None:
            answer(*request)

    def end(self):
        for _ in self.threads:
            self.requests.put(None)
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join()


class Ranks:
    """The ranks of this process's run: itself and, if there are more, links to the others.

    A rank serves what the others ask for while its script computes or waits. If one rank fails, all do: a call that
    waits raises at once, and every later one raises the same RankError. A process that is forked off can use none."""

    def __init__(self, group: Any = None, rank: int = 0, size: int = 1, timeout: float = math.inf):
        """group: the ProcessGroupGloo of all ranks, if there are several. timeout: seconds that one rank waits for
        another."""
        self.rank, self.size, self.timeout = rank, size, timeout
        lock = threading.RLock()  # guards all below; a handler of a signal may come in again
        self._change, self._duty = threading.Condition(lock), threading.Condition(lock)  # of callers, of the watch
        self._error: RankError | None = None
        self._closed = False
        self._gone: set[int] = set()  # ranks that have ended, or have heard that this one does
        self._meets = self._comes = 0
        self._at: dict[int, tuple[float, float]] = {}  # {rank: (meets, check-ins since the last) that it has come to}
        self._came: dict[int, dict[int, tuple]] = {}  # {number of a meet: {rank: (what, pickled value)}}
        self._asks: dict[int, _Ask] = {}
        self._numbers = itertools.count()
        self._served: dict[str, _Served] = {}
        self._early: dict[str, list] = {}  # what others asked for before it is served
        others = [r for r in range(size) if r != rank]
        self._links = {r: Link(group, r, self._place, self._got, self._broken) for r in others}
        self._watch = threading.Thread(target=self._watches, name="longshore ranks", daemon=True)
        if others:
            forks.leave_in_children(self)
            for link in self._links.values():
                link.start()
            self._watch.start()

    # ---- calls of all ranks

    def meet(self, what: str, value: Any = None) -> list:
        """Waits until every rank has come here; returns every rank's value, in the order of ranks. Every rank makes
        the same calls in the same order.

        Args:
            what: What this rank is doing, in the words of a message: "engine.digest()".
            value: Anything that pickle knows.

        Raises:
            RankError: A rank is elsewhere, has not come within `timeout`, has failed or has ended.
        """
        if self.size == 1:
            return [value]
        pickled = pickle.dumps(value)
        with self.together(), self._change:
            self._check()
            number, self._meets, self._comes = self._meets, self._meets + 1, 0
            came = self._came.setdefault(number, {})
            told: set[int] = set()
            self._tell_all(("meet", number, what, pickled), told)
            # a rank has come once it is there and has heard this one, so that this process may end
            late = lambda r: r not in came or r not in told | self._gone  # noqa: E731
            self._wait(what, late, lambda: self._check_calls(what, came))
            del self._came[number]
        return [value if r == self.rank else pickle.loads(came[r][1]) for r in range(self.size)]

    def _check_calls(self, what, came):
        for r, (theirs, _) in came.items():
            if theirs != what:
                self._refuse(
                    f"rank {r} is at {theirs} and rank {self.rank} at {what}: every rank must make the same calls, "
                    "also where rank 0 alone needs the result"
                )

    def come(self, what: str) -> None:
        """Checks in at a forward pass, or at whatever else needs that the others serve: returns once every other rank
        has made as many check-ins since the last meet() as this one, or waits in the next. Raises like meet()."""
        if self.size == 1:
            return
        with self.together(), self._change:
            self._check()
            self._comes += 1
            here = self._meets, self._comes
            self._tell_all(("come", *here))
            self._wait(what, lambda r: self._at.get(r, (0, 0)) < here)

    def _wait(self, what, is_late, check=lambda: None):
        """Waits until no rank is late. check: looks at what has come. Holds self._change but while it waits."""
        left = self.timeout
        while check() or (late := [r for r in self._links if is_late(r)]):
            self._check()
            ended = [r for r in late if r in self._gone]
            if ended:
                self._refuse(f"rank {ended[0]} has ended, and rank {self.rank} is at {what}: every rank must call it")
            if left <= 0:
                self._refuse(
                    f"rank {late[0]} has not come to {what} within {self.timeout:g} s: every rank must call it, also "
                    "if rank 0 alone needs the result, as in an evaluation; rank_timeout= says how long ranks wait"
                )
            left -= _pause(self._change, left)

    def take_rank_0s(self, tensor: torch.Tensor) -> None:
        """Gives a tensor rank 0's values, in place. Every rank calls it, with the same shape and dtype."""
        what = "taking rank 0's values"
        here = tuple(tensor.shape), str(tensor.dtype)
        with self.together():
            for r, there in enumerate(self.meet(what, here)):
                if there != here:
                    raise RankError(f"{what}: rank {r} has {there} and rank {self.rank} {here}")
            if self.size == 1 or not tensor.numel():
                return
            values = tensor.detach().to("cpu").contiguous()
            if self.rank == 0:
                self.serve(what, lambda *_: values)
            else:
                came: queue.SimpleQueue = queue.SimpleQueue()
                self.ask(0, what, (), values, came.put)
                if (error := came.get()) is not None:
                    raise error
                with torch.no_grad():
                    tensor.copy_(values)
            self.meet(what)
            if self.rank == 0:
                self.serve(what, None)

    # ---- asking and serving

    def ask(self, rank: int, what: str, numbers: tuple, out: torch.Tensor | None, done: Callable) -> None:
        """Asks another rank for bytes. Returns at once; any thread may call it.

        Args:
            rank: Another rank.
            what: What that rank serves.
            numbers: Says which bytes.
            out: A contiguous tensor in host memory, of as many bytes as the other rank answers; None: none. Nobody
                else touches it until done().
            done: Called once, on any thread, as done(None), or as done(error) if the ranks have failed. It must not
                wait for another rank.
        """
        ask = _Ask(rank, what, None if out is None else _bytes_of(out), done, self.timeout)
        with self._change:
            if rank in self._gone:
                self._fail(RankError(f"rank {rank} has ended, and rank {self.rank} needs what it holds"))
            error = self._error_now()
            if error is None:
                number = next(self._numbers)
                self._asks[number] = ask
                self._links[rank].send(("ask", number, what, numbers))
                if len(self._asks) == 1:
                    self._duty.notify()  # its time counts from here
        if error is not None:
            done(error)

    def serve(self, what: str, handler: Callable | None) -> None:
        """Answers what other ranks ask for. None: no longer, which returns once no call of the handler runs.

        Args:
            what: The name that ask() gives. Each engine of a process has names of its own.
            handler: handler(asking rank, numbers) returns a contiguous tensor in host memory, or bytes. It may wait.
                Two threads call it, and each keeps what it returned until it is sent: nobody may change that
                meanwhile. An exception in it fails all ranks.
        """
        if self.size == 1:
            return
        with self._change:
            before = self._served.pop(what, None)
            if handler is not None:
                self._check()
                self._served[what] = _Served(what, self._answerer(handler), self._early.pop(what, []))
        if before is not None:
            before.end()

    def _answerer(self, handler):
        def answer(rank, number, numbers):
            try:
                given = handler(rank, numbers)
                if not isinstance(given, torch.Tensor):
                    given = torch.frombuffer(bytearray(given), dtype=torch.uint8) if given else None
                sent = threading.Event()
                self._links[rank].send(("answer", number), None if given is None else _bytes_of(given), sent.set)
                while not (sent.wait(1.0) or rank in self._gone or self._error_now()):
                    pass
            except Exception as error:
                self.fail(error)

        return answer

    # ---- what comes from others, on the threads of links

    def _place(self, rank, note, size):
        """Where the bytes of an answer go."""
        with self._change:
            ask = self._asks.get(note[1])
            if ask is None:  # this rank has failed meanwhile
                return torch.empty(size, dtype=torch.uint8, device="cpu")
            ask.arriving = True
        _check_size(ask, size)
        return ask.out

    def _got(self, rank, note):
        kind, *rest = note
        if kind == "answer":
            self._answered(*rest)
            return
        with self._change:
            if kind == "meet":
                number, *value = rest
                self._came.setdefault(number, {})[rank] = value
                self._at[rank] = number, math.inf
            elif kind == "come":
                self._at[rank] = tuple(rest)
            elif kind == "ask":
                number, what, numbers = rest
                served = self._served.get(what)
                put = self._early.setdefault(what, []).append if served is None else served.requests.put
                put((rank, number, numbers))
            elif kind == "end":
                self._others_end(rank, *rest)
            elif kind == "heard":
                self._gone.add(rank)
            self._change.notify_all()

    def _answered(self, number):
        with self._change:
            ask = self._asks.pop(number, None)
        if ask is not None:
            if not ask.arriving:
                _check_size(ask, 0)
            ask.done(None)

    def _others_end(self, rank, why):
        if why is not None:
            self._fail(RankError(why))
        self._gone.add(rank)
        self._links[rank].send(("heard",))
        if any(ask.rank == rank for ask in self._asks.values()):
            self._fail(RankError(f"rank {rank} has ended, and rank {self.rank} needs what it holds"))

    def _broken(self, rank, error):
        with self._change:
            if rank not in self._gone or not isinstance(error, ConnectionError):
                ended = isinstance(error, ConnectionError)
                self._fail(
                    RankError(f"rank {rank} has ended, or its connection is lost" if ended else self._failed_by(error))
                )
            self._gone.add(rank)
            self._change.notify_all()

    # ---- failing and ending

    @contextlib.contextmanager
    def together(self):
        """A context of what all ranks do: an exception on one of them, such as a Ctrl-C, ends all."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def _error_now(self):
        if self._error is None and self._closed:
            return RankError(f"rank {self.rank} has ended its part in the run")
        return self._error

    def _refuse(self, text):
        """Fails all ranks, and raises what they failed by, which may have come from another rank just before."""
        self._fail(RankError(text))
        self._check()

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to the others."""
        return sum(link.sent_bytes for link in self._links.values())

    @property
    def failed(self) -> bool:
        """Whether no rank can be reached any more: one has failed, or this one has ended."""
        return self._error_now() is not None

    def _check(self):
        error = self._error_now()
        if error is not None:
            raise RankError(str(error))

    def _failed_by(self, error):
        if isinstance(error, RankError):
            return str(error)
        name = "" if isinstance(error, LongshoreError) else f"{type(error).__name__}: "
        return f"rank {self.rank} failed: {name}{error}".removesuffix(": ")

    def fail(self, error: BaseException) -> None:
        """Tells the other ranks that this one cannot go on. Their calls raise, and so do later ones of this rank."""
        with self._change:
            self._fail(RankError(self._failed_by(error)))

    def _fail(self, error):
        if self.size > 1 and self._error is None and not self._closed:
            self._error = error
            self._tell_all(("end", str(error)))
            self._end()

    def close(self) -> None:
        """Ends this rank's part in good order. Others that wait for it raise. Does not wait for them longer than a
        moment."""
        with self._change:
            if self.size == 1 or self._closed:
                return
            if self._error is None:
                self._tell_all(("end", None))
            self._closed = True
            self._end()
        self._watch.join(3 * _PARTING)

    def leave_to_parent(self) -> None:
        """In a process that was forked off, which has none of the threads."""
        self._change = threading.Condition()
        self._closed, self._error = True, RankError(f"the ranks of a run: {forks.WHY}")

    def _tell_all(self, note, told=None):
        """told: a set, into which the ranks come that have received the note."""
        for r, link in self._links.items():
            link.send(note, sent=None if told is None else lambda r=r: self._add(told, r))

    def _add(self, told, rank):
        with self._change:
            told.add(rank)
            self._change.notify_all()

    def _end(self):
        self._change.notify_all()
        self._duty.notify()

    def _watches(self):
        """Ends what waits too long for a rank, and after a failure or close() everything. A thread of its own."""
        with self._change:
            while self._error_now() is None:
                waited = _pause(self._duty, math.inf) if self._asks else self._duty.wait() and 0.0
                for ask in self._asks.values():
                    ask.left -= waited
                late = next((ask for ask in self._asks.values() if ask.left <= 0), None)
                if late is not None:
                    self._fail(
                        RankError(
                            f"rank {late.rank} has not answered rank {self.rank} within {self.timeout:g} s: it may be "
                            "stopped or stuck; rank_timeout= says how long ranks wait"
                        )
                    )
        self._end_asks(lambda ask: not ask.arriving)
        self._part()
        self._end_asks(lambda ask: True)

    def _end_asks(self, which):
        with self._change:
            ending = [self._asks.pop(number) for number, ask in list(self._asks.items()) if which(ask)]
        for ask in ending:
            ask.done(self._error_now())

    def _part(self):
        """Ends the links, once the others have heard why. Waits only for a moment."""
        until = time.monotonic() + _PARTING
        with self._change:
            while not self._gone.issuperset(self._links) and (left := until - time.monotonic()) > 0:
                self._change.wait(left)
        for link in self._links.values():
            link.cut()
        for link in self._links.values():
            link.join(_PARTING)


def _pause(change, most):
    """Waits for a change, a second at most; returns how long, in seconds. The time that this process was stopped
    (Ctrl-Z, a machine that slept) does not count, since the others may have been, too."""
    began = time.monotonic()
    change.wait(min(most, 1.0))
    return min(time.monotonic() - began, 1.0)


def _bytes_of(tensor):
    return tensor.detach().view(-1).view(torch.uint8)


def _check_size(ask, size):
    needed = 0 if ask.out is None else ask.out.numel()
    if size != needed:
        raise LongshoreError(f"rank {ask.rank} gives {size} bytes of {ask.what}, and {needed} are needed")
