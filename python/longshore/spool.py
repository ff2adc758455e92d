"""Parameters of a model that is being made, in files on a drive instead of memory.

Inside `longshore.init(...)` every parameter that a module registers gets a file for its memory: mapped, so that whatever
initialises, loads, ties or resizes it works as in memory, with the same numbers, and given back to the system as it
goes. wrap() reads them one by one, and the files go. Weights that a library maps from its own files, as transformers does,
stay there, and what was read of them is given back, too.
"""

import contextlib
import ctypes
import mmap
import os
import tempfile
import threading
import weakref
import zipfile

import torch
from torch import nn

from . import damage
from .errors import LongshoreError

LEAST_BYTES = 1 << 16  # smaller ones stay in memory
RESIDENT_BYTES = 128 << 20  # that stay mapped in between
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")  # files that are mapped
PAGEOUT = 21  # MADV_PAGEOUT: changed pages of a private mapping stay
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Spool:
    def __init__(self, directory):
        self.directory = directory
        self.maps = weakref.WeakValueDictionary()  # by address of the storage
        self.lock = threading.Lock()
        self.touched = 0

    def empty(self, shape, dtype):
        n = 1
        for size in shape:
            n *= size
        nbytes = n * dtype.itemsize
        fd, path = tempfile.mkstemp(prefix="parameter-", dir=self.directory)
        try:
            os.unlink(path)  # goes with its mapping, however this process ends
            os.truncate(fd, nbytes)
            mapped = _Map(fd, nbytes)
        finally:
            os.close(fd)
        tensor = torch.frombuffer(mapped, dtype=dtype).view(shape)
        self.maps[tensor.data_ptr()] = mapped
        return tensor

    def take(self, tensor):
        """A copy of a tensor that lies in a file."""
        out = self.empty(tensor.shape, tensor.dtype)
        with torch.no_grad():
            out.copy_(tensor)
        self.relieve(out.nbytes)
        return out

    def has(self, tensor):
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in self.maps

    def relieve(self, nbytes):
        """Gives memory back, where more than a little has been touched. What was written stays in the files."""
        with self.lock:
            self.touched += nbytes
            if self.touched < RESIDENT_BYTES:
                return
            self.touched = 0
            maps = list(self.maps.values())
        for mapped in maps:
            with contextlib.suppress(ValueError, OSError):
                mapped.madvise(mmap.MADV_DONTNEED)
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.rstrip().endswith(WEIGHTS):
                    first, last = (int(address, 16) for address in line.split(None, 1)[0].split("-"))
                    _madvise(first, last - first, PAGEOUT)  # in vain where the file is somebody else's


class _Map(mmap.mmap):
    """With weak references."""

    def __new__(cls, fd, nbytes):
        return super().__new__(cls, fd, nbytes, mmap.MAP_SHARED)


@contextlib.contextmanager
def spooling(directory):
    """Parameters that are registered from here on lie in files of this directory. Yields the Spool."""
    spool = Spool(directory)
    before = nn.Module.register_parameter
    load_before, refused = torch.load, []

    def moved(module, name, p):
        if (p is None or p.device.type != "cpu" or p.nbytes < LEAST_BYTES or spool.has(p)
                or not isinstance(p, nn.Parameter) or p.dtype not in (torch.float32, torch.bfloat16, torch.float16)):
            return
        p.data = spool.take(p.data)

    def register_parameter(self, name, param):
        before(self, name, param)
        moved(self, name, param)

    def load(f, *args, **how):
        shapes = how.get("map_location") == "meta" and zipfile.is_zipfile(f)  # what transformers 4 looks at first
        whole = isinstance(f, (str, os.PathLike)) and os.path.basename(f).startswith("pytorch_model") and not how.get("mmap")
        if whole and not shapes and os.path.exists(f) and damage.is_old(f):
            refused.append(LongshoreError(
                f"{os.fspath(f)}: is of a form that can only be read into memory as a whole; convert it once, where memory is enough: "
                "from_pretrained(DIR).save_pretrained(NEW), outside of longshore.init()"))
            raise refused[0]
        return load_before(f, *args, **how)

    stop = threading.Event()

    def watch():
        while not stop.wait(0.05):
            spool.relieve(RESIDENT_BYTES)

    # initialisation goes through all of it again, in places that no hook sees
    watcher = threading.Thread(target=watch, name="longshore-spool", daemon=True)
    nn.Module.register_parameter, torch.load = register_parameter, load
    watcher.start()
    try:
        with damage.named():
            yield spool
    except Exception as said:
        if refused and said is not refused[0]:
            raise refused[0] from said  # transformers 4 says that the file is none of PyTorch's
        raise
    finally:
        stop.set()
        watcher.join()
        nn.Module.register_parameter, torch.load = before, load_before
