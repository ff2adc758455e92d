"""Longshore: train PyTorch models bigger than memory, weights and optimizer state on drives."""

from .engine import Engine, StepResult
from .errors import (AbsentParameterError, BudgetError, BusyError, ExistsError, LongshoreError, MissingError, NotFiniteError)
from .making import init, resume, wrap
from .resident import resident

__all__ = ["AbsentParameterError", "BudgetError", "BusyError", "Engine", "ExistsError", "LongshoreError", "MissingError", "NotFiniteError",
           "StepResult", "init", "resident", "resume", "wrap"]
