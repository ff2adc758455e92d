"""A step layer by layer: every block is fetched once for all micro-batches, forward and backward.

Each micro-batch runs the unmodified model in a thread of its own, and one of them at a time has the turn: at every
block's gate it goes to the next, so that all are at the same block. Gradients are added in the order of the
micro-batches, and random numbers inside the model follow from the step and the micro-batch, so that the bits are those
of the ordinary loop.
"""

import contextlib
import contextvars
import logging
import threading

import torch
from torch import overrides
from torch.utils import _python_dispatch

from . import mending, position
from .errors import LongshoreError
from .interrupts import whole
from .left import Left
from .watched import Watch

_log = logging.getLogger("longshore")


class _Stopped(BaseException):
    """Another micro-batch has failed."""


@contextlib.contextmanager
def _within(function_modes, dispatch_modes):
    """Modes that a script has entered around a step are its thread's, and the micro-batches' as well."""
    with contextlib.ExitStack() as entered:
        for of, modes in (overrides, function_modes), (_python_dispatch, dispatch_modes):
            for mode in modes:
                of._push_mode(mode)
                entered.callback(of._pop_mode)
        yield


def _seen(what):
    return LongshoreError(f"train_batch: {what} is changed by a micro-batch, and the others have begun with what it was before; call backward() for "
                          "each of them, and then step() (in a Trainer: layer_major=False)")


class Turns:
    def __init__(self, engine, count, left, watch):
        self.engine, self.count, self.turn, self.left, self.watch = engine, count, 0, left, watch
        self.probing = False  # whether the first one goes through the model before the others begin, so that what it changes is known
        self.alone = False  # whether each goes on to its end, the first of them first: what goes from one to the next is then as in a loop
        self.begun, self.over, self.done = [False] * count, [False] * count, [False] * count
        self.early = {}  # by parameter: itself, gradients that came before those of other micro-batches, and whose were added
        self.changed = threading.Condition()
        self.failure = self.written = None
        self.mine = threading.local()
        self.outside = None  # random numbers as they are for whoever is in no forward pass of the model

    def gate(self, layer, backward=False):
        """The next micro-batch goes on up to its own gate; returns when it is this one's turn again, which computes a layer then. backward: it
        goes through it backwards; otherwise forward, maybe again within backward."""
        me = getattr(self.mine, "number", None)
        if me is None:
            return
        again = not backward and torch._C._current_graph_task_id() != -1
        if not self.alone:
            self._refuse_seen(me, self.watch.changed())
            self._wait_at(layer, me, backward, again)
        elif self.probing:
            self.written = self.written or self.watch.changed(layer)
        if not backward:
            self.mine.entered[layer] = self.left.changed(layer)

    def _wait_at(self, layer, me, backward, again):
        random = position.random_now()
        inside = again or self.engine._own_random.begun
        if not inside:
            self.outside = random
        found = self.left.take(self._groups(layer, backward or again))
        if found.changes:
            self.go_alone(f"{self.left.name(found.changes[0])} is changed within a pass")
        self._pass(me)
        self._await(me)
        position.put_random(random if inside else self.outside)
        self.left.put(found.private + found.changes)
        self.mine.touched = found.groups

    def _groups(self, layer, backward):
        """Where the part of a pass that ends here may have left something. From one layer to the next that is what is outside of layers and those
        two; code of somebody else runs before the first and after the last one of a pass. None: anywhere."""
        number, group = self.left.of[layer]
        before, was_backward, computed = getattr(self.mine, "at", (None, False, None))
        self.mine.at = number, backward, group
        if before is None or backward != was_backward or (number > before if backward else number <= before):
            return None
        return {self.left.rest, computed, group, *self.mine.touched}

    def leave(self, layer):
        """The forward of a layer ends."""
        if getattr(self.mine, "number", None) is not None:
            again = torch._C._current_graph_task_id() != -1
            self.left.accept(layer, self.mine.entered.get(layer, ()), again)
            if not again and layer not in self.mine.computed and (self.probing or not self.alone):
                self.mine.computed.add(layer)  # a second time in a pass, others have been here in between
                self.watch.note(layer)

    def probe(self):
        """The first micro-batch goes through the model before the others begin."""
        self.probing = self.alone = True
        self.engine.gradients.passes = 1

    def _end_probe(self):
        self.probing = False
        found = self.left.take()
        self.left.put(found.changes)
        written = self.written or self.watch.changed() or (self.left.name(found.changes[0]) if found.changes else None)
        self.engine._probed, self.watch.probing = not written, False
        if written:
            self.go_alone(f"{written} is changed within a pass")
        else:
            self.alone, self.engine.gradients.passes = False, self.count - 1

    def _refuse_seen(self, me, written):
        """What is changed so stays changed: before others have begun, they go alone; later they have seen what it was before."""
        if written and any(self.begun[n] and not self.over[n] for n in range(self.count) if n != me):
            raise _seen(written)
        if written:
            self.engine._probed = False
            self.go_alone(f"{written} is changed within a pass")

    def go_alone(self, why):
        """From here on one micro-batch after the other."""
        self.alone, self.engine.gradients.passes = True, 1
        self._have_turn(self.turn)
        if not self.engine._said_alone:
            self.engine._said_alone = True
            _log.info("train_batch: %s: the micro-batches of a step are computed one after the other", why)

    def _have_turn(self, me):
        self.engine._last = not self.alone or me == self.count - 1

    def _end_pass(self, me):
        """Of a micro-batch, all of it. Those that wait have begun with the modules as they were when it had not changed them."""
        if self.alone:
            self.engine.gradients.end_of_pass()
        if self.probing:
            self._end_probe()
        elif any(self.begun[n] and not self.over[n] for n in range(self.count) if n != me):
            self._refuse_seen(me, self.watch.changed())
        self.watch.note()
        others = [n for n in range(self.count) if not self.over[n] and n != me]
        if not others:
            return
        found = self.left.take()
        if found.changes and any(self.begun[n] for n in others):
            raise _seen(self.left.name(found.changes[0]))
        self.left.put(found.changes)

    def in_order(self, p, g):
        """A parameter has a gradient. Returns those of it that may be added: where some micro-batches pass a layer by, a later one
        may be there first."""
        _, early, given = self.early.setdefault(id(p), (p, {}, set()))
        early[self.mine.number] = early[self.mine.number] + g if self.mine.number in early else g
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

    def end(self, number):
        """A micro-batch gives no gradients any more. Returns (parameter, gradient) of those that have waited for that."""
        self.done[number] = True
        return [(p, g) for p, early, given in self.early.values() if early for g in self._due(early, given)]

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
        self._have_turn(me)

    def run(self, work):
        """work(number) for each micro-batch, in turns. Raises what the first to fail has raised."""
        grad = torch.is_grad_enabled()
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        modes = overrides._get_current_function_mode_stack(), _python_dispatch._get_current_dispatch_mode_stack()
        processors = torch.get_num_threads()  # what a thread begins with, torch.set_num_threads() does not say

        def one(number):
            self.mine.number, self.mine.entered, self.mine.computed = number, {}, set()
            torch.set_num_threads(processors)
            try:
                self._await(number)
                self.begun[number] = True
                position.put_random(self.outside)
                with _within(*modes), torch.set_grad_enabled(grad), torch.autocast("cpu", cast[1], enabled=cast[0], cache_enabled=cast[2]):
                    work(number)
                self._end_pass(number)
                self.outside = position.random_now()
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

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(one, n), name=f"longshore-micro-batch-{n}")
                   for n in range(self.count)]
        random = self.outside = position.random_now()
        try:
            with whole:
                for t in threads:
                    t.start()
            self._wait()  # an interrupted Thread.join() takes the thread for ended
        except BaseException as stopped:  # KeyboardInterrupt of the main thread
            self.stop(stopped)
        if self.failure is not None:
            position.put_random(random)
            raise self.failure

    def _wait(self):
        with self.changed:
            self.changed.wait_for(lambda: all(self.over))

    @whole
    def stop(self, why):
        """Returns when no micro-batch computes any more."""
        if getattr(self.mine, "number", None) is None:
            with self.changed:
                self.failure = why
                self.changed.notify_all()
            self._wait()


def stop(engine):
    """Before it is closed."""
    if engine._turns is not None:
        engine._turns.stop(LongshoreError(f"engine.train_batch: {engine.streams.why}"))


def together(engine, micro_batches, loss_of, divide):
    """Engine.backward_together()."""
    engine._open_state("backward_together")
    engine.gradients.hide()
    if engine._backwards:
        raise LongshoreError("train_batch: backward() has begun a step; make it with step(), or drop_gradients()")
    count, losses = len(micro_batches), [0.0] * len(micro_batches)
    parts = count if divide else 1
    modules = dict(engine.module.named_modules())
    layers = dict.fromkeys(modules[s.block.module] for s in engine.streams.blocks if s.block.layer and s.block.module in modules)
    if engine._left is None or not engine._left.holds():
        engine._left, engine._watch = Left(engine.module, layers), Watch(engine.module, layers)
    turns, who = Turns(engine, count, engine._left, engine._watch), threading.get_ident()

    def work(number):
        engine._own_random.turns, engine.streams.inside.who = turns, who
        try:
            loss = loss_of(micro_batches[number])
            (loss / parts if parts > 1 else loss).backward()
            for p, g in turns.end(number):
                engine.gradients.add(p, g)
        finally:
            engine.streams.inside.break_off()
        losses[number] = float(loss.detach())

    try:
        engine._last, engine.gradients.passes = True, count
        engine._begin_pass()
        engine._turns = turns
        if count > 1:
            engine.streams.turns, engine.gradients.in_order = turns, turns.in_order
            hooked = engine.gradients.hooked()
            engine._watch.begin(not engine._probed and engine._watch.has_any())
            if hooked:
                turns.go_alone(f"{hooked} has a hook that sees the sum of its gradients")
            elif engine._watch.probing:
                turns.probe()
        with engine.streams.inside.differentiating(), engine.gradients.own_pass():
            turns.run(work)
        with whole:
            engine.gradients.end_of_backward()
            engine._losses, engine._backwards = sum(losses) / parts, count
    except BaseException as failure:
        engine.drop_gradients()
        mending.say_closed(engine, failure, "train_batch")
        raise
    finally:
        engine.gradients.passes, engine.streams.turns, engine.gradients.in_order, engine._turns = 1, None, None, None
    return losses
