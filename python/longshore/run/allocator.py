"""Measures the C library's allocator and returns its free memory to the system.

PyTorch's tensors and Python's objects come from that allocator.
"""

import ctypes
import os
import threading
import time

LEAST_BYTES = 128 << 20  # free memory that is worth a malloc_trim(), which walks through all of it
_LEAST_SECONDS = 1.0  # between two looks
_SHARE = 100  # between two trims, in durations of one
# (memory of the process that is of no file, bytes in use) after the last trim, which leaves nothing free in memory
_rested = None
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # of malloc.h
_MMAPS, _INT_MAX = 65536, 2**31 - 1
_LARGE_BYTES = 1 << 20
_keeps = False  # whether a Guard was made
_TOUCHED_A_SECOND = 4 << 30  # bytes that a process can add in a second
_PAUSE_BYTES = 8 << 20  # what it adds between two looks of a Guard, at least


class _Info(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Info


def _resident():
    """Resident memory of this process, in bytes: (all of it, the part that is of no file)."""
    with open("/proc/self/statm", encoding="ascii") as f:
        every, of_files = map(int, f.read().split()[1:3])
    page = os.sysconf("SC_PAGE_SIZE")
    return every * page, (every - of_files) * page


def process_bytes() -> int:
    """Resident memory of this process, in bytes."""
    return _resident()[0]


def held():
    """(bytes in use, free bytes that the allocator keeps).

    The allocator counts what it has given back as free for ever. So what is free cannot be more than the process has
    grown since then beside what is in use.
    """
    info = _libc.mallinfo2()
    used, free = info.uordblks + info.hblkhd, info.fordblks
    if _rested is not None:
        free = min(free, max(_resident()[1] - _rested[0] - (used - _rested[1]), 0))
    return used, free


def give_back():
    """Returns the allocator's free memory to the system. Returns by how many bytes the process shrank."""
    global _rested
    before = process_bytes()
    _libc.malloc_trim(0)
    _rested = None
    now, anonymous = _resident()
    _rested = anonymous, held()[0]
    return max(before - now, 0)


class Guard(threading.Thread):
    """Lets the allocator keep what is free, also of large tensors, as long as the process stays within a limit: the
    next tensor then needs no new pages of the system, which cost as much time as computing with them. Near the limit
    all that is free goes back."""

    def __init__(self, limit, margin):
        """limit: of resident memory, in bytes; free memory goes back that many bytes before it: margin."""
        super().__init__(name="longshore-memory", daemon=True)
        self.limit, self.margin, self.most = limit, margin, 0
        self.stopped = threading.Event()
        global _keeps
        _keeps = True
        self.keep(True)
        self.start()

    @staticmethod
    def keep(free):
        """free: whether the allocator keeps what is free. In threads of their own it would not give it back: there,
        large tensors get pages of the system, and return them at once."""
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        _libc.mallopt(_M_MMAP_MAX, 0 if free else _MMAPS)
        _libc.mallopt(_M_TRIM_THRESHOLD, _INT_MAX if free else LEAST_BYTES)

    def run(self):
        left = 0
        while not self.stopped.wait(max(left, _PAUSE_BYTES) / _TOUCHED_A_SECOND):
            now = process_bytes()
            self.most = max(self.most, now)
            left = self.limit - self.margin - now
            if left < 0:
                _libc.malloc_trim(0)

    def stop(self):
        """Ends the thread. The allocator keeps as little as it can from here on."""
        self.stopped.set()
        self.keep(False)


class Keeper:
    """Returns free memory to the system between steps, if there is enough and it costs almost no time."""

    def __init__(self):
        self.next = 0.0

    def rest(self):
        began = time.monotonic()
        if _keeps or began < self.next:
            return
        self.next = began + _LEAST_SECONDS
        if held()[1] >= LEAST_BYTES:
            give_back()
            # the next step maps the memory again, which takes about as long
            self.next += _SHARE * (time.monotonic() - began)
