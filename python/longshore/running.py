"""Which modules' forward runs in each thread, and the hooks of what autograd saves meanwhile."""

import threading

import torch

from .interrupts import whole


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
    def __init__(self, pack, unpack):
        self.pack, self.unpack = pack, unpack
        self.modules = []  # outermost first: (whose forward, the blocks that it computes with)
        self.hooks = self.since = None  # since how many modules
        self.sends = False  # activations to the drives

    @whole
    def enter(self, whose, blocks=()):
        """The forward of a module begins: of the model, or of a part that is called by itself."""
        if not self.modules:
            self.sends = False
        self.modules.append((whose, blocks))
        for streamed in blocks:
            streamed.pins += 1
        if self.hooks is None and torch.is_grad_enabled() and checkpoint_that_saves() is None:
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
        if self.hooks is not None and len(self.modules) < self.since:
            hooks, self.hooks = self.hooks, None
            hooks.__exit__(None, None, None)
        return not self.modules

    def break_off(self):
        """After a KeyboardInterrupt, torch does not call the hooks that always run otherwise."""
        return bool(self.modules) and self.leave(self.modules[0][0])


def checkpoint_that_saves():
    """Whoever takes what is saved now for gradient checkpointing; None: nobody."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return top[0] if top is not None and top[0].__module__ == "torch.utils.checkpoint" else None
