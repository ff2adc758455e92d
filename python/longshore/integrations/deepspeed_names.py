"""Placeholders for DeepSpeed's names that Longshore does not have: importing them works, using them raises.

deepspeed_names.txt lists DeepSpeed's modules and their names, so that a misspelt name is still an ImportError.
"""

import abc
import functools
import importlib
import os

from ..errors import LongshoreError
from ..step.optimizer_table import NAMES
from .deepspeed_config import meant

_HERE = "longshore.deepspeed"


@functools.cache
def _instead():
    """{beginning of a name: what to use instead}, of deepspeed_instead.txt."""
    out: dict = {}
    names: list = []
    with open(os.path.join(os.path.dirname(__file__), "deepspeed_instead.txt"), encoding="utf-8") as f:
        for line in f:
            if line.startswith("= "):
                out.update(dict.fromkeys(names, line[2:].strip().replace("OPTIMIZERS", NAMES)))
            names = line.split()
    return out


class NotHereError(LongshoreError, AttributeError, NotImplementedError):
    """The script used a part of DeepSpeed that Longshore does not have."""


def _refuse(name):
    """Raises NotHereError for a name below deepspeed, and says what to use instead."""
    beginning = max((b for b in _instead() if name.startswith(b)), key=len, default=None)
    instead = _instead().get(beginning, "docs/deepspeed.md says what works")
    raise NotHereError(f"deepspeed.{name}: does nothing under Longshore; instead: {instead}")


class _Kind(abc.ABCMeta):
    """The metaclass of placeholder classes. They have no instances, so isinstance() works and returns False."""

    def __call__(cls, *args, **kwargs):
        _refuse(cls.longshore_name)

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"{cls.longshore_name}.{name}")

    def __iter__(cls):
        _refuse(cls.longshore_name)

    __getitem__ = __call__


class _Value:
    """The placeholder for a constant: any use raises NotHereError."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def _used(self, *args):
        _refuse(self.__dict__["name"])

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._used()

    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __bool__ = __len__ = __iter__ = __int__ = __float__ = _used
    __contains__ = __getitem__ = __call__ = __add__ = __radd__ = __mod__ = __format__ = __lt__ = __gt__ = _used
    __le__ = __ge__ = __index__ = _used


@functools.cache
def _placeholder(name):
    last = name.rpartition(".")[2]
    return _Value(name) if last.isupper() else _Kind(last, (), {"longshore_name": name, "__module__": "deepspeed"})


@functools.cache
def _known():
    """{module below deepspeed: its names}. The name "*" stands for every name."""
    with open(os.path.join(os.path.dirname(__file__), "deepspeed_names.txt"), encoding="utf-8") as f:
        return {module: names for module, *names in map(str.split, f)}


def _whole(module):
    """Whether a module, or a module above it, has every name."""
    return any(names == ["*"] and f"{module}.".startswith(f"{other}.") for other, names in _known().items())


def is_module(module):
    return module in _known() or _whole(module)


def of_classes(*classes):
    """The modules below deepspeed.ops that have one of these classes."""
    return [
        module for module, names in _known().items() if module.startswith("ops.") and not {*classes}.isdisjoint(names)
    ]


def near(module):
    """ "; did you mean ...?" for an unknown module, or ""."""
    return meant(module, _known(), "deepspeed.")


def attach(module, *others):
    """Gives a Python module placeholders for names that it lacks. others: the modules below deepspeed it stands for."""

    def missing(name):
        if not name.startswith("__"):
            for other in others:
                inner = f"{other}.{name}".lstrip(".")
                if inner in _known():
                    return importlib.import_module(f"{_HERE}.{inner}")
                if name in _known().get(other or ".", ()) or _whole(other):
                    return _placeholder(inner)
        known = [n for other in others for n in _known().get(other or ".", ())] + list(vars(module))
        hint = "" if name.startswith("_") else meant(name, known)
        raise AttributeError(
            f"module 'deepspeed{'.' if others[0] else ''}{others[0]}' has no attribute {name!r}{hint}",
            name=name,
            obj=module,
        )

    module.__getattr__ = missing
