"""longshore.resume(): opens a run at its last step and makes its engine again."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Callable, Iterable

import torch
from torch import nn

from .. import native, progress
from ..drives.state import State
from ..errors import LongshoreError
from ..model import adapters, blocks as tree, cuda, device as devices, placement
from ..model.init_on_disk import replaced
from ..other_names import answered
from ..progress import Progress
from ..ranks.launch import ranks
from ..step import commit_blob
from ..torch_internals import buffers_of, outside_inference_mode, parameters_of
from . import agreement, device_memory, endurance, memory_plan, open_engines, process_memory, shared_budget
from .engine import Engine
from .engine_surface import core_of
from .memory import note_imports
from .options import BUDGETS, budgets, refuse_rank_timeout, refuse_ranks, refuse_trace
from .wrap import count_in, open_engine, temporary_buffers, versions, who


def _without_memory(before):
    """nn.Module.register_parameter() that keeps of a parameter all but its memory."""

    def register_parameter(self, name, param):
        before(self, name, param)
        if param is not None and not nn.parameter.is_lazy(param) and param.device.type != "meta" and param.numel():
            parameters_of(self)[name] = type(param)(param.detach().to("meta"), requires_grad=param.requires_grad)

    return register_parameter


@answered
@outside_inference_mode
def resume(
    run: str | os.PathLike,
    model: nn.Module | Callable[[], nn.Module] | object = None,
    *,
    memory: int | str | None = None,
    memory_of: str | None = None,
    gpu_memory: int | str | None = None,
    pinned_memory: int | str | None = None,
    max_writes_per_day: int | str | Iterable | None = None,
    accept_step: int | None = None,
    device: str | torch.device | None = None,
    device_timeout: float = devices.TIMEOUT_SECONDS,
    rank_timeout: float | None = None,
    trace: int = 0,
) -> Engine:
    """Opens a run at its last committed step and returns its Engine.

    Random states, buffers and parameter groups are as they were after that step.

    Example::

        engine = longshore.resume("runs/a")  # a transformers model: the run recorded its class and configuration
        engine = longshore.resume("runs/b", model=make_model)

    Args:
        run: Directory of the run.
        model: The module, a transformers configuration, or a function that makes the module. Its values are ignored.
            Default: the class and configuration that the run recorded.
        memory: Most bytes that Longshore holds, such as "8GiB". Default: as before.
        memory_of: As for wrap(). Default: as before.
        gpu_memory, pinned_memory: As for wrap(). Default: as before.
        max_writes_per_day: As for wrap(); "none": no limit. Default: as before.
        accept_step: A whole step to go on from although the newest one is damaged, or the drives were put back from a
            copy. Every byte of it is read first. `longshore train --resume --accept-step` does the same.
        device: Where forward and backward compute, as for wrap(). Default: as before. A run of a GPU goes on on a CPU
            with device="cpu", and the other way round.
        device_timeout, rank_timeout, trace: As for wrap().

    Returns:
        The Engine.

    Raises:
        MissingError: There is no run in the directory.
        BusyError: Another process, or another engine of this process, uses the run.
        BudgetError: A budget is below the least that works for this model; the message names it and its minimum.
        LongshoreError: The model is not the run's, or cannot be made.
    """
    run = os.fspath(run)
    if accept_step is not None and (type(accept_step) is not int or not 0 <= accept_step < 2**63):
        raise ValueError(f"resume: accept_step={accept_step!r}: a step is a whole number, 0 or more")
    devices.refuse_timeout("resume", device_timeout)
    refuse_rank_timeout("resume", rank_timeout)
    refuse_trace("resume", trace)
    with agreement.Agreement("resume", ranks(rank_timeout)) as agreed:
        own, writes = budgets(gpu_memory, pinned_memory), max_writes_per_day
        return _resume(run, model, memory, memory_of, own, writes, accept_step, device, device_timeout, trace, agreed)


def _resume(run, model, memory, memory_of, own, writes, accept_step, device, device_timeout, trace, agreed):
    """Checks the model, plans memory, and opens the run."""
    note_imports()
    process_memory.refuse_beside("resume")
    open_engines.refuse_second(run)
    with contextlib.closing(State.open(run, read_only=True, without_drives=True)) as record:
        program, layout, drives, budget = record.program, record.layout, record.drives, record.memory_bytes or None
    if program is None or program.get("name") != "longshore.torch":
        maker = "longshore train" if program is None else program.get("name")
        raise LongshoreError(
            f"{run}: was made by {maker}: continue it there, or copy its state: `longshore "
            f"export {run} --dtype fp32 --moments --out DIR`, from_pretrained(DIR) inside "
            "longshore.init(NEW), and wrap(moments_from=DIR)"
        )
    how = program["engine"]
    if writes is not None:
        program["engine"] = how = {**how, endurance.NAME: endurance.sizes(writes, "resume")}
    endurance.refuse_others(how.get(endurance.NAME, ()), len(drives), "resume")
    if how.get("trains", True):
        refuse_ranks(run, how)
    model = _model_for(model, program, run)
    tree.refuse_lazy(model)
    _give_buffers(model, program, run)
    _match(layout, model, how, program, run)
    given = _groups_of(model, how["groups"])
    budget = budget and max(1, budget - shared_budget.still_lent(run))
    budget = native.size(memory) if memory is not None else None if shared_budget.left() is not None else budget
    asked = how.get("device") if device is None else device
    asks = f"{run}: was made with device={asked!r}" if device is None else f"resume: device={asked!r}"
    where = placement.of(model, asked, asks, otherwise="cpu")
    if where is not None:
        there = BUDGETS[:1] if cuda.is_unified(where) else BUDGETS  # a run of another machine's goes on
        own = {**{name: how[name] for name in there if name in how}, **own}
    lenders = () if how.get("trains", True) else open_engines.training()
    own = device_memory.counted(own, where, model, lenders)
    planned = {**how, "default_memory": memory is None and how.get("default_memory")}
    planned.update(memory_of=memory_of or how.get("memory_of", "engine"), trace=trace)
    process_memory.refuse("resume", planned["memory_of"], where, process_memory.beside(how, drives))
    replan = functools.partial(memory_plan.plan, layout, drives, who=who(model, run), device=where, **own)
    chosen = process_memory.plan(replan, budget, planned)
    said = {**how, "device": placement.recorded(where), "accept_step": accept_step}
    agreed.on(run, agreement.described(layout, said, versions()))
    with Progress(f"opening {run}"):
        return _open(run, model, program, layout, given, chosen, accept_step, where, device_timeout)


def _open(run, model, program, layout, given, chosen, accept_step, where, device_timeout):
    """Opens the run's state and makes the engine of a model that matches it."""
    how = {**program["engine"], "device": placement.recorded(where)}
    state = State.open(run, ranks=ranks(), ring_bytes=chosen.ring_bytes, accept_step=accept_step)
    try:
        state.layout.continue_as(layout, run)
        _refuse_others(run, commit_blob.unfit_buffers(model, commit_blob.of(state), state))
        core = core_of(open_engine(model, state, how, given, chosen, where, device_timeout))
    except BaseException as failure:
        state.fail(failure)
        state.close()
        raise
    core.go_on(state, run)
    adapters.fill_original_rows(model)
    if (limit := how.get(endurance.NAME, [])) != state.program["engine"].get(endurance.NAME, []):
        state.record(f"{endurance.NAME} is {', '.join(map(native.readable, limit)) or 'none'}", program)
    now = versions()
    changed = [f"{k} {now[k]} instead of {v}" for k, v in program["versions"].items() if k in now and now[k] != v]
    if changed:
        said = f"{run}: {', '.join(changed)}: from here on, Longshore does not promise the same bits"
        progress.warn(said, stacklevel=2)
        state.record("; ".join(changed), {**program, "versions": {**program["versions"], **now}})
    return count_in(core, run)


def _model_for(model, program, run):
    """The module that resume() was given, or makes."""
    if isinstance(model, nn.Module):
        return model
    with replaced(nn.Module, register_parameter=_without_memory):
        if model is None:
            return _recorded_model(program, run)
        if hasattr(model, "to_dict") and hasattr(model, "model_type"):
            return _with_adapters(_class_of(program, run)(model), program)
        if callable(model):
            try:
                return model()
            except (RuntimeError, NotImplementedError) as said:
                if "meta" not in str(said):
                    raise
                raise LongshoreError(
                    f"{run}: the model cannot be made without values ({said}); give resume() the module itself"
                ) from said
    raise ValueError(
        "resume: model must be a module, a transformers configuration, or a function that makes the module"
    )


def _give_buffers(model, program, run):
    """Gives memory to the model's buffers on the meta device; their values come from the run.

    Buffers that state_dict() leaves out are rounded to the dtype that they had when the run was made.
    """
    for name, b in tree.persistent_buffers(model).items():
        if b.device.type == "meta":
            owner, _, last = name.rpartition(".")
            buffers_of(model.get_submodule(owner))[last] = torch.zeros_like(b, device="cpu")
    saved, rows = tree.persistent_buffers(model), adapters.original_rows(model)
    for name, b in model.named_buffers():
        if b.is_meta and name in rows:
            module, adapter = rows[name]
            module.trainable_tokens_original[adapter] = torch.zeros_like(b, device="cpu")
        elif b.is_meta and name not in saved:
            raise LongshoreError(
                f"{run}: {name} is a buffer that state_dict() leaves out, and cannot be made without "
                "values; give resume() the module itself, made as for wrap()"
            )
    for name, b in temporary_buffers(model).items():
        dtype = commit_blob.DTYPES.get(program.get("temporary", {}).get(name), b.dtype)
        if dtype.itemsize > b.dtype.itemsize:
            raise LongshoreError(
                f"{run}: the model is not the run's: {name} is {b.dtype}, and was {dtype}; give "
                "resume() a model that was not converted"
            )
        if dtype != b.dtype:
            owner, _, last = name.rpartition(".")
            buffers_of(model.get_submodule(owner))[last] = b.to(dtype)


def _class_of(program, run):
    """The model's class, imported by the name that the run recorded."""
    module, _, name = program["class"].rpartition(".")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError):
        raise LongshoreError(
            f"{run}: its model is a {program['class']}, which cannot be imported here; give resume() the model"
        ) from None


def _recorded_model(program, run):
    """A new model from the class, configuration and adapters that the run recorded."""
    if program["config"] is None:
        raise LongshoreError(
            f"{run}: its model is a {program['class']} without a configuration; give resume() the "
            "model, or what makes it"
        )
    found = _class_of(program, run)
    config = found.config_class.from_dict(program["config"])
    return _with_adapters(found(config), program)


def _with_adapters(base, program):
    recorded = program.get("adapters")
    return base if recorded is None else adapters.put_on(base, recorded)


def _match(layout, model, how, program, run):
    """Checks that the model has the run's tensors, and names those that differ."""
    parameters, buffers = dict(model.named_parameters(remove_duplicate=False)), dict(model.named_buffers())
    frozen = set(program["frozen"])
    known, wrong = set(), []
    for block, layer in zip(layout.blocks, _layers_of(layout, how["layers"])):
        block.buffers = block.name in how.get("buffers", ())
        for tensor in block.tensors:
            known.update(tensor.names)
            p = (buffers if block.buffers else parameters).get(tensor.name)
            if p is None:
                wrong.append(f"{tensor.name} is missing")
                continue
            if tuple(p.shape) != tensor.shape:
                wrong.append(f"{tensor.name} is {list(p.shape)} and was {list(tensor.shape)}")
            tensor.trains = frozen.isdisjoint(tensor.names) and not block.buffers
            if not block.buffers:
                p.requires_grad_(tensor.trains)
        block.layer, block.module = layer is not None, layer or block.name
        block.trains = any(t.trains for t in block.tensors)
    if not wrong:
        tree.mark_rest(layout.blocks, model)
    wrong += [f"{name} is new" for name, p in parameters.items() if name not in known and p.numel()]
    _refuse_others(run, wrong)


def _refuse_others(run, wrong):
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise LongshoreError(f"{run}: the model is not the run's: {', '.join(wrong[:8])}{more}")


def _layers_of(layout, recorded):
    """The layer of each block, or None for a block outside layers. Older runs recorded only the layers' names."""
    if len(recorded) == len(layout.blocks):
        return recorded

    def of(block):
        return next((layer for layer in recorded if re.match(re.escape(layer) + r"(\.frozen|#|$)", block)), None)

    return [of(b.name) for b in layout.blocks]


def _groups_of(model, recorded):
    """Parameter groups from a run's record, with parameters instead of names."""
    parameters = dict(model.named_parameters())

    def back(key, value):
        if key == "params":
            return [parameters[name] for name in value]
        return tuple(value) if isinstance(value, list) else commit_blob.back(value)

    return [{key: back(key, value) for key, value in group.items()} for group in recorded]
