"""engine.weights(): the model's values on the host, one tensor after the other, for a sampler on the same machine."""

import contextlib

import torch

from ..drives import recovery
from ..errors import LongshoreError
from ..interrupts import whole
from ..model import device, hooks

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def weights(core, dtype):
    """An iterator over (name, tensor): Engine.weights()."""
    wanted = TORCH.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if wanted is not None and not (isinstance(wanted, torch.dtype) and wanted.is_floating_point):
        raise ValueError(f"weights: dtype={dtype!r}; it must be fp32, bf16, fp16, or a floating-point dtype of PyTorch")
    core.settle_for("weights")
    hooks.before_step(core.streams, "engine.weights")
    core.state.meet("engine.weights()")
    return _each(core, core.state, core.state.step, wanted)


def _each(core, state, step, wanted):
    given = set()
    for name, t in core.module.state_dict(keep_vars=True).items():
        if not isinstance(t, torch.Tensor) or id(t) in given:
            continue
        given.add(id(t))
        if core.state is None:
            core.cycle.open_state("weights")
        if core.state is not state or state.step != step:
            raise LongshoreError(
                f"engine.weights: {name}: step {step} is not the engine's last one any more; call weights() again"
            )
        yield name, _value(core, name, t, wanted if t.is_floating_point() else None)


@whole
def _value(core, name, t, wanted):
    """A copy of a tensor of the model on the host. wanted: its dtype; None: its own."""
    handle = getattr(t, "longshore", None)
    if handle is None:
        value = device.to_host({name: t.detach()}, core.streams.device)[name]
        return value.to(dtype=wanted or t.dtype, copy=True)
    out = _read(core, handle, wanted)
    if out.dtype == torch.float16 and bool(torch.isinf(out).any()):
        raise LongshoreError(f"engine.weights: {name} holds values that fp16 has not: ask for bf16 or fp32")
    return out


def _read(core, handle, wanted=None):
    """A parameter's value, from the drives."""
    number, out = handle.block.number, torch.empty(handle.view.shape, dtype=wanted or handle.view.dtype, device="cpu")
    first = core.layout.offsets[number][handle.index]
    # in its own dtype what modules compute with, and in another the master, rounded once
    fetched = torch.bfloat16 if wanted == torch.bfloat16 else torch.float32 if wanted else handle.block.storage
    with core.streams.lock:
        recovery.persist(core, lambda: core.state.values(number, first, out.view(-1), fetched))
    return out


class _Values:
    """{name: value} of parameters, read from the drives where one is asked for."""

    def __init__(self, core):
        self.core = core
        self.handles = {handle.name: handle for streamed in core.streams.blocks for _, handle in streamed.parameters}

    def __getitem__(self, name):
        return _read(self.core, self.handles[name])


def readable(core):
    """A context in which parameters of a sleeping engine can be read, as those of one that is awake."""
    asleep = core.streams.asleep is not None
    return core.streams.reading(_Values(core)) if asleep else contextlib.nullcontext()
