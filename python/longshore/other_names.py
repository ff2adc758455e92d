"""Answers names of other libraries with Longshore's own, as the program does (src/cli/other_names.txt)."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable)


def _answer(name):
    """What other_names.txt, which says what its lines mean, answers to a name."""
    named = False  # since the last answer
    with open(os.path.join(os.path.dirname(__file__), "other_names.txt"), encoding="utf-8") as f:
        for line in f:
            if line[0] not in ">=":
                named = named or name.lower() in line.split()
            elif named:
                return ("here it is " if line[0] == ">" else "") + line[2:].strip()
    return None


def _near(name, known):
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else None


def refuse_optimizer(name: str, known: Any) -> None:
    """Raises ValueError for the name of an optimizer that is not known."""
    answer = _answer("optimizer=" + name.replace("-", "").replace("_", "")) or _near(name.lower(), known)
    raise ValueError(f"wrap: optimizer={name!r} is not supported: {answer or 'it is one of ' + ', '.join(known)}")


def answered(function: _Function) -> _Function:
    """A function whose error for an unknown argument says what the argument is called here."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name in kwargs.keys() - known.keys():
            answer = _answer(name) or _near(name, known) or f"help(longshore.{function.__name__}) has all"
            raise TypeError(f"{function.__name__}: there is no argument {name}: {answer}")
        return function(*args, **kwargs)

    return cast(_Function, call)
