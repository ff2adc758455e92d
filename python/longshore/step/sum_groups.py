"""The order in which a step adds its gradients: its micro-batches are cut into groups that follow each other.

Those of a group are added in order, then the groups. So a step has the same bits wherever each group is computed."""

from typing import NamedTuple

from ..errors import BudgetError, LongshoreError
from ..native import readable

_ADVICE = (
    "set engine.accumulate to the number of its backward passes before the first one, or give train_batch() all of "
    "its micro-batches"
)


def groups_of(how, ranks=1):
    """How many groups of a step each of so many ranks adds up. how: wrap()'s options as the run records them; runs of
    older versions do not say."""
    return how.get("sum_groups", 1) // ranks


def parts_of(accumulate):
    """Checks engine.accumulate, which a script may set, and returns it."""
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(
            f"engine.accumulate = {accumulate!r}: it must be the number of backward passes of a step, 1 or more"
        )
    return accumulate


class Place(NamedTuple):
    """Where a micro-batch is in the order of its step."""

    group: int  # the number of its group in this process
    ends: bool  # whether its group, or its step, ends with it
    last: bool  # whether the step follows its pass


class MicroBatches:
    """The micro-batches of this process in the step that gathers."""

    def __init__(self, core):
        self.core, self.rank, self.size = core, core.ranks.rank, core.ranks.size
        self.clear()

    def clear(self):
        """A step begins."""
        # of this process's: how many they are, the first one's number over all ranks, how many those of all ranks are;
        # None: not known before the first pass
        self.shared = None

    @property
    def groups(self):
        """How many groups this process adds up."""
        return groups_of(self.core.how, self.size)

    @property
    def total(self):
        """How many micro-batches of all ranks the step has, once share() was told."""
        return self.shared[2]

    def share(self, what, count, first=0, total=None):
        """The step is of so many micro-batches of this process. Raises LongshoreError if its groups cannot have equal
        parts of them. what: begins the message. first, total: as in clear(); total None: there are no others."""
        self._refuse(what, count)
        self.shared = count, first, count if total is None else total

    def _refuse(self, what, count):
        if count % self.groups:
            raise LongshoreError(
                f"{what}: this step has {count} micro-batch{'es' * (count != 1)}, and the {self.groups} groups "
                f"that wrap(sum_groups=) makes of them are equal: make it a multiple of {self.groups}; {_ADVICE}"
            )

    def share_all(self, what, count):
        """Does that for a step whose micro-batches all ranks know, each of its own. All ranks call it."""
        counts = self.core.ranks.meet(f"engine.{what}()", count)
        if not sum(counts):
            raise ValueError(f"{what}: no micro-batches")
        for each in counts:
            self._refuse(what, each)
        self.share(what, count, sum(counts[: self.rank]), sum(counts))

    def of_loop(self):
        """What share() takes, where each rank makes as many passes as engine.accumulate says."""
        count = parts_of(self.core.accumulate)
        return count, self.rank * count, self.size * count

    def number(self, n):
        """The number over all ranks of this process's n-th forward pass. Where a micro-batch has several, the second
        ones come after the first ones of all ranks."""
        if self.size == 1:
            return n
        count, first, total = self.shared or self.of_loop()
        return n // count * total + first + n % count

    def place(self, n, last):
        """The Place of this process's n-th micro-batch. last: as in Place, as far as the script has said."""
        if self.groups == 1:
            return Place(0, True, last)
        count = (self.shared or self.of_loop())[0]
        each = max(count // self.groups, 1)
        return Place(n // each, (n + 1) % each == 0, last and n + 1 == count)

    def opens(self):
        """Whether a group of several micro-batches follows another one, so that sums of two wait for passes."""
        return 1 < self.groups < (self.shared or self.of_loop())[0]

    def refuse_more(self, nbytes, room):
        """Raises BudgetError if what a group has gathered between passes is more than there is room for in memory."""
        if nbytes > room:
            raise BudgetError(
                "the gradients of a group of wrap(sum_groups=) stay in memory between backward passes, beside those "
                f"of the groups before it, and take {readable(nbytes)}, of which memory= leaves {readable(room)}: give "
                "more memory=, or engine.train_batch() all micro-batches, which keeps those of one block, or "
                "sum_groups= as many groups as there are micro-batches"
            )

    def refuse_other(self, what, passes):
        """Raises LongshoreError if the step's groups were cut for another number of passes. what: begins the
        message."""
        if self.groups > 1 and passes and passes != self.shared[0]:
            raise LongshoreError(
                f"{what}: this step has {passes} backward pass{'es' * (passes != 1)}, and wrap(sum_groups=) has "
                f"cut {self.groups} groups for {self.shared[0]}, as engine.accumulate said at the first one; {_ADVICE}"
            )
