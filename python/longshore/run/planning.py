"""longshore.plan(): says what a run will take before anything is made."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .. import native
from ..drives.layout import Layout
from ..errors import BudgetError, LongshoreError
from ..model import blocks as tree, placement, sliced_loss, trace as tracing
from ..model.fates import only_once
from ..native import lib
from ..step.optimizers import told
from . import endurance, forecast, init, machine as machines, memory_plan, shared_budget
from .activation_plan import with_sliced_loss
from .device_memory import DeviceBudget, counted
from .engine_surface import refuse_engine
from .options import DTYPE_OF, NAME_OF, Options
from .process_memory import without_cache
from .wrap import BUFFERS_BYTES, wrap

# of the command, with what they take
FLAGS = {
    **dict.fromkeys(["memory", "gpu-memory", "pinned-memory", "activation-room"], "SIZE"),
    "memory-of": "engine|process",
    "max-writes-per-day": "SIZE",
    "activations": "memory|host|drives|auto",
    "optimizer": "NAME",
    "storage": "fp32|bf16",
    "moments": "fp32|8bit",
    "compress": "SHARE",
    "device": "NAME",
}
LEAST_TBW = 10**9  # bytes; who says less has forgotten the unit
SEQUENCE = 1, 1024  # sequences and tokens of each, where no batch is given; fewer tokens if the model takes no more


def plan(
    model: Any,
    batch: Any = None,
    *,
    machine: str | os.PathLike | Mapping | None = None,
    loss_fn: Any = None,
    tbw: int | str | None = None,
    lora: int | None = None,
    **options: Any,
) -> forecast.Forecast:
    """Says what a run will take before anything is made: memory, disk, time, what the drives write, and what a change
    would buy. It needs no weights and no data: the model may lie on the meta device.

    Example::

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        print(longshore.plan(model, (4, 1024), memory="8GiB", drives=2))

    Args:
        model: An nn.Module, on the meta device or with values; a configuration of transformers; a directory with
            config.json; or a list of several, which share memory=: those without trained parameters compute forward
            alone.
        batch: An example batch: a dict of the model's keyword arguments, a tuple of its positional ones, or one tensor;
            for a language model also (sequences, tokens). Default: one sequence of 1,024 tokens.
        machine: A file that describes a machine, the name of a description that comes with the library, or the
            description itself. Its drives are the run's, and its memory counts. Default: this machine, as `python -m
            longshore machine` has measured it; otherwise rates are assumed, and the result says so.
        loss_fn: Computes the loss as loss_fn(output). Default: output.loss, or else the sum of all outputs.
        tbw: Bytes that a drive may write in its life, such as "600TB".
        lora: Rank of adapters that are trained beside the matrices of layers, while the model is frozen. (A model that
            peft has given adapters needs none.)
        options: wrap()'s: drives (also their number), memory, gpu_memory, pinned_memory, max_writes_per_day, optimizer,
            storage, moments, activations, activation_room, compress, layers, device, trains.

    Returns:
        A mapping with the keys of `longshore plan --json`. print() of it shows a table.

    Raises:
        BudgetError: A budget is below the least; the message has the minimum.
        ValueError: An option has an impossible value, a module has no batch, or the model refuses the batch.
    """
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"longshore.plan: loss_fn={loss_fn!r}; it is a function of the model's output")
    if lora is not None and (not isinstance(lora, int) or lora < 1):
        raise ValueError(f"longshore.plan: lora={lora!r}; it is the rank of adapters, 1 or more")
    found = machines.of(machine)
    written = None if tbw is None else native.size(tbw, "tbw")
    if written is not None and written < LEAST_TBW:
        raise ValueError(f"longshore.plan: tbw={tbw!r}; give what a drive is rated to write, such as '600TB'")
    if isinstance(model, (list, tuple)):
        return _together(model, batch, found, loss_fn, lora, written, options)
    return forecast.forecast([_case(model, batch, found, loss_fn, lora, options)], written)


def _options(model, given):
    """wrap()'s Options with its defaults."""
    defaults = {name: p.default for name, p in inspect.signature(wrap).parameters.items() if name != "model"}
    for name in given:
        if name not in defaults:
            raise TypeError(
                f"longshore.plan: takes no {name}=; it takes machine, loss_fn, tbw, lora and the options of wrap()"
            )
    options = Options(**{**defaults, "memory_of": "engine", **given})
    numbers, _, _ = told(model, options.optimizer, options.groups, options.numbers())
    options.take(numbers)
    options.check(numbers)
    return options, numbers


def _case(model, batch, machine, loss_fn, lora, given):
    model, name = _module(model)
    batch = _batch(model, batch)
    drives, given = _drives(given, machine)
    options, numbers = _options(model, {**given, "drives": drives})
    compute = tree.dtype_of(model)
    options.check_storage(compute)
    device = _device(model, options, machine)
    options.check_place(device, opens=False)
    blocks = tree.partition(model, options.layers)
    tree.mark_rest(blocks, model)
    blocks += tree.of_buffers(model, BUFFERS_BYTES)
    layout = Layout(blocks)
    how = {**options.record(numbers, compute), "default_memory": options.memory is None, "trace": options.trace}
    endurance.refuse_others(how.get(endurance.NAME, ()), len(drives), "longshore.plan")
    how["handed_back"] = NAME_OF[layout.handed_back(compute, DTYPE_OF[options.storage])]
    trains = options.trains and any(block.trains for block in blocks)
    how.update({} if trains else {"trains": False})
    traced = functools.partial(_trace, model, loss_of=loss_fn, layers=options.layers, blocks=blocks)
    trace, whole = traced(batch, device=None if machine.named else device), None
    sliceable = trace.has_loss and not trace.why
    if device is None and trains and not trace.why:
        inputs = without_cache(model, (), batch) if isinstance(batch, Mapping) else None
        whole = traced(inputs[1], device=None) if inputs else trace
        if sliceable and sliced_loss.chosen(model, options.fused_loss, True):
            whole = with_sliced_loss(whole, model)
    if sliced_loss.chosen(model, options.fused_loss) and sliceable:
        trace = with_sliced_loss(trace, model)
        *others, head = trace.units
        head = replace(head, backward_temporary_bytes=head.backward_most_bytes)
        trace = replace(trace, units=[*others, head])
    memory = None if options.memory is None else native.size(options.memory)
    room = 0 if options.activation_room is None else native.size(options.activation_room, "activation_room")
    budgets = _budgets(model, options, machine, device)
    if not machine.named:
        shared_budget.within(memory or 0)
    if lora:
        _refuse_rank(lora, blocks)
    once = frozenset() if whole is None else only_once(model, whole)
    budgets.update(room=room, whole=whole, once=once)
    case = forecast.Case(name, blocks, trace, how, machine, drives, memory, device, **budgets)
    return replace(case, **forecast.adapted(case, lora)) if lora else case


def _refuse_rank(rank, blocks):
    shapes = [t.shape for block in blocks if block.layer for t in block.tensors if len(t.shape) == 2]
    widest = max(map(min, shapes), default=0)
    if rank > widest:
        raise ValueError(f"longshore.plan: lora={rank}; a rank is at most the width of the layers' matrices, {widest}")


def _trace(model, batch, device, loss_of, layers, blocks):
    """The Trace on a device, or else on the CPU, or else of the blocks alone."""
    for where in dict.fromkeys((device, None)):
        try:
            return tracing.trace(model, batch, where, loss_of, layers)
        except tracing.Refused as failure:
            raise ValueError(f"longshore.plan: {failure}") from None
        except tracing.Untraceable as failure:
            why = str(failure)
    return tracing.from_blocks(blocks, tracing.tokens_of(batch), why)


def _module(model):
    """(the module, its name) of what was given: a module, a configuration, or a directory with config.json."""
    if isinstance(model, nn.Module):
        refuse_engine(model, "longshore.plan", "give it the model, before wrap()")
        tree.refuse_lazy(model)
        tree.check(model)
        return model, type(model).__name__
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not os.path.isfile(os.path.join(path, "config.json")):
            raise ValueError(f"longshore.plan: {path!r} is no directory with a config.json")
        import transformers

        model = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        return _of_config(model), path
    if hasattr(model, "model_type") and hasattr(model, "to_dict"):
        return _of_config(model), type(model).__name__
    raise ValueError(
        f"longshore.plan: {type(model).__name__} is no nn.Module, no configuration of transformers and no directory "
        "with a config.json"
    )


def _of_config(config):
    """A configuration's model on the meta device: of the class that it names, or else for causal language."""
    import transformers

    named = next(iter(getattr(config, "architectures", None) or ()), "")
    kind = getattr(transformers, named, None)
    try:
        with torch.device("meta"):
            return kind(config) if kind is not None else transformers.AutoModelForCausalLM.from_config(config)
    except Exception as failure:  # whatever a model's own code raises
        raise ValueError(
            f"longshore.plan: {named or type(config).__name__}: the model cannot be made on the meta device "
            f"({native.first_line(failure)}): make it yourself, and give longshore.plan() that"
        ) from None


def _batch(model, batch):
    config = getattr(model, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    sizes = isinstance(batch, tuple) and len(batch) == 2 and all(isinstance(n, (int, float)) for n in batch)
    if batch is not None and not sizes and not isinstance(batch, (Mapping, tuple, list, torch.Tensor)):
        raise ValueError(
            f"longshore.plan: batch={batch!r}; it is an example batch (a dict, a tuple or a tensor), or of a language "
            "model (sequences, tokens)"
        )
    if batch is not None and not sizes:
        return batch
    if vocabulary is None:
        raise ValueError(
            f"longshore.plan: {type(model).__name__} is no language model of transformers, so it needs an example "
            "batch: a dict, a tuple or a tensor, which may lie on the meta device"
        )
    most = getattr(config, "max_position_embeddings", None) or SEQUENCE[1]
    sequences, length = batch or (SEQUENCE[0], min(SEQUENCE[1], most))
    if not all(isinstance(n, int) and 0 < n < 1 << 32 for n in (sequences, length)):
        raise ValueError(f"longshore.plan: batch={batch!r}; both numbers are whole, and 1 or more")
    if length > most:
        raise ValueError(f"longshore.plan: batch={batch!r}; the model has {most:,} positions")
    ids = torch.zeros((sequences, length), dtype=torch.long, device="meta")
    return {"input_ids": ids, "labels": ids}


def _drives(given, machine):
    """(paths of drives, the other options). drives= may be their number."""
    given = dict(given)
    asked = given.pop("drives", None)
    if isinstance(asked, int) and not isinstance(asked, bool):
        if asked < 1:
            raise ValueError(f"longshore.plan: drives={asked}; it is their paths, or their number, 1 or more")
        return ["longshore-drive.volume"] * asked, given
    named = len(machine.drives) if machine.named else 0
    return init.drives_of(asked) or ["longshore-drive.volume"] * (named or 1), given


def _device(model, options, machine):
    """What the model computes on; None: the CPU."""
    if options.device is None and machine.named:
        return torch.device("cuda") if machine.size("gpu", "memory") else None
    if options.device is not None and machine.named:
        where = torch.device(options.device)
        return None if where.type == "cpu" else where
    return placement.of(model, options.device, f"longshore.plan: device={options.device!r}")


def _budgets(model, options, machine, device):
    """The budgets of a device, as a Case has them."""
    given = {"gpu_memory": options.gpu_memory, "pinned_memory": options.pinned_memory}
    given = {name: native.size(size, name) for name, size in given.items() if size is not None}
    memory_plan.refuse_budgets(device, given.get("gpu_memory"), given.get("pinned_memory"))
    if device is not None and machine.named:
        there = machine.size("gpu", "memory")
        limit = given.get("gpu_memory") or (there * 9 // 10 if there else None)
        beside = sum(b.nbytes for b in model.buffers())
        given["gpu_memory"] = None if limit is None else DeviceBudget(limit, "gpu_memory" in given, beside=beside)
        given.setdefault("pinned_memory", machine.size("gpu", "pinned"))
        return given
    return counted(given, device, model)


def _together(models, batch, machine, loss_fn, lora, tbw, options):
    """The Forecast of several models in one budget, one after the other in each step."""
    if not models:
        raise ValueError("longshore.plan: an empty list of models")
    if options.get("memory_of") == "process":
        raise ValueError('longshore.plan: memory_of="process" is for one engine on a CPU: plan each model alone')
    memory = options.pop("memory", None) if "memory" in (options := dict(options)) else None
    batches = batch if isinstance(batch, list) else [batch] * len(models)
    cases = [_case(model, b, machine, loss_fn, lora, options) for model, b in zip(models, batches)]
    budget = cases[0].default_bytes() if memory is None else native.size(memory)
    least = [case.at_least() for case in cases]
    if budget < sum(least):
        raise BudgetError(_too_little(budget, sum(least), cases), lib.SHORE_EBUDGET)
    left = (budget - sum(least)) // len(cases)
    return forecast.forecast([replace(case, memory=n + left) for case, n in zip(cases, least)], tbw)


def _too_little(budget, least, cases):
    names = " and ".join(case.name for case in cases)
    return (
        f"memory={native.readable(budget)} is too little for {names} together: minimum "
        f"{native.readable(least, up=True)}"
    )


def _in_flags(said):
    """A sentence about arguments of plan(), about flags."""
    said = re.sub(r"^(longshore\.plan|wrap): ", "", said)
    for name in ("tbw", "lora", "drives", "machine", *(name.replace("-", "_") for name in FLAGS)):
        flag = f"--{name.replace('_', '-')}"
        said = re.sub(rf"\b{name}=(?=\W*(\s|$))", flag, said)
        said = re.sub(rf"\b{name}=", f"{flag} ", said)
        said = re.sub(rf"^{name}\b", flag, said)
    return said


def main(arguments):
    """python -m longshore plan MODEL|CONFIG ...: prints the plan. Returns the exit status."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m longshore plan", description="Says what training a model with the package will take."
    )
    parser.add_argument("model", help="directory with a config.json, or such a file")
    parser.add_argument("--batch", type=int, default=SEQUENCE[0], metavar="S", help="sequences of a step")
    parser.add_argument("--seq-len", type=int, metavar="T", help="tokens of each")
    parser.add_argument(
        "--machine",
        metavar="NAME|FILE",
        help="another machine: one that 'longshore machine --list' names, or a description",
    )
    parser.add_argument("--drives", type=int, metavar="N", help="number of drives")
    parser.add_argument("--tbw", metavar="SIZE", help="what a drive may write in its life (600TB)")
    parser.add_argument(
        "--lora", type=int, metavar="RANK", help="adapters of this rank are trained, the model is frozen"
    )
    parser.add_argument(
        "--gradient-checkpointing", action="store_true", help="the model computes activations again, as it does itself"
    )
    parser.add_argument("--json", action="store_true", help="prints JSON")
    for name, takes in FLAGS.items():
        parser.add_argument(f"--{name}", metavar=takes, help=f"wrap()'s {name.replace('-', '_')}=")
    given = {key: value for key, value in vars(parser.parse_args(arguments)).items() if value is not None}
    as_json, path, sequences = given.pop("json"), given.pop("model"), given.pop("batch")
    path = os.path.dirname(path) or "." if os.path.basename(path) == "config.json" else path
    length, checkpointing = given.pop("seq_len", None), given.pop("gradient_checkpointing")
    try:
        model, name = _module(path)
        if checkpointing:
            model.config.use_cache = False  # which transformers does itself, and warns
            of_5 = getattr(model, "activation_checkpointing_enable", None)
            (of_5 or model.gradient_checkpointing_enable)()
        most = getattr(model.config, "max_position_embeddings", None) or SEQUENCE[1]
        found = plan(model, (sequences, length or min(SEQUENCE[1], most)), **given)
    except (LongshoreError, ValueError, OSError) as failure:
        print(f"python -m longshore plan: {_in_flags(native.first_line(failure))}", file=sys.stderr)
        return 2
    found = forecast.Forecast({**found, "model": name, "notes": [_in_flags(note) for note in found["notes"]]})
    print(json.dumps(dict(found)) if as_json else found)
    return 0
