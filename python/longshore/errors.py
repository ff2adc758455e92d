"""Longshore's exceptions. Each message says in one sentence what went wrong and what to do."""


class LongshoreError(RuntimeError):
    """An operation of the engine failed. ``code`` is a code of ``include/longshore/error.h`` or a negated errno."""

    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class BudgetError(LongshoreError, MemoryError):
    """The memory budget is below the least that works, and the message names the ``minimum SIZE``; or it is more than
    the machine has."""


class BusyError(LongshoreError):
    """Another process, or another engine of this process, uses the run."""


class MissingError(LongshoreError, FileNotFoundError):
    """A run, drive, snapshot or checkpoint does not exist."""


class ExistsError(LongshoreError, FileExistsError):
    """A run or file already exists and would have to be replaced."""


class NotFiniteError(LongshoreError, ArithmeticError):
    """A loss, a gradient or an updated parameter is not finite. The step was not made."""


class AbsentParameterError(LongshoreError):
    """A parameter is on the drives, and the script used it in a way that a copy of its value cannot serve."""


class RankError(LongshoreError):
    """Another rank did not come, failed or ended, or is at another call. The committed step is good: start all anew."""
