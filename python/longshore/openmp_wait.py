"""PyTorch's threads give their processors away while they wait.

OpenMP's threads spin for milliseconds at the end of each parallel operation, in case another one follows. Here drives
compute beside them, and blocks are waited for: where two cores are to be had, spinning takes as long as computing.
GNU's runtime spins only as long as its threads are not more than processors (libgomp's do_spin(): gomp_managed_threads
> gomp_available_cpus); so one more thread has a team of its own, and sleeps. OMP_WAIT_POLICY or GOMP_SPINCOUNT, where
they are set, say otherwise.
"""

import atexit
import os
import threading

import torch

_begun = threading.Lock()
_resting: list = []  # an Event for each thread
_PARALLEL = 1 << 20  # elements: an operation on so many is parallel


def stop():
    """Once a process, and again in one that is forked off."""
    if (torch.get_num_threads() > 1 and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
        and _begun.acquire(blocking=False)):
        rests = threading.Event()
        threading.Thread(target=_rest, args=(rests,), name="longshore-openmp", daemon=True).start()
        _resting.append(rests)


def _rest(rests):
    try:
        torch.ones(_PARALLEL).add_(1)  # makes the team, which is there as long as this thread
    finally:
        rests.set()
    threading.Event().wait()


@atexit.register
def _await():
    """The interpreter ends threads that are within PyTorch by unwinding them, which aborts the process; this one is
    left where it rests."""
    for rests in _resting:
        rests.wait()


def _again():
    global _begun
    _begun = threading.Lock()
    _resting.clear()


os.register_at_fork(after_in_child=_again)
