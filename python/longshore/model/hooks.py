"""Hooks of modules: a block comes before its module computes, forward and backward, and the next one is begun to be
fetched."""

import weakref

import torch

from ..errors import AbsentParameterError, LongshoreError
from ..torch_internals import (
    DisableTorchFunctionSubclass,
    in_backward,
    in_functional_call,
    is_compiled,
    parameters_of,
    tree_leaves,
    version_of,
)
from .forward_scope import Hook, checkpoint_that_saves
from .write_tracking import CHANGE, IN_PASS, is_elsewhere, say_lost


def hook(streams, model):
    """Of all modules of a model that have parameters of these streams."""
    of = {id(p): streamed for streamed in streams.blocks for p, _ in streamed.parameters}
    modules = dict(model.named_modules())
    hooked = {}
    for name, module in modules.items():
        hooked[name] = {of[id(p)] for p in parameters_of(module).values() if p is not None and id(p) in of}
    # a layer comes as a whole when it begins
    for streamed in streams.blocks:
        layer = streamed.block.module
        if streamed.block.layer and layer in modules:
            hooked[layer] |= {of[id(p)] for p in modules[layer].parameters() if id(p) in of}
            if is_compiled(modules[layer]):  # a hook within would break its graph in two
                for name in hooked:
                    if name.startswith(f"{layer}."):
                        hooked[name].discard(streamed)
    for name, blocks in hooked.items():
        if blocks:
            ModuleHook(weakref.proxy(streams), name, sorted(blocks, key=lambda s: s.number)).attach(modules[name])
    ModelHook(streams).attach(model)


def check(streams):
    """Raises for a parameter that is not what it was at wrap(), which nobody would train; and puts it back."""
    wrong, thawed = _put_back(streams), None
    for streamed in streams.blocks:
        for (p, handle), tensor in zip(streamed.parameters, streamed.block.tensors):
            if not tensor.trains:
                with DisableTorchFunctionSubclass():
                    if p.requires_grad:
                        thawed, p.requires_grad = thawed or handle.name, False
            if handle.out:
                if p.shape != handle.view.shape or p.dtype != handle.view.dtype:
                    raise LongshoreError(f"{handle.name}: is {list(handle.view.shape)} and {handle.view.dtype}, and "
                                         f"{list(p.shape)} and {p.dtype} was put in its place")
            elif streamed.present and is_elsewhere(p, handle):
                wrong, p.data = wrong or handle.name, handle.view
                handle.version = version_of(p)
            elif streamed.present and not streamed.pins and version_of(p) != handle.version:
                streams.hide(streamed)  # which says it
    if wrong:
        _refuse_replaced(wrong)
    if thawed:
        raise LongshoreError(f"{thawed}: is frozen in this run, and stays so; what is to be thawed later trains at "
                             "wrap() (requires_grad, also of adapters that are not active yet): freeze it after "
                             "wrap(), and thaw it again")


def _refuse_replaced(name):
    raise LongshoreError(f"{name}: was converted or replaced after wrap(), and has been put back; convert, resize, "
                         f"prune, parametrize and replace parameters before wrap(); to give one other values, {CHANGE}")


def _put_back(streams):
    """Parameters that others stand in the place of. Returns the name of the first; None: there is none."""
    first = given = None
    for streamed in streams.blocks:
        for (p, _), tensor in zip(streamed.parameters, streamed.block.tensors):
            for full in tensor.names:
                module, name = streams.owners[full]
                if parameters_of(module).get(name) is not p:
                    given = in_functional_call() if given is None else given
                    if not given:
                        first, parameters_of(module)[name] = first or full, p
    return first


def before_step(streams, what):
    """Raises where a step, or what it would make, is not what the model looks like."""
    refuse_within_backward(what)
    if streams.copies_bytes:
        raise LongshoreError(f"{what}: the values that `with longshore.resident(parameters, write=\"temporary\"):` "
                             "gives parameters are not the run's, and it has not ended; leave it first "
                             "(model.state_dict() and model.save_pretrained() have them)")
    replaced = _put_back(streams)
    if replaced:
        _refuse_replaced(replaced)
    engine = streams.engine()
    there = set(engine.module.modules()) if engine is not None else ()
    for full, (module, _) in streams.owners.items() if engine is not None else ():
        if module not in there:
            raise LongshoreError(f"{full}: its module is not in the model any more, and what stands in its place "
                                 "trains in no run; replace modules before wrap()")


def refuse_within_backward(what):
    if in_backward():
        raise LongshoreError(f"{what}: other gradients come still; call it when backward() has ended")


class ModelHook:
    """Of the model, or of a part of it that is called by itself: its forward begins and ends."""

    def __init__(self, streams):
        self.streams = streams

    def attach(self, model):
        model.register_forward_pre_hook(Hook(self.pre_forward), prepend=True, with_kwargs=True)
        model.register_forward_hook(Hook(self.post_forward), always_call=True)

    def pre_forward(self, module, args, kwargs):
        streams = self.streams
        streams.inside.enter(streams)
        check(streams)
        if (streams.activations is not None and streams.inside.hooks is not None and not streams.inside.sends
            and torch.is_grad_enabled()):
            streams.activations.begin(module, args, kwargs)
            streams.inside.sends = True

    def post_forward(self, module, args, output):
        streams = self.streams
        streams.leave(streams)
        if not streams.inside.modules and output is not None:
            apart, streams.inside.apart = streams.inside.apart, []
            for copy, version, handle in apart:
                if version_of(copy) != version:
                    raise AbsentParameterError(say_lost(streams, handle))
            replaced = _put_back(streams)
            if replaced:
                raise LongshoreError(f"{replaced}: was replaced in forward, and has been put back; {IN_PASS}")


class ModuleHook:
    """Of a module that computes with parameters of blocks: they are in memory while it does, forward and backward."""

    def __init__(self, streams, name, blocks):
        """name: of the module in the model. blocks: of the streams, in their order."""
        self.streams, self.blocks = streams, blocks
        own = [streamed.number for streamed in blocks if streamed.block.layer and streamed.block.module == name]
        self.is_layer, self.first, self.last = bool(own), min(own, default=0), max(own, default=0)
        self.shares_slots = any(not streamed.stays for streamed in blocks)

    def attach(self, module):
        module.register_forward_pre_hook(Hook(self.pre_forward), prepend=True, with_kwargs=True)
        module.register_forward_hook(Hook(self.post_forward), always_call=True, with_kwargs=True)

    def pre_forward(self, module, args, kwargs):
        streams, blocks = self.streams, self.blocks
        if self.is_layer and streams.turns is not None:
            streams.turns.gate(module)
        if self.shares_slots and not all(streamed.present for streamed in blocks):
            args, kwargs = streams.places.apart((args, kwargs))  # views of one whose forward goes on
        streams.inside.enter(module, blocks)
        saver = checkpoint_that_saves() if in_backward() else None
        for streamed in blocks:
            if not streamed.present:
                streams.ensure(streamed)
            streamed.again = saver and weakref.ref(saver)
        # in backward, what is computed again comes with what follows it anyway
        if self.is_layer and not in_backward():
            streams.want_following(self.last, 1)
        return args, kwargs

    def post_forward(self, module, args, kwargs, output):
        streams, blocks = self.streams, self.blocks
        streams.leave(module)
        if self.is_layer and streams.turns is not None:
            streams.turns.leave(module)
        if self.shares_slots and not all(streamed.pins for streamed in blocks):
            output = streams.places.apart(output)
            streams.retire(blocks)
        # whose backward asks nothing of it
        if self.is_layer and torch.is_grad_enabled() and type(module) is not torch.nn.Embedding:
            # what a layer passes on has its gradient when another one computes
            given = {id(t) for t in tree_leaves((args, kwargs))}
            for t in tree_leaves(output):
                if isinstance(t, torch.Tensor) and t.requires_grad and id(t) not in given:
                    t.register_hook(lambda gradient: self.pre_backward(module))
        return output

    def pre_backward(self, module):
        """A gradient of its output has come."""
        streams = self.streams
        if streams.turns is not None:
            streams.turns.check(module)
        for streamed in self.blocks:
            if not streamed.present:
                streams.ensure(streamed)
        streams.want_following(self.first, -1)
