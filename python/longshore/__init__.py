"""Longshore trains PyTorch models bigger than memory: their weights and optimizer state lie on drives."""

from __future__ import annotations

from . import native as _native
from .errors import (
    AbsentParameterError,
    BudgetError,
    BusyError,
    ExistsError,
    LongshoreError,
    MissingError,
    NotFiniteError,
    RankError,
)
from .run.engine import Engine
from .run.init import init
from .run.memory import Memory
from .run.planning import plan
from .run.resume import resume
from .run.shared_budget import budget
from .run.verify import verify
from .run.wrap import wrap
from .step.resident import resident
from .step.step_cycle import StepResult

__all__ = [
    "AbsentParameterError",
    "BudgetError",
    "BusyError",
    "Engine",
    "ExistsError",
    "LongshoreError",
    "Memory",
    "MissingError",
    "NotFiniteError",
    "RankError",
    "StepResult",
    "budget",
    "init",
    "plan",
    "resident",
    "resume",
    "verify",
    "wrap",
]
__version__ = _native.text(_native.lib.shore_version())


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
