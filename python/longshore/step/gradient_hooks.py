"""Gradients as autograd completes them: the hooks of parameters, and the passes that these belong to."""

import contextlib
import functools
import weakref

from ..errors import LongshoreError
from ..interrupts import whole
from ..native import lib
from ..torch_internals import (
    DisableTorchFunctionSubclass,
    at_end_of_backward,
    grad_hooks,
    graph_task,
    is_captured,
    post_accumulate_hooks,
)
from .block_gradients import merged, shows


def _arriving(gradients, p, gradient):
    """The hook of a parameter that runs when its gradient arrives. gradients, p: weak references to Gradients and the
    parameter."""
    if gradients() is None:
        raise LongshoreError(
            "backward: the engine was dropped, and with it is closed; longshore.resume() opens its run again"
        )
    gradients().arriving(p())


class HookSide:
    """The base class of Gradients, whose members it uses."""

    def hook(self):
        """Registers the hooks. They refer to self weakly: the garbage collector does not see what tensors refer to."""
        there = weakref.ref(self)
        for streamed in self.streams.blocks:
            for p, _ in streamed.parameters:
                if p.requires_grad:
                    p.register_hook(functools.partial(_arriving, there, weakref.ref(p)))
                    first = p.register_post_accumulate_grad_hook(lambda p: there().take(p))
                    self.own_hooks[id(p)] = [
                        first.id,
                        p.register_post_accumulate_grad_hook(lambda p: there().take_back(p)).id,
                    ]

    def drop_of(self, parameters):
        """Drops the gradients of these parameters from now on."""
        for p in parameters:
            self.dropped_ids.add(id(p))
            self.trains[p.longshore.block.number].discard(p.longshore.index)

    @contextlib.contextmanager
    def own_pass(self):
        """The context in which the engine runs a backward pass."""
        self.own, self._task, self.has_pass = True, None, True
        try:
            yield
        finally:
            self.own = False

    def arriving(self, p):
        """A gradient arrives: the first of a script's own loss.backward() begins a pass; a nested one ends first. One
        that torch.autograd.grad() returns is the script's alone."""
        if len(post_accumulate_hooks(p)) > 2:
            self._enclose(post_accumulate_hooks(p), self.own_hooks[id(p)])
        task = graph_task()
        if not self.own and task != self._task:
            self.streams.open_state("backward")
            if is_captured(p):
                if task != self._grad_task:
                    self._grad_task = task
                    at_end_of_backward(self.streams.hide_unused)
                return
            self.streams.core().cycle.begin_pass()
            self._task, self.has_pass = task, True
            at_end_of_backward(self._end_of_script_pass)

    @whole
    def _end_of_script_pass(self):
        charges = self.streams.state.charges
        charges.turn(lib.SHORE_CHARGE_BACKWARD)
        self._task = None
        self.end_of_backward()
        self.streams.core().cycle.passes += 1
        charges.turn(lib.SHORE_CHARGE_BETWEEN)

    def take(self, p):
        """The first post-accumulate hook: takes p.grad. A script's own hooks see the sum so far, as in PyTorch."""
        g, p.grad = p.grad, None
        if g is None or id(p) in self.dropped_ids:
            return
        if self.over_ranks and not self.own:
            g = g / self.over_ranks.ranks.size  # as DistributedDataParallel does
        if len(post_accumulate_hooks(p)) == 2:
            turns = self.streams.turns
            for number, due in ((None, g),) if turns is None else turns.in_order(p, g):
                self.add(p, due, number)
            return
        handle = p.longshore
        self.land()
        self._sum(p, g.cpu(), self._place())
        if self.local[handle.block.number].spilled:
            self._read_spilled(handle.block.number)
        self.shown.lend(self, p, self.local[handle.block.number].value(handle.index))
        self._in_hooks.add(id(p))

    def take_back(self, p):
        """The last post-accumulate hook: takes p.grad as the script's hooks have left it."""
        if id(p) not in self._in_hooks:
            return
        self._in_hooks.discard(id(p))
        with DisableTorchFunctionSubclass():
            g, p.grad, handle = p.grad, None, p.longshore
        sum = self.local[handle.block.number].value(handle.index)
        if g is None or not shows(g, sum):
            self.replace(handle.block.number, handle.index, None if g is None else merged(sum, g), self.local)
        kept = (lambda: None) if g is None else weakref.ref(g)
        del g
        self.shown.stays(p, kept)
        if self._is_complete(handle.block.number):
            self.complete(handle.block.number, self._place())

    def _enclose(self, hooks, ends):
        """Sorts a script's hooks, whenever they were set, between take() and take_back()."""
        keys = [*hooks]
        if [keys[0], keys[-1]] != ends:
            items = {key: hooks[key] for key in (ends[0], *(key for key in keys if key not in ends), ends[1])}
            hooks.clear()
            hooks.update(items)

    def first_hooked(self):
        """Returns the name of the first parameter with a script's own gradient hooks, or None."""
        with DisableTorchFunctionSubclass():
            return next(
                (
                    h.name
                    for s in self.streams.blocks
                    for p, h in s.parameters
                    if id(p) in self.own_hooks and len(post_accumulate_hooks(p)) + len(grad_hooks(p)) > 3
                ),
                None,
            )
