"""Placeholders for DeepSpeed's names that Longshore does not have: importing them works, using them raises.

deepspeed_names.txt lists DeepSpeed's modules and their names, so that a misspelt name is still an ImportError.
"""

import abc
import functools
import importlib
import os

from ..errors import LongshoreError
from ..step.optimizer_table import NAMES
from .deepspeed_config import meant

_HERE = "longshore.deepspeed"
_IN_PROCESS = "there is one process, which has the whole model and the whole batch"
_INSTEAD = {  # {beginning of a name: what to use instead}
    "accelerator": "deepspeed.accelerator.get_accelerator() is the processor",
    "autotuning": 'memory is planned from "longshore": {"memory": SIZE}',
    "checkpoint": "engine.save_checkpoint() and load_checkpoint() are enough, and deepspeed.utils.zero_to_fp32 reads "
    "what they write",
    "comm": _IN_PROCESS + ", so that nothing is communicated; torch.distributed answers for it",
    "compile": "torch.compile of the model before initialize(), or engine.compile()",
    "compression": "torch.ao.quantization and torch.nn.utils.prune change a model before initialize()",
    "inference": "engine.module.generate() works as it is",
    "io": "drives read and write by themselves",
    "launcher": "python -m longshore.deepspeed SCRIPT starts the one process that there is",
    "linear": "peft's LoRA works, and its frozen base is streamed",
    "moe": "experts of an ordinary nn.Module stream from the drives as they are hit",
    "monitor": '"tensorboard", "csv_monitor" and "wandb" of the configuration write what it wrote',
    "nvme": "`longshore drive bench` measures a drive",
    "ops": f"{NAMES}, of torch.optim or the configuration, are updated beside the drives, and no operator is compiled",
    "ops.sparse_attention": "torch.nn.functional.scaled_dot_product_attention, or torch's FlexAttention",
    "profiling": 'torch.profiler sees everything, and "wall_clock_breakdown" prints times',
    "runtime": "parameters, gradients and the optimizer's state are the engine's: deepspeed.initialize() is all that "
    "it takes",
    "runtime.data_pipeline": "torch.utils.data has loaders and samplers",
    "runtime.fp16": "bf16 and fp16 of the configuration are computed in bfloat16, without a loss scale",
    "utils.groups": _IN_PROCESS + ": deepspeed.comm.get_world_size() is 1",
    "utils.timer": '"wall_clock_breakdown" of the configuration prints times, and time.perf_counter() takes them',
}
for _names, _instead in (  # for several names
    ("DeepSpeedConfig runtime.config", "give the dict, or the file, to deepspeed.initialize(config=...)"),
    ("elasticity", _IN_PROCESS),
    ("model_implementations module_inject ops.transformer", "give initialize() the model as transformers has it"),
    (
        "pipe runtime.pipe Pipeline DualPipe",
        "give initialize() the nn.Module itself: engine.train_batch() fetches each layer once for all micro-batches",
    ),
    ("runtime.sequence_parallel sequence", f"{_IN_PROCESS}; gradient checkpointing makes room for long sequences"),
):
    _INSTEAD.update(dict.fromkeys(_names.split(), _instead))


class NotHereError(LongshoreError, AttributeError, NotImplementedError):
    """The script used a part of DeepSpeed that Longshore does not have."""


def _refuse(name):
    """Raises NotHereError for a name below deepspeed, and says what to use instead."""
    beginning = max((b for b in _INSTEAD if name.startswith(b)), key=len, default=None)
    instead = _INSTEAD.get(beginning, "docs/deepspeed.md says what works")
    raise NotHereError(f"deepspeed.{name}: does nothing under Longshore; instead: {instead}")


class _Kind(abc.ABCMeta):
    """The metaclass of placeholder classes. They have no instances, so isinstance() works and returns False."""

    def __call__(cls, *args, **kwargs):
        _refuse(cls.longshore_name)

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"{cls.longshore_name}.{name}")

    def __iter__(cls):
        _refuse(cls.longshore_name)

    __getitem__ = __call__


class _Value:
    """The placeholder for a constant: any use raises NotHereError."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def _used(self, *args):
        _refuse(self.__dict__["name"])

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._used()

    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __bool__ = __len__ = __iter__ = __int__ = __float__ = _used
    __contains__ = __getitem__ = __call__ = __add__ = __radd__ = __mod__ = __format__ = __lt__ = __gt__ = _used
    __le__ = __ge__ = __index__ = _used


@functools.cache
def _placeholder(name):
    last = name.rpartition(".")[2]
    return _Value(name) if last.isupper() else _Kind(last, (), {"longshore_name": name, "__module__": "deepspeed"})


@functools.cache
def _known():
    """{module below deepspeed: its names}. The name "*" stands for every name."""
    with open(os.path.join(os.path.dirname(__file__), "deepspeed_names.txt"), encoding="utf-8") as f:
        return {module: names for module, *names in map(str.split, f)}


def _whole(module):
    """Whether a module, or a module above it, has every name."""
    return any(names == ["*"] and f"{module}.".startswith(f"{other}.") for other, names in _known().items())


def is_module(module):
    return module in _known() or _whole(module)


def of_classes(*classes):
    """The modules below deepspeed.ops that have one of these classes."""
    return [
        module for module, names in _known().items() if module.startswith("ops.") and not {*classes}.isdisjoint(names)
    ]


def near(module):
    """ "; did you mean ...?" for an unknown module, or ""."""
    return meant(module, _known(), "deepspeed.")


def attach(module, *others):
    """Gives a Python module placeholders for names that it lacks. others: the modules below deepspeed it stands for."""

    def missing(name):
        if not name.startswith("__"):
            for other in others:
                inner = f"{other}.{name}".lstrip(".")
                if inner in _known():
                    return importlib.import_module(f"{_HERE}.{inner}")
                if name in _known().get(other or ".", ()) or _whole(other):
                    return _placeholder(inner)
        known = [n for other in others for n in _known().get(other or ".", ())] + list(vars(module))
        hint = "" if name.startswith("_") else meant(name, known)
        raise AttributeError(
            f"module 'deepspeed{'.' if others[0] else ''}{others[0]}' has no attribute {name!r}{hint}",
            name=name,
            obj=module,
        )

    module.__getattr__ = missing
