"""A step layer by layer: every block is fetched once for all micro-batches, forward and backward.

Each micro-batch runs the unmodified model in a thread of its own, and one of them at a time has the turn: at every
block's gate it goes to the next, so that all are at the same block. Gradients are added in the order of the
micro-batches, and random numbers inside the model follow from the step and the micro-batch, so that the bits are those
of the ordinary loop.
"""

import threading

import torch

from .errors import LongshoreError
from .interrupts import whole


class _Stopped(BaseException):
    """Another micro-batch has failed."""


class Turns:
    def __init__(self, count):
        self.count, self.turn = count, 0
        self.over = [False] * count
        self.changed = threading.Condition()
        self.failure = None
        self.mine = threading.local()

    def gate(self):
        """The next micro-batch goes on up to its own gate; returns when it is this one's turn again."""
        me = getattr(self.mine, "number", None)
        if me is None:
            return
        random = torch.get_rng_state()
        self._pass(me)
        self._await(me)
        torch.set_rng_state(random)

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

        def one(number):
            self.mine.number = number
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
                self._pass(number)

        threads = [threading.Thread(target=one, args=(n,), name=f"longshore-micro-batch-{n}") for n in range(self.count)]
        random = torch.get_rng_state()
        try:
            with whole:
                for t in threads:
                    t.start()
            self._wait()  # an interrupted Thread.join() takes the thread for ended
        except BaseException as stopped:  # KeyboardInterrupt of the main thread
            self._stop(stopped)
        torch.set_rng_state(random)
        if self.failure is not None:
            raise self.failure

    def _wait(self):
        with self.changed:
            self.changed.wait_for(lambda: all(self.over))

    @whole
    def _stop(self, stopped):
        with self.changed:
            self.failure = self.failure or stopped
            self.changed.notify_all()
        self._wait()


def together(engine, micro_batches, loss_of, divide):
    """Engine.backward_together()."""
    if engine._backwards:
        raise LongshoreError("train_batch: backward() has begun a step; make it with step(), or drop_gradients()")
    count, losses = len(micro_batches), [0.0] * len(micro_batches)
    parts = count if divide else 1
    turns, who = Turns(count), threading.get_ident()

    def work(number):
        engine._micro.number, engine.streams.inside.who = number, who
        try:
            loss = loss_of(micro_batches[number])
            (loss / parts if parts > 1 else loss).backward()
        finally:
            engine.streams.inside.break_off()
        losses[number] = float(loss.detach())

    try:
        engine._last, engine.gradients.passes = True, count
        engine._keep_state()
        engine.streams.gate = turns.gate if count > 1 else None
        with engine.streams.inside.differentiating():
            turns.run(work)
        with whole:
            engine.gradients.end_of_backward()
            engine.streams.rest()
            engine._losses, engine._backwards = sum(losses) / parts, count
    except BaseException:
        engine.drop_gradients()
        raise
    finally:
        engine.gradients.passes, engine.streams.gate = 1, None
    return losses
