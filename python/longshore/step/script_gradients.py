"""What a script sees of a step's gradients, and changes: the part of Gradients that is behind p.grad."""

import logging

from ..errors import LongshoreError
from ..native import lib, readable
from .block_gradients import bytes_of, merged, shows

_log = logging.getLogger("longshore")


class ScriptSide:
    """The base class of Gradients, whose members it uses."""

    _said_adds = False

    def has(self, p):
        """Whether a parameter has a gradient in the step that gathers."""
        number, index = p.longshore.block.number, p.longshore.index
        return index in self.blocks[number].arrived or index in self.local[number].arrived

    def has_more_than_zeros(self):
        """Whether the step that gathers has a gradient that is not zero."""
        return any(block.arrived and not block.are_zeros() for block in (*self.blocks, *self.local))

    def in_hooks(self, p):
        return id(p) in self._in_hooks

    def value_of(self, p):
        """Returns a parameter's gradient in the step that gathers, or else in the last one; None if it has none. It
        stays until the script uses another block. All ranks call it."""
        made, part = self.made.get(p.longshore.block.number), self._part_of(p)
        if self.over_ranks is None or not (self.has(p) or made and p.longshore.index in made.arrived):
            return part
        return self.over_ranks.value_of(p, part)

    def _part_of(self, p):
        """What this process's drives have of it."""
        number, index = p.longshore.block.number, p.longshore.index
        self.land()
        if self.has(p):
            self._inspect(number)
            return self.blocks[number].value(index)
        block = self.made.get(number)
        if block is None or index not in block.arrived:
            return None
        if block.spilled:
            before, self._inspected_made = self.made.get(self._inspected_made), number
            if before is not None:
                before.leave()
            self._read_spilled(number, block)
        return block.held.get(index)

    def _inspect(self, number):
        """Brings a block's gradients into memory for a script. They stay until it uses another block."""
        self.land()
        self._finish_spill(number)
        before, self._inspected = self._inspected, number
        if before is not None and before != number:
            self._put_back(before)
        if self.blocks[number].spilled:
            self._read_spilled(number)

    def _put_back(self, number):
        block, before = self.blocks[number], self.made.get(number)
        if not block.arrived or block.are_zeros():
            return
        if self.shows_made and before and before.arrived and (before.spilled or self._inspected_made == number):
            return  # the same place on the drives has gradients of the last step that p.grad still shows
        if block.awaits(self._place().group):
            return
        if not block.added:
            self.step.tell(lib.shore_step_wait, number)  # an update may still read the place on the drives
            self._hand_over(number, self.streams.core(), False)
        # unchanged, the drives still have it; otherwise it was handed over since, and is held
        elif not block.spilled and self.step.is_spilled(number):
            self._mark_spilled(number)

    def change(self, p, value):
        """Makes this tensor a parameter's gradient in the step that gathers, or removes it (None). Returns whether that
        step had one."""
        number, index = p.longshore.block.number, p.longshore.index
        had = self.has(p)
        if value is not None:
            value = merged(self.value_of(p), value)
        if had or value is not None or number in self.made:
            self._set(number, index, value)
        return had

    def _set(self, number, index, value):
        """Gives the step that gathers a gradient, or takes it away (None). The last one's ends."""
        self._inspect(number)
        if number in self.made:
            self.made[number].arrived.discard(index)
        if value is not None:
            self.blocks[number].arrived.add(index)
        if self.over_ranks is not None:
            self.local[number].replace(index, None)
            value = None if value is None else self.over_ranks.part(number, index, value)
        self.replace(number, index, value)

    def take_over(self, p, g, written):
        """The sum takes over what a script has changed of its p.grad. written: the script has written to it, which
        makes one of the last step a gradient of the step that gathers."""
        sum = self.value_of(p)
        if sum is None or not shows(g, sum) or written and not self.has(p):
            self.change(p, g)

    def rest(self):
        """Ends p.grad of the last step as the next pass does, unless that adds to it."""
        if not self.adds:
            self.shown.end_last(self)
            self.made, self.shows_made = {}, False

    def look(self):
        """Takes over what a script has made of p.grad. If it has removed all of the step's, the step starts over."""
        if self.shown.look(self) and not any(block.arrived for block in self.blocks):
            self.streams.core().drop_gradients(passes=False)

    def hide(self):
        """Clears p.grad before a pass, and takes over a script's changes."""
        self._go_on()
        self.shown.end_last(self)
        self.shown.hide(self)
        self.shows_made = False
        coming = self.landing.blocks() if self.landing else ()
        for number, block in enumerate(self.blocks):
            if not self.local[number].fired and number not in coming and (not block.added or number == self._inspected):
                self._put_back(number)
        self._inspected = None

    def _go_on(self):
        """Takes p.grad over. After optimizer.step() without zero_grad(), the step goes on with the last gradients."""
        self.look()
        if self.adds and self.streams.state.away:
            self.streams.core().cycle.settle()  # until then the last step may be sent again, from these gradients
        adopted = sum(self._adopt(p) for p in self.shown.of_last_step(self)) if self.adds else 0
        self.adds = False
        if adopted and not self._said_adds:
            self._said_adds = True
            _log.warning(
                "optimizer.step() was made without zero_grad(): the next backward adds to its gradients, as in "
                f"PyTorch. They take {readable(adopted)}, on the drives where memory has no room"
            )

    def _adopt(self, p):
        """The step that gathers goes on with the last step's gradient. Returns its bytes."""
        number, index = p.longshore.block.number, p.longshore.index
        sum = self.value_of(p)
        if sum is None:
            raise LongshoreError(
                f"{p.longshore.name}.grad: zero_grad() was not called since the last step, and what "
                "this one adds to was lost with a drive; call zero_grad(), and begin the step again"
            )
        self.step.tell(lib.shore_step_wait, number)  # an update may still read it
        self.made[number].held.pop(index, None)  # a rank may own no part of it
        self._set(number, index, sum)
        return bytes_of(sum)

    def zero_grad(self, parameters, set_to_none):
        """Drops the gradients of these parameters, or makes them zero. parameters: a set of ids."""
        theirs, others = self.shown.parted(parameters)
        if not others:
            zeroed = [] if set_to_none else self.shown.zero()
            self.streams.core().drop_gradients(passes=False)
            self.shown.set(self, zeroed)
            return
        for p in theirs:
            if set_to_none:
                p.grad = None
            else:
                p.grad.zero_()
        self.look()
        self.streams.core().cycle.count_anew()

    def lose(self):
        """The drives have lost what was put aside there."""
        self.made = {number: block for number, block in self.made.items() if not block.spilled}

    def replace(self, number, index, value, blocks=None):
        """Replaces a gradient in memory. value: None removes it. blocks: `local`; by default those of the step."""
        block = (blocks or self.blocks)[number]
        self._reclaim(number)
        block.replace(index, value)
        if not block.arrived:
            self.step.tell(lib.shore_step_forget, number)

    def spare_bytes(self):
        return max(self.streams.core().plan.spare_bytes - self.shown.most_bytes, 0)

    def shrink_state(self):
        """Gives back held optimizer state, whose memory p.grad takes. An engine that sleeps holds none."""
        if self.step is None:
            return
        left = self.room - self.most_bytes(True)
        more = left + self.streams.core().plan.aside_bytes if left >= 0 else 0
        self.step.tell(lib.shore_step_shrink_state, self.spare_bytes() + more)
