"""The gradients of a step: taken as autograd completes them, added up in fp32, kept in memory or put aside on the drives,
and handed to UPDATE as soon as the step allows it.

Where the number of backward passes is known (Engine.accumulate), the last one updates each block as soon as its gradients
are there, as if nothing will be clipped. Gradients are kept until the step is decided: if the norm says otherwise, the
attempt is discarded and everything is updated again with the right coefficient.
"""

import contextlib
import weakref

import torch

from . import device, mending
from .errors import LongshoreError
from .gathered import Shown
from .interrupts import whole
from .native import SEGMENT, ffi, lib
from .state import PIECE, Buffer


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
            raise LongshoreError("backward: the engine was dropped, and with it is closed; longshore.resume() opens its run again")
        there.coming(there.streams.blocks[block].parameters[number][0])

    return coming


class BlockGradients:
    """Of one block: by the index of its tensors."""

    __slots__ = ("held", "spilled", "had", "sums_of", "fired")

    def __init__(self):
        self.clear()

    def clear(self):
        self.held = {}  # in memory
        self.spilled = None  # the request that puts it aside, or True
        self.had = set()  # tensors that got a gradient in this step
        self.sums_of = False  # its sum of squares is known
        self.fired = {}  # how often each came in this pass


class Gradients:
    def __init__(self, state, streams, room_bytes):
        """room_bytes: of gradients that are kept in memory; what is more goes to the drives."""
        self.state, self.streams, self.room = state, streams, room_bytes
        self.blocks = [BlockGradients() for _ in streams.blocks]
        self.trains = [{h.index for p, h in s.parameters if p.requires_grad} for s in streams.blocks]
        self.held_bytes = 0
        trained = [p for s in streams.blocks for p, _ in s.parameters if p.requires_grad]
        self._elems, self._nbytes = sum(p.numel() for p in trained), sum(p.numel() * p.element_size() for p in trained)
        self.sums = ffi.new("double[]", state.layout.c.segments)
        self.clip = ffi.new("struct shore_clip *")
        self.passes = 1  # backward passes that run together
        self.on_complete = None  # called with the number of a block whose gradients are all there
        self.in_order = None  # gives those of a parameter that may be added, where micro-batches take turns
        self.on_aside = None  # and of one whose gradients leave memory
        self._leaving = []  # spills under way: (block, bytes)
        self._buffer = self._brought = None  # the block whose gradients somebody looks at
        self.shown = Shown()
        self.came = False  # a backward pass, since the step that was made last
        self.own, self._task = False, None  # whether the engine runs a pass; autograd's number of one that it does not
        self.scratch_sums = ffi.new("double[]", state.layout.c.segments)
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
                    self.ends[id(p)] = [first.id, p.register_post_accumulate_grad_hook(lambda p: there().take_back(p)).id]

    def drop_of(self, parameters):
        """Gradients of these count nowhere."""
        for p in parameters:
            self.nobodys.add(id(p))
            self.trains[p.longshore.block.number].discard(p.longshore.index)

    def most_bytes(self, several):
        """Of all gradients of a step together. several: passes are added up, in fp32."""
        return 4 * self._elems if several or self.passes > 1 else self._nbytes

    def hide(self):
        """A pass begins, or the step is made: what somebody has done to p.grad counts. With no gradient left it is begun anew."""
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
        """A parameter gets a gradient. A script's own loss.backward() is a pass, too; one within another ends before it."""
        if len(p._post_accumulate_grad_hooks) > 2:
            self._enclose(p._post_accumulate_grad_hooks, self.ends[id(p)])
        task = torch._C._current_graph_task_id()
        if not self.own and task != self._task:
            engine = self.streams.engine()
            if engine is None or engine.state is None:
                raise LongshoreError(f"backward: {self.streams.why}")
            engine._begin_pass()
            self._task, self.came = task, True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_others)

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
        with torch._C.DisableTorchFunctionSubclass():
            return next((h.name for s in self.streams.blocks for p, h in s.parameters
                         if id(p) in self.ends and len(p._post_accumulate_grad_hooks) + len(p._backward_hooks) > 3), None)

    def take(self, p):
        """The first post-accumulate hook of a parameter. Where a script has others, p.grad is the sum so far, as in PyTorch."""
        g, p.grad = p.grad, None
        if g is None or id(p) in self.nobodys:
            return
        if len(p._post_accumulate_grad_hooks) == 2:
            for due in self.in_order(p, g) if self.in_order else (g,):
                self.add(p, due)
            return
        handle = p.longshore
        if self.landing is not None:
            self.landing.end()
        self._sum(p, g.cpu())
        if self.blocks[handle.block.number].spilled:
            self._make_whole(handle.block.number)
        p.grad = self.blocks[handle.block.number].held[handle.index].to(p.device, p.dtype)
        self._lent[id(p)] = p.grad, p.grad._version

    def take_back(self, p):
        """The last one: what the others have made of p.grad counts."""
        lent, version = self._lent.pop(id(p), (None, 0))
        if lent is None:
            return
        g, p.grad = p.grad, None
        handle = p.longshore
        sum = self.blocks[handle.block.number].held[handle.index]
        same = g is lent and g._version == version and g.is_contiguous() and (g is sum or torch.equal(g, sum.to(g.device, g.dtype)))
        if not same:
            value = g if g is None else (g.to_dense() if g.is_sparse else g).detach().to("cpu", torch.float32, copy=True).contiguous()
            self.replace(handle.block.number, handle.index, value)
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
        if handle.index in block.held and block.spilled:
            with self._mended():
                self._make_whole(handle.block.number)  # the sum so far is added to first
        old = block.held.get(handle.index)
        if old is None:
            block.held[handle.index] = g if g.is_contiguous() else g.contiguous()
            self.held_bytes += g.nbytes
        elif old.dtype == torch.float32:
            old.add_(g)
        else:
            block.held[handle.index] = old.float().add_(g)
            self.held_bytes += old.nbytes
        block.had.add(handle.index)
        block.fired[handle.index] = block.fired.get(handle.index, 0) + 1
        block.sums_of = False

    def _is_complete(self, number):
        fired = self.blocks[number].fired
        return all(fired.get(t, 0) >= self.passes for t in self.trains[number])

    def complete(self, number):
        if not self.blocks[number].had:
            return  # a hook has taken all of it away
        with self._mended():
            if self.on_complete:
                self.on_complete(number)
            if self.held_bytes > self.room:
                self._put_aside(number)

    @contextlib.contextmanager
    def _mended(self):
        try:
            yield
        except LongshoreError as lost:
            mending.mend(self.streams.engine(), lost)  # the step updates it

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
            self.shown.show(p for s in self.streams.blocks for p, h in s.parameters if h.index in self.blocks[s.number].had)

    def _put_aside(self, number):
        block = self.blocks[number]
        if not block.held:
            return
        self._make_whole(number)
        gather = self.gather(number)
        self._count(number, gather)
        held = block.held
        nbytes = sum(g.nbytes for g in held.values())
        block.spilled = self.state.spill(number, gather, keeps=held)
        block.held = {}
        self.on_aside(number)
        self._leaving.append((block, nbytes))
        while self.held_bytes > self.room and self._leaving:
            self._settle(self._leaving[0][0])

    def _make_whole(self, number):
        """What was put aside before is added to what came since."""
        block = self.blocks[number]
        self._settle(block)
        if block.spilled and block.held:
            self._bring(number)

    def _settle(self, block):
        """Waits for a spill that is under way."""
        for i, (leaving, nbytes) in enumerate(self._leaving):
            if leaving is block:
                del self._leaving[i]
                block.spilled.result()
                block.spilled = True
                self.held_bytes -= nbytes
                return

    def _bring(self, number):
        """Adds what lies on the drives to what is held, which becomes fp32."""
        layout, block = self.state.layout, self.blocks[number]
        alone = block.had - block.held.keys()
        for index in block.had:
            g = block.held.get(index)
            self.held_bytes -= g.nbytes if g is not None else 0
            block.held[index] = torch.empty(layout.blocks[number].tensors[index].shape) if g is None else g.float()
            self.held_bytes += block.held[index].nbytes
        if self._buffer is None:
            self._buffer = Buffer(PIECE * SEGMENT * 4)
        values = self._buffer.view(torch.float32)
        for segment, count, inside in layout.pieces(number):
            self.state.fetch(number, lib.SHORE_FETCH_SPILLED, self._buffer.pointer, segment, count).result()
            for index, at, first, last in inside:
                if index in block.had:
                    sum, before = block.held[index].view(-1)[first:last], values[at:at + last - first]
                    sum.copy_(before) if index in alone else sum.add_(before)
        block.spilled = None

    def bring(self, number):
        """For somebody who looks at it: what was put aside is there, until another block is looked at."""
        before, self._brought = self._brought, number
        if before not in (None, number) and self.held_bytes > self.room:
            self._put_aside(before)
        self._settle(self.blocks[number])
        self._bring(number)

    def replace(self, number, index, value):
        """Another gradient in the place of one that is in memory; None: the tensor has none."""
        block = self.blocks[number]
        self.held_bytes += (0 if value is None else value.nbytes) - block.held[index].nbytes
        block.held[index], block.sums_of = value, False
        if value is None:
            del block.held[index]
            block.had.discard(index)

    # ---- what the step needs

    def gathered(self):
        """Numbers of the blocks that have any. What a script has put into p.grad itself counts, also of parameters that no pass has reached."""
        self.hide()
        with torch._C.DisableTorchFunctionSubclass():
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
            raise LongshoreError(f"engine.step: no backward pass has come since step {self.state.step} was made; call engine.backward(loss) "
                                 "or loss.backward() before it")

    def gather(self, number):
        return self.state.gather(number, self.blocks[number].held)

    def _count(self, number, gather):
        """The sums of squares of a block, by segment."""
        block = self.blocks[number]
        if block.sums_of:
            return
        lib.shore_clip_begin(self.clip, self.state.layout.c, 0, self.scratch_sums)
        lib.shore_clip_add_gathered(self.clip, number, 0, self.state.layout.segments[number], gather[0], gather[1])
        first, n = self.state.layout.first_segment[number], self.state.layout.segments[number]
        ffi.memmove(self.sums + first, self.scratch_sums + first, n * 8)
        block.sums_of = True

    def add_to_clip(self, number):
        """True: what has been added so far is below the limit."""
        self._make_whole(number)
        if self.blocks[number].held:
            self._count(number, self.gather(number))
        first = self.state.layout.first_segment[number]
        return self.state.add_sums(number, self.sums + first)

    def source(self, number):
        """What UPDATE reads: a gather list, or None for what lies on the drives."""
        self._make_whole(number)
        return self.gather(number) if self.blocks[number].held else None

    def abandon(self):
        """Drops all without waiting for what is under way."""
        self._leaving = []
        self.clear()

    def clear(self):
        if self.landing is not None:
            with contextlib.suppress(LongshoreError):
                self.landing.end()
        for block, _ in self._leaving:
            block.spilled.settle()  # whatever came of it: nobody asks for it any more
        self._leaving, self._brought, self._lent = [], None, {}
        self.shown.forget()
        for block, streamed in zip(self.blocks, self.streams.blocks):
            block.clear()
            for p, _ in streamed.parameters:
                p.grad = None  # of a backward that was broken off before take()
        self.held_bytes = 0
