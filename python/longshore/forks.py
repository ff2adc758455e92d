"""A process that is forked off, of a loader say, leaves runs, drives and memory to its parent."""

import os
import weakref

from .errors import LongshoreError

WHY = "this process was forked from the one that works on its run"
_left: weakref.WeakSet = weakref.WeakSet()


def leave_in_children(thing):
    """thing.leave_to_parent() is called in every process that is forked off from this one."""
    _left.add(thing)


def refuse(what):
    raise LongshoreError(f"{what}: {WHY}")


def _forked():
    for thing in list(_left):
        thing.leave_to_parent()
    _left.clear()


os.register_at_fork(after_in_child=_forked)
