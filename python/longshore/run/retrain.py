"""Trains an engine's model again in a new run that starts from the trained weights, as a second Trainer does."""

import contextlib
import os

import torch

from .. import native
from ..drives.buffer import Buffer
from ..drives.state import State
from ..errors import LongshoreError
from ..native import lib
from ..step.optimizer_table import OPTIMIZERS
from ..step.optimizers import share, told
from ..step.param_groups import defaults_of, refuse_numbers, uses_momentum
from . import endurance, init, open_engines
from .engine_surface import core_of
from .options import BUDGETS, recorded, that_stay
from .wrap import name_groups, program_of


def engine_of(model):
    """The open engine of a model, or None."""
    p = next((p for p in model.parameters() if getattr(p, "longshore", None) is not None), None)
    core = None if p is None else p.longshore.streams.core()
    return core.engine if core is not None and core.state is not None and core.module is model else None


def again(engine, run, optimizer, clip, overwrite, drives=None, memory=None, **others):
    """Moves an open engine to a new run, with a new optimizer of the same kind and zero moments.

    Its old run is closed and stays on the drives. The arguments are those of wrap().
    """
    core = core_of(engine)
    core.refuse_frozen("a training of the model")
    numbers, groups, handed = told(engine.module, optimizer, None, {})
    refuse_numbers({**numbers, "clip": clip}, "a second training of the model: ")
    wanted, drives = (numbers["optimizer"], numbers.pop("moments", "fp32")), init.drives_of(drives) or [run]
    _refuse_others(core, run, wanted, memory, others)
    init.check(run, drives, bool(overwrite))
    given, names = name_groups(engine.module, groups, defaults_of(wanted[0]))
    how = {**core.how, **recorded(numbers), "clip": clip, "groups": names, "seed": open_engines.seed_of_run(engine)}
    engine.drop_gradients()
    engine.settle()
    before = core.state
    program = {**program_of(engine.module, how, core.layout, None, None), "frozen": before.program["frozen"]}
    kind = {"optimizer": OPTIMIZERS[wanted[0]].number, "moments": wanted[1], "overwrite": bool(overwrite)}
    kind.update(with_momentum=uses_momentum(numbers, given), ring_bytes=core.plan.ring_bytes)
    kind.update(fp32=bool(before.made.fp32_params), residual=bool(before.made.residual))
    kind.update(scratch_bytes=before.scratch_bytes)
    state = State.create(run, core.layout, drives, program, before.memory_bytes, core.ranks, **kind)
    with contextlib.closing(state):
        _copy(engine.module, before, state)
        state.seal()
    engine.reopen(run)
    core.begin_training(how, given)
    share(handed, engine.optimizer)
    return engine


def _refuse_others(core, run, wanted, memory, others):
    """Raises LongshoreError for each option that an open engine cannot change."""
    instead = (
        "save the model with the first Trainer's save_model(DIR), call engine.close(), and give the next "
        "Trainer from_pretrained(DIR)"
    )
    if os.path.realpath(run) == os.path.realpath(core.state.path):
        raise LongshoreError(
            f"{run}: is the run of the previous training; give the next Trainer another run= or "
            f"output_dir, or {instead}"
        )
    had = core.how["optimizer"], core.how["moments"]
    if wanted != had:
        raise LongshoreError(
            f"a second training of the model: its engine has {had[0]} with {had[1]} moments, and is "
            f"asked for {wanted[0]} with {wanted[1]}; {instead}"
        )
    other = [
        *that_stay(core.state, others),
        *(["moments_from, and its moments begin anew"] if "moments_from" in others else []),
    ]
    if other:
        raise LongshoreError(f"a second training of the model: {'; '.join(other)}; {instead}")
    if memory is not None and native.size(memory) != core.state.memory_bytes:
        raise LongshoreError(
            f"a second training of the model: memory={memory!r}, and its engine has "
            f"{native.readable(core.state.memory_bytes)} until it is closed; {instead}"
        )
    if others.get("memory_of", core.how.get("memory_of", "engine")) != core.how.get("memory_of", "engine"):
        raise LongshoreError(
            f"a second training of the model: memory_of={others['memory_of']!r}, and its engine has "
            f"{core.how.get('memory_of', 'engine')!r} until it is closed; {instead}"
        )
    if endurance.NAME in others and endurance.sizes(others[endurance.NAME]) != core.how.get(endurance.NAME, []):
        raise LongshoreError(
            f"a second training of the model: {endurance.NAME}={others[endurance.NAME]!r}, and its engine keeps the "
            f"limit that it has until it is closed; {instead}"
        )
    for name in BUDGETS:
        if (asked := others.get(name)) is not None and native.size(asked, name) != core.how.get(name):
            had = native.readable(core.how[name]) if name in core.how else "none of its own"
            raise LongshoreError(
                f"a second training of the model: {name}={asked!r}, and its engine has {had} until it is closed; "
                f"{instead}"
            )


def _copy(model, before, state):
    """Copies the masters of the committed step and the present buffers into a new run; moments are zeros."""
    buffers = dict(model.named_buffers())
    for b, block in enumerate(state.layout.blocks):
        for segment, count, inside in state.layout.pieces(b):
            piece = Buffer(count * native.SEGMENT * 4)
            values = piece.view(torch.float32)
            if block.buffers:
                for t, at, first, last in inside:
                    values[at : at + last - first] = buffers[block.tensors[t].name].detach().reshape(-1)[first:last]
            else:
                before.fetch(b, lib.SHORE_FETCH_MASTER, piece.pointer, segment, count).result()
            state.init_block(b, segment, values)
