"""DeepSpeed's API on a Longshore run: `import longshore.deepspeed as deepspeed`.

Training runs in one process, or in several ranks of torchrun. Parameters, gradients and the optimizer's state lie on
drives. To run a script that imports `deepspeed`, or that uses transformers with --deepspeed, write
`python -m longshore.deepspeed train.py ...`, or `torchrun -m longshore.deepspeed train.py ...`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ..drives.state import remove
from ..errors import BusyError, LongshoreError
from ..integrations import deepspeed_config as _config, deepspeed_import, deepspeed_modules
from ..integrations.deepspeed_config import ConfigError, logger, say_once
from ..integrations.deepspeed_resume import say_what_stays
from ..integrations.nvme_paths import leave, of_job, of_others
from ..model import precision
from ..run import init
from ..run.checkpoint import same_optimizer
from ..run.engine_surface import core_of, refuse_engine
from ..run.options import OF_START
from ..run.resume import resume
from ..run.retrain import engine_of
from ..run.wrap import wrap
from ..step.optimizers import arguments_of, rebind, refuse_other_groups, share
from . import accelerator, checkpointing, comm, lr_schedules, ops, utils, zero
from .accelerator import get_accelerator
from .comm import init_distributed
from .engine import DeepSpeedEngine
from .monitor import Monitors
from .utils import OnDevice, log_dist

__version__ = deepspeed_modules.VERSION
__all__ = [
    "ConfigError",
    "DeepSpeedEngine",
    "OnDevice",
    "accelerator",
    "add_config_arguments",
    "checkpointing",
    "comm",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "log_dist",
    "logger",
    "lr_schedules",
    "ops",
    "runtime",
    "utils",
    "zero",
]

version = __version__
__version_major__, __version_minor__, __version_patch__ = (int(part) for part in __version__.split("."))
__git_hash__ = __git_branch__ = None
dist = comm
_last = None  # a weak reference to the engine that was made last
deepspeed_modules.complete()
runtime = importlib.import_module(f"{__name__}.runtime")


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable | None = None,
    model_parameters: Iterable | None = None,
    training_data: torch.utils.data.Dataset | None = None,
    lr_scheduler: Any = None,
    distributed_port: int | None = None,
    mpu: None = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable | None = None,
    config: dict | str | os.PathLike | None = None,
    mesh_param: None = None,
    config_params: dict | str | None = None,
) -> tuple:
    """Moves a model to drives as a DeepSpeed configuration says, and returns its engine.

    Example::

        config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
                  "longshore": {"run": "runs/a", "drives": ["/mnt/nvme0"], "memory": "8GiB"}}
        engine, optimizer, _, scheduler = deepspeed.initialize(model=model, config=config)

    The state lies in the directory of "longshore": {"run": DIRECTORY}, or in a new directory of this job in nvme_path.
    An existing run is not overwritten; load_checkpoint() continues it.

    Args:
        args: An object whose deepspeed_config or deepspeed names the configuration, if config is not given.
        model: The nn.Module to train.
        optimizer: One of torch.optim, such as AdamW, or a function that makes one of parameters. Default: the
            configuration's.
        model_parameters: The parameters to train, or parameter groups. Default: all of the model.
        training_data: A data set for the data loader.
        lr_scheduler: A scheduler, or a function that makes one of the optimizer. Default: the configuration's.
        collate_fn: The data loader's.
        config, config_params: The configuration: a dict, or the path of a JSON file.
        mpu, mesh_param: Refused, because each rank computes whole layers.
        distributed_port, dist_init_required: Ignored.

    Returns:
        (engine, optimizer, data loader, scheduler). The loader is None without training_data.

    Raises:
        ConfigError: The configuration has a key or value that Longshore does not support; the message names it.
        BudgetError: "memory" is below the least that works for this model.
        BusyError: Another process, or another engine of this process, uses the run.
    """
    refuse_engine(model, "deepspeed.initialize", "give the model itself")
    if not isinstance(model, nn.Module):
        raise ValueError("deepspeed.initialize: model must be an nn.Module")
    _refuse_second(model)
    if mpu is not None or mesh_param is not None:
        raise ConfigError(
            "deepspeed.initialize: mpu, mesh_param: are refused, since each rank computes whole layers: leave them out"
        )
    of_args = getattr(args, "deepspeed_config", None), getattr(args, "deepspeed", None)
    given = next((c for c in (config, config_params, *of_args) if c is not None and not isinstance(c, bool)), None)
    if given is None:
        raise ConfigError("deepspeed.initialize: no configuration: give config=, or --deepspeed_config FILE")
    given = _config.load(given)
    accelerator.refuse_other_ranks()
    settings = _config.settings(given, of_others(_last and _last()))
    init_distributed()
    monitor = Monitors(settings.monitors if comm.get_rank() == 0 else {})
    made = _optimizer(settings, optimizer, model_parameters, model)
    precision.cast(
        model, {"bf16": torch.bfloat16, "fp32": torch.float32}[settings.dtype], buffers=True, spool=zero.spool()
    )
    return _engine(model, settings, given, monitor, made, lr_scheduler, training_data, collate_fn)


def _refuse_second(model):
    held = engine_of(model)
    if held is not None:
        raise LongshoreError(
            f"deepspeed.initialize: this {type(model).__name__} has an engine already, of the run "
            f"{core_of(held).state.path}, and a model belongs to one engine: use that one. To evaluate before train(), "
            "use TrainingArguments(eval_on_start=True), or the Trainer of longshore.transformers; with TRL, leave "
            "precompute_ref_log_probs out"
        )


def _engine(model, settings, given, monitor, optimizer, lr_scheduler, training_data, collate_fn):
    """What initialize() returns. optimizer: as _optimizer() returns it."""
    how, groups, trains, optimizer = optimizer
    there = settings.run is not None and init.is_run(settings.run) and not settings.overwrite
    places = [] if there or settings.run is not None else of_job(settings.nvme_paths)
    engine = None
    try:
        if there:
            if trains:
                same_optimizer(settings.run, how["optimizer"])
            engine = _resumed(model, settings)
            if optimizer is not None:
                refuse_other_groups(optimizer, engine.optimizer, core_of(engine).state.path)
                share(optimizer, engine.optimizer)
        else:
            options: dict[str, Any] = {**settings.said, "overwrite": settings.overwrite}
            options.update(run=settings.run or places[0], drives=settings.drives or places or None)
            options.update({**how, "groups": groups} if optimizer is None else {"optimizer": optimizer})
            options["device"] = get_accelerator().device_name()
            engine = wrap(model, clip=settings.clip, on_nonfinite="skip", **options)
        return _finish(engine, settings, given, monitor, there, trains, lr_scheduler, training_data, collate_fn)
    except BaseException:
        if engine is not None:
            engine.close()
            if not there:  # so that the next try does not find a run without steps
                remove(settings.run or places[0])
        leave(places)
        raise


def _resumed(model, settings):
    """The engine of a run that exists."""
    try:
        budgets = {name: settings.said.get(name) for name in OF_START}
        budgets.update(trace=settings.said.get("trace", 0), device=get_accelerator().current_device())
        engine = resume(settings.run, model, **budgets)
    except BusyError as e:
        several = "if the script has several models, leave longshore.run out: nvme_path gives each a directory"
        raise BusyError(f"longshore.run: {e}; {several}", e.code) from None
    say_what_stays(engine, settings)
    core_of(engine).change(clip=settings.clip, on_nonfinite="skip")
    settings.dtype = core_of(engine).how["compute"]
    if settings.dtype == "fp32":
        settings.casts = settings.casts_all = False
    return engine


def _finish(engine, settings, given, monitor, there, trains, lr_scheduler, training_data, collate_fn):
    """Makes the scheduler, the DeepSpeedEngine and the data loader around a longshore.Engine."""
    scheduler = _scheduler(settings, lr_scheduler, engine.optimizer)
    if scheduler is not None:
        engine.lr_scheduler = engine.follow("lr_scheduler", scheduler)
    deepspeed_import.layer_major()
    out = DeepSpeedEngine(
        engine, settings, given, monitor, undecided=there and not settings.resume, fresh=not there, trains=trains
    )
    if training_data is not None:
        sampler = None
        if hasattr(training_data, "__len__"):
            ranks = {"num_replicas": comm.get_world_size(), "rank": comm.get_rank()}
            sampler = torch.utils.data.DistributedSampler(training_data, **ranks)
        how = {"batch_size": settings.micro_batch, "drop_last": settings.drop_last, "collate_fn": collate_fn}
        out.training_dataloader = torch.utils.data.DataLoader(training_data, sampler=sampler, **how)
    global _last
    _last = weakref.ref(out)
    return out, out.optimizer, out.training_dataloader, scheduler


def _optimizer(settings, optimizer, parameters, model):
    """(wrap()'s arguments, groups, whether there is an optimizer at all, the torch.optim object or None)."""
    if parameters is not None:
        parameters = list(parameters)
    if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(parameters if parameters is not None else model.parameters())
    if optimizer is None:
        if settings.optimizer is None:
            return {"optimizer": "sgd", "lr": 0.0, "weight_decay": 0.0}, None, False, None
        return _config.hyper(settings.optimizer), parameters, True, None
    how, groups = arguments_of(optimizer)
    return how, groups, True, optimizer


def _scheduler(settings, given, optimizer):
    """The scheduler that initialize() was given, or the configuration's, or None."""
    if given is not None:
        if hasattr(given, "step") and not isinstance(given, type):
            return rebind(given, optimizer)
        if not callable(given):
            wanted = "a scheduler, or a function that makes one of the optimizer"
            raise ValueError(f"deepspeed.initialize: lr_scheduler is {wanted}, and not {given!r}")
        return given(optimizer)
    if settings.scheduler is None:
        return None
    name, params = str(settings.scheduler.get("type")), settings.scheduler.get("params") or {}
    params = {k: v for k, v in params.items() if v != "auto"}
    if params.get("warmup_num_steps") == 0:  # transformers fills in 0 if no warmup is asked for
        say_once("scheduler.params.warmup_num_steps: 0 becomes 2 steps, the least that DeepSpeed's formulas allow")
        params["warmup_num_steps"] = 2
    base, ours = torch.optim.lr_scheduler.LRScheduler, lr_schedules.VALID_LR_SCHEDULES
    classes = {n: k for n, k in vars(torch.optim.lr_scheduler).items() if n[0] != "_" and isinstance(k, type)}
    kinds = {n: k for n, k in classes.items() if issubclass(k, base) and k is not base}
    kinds.update({n: getattr(lr_schedules, n) for n in ours})
    if name not in kinds:
        raise ConfigError(
            f"scheduler.type: {settings.scheduler.get('type')!r} is not supported; use one of {', '.join(ours)}, or "
            f"torch's{_config.meant(name, kinds)}"
        )
    for key, value in params.items():
        if isinstance(value, str) and name in ours and key != "warmup_type":
            raise ConfigError(f"scheduler.params.{key}: {value!r} is a text, and must be a number")
    try:
        return kinds[name](optimizer, **params)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"scheduler.params of {name}: {e}") from None


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options --deepspeed [FILE] and --deepspeed_config FILE to a parser.

    --deepspeed takes the next word only if it ends in .json or .hjson. Alone, it leaves the configuration to
    --deepspeed_config or initialize(config=...).
    """
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    takes: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": lambda text: text or True}
    group.add_argument("--deepspeed", **takes, help="use DeepSpeed; with a JSON file: its configuration")
    group.add_argument("--deepspeed_config", default=None, type=str, help="the configuration, a JSON file")
    parse = parser.parse_known_args

    def parse_known_args(args=None, namespace=None):
        args = list(sys.argv[1:] if args is None else args)
        for i, word in enumerate(args[:-1]):
            if word == "--deepspeed" and not args[i + 1].endswith((".json", ".hjson")):
                args[i] = "--deepspeed="
        return parse(args, namespace)

    vars(parser)["parse_known_args"] = parse_known_args
    return parser


def init_inference(*args, **kwargs):
    raise LongshoreError(
        "deepspeed.init_inference: is not supported; use longshore.wrap(model, ...), then engine.module.generate()"
    )


def tp_model_init(*args, **kwargs):
    raise LongshoreError(
        "deepspeed.tp_model_init: tensor parallelism is not supported; Longshore trains a model "
        "larger than memory without it"
    )
