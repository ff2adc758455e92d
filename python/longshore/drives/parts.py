"""A run that several ranks work on: each opens volumes of its own, and asks the others' ranks for what lies there."""

import contextlib
import errno
import json
import os
import secrets
import socket
import threading

import torch

from .. import native
from ..errors import LongshoreError
from ..native import ffi, lib
from . import rank_drives
from .charges import Charges

ASKED = 16 << 20  # the most bytes of one request: a rank that answers takes so much memory for it


def new_volumes(ranks, drives, run):
    """(paths of a new run's volumes, the rank that opens each). drives: as this rank names them."""
    own = rank_drives.offered(rank_drives.filled(drives, ranks.rank), run), secrets.token_hex(4)
    offers, endings = zip(*ranks.meet(f"making {run}", own))
    return rank_drives.volumes_of(offers, run, endings[0])


def owners(ranks, volumes, run):
    """The rank that opens each volume of a run that is there."""
    with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
        fleet = json.load(file)["fleet"]
    seen = ranks.meet(f"opening {run}", (rank_drives.seen(volumes, fleet), socket.gethostname()))
    return rank_drives.owners_of(volumes, *zip(*seen))


@contextlib.contextmanager
def rank_0_first(ranks, what):
    """A context that rank 0 leaves before the others enter it."""
    if ranks.rank:
        ranks.meet(what)
    yield
    if not ranks.rank:
        ranks.meet(what)


def by_rank_0(ranks, what, work):
    """Rank 0 calls work(), and returns what it returns. The others wait here, and hear from it that it goes on."""
    if ranks.size == 1:
        return work()
    ranks.meet(what)
    out = None
    if ranks.rank == 0:
        ended = threading.Event()

        def say():
            with contextlib.suppress(LongshoreError):  # work() gets it, too
                while not ended.wait(min(60, ranks.timeout / 4)):
                    ranks.meet(what, False)

        saying = threading.Thread(target=say, daemon=True)
        saying.start()
        try:
            with ranks.together():
                out = work()
        finally:
            ended.set()
            saying.join()
    while not ranks.meet(what, True)[0]:
        pass
    return out


class Part:
    """This rank's part of an open run."""

    def __init__(self, ranks, owner):
        """owner: the rank that opens each volume of the run."""
        self.ranks, self.owner, self.state, self.name = ranks, owner, None, ""
        self.asked, self.answering, self.moved = 0, 0, threading.Condition()
        self.alone = False  # whether rank 0 works, and the others wait
        self._handle = ffi.new_handle(self)
        self._mine = ffi.new("bool[]", [rank == ranks.rank for rank in self.owner])

    @property
    def keeps(self):
        """Whether this rank keeps the run's directory: rank 0."""
        return self.ranks.rank == 0

    def own(self, drives):
        """Those of the run's drives that this rank opens."""
        return [drive for drive, rank in zip(drives, self.owner) if rank == self.ranks.rank]

    def options(self):
        """Members of struct shore_fleet_options, and of struct shore_run_opening."""
        return {"mine": self._mine, "fetch_elsewhere": _fetch_elsewhere, "elsewhere_ctx": self._handle}

    def unite(self, state, what):
        """Makes one fleet of the parts that all ranks have opened. From here on others may ask for segments."""
        self.state = state
        told = self.ranks.meet(f"{what}: what each rank has opened", (self._told(), state.path))
        self.name = f"segments of {told[0][1]}"
        self.ranks.serve(self.name, self._answer)
        parts = [ffi.from_buffer(part) for part, _ in told]
        told = ffi.new("void *[]", parts), ffi.new("size_t[]", [len(part) for part in parts]), len(parts)
        native.call(lib.shore_run_unite, state.run, *told)

    def _told(self):
        """What the other ranks must know of this part."""
        size = ffi.new("size_t *")
        lib.shore_fleet_part(self.state.fleet, ffi.NULL, size, ffi.new("struct shore_diag *"))  # says how much it is
        out = ffi.new("char[]", max(1, size[0]))
        native.call(lib.shore_fleet_part, self.state.fleet, out, size)
        return ffi.buffer(out, size[0])[:]

    # ---- what this rank asks others for

    def ask(self, request, done):
        """Asks the owner of a drive for segments, a piece at a time. done: the completion of all."""
        owner, each = self.owner[request.drive], request.bytes // request.count
        most = max(1, ASKED // each)
        out = torch.frombuffer(ffi.buffer(request.dst, request.bytes), dtype=torch.uint8)
        firsts = range(0, request.count, most)
        pieces = _Pieces(self, done, len(firsts))
        for first in firsts:
            count = min(most, request.count - first)
            numbers = request.step, request.block, request.segment + first, count, request.kind, count * each
            to = out[first * each :][: count * each]
            self.ranks.ask(owner, self.name, tuple(map(int, numbers)), to, pieces.done)

    def drain(self):
        """Waits until all that was asked for is here: nobody needs this step of the others from then on."""
        with self.moved:
            self.moved.wait_for(lambda: not self.asked)

    def meet(self, what, value=None):
        self.drain()
        return self.ranks.meet(what, value)

    # ---- what others ask this rank for

    def _answer(self, asking, numbers):
        """Reads segments of this rank's drives for another one. Returns their bytes."""
        step, block, segment, count, kind, nbytes = numbers
        with self._reading() as state:
            self._wait_for(state, step, asking)
            timeout_ms = int(self.ranks.timeout * 1000)
            native.call(lib.shore_fleet_await, state.fleet, state.fetched_step, block, segment, count, timeout_ms)
            return state.read(block, kind, nbytes, segment, count).bytes

    @contextlib.contextmanager
    def _reading(self):
        """A context in which the run stays open."""
        with self.moved:
            if self.state is None:
                raise LongshoreError(f"rank {self.ranks.rank} has closed the run")
            self.answering += 1
            state = self.state
        try:
            yield state
        finally:
            with self.moved:
                self.answering -= 1
                self.moved.notify_all()

    def _wait_for(self, state, step, asking):
        with self.moved:
            there = self.moved.wait_for(lambda: state.step >= step or self.state is None, self.ranks.timeout)
        if not there or self.state is None:
            raise LongshoreError(f"rank {self.ranks.rank} has not made step {step}")
        if not state.has(step):
            raise LongshoreError(f"rank {asking} is at step {step}, and rank {self.ranks.rank} at step {state.step}")

    # ---- the end

    def notify(self):
        """Tells answers that wait that the run is at another step."""
        with self.moved:
            self.moved.notify_all()

    def end(self):
        """Answers nobody any more."""
        with self.moved:
            self.state = None
            self.moved.notify_all()
            self.moved.wait_for(lambda: not self.answering)
        if self.name and not self.ranks.failed:
            self.ranks.serve(self.name, None)


class Together:
    """What all ranks that have a run do together: the base of State. If one process has all of it, it does it alone."""

    charges: Charges  # of the run

    def __init__(self, part):
        """part: this rank's Part, or None."""
        self.part = part

    @property
    def rank(self):
        return 0 if self.part is None else self.part.ranks.rank

    @property
    def own_drives(self):
        """The drives that this process has opened."""
        return self.drives if self.part is None else self.part.own(self.drives)

    def meet(self, what, value=None):
        """Waits until all ranks have come here, and need no parameters of earlier steps any more. Returns the values of
        all."""
        if self.part is None:
            return [value]
        with self.charges.waiting(lib.SHORE_CHARGE_LINK):
            return self.part.meet(what, value)

    def take_rank_0s(self, tensor):
        """Puts rank 0's values into a tensor. All ranks call it."""
        if self.part is not None:
            with self.together(), self.charges.waiting(lib.SHORE_CHARGE_LINK):
                self.part.ranks.take_rank_0s(tensor)

    def each(self, what, work):
        """Calls work() on each rank. If it fails on one, all raise, and can go on. Returns what rank 0's returned."""
        out = failure = None
        try:
            out = work()
        except LongshoreError as error:
            failure = error
        said = self.meet(what, (out, failure and (str(failure), failure.code)))
        if failure is not None:
            raise failure
        for rank, (_, of_other) in enumerate(said):
            if of_other is not None:
                raise native.error_of(of_other[1], f"rank {rank}: {of_other[0]}")
        return said[0][0]

    def rank_0_last(self, what, work):
        """Calls work() on each rank, on rank 0 once it has succeeded on all others."""
        for mine in (bool(self.rank), not self.rank):
            self.each(what, work if mine else lambda: None)

    def by_rank_0(self, what, work):
        """Calls work(), of several ranks on rank 0 alone: the others wait here, and give it what it reads."""
        if self.part is None or self.part.alone:
            return work()
        self.part.drain()
        self.part.alone = True
        try:
            return by_rank_0(self.part.ranks, what, work)
        finally:
            self.part.alone = False

    def together(self):
        """A context of what all ranks do: an exception on one of them ends all."""
        return contextlib.nullcontext() if self.part is None else self.part.ranks.together()

    def fail(self, failure):
        """Tells the other ranks that this one cannot go on."""
        if self.part is not None:
            self.part.ranks.fail(failure)


class _Pieces:
    """A request of the library's to another rank, of which some pieces are not here yet."""

    def __init__(self, part, completion, count):
        self.part, self.left, self.failure = part, count, None
        self.completion = ffi.new("struct shore_completion *", {"fn": completion.fn, "ctx": completion.ctx})
        with part.moved:
            part.asked += 1

    def done(self, failure=None):
        """A piece is here, or failed."""
        with self.part.moved:
            self.failure, self.left = self.failure or failure, self.left - 1
            if self.left:
                return
        why = ffi.NULL if self.failure is None else ffi.new("char[]", str(self.failure).encode()[:1000])
        lib.shore_complete(self.completion[0], 0 if self.failure is None else -errno.EREMOTEIO, why)
        with self.part.moved:
            self.part.asked -= 1
            self.part.moved.notify_all()


@ffi.callback("int(void *, const struct shore_elsewhere *, struct shore_completion)", error=-errno.EREMOTEIO)
def _fetch_elsewhere(ctx, request, done):
    ffi.from_handle(ctx).ask(request, done)
    return 0
