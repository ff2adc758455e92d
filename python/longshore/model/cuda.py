"""What CUDA alone has, and ROCm under the same names. Every function has an answer for other devices."""

import contextlib

import torch


def registers(device):
    """Whether memory that this process has mapped can be registered with a device: it is pinned from then on."""
    return device.type == "cuda"


def register(address, nbytes):
    """Pins memory that this process has mapped, where registers() says so. Raises RuntimeError if that is refused."""
    code = torch.cuda.cudart().cudaHostRegister(address, nbytes, 0)
    if int(code) == 0:
        return
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")  # reports the refusal in place of the script's next operation, which would
    raise RuntimeError(torch.cuda.cudart().cudaGetErrorString(code))


def unregister(address):
    """Ends register(). Nothing copies there any more."""
    torch.cuda.cudart().cudaHostUnregister(address)


def is_unified(device):
    """Whether a device has no memory of its own, but the host's."""
    return device.type == "cuda" and bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))
