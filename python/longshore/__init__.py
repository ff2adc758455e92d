"""Longshore: train PyTorch models bigger than memory, weights and optimizer state on drives."""

from .engine import Engine, StepResult
from .errors import (AbsentParameterError, BudgetError, BusyError, ExistsError, LongshoreError, MissingError, NotFiniteError)
from .making import init, resume, wrap
from .memory import Memory
from .resident import resident
from .verify import verify

__all__ = ["AbsentParameterError", "BudgetError", "BusyError", "Engine", "ExistsError", "LongshoreError", "Memory", "MissingError", "NotFiniteError",
           "StepResult", "init", "resident", "resume", "verify", "wrap"]
