"""glibc's allocator, from which PyTorch's tensors and Python's objects come: what it has lent, what it keeps, and
giving that back."""

import ctypes
import os
import time

LEAST_BYTES = 128 << 20  # that are worth a walk through all of them
_LEAST_SECONDS, _SHARE = 1.0, 200  # between two walks; of the time that one took


class _Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t)
                for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
                             "fordblks", "keepcost")]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Info


def process_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held():
    """(bytes that are lent, bytes that are free and kept, which may have been given back to the system)."""
    info = _libc.mallinfo2()
    return info.uordblks + info.hblkhd, info.fordblks


def give_back():
    """Gives the system what is free. Returns how much less the process has then."""
    before = process_bytes()
    _libc.malloc_trim(0)
    return max(before - process_bytes(), 0)


class Keeper:
    """Gives back between steps, where there is something to give back and it takes next to no time."""

    def __init__(self):
        self.next = 0.0

    def rest(self):
        began = time.monotonic()
        if began < self.next:
            return
        self.next = began + _LEAST_SECONDS
        if held()[1] >= LEAST_BYTES:
            given, took = give_back(), time.monotonic() - began
            # what comes back is mapped again, in about that time
            self.next += _SHARE * took * (1 if given >= LEAST_BYTES else 16)
