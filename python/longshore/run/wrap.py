"""longshore.wrap and resume: from a model to an engine, and from a run back to it."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .. import native, openmp_wait
from ..errors import LongshoreError, MissingError
from ..model import adapters, blocks as tree, compiled, device, init
from ..model.activations import KINDS, Activations
from ..model.init import Drives
from ..model.load_state_dict import Loading
from ..model.streaming import Streams
from ..native import lib
from ..progress import Progress
from ..step.compression import share_of
from ..step.engine import Engine
from ..step.engine_surface import refuse_engine
from ..step.optimizer_table import OPTIMIZERS
from ..step.optimizers import refuse_kinds, refuse_numbers, share as hand_over, told
from ..torch_internals import buffers_of
from . import budgets, commit_blob, lifecycle
from .init_state import Handed, Moments, fill
from .memory import note_imports
from .memory_plan import plan
from .state import MOMENTS, Layout, State

_NAME_OF = tree.NAME_OF
_DTYPE_OF = {v: k for k, v in _NAME_OF.items()}
BUFFERS_BYTES = 16 << 10  # of modules' buffers that commit with a step's blob; more are blocks of the run


# ---- wrap ------------------------------------------------------------------------------------------------------------


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
    _check_model(model)
    note_imports(sum(p.nbytes for p in model.parameters()))
    making = init.of(model)
    run, drives, memory, overwrite = init.place(making, run, drives, memory, overwrite)
    budget = None if memory is None else native.size(memory)
    init.check(run, drives, overwrite)
    numbers, groups, handed = told(model, optimizer, groups,
                                   {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                    "momentum": momentum})
    optimizer = numbers["optimizer"]
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"wrap: optimizer={optimizer!r}; it is one of {', '.join(OPTIMIZERS)}")
    moments = numbers.pop("moments", "fp32") if moments is None else moments
    if moments not in MOMENTS:
        raise ValueError(f"wrap: moments={moments!r}; it is fp32 or 8bit")
    if activations not in KINDS:
        raise ValueError(f"wrap: activations={activations!r}; it is one of {', '.join(KINDS)}")
    if activation_room is not None and activations == "memory":
        warnings.warn(f"wrap: activation_room={activation_room!r} is for activations=\"drives\" or \"auto\": they "
                      "stay in memory, and no room is taken",
                      stacklevel=2)
    if on_nonfinite not in ("stop", "skip"):
        raise ValueError(f"wrap: on_nonfinite={on_nonfinite!r}; it is stop or skip")
    if (isinstance(compress_after, bool) or compress_after != int(compress_after) or compress_after < 0
        or (compress_after and compress is None)):
        raise ValueError(f"wrap: compress_after={compress_after!r}; it is a number of steps, for compress")
    refuse_numbers({**numbers, "clip": clip}, "wrap: ")
    share = share_of(compress)
    parts = tree.partition(model, layers)
    compute = tree.dtype_of(model)
    if storage is None:
        storage = _NAME_OF[compute]
    if storage not in _DTYPE_OF or (compute == torch.bfloat16 and storage == "fp32"):
        raise ValueError(f"wrap: storage={storage!r} with parameters of {compute}; it is bf16, or fp32 for float32 "
                         "parameters")
    if compute == torch.bfloat16 and not _has_bf16_products():
        warnings.warn("this processor has no bf16 products, and PyTorch is slow without: load the model as float32, "
                      "and wrap(..., storage='bf16') keeps it in bf16 on the drives", stacklevel=2)
    how = {**numbers, "lr": commit_blob.plain(numbers["lr"], "lr"), "betas": list(numbers["betas"]), "clip": clip,
           "optimizer": optimizer, "storage": storage, "compute": _NAME_OF[compute], "moments": moments,
           "on_nonfinite": on_nonfinite, "seed": torch.initial_seed(),
           "groups": None, "activations": activations,
           "compress": share, "compress_after": int(compress_after), "compile": compiled.told(compile)}
    given, how["groups"] = name_groups(model, groups)
    layout = Layout(parts + tree.of_buffers(model, BUFFERS_BYTES))
    with_momentum = any(group.get("momentum", numbers["momentum"]) for group in given)
    old: Any = None if moments_from is None else Moments(moments_from, optimizer, with_momentum)
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
    chosen = plan(layout, drives, budget, storage=_DTYPE_OF[storage], optimizer=optimizer, moments=moments,
                  activations=activations,
                  room=None if activation_room is None else native.size(activation_room, "activation_room"),
                  compress=share, who=_who(model, run))
    state = State.create(run, layout, drives, program_of(model, how, layout, lineage, counts), optimizer=optimizer,
                         moments=moments,
                         fp32=_DTYPE_OF[storage] == torch.float32, ring_bytes=chosen.ring_bytes,
                         memory=budget or chosen.total_bytes + chosen.spare_bytes, overwrite=bool(overwrite),
                         momentum=with_momentum, scratch_bytes=chosen.room_bytes, residual=share > 0)
    try:
        with Progress("writing the initial state", sum(4 * layout.elems(b) for b in range(len(layout.blocks))),
                      head=_say(model, state, chosen)) as shown:
            fill(state, model, making.spool if making else None, shown, old)
            engine = _engine(model, state, how, given, chosen, state.seal)
            engine.streams.open(state)
        if old:
            engine.lineage, engine.cycle.counts = lineage, counts
    except BaseException:
        state.close()
        raise
    if handed is not None:
        hand_over(handed, engine.optimizer)
    lifecycle.add(engine)
    budgets.add(engine, _who(model, run))
    return engine


def _who(model, run):
    return f"{type(model).__name__} ({os.fspath(run)})"


def _say(model, state, chosen):
    """What is made, in a line."""
    return (f"{type(model).__name__} of {sum(p.numel() for p in model.parameters())} parameters: "
            f"{native.readable(state.info().disk_bytes)} on {', '.join(state.drives)}; memory "
            f"{native.readable(state.memory_bytes)}, {native.readable(chosen.least_bytes)} at least")


def _engine(model, state, how, groups, chosen, seal=None):
    """seal: called before the model gives its parameters up, so that they are never nowhere."""
    compiled.compile_blocks(model, how["layers"], how.get("compile"))
    streams = Streams(state.layout, _DTYPE_OF[how["compute"]], _DTYPE_OF[how["storage"]], chosen.slots,
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


def _versions():
    out = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        out["transformers"] = transformers.__version__
    return out


def program_of(model, how, layout, lineage, counts):
    stored = {t.name for block in layout.blocks if block.buffers for t in block.tensors}
    small = {name: b for name, b in tree.persistent_buffers(model).items() if name not in stored}
    base = adapters.base_of(model)
    config: Any = getattr(base, "config", None)
    return {"name": "longshore.torch", "class": f"{type(base).__module__}.{type(base).__qualname__}", "engine": how,
            "config": config.to_dict() if hasattr(config, "to_dict") else None, "versions": _versions(),
            "temporary": {name: str(b.dtype) for name, b in _temporary_buffers(model).items()},
            "position": commit_blob.of_start(small, layout, lineage, counts), "adapters": adapters.record(model),
            "frozen": [name for name, p in model.named_parameters() if not p.requires_grad]}


# ---- resume ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def skeleton():
    """Modules that are made here have parameters without memory; buffers are real."""
    before = nn.Module.register_parameter

    def register_parameter(self, name, param):
        before(self, name, param)
        if param is not None and not nn.parameter.is_lazy(param) and param.device.type != "meta" and param.numel():
            self._parameters[name] = type(param)(param.detach().to("meta"), requires_grad=param.requires_grad)

    nn.Module.register_parameter = register_parameter
    try:
        yield
    finally:
        nn.Module.register_parameter = before


def resume(run: str | os.PathLike, model: nn.Module | Callable[[], nn.Module] | object = None, *,
           memory: int | str | None = None) -> Engine:
    """Opens a run at its last committed step and returns its Engine, with random states, buffers and parameter groups
    as they were then.

    model: the module, a configuration of transformers, or what makes the module when called; by default the class and
    configuration that the run has recorded. Its values do not count. memory: by default as before.
    """
    run = os.fspath(run)
    note_imports()
    lifecycle.refuse_second(run)
    if not os.path.exists(run):
        raise MissingError(f"{run}: there is no run of that name; longshore.wrap() makes it, and keeps nothing before",
                           lib.SHORE_EMISSING)
    with contextlib.closing(State.open(run, read_only=True, without_drives=True)) as record:
        program, layout, drives, budget = record.program, record.layout, record.drives, record.memory_bytes or None
    if program is None or program.get("name") != "longshore.torch":
        maker = "longshore train" if program is None else program.get("name")
        raise LongshoreError(f"{run}: was made by {maker}: go on with it there, or take what it holds: `longshore "
                             f"export {run} --dtype fp32 --moments --out DIR`, from_pretrained(DIR) inside "
                             "longshore.init(NEW), and wrap(moments_from=DIR)")
    how = program["engine"]
    model = _model_for(model, program, run)
    tree.refuse_lazy(model)
    _give_buffers(model, program, run)
    _match(layout, model, how, program, run)
    given = _groups_of(model, how["groups"])
    budget = native.size(memory) if memory is not None else None if budgets.left() is not None else budget
    chosen = plan(layout, drives, budget, storage=_DTYPE_OF[how["storage"]],
                  optimizer=how["optimizer"], moments=how["moments"], activations=how.get("activations", "memory"),
                  compress=how.get("compress", 0.0), who=_who(model, run))
    with Progress(f"opening {run}"):
        return _go_on(run, model, program, layout, given, chosen)


def _go_on(run, model, program, layout, given, chosen):
    """The engine of a run whose model is known."""
    how, state = program["engine"], State.open(run, ring_bytes=chosen.ring_bytes)
    try:
        state.layout.continue_as(layout, run)
        engine = _engine(model, state, how, given, chosen)
        try:
            engine.streams.open(state)
            saved = commit_blob.of(state)
            _refuse_others(run, commit_blob.unfit_buffers(model, saved, state))
            commit_blob.restore(engine, saved, state)
            adapters.fill_original_rows(model)
        except BaseException:
            engine.streams.end()
            raise
        now = _versions()
        changed = [f"{k} {now[k]} instead of {v}" for k, v in program["versions"].items() if k in now and now[k] != v]
        if changed:
            warnings.warn(f"{run}: {', '.join(changed)}: the same bits are not promised from here on", stacklevel=2)
            state.record("; ".join(changed), {**program, "versions": {**program["versions"], **now}})
        lifecycle.add(engine)
        budgets.add(engine, _who(model, run))
        return engine
    except BaseException:
        state.close()
        raise


def _model_for(model, program, run):
    if isinstance(model, nn.Module):
        return model
    with skeleton():
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
                raise LongshoreError(f"{run}: the model cannot be made without values ({said}); give resume() the "
                                     "module itself") from said
    raise ValueError("resume: model is a module, a configuration of transformers, or what makes the module when called")


def _temporary_buffers(model):
    """{name: buffer} of those that are no whole numbers and that no state_dict() has, as frequencies of positions."""
    kept = tree.persistent_buffers(model)
    return {name: b for name, b in model.named_buffers() if name not in kept and b.is_floating_point()}


def _give_buffers(model, program, run):
    """Memory for those that were put where a parameter is that has none; their values are the run's. Those that no
    state_dict() has are rounded as they were when the run was made."""
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
            raise LongshoreError(f"{run}: {name} is a buffer that no state_dict() has, and cannot be made without "
                                 "values; give resume() the module itself, made as it was for wrap()")
    for name, b in _temporary_buffers(model).items():
        dtype = commit_blob.DTYPES.get(program.get("temporary", {}).get(name), b.dtype)
        if dtype.itemsize > b.dtype.itemsize:
            raise LongshoreError(f"{run}: the model is not the run's: {name} is {b.dtype}, and was {dtype}; give "
                                 "resume() one that was not converted")
        if dtype != b.dtype:
            owner, _, last = name.rpartition(".")
            buffers_of(model.get_submodule(owner))[last] = b.to(dtype)


def _class_of(program, run):
    module, _, name = program["class"].rpartition(".")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError):
        raise LongshoreError(f"{run}: its model is a {program['class']}, which cannot be imported here; give resume() "
                             "the model") from None


def _recorded_model(program, run):
    if program["config"] is None:
        raise LongshoreError(f"{run}: its model is a {program['class']} without a configuration; give resume() the "
                             "model, or what makes it")
    found = _class_of(program, run)
    config = found.config_class.from_dict(program["config"])
    return _with_adapters(found(config), program)


def _with_adapters(base, program):
    recorded = program.get("adapters")
    return base if recorded is None else adapters.put_on(base, recorded)


def _match(layout, model, how, program, run):
    """The model has the run's tensors; each that differs is named."""
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
        tree.mark_rest(layout.blocks, model, _DTYPE_OF[how["compute"]])
    wrong += [f"{name} is new" for name, p in parameters.items() if name not in known and p.numel()]
    _refuse_others(run, wrong)


def _refuse_others(run, wrong):
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise LongshoreError(f"{run}: the model is not the run's: {', '.join(wrong[:8])}{more}")


def _layers_of(layout, recorded):
    """Of each block the layer that it is of; None: of none. Older runs have recorded the layers alone."""
    if len(recorded) == len(layout.blocks):
        return recorded
    return [next((layer for layer in recorded
                  if b.name == layer or b.name.startswith((layer + ".frozen", layer + "#"))), None)
            for b in layout.blocks]


def _groups_of(model, recorded):
    parameters = dict(model.named_parameters())
    return [{**{k: tuple(v) if isinstance(v, list) else commit_blob.back(v) for k, v in g.items() if k != "params"},
             "params": [parameters[n] for n in g["params"]]} for g in recorded]
