"""A device that no machine has (standin_device.cpp), built once with the compiler that is there, and what PyTorch is
told of it.

It changes PyTorch for the whole process: tests use it in processes of their own, before anything asks for an
accelerator.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import torch

NAME = "mtia"
_SOURCE = pathlib.Path(__file__).with_name("standin_device.cpp")
_state = torch.zeros(8, dtype=torch.uint8)  # of a generator of its own. What operations draw is the CPU's


def why_not():
    """Why it cannot be built here; None: it can."""
    if shutil.which("g++") is None:
        return "no g++"
    return None if (_of_torch("include") / "ATen" / "EmptyTensor.h").exists() else "PyTorch's headers are not there"


def _of_torch(directory):
    return pathlib.Path(torch.__file__).parent / directory


def build():
    """Builds it, if nobody has. Returns the library."""
    text = _SOURCE.read_bytes() + torch.__version__.encode()
    name = f"longshore-standin-{os.getuid()}-{hashlib.sha256(text).hexdigest()[:16]}.so"
    path = pathlib.Path(tempfile.gettempdir()) / name
    if not path.exists():
        made = path.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                "g++",
                "-std=c++20",
                "-O1",
                "-w",
                "-fPIC",
                "-shared",
                f"-I{_of_torch('include')}",
                str(_SOURCE),
                "-o",
                str(made),
                f"-L{_of_torch('lib')}",
                "-ltorch_cpu",
                "-lc10",
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            ],
            check=True,
        )
        made.rename(path)
    return path


def make():
    """From here on this process has the device."""
    torch.ops.load_library(build())
    module = torch.mtia
    module.is_available = module.is_initialized = lambda: True
    module.device_count, module.current_device = (lambda: 1), (lambda: 0)
    module._is_in_bad_fork, module._lazy_init, module.init = (lambda: False), (lambda: None), (lambda: None)
    module.manual_seed_all = lambda seed: _state.copy_(torch.tensor([seed % 2**63]).view(torch.uint8))
    module.get_rng_state = lambda device=NAME: _state.clone()
    module.set_rng_state = lambda state, device=NAME: _state.copy_(state)
    plain = torch.UntypedStorage.resize_

    def resize_(storage, nbytes):  # which PyTorch has for the devices that it names alone
        if storage.device.type != NAME:
            return plain(storage, nbytes)
        torch.ops.standin.resize_storage(torch.empty(0, dtype=torch.uint8, device=NAME).set_(storage), nbytes)
        return storage

    torch.UntypedStorage.resize_ = resize_


def waits():
    """How often a thread that computes has waited for the device."""
    return torch.ops.standin.waits()


def late():
    """How many copies were not made when they were asked for."""
    return torch.ops.standin.late()


def live():
    """Bytes of the device's memory that are in use."""
    return torch.ops.standin.live()


def free():
    """Bytes of the device's memory that are free."""
    return torch.accelerator.get_memory_info()[0]


def pinned():
    """Bytes of pinned memory."""
    return torch.ops.standin.pinned()


def pin(address, nbytes, device=NAME):
    """As cudaHostRegister() does."""
    torch.ops.standin.pin(address, nbytes)


def unpin(address):
    """As cudaHostUnregister() does."""
    torch.ops.standin.unpin(address)


def see(device, memory):
    """Pinned memory as a tensor of bytes of the device, whose memory is the host's: cuda.seen_by()."""
    return torch.ops.standin.see(memory.bytes)


def overwritten():
    """How many operations have read memory of the host that got something else before the host knew that their stream
    had passed. All have passed then."""
    return torch.ops.standin.overwritten()


def tell(on=True):
    """From here on it is seen that an operation has read memory of the host before anybody waits for it."""
    torch.ops.standin.tell(on)


def seen():
    """How many operations have read memory of the host in place."""
    return torch.ops.standin.seen()


def copied():
    """Bytes that were copied from pinned memory to memory of the device."""
    return torch.ops.standin.copied()


def pinned_most():
    """The most bytes of pinned memory since it was asked last."""
    return torch.ops.standin.pinned_most()


def hang(on=True):
    """From here on nothing runs on the device any more."""
    torch.ops.standin.hang(on)


def elapse(milliseconds):
    """From here on this is the time between any two events."""
    torch.ops.standin.elapse(milliseconds)


def limit(nbytes=-1, pinned=-1):
    """Memory of the device, beyond which torch.OutOfMemoryError is raised, and all pinned memory; -1: as at the start,
    8 GiB and no limit."""
    torch.ops.standin.limit(nbytes)
    torch.ops.standin.limit_pinned(pinned)
