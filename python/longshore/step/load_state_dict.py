"""load_state_dict() of a model whose parameters lie on drives, of a part of it, or of a module around it.

All values that it copies are committed together when it ends, as a step of its own."""

import weakref

from ..errors import AbsentParameterError
from ..model.forward_scope import Hook
from ..torch_internals import before_load_state_dict, parameters_of
from . import parameter_state


class Loading:
    """A load_state_dict() under way: collects the values that it copies."""

    def __init__(self, streams, model):
        self.streams, self.model = weakref.ref(streams), weakref.ref(model)
        self._forget()
        for module in model.modules():
            before_load_state_dict(module, Hook(self._begin))
            module.register_load_state_dict_post_hook(Hook(self._end))

    def _forget(self):
        self.top, self.coming, self.copied, self.errors = None, {}, {}, []

    def _begin(self, module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        if not prefix or module is self.model():  # the outermost module that belongs to the engine
            self._forget()
            self.top, self.errors = weakref.ref(module), error_msgs
        self.coming = {
            id(p): state_dict[prefix + name]
            for name, p in parameters_of(module).items()
            if prefix + name in state_dict and getattr(p, "longshore", None) is not None
        }
        if self.coming and local_metadata.get("assign_to_params_buffers"):
            self._forget()
            raise AbsentParameterError(
                "load_state_dict(assign=True): the parameters lie on drives, and their "
                "objects cannot be replaced; without assign=True, their values are written"
            )

    def takes(self, param, value):
        """Whether PyTorch is loading this value into this parameter; if so, keeps it until the end."""
        if value is None or self.coming.get(id(param)) is not value:
            return False
        self.copied[id(param)] = self.coming.pop(id(param)).detach()
        return True

    def _end(self, module, incompatible_keys):
        """Commits the collected values when the outermost module is done."""
        if self.top is None or self.top() is not module:
            return
        copied, errors = self.copied, self.errors
        self._forget()
        if copied and not errors:  # load_state_dict() raises the errors
            streams = self.streams()
            blocks = [b for b in streams.blocks if any(id(p) in copied for p, _ in b.parameters)]
            parameter_state.write_back(streams.core(), blocks, lambda p: copied.get(id(p)))
