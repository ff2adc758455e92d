"""longshore.wrap(): from a model to an engine."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .. import native, openmp_wait
from ..errors import LongshoreError
from ..model import adapters, blocks as tree, compiled, device, init
from ..model.activations import Activations
from ..model.init import Drives
from ..model.load_state_dict import Loading
from ..model.streaming import Streams
from ..progress import Progress
from ..step.engine import Engine
from ..step.engine_surface import refuse_engine
from ..step.optimizers import refuse_kinds, refuse_numbers, share as hand_over, told
from . import budgets, commit_blob, lifecycle, memory_plan
from .init_state import Handed, Moments, fill
from .memory import note_imports
from .options import DTYPE_OF, Options
from .state import Layout, State

BUFFERS_BYTES = 16 << 10  # of modules' buffers that commit with a step's blob; more are blocks of the run


def wrap(model: nn.Module, *, run: str | os.PathLike | None = None, drives: Drives = None,
         memory: int | str | None = None, lr: float | None = None,
         betas: tuple[float, float] | None = None, eps: float | None = None, weight_decay: float | None = None,
         momentum: float | None = None,
         clip: float = 0.0, optimizer: str | torch.optim.Optimizer | Callable = "adamw", groups: Iterable | None = None,
         storage: str | None = None, moments: str | None = None,
         on_nonfinite: str = "stop", layers: Iterable[str] | None = None, overwrite: bool | None = None,
         activations: str = "memory",
         activation_room: int | str | None = None, compress: float | str | None = None, compress_after: int = 0,
         moments_from: str | os.PathLike | None = None, compile: bool | str | dict = False) -> Engine:
    """Puts a model's parameters and its optimizer's state on drives, frees their memory, and returns the Engine.

    model: any nn.Module, made inside ``longshore.init(...)`` or in memory already; then run (and drives, memory) are
    given here. Parameters are float32 or bfloat16, which is what is computed with; those of the dtype that fewer
    elements have stay in memory, and are 64 MiB at most. lr (1e-3), betas ((0.9, 0.999)), eps (1e-8), weight_decay
    (0.01), momentum (0): as torch.optim has them, of all parameters; groups: parameter groups as torch.optim takes
    them, instead. clip: largest norm of all gradients together; 0: none. optimizer: adamw, adam, sgd, adagrad; or
    torch.optim's AdamW, Adam, SGD or Adagrad of the model's parameters, with its groups, numbers and state, which the
    engine's takes the place of: its step() is the engine's; or what makes one of them, as the class does, which is
    given the numbers. storage: "bf16" or "fp32", what lies on the drives and is fetched; by default the parameters'
    dtype (masters are fp32 anyway). moments: "fp32" or "8bit". on_nonfinite: "stop" raises, "skip" counts the step and
    goes on. layers: names of the modules that are blocks of their own; by default the elements of ModuleLists.
    activations: where what autograd saves in forward waits for backward: "memory"; "drives", as far as activation_room
    ("64GiB") goes, which is taken there when the run is made (by default four times memory, 64 GiB at most); "auto",
    what the drives keep up with, and the rest in memory. The default is "memory": how much room it takes depends on
    batches that nobody has seen yet, and where activations are small nothing is gained. compress: "top1%" or 0.01, the
    share of each block's gradients that is sent, the largest ones; what is left out waits on the drives and is added to
    the next gradients. compress_after: steps with whole gradients first, a tenth of all or so. moments_from: a
    directory that save_pretrained(moments=True) or `longshore export --moments` has written: the optimizer goes on with
    the moments and counts there, those of parameters that are not in it begin anew. compile: True compiles each layer
    with torch.compile; also the name of a backend, or a dict of backend, mode, dynamic, fullgraph, options. Last bits
    may be others.

    Raises BudgetError below the least memory, ExistsError where a run is there, ValueError for what cannot be.
    """
    options = locals()
    return _wrap(options.pop("model"), Options(**options))


def _wrap(model, options):
    _check_model(model)
    note_imports(sum(p.nbytes for p in model.parameters()))
    making = init.of(model)
    run, drives, memory, overwrite = init.place(making, options.run, options.drives, options.memory, options.overwrite)
    budget = None if memory is None else native.size(memory)
    init.check(run, drives, overwrite)
    numbers, groups, handed = told(model, options.optimizer, options.groups, options.numbers())
    options.take(numbers)
    options.check(numbers)
    optimizer, moments = options.optimizer, options.moments
    parts = tree.partition(model, options.layers)
    compute = tree.dtype_of(model)
    options.check_storage(compute)
    if compute == torch.bfloat16 and not _has_bf16_products():
        warnings.warn("this processor has no bf16 products, and PyTorch is slow without: load the model as float32, "
                      "and wrap(..., storage='bf16') keeps it in bf16 on the drives", stacklevel=3)
    how = options.record(numbers, compute)
    given, how["groups"] = name_groups(model, groups)
    layout = Layout(parts + tree.of_buffers(model, BUFFERS_BYTES))
    with_momentum = any(group.get("momentum", numbers["momentum"]) for group in given)
    old: Any = None
    if options.moments_from is not None:
        old = Moments(options.moments_from, optimizer, with_momentum)
    if handed is not None and handed.state:
        if old:
            raise ValueError("wrap: moments_from: the optimizer that was given has moments; give one that has made no "
                             "step")
        old = Handed(handed, optimizer, with_momentum, model)
    counts = old.counts(layout) if old else None
    lineage = [how["seed"], old.updates] if old else None
    tree.mark_rest(parts, model, compute)
    how["layers"] = [b.module if b.layer else None for b in layout.blocks]
    how["buffers"] = [b.name for b in layout.blocks if b.buffers]
    dtype, room = DTYPE_OF[options.storage], options.activation_room
    chosen = memory_plan.plan(layout, drives, budget, storage=dtype, optimizer=optimizer, moments=moments,
                              activations=options.activations, compress=how["compress"], who=who(model, run),
                              room=None if room is None else native.size(room, "activation_room"))
    state = State.create(run, layout, drives, program_of(model, how, layout, lineage, counts), optimizer=optimizer,
                         moments=moments, fp32=dtype == torch.float32, ring_bytes=chosen.ring_bytes,
                         memory=budget or chosen.total_bytes + chosen.spare_bytes, overwrite=bool(overwrite),
                         momentum=with_momentum, scratch_bytes=chosen.room_bytes, residual=how["compress"] > 0)
    try:
        with Progress("writing the initial state", sum(4 * layout.elems(b) for b in range(len(layout.blocks))),
                      head=_say(model, state, chosen)) as shown:
            fill(state, model, making.spool if making else None, shown, old)
            engine = open_engine(model, state, how, given, chosen, state.seal)
            engine.streams.open(state)
        if old:
            engine.lineage, engine.cycle.counts = lineage, counts
    except BaseException:
        state.close()
        raise
    if handed is not None:
        hand_over(handed, engine.optimizer)
    lifecycle.add(engine)
    budgets.add(engine, who(model, run))
    return engine


def who(model, run):
    return f"{type(model).__name__} ({os.fspath(run)})"


def _say(model, state, chosen):
    """What is made, in a line."""
    return (f"{type(model).__name__} of {sum(p.numel() for p in model.parameters())} parameters: "
            f"{native.readable(state.info().disk_bytes)} on {', '.join(state.drives)}; memory "
            f"{native.readable(state.memory_bytes)}, {native.readable(chosen.least_bytes)} at least")


def open_engine(model, state, how, groups, chosen, seal=None):
    """seal: called before the model gives its parameters up, so that they are never nowhere."""
    compiled.compile_blocks(model, how["layers"], how.get("compile"))
    streams = Streams(state.layout, DTYPE_OF[how["compute"]], DTYPE_OF[how["storage"]], chosen.slots,
                      device.of(model))
    named = dict(model.named_parameters(remove_duplicate=False))
    was = {id(p): name for name, p in named.items()}
    if chosen.pool_bytes:
        streams.make_activations = lambda state: Activations(state, how["activations"], chosen.pool_bytes,
                                                             state.scratch_bytes)
    if seal is not None:
        seal()
    init.take(model)
    streams.bind(model)
    streams.loading = Loading(streams, model)
    adapters.refuse_merging(model)
    now = dict(model.named_parameters(remove_duplicate=False))
    for group in groups:  # parameters of the meta device were replaced
        group["params"] = [now[was[id(p)]] for p in group["params"]]
    openmp_wait.stop()
    engine = Engine(model, streams, state, how, groups, chosen.gradient_bytes)
    engine.plan = chosen
    return engine


def _check_model(model):
    refuse_engine(model, "wrap", "use the Engine as it is, or resume() its run")
    if not isinstance(model, nn.Module):
        raise ValueError(f"wrap: {type(model).__name__} is not an nn.Module")
    tree.refuse_lazy(model)
    parameters = list(model.named_parameters())
    if not parameters:
        raise ValueError("wrap: the model has no parameters")
    for name, p in parameters:
        if getattr(p, "longshore", None) is not None:
            raise LongshoreError(f"wrap: {name} is another engine's already; go on with that one, or keep the model "
                                 "by its save_pretrained(DIR), a Trainer's save_model(DIR), close() the engine, and "
                                 "wrap, or give the next Trainer, from_pretrained(DIR)")
        if p.device.type == "meta":
            raise LongshoreError(f"wrap: {name} is on the meta device and has no value; load the model inside "
                                 "longshore.init(...)")
    tree.check(model)


def _has_bf16_products():
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            words = f.read()
    except OSError:
        return True
    return "avx512_bf16" in words or "amx_bf16" in words or "aarch64" in os.uname().machine


def name_groups(model, groups):
    """Groups as torch.optim takes them, and with names instead of parameters, as the run records them."""
    names = {id(p): name for name, p in model.named_parameters()}
    if groups is None:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
    groups = list(groups)
    if not groups:
        raise ValueError("wrap: groups: there are none, and so nothing to train")
    if not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    out, recorded, seen = [], [], set()
    for n, group in enumerate(groups):
        group = dict(group)
        if "params" not in group:
            raise ValueError(f"wrap: groups[{n}]: a group names its parameters: {{\"params\": [...], ...}}")
        refuse_numbers(group, f"wrap: groups[{n}].")
        refuse_kinds(group, f"wrap: groups[{n}].")
        params = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        for p in params:
            if id(p) not in names:
                raise ValueError("wrap: a parameter of groups is not one of the model")
            if id(p) in seen:
                raise ValueError(f"wrap: {names[id(p)]} is in groups twice")
            seen.add(id(p))
        group["params"] = params
        out.append(group)
        recorded.append({**{k: list(v) if isinstance(v, tuple) else commit_blob.plain(v, k)
                            for k, v in group.items() if k not in ("params", "param_names")},
                         "params": [names[id(p)] for p in params]})
    return out, recorded


def versions():
    out = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        out["transformers"] = transformers.__version__
    return out


def temporary_buffers(model):
    """{name: buffer} of those that are no whole numbers and that no state_dict() has, as frequencies of positions."""
    kept = tree.persistent_buffers(model)
    return {name: b for name, b in model.named_buffers() if name not in kept and b.is_floating_point()}


def program_of(model, how, layout, lineage, counts):
    stored = {t.name for block in layout.blocks if block.buffers for t in block.tensors}
    small = {name: b for name, b in tree.persistent_buffers(model).items() if name not in stored}
    base = adapters.base_of(model)
    config: Any = getattr(base, "config", None)
    return {"name": "longshore.torch", "class": f"{type(base).__module__}.{type(base).__qualname__}", "engine": how,
            "config": config.to_dict() if hasattr(config, "to_dict") else None, "versions": versions(),
            "temporary": {name: str(b.dtype) for name, b in temporary_buffers(model).items()},
            "position": commit_blob.of_start(small, layout, lineage, counts), "adapters": adapters.record(model),
            "frozen": [name for name, p in model.named_parameters() if not p.requires_grad]}
