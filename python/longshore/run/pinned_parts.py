"""How an engine divides pinned memory: what a device copies from and to."""

from __future__ import annotations

from dataclasses import dataclass

from .. import native
from ..errors import BudgetError
from ..model.pinned import ALIGN
from ..native import lib

RING_BYTES = 16 << 20  # most that the ring takes, through which a device gets pages that are not pinned
LANDING_BYTES = 16 << 20  # where gradients land, the least is half of this or room for all of a block's


def _whole(nbytes):
    """In whole pages of the processor's, one or more."""
    return max(-(-nbytes // ALIGN), 1) * ALIGN


@dataclass
class PinnedParts:
    """What pinned memory is for, in bytes. Pages of parameters have what the others leave."""

    given: int | None  # pinned_memory=; None: what can be had
    ring: int
    landing: int
    landing_least: int
    pool: tuple  # least and most; nothing: activations stay

    @property
    def least(self):
        return self.ring + self.landing_least + sum(self.pool[:1])

    def sizes(self, pool):
        """The sizes of a HostMemory. pool: bytes of the pool."""
        pages = self.given - self.ring - self.landing - pool if self.given is not None else 2**63
        pool = (pool, min(pool, self.pool[0])) if pool else None
        return {"landing": (self.landing, self.landing_least), "pool": pool, "ring": self.ring, "pages": pages}


def left(cores):
    """What the pinned_memory= of open engines leaves for one beside them; None: none has any."""
    there = [core for core in cores if core.streams.device is not None and "pinned_memory" in core.how]
    return sum(max(core.how["pinned_memory"] - core.streams.tier.host.nbytes, 0) for core in there) if there else None


def divide(given, block, page, pool, lent):
    """The PinnedParts of a budget. Raises BudgetError with the least that works.

    given: bytes; None: what can be had. block, page: bytes of the largest block's gradients, and of the largest page.
    pool: bytes that activations pass through, (least, most) or (). lent: the budget is what other engines leave.
    """
    landing = _whole(block)
    parts = PinnedParts(given, min(_whole(page), RING_BYTES), landing, min(landing, LANDING_BYTES // 2), pool)
    if given is None:
        return parts
    beyond = given - parts.least
    if beyond < 0:
        raise BudgetError(
            f"pinned_memory={native.readable(given)}{', which the engine beside it leaves,' if lent else ''} is too "
            f"little for this model: minimum {native.readable(parts.least, up=True)}",
            lib.SHORE_EBUDGET,
        )
    parts.landing = min(landing, parts.landing_least + beyond // 4 // ALIGN * ALIGN)
    if pool:
        parts.pool = pool[0], min(pool[1], pool[0] + beyond // 4)
    return parts
