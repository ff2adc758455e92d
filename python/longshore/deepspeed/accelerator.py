"""deepspeed.accelerator: the device that parameters are computed on."""

import torch

from ..memory import process_bytes


class Accelerator:
    _name = "cpu"
    _communication_backend_name = "gloo"

    def device_name(self, device_index=None):
        return self._name

    def current_device_name(self):
        return self._name

    def device(self, device_index=None):
        return torch.device(self._name)

    current_device = device

    def communication_backend_name(self):
        return self._communication_backend_name

    def device_count(self):
        return 1

    def is_available(self):
        return True

    def is_synchronized_device(self):
        return True

    def is_bf16_supported(self):
        return True

    def is_fp16_supported(self):
        return False

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

    def is_pinned(self, tensor):
        return True

    def _nothing(self, *args, **kwargs):
        return None

    set_device = synchronize = empty_cache = reset_peak_memory_stats = _nothing

    def memory_allocated(self, device_index=None):
        """Resident memory of this process, in bytes."""
        return process_bytes()

    max_memory_allocated = memory_reserved = memory_allocated


_accelerator = Accelerator()


def get_accelerator():
    return _accelerator
