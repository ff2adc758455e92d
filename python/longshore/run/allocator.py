"""Measures the C library's allocator and returns its free memory to the system.

PyTorch's tensors and Python's objects come from that allocator.
"""

import ctypes
import os
import time

LEAST_BYTES = 128 << 20  # free memory that is worth a malloc_trim(), which walks through all of it
_LEAST_SECONDS, _SHARE = 1.0, 200  # least time between two trims, in seconds and in durations of a trim


class _Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t)
                for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
                             "fordblks", "keepcost")]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Info


def process_bytes() -> int:
    """Resident memory of this process, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held():
    """(bytes in use, free bytes that the allocator keeps; some of those may be back with the system already)."""
    info = _libc.mallinfo2()
    return info.uordblks + info.hblkhd, info.fordblks


def give_back():
    """Returns the allocator's free memory to the system. Returns by how many bytes the process shrank."""
    before = process_bytes()
    _libc.malloc_trim(0)
    return max(before - process_bytes(), 0)


class Keeper:
    """Returns free memory to the system between steps, if there is enough and it costs almost no time."""

    def __init__(self):
        self.next = 0.0

    def rest(self):
        began = time.monotonic()
        if began < self.next:
            return
        self.next = began + _LEAST_SECONDS
        if held()[1] >= LEAST_BYTES:
            given, took = give_back(), time.monotonic() - began
            # the next step maps the memory again, which takes about as long
            self.next += _SHARE * took * (1 if given >= LEAST_BYTES else 16)
