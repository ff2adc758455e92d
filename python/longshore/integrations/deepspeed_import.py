"""Makes `import deepspeed` import longshore.deepspeed in this process, also for libraries that look for DeepSpeed."""

import importlib.machinery
import importlib.metadata
import sys

from ..errors import LongshoreError
from ..ranks.launch import ranks
from .deepspeed_modules import HERE, VERSION, Finder

_ARGUMENTS, _OPTIMIZERS, _STATE = "transformers.training_args", "accelerate.utils.deepspeed", "accelerate.state"


def _take_bf16(arguments):
    """Lets transformers accept --bf16 without a GPU; otherwise it would need --use_cpu."""
    arguments.is_torch_bf16_gpu_available = lambda: True


def _leave_optimizers(accelerate):
    """Stops Accelerate from replacing every optimizer by DeepSpeedCPUAdam: initialize() takes it or refuses it."""
    accelerate.map_pytorch_optim_to_deepspeed = lambda optimizer: optimizer


def _find_ranks(state):
    """Lets Accelerate find the ranks that compute on CPUs: it knows no backend for them with DeepSpeed."""
    prepare = state.PartialState._prepare_backend  # noqa: SLF001

    def _prepare_backend(*args, **kwargs):
        backend, kind = prepare(*args, **kwargs)
        return "gloo" if backend is None and ranks().size > 1 else backend, kind

    state.PartialState._prepare_backend = _prepare_backend  # noqa: SLF001


# {another package's module: the change to make once it has been imported}
_CHANGED = {_ARGUMENTS: _take_bf16, _OPTIMIZERS: _leave_optimizers, _STATE: _find_ranks}


class _Installed(Finder):
    """Finds `deepspeed`, its modules and its package metadata, and changes the modules in _CHANGED."""

    def find_spec(self, name, path=None, target=None):
        if name in _CHANGED:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None:
                execute = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (execute(module), _CHANGED[name](module))
            return spec
        return super().find_spec(name, path, target)

    def find_distributions(self, context):
        if context.name in (None, "deepspeed"):
            yield _Distribution()


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a package `deepspeed`, whose version libraries check."""

    def read_text(self, filename):
        if filename in ("METADATA", "PKG-INFO"):
            return (
                f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {VERSION}\nSummary: longshore.deepspeed stands "
                "in for it\n"
            )
        return None

    def locate_file(self, path):
        return path


def install():
    """Makes `import deepspeed` import longshore.deepspeed. Raises LongshoreError if DeepSpeed is imported already."""
    there = sys.modules.get("deepspeed")
    if there is not None and there.__name__ != HERE:
        raise LongshoreError("deepspeed is imported already: start with `python -m longshore.deepspeed`")
    if not any(isinstance(finder, _Installed) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Installed("deepspeed"))
    for name, change in _CHANGED.items():
        if name in sys.modules:
            change(sys.modules[name])
    for name in ("accelerate.utils", "accelerate.accelerator"):  # they imported the function from there
        if hasattr(sys.modules.get(name), "map_pytorch_optim_to_deepspeed"):
            _leave_optimizers(sys.modules[name])
    import torch

    from ..deepspeed.zero import ZeroParamStatus

    # autograd gives saved weights back as plain tensors, whose values are available
    torch.Tensor.ds_status = ZeroParamStatus.AVAILABLE


def layer_major():
    """Makes transformers' Trainer in this process fetch each layer once a step instead of once a micro-batch."""
    trainer = sys.modules.get("transformers.trainer")
    if trainer is None or not any(isinstance(finder, _Installed) for finder in sys.meta_path):
        return
    from ..deepspeed.engine import DeepSpeedEngine
    from . import trainer_steps

    trainer_steps.extend(
        trainer.Trainer, lambda self: self.model_wrapped if isinstance(self.model_wrapped, DeepSpeedEngine) else None
    )
