"""longshore.budget: one memory budget that several engines of a process share."""

from __future__ import annotations

import os
import weakref
from typing import Any, NamedTuple

from .. import native
from ..errors import BudgetError
from ..native import lib
from ..ranks.launch import ranks_here
from . import room

_current: budget | lent | None = None
_borrowers: weakref.WeakSet[Any] = weakref.WeakSet()  # the Core of each open engine that another one has lent memory


class budget:
    """A context in which engines share one memory budget, such as a policy and its reference model.

    Example::

        with longshore.budget(memory="8GiB"):
            policy = longshore.wrap(model, run="runs/policy", drives=[...])
            reference = longshore.wrap(frozen, run="runs/reference", drives=[...])

    Each engine that wrap() or resume() makes inside gets an equal part of the memory that is left for the engines to
    come. It leaves them what it cannot use. If you give wrap() or resume() memory=, that is the engine's part instead.
    Closing an engine frees its part: open ``with longshore.budget(...) as shared:``, and later ``with shared:`` to make
    another engine in its place. Budgets do not nest.

    Args:
        memory: Bytes for all engines together, such as "8GiB".
        engines: How many engines will share it. Default: 2.

    Raises:
        BudgetError: memory is more than the machine has. wrap() or resume() raises it if the engines need more
            together; the message names each one's part.
    """

    def __init__(self, memory: int | str, engines: int = 2):
        if isinstance(engines, bool) or engines != int(engines) or engines < 1:
            raise ValueError(
                f"budget: engines={engines!r}; it must be the number of engines that share the memory, 1 or more"
            )
        self.memory, self.engines = within(native.size(memory)), int(engines)
        self.shares: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def __enter__(self) -> budget:
        global _current
        if _current is not None:
            raise ValueError(
                "budget: a budget is open already, and budgets do not nest: leave it first, or give "
                "wrap() and resume() memory=, which takes a part of it"
            )
        _current = self
        return self

    def __exit__(self, *_: object) -> None:
        global _current
        _current = None

    def __repr__(self) -> str:
        held = ", ".join(f"{who} has {native.readable(_held(core))}" for core, who in self._open())
        return f"budget of {native.readable(self.memory)} for {self.engines} engines" + (f": {held}" if held else "")

    @property
    def left(self) -> int:
        """Bytes of the budget that no open engine holds."""
        return max(0, self.memory - sum(_held(core) for core, _ in self._open()))

    def add(self, core: Any, who: str) -> None:
        """Counts the memory of an engine."""
        self.shares[core] = who

    def _open(self) -> list[tuple[Any, str]]:
        return [(core, who) for core, who in list(self.shares.items()) if core.state is not None]

    def share(self, who: str, wanted: int | None, least: int) -> int:
        """Bytes for one more engine. Raises BudgetError."""
        made, left = self._open(), self.left
        share = max(least, left // max(1, self.engines - len(made))) if wanted is None else wanted
        if max(share, least) <= left:
            return share
        others = "".join(
            f"{name} has {native.readable(_held(core))} ({native.readable(core.plan.least_bytes, up=True)} at least), "
            for core, name in made
        )
        together = sum(_held(core) for core, _ in made) + max(share, least)
        minimum = sum(core.plan.least_bytes for core, _ in made) + least
        raise BudgetError(
            f"{native.readable(self.memory)} of memory is too little for what shares it: {others}{who} "
            f"needs {native.readable(max(share, least), up=True)} ({native.readable(least, up=True)} at least), "
            f"{native.readable(together, up=True)} together: minimum {native.readable(minimum, up=True)}; give "
            "budget() more, the others less with memory=, or close() one",
            lib.SHORE_EBUDGET,
        )


class Loan(NamedTuple):
    """What an engine has lent to another one."""

    plan: Any  # the Plan of the engine that lends
    nbytes: int
    of_state: int  # how many of them state in memory had
    run: str


class lent:
    """A context in which an engine gets memory of another open engine's, whose state in memory gives way, and then its
    slots. What it takes can have state again once it is closed."""

    def __init__(self, core: Any, who: str):
        """core: the open engine's. who: its name in messages."""
        self.core, self.who = core, who
        self.given: tuple[int, int] | None = None  # as _take() returns it

    def __enter__(self) -> None:
        global _current
        _current = self

    def __exit__(self, *_: object) -> None:
        global _current
        _current = None
        self._end()

    @property
    def left(self) -> int:
        return max(self.core.plan.free_bytes - self.core.gradients.shown.most_bytes, 0)

    def share(self, who: str, wanted: int | None, least: int) -> int:
        """Bytes for the new engine: half of what is left. Raises BudgetError."""
        if least > self.left and not room.make(self.core, least - self.left):
            both = native.readable(2 * max(least, self.core.plan.least_bytes), up=True)
            raise BudgetError(
                f"{self.who} can give {native.readable(self.left)} of its {native.readable(self.core.plan.most_bytes)} "
                f"of memory, and {who} needs {native.readable(least, up=True)}: give this one memory= of its own, or "
                f"make both in `with longshore.budget(memory=...):`, minimum {both}",
                lib.SHORE_EBUDGET,
            )
        share = max(least, self.left // 2)
        self.given = self._take(share)
        return share

    def _take(self, nbytes: int) -> tuple[int, int]:
        plan = self.core.plan
        given = nbytes, plan.take(nbytes)
        self.core.gradients.shrink_state()
        return given

    def _end(self):
        given, self.given = self.given, None
        if given is not None:
            self.core.plan.give_back(*given)

    def add(self, core: Any, who: str) -> None:
        """Lends an engine what it holds."""
        self._end()
        core.lent = Loan(self.core.plan, *self._take(_held(core)), self.core.state.path)
        _borrowers.add(core)


def give_back(core: Any) -> None:
    """An engine is closed: returns what another one has lent it."""
    lent, core.lent = core.lent, None
    _borrowers.discard(core)
    if lent is not None:
        lent.plan.give_back(lent.nbytes, lent.of_state)


def still_lent(run: str) -> int:
    """Bytes that an engine of this run had lent before it was closed, to engines that are open."""
    return sum(core.lent.nbytes for core in _borrowers if os.path.realpath(core.lent.run) == os.path.realpath(run))


def _held(core: Any) -> int:
    return core.plan.total_bytes + core.plan.spare_bytes


def within(memory: int | None = None, least: int = 0) -> int:
    """The budget in bytes, chosen as the program does: without one, half of the memory of the machine, or of its
    control group, which the ranks of this host share. Raises BudgetError for a budget that is more than that memory, or
    less than least."""
    if not memory and ranks_here() > 1:
        memory = max(native.made("uint64_t", lib.shore_budget, 0, 0, 0) // ranks_here(), least)
    return native.made("uint64_t", lib.shore_budget, memory or 0, least, 0)


def left() -> int | None:
    """Bytes left in the open budget, or None if no budget is open."""
    return None if _current is None else _current.left


def share(who: str, wanted: int | None, least: int) -> int | None:
    """Bytes for one more engine: what it wants, or a part of the open budget. Raises BudgetError.

    wanted: None leaves the size to the open budget; without one, the result is None too.
    """
    return wanted if _current is None else _current.share(who, wanted, least)


def add(core: Any, who: str) -> None:
    """Counts an engine's memory in the open budget, if there is one. who: its name in messages."""
    if _current is not None:
        _current.add(core, who)
