"""Stops PyTorch's OpenMP threads from spinning while they wait, so that drives can use the processors.

OpenMP threads spin for milliseconds at the end of each parallel operation, in case another one follows. Meanwhile
drives compute beside them, and forward waits for blocks. On two cores, spinning takes as long as computing. GNU's
runtime spins only while it has no more threads than processors (libgomp's do_spin(): gomp_managed_threads >
gomp_available_cpus). So one extra thread makes a team of its own and sleeps. If OMP_WAIT_POLICY or GOMP_SPINCOUNT is
set, this module does nothing.
"""

import atexit
import os
import threading

import torch

_rests = None  # an Event: the extra thread has left PyTorch
_PARALLEL = 1 << 20  # elements of an operation that PyTorch makes parallel


def stop():
    """Starts the extra thread, once in each process."""
    global _rests
    said = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
    if torch.get_num_threads() > 1 and not said and _rests is None:
        _rests = threading.Event()
        threading.Thread(target=_rest, args=(_rests,), name="longshore-openmp", daemon=True).start()


def _rest(rests):
    try:
        torch.ones(_PARALLEL, device="cpu").add_(1)  # makes the team, which lives as long as this thread
    finally:
        rests.set()
    threading.Event().wait()


@atexit.register
def _await():
    """Waits at exit until the extra thread has left PyTorch.

    The interpreter unwinds threads at exit. That would abort the process if one were still inside PyTorch.
    """
    if _rests is not None:
        _rests.wait()


def _forget_parents():
    """In a forked child, whose parent's threads do not exist: lets stop() start a new one."""
    global _rests
    _rests = None


os.register_at_fork(after_in_child=_forget_parents)
