"""A step layer by layer: every block is fetched once for all micro-batches, forward and backward.

Each micro-batch runs the unmodified model in a thread of its own, and one of them at a time has the turn: at every
block's gate it goes to the next, so that all are at the same block. Gradients are added in the order of the
micro-batches, and random numbers inside the model follow from the step and the micro-batch, so that the bits are those
of the ordinary loop.
"""

import contextvars
import threading

import torch
from torch.utils._pytree import tree_leaves

from . import mending, position
from .errors import LongshoreError
from .interrupts import whole


class _Stopped(BaseException):
    """Another micro-batch has failed."""


class Left:
    """What a forward pass leaves in modules, and another micro-batch would take for its own: tensors of its graph (losses of routers), and
    another `forward` (by which transformers 4 collects hidden states)."""

    def __init__(self, model, layers):
        self.modules, inside = list(model.modules()), {m for layer in layers for m in layer.modules()}
        self.rest = [m for m in self.modules if m not in inside]
        self.before = {(m, name): value for m in self.modules for name, value in m.__dict__.items()}

    def take(self, modules=None):
        """Puts what was there before in its place, and returns it. modules: that may have something; None: all."""
        found = [(m, name, value) for m in dict.fromkeys(self.modules if modules is None else [*self.rest, *modules])
                 for name, value in m.__dict__.items()
                 if (name == "forward" or isinstance(value, (torch.Tensor, list, tuple, dict)))
                 and value is not self.before.get((m, name)) and (name == "forward" or _is_of_a_graph(value))]
        for m, name, _ in found:
            del m.__dict__[name]
            if (m, name) in self.before:
                m.__dict__[name] = self.before[m, name]
        return found

    def put(self, found):
        for m, name, value in found:
            m.__dict__[name] = value


def _is_of_a_graph(value):
    return all(isinstance(t, torch.Tensor) and t.grad_fn is not None for t in tree_leaves(value))


class Turns:
    def __init__(self, count, left):
        self.count, self.turn, self.left = count, 0, left
        self.over, self.done = [False] * count, [False] * count
        self.early = {}  # by parameter: itself, gradients that came before those of other micro-batches, and whose were added
        self.changed = threading.Condition()
        self.failure = None
        self.mine = threading.local()

    def gate(self, layer):
        """The next micro-batch goes on up to its own gate; returns when it is this one's turn again, which computes a layer then."""
        me = getattr(self.mine, "number", None)
        if me is None:
            return
        random, left = position.random_now(), self.left.take(getattr(self.mine, "modules", None))
        self._pass(me)
        self._await(me)
        position.put_random(random)
        self.left.put(left)
        self.mine.modules = [*layer.modules(), *(m for m, _, _ in left)]

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
                following = (me + by) % self.count
                if not self.over[following]:
                    self.turn = following
                    break
            self.changed.notify_all()

    def _await(self, me):
        with self.changed:
            self.changed.wait_for(lambda: self.turn == me or self.failure is not None)
            if self.failure is not None:
                raise _Stopped

    def run(self, work):
        """work(number) for each micro-batch, in turns. Raises what the first to fail has raised."""
        grad = torch.is_grad_enabled()
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        processors = torch.get_num_threads()  # what a thread begins with, torch.set_num_threads() does not say

        def one(number):
            self.mine.number = number
            torch.set_num_threads(processors)
            try:
                self._await(number)
                with torch.set_grad_enabled(grad), torch.autocast("cpu", cast[1], enabled=cast[0], cache_enabled=cast[2]):
                    work(number)
            except _Stopped:
                pass
            except BaseException as failure:
                with self.changed:
                    self.failure = self.failure or failure
                    self.changed.notify_all()
            finally:
                self.over[number] = True
                if not all(self.over):
                    self.left.take()
                self._pass(number)

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(one, n), name=f"longshore-micro-batch-{n}")
                   for n in range(self.count)]
        random = position.random_now()
        try:
            with whole:
                for t in threads:
                    t.start()
            self._wait()  # an interrupted Thread.join() takes the thread for ended
        except BaseException as stopped:  # KeyboardInterrupt of the main thread
            self.stop(stopped)
        position.put_random(random)
        if self.failure is not None:
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
    layers = {modules[s.block.module] for s in engine.streams.blocks if s.block.layer and s.block.module in modules}
    turns, who = Turns(count, Left(engine.module, layers)), threading.get_ident()

    def work(number):
        engine._own_random.micro_batch, engine.streams.inside.who = number, who
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
            engine.streams.gate, engine.gradients.in_order = turns.gate, turns.in_order
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
        engine.gradients.passes, engine.streams.gate, engine.gradients.in_order, engine._turns = 1, None, None, None
    return losses
