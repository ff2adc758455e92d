"""Keeps the parameters of a model that is being made in files on a drive instead of memory.

Inside `longshore.init(...)` each parameter that a module registers gets a mapped file as its memory. Code that
initialises, loads, ties or resizes it works as in memory, with the same numbers, and its pages go back to the system as
the model grows. wrap() reads the files one by one, and they disappear. Weights that a library maps from its own files,
as transformers does, stay there; their pages go back to the system, too.
"""

import atexit
import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import struct
import tempfile
import threading
import weakref
import zipfile

import torch
from torch import nn

from .. import native
from ..errors import LongshoreError
from ..progress import Progress
from . import unreadable_weights

LEAST_BYTES = 1 << 16  # smaller parameters stay in memory
RESIDENT_BYTES = 128 << 20  # how much may be touched before pages go back to the system
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")  # files of weights that libraries map
_GETFLAGS, _SETFLAGS, _NOCOW = 0x80086601, 0x40086602, 0x00800000  # of linux/fs.h
PAGEOUT = 21  # MADV_PAGEOUT keeps the changed pages of a private mapping
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Spool:
    """The files that hold a model's parameters."""

    def __init__(self, directories, more):
        """more: how a user names more directories, for messages."""
        self.directories, self.more = directories, more
        self.modules = weakref.WeakSet()  # modules made while it is open
        self.failure = self.refused = None  # that a file has no room; that a file of weights cannot be mapped
        self.maps = weakref.WeakValueDictionary()  # mappings by the address of their storage
        self.lock = threading.Lock()
        self.touched = 0

    def empty(self, shape, dtype):
        """Makes an uninitialised tensor in a file."""
        nbytes = math.prod(shape) * dtype.itemsize
        fd = self._file(nbytes)
        try:
            mapped = _Map(fd, nbytes)
        finally:
            os.close(fd)
        tensor = torch.frombuffer(mapped, dtype=dtype).view(shape)
        self.maps[tensor.data_ptr()] = mapped
        return tensor

    def _file(self, nbytes):
        """Opens a file with its room reserved: writing a mapped page without room would kill the process. Tries the
        emptiest file system first."""
        has = []
        for directory in sorted(self.directories, key=_free_bytes, reverse=True):
            try:
                fd, path = tempfile.mkstemp(prefix="parameter-", dir=directory)
                try:
                    os.unlink(path)  # goes with its mapping, however this process ends
                    _take_room(fd, nbytes)
                    return fd
                except BaseException:
                    os.close(fd)
                    raise
            except OSError as failure:
                why = "" if failure.errno == errno.ENOSPC else f" ({os.strerror(failure.errno)})"
                has.append(f"{directory} has {native.readable(_free_bytes(directory))}{why}")
        self.failure = LongshoreError(
            f"no room for the model: a parameter needs {native.readable(nbytes)}, "
            f"{', '.join(has)}; free space, or add a drive: {self.more}"
        )
        raise self.failure

    def take(self, tensor):
        """Copies a tensor into a file. Returns the copy."""
        out = self.empty(tensor.shape, tensor.dtype)
        with torch.no_grad():
            out.copy_(tensor)
        self.relieve(out.nbytes)
        self.progress.add(out.nbytes)
        return out

    def has(self, tensor):
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in self.maps

    # ---- what replaces functions of PyTorch

    def registering(self, before):
        """nn.Module.register_parameter() that moves parameters into files."""

        def register_parameter(module, name, param):
            before(module, name, param)
            if param is None or param.device.type != "cpu" or param.nbytes < LEAST_BYTES or self.has(param):
                return
            if param.dtype in (torch.float32, torch.bfloat16, torch.float16):
                param.data = self.take(param.data)

        return register_parameter

    def noting(self, before):
        """A method of nn.Module that notes the module: one that is made, or copied, or loaded as a whole."""

        def note(module, *args, **how):
            self.modules.add(module)
            before(module, *args, **how)

        return note

    def loading(self, before):
        """torch.load() that refuses files which it would read into memory as a whole."""

        def load(f, *args, **how):
            shapes = how.get("map_location") == "meta" and zipfile.is_zipfile(f)  # transformers 4 reads shapes first
            named = isinstance(f, (str, os.PathLike)) and os.path.basename(f).startswith("pytorch_model")
            whole = named and not how.get("mmap") and not shapes
            if whole and os.path.exists(f) and unreadable_weights.is_old(f):
                new = "from_pretrained(DIR).save_pretrained(NEW), outside of longshore.init()"
                why = "can only be read into memory as a whole; convert it once on a machine with enough memory"
                self.refused = self.refused or LongshoreError(f"{os.fspath(f)}: {why}: {new}")
                raise self.refused
            return before(f, *args, **how)

        return load

    # ---- memory

    @contextlib.contextmanager
    def relieving(self):
        """The context in which pages go back to the system all the time: initialisation touches all parameters again,
        in places without hooks."""
        stop = threading.Event()

        def watch():
            while not stop.wait(0.05):
                self.relieve(RESIDENT_BYTES)

        def end():
            stop.set()
            watcher.join()

        watcher = threading.Thread(target=watch, name="longshore-spool", daemon=True)
        watcher.start()
        atexit.register(end)  # for a process that ends inside the context
        try:
            yield
        finally:
            end()
            atexit.unregister(end)

    def relieve(self, nbytes):
        """Gives pages back to the system once RESIDENT_BYTES were touched. Their contents stay in the files."""
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
                    _madvise(first, last - first, PAGEOUT)  # has no effect on a file of another user


def _free_bytes(directory):
    said = os.statvfs(directory)
    return said.f_bavail * said.f_frsize


def _take_room(fd, nbytes):
    with contextlib.suppress(OSError):  # Btrfs rewrites elsewhere, where there may be no room, unless told not to
        (flags,) = struct.unpack("l", fcntl.ioctl(fd, _GETFLAGS, bytes(struct.calcsize("l"))))
        fcntl.ioctl(fd, _SETFLAGS, struct.pack("l", flags | _NOCOW))
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as failure:
        if failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOSYS):
            raise
        zeros = memoryview(bytes(1 << 20))
        at = 0
        while at < nbytes:
            at += os.pwrite(fd, zeros[: nbytes - at], at)
        os.fsync(fd)  # a file system that writes late reports only now that there is no room


class _Map(mmap.mmap):
    """A mapping that weak references can refer to."""

    def __new__(cls, fd, nbytes):
        return super().__new__(cls, fd, nbytes, mmap.MAP_SHARED)


@contextlib.contextmanager
def replaced(owner, **makers):
    """The context in which a class or module has other functions. makers: each makes one of the function before."""
    before = {name: getattr(owner, name) for name in makers}
    try:
        for name, make in makers.items():
            setattr(owner, name, make(before[name]))
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)


@contextlib.contextmanager
def spooling(directories, more):
    """A context in which parameters that modules register lie in files of these directories. Yields the Spool."""
    spool = Spool(directories, more)
    methods = {"__init__": spool.noting, "__setstate__": spool.noting, "register_parameter": spool.registering}
    with replaced(nn.Module, **methods), replaced(torch, load=spool.loading), spool.relieving():
        try:
            with unreadable_weights.named(), Progress("making the model") as spool.progress:
                yield spool
                if spool.failure is not None:
                    raise spool.failure  # which other code has swallowed
        except Exception as said:
            for failure in (spool.refused, spool.failure):
                if failure is not None and said is not failure:
                    # transformers reports another cause: 4 that the file is not PyTorch's, 5 that it cannot convert
                    raise failure from said
            raise
