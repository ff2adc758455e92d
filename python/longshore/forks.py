"""Makes forked processes, such as a DataLoader's workers, leave runs, drives and memory to their parent."""

import os
import weakref

from .errors import LongshoreError

WHY = "this process was forked from the one that works on its run"
_left: weakref.WeakSet = weakref.WeakSet()  # objects that a child leaves to its parent


def leave_in_children(thing):
    """Lets every process that is forked from this one call thing.leave_to_parent()."""
    _left.add(thing)


def refuse(what):
    """Raises LongshoreError for something that a forked process cannot do."""
    raise LongshoreError(f"{what}: {WHY}")


def _forked():
    """Runs in every forked child."""
    for thing in list(_left):
        thing.leave_to_parent()
    _left.clear()


os.register_at_fork(after_in_child=_forked)
