"""Reads a DeepSpeed configuration. Each key is supported, a hint without effect, or refused by name."""

import base64
import collections
import difflib
import importlib
import json
import logging
import math
import os
from dataclasses import dataclass, field

from ..ranks.launch import ranks
from ..run.options import SECTION
from ..step.optimizer_table import NAMES, OPTIMIZERS
from ..step.param_groups import NUMBERS, defaults_of, refuse_numbers

logger = logging.getLogger("longshore")
_said: set[str] = set()


class ConfigError(ValueError):
    """A configuration that Longshore does not support. The message names the key and says what to do."""


def say_once(text):
    """Logs a warning once in this process."""
    if text not in _said:
        _said.add(text)
        logger.warning(text)


def _keys():
    """What deepspeed_keys.txt, which says what its lines mean, has of each mark."""
    read: dict = {"longshore": {*SECTION}}
    hints: dict = {}
    refused = {}
    with open(os.path.join(os.path.dirname(__file__), "deepspeed_keys.txt"), encoding="utf-8") as f:
        for mark, rest in (line.rstrip("\n").split(" ", 1) for line in f):
            if mark == "-":
                key, why = rest.split(": ", 1)
                refused[key] = why
            elif mark != "#":
                section, *keys = rest.split()
                (read if mark == "+" else hints).setdefault(section.strip("."), set()).update(keys)
    return read, {**hints, "bfloat16": hints["bf16"]}, refused


SUPPORTED, HINTS, REFUSED = _keys()  # {section: keys}, the same, and {key: what it would be, and what to do instead}
_TYPES = {said: name for name, known in OPTIMIZERS.items() for said in known.deepspeeds}
_TEXTS = {"run", "nvme_path", "output_path", "job_name", "project", "team", "group"}
_FREE = """
    optimizer.params scheduler.params data_types flops_profiler activation_checkpointing comms_logger compile
    zero_optimization.leaf_module checkpoint.writer checkpoint.parallel_write nebula""".split()


def meant(word, known, prefix=""):
    """ "; did you mean ...?" for an unknown word, to append to a message, or "" if no known word is similar."""
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def load(config):
    """The configuration as a dict, from a dict, the path of a JSON file, or JSON text in base64."""
    if isinstance(config, dict):
        return config
    if hasattr(config, "config") and isinstance(config.config, dict):  # HfDeepSpeedConfig
        return config.config
    if not isinstance(config, (str, os.PathLike)):
        raise ConfigError(
            f"the configuration of DeepSpeed must be a dict or the path of a JSON file, and not {config!r}"
        )
    path = os.fspath(config)
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as f:
                text = f.read()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path}: cannot be read as the configuration of DeepSpeed: {e}") from None
    else:
        try:
            text = base64.urlsafe_b64decode(path).decode()
        except ValueError:  # also what binascii and UTF-8 raise
            raise ConfigError(f"the configuration of DeepSpeed: there is no file {path}") from None
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice)
    except json.JSONDecodeError as e:
        more = ""
        try:  # hjson allows comments, and keys without quotes
            return importlib.import_module("hjson").loads(text, object_pairs_hook=_no_key_twice)
        except ImportError:
            more = "; one with comments needs hjson: pip install hjson"
        except ValueError:
            pass
        raise ConfigError(f"{path}: is not JSON: {e}{more}") from None


def _no_key_twice(pairs):
    """The dict of a JSON object's pairs. Raises ConfigError if a key is there twice."""
    twice = next((key for key, count in collections.Counter(key for key, _ in pairs).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"the configuration of DeepSpeed: {twice} is there twice")
    return dict(pairs)


def _asks(value):
    """Whether the value of a refused key asks for something; false, 0 or "enabled": false does not."""
    if isinstance(value, dict):
        return value.get("enabled", value.get("autotp_size", 2) not in (0, 1) and bool(value))
    return value is True or value not in (None, False, 0, 1, -1, "auto")


def _check(config, where=""):
    """Raises ConfigError for an unknown or refused key. Returns the hints that are set, as paths."""
    hinted = []
    known = SUPPORTED.get(where, set()) | HINTS.get(where, set())
    for key, value in config.items():
        full = f"{where}.{key}" if where else key
        if full in REFUSED:
            if _asks(value):
                raise ConfigError(f"{full}: is not supported: {REFUSED[full]}; take the key out")
        elif key not in known and full not in SUPPORTED and full not in HINTS:
            key = str(key)
            everything = known | {k.rpartition(".")[2] for k in REFUSED if k.rpartition(".")[0] == where}
            raise ConfigError(
                f"{full}: is not a key of DeepSpeed's configuration{meant(key, everything) or '; take it out'}"
            )
        else:
            if key in HINTS.get(where, set()) and value not in (None, "auto"):
                hinted.append(full)
            inner = "aio" if key == "aio" else full
            if isinstance(value, dict) and full not in _FREE:
                hinted += _check(value, inner)
            elif isinstance(value, dict) or value is None or value == "auto":
                pass
            elif inner in {**SUPPORTED, **HINTS} or key == "params":
                raise ConfigError(f"{full}: must be an object, and is {value!r}")
            if key in _TEXTS and not isinstance(value, (str, os.PathLike, type(None))):
                raise ConfigError(f"{full}: {value!r} is not a text")
    return hinted


def _spread(config):
    """Moves keys that are paths ("a.b", as TRL writes them for a reference model) to their places.

    A value that is there already wins.
    """
    out = {key: value for key, value in config.items() if "." not in str(key)}
    for path, value in config.items():
        if path not in out:
            *objects, key = path.split(".")
            inner = out
            for name in objects:
                if not isinstance(inner.get(name) or {}, dict):
                    break  # _check() names the key
                inner[name] = dict(inner.get(name) or {})
                inner = inner[name]
            else:
                inner.setdefault(key, value)
    return out


@dataclass
class Settings:
    """The values of a configuration that deepspeed.initialize() uses."""

    run: str | None = None  # None: a directory of this job in nvme_paths
    nvme_paths: list = field(default_factory=list)
    drives: list | None = None
    memory: object = None
    said: dict = field(default_factory=dict)  # options of wrap() in the section "longshore"
    layer_major: object = None  # for transformers' Trainer; None: only if its own code alone runs between micro-batches
    resume: bool = False
    overwrite: bool = False
    stage: int = 0
    micro_batch: int = 1
    accumulate: int = 1
    clip: float = 1.0
    managed: bool = True  # scripts call step() after each backward(); False: each call makes a step
    dtype: str = "fp32"
    casts: bool = False  # fp16 inputs become bfloat16
    casts_all: bool = False  # all floating-point inputs become bfloat16
    optimizer: dict | None = None
    scheduler: dict | None = None
    gathers: bool = False
    steps_per_print: float = 10
    breakdown: bool = False
    drop_last: bool = False
    monitors: dict = field(default_factory=dict)


def _autos(config, where=""):
    """Supported keys that are still "auto"."""
    found = []
    for key, value in config.items():
        full = f"{where}.{key}" if where else key
        if isinstance(value, dict):
            found += _autos(value, full)
        elif value == "auto" and (key in SUPPORTED.get(where, set()) or where.endswith(".params")):
            found.append(full)
    return found


def _get(config, path, default=None):
    """The value at a path such as "fp16.enabled"; the default if it is missing, null or "auto"."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return default if config is None or config == "auto" else config


def _number(config, path, kind, default, least, most=math.inf):
    """The number at a path. Raises ConfigError if it is none of this kind and range."""
    value = _get(config, path, default)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or (kind is int and value != int(value)) or not least <= value <= most:
        limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ConfigError(f"{path}: must be a {'whole ' if kind is int else ''}number {limits}, and is {value!r}")
    return kind(value)


def _flag(config, path, default=False):
    """The boolean at a path. Raises ConfigError if it is none."""
    value = _get(config, path, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{path}: {value!r} must be true or false")
    return value


def _batches(config):
    """(micro-batch, gradient accumulation steps) of DeepSpeed's three batch sizes; two of them give the third."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, steps = (None if _get(config, n) is None else _number(config, n, int, 1, 1) for n in names)
    size = ranks().size
    if total is None:
        micro, steps = micro or 1, steps or 1
    elif micro is None:
        steps = steps or 1
        micro = total // (steps * size)
    elif steps is None:
        steps = max(1, total // (micro * size))
    if total is not None and total != micro * steps * size:
        of = "for one process" if size == 1 else f"times {size} ranks"
        raise ConfigError(
            f"train_batch_size: {total} is not train_micro_batch_size_per_gpu {micro} times "
            f"gradient_accumulation_steps {steps}, {of}"
        )
    return micro, steps


def _take_places(out, config, places):
    """Where the state lies: nvme_paths of the Settings out."""
    for which in ("offload_optimizer", "offload_param"):
        device = _get(config, f"zero_optimization.{which}.device", "none")
        if device not in ("none", "cpu", "nvme"):
            said = meant(str(device), ("none", "cpu", "nvme"))
            raise ConfigError(f"zero_optimization.{which}.device: {device!r} is not one of none, cpu and nvme{said}")
        path = _get(config, f"zero_optimization.{which}.nvme_path")
        if device == "cpu":
            why = "the state still lies on drives; as much as the budget allows stays in memory"
            say_once(f"zero_optimization.{which}.device: cpu: {why}")
        if device == "nvme" and path and os.fspath(path) not in out.nvme_paths:
            out.nvme_paths.append(os.fspath(path))
    if not out.run and not out.nvme_paths and places:
        out.nvme_paths = list(places)
        why = "its state lies beside the first one's"
        say_once(f"no nvme_path is given for another model of this script: {why}, in {', '.join(places)}")
    if not out.run and not out.nvme_paths:
        raise ConfigError(
            'where is the state to live? Give zero_optimization.offload_optimizer {"device": "nvme", "nvme_path": '
            'DIRECTORY}, or "longshore": {"run": DIRECTORY}'
        )


def _take_dtype(out, config):
    """What the Settings out compute in, and which inputs become bfloat16."""
    bf16 = next((k for k in ("bf16", "bfloat16") if _flag(config, f"{k}.enabled")), None)
    if bf16 and _flag(config, "fp16.enabled"):
        raise ConfigError(f"{bf16}.enabled and fp16.enabled: enable one of them; both compute in bfloat16")
    if bf16:
        out.dtype, out.casts_all = "bf16", _flag(config, f"{bf16}.auto_cast")
    elif _flag(config, "fp16.enabled"):
        out.casts_all = _flag(config, "fp16.auto_cast")
        out.dtype, out.casts = "bf16", True
        say_once("fp16.enabled: computes in bfloat16, whose range needs no loss scale: loss_scale is 1")


def settings(config, places=()):
    """The Settings of a configuration that load() returned. Raises ConfigError.

    places: directories for the state if the configuration names none.
    """
    if not isinstance(config, dict):
        raise ConfigError(f"the configuration of DeepSpeed must be a JSON object, and not {config!r}")
    config = _spread(config)
    hinted = _check(config)
    if hinted:
        plan = 'memory is planned from "longshore": {"memory": SIZE}'
        say_once(f"these keys have no effect here: {', '.join(hinted)}: {plan}")
    autos = _autos(config)
    if autos:
        why = '"auto" is for transformers and Accelerate to fill in, and they did not'
        say_once(f"{why}: defaults are used for {', '.join(autos)}")
    out = Settings()
    out.said = {option: value for option in SECTION if (value := _get(config, f"longshore.{option}")) is not None}
    out.run, out.drives, out.memory = (out.said.get(option) for option in ("run", "drives", "memory"))
    drives = [] if out.drives is None else [out.drives] if isinstance(out.drives, (str, os.PathLike)) else out.drives
    if not isinstance(drives, (list, tuple)) or not all(isinstance(drive, (str, os.PathLike)) for drive in drives):
        raise ConfigError(f"longshore.drives: {out.drives!r} must be a text or a list of texts")
    if "compress_after" in out.said:
        out.said["compress_after"] = _number(config, "longshore.compress_after", int, 0, 0)
    if "trace" in out.said:
        out.said["trace"] = _number(config, "longshore.trace", int, 0, 0)
    if "rank_timeout" in out.said:
        out.said["rank_timeout"] = _number(config, "longshore.rank_timeout", float, 0, 1)
    out.resume, out.overwrite = _flag(config, "longshore.resume"), _flag(config, "longshore.overwrite")
    out.layer_major = None if _get(config, "longshore.layer_major") is None else _flag(config, "longshore.layer_major")
    _take_places(out, config, places)
    out.stage = _number(config, "zero_optimization.stage", int, 0, 0, 3)
    out.micro_batch, out.accumulate = _batches(config)
    out.managed = _flag(config, "managed_gradient_accumulation", True)
    if "gradient_clipping" not in config:
        say_once(f"gradient_clipping is not given: {out.clip:g}, as DeepSpeed has it since 0.19; 0 clips nothing")
    out.clip = _number(config, "gradient_clipping", float, out.clip, 0)
    _take_dtype(out, config)
    out.optimizer, out.scheduler = _get(config, "optimizer"), _get(config, "scheduler")
    names = ("stage3_gather_16bit", "stage3_gather_fp16", "gather_16bit")
    out.gathers = any(_flag(config, f"zero_optimization.{name}_weights_on_model_save") for name in names)
    out.steps_per_print = _number(config, "steps_per_print", float, 10, 0)
    out.breakdown, out.drop_last = _flag(config, "wall_clock_breakdown"), _flag(config, "dataloader_drop_last")
    out.monitors = {k: config[k] for k in ("tensorboard", "csv_monitor", "wandb") if _flag(config, f"{k}.enabled")}
    return out


def hyper(said):
    """wrap()'s arguments for a configuration's optimizer, {"type": ..., "params": {...}}."""
    kind = str(said.get("type", "")).lower()
    if kind not in _TYPES:
        raise ConfigError(f"optimizer.type: {said.get('type')!r} is not supported; {NAMES} are{meant(kind, _TYPES)}")
    given = {k: v for k, v in (said.get("params") or {}).items() if v != "auto"}
    decoupled = given.pop("adam_w_mode", given.pop("adamw_mode", True))
    name = "adam" if kind == "adam" and not decoupled else _TYPES[kind]
    if not given.pop("bias_correction", True) or given.pop("amsgrad", False) or given.pop("nesterov", False):
        raise ConfigError("optimizer.params: bias_correction off, amsgrad and nesterov are not supported")
    if given.pop("torch_adam", False) and name == "adamw":
        given.setdefault("weight_decay", 0.01)  # torch.optim's default
    for ignored in ("fused", "foreach", "freeze_step", "fp32_optimizer_states"):
        given.pop(ignored, None)
    known = [key for key in defaults_of(name) if key in NUMBERS]
    for key in given:
        if key not in known:
            raise ConfigError(f"optimizer.params.{key}: is not a parameter of {said['type']}{meant(key, known)}")
    try:
        refuse_numbers(given, "optimizer.params.")
    except ValueError as e:
        raise ConfigError(str(e)) from None
    return {"optimizer": name, "weight_decay": 0.0, **given}
