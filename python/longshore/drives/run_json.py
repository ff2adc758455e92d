"""Converts the record that wrap() makes to and from the JSON text in run.json."""

import json
import math

_FLOAT, _INT = "__float__", "__int__"  # mark numbers that run.json stores as text


def program(text):
    """The record of a JSON text."""
    return json.loads(text, object_hook=_number)


def _number(said):
    return float(said[_FLOAT]) if _FLOAT in said else int(said[_INT]) if _INT in said else said


def text(program):
    """The JSON text of a record.

    Infinities, which a configuration may hold, and whole numbers beyond signed 64 bits, which a seed may be, become
    text, because run.json cannot hold them as numbers.
    """

    def known(value):
        if isinstance(value, dict):
            return {k: known(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [known(v) for v in value]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return {_INT: str(int(value))}
        return {_FLOAT: str(value)} if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(known(program))
