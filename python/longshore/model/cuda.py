"""What CUDA alone has, and ROCm under the same names. Every function has an answer for other devices."""

import contextlib
import os
import re

import torch

from ..errors import LongshoreError
from ..native import first_line
from ..torch_internals import cuda_of_driver

_PORTABLE, _MAPPED = 1, 2  # cudaHostRegister...: pinned for every device, and seen by it


def registers(device):
    """Whether memory that this process has mapped can be registered with a device: it is pinned from then on."""
    return device.type == "cuda"


def register(address, nbytes, device):
    """Pins memory that this process has mapped, where registers() says so. Raises RuntimeError if that is refused."""
    with torch.cuda.device(device):  # which then has a context, and no other one
        code = torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE | _MAPPED)
    if int(code) == 0:
        return
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device)  # reports the refusal in place of the script's next operation, which would
    raise RuntimeError(torch.cuda.cudart().cudaGetErrorString(code))


def unregister(address):
    """Ends register(). Nothing copies there any more."""
    torch.cuda.cudart().cudaHostUnregister(address)


def is_unified(device):
    """Whether a device has no memory of its own, but the host's."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))


class _Seen:
    """Registered memory, as libraries of CUDA hand it to each other. A tensor of it keeps the memory."""

    def __init__(self, memory):
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 2,
        }


def seen_by(device, memory):
    """Registered memory as a tensor of bytes of a device for which is_unified() holds. memory: Pinned."""
    try:
        seen = torch.as_tensor(_Seen(memory), device=device)
    except (RuntimeError, TypeError, ValueError) as failure:
        raise LongshoreError(f"{device} does not see registered memory ({first_line(failure)})") from failure
    if seen.data_ptr() != memory.address:
        raise LongshoreError(f"{device} sees registered memory at another address, for which no code is written")
    return seen


def driver():
    """What is known of the driver, as people say it; None: there is none."""
    if not torch.cuda.is_available():
        return None
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    newest = cuda_of_driver()
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as said:  # WSL2 has none
            release = re.search(r"\d+\.\d[\d.]*", said.readline())
    except OSError:
        release = None
    return f"{release[0] if release else 'of unknown release'}, for CUDA up to {newest // 1000}.{newest % 1000 // 10}"


def why_none():
    """Why PyTorch sees no GPU though the machine may have one; None: nothing says that it has."""
    devices = [path for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd") if os.path.exists(path)]
    if not devices:
        return None
    if not torch.backends.cuda.is_built():
        return f"{devices[0]} is there, and this PyTorch is built for CPUs alone"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as failure:
        return f"{devices[0]} is there, and CUDA says: {first_line(failure)}"
    return None


def users(device):
    """{number of a process: bytes of the device's memory that it uses}, as far as pynvml or amdsmi is installed."""
    if device.type != "cuda":
        return {}
    try:
        said = torch.cuda.list_gpu_processes(device)
    except Exception:  # of a library that need not be there, and of every kind
        return {}
    found = re.findall(r"process +(\d+) +uses +([\d.]+) MB", said)
    return {int(process): int(float(size) * (1 << 20)) for process, size in found}
