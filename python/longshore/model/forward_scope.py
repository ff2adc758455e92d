"""Which modules' forward runs in each thread, and the hooks of what autograd saves meanwhile."""

import contextlib
import threading

import torch

from ..interrupts import whole
from ..torch_internals import in_backward, saved_tensor_hooks

_counting = threading.Lock()


class Hook:
    """A hook of a module. One that is copied or pickled with its module does nothing any more."""

    def __init__(self, call=None):
        self.call = call

    @torch.compiler.disable
    def __call__(self, *args, **kwargs):
        return None if self.call is None else self.call(*args, **kwargs)

    def __deepcopy__(self, memo):
        return Hook()

    def __reduce__(self):
        return Hook, ()


class Running(threading.local):
    def __init__(self, pack, unpack, computing):
        """computing: who computes, of all threads, and how many forward or backward passes deep."""
        self.pack, self.unpack, self.computing = pack, unpack, computing
        self.who = threading.get_ident()  # micro-batches that take turns are one
        self.modules = []  # outermost first: (whose forward, the blocks that it computes with)
        self.hooks = self.since = None  # since how many modules
        self.sends = False  # activations to the drives
        self.apart = []  # copies of views with gradients: (copy, its version then, the parameter's handle)

    @whole
    def enter(self, whose, blocks=()):
        """The forward of a module begins: of the model, or of a part that is called by itself."""
        if not self.modules:
            self.sends, self.apart = False, []
            self._count(1)
        self.modules.append((whose, blocks))
        for streamed in blocks:
            streamed.pins += 1
        # also without gradients: what is inside may want them
        if self.hooks is None and checkpoint_that_saves() is None:
            self.hooks, self.since = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack), len(self.modules)
            self.hooks.__enter__()

    @whole
    def leave(self, whose):
        """It ends, and with it what was broken off inside of it. True: it was the outermost one."""
        if not any(module is whose for module, _ in reversed(self.modules)):
            return False  # it was broken off before it began
        module = None
        while module is not whose:
            module, blocks = self.modules.pop()
            for streamed in blocks:
                streamed.pins -= 1
        if not self.modules:
            self._count(-1)
        if self.hooks is not None and len(self.modules) < self.since:
            hooks, self.hooks = self.hooks, None
            hooks.__exit__(None, None, None)
        return not self.modules

    def _count(self, by):
        with _counting:
            deep = self.computing[self.who] = self.computing.get(self.who, 0) + by
            if not deep:
                del self.computing[self.who]

    @contextlib.contextmanager
    def differentiating(self):
        """While this thread computes gradients."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def others(self):
        """Whether another thread computes, which does not wait for this one."""
        if self.who not in self.computing and in_backward():
            return False  # a thread of autograd's own
        others = self.computing.keys() - {self.who}
        return bool(others) and not others.isdisjoint(t.ident for t in threading.enumerate())

    def break_off(self):
        """After a KeyboardInterrupt, torch does not call the hooks that always run otherwise."""
        return bool(self.modules) and self.leave(self.modules[0][0])


def checkpoint_that_saves():
    """Whoever takes what is saved now for gradient checkpointing; None: nobody."""
    top = saved_tensor_hooks()
    return top[0] if top is not None and top[0].__module__ == "torch.utils.checkpoint" else None
