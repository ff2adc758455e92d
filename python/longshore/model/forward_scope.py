"""Tracks which modules' forward runs in each thread, and packs what autograd saves meanwhile."""

import contextlib
import threading

import torch

from ..interrupts import whole
from ..torch_internals import in_autograds_thread, in_backward, saved_tensor_hooks

_counting = threading.Lock()


class Hook:
    """A hook of a module. A copied or pickled one calls `copied`, a function of a module, or does nothing."""

    def __init__(self, call=None, copied=None):
        self.call, self.copied = call, copied

    @torch.compiler.disable
    def __call__(self, *args, **kwargs):
        return None if self.call is None else self.call(*args, **kwargs)

    def __deepcopy__(self, memo):
        return Hook(self.copied, self.copied)

    def __reduce__(self):
        return Hook, (self.copied, self.copied) if self.copied else ()


class Running(threading.local):
    """The forward passes of one thread."""

    def __init__(self, pack, unpack, computing):
        """pack, unpack: for saved tensors. computing: {owner: how many forward and backward passes it is in}, of all
        threads."""
        self.pack, self.unpack, self.computing = pack, unpack, computing
        # the same for all micro-batches that take turns; None: autograd's thread, which computes for one that waits
        self.owner = None if in_autograds_thread() else threading.get_ident()
        self.modules = []  # outermost first: (module, the blocks that it computes with)
        self.hooks = self.depth = None  # the hooks for saved tensors; the length of modules when they were set
        self.offloads = False  # whether activations go to the drives
        self.has_labels = False  # whether the model was called with labels, and computes its loss
        # of the layer that computes, if what it saves has a Fate: itself, its Fate, and its checkpoint
        self.layer = self.fate = self.checkpoint = None
        self.versions = {}  # of its buffers, as it began
        self.view_copies = []  # copies of views with gradients: (copy, its version then, the parameter's handle)

    def belong_to(self, owner):
        """This thread computes for another one, which waits for it. owner: its number."""
        self.owner = owner

    @whole
    def enter(self, whose, blocks=()):
        """Called when a module's forward begins. whose: the module, or the streams for the whole model."""
        if not self.modules:
            self.offloads, self.has_labels, self.view_copies = False, False, []
            self._count(1)
        self.modules.append((whose, blocks))
        for streamed in blocks:
            streamed.pins += 1
        # also without gradients: a module inside may enable them
        if self.hooks is None and checkpoint_that_saves() is None:
            self.hooks, self.depth = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack), len(self.modules)
            self.hooks.__enter__()

    @whole
    def leave(self, whose):
        """Called when a module's forward ends, together with interrupted ones inside it. Returns whether it was the
        outermost one."""
        if not any(module is whose for module, _ in reversed(self.modules)):
            return False  # it was interrupted before enter()
        module = None
        while module is not whose:
            module, blocks = self.modules.pop()
            if module is self.layer:
                self.end_layer()
            for streamed in blocks:
                streamed.pins -= 1
        if not self.modules:
            self._count(-1)
        if self.hooks is not None and len(self.modules) < self.depth:
            hooks, self.hooks = self.hooks, None
            hooks.__exit__(None, None, None)
        return not self.modules

    def end_layer(self):
        """Ends the checkpoint of the layer that computes."""
        checkpoint, self.layer, self.fate, self.checkpoint = self.checkpoint, None, None, None
        if checkpoint is not None:
            next(checkpoint, None)

    def _count(self, by):
        if self.owner is None:
            return
        with _counting:
            deep = self.computing[self.owner] = self.computing.get(self.owner, 0) + by
            if not deep:
                del self.computing[self.owner]

    @contextlib.contextmanager
    def differentiating(self):
        """The context in which this thread computes gradients."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def others_compute(self):
        """Whether another thread computes that does not wait for this one."""
        if self.owner not in self.computing and in_backward():
            return False  # one of autograd's own threads
        others = self.computing.keys() - {self.owner}
        return bool(others) and not others.isdisjoint(t.ident for t in threading.enumerate())

    def abort(self):
        """Ends all forward passes of this thread. PyTorch does not call forward hooks after a KeyboardInterrupt."""
        return bool(self.modules) and self.leave(self.modules[0][0])


def checkpoint_that_saves():
    """Returns the hook of gradient checkpointing that takes saved tensors now, or None."""
    top = saved_tensor_hooks()
    return top[0] if top is not None and top[0].__module__ == "torch.utils.checkpoint" else None
