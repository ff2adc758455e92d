"""Longshore: train PyTorch models bigger than memory, weights and optimizer state on drives."""

from __future__ import annotations

from . import native as _native
from .budgets import budget
from .errors import (
    AbsentParameterError,
    BudgetError,
    BusyError,
    ExistsError,
    LongshoreError,
    MissingError,
    NotFiniteError,
)
from .making import resume, wrap
from .memory import Memory
from .model.init import init
from .model.resident import resident
from .step.engine import Engine, StepResult
from .verify import verify

__all__ = ["AbsentParameterError", "BudgetError", "BusyError", "Engine", "ExistsError", "LongshoreError", "Memory", "MissingError", "NotFiniteError",
           "StepResult", "budget", "init", "resident", "resume", "verify", "wrap"]
__version__ = _native.text(_native.lib.shore_version())


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
