"""A layer-major step: computes all micro-batches of a step layer by layer, so that each block is fetched only once.

In forward, each micro-batch runs the unmodified model in a thread of its own: only threads let Python code pause in the
middle of a forward pass. One thread at a time has the turn. At each layer's gate it passes the turn on, so that all
micro-batches reach a layer before one goes further. Backward is one pass of autograd for all of them.

The bits are those of the ordinary loop: gradients are added in the order of the micro-batches, and random numbers
inside the model depend only on the step and the micro-batch.
"""

import contextlib
import contextvars
import copy
import functools
import logging
import threading

import torch

from ..drives import recovery
from ..errors import LongshoreError
from ..interrupts import whole
from ..model import random_numbers
from ..model.absent import ONE_BY_ONE
from ..model.device import accelerators, numbers
from ..model.forward_scope import checkpoint_that_saves
from ..native import lib
from ..torch_internals import enter_mode, in_backward, modes
from .loss_graph import refuse_other
from .micro_batch_graphs import Graphs
from .module_changes import ModuleChanges
from .side_effects import Watch

_log = logging.getLogger("longshore")


class _Stopped(BaseException):
    """Ends the thread of a micro-batch after another one has failed."""


def _conflict(what):
    """The error for a change that other micro-batches should have seen."""
    return LongshoreError(
        f"train_batch: {what} is changed by a micro-batch, and others have begun with its earlier value; {ONE_BY_ONE}"
    )


class Turns:
    """Runs the micro-batches of one step in turns."""

    def __init__(self, core, calls, modules, watch):
        """calls: a function per micro-batch that returns the loss to differentiate. modules: a ModuleChanges; watch: a
        Watch."""
        self.core, self.calls, self.count, self.modules, self.watch = core, calls, len(calls), modules, watch
        self.graphs = Graphs(self.count, core.together.nodes)
        self.graphs.separate = core.streams.activations is not None or core.streams.fates is not None
        self.turn, self.owner = 0, threading.get_ident()
        # whether the first micro-batch runs alone first, to find out what a pass changes
        self.probing = False
        # whether micro-batches run one after the other, so that each sees what the ones before it changed
        self.sequential = False
        # of each micro-batch: its forward has begun, its forward has ended, its backward has ended
        self.begun, self.forward_done, self.done = [False] * self.count, [False] * self.count, [False] * self.count
        self.losses = [None] * self.count
        # the only one in backward; with several, the one whose saved tensors autograd asked for last
        self.current_backward = None
        self.recomputed = {}  # by layer: its changes when a checkpoint began to recompute it
        # by parameter: (itself, {micro-batch: gradient that waits for earlier ones}, micro-batches already added)
        self.early = {}
        self.changed = threading.Condition()
        self.started = False  # whether the threads run
        self.failure = self.written = None  # the first exception; the first change that the probe found
        self.local = threading.local()
        # states of the random generators outside of the model's forward passes, and what they were when one last ended
        self.outer_random = self.quiet = None

    @property
    def number(self):
        """The number of the micro-batch that computes, in forward or backward."""
        return getattr(self.local, "number", self.current_backward)

    def gate(self, layer):
        """Called when the forward of a layer begins. Passes the turn on, and returns when it is this micro-batch's turn
        to compute the layer."""
        if in_backward():
            self.check(layer)
            self.recomputed[layer] = self.modules.changed(layer)
            return
        me = getattr(self.local, "number", None)
        if me is None:
            return
        if checkpoint_that_saves() is not None:
            self.graphs.separate = True  # recomputed activations are in memory for one micro-batch at a time
        if not self.sequential:
            self._refuse_conflict(me, self.watch.changed())
            self._wait_at(layer, me)
        elif self.probing:
            self.written = self.written or self.watch.changed(layer)
        self.local.entered[layer] = self.modules.changed(layer)

    def check(self, layer):
        """Called in backward: raises LongshoreError if one micro-batch has changed what others will see."""
        if self.probing:
            self.written = self.written or self.watch.changed(layer)
        if self.sequential or self.core.streams.inside.modules:
            return
        written = self.watch.changed()
        found = self.modules.revert({self.modules.rest, self.modules.by_layer[layer][1]})
        self.modules.reapply(found.private)
        if written or found.changes:
            raise _conflict(written or self.modules.name(found.changes[0]))

    def _wait_at(self, layer, me):
        """Undoes this micro-batch's changes of modules, gives the turn away, and makes them again when it is back."""
        random = random_numbers.now()
        inside = self.core.own_random.apart
        if not inside:
            self.outer_random = random
        found = self.modules.revert(self._groups(layer))
        if found.changes:
            self.go_sequential(f"{self.modules.name(found.changes[0])} is changed within a pass")
        self._end_turn(me)
        self._pass_turn(me)
        self._await_turn(me)
        random_numbers.put(random if inside else self.outer_random)
        self.modules.reapply(found.private + found.changes)
        self.local.touched = found.groups

    def _groups(self, layer):
        """The groups of modules that may have changed since the last gate. Between two layers these are the two layers
        and everything outside of layers. None, all groups: before the first layer of a pass, where a script's own code
        runs."""
        number, group = self.modules.by_layer[layer]
        before, computed = getattr(self.local, "at", (None, None))
        self.local.at = number, group
        if before is None or number <= before:
            return None
        return {self.modules.rest, computed, group, *self.local.touched}

    def leave(self, layer):
        """Called when the forward of a layer ends."""
        if in_backward():
            self.modules.accept(layer, self.recomputed.get(layer, ()), True)
        elif getattr(self.local, "number", None) is not None:
            self.modules.accept(layer, self.local.entered.get(layer, ()), False)
            if layer not in self.local.computed and (self.probing or not self.sequential):
                self.local.computed.add(layer)  # only the first time: later, others have run the layer in between
                self.watch.note(layer)

    def show(self, streamed):
        """A block is in memory: notes that its parameters belong to this micro-batch's turn."""
        if getattr(self.local, "number", None) is not None and not in_backward():
            self.graphs.show(self.local.number, [p for p, _ in streamed.parameters])

    def _end_probe(self):
        """The first micro-batch has gone through the model alone: decides whether the others take turns."""
        self.probing = False
        found = self.modules.revert()
        self.modules.reapply(found.changes)
        written = (
            self.written or self.watch.changed() or (self.modules.name(found.changes[0]) if found.changes else None)
        )
        self.core.together.note(not written)
        self.watch.end_probe()
        if written:
            self.go_sequential(f"{written} is changed within a pass")
        else:
            self.sequential = False

    def _refuse_conflict(self, me, written):
        """Handles a change that cannot be undone: if no other micro-batch is in its pass, they run one after the other;
        otherwise they have seen the old value, and it raises."""
        if written and any(self.begun[n] and not self.done[n] for n in range(self.count) if n != me):
            raise _conflict(written)
        if written:
            self.core.together.note(False)
            self.go_sequential(f"{written} is changed within a pass")

    def go_sequential(self, why):
        """Runs the micro-batches one after the other from here on. why: for the log."""
        self.sequential = True
        self.core.together.say_sequential(why)

    def _end_pass(self, me):
        """Called when a micro-batch's pass ends. Raises if it changed modules that waiting ones have begun with."""
        if self.probing:
            self._end_probe()
        elif any(self.begun[n] and not self.done[n] for n in range(self.count) if n != me):
            self._refuse_conflict(me, self.watch.changed())
        self.watch.note()
        others = [n for n in range(self.count) if not self.forward_done[n] and n != me]
        if not others:
            return
        found = self.modules.revert()
        if found.changes and any(self.begun[n] for n in others):
            raise _conflict(self.modules.name(found.changes[0]))
        self.modules.reapply(found.changes)

    # ---- backward

    def backward(self, numbers):
        """Runs one backward pass for these micro-batches, whose forward passes have ended."""
        gradients = self.core.gradients
        self.core.cycle.expect(numbers[-1] == self.count - 1, len(numbers), numbers[0])
        self.core.state.charges.turn(lib.SHORE_CHARGE_BACKWARD)
        self.current_backward = numbers[0] if len(numbers) == 1 else None
        roots = [(self.losses[n], None) for n in numbers] + [
            (root, torch.zeros_like(root)) for n in numbers for root in self.graphs.roots(n)
        ]
        torch.autograd.backward(*zip(*roots))
        self.current_backward = None
        for n in numbers:
            self.done[n] = True
            self.losses[n] = self.losses[n].detach()
        for p, early, added in self.early.values():
            for number, g in self._due(early, added) if early else ():
                gradients.add(p, g, number)
        if self.sequential:
            gradients.end_of_pass()

    def finish(self):
        """Runs the backward pass of all micro-batches that had none yet."""
        rest = [n for n in range(self.count) if not self.done[n]]
        if self.sequential:
            for n in rest:
                self.backward([n])
        elif rest:
            before = self.modules.revert()
            self.backward(rest)
            written, after = self.watch.changed(), self.modules.revert()
            if len(rest) > 1 and (written or after.changes):
                raise _conflict(written or self.modules.name(after.changes[0]))
            self.modules.reapply(before.private + before.changes + after.changes)

    def in_order(self, p, g):
        """Takes a gradient of a parameter. Returns (micro-batch, gradient) of those that may be added now, in their
        order: a later one may arrive first if an earlier one skips a layer."""
        number, g = self.graphs.take(p, g)
        if g is None:
            return ()
        number = self.current_backward if number is None else number  # None: of a nested backward
        if number is None:
            raise LongshoreError(
                f"{p.longshore.name}: has a gradient in train_batch(), of an unknown micro-batch; {ONE_BY_ONE}"
            )
        _, early, added = self.early.setdefault(id(p), (p, {}, set()))
        early[number] = early[number] + g if number in early else g
        return self._due(early, added)

    def _due(self, early, added):
        """Removes from early, and returns, the gradients that no earlier micro-batch precedes any more."""
        out = []
        for number in range(self.count):
            if number in early:
                out.append((number, early.pop(number)))
                added.add(number)
            elif number not in added and not self.done[number]:
                break
        return out

    # ---- turns

    def _end_turn(self, me):
        self.core.streams.hide_unused()
        self.graphs.end_turn(me)

    def _pass_turn(self, me):
        with self.changed:
            for by in range(1, self.count + 1):
                following = by - 1 if self.sequential else (me + by) % self.count
                if not self.forward_done[following]:
                    self.turn = following
                    break
            self.changed.notify_all()

    def _await_turn(self, me):
        with self.changed:
            self.changed.wait_for(lambda: self.turn == me or self.failure is not None)
            if self.failure is not None:
                raise _Stopped
        self.core.state.charges.turn(lib.SHORE_CHARGE_FORWARD)
        self.graphs.begin_turn(me, self.sequential)
        for streamed in self.core.streams.blocks:
            if streamed.present:
                self.show(streamed)

    def _surroundings(self):
        """Returns a context for the threads of micro-batches, which inherit nothing of this one: its modes and casts,
        its number of processors, its stream of a device."""
        grad, entered_modes, processors = torch.is_grad_enabled(), modes(), torch.get_num_threads()
        casts = [
            torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=torch.is_autocast_cache_enabled())
            for kind in ("cpu", *accelerators())
            if torch.is_autocast_enabled(kind)
        ]
        device = self.core.streams.device
        stream = None if device is None else torch.accelerator.current_stream(device.device)

        @contextlib.contextmanager
        def as_caller():
            torch.set_num_threads(processors)
            if stream is not None:
                torch.accelerator.set_stream(stream)
            with contextlib.ExitStack() as entered:
                for mode in entered_modes:
                    enter_mode(*mode, entered)
                entered.enter_context(torch.set_grad_enabled(grad))
                for cast in casts:
                    entered.enter_context(copy.copy(cast))
                yield

        return as_caller

    def run(self):
        """Runs all forward passes in turns; with `sequential`, the backward passes too. Raises the first exception of a
        micro-batch."""
        as_caller = self._surroundings()

        def one(number):
            self.local.number, self.local.entered, self.local.computed = number, {}, set()
            try:
                self._await_turn(number)
                self.begun[number] = True
                random_numbers.put(self.outer_random)
                with as_caller():
                    self.losses[number] = self._forward(number)
                    self._end_turn(number)
                if self.sequential and all(self.done[:number]):
                    self.backward([number])
                self._end_pass(number)
                self.outer_random = random_numbers.now()
            except _Stopped:
                pass
            except BaseException as failure:
                self.modules.reapply(self.modules.revert().changes)
                with self.changed:
                    self.failure = self.failure or failure
                    self.changed.notify_all()
            finally:
                self.forward_done[number] = True
                self._pass_turn(number)

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(one, n), name=f"longshore-micro-batch-{n}")
            for n in range(self.count)
        ]
        random = self.outer_random = random_numbers.now()
        self.quiet = random_numbers.keys(random)
        try:
            with whole:
                for t in threads if self.failure is None else ():  # a signal handler may have closed the engine
                    t.start()
                    self.started = True
            self._wait_for_threads()  # not Thread.join(): once interrupted, it takes the thread for ended
        except BaseException as stopped:  # KeyboardInterrupt of the main thread
            self.stop(stopped)
        if self.failure is not None:
            random_numbers.put(random)
            raise self.failure

    def _forward(self, number):
        streams = self.core.streams
        self.core.own_random.take(self)
        streams.inside.belong_to(self.owner)
        try:
            return self.calls[number]()
        finally:
            streams.inside.abort()

    def _wait_for_threads(self):
        with self.changed:
            self.changed.wait_for(lambda: not self.started or all(self.forward_done))

    @whole
    def stop(self, why):
        """Stops the micro-batches, and returns when none computes any more. why: the exception."""
        if getattr(self.local, "number", None) is None:
            with self.changed:
                self.failure = why
                self.changed.notify_all()
            self._wait_for_threads()


class Together:
    """An engine's layer-major steps: runs them, and remembers what one learns for the next."""

    def __init__(self, core):
        self.core = core
        self.turns = None  # the Turns of the current step
        self.said_sequential = False  # whether the log has said that micro-batches run one after the other
        self.draws = None  # whether the last pass in training drew random numbers; None: there was none yet
        self.probed = False  # whether a probe has shown that they can take turns
        self.nodes = ()  # graph nodes of each round of turns in the last step: see Graphs
        self.modules = self.watch = None  # a ModuleChanges and a Watch

    def drew(self, drew):
        """A pass in training has ended. drew: whether it drew random numbers."""
        self.draws = drew

    def note(self, probed):
        """A probe, or a change that it has not seen, has shown whether micro-batches can take turns."""
        self.probed = probed

    def say_sequential(self, why):
        """Logs why micro-batches run one after the other, once an engine."""
        if not self.said_sequential:
            self.said_sequential = True
            _log.info("train_batch: %s: the micro-batches of a step are computed one after the other", why)

    def stop(self):
        """Stops the micro-batches before the engine is closed."""
        if self.turns is not None:
            self.turns.stop(LongshoreError(f"engine.train_batch: {self.core.streams.why}"))

    def backward(self, micro_batches, loss_of, divide):
        """See Engine.backward_together()."""
        core, cycle, gradients, streams = self.core, self.core.cycle, self.core.gradients, self.core.streams
        cycle.open_state("backward_together")
        gradients.look()
        if cycle.backwards:
            raise LongshoreError("train_batch: backward() has begun a step; make it with step(), or drop_gradients()")
        count = len(micro_batches)
        losses = [None] * count
        modules = dict(core.module.named_modules())
        layers = dict.fromkeys(
            modules[s.block.module] for s in streams.blocks if s.block.layer and s.block.module in modules
        )
        if self.modules is None or not self.modules.holds():
            self.modules, self.watch = ModuleChanges(core.module, layers), Watch(core.module, layers)

        def loss(number):
            loss = loss_of(micro_batches[number])
            refuse_other(loss, streams, "train_batch")
            losses[number] = loss.detach()
            return loss / parts if parts > 1 else loss

        turns = Turns(core, [functools.partial(loss, n) for n in range(count)], self.modules, self.watch)
        cycle.micro_batches.share_all("train_batch", count)
        parts = cycle.micro_batches.total if divide else core.ranks.size
        if not count:  # the other ranks have some
            cycle.expect(True, 0)
            cycle.begin_pass()
            cycle.expect(False)
            gradients.has_pass = True
            return []
        try:
            core.own_random.begin_step(core)
            core.device_memory.before_pass(micro_batches, True)
            cycle.expect(True, count)
            cycle.begin_pass()
            self.turns = turns
            if count > 1:
                hooked = gradients.first_hooked()
                self.watch.begin(not self.probed and self.watch.has_any())
                if hooked:
                    turns.go_sequential(f"{hooked} has a hook that sees its gradients")
                elif self.watch.probing:
                    turns.probing = turns.sequential = True
            within = streams.taking(turns if count > 1 else None)
            with within, streams.inside.differentiating(), gradients.own_pass():
                turns.run()
                core.own_random.end_step()
                turns.finish()
            with whole:
                core.state.charges.turn(lib.SHORE_CHARGE_BACKWARD)
                gradients.end_of_backward()
                core.device_memory.after_pass(True)
                core.state.charges.turn(lib.SHORE_CHARGE_BETWEEN)
                losses = numbers(losses, streams.device)
                cycle.end_pass([torch.tensor(n, dtype=torch.float64, device="cpu") for n in losses], parts)
                self.nodes = turns.graphs.turn_nodes
        except BaseException as failure:
            with core.undoing(failure):
                core.drop_gradients()
            recovery.say_closed(core, failure, "train_batch")
            raise
        finally:
            cycle.expect(False)
            self.turns = None
        return losses
