"""A step layer by layer: every block is fetched once for all micro-batches, forward and backward.

Forward, each micro-batch runs the unmodified model in a thread of its own, since nothing else lets Python code wait in
its middle, and one of them at a time has the turn: at every block's gate it goes to the next, so that all are at the
same block. Backward is one pass of autograd for all of them. Gradients are added in the order of the micro-batches, and
random numbers inside the model follow from the step and the micro-batch, so that the bits are those of the ordinary
loop.
"""

import contextlib
import contextvars
import copy
import functools
import logging
import threading

import torch

from ..errors import LongshoreError
from ..interrupts import whole
from ..model.device import accelerators
from ..model.forward_scope import checkpoint_that_saves
from ..run import commit_blob
from ..torch_internals import enter_mode, in_backward, modes
from . import recovery
from .micro_batch_graphs import Graphs
from .module_changes import Left
from .side_effects import Watch

_log = logging.getLogger("longshore")


class _Stopped(BaseException):
    """Another micro-batch has failed."""


def _seen(what):
    return LongshoreError(f"train_batch: {what} is changed by a micro-batch, and the others have begun with what it "
                          "was before; call backward() for each of them, and then step() (in a Trainer: "
                          "layer_major=False)")


class Turns:
    def __init__(self, engine, losses_of, left, watch):
        """losses_of: for each micro-batch what gives its loss, which is differentiated."""
        self.engine, self.losses_of, self.count, self.left, self.watch = engine, losses_of, len(losses_of), left, watch
        self.graphs = Graphs(self.count, engine.together.nodes)
        self.graphs.apart = engine.streams.activations is not None
        self.turn, self.who = 0, threading.get_ident()
        # whether the first one goes through the model before the others begin, so that what it changes is known
        self.probing = False
        # whether each goes on to its end, the first of them first: what goes from one to the next is then as in a loop
        self.alone = False
        # over: its forward pass; done: all
        self.begun, self.over, self.done = [False] * self.count, [False] * self.count, [False] * self.count
        self.losses = [None] * self.count
        self.giving = None  # the only one that is in backward; with several, whose saved tensors were asked for last
        self.again = {}  # by layer: what was changed of it when it began to be computed again
        # by parameter: itself, gradients that came before those of other micro-batches, and whose were added
        self.early = {}
        self.changed = threading.Condition()
        self.started = False  # whether there are threads
        self.failure = self.written = None
        self.mine = threading.local()
        self.outside = None  # random numbers as they are for whoever is in no forward pass of the model

    @property
    def number(self):
        """Of the micro-batch that computes, forward or backward."""
        return getattr(self.mine, "number", self.giving)

    def gate(self, layer):
        """The forward of a layer begins. The next micro-batch goes on up to its own gate; returns when it is this one's
        turn again, which computes the layer then."""
        if in_backward():
            self.check(layer)
            self.again[layer] = self.left.changed(layer)
            return
        me = getattr(self.mine, "number", None)
        if me is None:
            return
        if checkpoint_that_saves() is not None:
            self.graphs.apart = True  # what is computed again is in memory for one of them at a time
        if not self.alone:
            self._refuse_seen(me, self.watch.changed())
            self._wait_at(layer, me)
        elif self.probing:
            self.written = self.written or self.watch.changed(layer)
        self.mine.entered[layer] = self.left.changed(layer)

    def check(self, layer):
        """Within backward: raises where one micro-batch has changed what others will see."""
        if self.probing:
            self.written = self.written or self.watch.changed(layer)
        if self.alone or self.engine.streams.inside.modules:
            return
        written = self.watch.changed()
        found = self.left.take({self.left.rest, self.left.of[layer][1]})
        self.left.put(found.private)
        if written or found.changes:
            raise _seen(written or self.left.name(found.changes[0]))

    def _wait_at(self, layer, me):
        random = commit_blob.random_now()
        inside = self.engine.own_random.begun
        if not inside:
            self.outside = random
        found = self.left.take(self._groups(layer))
        if found.changes:
            self.go_alone(f"{self.left.name(found.changes[0])} is changed within a pass")
        self._end_turn(me)
        self._pass(me)
        self._await(me)
        commit_blob.put_random(random if inside else self.outside)
        self.left.put(found.private + found.changes)
        self.mine.touched = found.groups

    def _groups(self, layer):
        """Where the part of a pass that ends here may have left something. From one layer to the next that is what is
        outside of layers and those two; code of somebody else runs before the first and after the last one of a pass.
        None: anywhere."""
        number, group = self.left.of[layer]
        before, computed = getattr(self.mine, "at", (None, None))
        self.mine.at = number, group
        if before is None or number <= before:
            return None
        return {self.left.rest, computed, group, *self.mine.touched}

    def leave(self, layer):
        """The forward of a layer ends."""
        if in_backward():
            self.left.accept(layer, self.again.get(layer, ()), True)
        elif getattr(self.mine, "number", None) is not None:
            self.left.accept(layer, self.mine.entered.get(layer, ()), False)
            if layer not in self.mine.computed and (self.probing or not self.alone):
                self.mine.computed.add(layer)  # a second time in a pass, others have been here in between
                self.watch.note(layer)

    def show(self, streamed):
        """The parameters of a block may be computed with."""
        if getattr(self.mine, "number", None) is not None and not in_backward():
            self.graphs.show(self.mine.number, [p for p, _ in streamed.parameters])

    def _end_probe(self):
        self.probing = False
        found = self.left.take()
        self.left.put(found.changes)
        written = self.written or self.watch.changed() or (self.left.name(found.changes[0]) if found.changes else None)
        self.engine.together.probed, self.watch.probing = not written, False
        if written:
            self.go_alone(f"{written} is changed within a pass")
        else:
            self.alone = False

    def _refuse_seen(self, me, written):
        """What is changed so stays changed: before others have begun, they go alone; later they have seen what it was
        before."""
        if written and any(self.begun[n] and not self.done[n] for n in range(self.count) if n != me):
            raise _seen(written)
        if written:
            self.engine.together.probed = False
            self.go_alone(f"{written} is changed within a pass")

    def go_alone(self, why):
        """From here on one micro-batch after the other."""
        self.alone = True
        if not self.engine.together.said_alone:
            self.engine.together.said_alone = True
            _log.info("train_batch: %s: the micro-batches of a step are computed one after the other", why)

    def _end_pass(self, me):
        """Of a micro-batch, forward, or all of it. Those that wait have begun with the modules as they were when it had
        not changed them."""
        if self.probing:
            self._end_probe()
        elif any(self.begun[n] and not self.done[n] for n in range(self.count) if n != me):
            self._refuse_seen(me, self.watch.changed())
        self.watch.note()
        others = [n for n in range(self.count) if not self.over[n] and n != me]
        if not others:
            return
        found = self.left.take()
        if found.changes and any(self.begun[n] for n in others):
            raise _seen(self.left.name(found.changes[0]))
        self.left.put(found.changes)

    # ---- backward

    def backward(self, numbers):
        """Of these micro-batches, whose forward passes are over, in one pass."""
        gradients = self.engine.gradients
        self.engine.cycle.last, gradients.passes = numbers[-1] == self.count - 1, len(numbers)
        self.giving = numbers[0] if len(numbers) == 1 else None
        roots = [(self.losses[n], None) for n in numbers] + [(root, torch.zeros_like(root)) for n in numbers
                                                             for root in self.graphs.roots(n)]
        torch.autograd.backward(*zip(*roots))
        self.giving = None
        for n in numbers:
            self.done[n] = True
            self.losses[n] = self.losses[n].detach()
        for p, early, given in self.early.values():
            for g in self._due(early, given) if early else ():
                gradients.add(p, g)
        if self.alone:
            gradients.end_of_pass()

    def finish(self):
        """The backward pass of all that have none yet."""
        rest = [n for n in range(self.count) if not self.done[n]]
        if self.alone:
            for n in rest:
                self.backward([n])
        elif rest:
            before = self.left.take()
            self.backward(rest)
            written, after = self.watch.changed(), self.left.take()
            if len(rest) > 1 and (written or after.changes):
                raise _seen(written or self.left.name(after.changes[0]))
            self.left.put(before.private + before.changes + after.changes)

    def in_order(self, p, g):
        """A parameter has a gradient. Returns those of it that may be added: where some micro-batches pass a layer by,
        a later one may be there first."""
        number, g = self.graphs.take(p, g)
        if g is None:
            return ()
        number = self.giving if number is None else number  # of a pass within this one
        if number is None:
            raise LongshoreError(f"{p.longshore.name}: has a gradient in train_batch() of which is not known whose "
                                 "micro-batch it is; call backward() for each of them, and then step() (in a Trainer: "
                                 "layer_major=False)")
        _, early, given = self.early.setdefault(id(p), (p, {}, set()))
        early[number] = early[number] + g if number in early else g
        return self._due(early, given)

    def _due(self, early, given):
        out = []
        for number in range(self.count):
            if number in early:
                out.append(early.pop(number))
                given.add(number)
            elif number not in given and not self.done[number]:
                break
        return out

    # ---- turns

    def _end_turn(self, me):
        self.engine.streams.rest()
        self.graphs.end_turn(me)

    def _pass(self, me):
        with self.changed:
            for by in range(1, self.count + 1):
                following = by - 1 if self.alone else (me + by) % self.count
                if not self.over[following]:
                    self.turn = following
                    break
            self.changed.notify_all()

    def _await(self, me):
        with self.changed:
            self.changed.wait_for(lambda: self.turn == me or self.failure is not None)
            if self.failure is not None:
                raise _Stopped
        self.graphs.begin_turn(me, self.alone)
        for streamed in self.engine.streams.blocks:
            if streamed.present:
                self.show(streamed)

    def run(self):
        """The forward passes of all, in turns, and where they go alone the backward passes. Raises what the first to
        fail has raised."""
        grad = torch.is_grad_enabled()
        casts = [torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=torch.is_autocast_cache_enabled())
                 for kind in ("cpu", *accelerators()) if torch.is_autocast_enabled(kind)]
        entered_modes = modes()  # of whoever trains, around a step: the micro-batches' as well
        processors = torch.get_num_threads()  # what a thread begins with, torch.set_num_threads() does not say

        def one(number):
            self.mine.number, self.mine.entered, self.mine.computed = number, {}, set()
            torch.set_num_threads(processors)
            try:
                self._await(number)
                self.begun[number] = True
                commit_blob.put_random(self.outside)
                with contextlib.ExitStack() as entered:
                    for mode in entered_modes:
                        enter_mode(*mode, entered)
                    entered.enter_context(torch.set_grad_enabled(grad))
                    for cast in casts:
                        entered.enter_context(copy.copy(cast))
                    self.losses[number] = self._forward(number)
                    self._end_turn(number)
                if self.alone and all(self.done[:number]):
                    self.backward([number])
                self._end_pass(number)
                self.outside = commit_blob.random_now()
            except _Stopped:
                pass
            except BaseException as failure:
                self.left.put(self.left.take().changes)
                with self.changed:
                    self.failure = self.failure or failure
                    self.changed.notify_all()
            finally:
                self.over[number] = True
                self._pass(number)

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(one, n),
                                    name=f"longshore-micro-batch-{n}")
                   for n in range(self.count)]
        random = self.outside = commit_blob.random_now()
        try:
            with whole:
                for t in threads if self.failure is None else ():  # a handler may have closed the engine
                    t.start()
                    self.started = True
            self._wait()  # an interrupted Thread.join() takes the thread for ended
        except BaseException as stopped:  # KeyboardInterrupt of the main thread
            self.stop(stopped)
        if self.failure is not None:
            commit_blob.put_random(random)
            raise self.failure

    def _forward(self, number):
        streams = self.engine.streams
        self.engine.own_random.turns, streams.inside.who = self, self.who
        try:
            return self.losses_of[number]()
        finally:
            streams.inside.break_off()

    def _wait(self):
        with self.changed:
            self.changed.wait_for(lambda: not self.started or all(self.over))

    @whole
    def stop(self, why):
        """Returns when no micro-batch computes any more."""
        if getattr(self.mine, "number", None) is None:
            with self.changed:
                self.failure = why
                self.changed.notify_all()
            self._wait()


class Together:
    """What an engine knows of steps whose micro-batches are computed together."""

    def __init__(self, engine):
        self.engine = engine
        self.turns = None  # of the step that is computed now
        self.said_alone = False  # that micro-batches are computed one after the other
        self.probed = False  # whether a pass has shown that they may be computed together
        self.nodes = ()  # of autograd's graph, in each round of their turns
        self.left = self.watch = None

    def stop(self):
        """Before the engine is closed."""
        if self.turns is not None:
            self.turns.stop(LongshoreError(f"engine.train_batch: {self.engine.streams.why}"))

    def backward(self, micro_batches, loss_of, divide):
        """Engine.backward_together()."""
        engine, cycle, gradients, streams = self.engine, self.engine.cycle, self.engine.gradients, self.engine.streams
        cycle.open_state("backward_together")
        gradients.hide()
        if cycle.backwards:
            raise LongshoreError("train_batch: backward() has begun a step; make it with step(), or drop_gradients()")
        count = len(micro_batches)
        parts, losses = count if divide else 1, [None] * count
        modules = dict(engine.module.named_modules())
        layers = dict.fromkeys(modules[s.block.module] for s in streams.blocks if s.block.layer
                               and s.block.module in modules)
        if self.left is None or not self.left.holds():
            self.left, self.watch = Left(engine.module, layers), Watch(engine.module, layers)

        def loss(number):
            loss = loss_of(micro_batches[number])
            losses[number] = loss.detach()
            return loss / parts if parts > 1 else loss

        turns = Turns(engine, [functools.partial(loss, n) for n in range(count)], self.left, self.watch)
        try:
            cycle.last, gradients.passes = True, count
            cycle.begin_pass()
            self.turns = turns
            if count > 1:
                streams.turns, gradients.in_order = turns, turns.in_order
                hooked = gradients.hooked()
                self.watch.begin(not self.probed and self.watch.has_any())
                if hooked:
                    turns.go_alone(f"{hooked} has a hook that sees its gradients")
                elif self.watch.probing:
                    turns.probing = turns.alone = True
            with streams.inside.differentiating(), gradients.own_pass():
                turns.run()
                turns.finish()
            with whole:
                gradients.end_of_backward()
                losses = torch.stack([loss.reshape(()).double() for loss in losses]).tolist()
                cycle.losses, cycle.backwards = sum(losses) / parts, count
                self.nodes = turns.graphs.turn_nodes
        except BaseException as failure:
            engine.drop_gradients()
            recovery.say_closed(engine, failure, "train_batch")
            raise
        finally:
            gradients.passes, streams.turns, gradients.in_order, self.turns = 1, None, None, None
        return losses
