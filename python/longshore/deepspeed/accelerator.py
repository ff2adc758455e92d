"""deepspeed.accelerator: the device of forward and backward. It is what Accelerate chose, or torch.accelerator's; the
CPU if DS_ACCELERATOR names it, as in DeepSpeed, or if there is no other."""

import os
import sys

import torch

from ..integrations.deepspeed_config import ConfigError
from ..ranks.launch import ranks
from ..run.memory import process_bytes
from ..torch_internals import accelerator
from .comm import always, backend


def _chosen():
    """The torch.device on which engines of this process compute."""
    if os.environ.get("DS_ACCELERATOR", "").lower() == "cpu":
        return torch.device("cpu")
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    shared = getattr(state, "_shared_state", {})  # where Accelerate keeps what use_cpu=True and --use_cpu have said
    return torch.device(shared.get("device") or accelerator())


def refuse_other_ranks():
    """Raises ConfigError if Accelerate has found other processes than there are ranks."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    found = getattr(state, "_shared_state", {}).get("num_processes", ranks().size)
    if found != ranks().size:
        raise ConfigError(
            f"deepspeed.initialize: there are {ranks().size} ranks, and Accelerate has found {found}, so that each "
            "would take the batches of all: start the script with -m longshore.deepspeed"
        )


class Accelerator:
    """DeepSpeed's accelerator."""

    device_count = always(1)
    is_available = is_synchronized_device = is_bf16_supported = is_pinned = always(True)
    is_fp16_supported = always(False)
    set_device = always(None)

    @property
    def _name(self):
        return _chosen().type

    @property
    def _module(self):
        """PyTorch's module of the device; None: it is the CPU, which has no memory of its own."""
        return None if self._name == "cpu" else torch.get_device_module(self._name)

    def communication_backend_name(self):
        return backend(self._name)

    def device(self, device_index=None):
        return _chosen() if device_index is None else torch.device(self._name, device_index)

    current_device = device

    def device_name(self, device_index=None):
        return str(self.device(device_index))

    def current_device_name(self):
        return str(_chosen())

    def supported_dtypes(self):
        return [torch.float32, torch.bfloat16]

    def on_accelerator(self, tensor):
        return tensor.device.type == self._name

    def manual_seed(self, seed):
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device_index=None):
        return (self._module or torch).get_rng_state()

    def set_rng_state(self, state, device_index=None):
        (self._module or torch).set_rng_state(state)

    def pin_memory(self, tensor, align_bytes=1):
        return tensor if self._module is None else tensor.pin_memory()

    def synchronize(self, device_index=None):
        if self._module is not None:
            self._module.synchronize()

    def empty_cache(self):
        if self._module is not None:
            self._module.empty_cache()

    def reset_peak_memory_stats(self, device_index=None):
        if self._module is not None:
            self._module.reset_peak_memory_stats()

    def memory_allocated(self, device_index=None):
        """Bytes that PyTorch holds on the device; of the CPU: the resident memory of this process."""
        return process_bytes() if self._module is None else self._module.memory_allocated()

    def max_memory_allocated(self, device_index=None):
        return process_bytes() if self._module is None else self._module.max_memory_allocated()

    memory_reserved = memory_allocated


_accelerator = Accelerator()


def get_accelerator():
    return _accelerator
