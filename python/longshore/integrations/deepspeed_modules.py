"""Finds modules by DeepSpeed's names: those that Longshore has, and placeholders that refuse to be used."""

import enum
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

from ..step.optimizer_table import OPTIMIZERS
from ..torch_internals import tree_map
from . import deepspeed_names

HERE = "longshore.deepspeed"
VERSION = "0.19.8"  # the version of DeepSpeed that longshore.deepspeed follows
_CLASSES = [name for known in OPTIMIZERS.values() for name in known.deepspeed_classes]
_REAL = {  # {module below deepspeed: module below longshore.deepspeed}
    here: real
    for real, names in {
        "": [""],
        "accelerator": ["accelerator", "accelerator.real_accelerator"],
        "checkpointing": ["checkpointing", "runtime.activation_checkpointing.checkpointing"],
        "comm": ["comm", "comm.comm"],
        "engine": ["runtime.engine"],
        "lr_schedules": ["runtime.lr_schedules"],
        "monitor": ["monitor"],
        "ops": ["ops", *deepspeed_names.of_classes("DeepSpeedCPUAdam", "FusedAdam", *_CLASSES)],
        "utils": """utils runtime.dataloader utils.init_on_device utils.logging utils.tensor_fragment
            utils.z3_leaf_module""".split(),
        "zero": ["zero", "runtime.zero", "runtime.zero.partition_parameters"],
        "zero_to_fp32": ["utils.zero_to_fp32"],
    }.items()
    for here in names
}


def _clone_tensors_for_torch_save(item, device="cpu"):
    import torch

    return tree_map(lambda t: t.detach().clone().to(device) if isinstance(t, torch.Tensor) else t, item)


def _see_memory_usage(message, force=False):
    from ..deepspeed.utils import see_memory_usage

    see_memory_usage(message, force)


def _texts(name, values):
    """{name: an Enum of these texts}."""
    return {name: enum.Enum(name, {value: value for value in values.split()}, type=str)}


_INFO: dict = {"version": VERSION, "git_hash": None, "git_branch": None, "installed_ops": {}, "accelerator_name": "cpu"}
_SMALL = {  # {module below deepspeed that has no file here: the names that work}
    "checkpoint.utils": {"clone_tensors_for_torch_save": _clone_tensors_for_torch_save},
    "git_version_info": _INFO,
    "runtime.utils": {"see_memory_usage": _see_memory_usage},
    "runtime.zero.config": {
        "ZeroStageEnum": enum.IntEnum(
            "ZeroStageEnum", {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3, "max_stage": 3}
        )
    },
    "runtime.zero.offload_config": {
        **_texts("OffloadDeviceEnum", "none cpu nvme"),
        **_texts("OffloadStateTypeEnum", "optim_states hp_params lp_params lp_grads contiguous_grad_buffer"),
    },
    "utils.nvtx": {"instrument_w_nvtx": lambda function: function},
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads the modules below a prefix, `deepspeed` or `longshore.deepspeed`."""

    def __init__(self, prefix):
        self.prefix = prefix

    def _inner(self, name):
        return name[len(self.prefix) + 1 :]

    def find_spec(self, name, path=None, target=None):
        if name != self.prefix and not name.startswith(f"{self.prefix}."):
            return None
        inner = self._inner(name)
        if inner not in _REAL and not deepspeed_names.is_module(inner):
            raise ModuleNotFoundError(
                f"deepspeed.{inner}: DeepSpeed {VERSION} has no such module{deepspeed_names.near(inner)}", name=name
            )
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.origin = HERE
        return spec

    def create_module(self, spec):
        inner = self._inner(spec.name)
        if self.prefix == HERE and inner not in _REAL:
            module = types.ModuleType(spec.name)
            vars(module).update(_SMALL.get(inner, {}))
            deepspeed_names.attach(module, inner)
        else:
            here = _REAL.get(inner, inner)
            module = importlib.import_module(f"{HERE}.{here}".rstrip("."))
            if inner in _REAL:
                _attach(module, here)
        self._kept = module.__spec__
        return module

    def exec_module(self, module):
        if self._kept is not None:
            module.__spec__ = self._kept


def _attach(module, here):
    """Gives a module placeholders for the names that DeepSpeed's module has and it lacks."""
    if not hasattr(module, "__path__"):
        module.__path__ = []  # lets Python ask for modules below it
    deepspeed_names.attach(module, *(other for other, real in _REAL.items() if real == here))


def complete():
    """Gives the package's imported modules placeholders for the names that only DeepSpeed's have."""
    for here in set(_REAL.values()):
        module = sys.modules.get(f"{HERE}.{here}".rstrip("."))
        if module is not None:
            _attach(module, here)
    sys.meta_path.append(Finder(HERE))
