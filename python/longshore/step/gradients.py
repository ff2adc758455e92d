"""The gradients of a step: takes each one as autograd completes it, and adds it up in fp32.

Once a block's gradients are complete, the C library (gradient_step.py) decides about them: they wait in memory, are
spilled to the drives, or update the block at once."""

import contextlib

from ..drives import recovery
from ..drives.buffer import Buffer
from ..drives.layout import PIECE
from ..errors import LongshoreError
from ..native import SEGMENT, ffi, lib
from ..torch_internals import profiled
from .block_gradients import BlockGradients, is_zeros
from .grad_attribute import Shown
from .gradient_hooks import HookSide
from .gradient_step import Step
from .landing import Landing
from .optimizers import hypers
from .reduce_scatter import ReduceScatter
from .script_gradients import ScriptSide


class Gradients(HookSide, ScriptSide):
    """All gradients of one engine's steps."""

    speculate = lib.SHORE_SPECULATE_AUTO

    def __init__(self, streams, room_bytes):
        """room_bytes: how many bytes of gradients stay in memory; the rest is spilled to the drives."""
        self.step = None  # the open run's Step
        self.over_ranks = None  # its ReduceScatter, where several ranks work on it
        self.landing = None if streams.device is None else Landing(streams.device)
        self.streams, self.room = streams, room_bytes
        self.blocks = [BlockGradients() for _ in streams.blocks]
        self.trains = [{h.index for p, h in s.parameters if p.requires_grad} for s in streams.blocks]
        trained = [p for s in streams.blocks for p, _ in s.parameters if p.requires_grad]
        self._elems, self._nbytes = sum(p.numel() for p in trained), sum(p.numel() * p.element_size() for p in trained)
        self.passes = 1  # micro-batches whose backward passes run together
        # by block number: BlockGradients of the last step, while they are needed; the same while it is sent again
        self.made, self._resending = {}, {}
        # whether p.grad shows those of the last step, and whether the next pass adds to them
        self.shows_made = self.adds = False
        # for reading from drives; the block that a script looks at, and the block of the last step
        self._buffer = self._inspected = self._inspected_made = None
        self.shown = Shown(
            [p for s, block in zip(streams.blocks, streams.layout.blocks) if block.trains for p, _ in s.parameters]
        )
        self.has_pass = False  # whether a backward pass has run since the last step
        self.own, self._task = False, None  # whether the engine runs this pass; autograd's id of a script's own pass
        self._grad_task = None  # autograd's id of the last torch.autograd.grad()
        self.dropped_ids = set()  # ids of parameters whose gradients are dropped as they arrive
        self.own_hooks = {}  # by a parameter's id: the keys of take() and take_back() among its post-accumulate hooks
        self._in_hooks = set()  # ids of parameters whose p.grad a script's hooks see
        self._any_spilled = False  # whether any gradients of this step were spilled: only these may leave memory

    @property
    def local(self):
        """By block number: this rank's own sums, BlockGradients; those of `blocks` where there are no others."""
        return self.blocks if self.over_ranks is None else self.over_ranks.local

    @property
    def held_bytes(self):
        shown = self.made.values() if self.shows_made else ()
        return sum(block.nbytes for block in (*self.blocks, *shown)) + self._local_bytes()

    def _local_bytes(self):
        return 0 if self.over_ranks is None else self.over_ranks.nbytes

    def most_bytes(self, several):
        """Bytes of all gradients of a step together. several: whether it adds up several passes, in fp32."""
        if self.streams.core().cycle.micro_batches.opens():
            return 8 * self._elems
        return 4 * self._elems if several or self.passes > 1 else self._nbytes

    # ---- as they come

    def _place(self, number=None):
        return self.streams.core().cycle.place(number)

    def add(self, p, g, number=None):
        """Adds a gradient to the sum of its parameter, and completes the block if it was the last one: now, or once it
        has come from its device. number: as StepCycle.place() takes it."""
        block = self.local[p.longshore.block.number]
        if self.landing is None or g.device.type == "cpu":
            self._add(p, g, self._place(number))
            return
        block.arrived.add(p.longshore.index)
        self.landing.begin(self.step, p, g, self._place(number))
        if self.landing.device.crosses_too_much(self.landing.there_bytes()):
            self.land()

    def _add(self, p, g, place):
        self._sum(p, g, place)
        if self._is_complete(p.longshore.block.number):
            self.complete(p.longshore.block.number, place)

    def _landed(self, tag):
        """Something has come from the device: a gradient, or the end of a pass."""
        landed = self.landing.take(tag)
        if landed is None:
            return
        p, g, place = landed
        if p is None:
            self._end_pass(place)
        else:
            self._add(p, g, place)

    def land(self):
        """Waits for gradients on their way from the device."""
        if self.landing is not None and self.landing.coming:
            self.step.call(lib.shore_step_land_all)

    def _sum(self, p, g, place):
        """Adds a gradient to its parameter's sum."""
        handle = p.longshore
        block = self.local[handle.block.number]
        if g.is_sparse:
            g = g.to_dense()
        with self._recovering():
            if self.over_ranks is None:
                self._reclaim(handle.block.number)
            if block.follows(handle.index, place.group):
                self._read_spilled(handle.block.number)
            if self._any_spilled and self.over_ranks is None and not block.held:
                self._make_room(handle.block.number)
        block.add(handle.index, g, place.group, lent=self.landing is not None and self.landing.lent(g))
        block.arrived.add(handle.index)
        block.fired[handle.index] = block.fired.get(handle.index, 0) + 1

    def _make_room(self, coming=None):
        """Waits until gradients that leave memory have made room: for a block whose gradients begin to come, beside
        others that do, or for what comes after a pass."""
        room, more = self.room, self._more_bytes()
        if coming is not None:
            room += self.streams.core().plan.aside_bytes
            begun = {n for n, block in enumerate(self.blocks) if block.held and not block.added} | {coming}
            more += sum(4 * self.streams.layout.elems(n) - self.blocks[n].nbytes for n in begun)
        self.step.tell(lib.shore_step_wait_for_room, more, room)
        self._drop_unneeded()

    def _is_complete(self, number):
        fired = self.local[number].fired
        return all(fired.get(t, 0) >= self.passes for t in self.trains[number])

    def complete(self, number, place):
        """Hands a block's gradients to the C step: autograd has all of them in this pass. If other passes add to a
        group that others precede, its sum stays in memory. place: of the pass."""
        block = self.local[number]
        if not block.arrived or block.added:
            return  # a hook has removed all of them
        core = self.streams.core()
        core.meter.block_ended()
        if self.over_ranks is not None:
            self.over_ranks.complete(number, place.last)
            return
        if not place.ends and block.awaits(place.group):
            waiting = sum(block.nbytes for block in self.blocks if block.open or block.spilled)
            core.cycle.micro_batches.refuse_more(waiting, self.room)
            return
        with self._recovering(), profiled("gradients of", self.streams.blocks[number].block.name):
            self._hand_over(number, core, place.last)

    def add_parts(self, number, parts):
        """Adds to a block's gradients what no other pass adds to. parts: {index of the tensor: its own part}."""
        with self._recovering():
            self._reclaim(number)
            if self.blocks[number].spilled:
                self._read_spilled(number)
            for index, g in parts.items():
                self.blocks[number].add(index, g, 0, False)
                self.blocks[number].arrived.add(index)
            self._hand_over(number, self.streams.core(), True)

    def _hand_over(self, number, core, last):
        """last: whether no other pass adds to this block."""
        self._add_to_step(number, not last)
        if not self.streams.state.own(number)[1]:
            return
        if last:
            self.step.groups(number, hypers(core, number))
            if core.compression and self.step.tell(lib.shore_step_speculates):
                core.cycle.settle()  # the residual is the committed step's
        more = 0 if last or not core.cycle.micro_batches.opens() else 4 * self._elems
        self._any_spilled |= self.step.complete(number, self._more_bytes() + more)
        self._drop_unneeded()

    @contextlib.contextmanager
    def _recovering(self):
        try:
            yield
        except LongshoreError as lost:
            recovery.recover(self.streams.core(), lost)  # make() sends the update again

    def end_of_pass(self):
        """Completes the blocks that autograd left incomplete in this pass, once all has come. The last pass of a step
        waits for that, so that updates begin while the device computes."""
        place = self.streams.core().cycle.place_of_end()
        if self.landing is None:
            self._end_pass(place)
        else:
            self.landing.end_pass(self.step, place)
            if place.last:
                self.land()
        if self.over_ranks is not None and place.last:
            self.over_ranks.finish()

    def _end_pass(self, place):
        for number, block in enumerate(self.local):
            if block.fired and not self._is_complete(number):
                self.complete(number, place)
            self.local[number].fired.clear()
        if self._any_spilled and self.over_ranks is None:
            self._make_room()

    def end_of_backward(self):
        """Ends a pass: hides the blocks, and shows the gradients as p.grad."""
        self.streams.clock.stop()
        self.end_of_pass()
        if self.over_ranks is not None and not self.over_ranks.finished:
            self.over_ranks.agree()
        self.streams.hide_unused()
        self.shown.show(self)

    def _more_bytes(self):
        """Bytes that gradients take in memory beyond those that the C step counts; may be negative."""
        changed = [n for n, block in enumerate(self.blocks) if block.held and (not block.added or n == self._inspected)]
        held = sum(self.blocks[n].nbytes for n in changed)
        return held + self._local_bytes() - sum(self.step.tell(lib.shore_step_bytes, n) for n in changed)

    def _add_to_step(self, number, more=False):
        """Gives a block's gradients to the C step. more: whether another pass adds to them."""
        block = self.blocks[number]
        if block.added:
            return
        if block.spilled:
            self._read_spilled(number)
        block.fold_all()
        if self.streams.state.own(number)[1]:
            self.step.add(number, self.streams.state.gather(number, block.held), more)
        block.added = True

    def _reclaim(self, number):
        """Takes a block's gradients back from the C step to change them, once no update reads them."""
        if self.blocks[number].added:
            self.step.tell(lib.shore_step_wait, number)
            self._finish_spill(number)
            self.blocks[number].added = False

    def _finish_spill(self, number):
        """Waits until a block that is being spilled has left memory."""
        if self.step.is_spilled(number) and self._may_leave(number):
            self.step.tell(lib.shore_step_wait, number)  # an update may still read it
            self._mark_spilled(number)

    def _may_leave(self, number):
        """Whether memory has a block's gradients as the C step has them, and not for a script that looks at them."""
        return self.blocks[number].added and not self.blocks[number].spilled and number != self._inspected

    def _mark_spilled(self, number):
        self.blocks[number].leave()

    def _drop_unneeded(self):
        """Frees gradients that no spill and no update needs any more."""
        for number in filter(self._may_leave, range(len(self.blocks)) if self._any_spilled else ()):
            if not self.step.tell(lib.shore_step_needs, number):
                self._mark_spilled(number)
        if self.made and not self.shows_made and not self.step.tell(lib.shore_step_made_needs):
            self.made = {}

    def _read_spilled(self, number, block=None):
        """Adds a block's spilled gradients to the held ones, which become fp32. block: other BlockGradients than this
        step's."""
        if self._buffer is None:
            self._buffer = Buffer(PIECE * SEGMENT * 4)
        (block or self.blocks[number]).read_spilled(self.streams.state, number, self._buffer)

    def values(self, number):
        """Returns {index of the tensor: gradient} of a block: a copy from the drives if they were spilled."""
        if self.blocks[number].held:
            return self.blocks[number].held
        copy = BlockGradients()
        copy.spilled = self.blocks[number].spilled
        self._read_spilled(number, copy)
        return copy.held

    # ---- what the step needs

    def gathered(self):
        """Returns the numbers of the blocks that have gradients, also those that a script has set as p.grad."""
        self._go_on()
        self.land()
        for block in self.local:
            block.fired.clear()
        return [number for number, block in enumerate(self.blocks) if block.arrived]

    def has_any(self):
        """Whether a backward pass has run since the last step, or a script has set a p.grad."""
        return self.has_pass or bool(self.gathered())

    def decide(self, clip, told=None):
        """Returns the struct shore_clipping of the step, and what each rank tells all others. clip: the largest norm; 0
        or None: no limit. told: what this rank tells."""
        if self._task is not None:
            raise LongshoreError(
                "the step: an exception has interrupted its last backward pass, so that p.grad does "
                "not show what had come; call zero_grad(), and run the step's passes again"
            )
        self.gathered()
        everyone = [told]
        if self.over_ranks is not None:
            self.over_ranks.finish()
        for number in self.gathered():
            self._add_to_step(number)
        self.step.tell(lib.shore_step_clip_at, clip or 0)
        if self.over_ranks is not None:
            self.step.call(lib.shore_step_count)
            everyone = self.over_ranks.exchange(told)
        return self.step.tell(lib.shore_step_decide), everyone

    def make(self):
        """Sends every update, as decided. Returns the numbers of the blocks that change."""
        core, changed = self.streams.core(), [number for number, block in enumerate(self.blocks) if block.arrived]
        for number in changed:
            self.step.groups(number, hypers(core, number))
        self.step.call(lib.shore_step_make)
        return changed

    # ---- from one step to the next

    def open(self, state):
        """Opens the C step of a run's state, whose pages are open."""
        self.end()
        core, self.has_pass = self.streams.core(), False
        if self.landing is not None:
            self.landing.open(self.streams.tier.host.landing)
        if core.ranks.size > 1:
            self.over_ranks = ReduceScatter(self, state, core.ranks)
        self.step = Step(
            self.streams,
            state,
            self._encode if core.compression else None,
            room_bytes=self.room,
            aside_bytes=core.plan.aside_bytes if self.over_ranks is None else 0,
            speculate=self.speculate,
            sums=self.over_ranks.sums if self.over_ranks else ffi.NULL,
            landed=self._landed if self.landing else None,
            landing_bytes=self.landing.memory.nbytes if self.landing else 0,
        )
        self.begin(keep=True)  # p.grad from before wrap() is one that the script has set

    def _encode(self, number, request):
        core = self.streams.core()
        return core.compression.encode(core, number, request, self._resending.get(number))

    def send_again(self):
        """Sends the last step again: see Step.send_again()."""
        self._resending = {number: block.held for number, block in self.made.items()}
        try:
            return self.step.send_again()
        finally:
            self._resending = {}

    def begin_pass(self, core, several):
        """Holds optimizer state in memory that gradients leave free. Returns whether some must be read first. With
        compression it holds none, since each update reads the residual anyway. several: as in most_bytes()."""
        if self.over_ranks is not None:
            self.over_ranks.finished = False
        self.step.tell(lib.shore_step_clip_at, core.how["clip"] or 0)
        most = self.most_bytes(several or self.has_more_than_zeros())
        return not core.compression and self.step.tell(
            lib.shore_step_hold_state, self.spare_bytes(), most, core.plan.aside_bytes
        )

    def has_sent(self):
        """Whether updates of the gathering step were sent already."""
        return self.step is not None and self.step.tell(lib.shore_step_has_sent)

    def discard(self):
        """Discards what the drives have written of the next step."""
        self.step.tell(lib.shore_step_unmake)
        self.streams.tier.forget()
        self.made, self.has_pass = {}, False

    def make_empty(self):
        """Makes a step that changes no parameter."""
        self.step.tell(lib.shore_step_decide)
        self.step.call(lib.shore_step_make)

    def begin(self, keep=False):
        """Begins the next step: discards updates that were sent. No commit may be pending. keep: p.grad stays as it is
        after a step; otherwise all gradients are dropped."""
        if not keep:
            self.shown.drop()
            self.adds = self.shows_made = False
        if self.step is not None:
            self.step.tell(lib.shore_step_begin, self.streams.state.step, False)
        if self.landing is not None:
            self.landing.forget()
        self._inspected, self._in_hooks, self._task, self._any_spilled = None, set(), None, False
        if self.over_ranks is not None:
            self.over_ranks.begin()
        for block in self.blocks:
            zero = {index: g for index, g in block.held.items() if keep and is_zeros(g)}
            block.clear()
            block.held, block.arrived = zero, {*zero}

    def end_gathering(self):
        """What the step has gathered are the last step's gradients from here on."""
        self.shown.end_last(self)
        self._drop_unneeded()
        self.made = {number: block for number, block in enumerate(self.blocks) if block.arrived}
        self.blocks = [BlockGradients() for _ in self.blocks]
        self.shows_made, self.adds, self._inspected_made = True, False, None

    def end_step(self, changed, made):
        """The drives have every update. changed: numbers of changed blocks; made: whether gradients made the step."""
        if made:
            if any(block.arrived for block in self.blocks):
                self.end_gathering()
            self.step.tell(lib.shore_step_made)
        for number in () if made else set(range(len(self.blocks))) - set(changed):
            self.step.tell(lib.shore_step_carried, number)
        self.has_pass = False

    def durable(self):
        """The last step is durable: frees its gradients."""
        if self.step is not None:
            self.step.tell(lib.shore_step_durable)
            self._drop_unneeded()

    def end(self):
        if self.over_ranks is not None:
            self.over_ranks.end()
            self.over_ranks = None
        if self.step is not None:
            self.step.close()
        self.step, self.made, self._buffer = None, {}, None

    def abandon(self):
        """Forgets everything, in a forked process."""
        self.step = None
        self.begin(keep=True)  # p.grad stays, and says that the run is the parent's
        self.made = {}
