"""Buffers that forward writes: after each step all ranks have rank 0's, as with DistributedDataParallel."""

import logging

from ..model import device
from ..torch_internals import version_of
from .commit_blob import putting

_log = logging.getLogger("longshore")


class RankBuffers:
    """The buffers of one engine's model."""

    def __init__(self, core):
        self.core, self.said = core, False
        self.seen = {}  # by name: the buffer and its version, when all ranks had the same

    def changed(self):
        """The names of buffers that may have changed since then: all of a module that has changed one, since batch norm
        says so of its count alone."""
        if self.core.ranks.size == 1:
            return []
        now = {name: (b, version_of(b)) for name, b in self.core.module.named_buffers()}
        owners = {name.rpartition(".")[0] for name, (b, version) in now.items() if not self._has_seen(name, b, version)}
        return [name for name in now if name.rpartition(".")[0] in owners]

    def _has_seen(self, name, buffer, version):
        before, at = self.seen.get(name, (None, 0))
        return before is buffer and at == version

    def take_rank_0s(self, changed):
        """Gives all ranks rank 0's buffers. changed: what changed() has returned on each rank."""
        core, names = self.core, {name for of_rank in changed for name in of_rank}
        if not names:
            return
        told = None
        if core.ranks.rank == 0:
            there = {name: b.detach() for name, b in core.module.named_buffers() if name in names}
            told = {name: b.clone() for name, b in device.to_host(there, core.streams.device).items()}
        theirs = core.ranks.meet("taking rank 0's buffers", told)[0]
        if core.ranks.rank:
            put = putting(core.module, theirs)
            for name, value in theirs.items():
                put(name, value)
        elif core.trains and not self.said:
            self._say(theirs)
        self.seen = {name: (b, version_of(b)) for name, b in core.module.named_buffers()}

    def _say(self, names):
        """Says once what this means for the bits: at wrap() if it is known of a module, or after the first step."""
        modules = dict(self.core.module.named_modules())
        tracks = [n for n in names if getattr(modules.get(n.rpartition(".")[0]), "track_running_stats", False)]
        written = tracks or (self.seen and names)
        if written:
            self.said = True
            _log.warning(
                "%s: forward writes this buffer, and all ranks take rank 0's after each step, as under "
                "DistributedDataParallel: bits are equal for equal numbers of ranks alone",
                min(written),
            )
