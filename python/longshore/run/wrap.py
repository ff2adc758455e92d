"""longshore.wrap(): moves a model to drives and makes its engine."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .. import native, openmp_wait, progress
from ..drives.layout import Layout
from ..drives.state import State
from ..errors import LongshoreError
from ..model import adapters, blocks as tree, compiled, device as devices, placement, sliced_loss
from ..model.activations import Activations
from ..model.streaming import Streams
from ..native import lib
from ..other_names import answered
from ..progress import Progress
from ..ranks.launch import ranks
from ..step import commit_blob
from ..step.load_state_dict import Loading
from ..step.optimizer_table import OPTIMIZERS
from ..step.optimizers import share as hand_over, told
from ..step.param_groups import APART, defaults_of, kept, refuse_kinds, refuse_numbers, uses_momentum
from ..torch_internals import BatchNorm, outside_inference_mode
from . import (
    agreement,
    device_memory,
    endurance,
    frozen,
    init,
    init_state,
    memory_plan,
    open_engines,
    process_memory,
    shared_budget,
)
from .engine import Engine
from .engine_surface import core_of, refuse_engine
from .init import Drives
from .init_state import Handed, Moments, fill
from .memory import note_imports
from .options import BUDGETS, DTYPE_OF, Options, refuse_rank_timeout

BUFFERS_BYTES = 16 << 10  # if all persistent buffers take at most this, they commit in a step's blob; else as blocks


@answered
@outside_inference_mode
def wrap(
    model: nn.Module,
    *,
    run: str | os.PathLike | None = None,
    drives: Drives = None,
    memory: int | str | None = None,
    memory_of: str | None = None,
    gpu_memory: int | str | None = None,
    pinned_memory: int | str | None = None,
    max_writes_per_day: int | str | Iterable | None = None,
    lr: float | None = None,
    betas: tuple[float, float] | None = None,
    eps: float | None = None,
    weight_decay: float | None = None,
    momentum: float | None = None,
    clip: float = 0.0,
    optimizer: str | torch.optim.Optimizer | Callable = "adamw",
    groups: Iterable | None = None,
    storage: str | None = None,
    moments: str | None = None,
    on_nonfinite: str = "stop",
    layers: Iterable[str] | None = None,
    overwrite: bool | None = None,
    activations: str | None = None,
    activation_room: int | str | None = None,
    compress: float | str | None = None,
    compress_after: int = 0,
    moments_from: str | os.PathLike | None = None,
    compile: bool | str | dict = False,
    sum_groups: int | None = None,
    fused_loss: bool | None = None,
    device: str | torch.device | None = None,
    device_timeout: float = devices.TIMEOUT_SECONDS,
    rank_timeout: float | None = None,
    trace: int = 0,
    trains: bool = True,
) -> Engine:
    """Moves a model's parameters and its optimizer's state to drives, frees their memory, and returns the Engine.

    Example::

        with longshore.init("runs/a", drives=["/mnt/nvme0", "/mnt/nvme1"], memory="8GiB"):
            model = AutoModelForCausalLM.from_pretrained("gpt2")
        engine = longshore.wrap(model, lr=2e-5, weight_decay=0.1, clip=1.0)

    Args:
        model: Any nn.Module, made inside ``longshore.init(...)`` or already in memory. Its parameters are float32 or
            bfloat16; each is fetched, computed with and saved in its own dtype, with a master in float32.
        run: Directory of the run. Give it here if the model was not made inside ``longshore.init(...)``.
        drives: Directories, files, block devices, ``opencl:PATH`` or ``ssh://HOST/PATH``, with run. Default: the run's
            directory.
        memory: Most bytes that Longshore holds, such as "8GiB", with run; of several ranks each. Default: half of the
            machine's memory, which the ranks of a host share, or less if the model needs less.
        memory_of: What memory is a promise about. "engine" (default, or as init() says): what Longshore holds;
            activations, logits and the gradients that PyTorch makes lie beside it. "process", on a CPU: resident memory
            of the whole process beyond its imports. Before the first pass, and before one with larger inputs, a trace
            of the step says what it needs. Activations are then kept, computed again or offloaded, layer by layer, and
            a batch that cannot fit raises BudgetError. It changes no bit.
        gpu_memory: Most bytes of the accelerator's memory that this process adds from here on, such as "20GiB":
            parameters, gradients, activations, batches, and what PyTorch's operations need. The engine measures what
            the first step needs, and holds as many layers there as the rest has room for. Default: what is useful, at
            most nine tenths of what is free. Where that memory is the host's, parameters are memory's, and the
            default is nine tenths of what memory leaves.
        pinned_memory: Most bytes of pinned memory, which an accelerator copies from and to: a part of memory. It holds
            gradients and activations on their way, and as many parameters as it has room for. The accelerator gets the
            others through a small ring of it, which is slower; a line in the log says so. Default: what is useful, as
            far as the system gives it.
        max_writes_per_day: Most bytes that the drives write in a day, together ("2TB") or each (["2TB", "1TB"]). The
            plan counts it, and steps wait where they would write more; a limit below what one step writes raises
            BudgetError, which says what helps. A resumed run keeps it. Default: no limit.
        lr: Learning rate. This and the next four are torch.optim's. Default: that of torch.optim's class, which for
            AdamW is 1e-3.
        betas: Decay rates of the moments. Default: torch.optim's; for AdamW (0.9, 0.999).
        eps: Term that is added to the denominator. Default: torch.optim's; for AdamW 1e-8.
        weight_decay: Weight decay. Default: torch.optim's; for AdamW 0.01.
        momentum: Momentum. Default: torch.optim's; for SGD 0.
        clip: Largest norm of all gradients together. Default: 0, which does not clip.
        optimizer: The name of one in small letters, such as "adamw" (default) or "sgd"; or one of torch.optim's over
            the model's parameters; or a function that makes one, such as the class, which is called with the
            parameters and the numbers given here. An optimizer object brings its groups, numbers and state. From then
            on, its step() is the engine's.
        groups: Parameter groups as torch.optim takes them; their numbers override those above. Default: one group of
            all trained parameters.
        storage: Dtype on the drives that is fetched for forward and backward: "bf16" or "fp32". Default: the
            parameters' dtype. If both dtypes occur, it is for those of the dtype with more elements; the others are
            fetched in their own. Masters are fp32 either way.
        moments: Dtype of the optimizer's moments on the drives: "fp32" (default) or "8bit".
        on_nonfinite: If a loss or gradient is not finite, "stop" (default) raises NotFiniteError, and "skip" counts
            the step and continues.
        layers: Names of the modules that are moved as a unit each. Default: the elements of ModuleLists.
        overwrite: True replaces an existing run, which stays until the new one is written. Where the drives have no
            room for both, a warning names it before it goes.
        activations: Where activations that autograd saves wait for backward. "memory" (default) is PyTorch's memory,
            beside the budget: that of the device that computes. "host" brings them from an accelerator to host memory,
            up to half of memory=, and what that has no room for to the drives, up to activation_room. "drives" writes
            them to the drives, up to activation_room. "auto" writes as much as the drives keep up with, and leaves the
            rest where PyTorch has it. The default is "memory" because the room depends on batches that wrap() does not
            know, and small activations gain nothing. With memory_of="process" it is "auto": the plan decides, and with
            "memory" it leaves the drives out.
        activation_room: Bytes on the drives for activations, such as "64GiB", reserved when the run is made. Default:
            four times memory, at most 64 GiB; with "host" none.
        compress: Share of each block's gradients that is sent to the drives, the largest ones: "top1%" or 0.01. The
            rest waits on the drives and is added to the next gradients. Default: None, which sends all.
        compress_after: Number of first steps that send whole gradients, about a tenth of all steps. Default: 0.
        moments_from: Directory that save_pretrained(moments=True) or ``longshore export --moments`` has written. The
            optimizer continues with its moments and step counts. Parameters that are not in it start from zero.
        compile: True compiles each layer with torch.compile. A string names the backend; a dict gives backend, mode,
            dynamic, fullgraph or options. The last bits of results may change.
        sum_groups: In how many groups a step's gradients are added: its micro-batches are cut into so many groups that
            follow each other, those of a group are added in order, then the groups. The number of micro-batches of each
            step is a multiple. The run keeps it, and has the same bits with any number of ranks that divides it.
            Default: 1, which adds all in order; under several ranks their number.
        fused_loss: True computes the loss of a transformers model that gets labels in slices of tokens, with its
            gradients, so that whole logits never exist. Losses and gradients are PyTorch's to rounding. outputs.logits
            still has its values: the head computes them again when the script looks. Default: False.
        device: Where forward and backward compute, such as "cuda" or "cpu". The model may lie there or on the CPU:
            wrap() moves it. Parameters stay the same objects, and buffers go along. Batches are yours to move, to
            ``engine.device``. Default: where the model lies, if that is an accelerator of PyTorch's; else the
            accelerator that PyTorch has here, of several the one of LOCAL_RANK; else the CPU.
        device_timeout: Seconds that the device may take for one copy. One that does not go on for so long
            is lost: the step raises LongshoreError, and the last committed state is good. Default: 300.
        rank_timeout: Seconds that one rank waits for another, from here on. After that all raise LongshoreError, and
            the last committed state is good. Default: the process group's timeout.
        trace: How many of the last steps are recorded from here on: what their time went to, and what each drive did
            meanwhile. `longshore trace RUN -o FILE` writes them for Perfetto. It takes 3 MiB of memory. Default: 0.
        trains: False for a model that is only read: the reference of DPO, a teacher, a reward model. The drives hold
            its parameters alone, which get no gradient; a loss may go back through them. It stays in train() or eval()
            mode. What makes a step is refused. If one engine is open that trains, this one lies in its run and on its
            drives, and takes part of its memory, as far as run, drives and memory are not given. A model that is
            there already is not written again.

    Returns:
        The Engine, which is called like the model.

    Raises:
        BudgetError: A budget is below the least that works for this model, and the message names the budget and its
            minimum; or it is more than the machine has.
        ExistsError: The directory holds a run, and overwrite is not given.
        ValueError: An option has an impossible value, or two options contradict each other.
    """
    options = Options(**locals())
    del options.model
    _check_model(model)
    process_memory.refuse_beside("wrap")
    frozen.refuse_options(options, wrap)
    refuse_rank_timeout("wrap", options.rank_timeout)
    with agreement.Agreement("wrap", ranks(options.rank_timeout)) as agreed, frozen.wrapping(model, options):
        return _wrap(model, options, agreed)


def _wrap(model, options, agreed):
    """Checks the options, plans memory, writes the run's first state, and makes its engine."""
    note_imports(model.parameters())
    making = init.of(model)
    run, drives, memory, overwrite = init.place(making, options.run, options.drives, options.memory, options.overwrite)
    budget = None if memory is None else native.size(memory)
    if options.memory_of is None:
        options.memory_of = making.memory_of if making else "engine"
    if options.max_writes_per_day is None and making:
        options.max_writes_per_day = making.max_writes_per_day
    if options.trains:
        init.check(run, drives, overwrite)
    numbers, groups, handed = told(model, options.optimizer, options.groups, options.numbers())
    options.take(numbers)
    options.check(numbers)
    where = placement.of(model, options.device, f"wrap: device={options.device!r}")
    options.check_place(where)
    layout, compute = _layout_of(model, options), tree.dtype_of(model)
    how = {**options.record(numbers, compute), "device": placement.recorded(where)}
    endurance.refuse_others(how.get(endurance.NAME, ()), len(drives))
    given, how["groups"] = name_groups(model, groups, defaults_of(options.optimizer))
    how.update({"default_memory": True} if budget is None else {})
    how.update(
        {"fused_loss": True} if sliced_loss.chosen(model, options.fused_loss, options.memory_of == "process") else {}
    )
    how["handed_back"] = tree.NAME_OF[layout.handed_back(compute, DTYPE_OF[options.storage])]
    how["layers"] = [b.module if b.layer else None for b in layout.blocks]
    how["buffers"] = [b.name for b in layout.blocks if b.buffers]
    with_momentum = uses_momentum(numbers, given)
    if not options.trains:
        if (there := frozen.again(model, run, drives, how, options, making and making.spool)) is not None:
            return there
        init.check(run, drives, overwrite)
    old: Any = _moments_of(model, options, handed, with_momentum)
    before = (old.updates, old.counts(layout)) if old else None
    room = None if options.activation_room is None else native.size(options.activation_room, "activation_room")
    lenders = () if options.trains else open_engines.training()
    own = device_memory.counted({name: how[name] for name in BUDGETS if name in how}, where, model, lenders)
    replan = functools.partial(memory_plan.plan, layout, drives, who=who(model, run), room=room, device=where, **own)
    chosen = process_memory.plan(replan, budget, {**how, "trace": options.trace}, room)
    if overwrite and init.is_run(run):
        init_state.check(layout, model, old)  # that run may have to go before the new one is written
    asked = init.as_given(options.drives) or (making and making.asked)
    agreed.on(run, agreement.described(layout, how, versions(), drives=asked))
    how["seed"], before = agreed.ranks.meet("longshore.wrap()", (how["seed"], before))[0]  # rank 0's
    lineage, counts = ([how["seed"], before[0]], before[1]) if before else (None, None)
    kind = {"optimizer": OPTIMIZERS[options.optimizer].number, "moments": options.moments}
    kind.update(fp32=how["handed_back"] == "fp32", with_momentum=with_momentum, residual=how["compress"] > 0)
    kind.update(ring_bytes=chosen.ring_bytes, scratch_bytes=chosen.room_bytes, overwrite=bool(overwrite))
    program, memory = program_of(model, how, layout, lineage, counts), chosen.memory_bytes(budget)
    state = State.create(run, layout, drives, program, memory, agreed.ranks, **kind)
    try:
        nbytes = sum(4 * layout.elems(b) for b in range(len(layout.blocks)))
        with Progress("writing the initial state", nbytes, head=_say(model, state, chosen)) as shown:
            fill(state, model, making.spool if making else None, shown, old)
            core = core_of(open_engine(model, state, how, given, chosen, where, options.device_timeout, state.seal))
            core.open(state)
        if lineage:
            core.cycle.go_on_from({}, lineage, counts)
    except BaseException as failure:
        state.fail(failure)
        state.close()
        raise
    if handed is not None:
        hand_over(handed, core.optimizer)
    return count_in(core, run)


def _layout_of(model, options):
    """The Layout of a new run of a model. Checks the option storage, and warns of a dtype that is slow here."""
    parts, compute = tree.partition(model, options.layers), tree.dtype_of(model)
    options.check_storage(compute)
    if compute == torch.bfloat16 and not lib.shore_multiplies_bf16():
        progress.warn(
            "this processor has no bf16 products, so bf16 is slow in PyTorch: load the model as float32; "
            "wrap(..., storage='bf16') still stores it in bf16 on the drives",
            stacklevel=5,
        )
    norm = next((n for n, m in model.named_modules() if isinstance(m, BatchNorm) and m.running_mean is not None), None)
    if options.sum_groups > 1 and norm is not None and ranks().size == 1:  # RankBuffers tells several
        progress.warn(
            f"wrap: {norm}: its statistics are rank 0's, as under DDP: bits are equal for equal numbers of ranks, "
            "and other numbers have other statistics",
            stacklevel=5,
        )
    tree.mark_rest(parts, model)
    return Layout(parts + tree.of_buffers(model, BUFFERS_BYTES))


def _moments_of(model, options, handed, with_momentum):
    """The Moments, or the Handed ones, with which an optimizer goes on; None if it begins anew."""
    has_moments, saved = handed is not None and handed.state, options.moments_from
    if has_moments and saved is not None:
        raise ValueError(
            "wrap: moments_from: the given optimizer has moments of its own; give one that has made no step"
        )
    if has_moments:
        return Handed(handed, options.optimizer, with_momentum, model)
    return None if saved is None else Moments(saved, options.optimizer, with_momentum)


def count_in(core, run):
    """Counts an engine that is made as open. Returns the Engine."""
    open_engines.add(core)
    shared_budget.add(core, who(core.module, run))
    return core.engine


def who(model, run):
    """The name of an engine in messages: the model's class and the run."""
    return f"{type(model).__name__} ({os.fspath(run)})"


def _say(model, state, chosen):
    """One line about the new run: parameters, disk, drives, memory."""
    return (
        f"{type(model).__name__} of {sum(p.numel() for p in model.parameters())} parameters: "
        f"{native.readable(state.info().disk_bytes)} on {', '.join(state.drives)}; memory "
        f"{native.readable(state.memory_bytes)}, {native.readable(chosen.least_bytes)} at least"
    )


def open_engine(model, state, how, groups, chosen, where, device_timeout, seal=None):
    """Binds a model to a run's state and returns its Engine. where: as placement.of() returns it.

    seal() makes the new run permanent. It is called before the model gives up its parameters, so that a crash in
    between loses nothing.
    """
    compiling = compiled.compile_blocks(model, how["layers"], how.get("compile"))
    dtypes = (DTYPE_OF[how["compute"]], DTYPE_OF[how["storage"]])
    if where is None:
        streams = Streams(state.layout, *dtypes, chosen.pages)
    else:
        slots = (
            chosen.slots if chosen.gpu_memory is None else chosen.least_slots
        )  # until it is known what is beside them
        there = devices.Device(where, device_timeout)
        streams = Streams(state.layout, *dtypes, slots, chosen.pages, there, chosen.pinned)
    streams.progress.compiles(compiling)
    named = dict(model.named_parameters(remove_duplicate=False))
    was = {id(p): name for name, p in named.items()}
    if chosen.pool_bytes or chosen.process:
        goes = "drives" if chosen.process else how["activations"]
        streams.make_activations = lambda state: (
            Activations(state, goes, chosen.pool_bytes, state.scratch_bytes, streams.device, streams.tier.pool())
            if chosen.pool_bytes
            else None
        )
    beside = placement.copies_beside(model, streams.places.device)
    if seal is not None:
        seal()
    init.take(model)
    streams.bind(model)
    if how.get("fused_loss"):
        sliced_loss.attach(streams, model)
    placement.put(model, beside)
    streams.loading = Loading(streams, model)
    adapters.refuse_merging(model)
    now = dict(model.named_parameters(remove_duplicate=False))
    for group in groups:  # bind() replaced parameters of the meta device
        group["params"] = [now[was[id(p)]] for p in group["params"]]
    openmp_wait.stop()
    kind = Engine if how.get("trains", True) else frozen.FrozenEngine
    return kind(model, streams, state, how, groups, chosen)


def _check_model(model):
    """Raises if the model is no module, has no parameters, or belongs to another engine."""
    refuse_engine(model, "wrap", "use the Engine as it is, or resume() its run")
    if not isinstance(model, nn.Module):
        raise ValueError(f"wrap: {type(model).__name__} is not an nn.Module")
    tree.refuse_lazy(model)
    parameters = list(model.named_parameters())
    if not parameters:
        raise ValueError("wrap: the model has no parameters")
    for name, p in parameters:
        if getattr(p, "longshore", None) is not None:
            raise LongshoreError(
                f"wrap: {name} is another engine's already: use that engine; or save the model with "
                "save_pretrained(DIR) or a Trainer's save_model(DIR), close() the engine, and give "
                "from_pretrained(DIR) to wrap() or the next Trainer"
            )
        if p.device.type == "meta":
            raise LongshoreError(
                f"wrap: {name} is on the meta device and has no value; load the model inside longshore.init(...)"
            )
    tree.check(model)


def name_groups(model, groups, defaults):
    """(groups as torch.optim takes them, the same with names instead of parameters, as the run records them).

    defaults: the optimizer's, as defaults_of() returns them.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    if groups is None:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
    groups = list(groups)
    if not groups:
        raise ValueError("wrap: groups: is empty, so there is nothing to train; leave it out, or give a group")
    if not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    out, recorded, seen = [], [], set()
    for n, group in enumerate(groups):
        group = dict(group)
        if "params" not in group:
            raise ValueError(f'wrap: groups[{n}]: has no "params"; write {{"params": [...], ...}}')
        refuse_numbers(group, f"wrap: groups[{n}].")
        refuse_kinds(group, defaults, f"wrap: groups[{n}].")
        params = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        for p in params:
            if id(p) not in names:
                raise ValueError(
                    f"wrap: groups[{n}] has a parameter of shape {list(p.shape)} that is not the model's; {APART}"
                )
            if id(p) in seen:
                raise ValueError(f"wrap: {names[id(p)]} is in groups twice")
            seen.add(id(p))
        group["params"] = params
        out.append(group)
        said = {k: commit_blob.plain(group[k], k) if torch.is_tensor(group[k]) else v for k, v in kept(group).items()}
        recorded.append({**said, "params": [names[id(p)] for p in params]})
    return out, recorded


def versions():
    """Versions and threads that decide a run's last bits."""
    out = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        out["transformers"] = transformers.__version__
    return out


def temporary_buffers(model):
    """{name: buffer} of floating-point buffers that state_dict() leaves out, such as rotary frequencies."""
    kept = tree.persistent_buffers(model)
    return {name: b for name, b in model.named_buffers() if name not in kept and b.is_floating_point()}


def _values_of(config):
    """A configuration's values, or None for what is no configuration of transformers."""
    return config.to_dict() if hasattr(config, "to_dict") else None


def program_of(model, how, layout, lineage, counts):
    """The record in run.json from which resume() makes the engine again."""
    base = adapters.base_of(model)
    config: Any = getattr(base, "config", None)
    return {
        "name": "longshore.torch",
        "class": f"{type(base).__module__}.{type(base).__qualname__}",
        "engine": how,
        "config": _values_of(config),
        "generation_config": _values_of(getattr(base, "generation_config", None)),
        "source": str(getattr(config, "_name_or_path", "") or ""),
        "versions": versions(),
        "temporary": {name: str(b.dtype) for name, b in temporary_buffers(model).items()},
        "position": commit_blob.of_start(model, layout, lineage, counts),
        "adapters": adapters.record(model),
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
    }
