"""The gradients of a step: taken as autograd completes them, and added up in fp32. What becomes of a block's when they
are complete, the library decides (gradient_step.py): they wait here, or on the drives, or are updated with at once.
"""

import contextlib
import weakref

import torch

from ..errors import LongshoreError
from ..interrupts import whole
from ..model import device
from ..native import SEGMENT, lib
from ..run.state import PIECE, Buffer
from ..torch_internals import (
    DisableTorchFunctionSubclass,
    at_end_of_backward,
    grad_hooks,
    graph_task,
    post_accumulate_hooks,
    version_of,
)
from . import recovery
from .grad_attribute import Shown
from .gradient_step import Step
from .optimizers import hypers


def parts_of(accumulate):
    """What a loss is divided by: engine.accumulate, as somebody has set it."""
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"engine.accumulate = {accumulate!r}: it is how many backward passes make a step, 1 or more")
    return accumulate


def _coming(gradients, block, number):
    """A hook of a parameter."""
    def coming(gradient):
        there = gradients()
        if there is None:
            raise LongshoreError("backward: the engine was dropped, and with it is closed; longshore.resume() opens "
                                 "its run again")
        there.coming(there.streams.blocks[block].parameters[number][0])

    return coming


class BlockGradients:
    """Of one block: by the index of its tensors."""

    __slots__ = ("held", "aside", "had", "given", "more_bytes", "fired")

    def __init__(self):
        self.clear()

    def clear(self):
        self.held = {}  # in memory
        self.aside = False  # what is on the drives is to be added to that
        self.had = set()  # tensors that got a gradient in this step
        self.given = False  # the step knows them as they are
        self.more_bytes = 0  # of what is held: by how much it is more, or less, than what the step knows of
        self.fired = {}  # how often each came in this pass


class Gradients:
    speculate = lib.SHORE_SPECULATE_AUTO

    def __init__(self, streams, room_bytes):
        """room_bytes: of gradients that are kept in memory; what is more goes to the drives."""
        self.state = self.step = None  # that are open
        self.streams, self.room = streams, room_bytes
        self.blocks = [BlockGradients() for _ in streams.blocks]
        self.trains = [{h.index for p, h in s.parameters if p.requires_grad} for s in streams.blocks]
        self.more_bytes = 0  # of all blocks
        trained = [p for s in streams.blocks for p, _ in s.parameters if p.requires_grad]
        self._elems, self._nbytes = sum(p.numel() for p in trained), sum(p.numel() * p.element_size() for p in trained)
        self.passes = 1  # backward passes that run together
        self.in_order = None  # gives those of a parameter that may be added, where micro-batches take turns
        self._leaving = set()  # numbers of blocks whose gradients leave memory
        # of the step that was made last, by number of the block, as long as they are needed; while it is sent again
        self.made, self._again = {}, {}
        self._buffer = self._brought = None  # the block whose gradients somebody looks at
        self.shown = Shown()
        self.came = False  # a backward pass, since the step that was made last
        self.own, self._task = False, None  # whether the engine runs a pass; autograd's number of one that it does not
        self.nobodys = set()  # ids of parameters whose gradients are dropped as they come
        self.ends = {}  # by a parameter's id: the keys of take() and take_back() among its post-accumulate hooks
        self._lent = {}  # by a parameter's id: what its other hooks see as p.grad, and its version
        self.landing = None if streams.away is None else device.Landing(streams.away.device)

    def hook(self):
        """Lets gradients come here. All references are weak, since what tensors hold is not seen by the collector."""
        there = weakref.ref(self)
        for streamed in self.streams.blocks:
            for number, (p, _) in enumerate(streamed.parameters):
                if p.requires_grad:
                    p.register_hook(_coming(there, streamed.number, number))
                    first = p.register_post_accumulate_grad_hook(lambda p: there().take(p))
                    self.ends[id(p)] = [first.id,
                                        p.register_post_accumulate_grad_hook(lambda p: there().take_back(p)).id]

    def drop_of(self, parameters):
        """Gradients of these count nowhere."""
        for p in parameters:
            self.nobodys.add(id(p))
            self.trains[p.longshore.block.number].discard(p.longshore.index)

    @property
    def held_bytes(self):
        return sum(g.nbytes for block in self.blocks for g in block.held.values())

    def most_bytes(self, several):
        """Of all gradients of a step together. several: passes are added up, in fp32."""
        return 4 * self._elems if several or self.passes > 1 else self._nbytes

    def hide(self):
        """A pass begins, or the step is made: what somebody has done to p.grad counts. With no gradient left it is
        begun anew."""
        if self.shown.hide() and not any(block.had for block in self.blocks):
            self.streams.engine().drop_gradients()

    # ---- as they come

    @contextlib.contextmanager
    def own_pass(self):
        """While the engine runs a backward pass."""
        self.own = self.came = True
        try:
            yield
        except BaseException:
            self.came = False
            raise
        finally:
            self.own = False

    def coming(self, p):
        """A parameter gets a gradient. A script's own loss.backward() is a pass, too; one within another ends before
        it."""
        if len(post_accumulate_hooks(p)) > 2:
            self._enclose(post_accumulate_hooks(p), self.ends[id(p)])
        task = graph_task()
        if not self.own and task != self._task:
            engine = self.streams.engine()
            if engine is None or engine.state is None:
                raise LongshoreError(f"backward: {self.streams.why}")
            engine.cycle.begin_pass()
            self._task, self.came = task, True
            at_end_of_backward(self._end_of_others)

    @whole
    def _end_of_others(self):
        self._task = None
        self.end_of_backward()

    def _enclose(self, hooks, ends):
        """Those of a script, whenever it has set them, between take() and take_back()."""
        keys = [*hooks]
        if [keys[0], keys[-1]] != ends:
            items = {key: hooks[key] for key in (ends[0], *(key for key in keys if key not in ends), ends[1])}
            hooks.clear()
            hooks.update(items)

    def hooked(self):
        """The name of a parameter whose gradients a script's own hooks see; None: there is none."""
        with DisableTorchFunctionSubclass():
            return next((h.name for s in self.streams.blocks for p, h in s.parameters
                         if id(p) in self.ends and len(post_accumulate_hooks(p)) + len(grad_hooks(p)) > 3), None)

    def take(self, p):
        """The first post-accumulate hook of a parameter. Where a script has others, p.grad is the sum so far, as in
        PyTorch."""
        g, p.grad = p.grad, None
        if g is None or id(p) in self.nobodys:
            return
        if len(post_accumulate_hooks(p)) == 2:
            for due in self.in_order(p, g) if self.in_order else (g,):
                self.add(p, due)
            return
        handle = p.longshore
        if self.landing is not None:
            self.landing.end()
        self._sum(p, g.cpu())
        if self.blocks[handle.block.number].aside:
            self._bring(handle.block.number)
        p.grad = self.blocks[handle.block.number].held[handle.index].to(p.device, p.dtype)
        self._lent[id(p)] = p.grad, version_of(p.grad)

    def take_back(self, p):
        """The last one: what the others have made of p.grad counts."""
        lent, version = self._lent.pop(id(p), (None, 0))
        if lent is None:
            return
        g, p.grad = p.grad, None
        handle = p.longshore
        sum = self.blocks[handle.block.number].held[handle.index]
        same = (g is lent and version_of(g) == version and g.is_contiguous()
                and (g is sum or torch.equal(g, sum.to(g.device, g.dtype))))
        if not same:
            if g is not None:
                g = (g.to_dense() if g.is_sparse else g).detach().to("cpu", torch.float32, copy=True).contiguous()
            self.replace(handle.block.number, handle.index, g)
        if self._is_complete(handle.block.number):
            self.complete(handle.block.number)

    def add(self, p, g):
        if self.landing is not None and g.device.type != "cpu":
            self.landing.begin(g, lambda here: self.add(p, here))
            return
        self._sum(p, g)
        if self._is_complete(p.longshore.block.number):
            self.complete(p.longshore.block.number)

    def _sum(self, p, g):
        handle = p.longshore
        block = self.blocks[handle.block.number]
        if g.is_sparse:
            g = g.to_dense()
        with self._mended():
            self._take_up(handle.block.number)
            if block.aside and handle.index in block.held:
                self._bring(handle.block.number)  # the sum so far is added to first
        old = block.held.get(handle.index)
        if old is None:
            block.held[handle.index] = g if g.is_contiguous() else g.contiguous()
            self._count(block, g.nbytes)
        elif old.dtype == torch.float32:
            old.add_(g)
        else:
            block.held[handle.index] = old.float().add_(g)
            self._count(block, old.nbytes)
        block.had.add(handle.index)
        block.fired[handle.index] = block.fired.get(handle.index, 0) + 1

    def _is_complete(self, number):
        fired = self.blocks[number].fired
        return all(fired.get(t, 0) >= self.passes for t in self.trains[number])

    def complete(self, number):
        if not self.blocks[number].had or self.blocks[number].given:
            return  # a hook has taken all of it away
        engine = self.streams.engine()
        engine.meter.block_ended()
        with self._mended():
            self._hand_over(number, engine, engine.cycle.last)

    def _hand_over(self, number, engine, last):
        """last: no other pass adds to it."""
        self._give(number, not last)
        if last:
            self.step.groups(number, hypers(engine, number))
            if engine.compression and self.step.tell(lib.shore_step_speculates):
                engine.settle()  # the residual is the committed step's
        if self.step.complete(number, self.more_bytes):
            self._leaving.add(number)
        self._sweep()

    @contextlib.contextmanager
    def _mended(self):
        try:
            yield
        except LongshoreError as lost:
            recovery.mend(self.streams.engine(), lost)  # the step updates it

    def end_of_pass(self):
        """What autograd has not completed gets nothing more in this pass."""
        if self.landing is not None:
            self.landing.end()
        for number, block in enumerate(self.blocks):
            if block.fired and not self._is_complete(number):
                self.complete(number)
            block.fired.clear()

    def end_of_backward(self):
        """Nobody computes until the next pass begins, or the step is made."""
        self.end_of_pass()
        self.streams.rest()
        self.show()

    def show(self):
        """For whoever asks for p.grad until the next pass begins, or the step is made."""
        if any(block.had for block in self.blocks):
            self.shown.show(p for s in self.streams.blocks
                            for p, h in s.parameters if h.index in self.blocks[s.number].had)

    def _count(self, block, nbytes):
        block.more_bytes += nbytes
        self.more_bytes += nbytes

    def _give(self, number, more=False):
        """The step gets to know what there is of a block. more: another pass adds to it."""
        block = self.blocks[number]
        if block.given:
            return
        if block.aside:
            self._bring(number)
        self.step.add(number, self.state.gather(number, block.held), more)
        self._count(block, -block.more_bytes)
        block.given = True

    def _take_up(self, number):
        """Somebody changes what the step was given of a block, which nobody reads any more."""
        if self.blocks[number].given:
            self.step.tell(lib.shore_step_wait, number)
            self._settle(number)
            self.blocks[number].given = False

    def _settle(self, number):
        """Of a block whose gradients leave memory: they have left, as the step knows from here on."""
        if self.step.is_aside(number) and number in self._leaving:
            self.step.tell(lib.shore_step_wait, number)  # an update may read it still
            self._left(number)

    def _left(self, number):
        self._leaving.discard(number)
        self.blocks[number].held, self.blocks[number].aside = {}, True

    def _sweep(self):
        """What nobody needs any more goes."""
        for number in [n for n in self._leaving if not self.step.tell(lib.shore_step_needs, n)]:
            self._left(number)
        if self.made and not self.step.tell(lib.shore_step_made_needs):
            self.made = {}

    def _bring(self, number):
        """Adds what lies on the drives to what is held, which becomes fp32."""
        layout, block = self.state.layout, self.blocks[number]
        alone = block.had - block.held.keys()
        for index in block.had:
            g = block.held.get(index)
            block.held[index] = torch.empty(layout.blocks[number].tensors[index].shape) if g is None else g.float()
            self._count(block, block.held[index].nbytes - (0 if g is None else g.nbytes))
        if self._buffer is None:
            self._buffer = Buffer(PIECE * SEGMENT * 4)
        values = self._buffer.view(torch.float32)
        for segment, count, inside in layout.pieces(number):
            self.state.fetch(number, lib.SHORE_FETCH_SPILLED, self._buffer.pointer, segment, count).result()
            for index, at, first, last in inside:
                if index in block.had:
                    sum, before = block.held[index].view(-1)[first:last], values[at:at + last - first]
                    sum.copy_(before) if index in alone else sum.add_(before)
        block.aside = False

    def bring(self, number):
        """For somebody who looks at it: what was put aside is there, until another block is looked at."""
        self._settle(number)
        block, before = self.blocks[number], self._brought
        if not block.aside:
            return
        if before is not None:
            self._put_back(before)
        self._bring(number)
        self._brought = number

    def _put_back(self, number):
        block = self.blocks[number]
        if not block.given:
            self._hand_over(number, self.streams.engine(), False)
        # as it was; otherwise it was handed over since, and is held
        elif not block.aside and self.step.is_aside(number):
            self._count(block, -block.more_bytes)
            self._left(number)

    def replace(self, number, index, value):
        """Another gradient in the place of one that is in memory; None: the tensor has none."""
        block = self.blocks[number]
        self._take_up(number)
        self._count(block, (0 if value is None else value.nbytes) - block.held[index].nbytes)
        block.held[index] = value
        if value is None:
            del block.held[index]
            block.had.discard(index)
        if not block.had:
            self.step.tell(lib.shore_step_forget, number)
            self._count(block, -block.more_bytes)

    # ---- what the step needs

    def gathered(self):
        """Numbers of the blocks that have any. What a script has put into p.grad itself counts, also of parameters that
        no pass has reached."""
        self.hide()
        with DisableTorchFunctionSubclass():
            for p in [p for s in self.streams.blocks for p, _ in s.parameters if p.grad is not None]:
                g, p.grad = p.grad, None
                if p.requires_grad and id(p) not in self.nobodys:
                    self._sum(p, g.cpu())
                    self.came = True
        for block in self.blocks:
            block.fired.clear()
        return [number for number, block in enumerate(self.blocks) if block.had]

    def refuse_none(self):
        if not self.came:
            raise LongshoreError(f"engine.step: no backward pass has come since step {self.state.step} was made; call "
                                 "engine.backward(loss) or loss.backward() before it")

    def decide(self, clip):
        """struct shore_clipping of what has come."""
        for number in self.gathered():
            self._give(number)
        self.step.tell(lib.shore_step_clip_at, clip or 0)
        return self.step.tell(lib.shore_step_decide)

    def make(self):
        """The step as it was decided. Returns the numbers of the blocks that it changes."""
        engine, changed = self.streams.engine(), [number for number, block in enumerate(self.blocks) if block.had]
        for number in changed:
            self.step.groups(number, hypers(engine, number))
        self.step.call(lib.shore_step_make)
        return changed

    # ---- from one step to the next

    def open(self, state):
        """Of a state whose pages are there."""
        self.end()
        engine, self.state = self.streams.engine(), state
        self.step = Step(self.streams, state, self._encode if engine.compression else None, room_bytes=self.room,
                         speculate=self.speculate)
        self.begin()

    def _encode(self, number, request):
        engine = self.streams.engine()
        return engine.compression.encode(engine, number, request, self._again.get(number))

    def send_again(self):
        """The step that was made last, as Step.send_again()."""
        self._again = self.made
        try:
            return self.step.send_again()
        finally:
            self._again = {}

    def begin_pass(self, engine, several):
        """Whether state is to be read that stays in the memory which gradients leave. It does not where they are
        compressed: what that leaves out is read anyway. several: as most_bytes() has it."""
        self.step.tell(lib.shore_step_clip_at, engine.how["clip"] or 0)
        spare, most, aside = engine.plan.spare_bytes, self.most_bytes(several), engine.plan.aside_bytes
        return not engine.compression and self.step.tell(lib.shore_step_hold_state, spare, most, aside)

    def has_sent(self):
        """Whether an update of the step that comes is under way, or has ended."""
        return self.step is not None and self.step.tell(lib.shore_step_has_sent)

    def discard(self):
        """What was written of the next step."""
        self.step.tell(lib.shore_step_unmake)
        self.streams.contents += 1
        self.made = {}

    def make_of_nothing(self):
        """A step in which all stays."""
        self.step.tell(lib.shore_step_decide)
        self.step.call(lib.shore_step_make)

    def begin(self):
        """Of the next step; those that came are forgotten, and what was sent of them is discarded, while no commit is
        pending."""
        if self.step is not None:
            if self.landing is not None:
                with contextlib.suppress(LongshoreError):
                    self.landing.end()
            self.step.tell(lib.shore_step_begin, self.state.step, False)
        self.clear()

    def end_step(self, changed, made):
        """The next state is on its way to the drives. changed: numbers of its blocks that are others; made: of
        gradients, or of nothing."""
        if made:
            self.made = {number: block.held for number, block in enumerate(self.blocks) if block.held}
            self.step.tell(lib.shore_step_made)
        for number in () if made else set(range(len(self.blocks))) - set(changed):
            self.step.tell(lib.shore_step_carried, number)
        self.came = False

    def durable(self):
        """The step that was made last."""
        if self.step is not None:
            self.step.tell(lib.shore_step_durable)
            self._sweep()

    def end(self):
        if self.step is not None:
            self.step.close()
        self.step, self.made = None, {}

    def abandon(self):
        """Drops all, in a process that has none of it."""
        self.state = self.step = None
        self.made = {}
        self.clear()

    def clear(self):
        self._leaving, self._brought, self._lent, self.more_bytes = set(), None, {}, 0
        self.shown.forget()
        for block, streamed in zip(self.blocks, self.streams.blocks):
            block.clear()
            for p, _ in streamed.parameters:
                p.grad = None  # of a backward that was broken off before take()
