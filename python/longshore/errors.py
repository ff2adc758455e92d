"""What goes wrong, as exceptions. Each says in one sentence what it was and what to do."""


class LongshoreError(RuntimeError):
    """An operation of the engine failed. ``code`` is the engine's, of ``include/longshore/error.h``, or a negated
    errno."""

    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class BudgetError(LongshoreError, MemoryError):
    """The memory budget is below the least that works; the sentence ends with ``minimum SIZE``."""


class BusyError(LongshoreError):
    """Another process, or another engine of this one, works on the run."""


class MissingError(LongshoreError, FileNotFoundError):
    """A run, a drive or a snapshot is not there."""


class ExistsError(LongshoreError, FileExistsError):
    """Something is there already that would have to be replaced."""


class NotFiniteError(LongshoreError, ArithmeticError):
    """A loss, a gradient or an updated parameter is not finite. The step was not made."""


class AbsentParameterError(LongshoreError):
    """A parameter's value was touched while it lies on the drives, in a way that cannot be answered with a copy."""
