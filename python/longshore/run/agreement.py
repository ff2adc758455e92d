"""What all ranks must say alike before a run is made or opened: the model's shape, options, versions, one directory."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket

from .. import native, progress
from ..errors import LongshoreError, RankError
from .init import nearest_directory

# options that may differ from rank to rank: budgets, and what is rank 0's (the seed)
_OWN = {"seed", "default_memory", "gpu_memory", "pinned_memory"}
_SHOWN = 120  # characters of a value in a message


class Agreement:
    """A context of a call that all ranks make, such as "wrap". Each prepares it, and changes nothing before on(). There
    they meet: if one has failed or says something else, all raise. A failure after that ends all."""

    def __init__(self, call, ranks):
        self.call, self.ranks, self._met, self._agreed = call, ranks, False, False

    def on(self, run, said):
        """run: the run's directory. said: as described() returns it."""
        every = self._meet(None, said)
        other = next((rank for rank, (failure, _) in enumerate(every) if failure is not None), None)
        if other is not None:
            raise LongshoreError(f"{self.call}: rank {other} failed: {every[other][0]}")
        _refuse_differences(self.call, [said for _, said in every])
        refuse_other_directories(self.ranks, self.call, run)
        self._agreed = True

    def _meet(self, failure, said):
        self._met = True
        return self.ranks.meet(f"longshore.{self.call}()", (failure, said))

    def __enter__(self):
        return self

    def __exit__(self, kind, failure, traceback):
        if isinstance(failure, Exception) and not self._met:
            with contextlib.suppress(RankError):
                self._meet(_sentence(failure), {})
        elif failure is not None and (self._agreed or not isinstance(failure, Exception)):
            self.ranks.fail(failure)


def _sentence(failure):
    return str(failure) if isinstance(failure, LongshoreError) else f"{type(failure).__name__}: {failure}"


def described(layout=None, how=None, versions=None, **more):
    """{what it is: its text} of all that ranks must say alike. layout, how: the model's shape and wrap()'s options as
    the run records them."""
    out = {}
    for block in layout.blocks if layout is not None else ():
        for t in block.tensors:
            kind = "buffer" if block.buffers else "trained" if t.trains else "frozen"
            out[f"{t.name} of the model"] = f"{list(t.shape)} {t.dtype} {kind}"
    for key, value in {**(how or {}), **more}.items():
        if key == "groups":
            for n, group in enumerate(value):
                numbers = {k: v for k, v in group.items() if k != "params"}
                out.update({f"groups[{n}].{k}": repr(v) for k, v in numbers.items()})
                out.update({f"the group of {name}": str(n) for name in group["params"]})
        elif key not in _OWN:
            out[key] = repr(value)
    out["longshore"] = native.text(native.lib.shore_version())
    out.update({f"version of {k}" if k != "threads" else k: str(v) for k, v in (versions or {}).items()})
    return out


def _refuse_differences(call, every):
    first = every[0]
    for rank, said in enumerate(every):
        for what in (*first, *(other for other in said if other not in first)):
            here, there = said.get(what, "missing"), first.get(what, "missing")
            if here == there:
                continue
            differs = f"{what} is {here[:_SHOWN]} on rank {rank}, and {there[:_SHOWN]} on rank 0"
            if what != "threads":
                own = ", with {rank} and {host} for what is each rank's own" if what == "drives" else ""
                raise LongshoreError(f"{call}: the ranks differ: {differs}; give all ranks the same{own}")
            progress.warn(f"{call}: {differs}: their last bits may differ; OMP_NUM_THREADS sets it", stacklevel=4)


def refuse_other_directories(ranks, call, run):
    """Raises on all ranks unless the run is one directory for all of them, or will be. Rank 0 puts a file there for a
    moment, or into the nearest directory above it, and the others look for it."""
    if ranks.size == 1:
        return
    what, place, path = f"longshore.{call}()", nearest_directory(run), None
    below = os.path.relpath(os.path.realpath(run), place)
    try:
        failure = None
        if ranks.rank == 0:
            path = os.path.join(place, f".longshore-{secrets.token_hex(8)}")
            try:
                open(path, "x").close()
            except OSError as error:
                path, failure = None, f"{place}: rank 0 cannot write there: {error.strerror}"
        name, theirs, failure = ranks.meet(what, (path and os.path.basename(path), below, failure))[0]
        if failure is not None:
            raise LongshoreError(f"{call}: {failure}")
        same = below == theirs and os.path.exists(os.path.join(place, name))
        every = ranks.meet(what, (same, socket.gethostname()))
        other = next((rank for rank, (same, _) in enumerate(every) if not same), None)
        if other is not None:
            raise LongshoreError(
                f"{call}: {run} is not one directory for all ranks: rank {other} on {every[other][1]} does not see "
                f"what rank 0 on {every[0][1]} has written there; name a directory of a file system that all hosts "
                "share, by its whole path (drives= may be each host's own)"
            )
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)
