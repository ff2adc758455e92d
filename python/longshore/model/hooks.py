"""Hooks of modules: fetch a block before its module computes, in forward and backward, and prefetch the next one.

They also check that the parameters are still those of wrap()."""

import weakref

import torch

from ..errors import AbsentParameterError, LongshoreError
from ..native import lib
from ..torch_internals import (
    DisableTorchFunctionSubclass,
    in_backward,
    in_functional_call,
    is_compiled,
    parameters_of,
    tree_leaves,
    version_of,
)
from . import sliced_loss
from .absent import StandIn
from .forward_scope import Hook, checkpoint_that_saves
from .write_tracking import CHANGE, IN_PASS, is_elsewhere, say_lost


def hook(streams, model):
    """Attaches hooks to the model, and to each of its modules that has parameters of these streams."""
    of = {id(p): streamed for streamed in streams.blocks for p, _ in streamed.parameters}
    modules = dict(model.named_modules())
    hooked = {}
    for name, module in modules.items():
        hooked[name] = {of[id(p)] for p in parameters_of(module).values() if p is not None and id(p) in of}
    # a layer is fetched as a whole when it begins
    for streamed in streams.blocks:
        layer = streamed.block.module
        if streamed.block.layer and layer in modules:
            hooked[layer] |= {of[id(p)] for p in modules[layer].parameters() if id(p) in of}
            if is_compiled(modules[layer]):  # a hook inside it would break its graph in two
                for name in hooked:
                    if name.startswith(f"{layer}."):
                        hooked[name].discard(streamed)
    for name, blocks in hooked.items():
        if blocks:
            ModuleHook(weakref.proxy(streams), name, sorted(blocks, key=lambda s: s.number)).attach(modules[name])
    ModelHook(streams).attach(model)


def check(streams):
    """Restores parameters that are not what they were at wrap(), since they would not be trained, and raises."""
    wrong, thawed = _put_back(streams), None
    for streamed in streams.blocks:
        for (p, handle), tensor in zip(streamed.parameters, streamed.block.tensors):
            if not tensor.trains:
                with DisableTorchFunctionSubclass():
                    if p.requires_grad:
                        thawed, p.requires_grad = thawed or handle.name, False
            if handle.temporary:
                if p.shape != handle.view.shape or p.dtype != handle.view.dtype:
                    raise LongshoreError(
                        f"{handle.name}: is {list(handle.view.shape)} and {handle.view.dtype}, and "
                        f"{list(p.shape)} and {p.dtype} was put in its place"
                    )
            elif streamed.present and is_elsewhere(p, handle):
                wrong, p.data = wrong or handle.name, handle.view
                handle.version = version_of(p)
            elif streamed.present and not streamed.pins and version_of(p) != handle.version:
                streams.hide(streamed)  # raises that it was changed
    if wrong:
        _refuse_replaced(wrong)
    if thawed:
        raise LongshoreError(
            f"{thawed}: is frozen in this run, and stays frozen; set requires_grad before wrap() for "
            "parameters that train later (also of adapters that are not active yet), freeze them "
            "after wrap(), and thaw them again"
        )


def _refuse_replaced(name):
    raise LongshoreError(
        f"{name}: was converted or replaced after wrap(), and has been put back; convert, resize, "
        f"prune, parametrize and replace parameters before wrap(); to give one other values, {CHANGE}"
    )


def _put_back(streams):
    """Puts replaced parameters back into their modules. Returns the name of the first, or None."""
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
    """Raises LongshoreError if a step, or `what`, would not match the model as it looks now."""
    refuse_within_backward(what)
    if streams.copies_bytes:
        raise LongshoreError(
            f'{what}: the values that `with longshore.resident(parameters, write="temporary"):` '
            "gives parameters are not the run's, and it has not ended; leave it first "
            "(model.state_dict() and model.save_pretrained() have them)"
        )
    replaced = _put_back(streams)
    if replaced:
        _refuse_replaced(replaced)
    core = streams.core()
    there = set(core.module.modules()) if core is not None else ()
    for full, (module, _) in streams.owners.items() if core is not None else ():
        if module not in there:
            raise LongshoreError(
                f"{full}: its module is not in the model any more, and the run does not train "
                "its replacement; replace modules before wrap()"
            )


def refuse_within_backward(what):
    if in_backward():
        raise LongshoreError(f"{what}: backward() is still running; call it after backward() has ended")


def _at_gradient(output, given, call):
    """Calls call() when the gradient of an output has arrived. given: leaves that are only passed on. What has no
    values, such as logits of a loss in slices, gets no gradient."""
    given = {id(t) for t in given}
    for t in tree_leaves(output):
        if isinstance(t, torch.Tensor) and not isinstance(t, StandIn) and t.requires_grad and id(t) not in given:
            t.register_hook(lambda gradient: call())


class ModelHook:
    """The hooks of the whole model: its forward begins and ends, and its backward begins."""

    def __init__(self, streams):
        self.streams = streams

    def attach(self, model):
        model.register_forward_pre_hook(Hook(self.pre_forward), prepend=True, with_kwargs=True)
        model.register_forward_hook(Hook(self.post_forward), always_call=True)

    def pre_forward(self, module, args, kwargs):
        streams = self.streams
        streams.inside.enter(streams)
        check(streams)
        inside = streams.inside
        inside.has_labels = kwargs.get("labels") is not None
        goes = streams.activations is not None and inside.hooks is not None and not inside.offloads
        if goes and torch.is_grad_enabled():
            streams.activations.begin(module, args, kwargs)
            streams.inside.offloads = True

    def post_forward(self, module, args, output):
        streams = self.streams
        streams.leave(streams)
        if not streams.inside.modules and output is not None:
            copies, streams.inside.view_copies = streams.inside.view_copies, []
            for copy, version, handle in copies:
                if version_of(copy) != version:
                    raise AbsentParameterError(say_lost(streams, handle))
            replaced = _put_back(streams)
            if replaced:
                raise LongshoreError(f"{replaced}: was replaced in forward, and has been put back; {IN_PASS}")
            if torch.is_grad_enabled() and not in_backward():
                _at_gradient(output, (), weakref.proxy(streams).backward_runs)


class ModuleHook:
    """The hooks of a module with parameters: their blocks are in memory while it computes, forward and backward."""

    def __init__(self, streams, name, blocks):
        """name: the module's in the model. blocks: the Streamed blocks that it computes with, in order."""
        self.streams, self.name, self.blocks = streams, name, blocks
        own = [streamed.number for streamed in blocks if streamed.block.layer and streamed.block.module == name]
        self.is_layer, self.first, self.last = bool(own), min(own, default=0), max(own, default=0)

    @property
    def unit(self):
        """The unit that the module is, or is inside of: (name, whether it is a layer, names of parameters)."""
        first = self.blocks[0].block
        names = [t.name for streamed in self.blocks for t in streamed.block.tensors]
        return (first.module, True, names) if first.layer else (self.name, False, names)

    @property
    def shares_slots(self):
        return any(not streamed.stays for streamed in self.blocks)

    def attach(self, module):
        module.register_forward_pre_hook(Hook(self.pre_forward), prepend=True, with_kwargs=True)
        module.register_forward_hook(Hook(self.post_forward), always_call=True, with_kwargs=True)

    def pre_forward(self, module, args, kwargs):
        streams, blocks, again = self.streams, self.blocks, in_backward()
        if args and type(args[0]) is sliced_loss.Call and not args[0].reads:
            return None
        streams.clock.stop()
        if again and streams.state is not None:
            streams.state.charges.turn(lib.SHORE_CHARGE_AGAIN)
        if self.is_layer and streams.turns is not None:
            streams.turns.gate(module)
        if self.shares_slots and not all(streamed.present for streamed in blocks):
            args, kwargs = streams.places.copy_out((args, kwargs))  # views of a block that this one may evict
        streams.inside.enter(module, blocks)
        saver = checkpoint_that_saves() if again else None
        for streamed in blocks:
            if not streams.ready(streamed):
                streams.ensure(streamed)
            streamed.recomputer = saver and weakref.ref(saver)
        # not in backward, where recomputation goes with the prefetch of pre_backward()
        if self.is_layer and not again:
            streams.prefetch_next(self.last, 1)
        if streams.clock.runs:
            streams.clock.go("backward" if again else "forward", *self.unit)
        if self.is_layer and streams.fates is not None:
            streams.fates.begin(streams.inside, self.name, module, args, kwargs)
        return args, kwargs

    def post_forward(self, module, args, kwargs, output):
        streams, blocks = self.streams, self.blocks
        if self.is_layer and streams.fates is not None:
            streams.fates.end(streams.inside, self.name, module, output is not None)
        streams.leave(module)
        if in_backward() and not streams.inside.modules:
            streams.backward_runs()
        if self.is_layer and streams.turns is not None:
            streams.turns.leave(module)
        if self.shares_slots and not all(streamed.pins for streamed in blocks):
            output = streams.places.copy_out(output)
            streams.retire(blocks)
        # an embedding's backward does not need its parameters
        if self.is_layer and torch.is_grad_enabled() and type(module) is not torch.nn.Embedding:
            # not of tensors that it only passes on: their gradients arrive when another layer computes
            _at_gradient(output, tree_leaves((args, kwargs)), lambda: self.pre_backward(module))
        return output

    def pre_backward(self, module):
        """A gradient of the module's output has arrived: its backward begins."""
        streams = self.streams
        streams.backward_runs()
        streams.clock.stop()
        if streams.turns is not None:
            streams.turns.check(module)
        for streamed in self.blocks:
            if not streams.ready(streamed):
                streams.ensure(streamed)
        streams.prefetch_next(self.first, -1)
        if streams.clock.runs:
            streams.clock.go("backward", *self.unit)
