"""The gradients of a step over several ranks. Each rank owns some segments of every block: there the sums of all ranks
are added, in the order of their groups, and given to the C library's step.

    a block's last pass ends ──► published: the other ranks know of it, and may ask for what they own
    here, too ──► own part asked for ──► the others' sums are here ──► added up ──► the C library's step
    the last pass of the step ends ──► finish(): all ranks meet, and ask for what is left

Until then each rank has its own sums of whole tensors: `local`. Gradients.blocks has the sums of all ranks, of each
tensor the own part.
"""

import itertools
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

import torch

from ..errors import BudgetError, RankError
from ..native import ffi, lib, readable
from .block_gradients import BlockGradients, is_zeros, zeros

END = -1  # in place of a block: the rank publishes no other in this round


class _Published(NamedTuple):
    """This rank's sums of a block, which do not change any more."""

    block: Any  # BlockGradients
    wanted: set  # the ranks that do not have their part yet


class _Answer:
    """What a rank gives of its sums of a block: of each tensor how many groups there are, and a part of each."""

    def __init__(self, spans, groups):
        """spans: as Layout.spans() returns them. groups: how many there are at most."""
        self.here = False
        sizes = [last - first for first, last in spans]
        head = -(-4 * len(spans) // 64) * 64
        self.bytes = torch.zeros(head + 4 * sum(sizes) * groups, dtype=torch.uint8, device="cpu")
        self.counts = self.bytes[: 4 * len(spans)].view(torch.int32)
        self.values = [group.split(sizes) for group in self.bytes[head:].view(torch.float32).chunk(groups)]

    def fill(self, block, spans):
        for index, (first, last) in enumerate(spans):
            groups = block.sums(index)
            self.counts[index] = len(groups)
            for values, group in zip(self.values, groups):
                values[index].copy_(group.reshape(-1)[first:last])
        return self.bytes

    def sums(self, index):
        """The sums of the groups of a tensor, in order."""
        return [values[index] for values in self.values[: int(self.counts[index])]]


class ReduceScatter:
    """What the ranks of a run exchange of the gradients of one engine's steps."""

    def __init__(self, gradients, state, ranks):
        """state: the State of a run that all ranks open now."""
        self.gradients, self.state, self.layout, self.ranks = gradients, state, state.layout, ranks
        blocks = range(len(gradients.blocks))
        here = ffi.buffer(state.info().fleet_id)[:], [state.own(number) for number in blocks]
        fleets, self.owned = zip(*ranks.meet("opening the run", here))  # owned[rank][block]: (first segment, count)
        self.others = [rank for rank in range(ranks.size) if rank != ranks.rank]
        self.local = self._new_blocks()
        self.finished = False  # whether no pass has begun since finish()
        self.changed = threading.Condition()  # guards what other threads see of what follows
        self.failure = None
        self.round = 0  # how many times the ranks have begun to add up
        # a key is (round, block, how many sums of that block the rank has published before in this round)
        self.published = {}  # by key: _Published
        self.told: set = set()  # (rank, *key) of what others have published
        # by block: what this rank has published of it in this round, and of which of its tensors
        self.counts: dict = {}
        self.arrived: dict = {}
        self.answers: dict = {}  # by block: {(rank, last of the key): _Answer}
        self.added: set = set()  # blocks that were added up in this round
        self.sums = ffi.new("double[]", sum(self.layout.segments))  # of squares, by segment
        self.name = f"gradients of {fleets[0].hex()}"
        ranks.serve(f"{self.name}: published", self._note)
        ranks.serve(self.name, self._give)

    def end(self):
        """Answers nobody any more."""
        self.ranks.serve(f"{self.name}: published", None)
        self.ranks.serve(self.name, None)

    def _new_block(self):
        return BlockGradients(apart=self.ranks.rank > 0)

    def _new_blocks(self):
        return [self._new_block() for _ in self.gradients.blocks]

    @property
    def nbytes(self):
        """Bytes of this rank's own sums, and of the others' that are here."""
        with self.changed:
            answers = sum(answer.bytes.nbytes for block in self.answers.values() for answer in block.values())
            own = [*self.local, *(published.block for published in self.published.values())]
        return answers + sum(block.nbytes for block in own)

    def begin(self):
        """The step begins anew, on all ranks."""
        self.local, self.finished = self._new_blocks(), False
        self._end_round()

    def _end_round(self):
        with self.changed:
            self.round += 1
            self.counts, self.arrived, self.answers, self.added = {}, {}, {}, set()
            self.told = {told for told in self.told if told[1] >= self.round}

    # ---- this rank's sums

    def complete(self, number, last):
        """A pass has all of its gradients of a block. last: no other pass adds to them."""
        if last:
            self._publish(number)
            self.poll()
            self._let_others_follow()
        elif self.nbytes > self.gradients.room:
            room = readable(self.gradients.room)
            raise BudgetError(
                f"the gradients between backward passes take {readable(self.nbytes)}, which several ranks keep in "
                f"memory until the step's last pass, and memory= leaves {room} for them: give more memory=, or each "
                "rank one micro-batch a step"
            )

    def _publish(self, number):
        """This rank's sums of a block are those of the step: the others may have them."""
        block, fresh = self.local[number], self._new_block()
        self.local[number], fresh.fired = fresh, block.fired
        if not block.apart:
            block.fold_all()
        key = self.round, number, self.counts.get(number, 0)
        wanted = {rank for rank, owned in enumerate(self.owned) if owned[number][1]}
        with self.changed:
            self.counts[number] = key[2] + 1
            self.arrived.setdefault(number, set()).update(block.held)
            self.published[key] = _Published(block, wanted)
        self._tell(key)

    def _tell(self, key):
        for rank in self.others:
            self.ranks.ask(rank, f"{self.name}: published", key, None, self._ended)

    def _let_others_follow(self):
        """Where memory has no room, waits until no rank is behind: what others have not asked for yet stays here."""
        waits = time.monotonic() + self.ranks.timeout
        with self.changed, self._waiting():
            while self.nbytes > self.gradients.room and self._is_ahead() and time.monotonic() < waits:
                self.changed.wait(1)

    def _is_ahead(self):
        """Whether another rank has published less in this round. One of those that have least never waits."""
        there = Counter(rank for rank, of_round, *_ in self.told if of_round == self.round)
        ended = {rank for rank, *key in self.told if key[:2] == [self.round, END]}
        behind = [rank for rank in self.others if there[rank] < sum(self.counts.values()) and rank not in ended]
        return bool(behind) and not self.ranks.failed

    def _ended(self, failure=None):
        """Something that another rank was asked for is here, or the ranks have failed. On a thread of Ranks."""
        with self.changed:
            self.failure = self.failure or failure
            self.changed.notify_all()

    def _note(self, asking, key):
        with self.changed:
            self.told.add((asking, *key))
            self.changed.notify_all()
        return b""

    def _give(self, asking, key):
        """The bytes of this rank's sums of a block for one that owns a part of it."""
        with self.changed:
            block = self.published[key].block
        out = self._answer(self.ranks.rank, key[1], asking).fill(block, self.spans(key[1], asking))
        self._got(key, asking)
        return out

    def _got(self, key, rank):
        """A rank has its part of what this one has published."""
        with self.changed:
            wanted = self.published[key].wanted
            wanted.discard(rank)
            if not wanted:
                del self.published[key]
                self.changed.notify_all()

    def spans(self, number, rank=None):
        """What a rank owns of a block's tensors, as Layout.spans() says it. None: this one."""
        return self.layout.spans(number, *self.owned[self.ranks.rank if rank is None else rank][number])

    def _answer(self, giving, number, asking):
        groups = self.gradients.streams.core().cycle.micro_batches.groups if giving else 1
        return _Answer(self.spans(number, asking), groups)

    # ---- the sums of all

    def poll(self):
        """Asks for what others have published of the blocks that are complete here, and adds up those that are here."""
        first = [(rank, 0) for rank in range(self.ranks.size)]
        for number in [*self.counts]:
            if number in self.added or not self.owned[self.ranks.rank][number][1]:
                continue
            there = [rank for rank in self.others if (rank, self.round, number, 0) in self.told]
            self._ask(number, [(rank, 0) for rank in there])
            if len(there) == len(self.others) and self._are_here(number):
                self._add_up(number, first)

    def _ask(self, number, nths):
        """Asks for others' sums of a block, unless it has. nths: [(rank, last of the key)]."""
        answers = self.answers.setdefault(number, {})
        for rank, nth in nths:
            if rank != self.ranks.rank and (rank, nth) not in answers:
                answer = answers[rank, nth] = self._answer(rank, number, self.ranks.rank)

                def here(failure=None, answer=answer):
                    answer.here = True
                    self._ended(failure)

                self.ranks.ask(rank, self.name, (self.round, number, nth), answer.bytes, here)

    def _are_here(self, number):
        if self.failure is not None:
            raise RankError(str(self.failure)) from self.failure
        return all(answer.here for answer in self.answers[number].values())

    def _add_up(self, number, nths):
        """Adds the sums of all ranks in order. nths: as _ask() takes them."""
        answers, totals = {of: self.answers[number].pop(of) for of in nths if of[0] != self.ranks.rank}, {}
        own = {nth: self.published[self.round, number, nth].block for rank, nth in nths if rank == self.ranks.rank}
        for index, (first, last) in enumerate(self.spans(number)):
            for rank, nth in nths:
                if rank != self.ranks.rank:
                    groups = answers[rank, nth].sums(index)
                else:
                    groups = [group.reshape(-1)[first:last] for group in own[nth].sums(index)]
                for group in groups:
                    total = totals.get(index)
                    totals[index] = group.to(torch.float32, copy=True) if total is None else total.add_(group)
        for nth in own:
            self._got((self.round, number, nth), self.ranks.rank)
        self.added.add(number)
        self.gradients.add_parts(number, totals)

    def finish(self):
        """This rank's sums are those of the step. Returns once its own parts of all ranks' are added up."""
        if self.finished:
            return
        for number, block in enumerate(self.local):
            if block.held:
                self._publish(number)
        self._tell((self.round, END, 0))
        with self._waiting():
            everyone = self.ranks.meet(f"the gradients of step {self._step()}", (self.counts, self.arrived))
        due = {}
        for number in sorted({number for counts, _ in everyone for number in counts}, reverse=True):
            self.gradients.blocks[number].arrived.update(*(arrived.get(number, ()) for _, arrived in everyone))
            nths = [
                (rank, nth)
                for rank, (counts, _) in enumerate(everyone)
                for nth in range(number in self.added, counts.get(number, 0))
            ]
            if nths and self.owned[self.ranks.rank][number][1]:
                due[number] = nths
        for number, following in zip(due, [*due][1:] + [None]):
            self._ask(number, due[number])
            if following is not None:
                self._ask(following, due[following])
            with self.changed, self._waiting():
                self.changed.wait_for(lambda number=number: self._are_here(number))
            for first in True, False:  # as if poll() had added the first ones, which it may have
                if nths := [(rank, nth) for rank, nth in due[number] if (nth == 0) == first]:
                    self._add_up(number, nths)
        self.begin()
        self.finished = True

    def _step(self):
        return self.state.step + 1

    def _waiting(self):
        """The context in which this rank waits for others."""
        return self.state.charges.waiting(lib.SHORE_CHARGE_LINK)

    def agree(self):
        """A pass has ended that is not the step's last, as far as ranks know: all have p.grad where one has it."""
        arrived = {number: block.arrived for number, block in enumerate(self.local) if block.arrived}
        with self._waiting():
            everyone = self.ranks.meet("the end of a backward pass", arrived)
        for theirs in everyone:
            for number, indices in theirs.items():
                self.local[number].arrived |= indices

    def exchange(self, told):
        """Puts the others' sums of squares beside this rank's. Returns what each rank tells."""
        segments = self.layout.segments
        firsts = [0, *itertools.accumulate(segments)]

        def of(rank):
            owned = zip(firsts, self.owned[rank])
            return [ffi.buffer(self.sums + at + first, 8 * count) for at, (first, count) in owned if count]

        mine = b"".join(part[:] for part in of(self.ranks.rank))
        everyone = self.state.meet(f"the norm of step {self._step()}", (mine, told))
        for rank in self.others:
            theirs = memoryview(everyone[rank][0])
            for part in of(rank):
                part[:], theirs = theirs[: len(part)], theirs[len(part) :]
        return [told for _, told in everyone]

    # ---- what a script sees of it

    def value_of(self, p, part):
        """A parameter's gradient of all ranks, which all ask for. part: what was added up of it, its own part; None:
        nothing."""
        number, index = p.longshore.block.number, p.longshore.index
        everyone = self.ranks.meet(f"{p.longshore.name}.grad", (part, self.local[number].sums(index)))
        value, parts = None, [(rank, part) for rank, (part, _) in enumerate(everyone) if part is not None]
        if parts:
            value = torch.zeros(p.numel(), dtype=parts[0][1].dtype, device="cpu")
        for rank, part in parts:
            first, last = self.spans(number, rank)[index]
            value[first:last] = part
        for _, sums in everyone:
            for group in sums:
                value = group.reshape(-1) if value is None else value.float() + group.reshape(-1)
        return None if value is None else value.view(p.shape)

    def part(self, number, index, value):
        """The own part of a gradient that a script has given to all ranks."""
        first, last = self.spans(number)[index]
        return zeros((last - first,)) if is_zeros(value) else value.reshape(-1)[first:last].clone()
