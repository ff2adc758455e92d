"""deepspeed.accelerator: describes the device of forward and backward, the CPU."""

import torch

from ..run.memory import process_bytes
from .comm import always


class Accelerator:
    """DeepSpeed's accelerator for the CPU."""

    _name = "cpu"
    _communication_backend_name = "gloo"

    device_name = current_device_name = always(_name)
    communication_backend_name = always(_communication_backend_name)
    device_count = always(1)
    is_available = is_synchronized_device = is_bf16_supported = is_pinned = always(True)
    is_fp16_supported = always(False)
    set_device = synchronize = empty_cache = reset_peak_memory_stats = always(None)

    def device(self, device_index=None):
        return torch.device(self._name)

    current_device = device

    def supported_dtypes(self):
        return [torch.float32, torch.bfloat16]

    def on_accelerator(self, tensor):
        return tensor.device.type == self._name

    def manual_seed(self, seed):
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device_index=None):
        return torch.get_rng_state()

    def set_rng_state(self, state, device_index=None):
        torch.set_rng_state(state)

    def pin_memory(self, tensor, align_bytes=1):
        return tensor

    def memory_allocated(self, device_index=None):
        """Resident memory of this process, in bytes."""
        return process_bytes()

    max_memory_allocated = memory_reserved = memory_allocated


_accelerator = Accelerator()


def get_accelerator():
    return _accelerator
