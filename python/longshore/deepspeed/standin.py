"""`deepspeed` in this process, without its being installed: modules by their names there, and its version."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types

from ..errors import LongshoreError

_HERE = __package__
_MODULES = {
    "deepspeed": _HERE,
    **{f"deepspeed.{name}": f"{_HERE}.{name}" for name in ("accelerator", "checkpointing", "comm", "ops", "utils", "zero")},
    "deepspeed.comm.comm": f"{_HERE}.comm",
    "deepspeed.ops.adam": f"{_HERE}.ops",
    "deepspeed.ops.adagrad": f"{_HERE}.ops",
    "deepspeed.accelerator.real_accelerator": f"{_HERE}.accelerator",
    "deepspeed.runtime.activation_checkpointing.checkpointing": f"{_HERE}.checkpointing",
    "deepspeed.runtime.engine": f"{_HERE}.engine",
    "deepspeed.runtime.lr_schedules": f"{_HERE}.lr_schedules",
    "deepspeed.runtime.zero": f"{_HERE}.zero",
    "deepspeed.runtime.zero.partition_parameters": f"{_HERE}.zero",
    "deepspeed.utils.logging": f"{_HERE}.utils",
    "deepspeed.utils.tensor_fragment": f"{_HERE}.utils",
    "deepspeed.utils.zero_to_fp32": f"{_HERE}.zero_to_fp32",
}


def _clone_tensors_for_torch_save(item, device="cpu"):
    import torch

    return torch.utils._pytree.tree_map(lambda t: t.detach().clone().to(device) if isinstance(t, torch.Tensor) else t, item)


def _see_memory_usage(message, force=False):
    from .utils import see_memory_usage

    see_memory_usage(message, force)


_SMALL = {  # packages without a file of their own here, and what is in them
    "deepspeed.runtime": {},
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.utils": {"see_memory_usage": _see_memory_usage},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"clone_tensors_for_torch_save": _clone_tensors_for_torch_save},
}


_ARGUMENTS, _OPTIMIZERS = "transformers.training_args", "accelerate.utils.deepspeed"


def _take_bf16(arguments):
    """transformers refuses --bf16 on machines without a GPU, unless --use_cpu is there."""
    arguments.is_torch_bf16_gpu_available = lambda: True


def _leave_optimizers(accelerate):
    """Accelerate makes a DeepSpeedCPUAdam of whatever optimizer it is given; initialize() takes it as it is, or refuses it by name."""
    accelerate.map_pytorch_optim_to_deepspeed = lambda optimizer: optimizer


_CHANGED = {_ARGUMENTS: _take_bf16, _OPTIMIZERS: _leave_optimizers}  # modules of others: what is done to them when they have been imported


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in _MODULES or name in _SMALL:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.origin = "longshore.deepspeed"
            return spec
        if name in _CHANGED:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None:
                execute = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (execute(module), _CHANGED[name](module))
            return spec
        if name.startswith("deepspeed."):
            raise ModuleNotFoundError(f"{name}: longshore.deepspeed stands in for deepspeed, and does not have this", name=name)
        return None

    def create_module(self, spec):
        if spec.name in _SMALL:
            module = types.ModuleType(spec.name)
            vars(module).update(_SMALL[spec.name])
            for name, here in _MODULES.items():
                if name.rpartition(".")[0] == spec.name:
                    setattr(module, name.rpartition(".")[2], importlib.import_module(here))
            return module
        module = importlib.import_module(_MODULES[spec.name])
        self._kept = module.__spec__, getattr(module, "__path__", None)
        return module

    def exec_module(self, module):
        name = module.__spec__.name
        if name in _MODULES:
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None) if self._kept[0] is None else self._kept[0]
            if self._kept[1] is None:
                module.__path__ = []  # so that names below it are asked for

    def find_distributions(self, context):
        if context.name in (None, "deepspeed"):
            yield _Distribution()


class _Distribution(importlib.metadata.Distribution):
    def read_text(self, filename):
        from . import __version__

        if filename in ("METADATA", "PKG-INFO"):
            return f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {__version__}\nSummary: longshore.deepspeed stands in for it\n"
        return None

    def locate_file(self, path):
        return path


def install():
    """From here on `import deepspeed` is longshore.deepspeed. LongshoreError: the other one is imported already."""
    there = sys.modules.get("deepspeed")
    if there is not None and there.__name__ != _HERE:
        raise LongshoreError("deepspeed is imported already: start with `python -m longshore.deepspeed`")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, change in _CHANGED.items():
        if name in sys.modules:
            change(sys.modules[name])
    for name in ("accelerate.utils", "accelerate.accelerator"):  # which have it from there already
        if hasattr(sys.modules.get(name), "map_pytorch_optim_to_deepspeed"):
            _leave_optimizers(sys.modules[name])
    import torch
    from .zero import ZeroParamStatus

    # a weight that autograd has saved comes back in backward as a tensor, and its value is there
    torch.Tensor.ds_status = ZeroParamStatus.AVAILABLE


def layer_major():
    """In this process transformers' Trainer fetches each layer once a step, and not for each micro-batch: it has them all at
    hand before it computes with the first."""
    trainer = sys.modules.get("transformers.trainer")
    if trainer is None or not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    from .. import trainer_steps
    from .engine import DeepSpeedEngine

    trainer_steps.extend(trainer.Trainer, lambda self: self.model_wrapped if isinstance(self.model_wrapped, DeepSpeedEngine) else None)
